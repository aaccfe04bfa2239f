"""Relevance of attention weights, times their gradient, followed through the layers (Chefer, Gur & Wolf 2021).

"Transformer interpretability beyond attention visualization", CVPR; the literature calls it CGW1. Relevance of a class
is handed down from its logit to the attention weights of each layer: linear layers share it by positive contributions
only; a product of two activations and a sum of two branches share it by contributions, then weigh the two parts;
normalisations and activations pass it on. Weights count where relevance times gradient is positive. What follows is
in float64: contributions of both signs are divided by their sum, which may be close to 0.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from heatlas.pipeline.attribution.attention.rollout import mean_token, require_tokens
from heatlas.pipeline.attribution.network_view import NetworkView
from heatlas.pipeline.models.families.vit import OnTokens, TransformerBlock
from heatlas.pipeline.run.errors import UsageError

SMALLEST = 1e-9
"""Sums closer to 0 than this one are replaced by it before a division."""


def divided(relevance: Tensor, total: Tensor) -> Tensor:
    """Quotient with a total of at least `SMALLEST` in size; 0 where the total is 0."""
    return relevance / torch.where(total.abs() < SMALLEST, SMALLEST * total.sign(), total).where(total != 0, torch.inf)


def by_positive_shares(x: Tensor, weight: Tensor, relevance: Tensor) -> Tensor:
    """Relevance (..., J) of the inputs of a linear layer by positive contributions ``(x_j w_ij)^+`` (eq. 2, 3).

    `x`, `weight`, `relevance`: inputs (..., J), weights (I, J), relevance of the outputs (..., I). The bias takes no
    part.

    Examples
    --------
    >>> x, w = torch.tensor([2.0, 1.0, -1.0]), torch.tensor([[1.0, -3.0, -2.0]])
    >>> by_positive_shares(x, w, torch.tensor([4.0])).tolist()
    [2.0, 0.0, 2.0]
    """
    up, down = x.clamp(min=0), x.clamp(max=0)
    gains, losses = weight.clamp(min=0), weight.clamp(max=0)
    shares = divided(relevance, up @ gains.T + down @ losses.T)
    return up * (shares @ gains) + down * (shares @ losses)


def by_product(a: Tensor, b: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """Relevance of both factors of a matrix product a b, each half of it, by contributions (eq. 4)."""
    shares = divided(relevance, a @ b) / 2
    return a * (shares @ b.transpose(-1, -2)), b * (a.transpose(-1, -2) @ shares)


def by_sum(a: Tensor, b: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """Relevance of both summands of a + b, by contributions, then weighed (eq. 5, 6).

    Contributions of one sign can each be far larger than their sum. Each part is scaled to a share of the whole, per
    volume, in proportion to the size of its own sum. Shapes (B, N, C).
    """
    shares = divided(relevance, a + b)
    parts = (a * shares, b * shares)
    sums = [part.sum((1, 2), keepdim=True) for part in parts]
    whole, size = relevance.sum((1, 2), keepdim=True), sums[0].abs() + sums[1].abs()
    first, second = (
        part * divided(divided(own.abs(), size) * whole, own) for part, own in zip(parts, sums, strict=True)
    )
    return first, second


@dataclass(frozen=True)
class Pass:
    """What one block computed, each (B, N, C) unless said."""

    block: TransformerBlock
    x: Tensor
    normed: Tensor
    queries: Tensor
    keys: Tensor
    values: Tensor
    attention: Tensor
    """(B, heads, N, N), with its graph."""
    read: Tensor
    """(B, heads, N, C / heads), before the projection."""
    attended: Tensor
    middle: Tensor
    normed_middle: Tensor
    hidden: Tensor
    answer: Tensor


def forward(block: TransformerBlock, x: Tensor) -> tuple[Pass, Tensor]:
    """The block's own computation, with all that the rules need, and its output."""
    attn, mlp = block.attn, block.mlp
    normed = block.norm1(x)
    q, k, v = attn.queries_keys_values(normed)
    attention = torch.softmax(q * attn.scale @ k.transpose(2, 3), dim=3)
    read = attention @ v
    attended = attn.out_proj(_joined(read))
    middle = x + attended
    normed_middle = block.norm2(middle)
    hidden = mlp.fn(mlp.linear1(normed_middle))
    answer = mlp.linear2(hidden)
    return Pass(
        block, x, normed, q, k, v, attention, read, attended, middle, normed_middle, hidden, answer
    ), middle + answer


def _joined(heads: Tensor) -> Tensor:
    """(B, N, C) of (B, heads, N, C / heads)."""
    return heads.transpose(1, 2).flatten(2)


