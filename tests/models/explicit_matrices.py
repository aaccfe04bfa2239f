"""Matrices of layers written out, column by column, as an oracle for rows of W(x)."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def matrix_of(linear: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The matrix (outputs, inputs) of a linear function of one volume (1, C, ...), from its unit vectors."""
    units = torch.eye(x.numel(), dtype=x.dtype).view(-1, *x.shape[1:])
    return torch.stack([linear(unit[None]).flatten() for unit in units], dim=1)


def product(matrices: Sequence[Tensor]) -> Tensor:
    """Of the matrices of layers, first to last: that of the network."""
    total = matrices[0]
    for matrix in matrices[1:]:
        total = matrix @ total
    return total


def patches(x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """Patches (B, C, d, h, w, kernel ** 3) of zero-padded volumes."""
    x = torch.nn.functional.pad(x, [padding] * 6)
    for axis in (2, 3, 4):
        x = x.unfold(axis, kernel, stride)
    return x.flatten(5)
