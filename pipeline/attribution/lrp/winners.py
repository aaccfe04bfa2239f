"""LRP of a convolution followed by max-pooling, computed at the winners only.

Only the winner of a pooling window receives relevance, so contributions and messages are needed at 1/8 or 1/27 of the
units; dense convolutions, as in other implementations, compute the rest in vain. On a CPU this takes less than one
forward and backward pass instead of five (docs/benchmarks). The loops are compiled by numba, chosen over a C++
extension (which needs a compiler at installation) and over gather and scatter in PyTorch (27 passes over memory).

Sums, messages and relevance are made one plane of windows at a time, which stays in the processor's cache. Layout:
channels last, so that a row of a kernel window is contiguous; it is read four values at a time. Messages of
neighbouring windows overlap: planes of windows are processed in an order that keeps concurrent planes apart, so the
result does not depend on the number of threads.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heatlas.pipeline.attribution.graph.layers import Convolution, LinearMap, MaxPool
from heatlas.pipeline.attribution.lrp.rules import contribution_floor

SPARSE_FROM = 4
"""Units per winner from which winner loops are faster than dense convolutions (measured at 8 and 27)."""

LANES = 4
"""Values of a row that the loops take at once; weights are filled up with zeros, rows with what comes next."""
ONE, TWO, THREE = np.uint64(1), np.uint64(2), np.uint64(3)  # numba tests every index with a sign


def sparse_pays(linear: LinearMap, pool: MaxPool | None, x: Tensor) -> bool:
    """Whether to use the winner loops: on a CPU, for a plain convolution before a large enough pooling."""
    return (
        pool is not None
        and x.device.type == "cpu"
        and type(linear) is Convolution
        and linear.groups == 1
        and linear.dilation == (1, 1, 1)
        and int(np.prod(pool.stride)) >= SPARSE_FROM
    )


def winner_relevance(
    x: Tensor,
    weight: Tensor,
    linear: Convolution,
    pool: MaxPool,
    winners: Tensor,
    units: Sequence[int],
    count: int,
    divide: Callable[[tuple[slice, ...], Tensor, Tensor], None],
) -> list[Tensor]:
    """Relevance of the inputs, ``x (W+^T s+ + W-^T s-)``, for `count` rules at once: views of one tensor.

    `x`: (B, C_in, D, H, W), >= 0. `weight`: (C_out, C_in, k, k, k). `linear`: without groups or dilation. `winners`:
    (B, C_out, d, h, w), flat indices into the units. `units`: spatial shape of the units (of what was pooled).
    `divide`: given a plane of the winners and its ``z+`` and ``z-``, (2, h, w, C_out), writes ``s+`` and ``s-`` of each
    rule, (count, 2, h, w, C_out); called once per plane of each volume.
    """
    channels, inputs, *kernel = weight.shape
    sides = [n + 2 * p for n, p in zip(x.shape[2:], linear.padding, strict=True)]
    inner = [slice(p, p + n) for n, p in zip(x.shape[2:], linear.padding, strict=True)]
    size, line = math.prod(sides) * inputs, sides[2] * inputs
    rows = x.new_zeros(len(x), size + LANES)
    rows[:, :size].view(len(x), *sides, inputs)[:, *inner].copy_(x.permute(0, 2, 3, 4, 1))
    out = x.new_zeros(count, len(x), size + LANES)
    lanes = F.pad(weight.permute(0, 2, 3, 4, 1).flatten(3), (0, -kernel[2] * inputs % LANES))
    blocks = lanes.reshape(channels, -1, LANES)
    weights = blocks.clamp(min=0).numpy(), blocks.clamp(max=0).numpy()
    planes, lines = torch.arange(kernel[0])[:, None, None] * sides[1], torch.arange(kernel[1])[:, None]
    field = ((planes + lines) * line + torch.arange(0, lanes.shape[3], LANES)).flatten().numpy()
    steps = [step * size for step, size in zip(linear.stride, (sides[1] * line, line, inputs), strict=True)]

    def hand_down(volume: int, plane: int) -> None:
        flat = winners[volume, :, plane].flatten(1).T.contiguous().numpy()
        shape = (2, *winners.shape[3:], channels)
        base, sums, sent = np.empty(flat.shape, np.int64), x.new_empty(shape), x.new_zeros(count, *shape)
        _sums(rows[volume].numpy(), *weights, field, flat, *units[1:], *steps, base, sums.flatten(1, 2).numpy())
        divide((slice(volume, volume + 1), slice(None), slice(plane, plane + 1)), sums, sent)
        _hand_down(*weights, field, base, sent.flatten(2, 3).numpy(), out[:, volume].numpy())

    reach = pool.dilation[0] * (pool.kernel_size[0] - 1) * linear.stride[0] + kernel[0] - 1
    colours = reach // (pool.stride[0] * linear.stride[0]) + 1  # between planes that share no input voxel
    for volume in range(len(x)):
        jobs = [functools.partial(hand_down, volume, plane) for plane in range(winners.shape[2])]
        _together([jobs[first::colours] for first in range(colours)])
    grid = out.mul_(rows)[..., :size].view(count, len(x), *sides, inputs)[:, :, *inner]
    return list(grid.movedim(-1, 2).unbind())


def divide_by_beta(betas: Sequence[float], sums: Tensor, relevance: Tensor, sent: Tensor) -> Tensor:
    """Write the messages (K, 2, ...) of `pipeline.attribution.lrp.rules.BetaRule`; gives the relevance lost, (K,).

    `sums`: (2, ...), `relevance`: (K, ...), in the order of memory of `sent`.
    """
    kind, lost = sums.numpy().dtype, np.zeros(len(betas))
    shares = np.array([1 + b for b in betas], kind), np.array([-b for b in betas], kind)
    floor = kind.type(contribution_floor(sums.dtype))
    _betas(sums.flatten(1).numpy(), relevance.flatten(1).numpy(), *shares, floor, sent.flatten(2).numpy(), lost)
    return torch.from_numpy(lost)


def _together(rounds: Sequence[Sequence[Callable[[], None]]]) -> None:
    """Run the jobs of each round on PyTorch's number of threads, one round after the other."""
    threads = torch.get_num_threads()
    if threads == 1:
        for jobs in rounds:
            for job in jobs:
                job()
        return
    with ThreadPoolExecutor(threads) as pool:
        for jobs in rounds:
            for future in [pool.submit(job) for job in jobs]:
                future.result()


