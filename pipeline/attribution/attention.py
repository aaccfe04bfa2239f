"""Maps of vision transformers: attention itself, its relevance, and masks that tokens make.

A token that answers, the *query*, gives weight to others, the *keys*. A network that classifies the mean of its tokens
asks every query equally, so a map is the mean over queries; with a class token it would be the row of that token. *Raw
attention* and *rollout* are the same for every class, unless a pooling has a query for each.

*CGW1* is relevance of attention weights times their gradient, followed through the layers (Chefer, Gur & Wolf 2021,
"Transformer interpretability beyond attention visualization", CVPR): normalisations and activations pass relevance on,
and all else shares it by contributions. It is computed in float64: contributions of both signs are divided by their
sum, which may be close to 0.

*ViT-CX* (Xie, Li, Cao & Zhang 2023) makes a mask of each channel of the tokens. Masks that are nearly alike are added
up, so that what many channels show does not count many times. A mask is worth the score of what it shows, corrected for
the noise that fills the rest; a place is worth the mean over the masks that show it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor, nn

from heatlas.pipeline.attribution.cam.channel_maps import by_range, ratio
from heatlas.pipeline.attribution.method_settings import CheckedSettings
from heatlas.pipeline.attribution.methods import to_input_grid
from heatlas.pipeline.attribution.network_view import NetworkView
from heatlas.pipeline.attribution.perturbation.masking import Masking, mixed
from heatlas.pipeline.models.contract import attention_layers, kept_attention
from heatlas.pipeline.models.families.vit import OnTokens, TransformerBlock
from heatlas.pipeline.run.config.ranges import Count, Probability, Seed, at_least
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.work.host import on_host


def require_tokens(view: NetworkView, method: str) -> None:
    if not any(attention_layers(layer) for _, layer in view.after):
        raise UsageError(
            f"{method} explains vision transformers, and there is no attention between tokens after stage "
            f"{view.stage!r}. Use grad-cam, or choose an earlier stage of a vision transformer."
        )


@torch.no_grad()
def attention_after(view: NetworkView, method: str) -> tuple[Tensor, ...]:
    """Attention weights of each layer behind the boundary, (B, heads, N, N); rows sum to 1."""
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

    `attention`: (B, heads, N, N) of each layer, first to last. The identity stands for the path around attention. Each
    factor's rows sum to 1, and so do those of the product.

    >>> rollout_matrix([torch.tensor([[[[0.0, 1.0], [1.0, 0.0]]]])]).tolist()
    [[[0.5, 0.5], [0.5, 0.5]]]
    """
    identity = torch.eye(attention[0].shape[-1], dtype=attention[0].dtype, device=attention[0].device)
    product = identity
    for weights in attention:
        product = (weights.mean(1) + identity) / 2 @ product
    return product


def mean_token(matrix: Tensor, view: NetworkView) -> Tensor:
    """Map (B, 1, d, h, w) of what the mean of all queries gives each token, from a matrix (B, N, N)."""
    return matrix.mean(1).view(len(matrix), 1, *view.features.shape[2:])


@dataclass(frozen=True)
class RawAttention:
    """Attention that each token receives in the last layer, mean over heads and queries; sums to 1.

    Of a network that pools by attention, right before that: its weights, for the target where each class has some.
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


SMALLEST = 1e-9
"""Sums closer to 0 than this one are replaced by it before a division."""


def divided(relevance: Tensor, total: Tensor) -> Tensor:
    """Quotient with a total of at least `SMALLEST` in size; 0 where the total is 0."""
    return relevance / torch.where(total.abs() < SMALLEST, SMALLEST * total.sign(), total).where(total != 0, torch.inf)


def by_positive_shares(x: Tensor, weight: Tensor, relevance: Tensor) -> Tensor:
    """Relevance (..., J) of the inputs of a linear layer by positive contributions ``(x_j w_ij)^+`` (eq. 2, 3).

    `x`, `weight`, `relevance`: inputs (..., J), weights (I, J), relevance of the outputs (..., I). The bias takes no
    part.

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
    volume, in proportion to the size of its sum. Shapes (B, N, C).
    """
    shares = divided(relevance, a + b)
    parts = (a * shares, b * shares)
    sums = [part.sum((1, 2), keepdim=True) for part in parts]
    whole, size = relevance.sum((1, 2), keepdim=True), sums[0].abs() + sums[1].abs()
    first, second = (
        part * divided(divided(total.abs(), size) * whole, total) for part, total in zip(parts, sums, strict=True)
    )
    return first, second


Backward = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Relevance of a block's attention weights (B, heads, N, N) and of its input, from that of its output."""


