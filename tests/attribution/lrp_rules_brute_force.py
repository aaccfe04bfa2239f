"""LRP rules a second time: float64 numpy, every linear operation a dense matrix, every unit shared out by itself.

Shares no code with the engine: no convolution, no transposed convolution, no batching, no clamped weights. A *rule* is
a function of one unit: its contributions one by one, its weights, its bias. Sources: Bach et al. 2015 (epsilon, alpha-
beta), Montavon et al. 2017 (z+, zB, w2) and 2019 (gamma), Andeol et al. 2021 (generalised gamma), Lapuschkin et al.
2019 (flat).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from torch import nn


@dataclass(frozen=True)
class Unit:
    """One unit: the inputs it is connected to (a weight may be zero), their weights and places, and the bias."""

    x: np.ndarray
    w: np.ndarray
    b: float
    places: np.ndarray

    @property
    def z(self) -> np.ndarray:
        return self.x * self.w


class Shares(NamedTuple):
    """Parts of one unit's relevance; they add up to 1."""

    inputs: np.ndarray
    bias: float = 0.0
    stabiliser: float = 0.0
    lost: float = 0.0


Rule = Callable[[Unit], Shares]


def nothing(unit: Unit) -> Shares:
    return Shares(np.zeros_like(unit.x), lost=1.0)


def in_proportion(unit: Unit, parts: np.ndarray, bias: float = 0.0) -> Shares:
    total = parts.sum() + bias
    return nothing(unit) if total == 0 else Shares(parts / total, bias / total)


def epsilon_rule(epsilon: float, bias: bool = True) -> Rule:
    def share(unit: Unit) -> Shares:
        b = unit.b if bias else 0.0
        z = unit.z.sum() + b
        push = epsilon if z >= 0 else -epsilon
        if z + push == 0:
            return nothing(unit)
        return Shares(unit.z / (z + push), b / (z + push), push / (z + push))

    return share


def gamma_rule(gamma: float, bias: bool = True) -> Rule:
    """Generalised: contributions of the sign of the unit count (1 + gamma)-fold."""

    def share(unit: Unit) -> Shares:
        b = unit.b if bias else 0.0
        z = unit.z.sum() + b
        if z == 0:
            return nothing(unit)
        favoured = np.maximum if z > 0 else np.minimum
        return in_proportion(unit, unit.z + gamma * favoured(unit.z, 0), b + gamma * float(favoured(b, 0)))

    return share


def z_plus_rule(bias: bool = False) -> Rule:
    return lambda unit: in_proportion(unit, np.maximum(unit.z, 0), max(unit.b, 0.0) if bias else 0.0)


def beta_rule(beta: float) -> Rule:
    """Without biases; units with contributions of one sign only give everything to those."""

    def share(unit: Unit) -> Shares:
        positive, negative = np.maximum(unit.z, 0), np.minimum(unit.z, 0)
        if positive.any() and negative.any():
            return Shares((1 + beta) * positive / positive.sum() - beta * negative / negative.sum())
        if positive.any() and beta != -1:
            return Shares(positive / positive.sum())
        if negative.any() and beta != 0:
            return Shares(negative / negative.sum())
        return nothing(unit)

    return share


def z_box_rule(low: np.ndarray, high: np.ndarray) -> Rule:
    """Bounds per input (flattened); what is beside the volume (padding) is no input."""

    def share(unit: Unit) -> Shares:
        l, h = low[unit.places], high[unit.places]  # noqa: E741
        return in_proportion(unit, unit.z - l * np.maximum(unit.w, 0) - h * np.minimum(unit.w, 0))

    return share


def flat_rule(unit: Unit) -> Shares:
    return in_proportion(unit, np.ones_like(unit.w))