def _compiled(function: Callable[..., None]) -> Callable[..., None]:
    """Compile a loop that releases the interpreter lock, cached on disk where possible."""
    # Sums may be reordered to use vector instructions; NaN and infinity keep their meaning.
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "nsz", "contract"}}
    try:
        compiled = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither this folder nor the user's cache is writable
        compiled = numba.njit(**options)(function)
    answer: Callable[..., None] = compiled
    return answer


@_compiled
def _sums(
    rows: Any, positive: Any, negative: Any, field: Any, winners: Any, height: int, width: int,
    deep: int, high: int, wide: int, base: Any, sums: Any,
) -> None:  # fmt: skip
    """Fill `base` (P, C) with where the fields of the winners (P, C) begin, and `sums` (2, P, C)."""
    for p in range(winners.shape[0]):
        for c in range(winners.shape[1]):
            unit = winners[p, c]
            line = unit // width
            z = line // height
            at = z * deep + (line - z * height) * high + (unit - line * width) * wide
            base[p, c] = at
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = rows.dtype.type(0)
            for j in range(len(field)):
                i = np.uint64(at + field[j])
                x0, x1, x2, x3 = rows[i], rows[i + ONE], rows[i + TWO], rows[i + THREE]
                plus, minus = positive[c, j], negative[c, j]
                a0, b0 = a0 + plus[0] * x0, b0 + minus[0] * x0
                a1, b1 = a1 + plus[1] * x1, b1 + minus[1] * x1
                a2, b2 = a2 + plus[2] * x2, b2 + minus[2] * x2
                a3, b3 = a3 + plus[3] * x3, b3 + minus[3] * x3
            sums[0, p, c] = (a0 + a1) + (a2 + a3)
            sums[1, p, c] = (b0 + b1) + (b2 + b3)


@_compiled
def _betas(sums: Any, relevance: Any, to_both: Any, from_both: Any, floor: Any, sent: Any, lost: Any) -> None:
    """Messages (K, 2, N) from sums (2, N) and relevance (K, N): `to_both` and `from_both` are 1 + β and -β."""
    one, nothing = sums.dtype.type(1), sums.dtype.type(0)
    for k in range(len(lost)):
        more, less, missing = to_both[k], from_both[k], 0.0
        for i in range(sums.shape[1]):
            plus, minus, r = sums[0, i], sums[1, i], relevance[k, i]
            has_plus, has_minus = plus > floor, minus < -floor
            sent[k, 0, i] = r * (more if has_minus else one) / plus if has_plus and more != 0 else nothing
            sent[k, 1, i] = r * (less if has_plus else one) / minus if has_minus and less != 0 else nothing
            missing += 0.0 if (has_plus and more != 0) or (has_minus and less != 0) else r
        lost[k] = missing


@_compiled
def _hand_down(positive: Any, negative: Any, field: Any, base: Any, sent: Any, out: Any) -> None:
    """Add the messages (K, 2, P, C) of one plane of winners to the inputs `out` (K, N)."""
    for p in range(base.shape[0]):
        for c in range(base.shape[1]):
            for k in range(len(sent)):
                up, down = sent[k, 0, p, c], sent[k, 1, p, c]
                if up == 0 and down == 0:
                    continue
                row = out[k]
                for j in range(len(field)):
                    i = np.uint64(base[p, c] + field[j])
                    plus, minus = positive[c, j], negative[c, j]
                    x0 = row[i] + (up * plus[0] + down * minus[0])
                    x1 = row[i + ONE] + (up * plus[1] + down * minus[1])
                    x2 = row[i + TWO] + (up * plus[2] + down * minus[2])
                    x3 = row[i + THREE] + (up * plus[3] + down * minus[3])
                    row[i], row[i + ONE], row[i + TWO], row[i + THREE] = x0, x1, x2, x3