def forward(block: TransformerBlock, x: Tensor) -> tuple[Tensor, Tensor, Backward]:
    """A block's computation of tokens (B, N, C): output, attention with its graph, and the way back."""
    attn, mlp = block.attn, block.mlp
    normed = block.norm1(x)
    queries, keys, values = attn.queries_keys_values(normed)
    attention = torch.softmax(queries * attn.scale @ keys.transpose(2, 3), dim=3)
    read = (attention @ values).transpose(1, 2).flatten(2)  # (B, N, C)
    attended = attn.out_proj(read)
    middle = x + attended
    normed_middle = block.norm2(middle)
    hidden = mlp.fn(mlp.linear1(normed_middle))
    answer = mlp.linear2(hidden)

    def backward(relevance: Tensor) -> tuple[Tensor, Tensor]:
        around, through = by_sum(middle, answer, relevance)
        through = by_positive_shares(hidden, mlp.linear2.weight, through)
        through = by_positive_shares(normed_middle, mlp.linear1.weight, through)
        around, through = by_sum(x, attended, around + through)
        through = by_positive_shares(read, attn.out_proj.weight, through)
        of_heads = through.view(*through.shape[:2], attn.heads, -1).transpose(1, 2)
        of_weights, of_values = by_product(attention, values, of_heads)
        of_queries, of_keys = by_product(queries, keys.transpose(2, 3), of_weights)
        parts = torch.stack([of_queries, of_keys.transpose(2, 3), of_values], dim=2)  # (B, heads, 3, N, C / heads)
        through = by_positive_shares(normed, attn.qkv.weight, parts.permute(0, 3, 2, 1, 4).flatten(2))
        return of_weights, around + through

    return middle + answer, attention, backward


def followed(layers: Sequence[Tensor]) -> Tensor:
    """``(I + E_L) ... (I + E_1) - I`` of matrices (B, N, N): what each token gives the last ones, but for itself.

    The identity, the path of a token to itself around attention, is the same for every token of a mean and is left out;
    it would drown small relevance in rounding.

    >>> followed([torch.tensor([[[2.0]]]), torch.tensor([[[3.0]]])]).tolist()
    [[[11.0]]]
    """
    product = torch.zeros_like(layers[0])
    for layer in layers:
        product = layer + product + layer @ product
    return product


def relevant_attention(layers: Sequence[nn.Module], features: Tensor, target: int) -> list[Tensor]:
    """``mean over heads of (gradient * relevance)^+`` of the attention of each block, first to last, (B, N, N).

    `layers`: blocks, the last norm and the linear layer. `features`: (B, N, C). Relevance starts from 1 at the logit of
    `target`.
    """
    *blocks, norm, linear = layers
    assert isinstance(linear, nn.Linear)
    with torch.enable_grad():
        x, attentions, ways_back = features.detach().requires_grad_(), [], []
        for block in blocks:
            assert isinstance(block, TransformerBlock)
            x, attention, backward = forward(block, x)
            attentions.append(attention)
            ways_back.append(backward)
        last = norm(x)
        gradients = torch.autograd.grad(linear(last.mean(1))[:, target].sum(), attentions)
    with torch.no_grad():
        row = linear.weight[target]
        gained = (last * row).clamp(min=0)  # the mean and the linear layer are one linear map of all tokens
        relevance = divided(gained, gained.sum((1, 2), keepdim=True))
        maps = []
        for backward, gradient in zip(reversed(ways_back), reversed(gradients), strict=True):
            of_weights, relevance = backward(relevance)
            maps.append((gradient * of_weights).clamp(min=0).mean(1))
    return maps[::-1]


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


