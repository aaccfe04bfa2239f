"""The β-rule a second time: float64 numpy, every linear layer an explicit matrix filled by loops.

Shares no code with the engine: no convolution, no transposed convolution, no z+/z- products, contributions one by one.
"""

from __future__ import annotations

import functools
from itertools import product

import numpy as np
import torch
from torch import nn


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
            at = [i * s - p + k * d
                  for i, s, p, k, d in zip((z, y, x), stride, pad, offset, dilation, strict=True)]  # fmt: skip
            if all(0 <= a < n for a, n in zip(at, shape, strict=True)):
                matrix[(o, z, y, x, group * per_group + c, *at)] += weight[(o, c, *offset)]
    return matrix.reshape(out_channels * int(np.prod(sides)), -1), (out_channels, *sides)


def share(matrix: np.ndarray, x: np.ndarray, relevance: np.ndarray, beta: float) -> tuple[np.ndarray, float]:
    """Relevance of the inputs of one layer, unit by unit, and the relevance lost."""
    below, lost = np.zeros_like(x), 0.0
    for row, r in zip(matrix, relevance, strict=True):
        z = row * x
        positive, negative = np.where(z > 0, z, 0), np.where(z < 0, z, 0)
        if positive.any() and negative.any():
            below += ((1 + beta) * positive / positive.sum() - beta * negative / negative.sum()) * r
        elif positive.any() and beta != -1:
            below += positive / positive.sum() * r
        elif negative.any() and beta != 0:
            below += negative / negative.sum() * r
        else:
            lost += r
    return below, lost


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


def explain(
    modules: list[nn.Module], volume: torch.Tensor, target: int, beta: float, fold: bool, start: float | None = None
) -> tuple[np.ndarray, float, float]:
    """Map of one volume (C, D, H, W), its logit, and the relevance lost on the way."""
    a = volume.double().numpy()
    steps = []
    for number, module in enumerate(modules):
        if isinstance(module, nn.Conv3d):
            matrix, shape = conv_matrix(module, a.shape[1:])
            bias = 0 if module.bias is None else module.bias.detach().double().numpy()[:, None, None, None]
            steps.append(["share", matrix.copy(), a.reshape(-1), a.shape])
            a = (matrix @ a.reshape(-1)).reshape(shape) + bias
        elif isinstance(module, nn.BatchNorm3d):
            scale = module.weight.detach().double() / torch.sqrt(module.running_var.double() + module.eps)
            if fold:
                assert isinstance(modules[number - 1], nn.Conv3d)
                steps[-1][1] *= np.repeat(scale.numpy(), int(np.prod(a.shape[1:])))[:, None]
            shift = module.bias.detach().double() - scale * module.running_mean.double()
            a = a * scale.numpy()[:, None, None, None] + shift.numpy()[:, None, None, None]
        elif isinstance(module, nn.ReLU):
            a = np.maximum(a, 0)
        elif isinstance(module, nn.MaxPool3d):
            shape = a.shape
            a, winners = pool_winners(a, module)
            steps.append(["scatter", winners, None, shape])
        elif isinstance(module, nn.Flatten):
            a = a.reshape(-1)
        elif isinstance(module, nn.Linear):
            matrix = module.weight.detach().double().numpy()
            steps.append(["share", matrix, a, a.shape])
            a = matrix @ a + module.bias.detach().double().numpy()
    relevance, total_lost = np.zeros_like(a), 0.0
    relevance[target] = a[target] if start is None else start
    for kind, how, x, shape in reversed(steps):
        if kind == "share":
            relevance, lost = share(how, x, relevance.reshape(-1), beta)
            total_lost += lost
        else:
            unpooled = np.zeros(int(np.prod(shape)))
            np.add.at(unpooled, how.reshape(-1), relevance.reshape(-1))
            relevance = unpooled
        relevance = relevance.reshape(shape)
    return relevance, float(a[target]), total_lost