def backward(made: Pass, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """Relevance of a block's attention weights (B, heads, N, N) and of its input, from that of its output."""
    block, attn = made.block, made.block.attn
    around, through = by_sum(made.middle, made.answer, relevance)
    through = by_positive_shares(made.hidden, block.mlp.linear2.weight, through)
    through = by_positive_shares(made.normed_middle, block.mlp.linear1.weight, through)
    around, through = by_sum(made.x, made.attended, around + through)
    through = by_positive_shares(_joined(made.read), attn.out_proj.weight, through)
    of_heads = through.view(*through.shape[:2], attn.heads, -1).transpose(1, 2)
    of_weights, of_values = by_product(made.attention, made.values, of_heads)
    of_queries, of_keys = by_product(made.queries, made.keys.transpose(2, 3), of_weights)
    parts = torch.stack([of_queries, of_keys.transpose(2, 3), of_values], dim=2)  # (B, heads, 3, N, C / heads)
    through = by_positive_shares(made.normed, attn.qkv.weight, parts.permute(0, 3, 2, 1, 4).flatten(2))
    return of_weights, around + through


def followed(layers: Sequence[Tensor]) -> Tensor:
    """``(I + E_L) ... (I + E_1) - I`` of matrices (B, N, N): what each token gives the last ones, but for itself.

    The identity, the path of a token to itself around attention, is the same for every token of a mean and is left out;
    it would drown small relevance in rounding.

    Examples
    --------
    >>> followed([torch.tensor([[[2.0]]]), torch.tensor([[[3.0]]])]).tolist()
    [[[11.0]]]
    """
    product = torch.zeros_like(layers[0])
    for layer in layers:
        product = layer + product + layer @ product
    return product


def relevant_attention(layers: Sequence[nn.Module], features: Tensor, target: int) -> list[Tensor]:
    """``mean over heads of (gradient * relevance)^+`` of the attention of each block, first to last, (B, N, N).

    `layers`: blocks, the last norm and the linear layer. `features`: (B, N, C). `target`: class whose logit is
    explained; relevance starts from 1.
    """
    *blocks, norm, linear = layers
    assert isinstance(linear, nn.Linear)
    with torch.enable_grad():
        x, passes = features.detach().requires_grad_(), []
        for block in blocks:
            assert isinstance(block, TransformerBlock)
            made, x = forward(block, x)
            passes.append(made)
        last = norm(x)
        gradients = torch.autograd.grad(linear(last.mean(1))[:, target].sum(), [made.attention for made in passes])
    with torch.no_grad():
        row = linear.weight[target]
        gained = (last * row).clamp(min=0)  # the mean and the linear layer are one linear map of all tokens
        relevance = divided(gained, gained.sum((1, 2), keepdim=True))
        found = []
        for made, gradient in zip(reversed(passes), reversed(gradients), strict=True):
            of_weights, relevance = backward(made, relevance)
            found.append((gradient * of_weights).clamp(min=0).mean(1))
    return found[::-1]


@dataclass(frozen=True)
class Cgw1:
    """Relevance times gradient of attention, followed through the blocks; for one class, not negative."""

    name: ClassVar[str] = "cgw1"

    def require(self, view: NetworkView) -> None:
        self._layers(view)

    def maps(self, view: NetworkView) -> Tensor:
        layers = [copy.deepcopy(layer).double() for layer in self._layers(view)]
        tokens = view.features.double().flatten(2).transpose(1, 2)
        matrix = followed(relevant_attention(layers, tokens, view.target))
        return mean_token(matrix, view).to(view.features.dtype)

    def _layers(self, view: NetworkView) -> list[nn.Module]:
        """Blocks, norm and linear layer behind the boundary.

        Raises UsageError if anything else follows, or not the logit is explained.
        """
        require_tokens(view, self.name)
        if view.start != "logit":
            raise UsageError(f"{self.name}: defined for start = 'logit' only, not {view.start!r}.")
        inside = [layer.block if isinstance(layer, OnTokens) else layer for _, layer in view.after]
        kinds = (nn.LayerNorm, nn.AdaptiveAvgPool3d, nn.Flatten, nn.Linear)
        for place, (name, _) in enumerate(view.after):
            rest = len(inside) - place
            if not isinstance(inside[place], kinds[-rest] if rest <= len(kinds) else TransformerBlock):
                raise UsageError(
                    f"{self.name} has rules for MONAI's transformer blocks, the last norm, and the mean of tokens with "
                    f"one linear layer; layer {name} ({type(inside[place]).__name__}) is none of them. Use rollout."
                )
        return [*inside[:-3], inside[-1]]
