"""LRP of a convolution followed by max-pooling, computed at the winners only.

Only the winner of a pooling window receives relevance, so contributions and messages are needed at 1/8 or 1/27 of the
units; dense convolutions, as in other implementations, compute the rest in vain. On a CPU this takes less than one
forward and backward pass instead of five (docs/benchmarks). The loops are compiled by numba, chosen over a C++
extension (which needs a compiler at installation) and over gather and scatter in PyTorch (27 passes over memory).

Layout: input voxels with channels last, so that a row of a kernel window is contiguous; several rules side by side,
innermost. Messages of neighbouring windows overlap: planes of windows are processed in an order that keeps concurrent
planes apart, so the result does not depend on the number of threads.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heatlas.pipeline.attribution.graph.layers import Convolution, LinearMap, MaxPool

SPARSE_FROM = 4
"""Units per winner from which winner loops are faster than dense convolutions (measured at 8 and 27)."""


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


def winner_sums(
    x: Tensor, weight: Tensor, linear: Convolution, winners: Tensor, units: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Sums of positive and of negative contributions, ``z+`` and ``z-``, at the winners, each of their shape.

    `x`: (B, C_in, D, H, W), >= 0. `weight`: (C_out, C_in, k, k, k). `linear`: without groups or dilation. `winners`:
    (B, C_out, d, h, w), flat indices into the units. `units`: spatial shape of the units (of what was pooled).
    """
    rows, positive, negative = _rows(x, linear), *_row_weights(weight)
    sums = [torch.zeros(winners.shape, dtype=x.dtype) for _ in range(2)]
    flat = winners.flatten(2).numpy()
    run = x.shape[1]
    above, below = (part.flatten(2).numpy() for part in sums)
    jobs = []
    for b, c in itertools.product(range(len(x)), range(len(weight))):
        unit = slice(c, c + 1)
        geometry = (units[1], units[2], linear.stride, run)
        weights = (positive[unit], negative[unit])
        jobs.append(
            functools.partial(_sums, rows[b], *weights, flat[b, unit], *geometry, above[b, unit], below[b, unit])
        )
    _together([jobs])
    return sums[0], sums[1]


def winner_messages(
    messages: Iterable[tuple[Tensor, Tensor | None]],
    count: int,
    weight: Tensor,
    linear: Convolution,
    pool: MaxPool,
    winners: Tensor,
    units: Sequence[int],
    input_shape: Sequence[int],
) -> list[Tensor]:
    """Messages of the winners at the inputs, ``W+^T s+ + W-^T s-``, for `count` rules at once: views of one tensor.

    `messages`: ``s+`` and ``s-`` per rule, each of the shape of `winners`; None is 0. `weight`, `linear`, `winners`,
    `units`: as for `winner_sums`. `input_shape`: (B, C_in, D, H, W).
    """
    run = input_shape[1]
    positive, negative = _row_weights(weight)
    up = torch.empty((*winners.shape, count), dtype=weight.dtype)
    down = torch.zeros_like(up)
    for k, (plus, minus) in enumerate(messages):
        up[..., k] = plus
        if minus is not None:
            down[..., k] = minus
    sent_up, sent_down = up.flatten(3, 4).numpy(), down.flatten(3, 4).numpy()
    padded = [n + 2 * p for n, p in zip(input_shape[2:], linear.padding, strict=True)]
    out = torch.zeros((input_shape[0], padded[0], padded[1], padded[2] * run, count), dtype=weight.dtype)
    flat, target = winners.flatten(3, 4).numpy(), out.numpy()
    for b in range(input_shape[0]):
        of_volume = (flat[b], units[1], units[2], linear.stride, run, sent_up[b], sent_down[b], target[b])
        job = functools.partial(_hand_down, positive, negative, *of_volume)
        planes = range(winners.shape[2])
        reach = pool.dilation[0] * (pool.kernel_size[0] - 1) * linear.stride[0] + weight.shape[2] - 1
        colours = reach // (pool.stride[0] * linear.stride[0]) + 1  # between planes that share no input voxel
        _together([[functools.partial(job, plane) for plane in planes[first::colours]] for first in range(colours)])
    grid = out.view(input_shape[0], *padded, run, count).permute(5, 0, 4, 1, 2, 3)
    (z, y, x), (depth, height, width) = linear.padding, input_shape[2:]
    grid = grid[..., z : z + depth, y : y + height, x : x + width]
    return list(grid.unbind(0))


def _rows(x: Tensor, linear: Convolution) -> np.ndarray[Any, Any]:
    """Padded input as (B, D, H, W * C_in)."""
    before_after = [side for pad in reversed(linear.padding) for side in (pad, pad)]
    padded = F.pad(x, before_after) if any(linear.padding) else x
    return np.asarray(padded.permute(0, 2, 3, 4, 1).flatten(3).contiguous().numpy())


def _row_weights(weight: Tensor) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Positive and negative weights as (C_out, k, k, k * C_in)."""
    rows = weight.detach().permute(0, 2, 3, 4, 1).flatten(3)
    return rows.clamp(min=0).contiguous().numpy(), rows.clamp(max=0).contiguous().numpy()


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
    options: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "nsz", "contract"}}
    try:
        compiled = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither this folder nor the user's cache is writable
        compiled = numba.njit(**options)(function)
    answer: Callable[..., None] = compiled
    return answer


@_compiled
def _sums(
    rows: Any, positive: Any, negative: Any, winners: Any, height: int, width: int, stride: Any, run: int,
    above: Any, below: Any,
) -> None:  # fmt: skip
    """Fill `above` and `below` (C, P) with the sums of contributions to the winners (C, P) of one volume."""
    channels, depth, lines, length = positive.shape
    for c in range(channels):
        for p in range(winners.shape[1]):
            unit = winners[c, p]
            z = unit // (height * width)
            rest = unit - z * height * width
            y = rest // width
            x = (rest - y * width) * stride[2] * run
            plus, minus = above[c, p], below[c, p]
            for dz in range(depth):
                for dy in range(lines):
                    row = rows[z * stride[0] + dz, y * stride[1] + dy]
                    for j in range(length):
                        plus += positive[c, dz, dy, j] * row[x + j]
                        minus += negative[c, dz, dy, j] * row[x + j]
            above[c, p] = plus
            below[c, p] = minus


@_compiled
def _hand_down(
    positive: Any, negative: Any, winners: Any, height: int, width: int, stride: Any, run: int,
    up: Any, down: Any, out: Any, plane: int,
) -> None:  # fmt: skip
    """Add the messages (C, d, P, K) of one plane of winners (C, d, P) to the inputs `out` (D, H, W * C_in, K)."""
    channels, depth, lines, length = positive.shape
    rules = up.shape[3]
    for c in range(channels):
        for p in range(winners.shape[2]):
            silent = True
            for k in range(rules):
                if up[c, plane, p, k] != 0 or down[c, plane, p, k] != 0:
                    silent = False
            if silent:
                continue
            unit = winners[c, plane, p]
            z = unit // (height * width)
            rest = unit - z * height * width
            y = rest // width
            x = (rest - y * width) * stride[2] * run
            for dz in range(depth):
                for dy in range(lines):
                    row = out[z * stride[0] + dz, y * stride[1] + dy]
                    for j in range(length):
                        plus, minus = positive[c, dz, dy, j], negative[c, dz, dy, j]
                        for k in range(rules):
                            row[x + j, k] += plus * up[c, plane, p, k] + minus * down[c, plane, p, k]
