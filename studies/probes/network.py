"""A probe: the stages of a backbone, and a head that is trained for the task (Gairola et al. 2025).

Heads with several layers classify each voxel of the last features by 1×1×1 convolutions and average then, as B-cos
networks do; for one linear layer the order makes no difference. On a dynamic linear backbone no head has a constant, so
that its maps add up. A head of dynamic layers on a conventional backbone is explained from its features on (Böhle 2024,
section 5.2.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.dynamic import LogitLayer, bias_of_chance
from heatlas.pipeline.models.families.family import Architecture, Shape
from heatlas.studies.bcos.layers import BcosConv3d
from heatlas.studies.coda.network import Layers, SumPool, stack
from heatlas.studies.dynamic.norms import DynamicNorm
from heatlas.studies.probes.backbone import Backbone, kept_stages
from heatlas.studies.probes.ca_stream import AttentionStream
from heatlas.studies.probes.records import ProbeConfig

INITIAL_LOGITS = 0.5
"""Root mean square of the logits of dynamic heads before training."""
CODA_RANKS, CODA_KERNELS = (8, 8), (3, 1)
"""Ranks and kernels of the two layers of a CoDA head."""


class UnitProjection(nn.Module):
    """Fewer channels for each voxel, by weights of norm 1 per channel, so that no answer exceeds the norm of its voxel.

    `before`, `after`: channels.
    """

    keeps_places: ClassVar[bool] = True

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(after, before))

    @property
    def rows(self) -> Tensor:
        """The weights (after, before), of norm 1."""
        return functional.normalize(self.weight, dim=1)

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv3d(x, self.rows[:, :, None, None, None])


def pooled(*layers: nn.Module) -> nn.Sequential:
    """Layers that classify each voxel, and the average over voxels."""
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten())


def linear_head(channels: int, outputs: int, constants: bool, bias: float) -> list[nn.Module]:
    """Average over voxels, then one linear layer."""
    layer = nn.Linear(channels, outputs, bias=constants)
    if constants:
        nn.init.constant_(layer.bias, bias)
    return [nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten(), layer, *_constant(bias, constants))]


def class_head(channels: int, outputs: int, constants: bool, bias: float) -> list[nn.Module]:
    """Average over voxels, then for each class a linear layer of its own channels alone, of (B, C d, D, H, W)."""
    layer = nn.Conv3d(outputs * channels, outputs, 1, groups=outputs, bias=constants)
    if layer.bias is not None:
        nn.init.constant_(layer.bias, bias)
    return [nn.Sequential(nn.AdaptiveAvgPool3d(1), layer, nn.Flatten(), *_constant(bias, constants))]


def mlp_head(channels: int, hidden: int, outputs: int, layers: int, constants: bool, bias: float) -> list[nn.Module]:
    """1×1×1 convolutions with batch normalisation and ReLU between them, then the average over voxels."""
    made: list[nn.Module] = []
    for _ in range(layers - 1):
        norm = nn.BatchNorm3d(hidden) if constants else DynamicNorm("batch", hidden)
        made.append(nn.Sequential(nn.Conv3d(channels, hidden, 1, bias=False), norm, nn.ReLU()))
        channels = hidden
    last = nn.Conv3d(channels, outputs, 1, bias=constants)
    if last.bias is not None:
        nn.init.constant_(last.bias, bias)
    return [*made, nn.Sequential(*pooled(last), *_constant(bias, constants))]


def bcos_head(channels: int, hidden: int, outputs: int, layers: int, b: float, bias: float) -> list[nn.Module]:
    """B-cos convolutions of one voxel with uncentred norms between them, then the average over voxels."""
    made: list[nn.Module] = []
    for _ in range(layers - 1):
        made.append(nn.Sequential(BcosConv3d(channels, hidden, 1, b=b), DynamicNorm("batch", hidden)))
        channels = hidden
    logits = LogitLayer(bias=bias, initial_size=INITIAL_LOGITS)
    return [*made, nn.Sequential(*pooled(BcosConv3d(channels, outputs, 1, b=b)), logits)]


def coda_head(channels: int, hidden: int, outputs: int, bias: float) -> list[nn.Module]:
    """A projection, two layers of dynamic alignment units, and the sum over voxels."""
    layers = Layers((hidden,), CODA_RANKS, CODA_KERNELS, (1, 1))
    first, last = stack(layers, hidden, outputs, "wb")
    logits = LogitLayer(bias=bias, initial_size=INITIAL_LOGITS)
    return [UnitProjection(channels, hidden), first, nn.Sequential(last, SumPool(), logits)]


def build(network: StagedModel, shape: Shape, settings: ProbeConfig, dynamic: bool, outputs: int) -> StagedModel:
    """A probe on a network. Stages: the backbone, one per hidden layer of the head, its last layer with the logits.

    `network`: whose first stages become the backbone; they are not copied. `settings`: with the backbone written out.
    `dynamic`: whether the backbone is dynamic linear.
    """
    stages, widths = kept_stages(network, shape, settings.stages)
    body = Backbone(stages, frozen=not settings.train_backbone)
    first: nn.Module = body
    if settings.head == "ca-stream":
        classes = outputs if settings.class_queries else 0
        first = AttentionStream(body, widths, settings.first_attended, settings.projections, classes)
    model = StagedModel([first, *_head(settings, widths[-1], outputs, dynamic)])
    model.architecture = Architecture(settings, shape)
    return model


def backbone_of(probe: StagedModel) -> Backbone:
    """The backbone of a probe, without a stream that passes it."""
    first = probe.stages[0]
    found = first.body if isinstance(first, AttentionStream) else first
    assert isinstance(found, Backbone)
    return found


def _head(settings: ProbeConfig, channels: int, outputs: int, dynamic: bool) -> Sequence[nn.Module]:
    hidden = settings.hidden_channels or channels
    bias = bias_of_chance(outputs) if settings.logit_bias and outputs > 1 else 0.0
    if settings.class_queries:
        return class_head(channels, outputs, not dynamic, bias)
    if settings.head in ("linear", "ca-stream"):
        return linear_head(channels, outputs, not dynamic, bias)
    if settings.head == "coda":
        return coda_head(channels, hidden, outputs, bias)
    kind, _, layers = settings.head.partition("-")
    if kind == "mlp":
        return mlp_head(channels, hidden, outputs, int(layers), not dynamic, bias)
    return bcos_head(channels, hidden, outputs, int(layers), settings.b, bias)


def _constant(bias: float, constants: bool) -> list[nn.Module]:
    """The logit bias of a head whose layers have none of their own."""
    return [LogitLayer(bias=bias)] if bias and not constants else []
