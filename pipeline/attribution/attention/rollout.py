"""Maps from attention weights alone: the same for every class, unless a pooling has a query for each.

A token that answers, the *query*, gives weight to others, the *keys*. A network that classifies the mean of its tokens
asks every query equally, so a map is the mean over queries; with a class token it would be the row of that token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from heatlas.pipeline.attribution.network_view import NetworkView
from heatlas.pipeline.models.contract import attention_layers, kept_attention
from heatlas.pipeline.run.errors import UsageError


def require_tokens(view: NetworkView, method: str) -> None:
    """Refuse a network without attention behind the boundary."""
    if not any(attention_layers(layer) for _, layer in view.after):
        raise UsageError(
            f"{method} explains vision transformers, and there is no attention between tokens after stage "
            f"{view.stage!r}. Use grad-cam, or choose an earlier stage of a vision transformer."
        )


@torch.no_grad()
def attention_after(view: NetworkView, method: str) -> tuple[Tensor, ...]:
    """Attention weights of each layer behind the boundary, (B, heads, N, N); rows sum to 1.

    Raises UsageError without attention there, or where the features of the boundary are not the tokens.
    """
    require_tokens(view, method)
    with kept_attention(view.model) as kept:
        view.rest(view.features)
    places = view.features[0, 0].numel()
    if any(weights.shape[2:] != (places, places) for weights in kept):
        raise UsageError(
            f"{method}: stage {view.stage!r} has {places} places, and attention is between {kept[0].shape[2]} tokens; "
            "choose the stage right before the first attention, as by default, or a later one."
        )
    return tuple(kept)


def rollout_matrix(attention: Sequence[Tensor]) -> Tensor:
    """``Ã_L ... Ã_1`` with ``Ã = (mean over heads of A + I) / 2``, (B, N, N) (Abnar & Zuidema 2020).

    The identity stands for the path around attention. Each factor's rows sum to 1, and so do those of the product.

    Parameters
    ----------
    attention : sequence of Tensor
        (B, heads, N, N) of each layer, first to last.

    Examples
    --------
    >>> rollout_matrix([torch.tensor([[[[0.0, 1.0], [1.0, 0.0]]]])]).tolist()
    [[[0.5, 0.5], [0.5, 0.5]]]
    """
    one = torch.eye(attention[0].shape[-1], dtype=attention[0].dtype, device=attention[0].device)
    product = one
    for weights in attention:
        product = (weights.mean(1) + one) / 2 @ product
    return product


def mean_token(matrix: Tensor, view: NetworkView) -> Tensor:
    """Map (B, 1, d, h, w) of what the mean of all queries gives each token, from a matrix (B, N, N)."""
    return matrix.mean(1).view(len(matrix), 1, *view.features.shape[2:])


@dataclass(frozen=True)
class RawAttention:
    """Attention that each token receives in the last layer, mean over heads and queries; sums to 1.

    Of a network that pools by attention, right before that: its weights, for the target where classes have their own.
    """

    name: ClassVar[str] = "raw-attention"

    def require(self, view: NetworkView) -> None:
        if view.pooling is None:
            require_tokens(view, self.name)

    def maps(self, view: NetworkView) -> Tensor:
        if view.pooling is not None:
            with torch.no_grad():
                return view.pooling.pooling_weights(view.volumes, view.target)[:, None]
        return mean_token(attention_after(view, self.name)[-1].mean(1), view)


@dataclass(frozen=True)
class Rollout:
    """Attention followed through all layers behind the boundary (Abnar & Zuidema 2020); sums to 1."""

    name: ClassVar[str] = "rollout"

    def require(self, view: NetworkView) -> None:
        require_tokens(view, self.name)

    def maps(self, view: NetworkView) -> Tensor:
        return mean_token(rollout_matrix(attention_after(view, self.name)), view)