def cosine_distances(masks: Tensor) -> Tensor:
    """``1 - cosine`` of all pairs of masks (K, ...), (K, K); an empty mask has distance 1 to all others."""
    rows = torch.nn.functional.normalize(masks.flatten(1).double(), dim=1)
    distances = 1 - rows @ rows.T
    return ((distances + distances.T) / 2).clamp(min=0).fill_diagonal_(0)


def merged_masks(features: Tensor, threshold: float) -> Tensor:
    """Masks (M, d, h, w) of one volume: channels (K, d, h, w) in [0, 1], those alike summed and scaled again.

    Two channels of one mask are no further apart than `threshold` in cosine distance (complete linkage).
    """
    masks = by_range(features.unsqueeze(1))
    if len(masks) == 1:
        return masks[:, 0]
    distances = squareform(on_host(cosine_distances(masks)).numpy(), checks=False)
    groups = fcluster(linkage(distances, "complete"), threshold, "distance")
    sums = [
        masks[torch.from_numpy(np.flatnonzero(groups == group)).to(masks.device)].sum(0) for group in np.unique(groups)
    ]
    return by_range(torch.stack(sums))[:, 0]


def causal_scores(
    view: NetworkView, volume: int, masks: Tensor, masking: Masking, noise: float, seed: int, batch: int
) -> Tensor:
    """Worth of each mask M, ``f(M x + (1 - M)(b + e)) - f(x + (1 - M) e) + f(x)``, (M,) (Xie et al. 2023).

    The second and third term take away what the noise e alone does to the score; without noise they cancel.

    `masks`: (M, d, h, w) on the grid of the boundary. `masking`: the value b of hidden voxels. `noise`: standard
    deviation of e, drawn per mask, in units of intensity.
    """
    generator = torch.Generator().manual_seed(seed)
    x = view.volumes[volume : volume + 1]
    whole = view.own_score[volume]
    worths = []
    for chunk in torch.split(masks, batch):
        keep = to_input_grid(chunk.unsqueeze(1), view)
        shown = mixed(x, keep, masking.hidden(x))
        if not noise:
            worths.append(view.score_of(shown))
            continue
        drawn = [torch.randn(x.shape[1:], generator=generator, dtype=x.dtype) for _ in range(len(chunk))]
        added = noise * torch.stack(drawn).to(x) * (1 - keep)
        worths.append(view.score_of(shown + added) - view.score_of(x + added) + whole)
    return torch.cat(worths)


@dataclass(frozen=True)
class ViTCX(CheckedSettings):
    """Mean worth of the masks that show a place; see `causal_scores`.

    `threshold`: largest cosine distance of channels that make one mask, as published. `noise`: standard deviation of
    the noise in hidden voxels; published is a tenth of the spread of intensities, which is about 0.2 in scans scaled to
    [0, 1]. `score`: softmax probability of the target, as published, or the value explained. `batch`: affects memory,
    not the map.
    """

    name: ClassVar[str] = "vit-cx"
    threshold: Probability = 0.1
    noise: Annotated[float, at_least(0)] = 0.02
    score: Literal["probability", "start"] = "probability"
    seed: Seed = 0
    masking: Masking = field(default_factory=Masking)
    batch: Count = 4

    def require(self, view: NetworkView) -> None:
        if not attention_layers(view.model):
            raise UsageError(
                f"{self.name} makes masks of the tokens of a vision transformer, and this network has none. Use "
                "score-cam."
            )

    @torch.no_grad()
    def maps(self, view: NetworkView) -> Tensor:
        self.require(view)
        if view.at_input:
            raise UsageError(f"{self.name} makes masks of tokens, which the input does not have; choose a later stage.")
        if self.score == "probability":
            view = replace(view, start="probability")
            view = replace(view, own_score=view.score(view.features))
        maps = []
        for volume, features in enumerate(view.features):
            masks = merged_masks(features, self.threshold)
            worth = causal_scores(view, volume, masks, self.masking, self.noise, self.seed, self.batch)
            maps.append(ratio(torch.einsum("m,mdhw->dhw", worth, masks), masks.sum(0)).unsqueeze(0))
        return torch.stack(maps)
