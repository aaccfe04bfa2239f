"""A probe: the stages of a backbone, and a head that is trained for the task (Gairola et al. 2025).

Heads with several layers classify each voxel of the last features by 1×1×1 convolutions and average then, as B-cos
networks do. On a dynamic linear backbone no head has a constant, so that its maps add up. A head of dynamic layers on a
conventional backbone is explained from its features on (Böhle 2024, section 5.2.4).

CA-Stream (Torres Figueroa 2024, thesis, ch. 3): a learned query attends to the features of each stage in turn; what it
pools there becomes, after a linear map, the query of the next. The last attention takes the place of the global average
before the linear head. CAM methods explain the last features, before their attention, so that their gradient passes
through it (sections 3.5, 3.6). The source keeps the classifier of the backbone and learns a linear map before it; the
linear head here is both together. Two variants: keys ``K phi`` and values ``V phi`` of the features phi, linear maps of
each stage; and a query for each class, whose pooled features its logit reads.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.dynamic import LogitLayer, bias_of_chance, dynamic_layers
from heatlas.pipeline.models.families.family import Architecture, Shape
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.models.inputs import NetworkInput
from heatlas.pipeline.models.storage import LoadedModel, from_file
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.layout.run_layout import FoldFiles
from heatlas.studies.bcos.layers import BcosConv3d
from heatlas.studies.coda.network import Layers, SumPool, stack
from heatlas.studies.dynamic import DynamicNorm
from heatlas.studies.probes.records import ProbeConfig, backbone_files, body_of


class Backbone(nn.Sequential):
    """Stages of a network, as one stage.

    `frozen`: weights have no gradients, and the stages stay in evaluation mode whatever the network is set to, so that
    running statistics stay what they are.
    """

    was_trained: ClassVar[bool] = True
    """Its constants are not taken from data again (`pipeline.models.dynamic`)."""

    def __init__(self, stages: Sequence[nn.Module], frozen: bool = True) -> None:
        super().__init__(*stages)
        self.frozen = frozen
        if frozen:
            self.requires_grad_(False)
            self.eval()

    @property
    def is_dynamic(self) -> bool:
        """Whether contributions can be followed through it: its layers are dynamic linear."""
        return bool(dynamic_layers(self))

    def train(self, mode: bool = True) -> Backbone:
        super().train(mode and not self.frozen)
        return self


def conventional_stem(model: StagedModel) -> Backbone | None:
    """The stem of a hybrid: a conventional backbone below dynamic linear layers. None for any other network."""
    stem = model.stages[0]
    return stem if isinstance(stem, Backbone) and not stem.is_dynamic and dynamic_layers(model) else None


def features_of_stages(network: StagedModel, volumes: Tensor) -> list[Tensor]:
    """What each stage but the last gives, without gradients, as long as it has voxels."""
    features: list[Tensor] = []
    with torch.no_grad():
        for stage in network.stages[:-1]:
            volumes = stage(volumes)
            if volumes.dim() != 5:
                break
            features.append(volumes)
    return features


def kept_stages(network: StagedModel, shape: Shape, count: int = 0) -> tuple[tuple[nn.Module, ...], tuple[int, ...]]:
    """The first stages of a network, all that give features with voxels or `count` of them; channels after each."""
    weight = next(network.parameters())
    was_training = network.training
    empty = torch.zeros(1, 1, *shape, dtype=weight.dtype, device=weight.device)
    features = features_of_stages(network.eval(), empty)
    network.train(was_training)
    if not features or count > len(features):
        if not features:
            raise UsageError(
                "model.backbone: no stage of the backbone gives features with voxels, so no probe can stand on it."
            )
        raise UsageError(
            f"model.stages = {count}: {len(features)} stages of the backbone give features with voxels; keep 1 to "
            f"{len(features)} of them, or 0 for all."
        )
    number = count or len(features)
    return tuple(network.stages[:number]), tuple(one.shape[1] for one in features[:number])


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

    `query`: (B, d), or (B, C, d). `keys`: (B, D, H, W). `values`: the linear map V (d, d) of the features that are
    pooled; None for the features themselves.
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
        mapped = widths[first:] if projected else ()
        self.keys, self.values = (nn.ParameterList(torch.empty(d, d) for d in mapped) for _ in range(2))
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


INITIAL_LOGITS = 0.5
"""Root mean square of the logits of dynamic heads before training."""
CODA_RANKS, CODA_KERNELS = (8, 8), (3, 1)
"""Ranks and kernels of the two layers of a CoDA head."""


class UnitProjection(nn.Module):
    """Fewer channels for each voxel, by weights of norm 1 per channel: no answer exceeds the norm of its voxel."""

    keeps_places: ClassVar[bool] = True

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(after, before))

    @property
    def rows(self) -> Tensor:
        return functional.normalize(self.weight, dim=1)

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv3d(x, self.rows[:, :, None, None, None])


def pooled(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten())


def linear_head(channels: int, outputs: int, constants: bool, bias: float) -> list[nn.Module]:
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
    hidden_layers: list[nn.Module] = []
    for _ in range(layers - 1):
        norm = nn.BatchNorm3d(hidden) if constants else DynamicNorm("batch", hidden)
        hidden_layers.append(nn.Sequential(nn.Conv3d(channels, hidden, 1, bias=False), norm, nn.ReLU()))
        channels = hidden
    last = nn.Conv3d(channels, outputs, 1, bias=constants)
    if last.bias is not None:
        nn.init.constant_(last.bias, bias)
    return [*hidden_layers, nn.Sequential(*pooled(last), *_constant(bias, constants))]


def bcos_head(channels: int, hidden: int, outputs: int, layers: int, b: float, bias: float) -> list[nn.Module]:
    """B-cos convolutions of one voxel with uncentred norms between them, then the average over voxels."""
    hidden_layers: list[nn.Module] = []
    for _ in range(layers - 1):
        hidden_layers.append(nn.Sequential(BcosConv3d(channels, hidden, 1, b=b), DynamicNorm("batch", hidden)))
        channels = hidden
    logits = LogitLayer(bias=bias, initial_size=INITIAL_LOGITS)
    return [*hidden_layers, nn.Sequential(*pooled(BcosConv3d(channels, outputs, 1, b=b)), logits)]


def coda_head(channels: int, hidden: int, outputs: int, bias: float) -> list[nn.Module]:
    """A projection, two layers of dynamic alignment units, and the sum over voxels."""
    layers = Layers((hidden,), CODA_RANKS, CODA_KERNELS, (1, 1))
    first, last = stack(layers, hidden, outputs, "wb")
    logits = LogitLayer(bias=bias, initial_size=INITIAL_LOGITS)
    return [UnitProjection(channels, hidden), first, nn.Sequential(last, SumPool(), logits)]


def build(network: StagedModel, shape: Shape, settings: ProbeConfig, dynamic: bool, outputs: int) -> StagedModel:
    """A probe on a network. Stages: the backbone, one per hidden layer of the head, its last layer with the logits.

    `network`: its first stages become the backbone; they are not copied. `settings`: with the backbone written out.
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
    first = probe.stages[0]
    backbone = first.body if isinstance(first, AttentionStream) else first
    assert isinstance(backbone, Backbone)
    return backbone


