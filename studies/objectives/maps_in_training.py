"""Maps that a loss may depend on: made within the graph of the training step, so that gradients reach the weights.

Which map a run learns with is said in ``[objective]``; `map_settings` says what ``usual`` stands for there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from heatlas.pipeline.attribution.entry import last_spatial_stage
from heatlas.pipeline.attribution.methods import interpolated
from heatlas.pipeline.attribution.network_view import placed_layers, split_layers
from heatlas.pipeline.models.contract import PoolsByAttention, StagedModel
from heatlas.pipeline.models.dynamic import differentiable_weights
from heatlas.pipeline.models.families.registry import family_of
from heatlas.pipeline.run.config.networks import ObjectiveConfig
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import UsageError
from heatlas.studies.dynamic import InputEncoding
from heatlas.studies.inherent import require_dynamic
from heatlas.studies.objectives.twice import TwiceDifferentiable, gradients_of_features

MapOf = Callable[[Tensor, Tensor], Tensor]
"""From features and gradient, both (B, C, d, h, w), to a map (B, 1, d, h, w)."""


def input_times_gradient(features: Tensor, gradient: Tensor) -> Tensor:
    return (features * gradient).sum(1, keepdim=True)


def grad_cam(features: Tensor, gradient: Tensor) -> Tensor:
    """Channels weighted by their mean gradient, positive part (Selvaraju et al. 2017)."""
    weights = gradient.mean((2, 3, 4), keepdim=True)
    return (weights * features).sum(1, keepdim=True).clamp(min=0)


def attention_map(features: Tensor) -> Tensor:
    """Squares of features (B, C, d, h, w) summed over channels (Zagoruyko & Komodakis 2017); no gradient is needed.

    Examples
    --------
    >>> attention_map(torch.tensor([3.0, -4.0]).view(1, 2, 1, 1, 1)).flatten().tolist()
    [25.0]
    """
    return features.pow(2).sum(1, keepdim=True)


MAPS: Mapping[str, MapOf] = {"input-x-gradient": input_times_gradient, "grad-cam": grad_cam}
"""From one gradient, by the name in ``[objective] map``; besides them `WEIGHTS`, `ATTENTION`, inherent, evidence."""
WEIGHTS = "dynamic-weights"
"""W(x) itself, which distillation compares, where ``inherent`` is W(x) x."""
ATTENTION = "attention-transfer"
"""Where features are large, whatever the output: `attention_map`, which distillation may compare."""
POINTS = 8
"""On the way from the mean control to a scan, where a network is only measured; a training step draws one."""


@dataclass(frozen=True)
class BatchMaps:
    """Logits (B, K) of a batch, and a map of each volume; both differentiable in the weights.

    Maps are (B, D, H, W); of `WEIGHTS` (B, 2, D, H, W), for an intensity v and for 1 - v.
    """

    logits: Tensor
    maps: Tensor


def explained_batch(
    model: nn.Module,
    volumes: Tensor,
    targets: Tensor,
    kind: str,
    stage: int,
    learning: bool = True,
    reference: Tensor | None = None,
) -> BatchMaps:
    """Logits, and the map of one output for each volume, at a boundary between stages.

    The output explained is the evidence: its logit minus the mean of the others; of a single output, itself. Nothing is
    detached, so that a loss of the map can be differentiated again.

    `model`: a `StagedModel`. `volumes`: (B, 1, D, H, W). `targets`: output explained, (B,). `kind`: one of `MAPS`;
    ``inherent``, contributions of a network that is one linear map for each scan; `WEIGHTS`, that linear map itself, at
    the input; `ATTENTION`, behind a stage; or ``evidence``, expected gradients from a mean control, `reference` (1, 1,
    D, H, W), at the input. `stage`: boundary: 0 the input, -1 the last stage with voxels. `learning`: whether a loss of
    the maps is to be differentiated; False for a network that stays as it is, such as a teacher.
    """
    if not isinstance(model, StagedModel):
        raise UsageError(
            f"{type(model).__name__} is not made of stages; maps in training need a network of a family, on one device "
            "(training.devices = 1)."
        )
    place = last_spatial_stage(model) if stage == -1 else stage
    if not 0 <= place <= last_spatial_stage(model):
        raise UsageError(
            f"objective.stage = {stage}: this network has voxels at stages 0 to {last_spatial_stage(model)} (-1: the "
            "last)."
        )
    if kind in ("inherent", WEIGHTS):
        return _inherent(model, volumes, targets, place, kind == WEIGHTS, learning)
    if kind == ATTENTION:
        return _attention(model, volumes, place, learning)
    if kind == "evidence":
        assert reference is not None
        return _evidence(model, volumes, targets, reference.to(volumes), learning)
    features, rest = _parted(model, volumes, place)
    if place == 0 or not learning or not features.requires_grad:  # as behind a frozen backbone
        features = features.detach().requires_grad_()
    logits = features
    with TwiceDifferentiable():
        for one in rest:
            logits = one(logits)
    with gradients_of_features():
        (gradient,) = torch.autograd.grad(evidence_of(logits, targets).sum(), features, create_graph=learning)
    if learning and not gradient.requires_grad:
        raise UsageError(
            f"the {kind} map at stage {stage} does not depend on the weights in a way that can be differentiated "
            "twice; choose an earlier stage."
        )
    return BatchMaps(logits, _at_input(MAPS[kind](features, gradient), model, place, volumes))


def _parted(model: StagedModel, volumes: Tensor, place: int) -> tuple[Tensor, Sequence[nn.Module]]:
    """Features at a boundary, and what follows; see `pipeline.attribution.network_view` for pooling by attention."""
    before, after = model.stages[:place], model.stages[place:]
    if len(before) == 1 and isinstance(before[0], PoolsByAttention):
        features, pooling = before[0].before_pooling(volumes)
        return features, (pooling, *after)
    for one in before:
        volumes = one(volumes)
    return volumes, after


def _at_input(maps: Tensor, model: StagedModel, place: int, volumes: Tensor) -> Tensor:
    """Maps (B, 1, d, h, w) of a boundary on the grid of the volumes, (B, D, H, W)."""
    if place:
        maps = interpolated(maps, placed_layers(split_layers(model, place)[0]), volumes.shape[2:])
    return maps[:, 0]


def _attention(model: StagedModel, volumes: Tensor, place: int, learning: bool) -> BatchMaps:
    """Logits and `attention_map` from one forward pass; on the grid of the input, so that any two networks compare."""
    features, rest = _parted(model, volumes, place)
    if learning and not features.requires_grad:
        raise UsageError(
            f'objective.map = "{ATTENTION}": features at stage {place} do not depend on weights that learn; choose a '
            "later stage (-1: the last with voxels), or another map where a network has none."
        )
    logits = features
    for one in rest:
        logits = one(logits)
    return BatchMaps(logits, _at_input(attention_map(features), model, place, volumes))


def _inherent(
    model: StagedModel, volumes: Tensor, targets: Tensor, place: int, weights_alone: bool, learning: bool
) -> BatchMaps:
    """Contributions ``W(a) a`` of the features, with W as it depends on the weights (`differentiable_weights`).

    Or W(x) alone, at the input.
    """
    try:
        require_dynamic(model, place == 0)
    except UsageError as error:
        if not weights_alone:
            raise
        raise UsageError(
            f'objective.map = "{WEIGHTS}" compares W(x) of two networks that are one linear map for each scan (B-cos, '
            f'CoDA), and this {type(model).__name__} is not one. Set objective.map = "grad-cam".'
        ) from error
    if weights_alone and place:
        raise UsageError(f'objective.map = "{WEIGHTS}" is made at the input; set objective.stage = 0.')
    if any(isinstance(one, _DropoutNd) and one.p > 0 for one in model.modules()):
        raise UsageError(
            "objective.map: this network drops units at random, and its linear map is that of all. Set model.dropout = "
            "0."
        )
    before, after = split_layers(model, place)
    if not place and isinstance(after[0][1], InputEncoding):  # a voxel is its pair
        before, after = after[:1], after[1:]
    features = volumes
    for _, layer in before:
        features = layer(features)
    passes: list[Tensor] = []

    def value(a: Tensor) -> Tensor:
        for _, layer in after:
            a = layer(a)
        passes.append(a)
        return evidence_of(a, targets)

    _, weights = differentiable_weights(model, value, features)
    weights = weights if learning else weights.detach()
    if weights_alone:
        return BatchMaps(passes[0], weights)
    maps = (features * weights).sum(1, keepdim=True)
    if place:
        maps = interpolated(maps, before, volumes.shape[2:])
    return BatchMaps(passes[0], maps[:, 0])


def _evidence(model: StagedModel, volumes: Tensor, targets: Tensor, reference: Tensor, learning: bool) -> BatchMaps:
    """``(x - r) * gradient at r + alpha (x - r)`` with the mean control r: expected gradients (Erion et al. 2021).

    In a step alpha is drawn for each scan, by torch's generator, so that in expectation a map adds up to the evidence
    of the scan less that of r; otherwise it is the mean of `POINTS` midpoints.
    """
    logits, count = model(volumes), len(volumes)
    alphas = [torch.rand(count)] if learning else [torch.full((count,), (n + 0.5) / POINTS) for n in range(POINTS)]
    total = torch.zeros_like(volumes)
    with unmoved(model):
        for alpha in alphas:
            share = alpha.to(volumes).view(-1, 1, 1, 1, 1)
            points = torch.lerp(reference, volumes, share).detach().requires_grad_()
            with TwiceDifferentiable():
                found = model(points)
            with gradients_of_features():
                (gradient,) = torch.autograd.grad(evidence_of(found, targets).sum(), points, create_graph=learning)
            total = total + (volumes - reference) * gradient / len(alphas)
    return BatchMaps(logits, total[:, 0])


@contextmanager
def unmoved(model: nn.Module) -> Iterator[None]:
    """Normalise by the batch without touching running statistics, which are those of the scans themselves."""
    norms = [one for one in model.modules() if isinstance(one, _BatchNorm) and one.training and one.track_running_stats]
    for module in norms:
        module.track_running_stats = False
    try:
        yield
    finally:
        for module in norms:
            module.track_running_stats = True


def evidence_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Logit of each volume's target minus the mean of its others, (B,); of one output, itself."""
    if logits.shape[1] == 1:
        return logits[:, 0]
    of_target = logits.gather(1, targets[:, None])[:, 0]
    return of_target - (logits.sum(1) - of_target) / (logits.shape[1] - 1)


