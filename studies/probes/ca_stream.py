"""CA-Stream: a query that passes the stages of a backbone and pools its last features by attention.

A learned query, the same for all scans and classes, attends to the features of each stage in turn; what it pools there
becomes, after a linear map, the query of the next. The last attention takes the place of the global average (GAP)
before the linear head. Attention is a class-agnostic CAM: its scores are channels weighted by the query.

CAM methods explain the last features, before their attention, so that their gradient passes through it: each voxel
counts by its own part of the logit, and by how much more attention it draws than the others (ch. 3, sections 3.5, 3.6).

The source keeps the classifier of the backbone and learns a linear map before it. A probe learns its classifier anyway,
and two linear layers in a row are one, so the linear head is what both are together.

Two variants of the source: the features phi of a voxel have a key ``K phi`` and a value ``V phi``, linear maps of each
stage; and a query for each class, so that each has an attention and pooled features of its own, which its logit reads.

Source: Torres Figueroa 2024 (thesis), ch. 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from heatlas.pipeline.run.errors import UsageError
from heatlas.studies.probes.backbone import Backbone


def attention_scores(features: Tensor, query: Tensor) -> Tensor:
    """``sum_k q_k F^k / sqrt(d)`` of features (B, d, D, H, W) and queries (B, ..., d), (B, ..., D, H, W)."""
    return torch.einsum("bkxyz,b...k->b...xyz", features, query) / math.sqrt(features.shape[1])


def attention(features: Tensor, query: Tensor, keys: Tensor | None = None) -> Tensor:
    """Softmax of `attention_scores` over voxels, (B, ..., D, H, W); 0 outside `keys`.

    `features`: (B, d, D, H, W). `query`: (B, d), or (B, C, d) for several queries of each volume; 0 gives each voxel
    the same weight. `keys`: voxels that may be attended to, (B, D, H, W); None for all, which is also what a volume
    without any gets.

    Examples
    --------
    >>> features = torch.tensor([1.0, 3.0]).view(1, 1, 1, 1, 2)
    >>> attention(features, torch.zeros(1, 1)).tolist()
    [[[[0.5, 0.5]]]]
    """
    scores = attention_scores(features, query)
    if keys is not None:
        seen = keys | ~keys.flatten(1).any(1)[:, None, None, None]
        scores = scores.masked_fill(~(seen if query.dim() == 2 else seen[:, None]), -torch.inf)
    return scores.flatten(-3).softmax(-1).view_as(scores)


def attended(features: Tensor, weights: Tensor) -> Tensor:
    """Features (B, d, D, H, W) times their attention (B, D, H, W) and the number of voxels.

    Their mean over voxels is the sum of the features weighted by the attention, so global average pooling and a linear
    layer may follow. With C attentions (B, C, D, H, W) there are C d channels, those of the first attention first.
    """
    if weights.dim() == 5:
        return torch.cat([attended(features, one) for one in weights.unbind(1)], 1)
    return features * (weights * weights[0].numel())[:, None]


class AttentionPooling(nn.Module):
    """The last attention as a function of the last features alone: the queries, and what may be attended to, stay.

    `query`: (B, d), or (B, C, d), of each volume. `keys`: (B, D, H, W). `values`: the linear map V (d, d) of the
    features that are pooled; None for the features themselves.
    """

    def __init__(self, query: Tensor, keys: Tensor, values: Tensor | None = None) -> None:
        super().__init__()
        self._query, self._keys, self._values = query, keys, values

    def weights(self, features: Tensor) -> Tensor:
        """Attention to the voxels of features, (B, D, H, W) or (B, C, D, H, W), in float32 or better."""
        exact = features.to(self._query.dtype)
        query = self._query.expand(len(exact), *self._query.shape[1:])
        return attention(exact, query, self._keys.expand(len(exact), -1, -1, -1))

    def pooled(self, features: Tensor) -> Tensor:
        """What the queries pool, (B, d) or (B, C, d), in float32 or better."""
        weights = self.weights(features)
        return torch.einsum("bkxyz,b...xyz->b...k", self._valued(features.to(weights.dtype)), weights)

    def forward(self, features: Tensor) -> Tensor:
        return attended(self._valued(features), self.weights(features))

    def _valued(self, features: Tensor) -> Tensor:
        return features if self._values is None else torch.einsum("jk,bkxyz->bjxyz", self._values, features)


class AttentionStream(nn.Module):
    """The stages of a backbone, and the stream beside them: volumes (B, 1, D, H, W) to attended features.

    `widths`: channels after each of its stages. `first`: stage at which the stream begins. `projected`: whether keys
    and values of each stage are linear maps of its features. `classes`: queries, one of each class; 0 for one of all.
    Raises UsageError for a stage that is not there.
    """

    def __init__(
        self, body: Backbone, widths: Sequence[int], first: int = 0, projected: bool = False, classes: int = 0
    ) -> None:
        super().__init__()
        if first >= len(widths):
            raise UsageError(
                f"model.first_attended = {first}: stages 0 to {len(widths) - 1} of the backbone are kept; choose "
                "one of them."
            )
        self.body, self._first = body, first
        self.query = nn.Parameter(1 + torch.randn(*([classes] if classes else []), widths[first]))
        self.projections = nn.ModuleList(
            nn.Linear(before, after, bias=False)
            for before, after in zip(widths[first:-1], widths[first + 1 :], strict=True)
        )
        own = widths[first:] if projected else ()
        self.keys, self.values = (nn.ParameterList(torch.empty(d, d) for d in own) for _ in range(2))
        for weight in (*(one.weight for one in self.projections), *self.keys, *self.values):
            nn.init.xavier_uniform_(weight)

    def forward(self, volumes: Tensor) -> Tensor:
        features, pooling = self.before_pooling(volumes)
        return pooling(features)  # type: ignore[no-any-return]

    def before_pooling(self, volumes: Tensor) -> tuple[Tensor, AttentionPooling]:
        """Last features (B, d, D, H, W), and their pooling. The background, where a scan is 0, is not attended to.

        The map of the keys is taken of the query, which gives the same scores as that of every voxel.
        """
        brain, features = (volumes != 0).float(), volumes
        wide = torch.promote_types(volumes.dtype, torch.float32)
        query = self.query.to(wide).expand(len(volumes), *self.query.shape)
        last = len(self.body) - 1
        for number, stage in enumerate(self.body):
            features = stage(features)
            if number < self._first:
                continue
            place, seen = number - self._first, functional.adaptive_max_pool3d(brain, features.shape[2:])[:, 0] > 0
            values = None
            if self.keys:
                query, values = (query @ self.keys[place]).to(wide), self.values[place]
            pooling = AttentionPooling(query, seen, values)
            if number < last:
                query = self.projections[place](pooling.pooled(features)).to(wide)
        return features, pooling

    def pooling_weights(self, volumes: Tensor, target: int = 0) -> Tensor:
        """Attention to the voxels of the last features, (B, d, h, w), which sums to 1.

        The same for every class, unless each has a query.
        """
        features, pooling = self.before_pooling(volumes)
        weights = pooling.weights(features)
        return weights if weights.dim() == 4 else weights[:, target]
