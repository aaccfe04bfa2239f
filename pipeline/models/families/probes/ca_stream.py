"""CA-Stream: a query that passes the stages of a backbone and pools its last features by attention.

A learned query, the same for all scans and classes, attends to the features of each stage in turn; what it pools there
becomes, after a linear map, the query of the next. The last attention takes the place of the global average (GAP)
before the linear head. Attention is a class-agnostic CAM: its scores are channels weighted by the query.

CAM methods explain the last features, before their attention, so that their gradient passes through it: each voxel
counts by its own part of the logit, and by how much more attention it draws than the others (ch. 3, sections 3.5, 3.6).

The source keeps the classifier of the backbone and learns a linear map before it. A probe learns its classifier anyway,
and two linear layers in a row are one, so the linear head is what both are together.

Source: Torres Figueroa 2024 (thesis), ch. 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from heatlas.pipeline.models.families.probes.backbone import Backbone
from heatlas.pipeline.run.errors import UsageError


def attention_scores(features: Tensor, query: Tensor) -> Tensor:
    """``sum_k q_k F^k / sqrt(d)`` of features (B, d, D, H, W) and a query (B, d), (B, D, H, W)."""
    return torch.einsum("bkxyz,bk->bxyz", features, query) / math.sqrt(features.shape[1])


def attention(features: Tensor, query: Tensor, keys: Tensor | None = None) -> Tensor:
    """Softmax of `attention_scores` over voxels, (B, D, H, W); 0 outside `keys`.

    Parameters
    ----------
    features : Tensor
        (B, d, D, H, W).
    query : Tensor
        (B, d); 0 gives each voxel the same weight.
    keys : Tensor of bool or None
        Voxels that may be attended to, (B, D, H, W); None for all, which is also what a volume without any gets.

    Examples
    --------
    >>> features = torch.tensor([1.0, 3.0]).view(1, 1, 1, 1, 2)
    >>> attention(features, torch.zeros(1, 1)).tolist()
    [[[[0.5, 0.5]]]]
    """
    scores = attention_scores(features, query)
    if keys is not None:
        scores = scores.masked_fill(~(keys | ~keys.flatten(1).any(1)[:, None, None, None]), -torch.inf)
    return scores.flatten(1).softmax(1).view_as(scores)


def attended(features: Tensor, weights: Tensor) -> Tensor:
    """Features (B, d, D, H, W) times their attention (B, D, H, W) and the number of voxels.

    Their mean over voxels is the sum of the features weighted by the attention, so global average pooling and a linear
    layer may follow.
    """
    return features * (weights * weights[0].numel())[:, None]


class AttentionPooling(nn.Module):
    """The last attention as a function of the last features alone: the queries, and what may be attended to, stay.

    Parameters
    ----------
    query : Tensor
        (B, d), of each volume.
    keys : Tensor of bool
        (B, D, H, W).
    """

    def __init__(self, query: Tensor, keys: Tensor) -> None:
        super().__init__()
        self._query, self._keys = query, keys

    def weights(self, features: Tensor) -> Tensor:
        """Attention to the voxels of features, (B, D, H, W), in float32 or better."""
        exact = features.to(self._query.dtype)
        return attention(exact, self._query.expand(len(exact), -1), self._keys.expand(len(exact), -1, -1, -1))

    def forward(self, features: Tensor) -> Tensor:
        return attended(features, self.weights(features))


class AttentionStream(nn.Module):
    """The stages of a backbone, and the stream beside them: volumes (B, 1, D, H, W) to attended features.

    Parameters
    ----------
    body : Backbone
    widths : sequence of int
        Channels after each of its stages.
    first : int
        Stage at which the stream begins.

    Raises
    ------
    UsageError
        For a stage that is not there.
    """

    def __init__(self, body: Backbone, widths: Sequence[int], first: int = 0) -> None:
        super().__init__()
        if first >= len(widths):
            raise UsageError(
                f"model.first_attended = {first}: stages 0 to {len(widths) - 1} of the backbone are kept; choose "
                "one of them."
            )
        self.body, self._first = body, first
        self.query = nn.Parameter(1 + torch.randn(widths[first]))
        self.projections = nn.ModuleList(
            nn.Linear(before, after, bias=False)
            for before, after in zip(widths[first:-1], widths[first + 1 :], strict=True)
        )
        for one in self.projections:
            nn.init.xavier_uniform_(one.weight)  # type: ignore[arg-type]

    def forward(self, volumes: Tensor) -> Tensor:
        features, pooling = self.before_pooling(volumes)
        return pooling(features)  # type: ignore[no-any-return]

    def before_pooling(self, volumes: Tensor) -> tuple[Tensor, AttentionPooling]:
        """Last features (B, d, D, H, W), and their pooling. The background, where a scan is 0, is not attended to."""
        brain, features = (volumes != 0).float(), volumes
        wide = torch.promote_types(volumes.dtype, torch.float32)
        query = self.query.to(wide).expand(len(volumes), -1)
        last = len(self.body) - 1
        for number, stage in enumerate(self.body):
            features = stage(features)
            if number < self._first:
                continue
            pooling = AttentionPooling(query, functional.adaptive_max_pool3d(brain, features.shape[2:])[:, 0] > 0)
            if number < last:
                pooled = torch.einsum("bkxyz,bxyz->bk", features.to(wide), pooling.weights(features))
                query = self.projections[number - self._first](pooled).to(wide)
        return features, pooling

    def pooling_weights(self, volumes: Tensor) -> Tensor:
        """Attention to the voxels of the last features, (B, d, h, w); the same for every class, and sums to 1."""
        features, pooling = self.before_pooling(volumes)
        return pooling.weights(features)