def _head(settings: ProbeConfig, channels: int, outputs: int, dynamic: bool) -> Sequence[nn.Module]:
    hidden = settings.hidden_channels or channels
    bias = bias_of_chance(outputs) if settings.logit_bias else 0.0
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


def backbone_weights(
    settings: ProbeConfig, spec: NetworkInput, fold: int, load: Callable[[FoldFiles], LoadedModel]
) -> Mapping[str, Tensor]:
    """Weights of the backbone of a probe, by their names in the probe.

    `load`: reads a network, and refuses one that the fold must not build on.
    """
    body, path = body_of(settings), Path(settings.backbone)
    if path.is_file():
        network = build_network(body, spec.shape, 1, spec.channels)
        network.load_state_dict({**network.state_dict(), **from_file(path, network)})
        return _of_probe(network, spec, settings)
    files = backbone_files(settings.backbone, fold)
    loaded = load(files)
    if dataclasses.replace(loaded.settings, **body.shared) != body:
        raise UsageError(
            f"model.backbone: {files.weights}: it is a {loaded.settings.architecture} with other settings than the "
            f"{body.architecture} in model.body; leave model.body empty."
        )
    return _of_probe(loaded.model, spec, settings)


def _of_probe(network: StagedModel, spec: NetworkInput, settings: ProbeConfig) -> Mapping[str, Tensor]:
    stages, _ = kept_stages(network, spec.shape, settings.stages)
    place = "_stages.0.body" if settings.head == "ca-stream" else "_stages.0"
    return {f"{place}.{name}": value for name, value in Backbone(stages).state_dict().items()}
