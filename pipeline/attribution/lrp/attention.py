"""Relevance through attention, by the rules of AttnLRP (Achtibat et al. 2024).

A softmax is expanded to first order (Deep Taylor): an input gets its own value times what its derivative hands back,
and the rest is a constant, which absorbs its share. A product of two values that both depend on the volume (queries and
keys, attention weights and values) gives each factor half, in proportion to its contributions. Neither depends on the
rules of layers with weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def softmax_relevance(x: Tensor, s: Tensor, relevance: Tensor, dim: int) -> Tensor:
    """``x_i (R_i - s_i sum_j R_j)`` for ``s = softmax(x)``; masked inputs (minus infinity) get none.

    Source: Achtibat et al. 2024, proposition 3.1.

    Examples
    --------
    >>> x = torch.tensor([1.0, 1.0])
    >>> softmax_relevance(x, torch.softmax(x, 0), torch.tensor([0.0, 1.0]), 0)
    tensor([-0.5000,  0.5000])
    """
    found = x * (relevance - s * relevance.sum(dim, keepdim=True))
    return torch.where(torch.isfinite(x), found, 0)


def product_relevance(product: Tensor, factors: Sequence[Tensor], message: Tensor) -> list[Tensor]:
    """Relevance of both factors: each value times what the derivative hands back of half the message.

    ``R_a = a * d/da <s / 2, f(a, b)>``, of which both parts sum to ``<s, f(a, b)>``.

    Source: Achtibat et al. 2024, proposition 3.3.

    `product`: ``f(a, b)``, linear in both, with its graph. `factors`: a and b, leaves of that graph. `message`: s,
    relevance per unit of the product.
    """
    halves = back(product, factors, message / 2)
    return [factor.detach() * half for factor, half in zip(factors, halves, strict=True)]


def back(value: Tensor, leaves: Sequence[Tensor], message: Tensor) -> list[Tensor]:
    """What the derivative of a value hands back to its leaves."""
    return list(torch.autograd.grad(value, list(leaves), message, retain_graph=True))