USUAL_WEIGHTS: Mapping[str, float] = {"energy": 30.0, "l1": 100.0, "ppce": 1.0, "rrr": 1e4}
"""Weight of guidance by its loss: those of docs/training_with_explanations.md, with the brain as mask."""


@dataclass(frozen=True)
class MapSettings:
    """Weight, map and stage of ``[objective]``, none of them ``usual``."""

    weight: float
    map: str
    stage: int


def map_settings(config: Config) -> MapSettings:
    """The settings of a run that ``usual`` may stand for.

    Distillation compares what Parchami-Araghi et al. 2024 compare: W(x) at the input where a network is one linear map
    from there on, else Grad-CAM after the last stage with voxels.

    Examples
    --------
    >>> from heatlas.studies.bcos.records import BcosSimpleConfig
    >>> from heatlas.pipeline.run.config.networks import ObjectiveConfig
    >>> taught = ObjectiveConfig(kind="distilled", teacher="run")
    >>> for config in (Config(objective=taught), Config(objective=taught, model=BcosSimpleConfig())):
    ...     map_settings(config)
    MapSettings(weight=1.0, map='grad-cam', stage=-1)
    MapSettings(weight=1.0, map='dynamic-weights', stage=0)
    """
    wanted = config.objective
    weight, shown, stage = wanted.weight, str(wanted.map), wanted.stage
    if weight == "usual":
        weight = USUAL_WEIGHTS[wanted.loss] if wanted.kind == "guided" else 1.0
    if shown == "usual":
        shown = "input-x-gradient"
        if wanted.kind == "distilled":
            shown = "dynamic-weights" if _is_linear_map(config) else "grad-cam"
    if stage == "usual":
        stage = -1 if shown in ("grad-cam", ATTENTION) else 0
    return MapSettings(weight, shown, stage)


def settings_for_key(config: Config) -> ObjectiveConfig:
    """``[objective]`` as a training depends on it: nothing ``usual``, and no place of what is digested."""
    return replace(config.objective, mask="", teacher="", scans="", **vars(map_settings(config)))


def _is_linear_map(config: Config) -> bool:
    """Whether the network is dynamic linear from the input on; probes are where backbone and head are."""
    family = family_of(config.model)
    return family.encoding == "pair" and "inherent" not in family.refused