@dataclass(frozen=True)
class Dense:
    """A linear operation on flattened arrays, as a matrix."""

    matrix: np.ndarray
    bias: np.ndarray
    connected: np.ndarray
    shape: tuple[int, ...]

    def apply(self, x: np.ndarray) -> np.ndarray:
        return (self.matrix @ x.reshape(-1) + self.bias).reshape(self.shape)

    def scaled(self, scale: np.ndarray, shift: np.ndarray) -> Dense:
        """This operation followed by ``scale * y + shift`` per channel."""
        per_channel = int(np.prod(self.shape[1:]))
        scale, shift = np.repeat(scale, per_channel), np.repeat(shift, per_channel)
        return Dense(self.matrix * scale[:, None], self.bias * scale + shift, self.connected, self.shape)


@functools.lru_cache(maxsize=4)
def conv_matrix(conv: nn.Conv3d, shape: tuple[int, int, int]) -> tuple[np.ndarray, tuple[int, ...]]:
    """Matrix of a convolution without bias on flattened (C, D, H, W), and its output shape.

    Remembered by module: the weights must not change between calls.
    """
    weight = conv.weight.detach().double().numpy()
    out_channels, per_group, *kernel = weight.shape
    stride, pad, dilation = conv.stride, conv.padding, conv.dilation
    sides = [(n + 2 * p - d * (k - 1) - 1) // s + 1
             for n, p, d, k, s in zip(shape, pad, dilation, kernel, stride, strict=True)]  # fmt: skip
    in_shape = (conv.in_channels, *shape)
    matrix = np.zeros((out_channels, *sides, *in_shape))
    for o, z, y, x in product(range(out_channels), *map(range, sides)):
        group = o // (out_channels // conv.groups)
        for c, *offset in product(range(per_group), *map(range, kernel)):
            at = [i * s - p + k * d for i, s, p, k, d in zip((z, y, x), stride, pad, offset, dilation, strict=True)]
            if all(0 <= a < n for a, n in zip(at, shape, strict=True)):
                matrix[(o, z, y, x, group * per_group + c, *at)] += weight[(o, c, *offset)]
    return matrix.reshape(out_channels * int(np.prod(sides)), -1), (out_channels, *sides)


