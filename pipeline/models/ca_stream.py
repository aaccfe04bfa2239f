"""CA-Stream: a query that passes the stages of a frozen network and pools its last features by attention.

A learned query, the same for all scans and classes, attends to the features of each stage in turn; what it pools there
becomes, after a linear map, the query of the next. The last pooled vector takes the place of the global average (GAP)
before the linear head. Attention is a class-agnostic CAM: its scores are channels weighted by the query. Only the first
query and the linear maps learn.

Source: Torres Figueroa 2024 (thesis), ch. 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.models.contract import StagedModel
from pipeline.run.errors import UsageError

_BEFORE_LINEAR = (nn.AdaptiveAvgPool3d, nn.AvgPool3d, nn.Flatten, nn.Dropout, nn.Identity)


def attention_scores(features: Tensor, query: Tensor) -> Tensor:
    """``sum_k q_k F^k / sqrt(d)`` of features (B, d, D, H, W) and a query (B, d), in float32; (B, D, H, W)."""
    scores = torch.einsum("bkxyz,bk->bxyz", features.float(), query.float())
    return scores / math.sqrt(features.shape[1])


def attention(features: Tensor, query: Tensor, keys: Tensor | None = None) -> Tensor:
    """Softmax of `attention_scores` over voxels, (B, D, H, W); 0 outside `keys`.

    Parameters
    ----------
    features : Tensor
        (B, d, D, H, W).
    query : Tensor
        (B, d); 0 gives each voxel the same weight.
    keys : Tensor of bool or None
        Voxels that may be attended to, (B, D, H, W), at least one in each volume; None for all.

    Examples
    --------
    >>> features = torch.tensor([1.0, 3.0]).view(1, 1, 1, 1, 2)
    >>> attention(features, torch.zeros(1, 1)).tolist()
    [[[[0.5, 0.5]]]]
    """
    scores = attention_scores(features, query)
    if keys is not None:
        scores = scores.masked_fill(~keys, -torch.inf)
    return scores.flatten(1).softmax(1).view_as(scores)


def attended(features: Tensor, query: Tensor, keys: Tensor | None = None) -> Tensor:
    """Features (B, d, D, H, W) averaged with the weights of `attention`, (B, d)."""
    return torch.einsum("bkxyz,bxyz->bk", features.float(), attention(features, query, keys))


class AttentionHead(nn.Module):
    """Attention pooling by a query that is known already, and the linear head; takes the place of GAP.

    Parameters
    ----------
    query : Tensor
        (1, d), of one scan.
    projection, linear : nn.Linear
    keys : Tensor of bool or None
        (1, D, H, W).
    """

    def __init__(self, query: Tensor, projection: nn.Linear, linear: nn.Linear, keys: Tensor | None = None) -> None:
        super().__init__()
        self._query, self._keys = query, keys
        self._projection, self._linear = projection, linear

    def forward(self, features: Tensor) -> Tensor:
        """Logits (B, classes) of features (B, d, D, H, W)."""
        query = self._query.expand(len(features), -1)
        keys = None if self._keys is None else self._keys.expand(len(features), -1, -1, -1)
        found: Tensor = self._linear(self._projection(attended(features, query, keys)))
        return found


class CAStream(nn.Module):
    """A frozen network whose last features are pooled by a stream of attention.

    Parameters
    ----------
    backbone : StagedModel
        Its last stage is pooling and one linear layer. It stays in evaluation mode and is not trained.
    first : int
        Stage at which the stream begins.
    within_brain : bool
        Whether voxels of the background (where the input is 0 throughout) cannot be attended to.

    Raises
    ------
    UsageError
        For another head, or a stage that does not exist.
    """

    def __init__(self, backbone: StagedModel, first: int = 0, within_brain: bool = True) -> None:
        super().__init__()
        *features, head = backbone.stages
        layers = [one for one in head.modules() if not list(one.children())]
        if not isinstance(layers[-1], nn.Linear) or not all(isinstance(one, _BEFORE_LINEAR) for one in layers[:-1]):
            raise UsageError(
                f"CA-Stream takes the place of global average pooling before a linear layer, and this network ends "
                f"with {', '.join(type(one).__name__ for one in layers)}; choose a ResNet or a DenseNet."
            )
        if not 0 <= first < len(features):
            raise UsageError(f"CA-Stream: first = {first}, and this network has stages 0 to {len(features) - 1}.")
        self._backbone, self._first, self._within_brain = backbone.requires_grad_(False).eval(), first, within_brain
        self._linear = layers[-1]
        widths = _widths(features, backbone)[first:]
        self.query = nn.Parameter(1 + torch.randn(widths[0]))
        self.projections = nn.ModuleList(
            nn.Linear(before, after, bias=False)
            for before, after in zip(widths, [*widths[1:], widths[-1]], strict=True)
        )
        for one in self.projections:
            nn.init.xavier_uniform_(one.weight)  # type: ignore[arg-type]

    def train(self, mode: bool = True) -> Self:
        """Training mode of the stream alone: statistics of the backbone stay as they are."""
        super().train(mode)
        self._backbone.eval()
        return self

    def forward(self, volumes: Tensor) -> Tensor:
        """Logits (B, classes) of volumes (B, 1, D, H, W)."""
        features, query, keys = self._last(volumes)
        found: Tensor = self._linear(self.projections[-1](attended(features, query, keys)))
        return found

    def attention(self, volumes: Tensor) -> Tensor:
        """Weights of the voxels of the last features, (B, d, h, w): a map that knows no class; they sum to 1."""
        return attention(*self._last(volumes))

    def staged(self, volume: Tensor) -> StagedModel:
        """The same function of one volume (1, 1, D, H, W) as stages, so that methods at the last features apply.

        The query that arrives at the last features is a constant there, as the source has it.
        """
        with torch.no_grad():
            _, query, keys = self._last(volume)
        last = self.projections[-1]
        assert isinstance(last, nn.Linear)
        return StagedModel([*self._backbone.stages[:-1], AttentionHead(query, last, self._linear, keys)]).eval()

    def _last(self, volumes: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Features before the head, the query that arrives there, and the voxels it may attend to."""
        brain = (volumes != 0).float() if self._within_brain else None
        query, features, keys = self.query.expand(len(volumes), -1), volumes, None
        stages = self._backbone.stages[:-1]
        for number, stage in enumerate(stages):
            features = stage(features)
            if number < self._first:
                continue
            keys = None if brain is None else functional.adaptive_max_pool3d(brain, features.shape[2:])[:, 0] > 0
            if number < len(stages) - 1:
                query = self.projections[number - self._first](attended(features, query, keys))
        return features, query, keys


def _widths(stages: Sequence[nn.Module], backbone: StagedModel) -> list[int]:
    """Channels after each stage, by one pass of an empty volume."""
    if backbone.architecture is None:
        raise UsageError("CA-Stream needs a network of a family, whose grid is known.")
    weight = next(backbone.parameters())
    volume = torch.zeros(1, 1, *backbone.architecture.input_shape, dtype=weight.dtype, device=weight.device)
    found = []
    training = backbone.training
    backbone.eval()
    with torch.no_grad():
        for stage in stages:
            volume = stage(volume)
            found.append(volume.shape[1])
    backbone.train(training)
    return found
