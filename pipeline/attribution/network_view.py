"""What a method explains: one output of a network, as a function of the features at a boundary between layers.

Words: the *boundary* splits the network in two, ``rest(pre(volumes)) == model(volumes)``. The *features* (B, C, d, h,
w) are the values at the boundary; at boundary 0 they are the volumes. A method explains the *score* of the target as a
function of the features, so one formula serves the input and every stage (ML-Att; Rao, Böhle & Schiele 2022).

A stage that pools by attention (CA-Stream) ends, for a boundary right after it, before its attention, whose query
depends on the volume: there the rest is that of the volume explained.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heatlas.pipeline.attribution.graph.linear_maps import run_layer
from heatlas.pipeline.attribution.numerics import exact_float32
from heatlas.pipeline.attribution.targets import StartValue, require_explainable, start_values
from heatlas.pipeline.models.contract import PoolsByAttention, StagedModel
from heatlas.pipeline.models.graph.tracing import Layers, split_at
from heatlas.pipeline.run.errors import UsageError

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(frozen=True)
class NetworkView:
    """One output of a network as a function of the features at a boundary.

    `volumes`: (B, 1, D, H, W). `features`: (B, C, d, h, w), values at the boundary; detached. `target`: output unit.
    `start`: value of the target that is explained. `before`, `after`: the layers on either side of the boundary, by
    name. `before` is empty at the input. `model`: the whole network, which LRP needs. `stage`: the boundary as
    requested. `own_score`: (B,), the value of the target for the volumes themselves. `pooling`: the stage whose
    attention is right behind the boundary; None for all other boundaries.
    """

    volumes: Tensor
    features: Tensor
    target: int
    start: StartValue
    before: Layers
    after: Layers
    model: nn.Module
    stage: int | str
    own_score: Tensor
    pooling: PoolsByAttention | None = None

    def pre(self, volumes: Tensor) -> Tensor:
        """Features of any volumes."""
        return _run(self.before, volumes)

    def rest(self, features: Tensor) -> Tensor:
        """Logits (B, K) of any features; differentiable."""
        return _run(self.after, features)

    def score(self, features: Tensor) -> Tensor:
        """Value of the target, (B,), of any features; differentiable."""
        return start_values(self.rest(features), self.target, self.start)

    def score_of(self, volumes: Tensor) -> Tensor:
        """Value of the target, (B,), of any volumes; differentiable."""
        if self.pooling is not None:  # the rest has the query of the volume explained
            return start_values(self.model(volumes), self.target, self.start)
        return self.score(self.pre(volumes))

    @property
    def at_input(self) -> bool:
        return not self.before


@contextmanager
def explaining(
    model: nn.Module, volumes: Tensor, target: int, stage: int | str = 0, start: StartValue = "logit"
) -> Iterator[NetworkView]:
    """Open a network at a boundary: exact float32, deterministic, restored afterwards.

    `model`: in evaluation mode. Boundaries other than 0 need a `StagedModel` or an `nn.Sequential`. `volumes`: (B, 1,
    D, H, W), in the precision and on the device of the model. `target`: output unit. `stage`: boundary: a number of
    stages (of a `StagedModel`) or children (of an `nn.Sequential`), or the name of a layer, meaning right after it.
    Raises UsageError for a boundary or target that does not exist, or a layer that is in training mode or works in
    place. Raises BadInputError for volumes that do not fit the model or are not finite.
    """
    require_unchanging(model)
    require_explainable(model, volumes)
    before, after = split_layers(model, stage)
    pooling = pooling_before(before)
    if pooling is not None and len(volumes) != 1:
        raise UsageError(f"stage {stage!r} pools by an attention of its own for each volume; explain one at a time.")
    with exact_float32(volumes.device):
        with torch.no_grad():
            if pooling is not None:
                after = ((f"{before[0][0]}.attention", pooling.before_pooling(volumes)[1]), *after)
                before = placed_layers(before)
            features = _run_watched(before, volumes).detach()
            own = start_values(_run_watched(after, features), target, start)  # refuses a wrong target early
        yield NetworkView(volumes, features, target, start, before, after, model, stage, own, pooling)


def pooling_before(layers: Layers) -> PoolsByAttention | None:
    """The only layer before a boundary, if it pools by attention: the boundary is before its pooling then."""
    alone = layers[0][1] if len(layers) == 1 else None
    return alone if isinstance(alone, PoolsByAttention) else None


def placed_layers(layers: Layers) -> Layers:
    """The layers that make the features of a boundary, without a pooling by attention behind them."""
    pooling = pooling_before(layers)
    return layers if pooling is None else tuple(_open(f"{layers[0][0]}.body", pooling.body))


def require_unchanging(model: nn.Module) -> None:
    """Refuse a model whose forward pass depends on the batch or changes its own activations.

    Raises UsageError, naming the first module in training mode, working in place, or normalising by the current batch.
    """
    for name, module in model.named_modules():
        where = f"layer {name or 'model'} ({type(module).__name__})"
        if module.training:
            raise UsageError(f"{where} is in training mode; call model.eval() first.")
        if getattr(module, "inplace", False):
            raise UsageError(f"{where} works in place; create it with inplace=False.")
        if isinstance(module, BATCH_NORMS) and module.running_mean is None:
            raise UsageError(
                f"{where} keeps no running statistics, so maps would depend on the batch; create it with "
                "track_running_stats=True."
            )


def open_parts(model: nn.Module) -> Layers:
    """Layers of a `StagedModel` or `nn.Sequential` in order, by name; any other module is one part."""
    return tuple(_open("", model))


def split_layers(model: nn.Module, stage: int | str) -> tuple[Layers, Layers]:
    """The layers before and after a boundary; see `explaining`."""
    parts = open_parts(model)
    if isinstance(stage, str):
        ends = [place for place, (name, _) in enumerate(parts, 1) if name == stage or name.startswith(stage + ".")]
        if not ends:  # a layer inside of a part
            return split_at(model, stage)
        place = ends[-1]
    elif stage == 0:
        place = 0
    else:
        children = _children(model)
        if not 0 < stage < len(children):
            raise UsageError(f"stage {stage} does not exist: {type(model).__name__} has {len(children)} stages.")
        place = sum(len(open_parts(child)) for child in children[:stage])
    if place == len(parts):
        raise UsageError(f"stage {stage!r} is the output itself; name an earlier layer.")
    return parts[:place], parts[place:]


def _children(model: nn.Module) -> list[nn.Module]:
    """Stages or children counted by a numbered boundary, with repetitions; empty if there are none."""
    if isinstance(model, StagedModel) and type(model).forward is StagedModel.forward:
        return list(model.stages)
    if isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward:
        return list(model)
    return []


def _open(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    children = _children(module)
    if not children:
        yield name or "model", module
        return
    keys = module._modules if isinstance(module, nn.Sequential) else [f"stages.{n}" for n in range(len(children))]
    for key, child in zip(keys, children, strict=True):
        yield from _open(f"{name}.{key}" if name else key, child)


def _run(layers: Layers, a: Tensor) -> Tensor:
    for _, layer in layers:
        a = run_layer(layer, a)
    return a


def _run_watched(layers: Layers, a: Tensor) -> Tensor:
    """Like `_run`, but refuses a layer that overwrites its input, which would change what is explained."""
    for name, layer in layers:
        version = None if a.is_inference() else a._version
        after = layer(a)
        if version is not None and a._version != version:
            raise UsageError(
                f"layer {name} ({type(layer).__name__}) changes its input in place, here the explained volumes or "
                "features; let it work on a copy."
            )
        a = after
    return a