def pool_winners(x: np.ndarray, pool: nn.MaxPool3d) -> tuple[np.ndarray, np.ndarray]:
    """Max-pooled (C, d, h, w) and the flat index (into C*D*H*W) of each winner, first of equals."""
    triple = lambda value: (value,) * 3 if isinstance(value, int) else tuple(value)  # noqa: E731
    kernel, stride, pad = triple(pool.kernel_size), triple(pool.stride), triple(pool.padding)
    sides = [(n + 2 * p - k) // s + 1 for n, p, k, s in zip(x.shape[1:], pad, kernel, stride, strict=True)]
    winners = np.zeros((x.shape[0], *sides), dtype=int)
    for c, z, y, w in product(range(x.shape[0]), *map(range, sides)):
        start = [i * s - p for i, s, p in zip((z, y, w), stride, pad, strict=True)]
        window = product(*(range(max(a, 0), min(a + k, n)) for a, k, n in zip(start, kernel, x.shape[1:], strict=True)))
        voxels = [(c, *voxel) for voxel in window]
        winners[c, z, y, w] = np.ravel_multi_index(max(voxels, key=lambda v: x[v]), x.shape)
    return x.reshape(-1)[winners], winners


@functools.lru_cache(maxsize=16)
def dense(module: nn.Module, shape: tuple[int, ...]) -> Dense:
    """Matrix of a convolution, a fully connected layer or an average pooling on an input (C, D, H, W) or (F,).

    Remembered by module: the weights must not change between calls.
    """
    if isinstance(module, nn.Linear):
        weight = module.weight.detach().double().numpy()
        return Dense(weight, _bias(module, len(weight), 1), np.ones_like(weight, dtype=bool), (len(weight),))
    if isinstance(module, nn.Conv3d):
        matrix, sides = conv_matrix(module, shape[1:])
        ones = nn.Conv3d(
            module.in_channels, module.out_channels, module.kernel_size, module.stride, module.padding,
            module.dilation, module.groups, bias=False,
        )  # fmt: skip
        nn.init.ones_(ones.weight)
        bias = _bias(module, sides[0], int(np.prod(sides[1:])))
        return Dense(matrix, bias, conv_matrix(ones, shape[1:])[0] > 0, sides)
    assert isinstance(module, nn.AvgPool3d | nn.AdaptiveAvgPool3d), module
    return _mean_matrix(module, shape)


def _bias(module: nn.Linear | nn.Conv3d, units: int, each: int) -> np.ndarray:
    bias = np.zeros(units) if module.bias is None else module.bias.detach().double().numpy()
    return np.repeat(bias, each)


def _mean_matrix(pool: nn.AvgPool3d | nn.AdaptiveAvgPool3d, shape: tuple[int, ...]) -> Dense:
    """Every window an equal share of its voxels (no padding)."""
    windows = []
    for axis, n in enumerate(shape[1:]):
        if isinstance(pool, nn.AdaptiveAvgPool3d):
            out = _triple(pool.output_size)[axis]
            windows.append([(i * n // out, -(-(i + 1) * n // out)) for i in range(out)])
        else:
            size, stride = _triple(pool.kernel_size)[axis], _triple(pool.stride)[axis]
            assert _triple(pool.padding) == (0, 0, 0)
            windows.append([(at, at + size) for at in range(0, n - size + 1, stride)])
    sides = (shape[0], *map(len, windows))
    matrix = np.zeros((*sides, *shape))
    for c, i, j, k in product(*map(range, sides)):
        (a, b), (d, e), (f, g) = windows[0][i], windows[1][j], windows[2][k]
        matrix[c, i, j, k, c, a:b, d:e, f:g] = 1 / ((b - a) * (e - d) * (g - f))
    matrix = matrix.reshape(int(np.prod(sides)), -1)
    return Dense(matrix, np.zeros(len(matrix)), matrix > 0, sides)


def _triple(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value,) * 3 if isinstance(value, int) else tuple(value)


def sum_of_two(shape: tuple[int, ...]) -> Dense:
    """``a + b`` as a linear operation on both, flattened and joined."""
    count = int(np.prod(shape))
    matrix = np.concatenate([np.eye(count), np.eye(count)], axis=1)
    return Dense(matrix, np.zeros(count), matrix > 0, shape)


@dataclass
class Account:
    """Relevance of inputs, and every loss."""

    below: np.ndarray
    bias: float = 0.0
    stabiliser: float = 0.0
    lost: float = 0.0

    def losses(self) -> float:
        return self.bias + self.stabiliser + self.lost


def share_out(layer: Dense, x: np.ndarray, relevance: np.ndarray, rule: Rule) -> Account:
    """Pass relevance of all units of a layer to its inputs, unit by unit."""
    flat = x.reshape(-1)
    account = Account(np.zeros_like(flat))
    for row, b, linked, r in zip(layer.matrix, layer.bias, layer.connected, relevance.reshape(-1), strict=True):
        if r == 0:
            continue
        places = np.flatnonzero(linked)
        shares = rule(Unit(flat[places], row[places], float(b), places))
        account.below[places] += shares.inputs * r
        account.bias += shares.bias * r
        account.stabiliser += shares.stabiliser * r
        account.lost += shares.lost * r
    account.below = account.below.reshape(x.shape)
    return account


@dataclass
class Op:
    """One operation of a network written down as a graph: what it does, and whose outputs it reads (0: the volume)."""

    do: nn.Module | str  # a module, or "sum" or "cat"
    sources: tuple[int, ...]
    inputs: list[np.ndarray] = field(default_factory=list)
    layer: Dense | None = None
    winners: np.ndarray | None = None


def chain(modules: Sequence[nn.Module]) -> list[Op]:
    """The graph of modules one after the other."""
    return [Op(module, (number,)) for number, module in enumerate(modules)]


def explain_graph(
    ops: list[Op],
    volume: torch.Tensor,
    target: int,
    rule_of: Callable[[nn.Module | str, bool], Rule],
    fold: bool = True,
    start: float | None = None,
) -> tuple[Account, float]:
    """Map of one volume (C, D, H, W) and the logit.

    `rule_of` gives the rule of a linear operation (a module with weights, an average pooling, ``"sum"``); its second
    argument says whether the operation reads the volume itself. Batch normalisation is merged into the convolution
    that it alone reads; with ``fold=False`` relevance passes it unchanged.
    """
    values = [volume.double().numpy()]
    for op in ops:
        op.inputs = [values[source] for source in op.sources]
        values.append(_forward(op))
    if fold:
        _merge_norms(ops)
    relevance = [np.zeros_like(value) for value in values]
    relevance[-1][target] = values[-1][target] if start is None else start
    total = Account(relevance[0])
    for number, op in reversed(list(enumerate(ops, start=1))):
        for source, share in zip(op.sources, _back(op, relevance[number], rule_of, total), strict=True):
            relevance[source] += share.reshape(relevance[source].shape)
    return total, float(values[-1][target])


def _forward(op: Op) -> np.ndarray:
    x, do = op.inputs[0], op.do
    if do == "sum":
        op.layer = sum_of_two(x.shape)
        return op.layer.apply(np.concatenate([x.reshape(-1), op.inputs[1].reshape(-1)]))
    if do == "cat":
        return np.concatenate(op.inputs)
    if isinstance(do, nn.BatchNorm3d):
        scale, shift = norm_terms(do)
        return x * scale[:, None, None, None] + shift[:, None, None, None]
    if isinstance(do, nn.ReLU):
        return np.maximum(x, 0)
    if isinstance(do, nn.Flatten):
        return x.reshape(-1)
    if isinstance(do, nn.MaxPool3d):
        pooled, op.winners = pool_winners(x, do)
        return pooled
    if isinstance(do, nn.Dropout | nn.Dropout3d | nn.Identity):
        return x
    op.layer = dense(do, x.shape)
    return op.layer.apply(x)


def _merge_norms(ops: list[Op]) -> None:
    for op in ops:
        if isinstance(op.do, nn.BatchNorm3d):
            conv = ops[op.sources[0] - 1]
            readers = [other for other in ops if op.sources[0] in other.sources]
            assert isinstance(conv.do, nn.Conv3d)
            assert readers == [op], "a normalisation can be merged only into what it alone reads"
            conv.layer = conv.layer.scaled(*norm_terms(op.do))


def _back(
    op: Op, relevance: np.ndarray, rule_of: Callable[[nn.Module | str, bool], Rule], total: Account
) -> list[np.ndarray]:
    if op.layer is not None:
        joined = np.concatenate([x.reshape(-1) for x in op.inputs])
        account = share_out(op.layer, joined, relevance, rule_of(op.do, 0 in op.sources))
        total.bias += account.bias
        total.stabiliser += account.stabiliser
        total.lost += account.lost
        return np.split(account.below, np.cumsum([x.size for x in op.inputs])[:-1])
    if op.winners is not None:
        below = np.zeros(op.inputs[0].size)
        np.add.at(below, op.winners.reshape(-1), relevance.reshape(-1))
        return [below]
    if op.do == "cat":
        return np.split(relevance, np.cumsum([len(x) for x in op.inputs])[:-1])
    return [relevance]


def norm_terms(norm: nn.BatchNorm3d) -> tuple[np.ndarray, np.ndarray]:
    """Scale and shift per channel of a batch normalisation in evaluation mode."""
    scale = norm.weight.detach().double() / torch.sqrt(norm.running_var.double() + norm.eps)
    shift = norm.bias.detach().double() - scale * norm.running_mean.double()
    return scale.numpy(), shift.numpy()
