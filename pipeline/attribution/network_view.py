"""What a method explains: one output of a network, as a function of the features at a boundary between layers.

Words: the *boundary* splits the network in two, ``rest(pre(volumes)) == model(volumes)``. The *features* (B, C, d, h,
w) are the values at the boundary; at boundary 0 they are the volumes. A method explains the *score* of the target as a
function of the features, so one formula serves the input and every stage (ML-Att; Rao, Böhle & Schiele 2022).

The score is the logit of the target (default), its softmax probability, as in the founding study, or its *evidence*,
which maps relative to a reference explain: for two classes the log odds, for regression the output. LRP is linear in
its start value: a negative logit, as many controls have for the patient class, gives the negative of the map for a
positive one.

Everything is computed in full float32. On NVIDIA cards since Ampere, PyTorch uses TF32 (10-bit mantissa) for float32
convolutions by default, which breaks conservation in the third digit and changes max-pool winners.

A stage that pools by attention (CA-Stream) ends, for a boundary right after it, before its attention, whose query
depends on the volume: there the rest is that of the volume explained.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from heatlas.pipeline.attribution.graph.layers import run_layer
from heatlas.pipeline.models.contract import PoolsByAttention, StagedModel
from heatlas.pipeline.models.graph.tracing import Layers, split_at
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.work.host import on_host

StartValue = Literal["logit", "probability", "evidence"]


def start_values(logits: Tensor, target: int, start: StartValue) -> Tensor:
    """Explained value of the target, one per volume, (B,), of logits (B, K).

    ``evidence`` is the logit minus the mean of all other logits; for a single output, the output itself.

    >>> start_values(torch.tensor([[0.0, -2.0]]), 1, "logit").tolist()
    [-2.0]
    >>> start_values(torch.tensor([[3.0, 3.0]]), 1, "probability").tolist()
    [0.5]
    >>> start_values(torch.tensor([[1.0, 4.0], [2.0, 0.0]]), 1, "evidence").tolist()
    [3.0, -2.0]
    >>> start_values(torch.tensor([[1.0, 4.0, 2.0]]), 1, "evidence").tolist(), start_values(
    ...     torch.tensor([[71.5]]), 0, "evidence").tolist()
    ([2.5], [71.5])
    """
    if logits.dim() != 2:
        raise UsageError(f"the model must give (batch, classes) and gives {tuple(logits.shape)}.")
    if not 0 <= target < logits.shape[1]:
        raise UsageError(f"target {target} does not exist: the model has outputs 0 to {logits.shape[1] - 1}.")
    if start == "logit":
        return logits[:, target]
    if start == "probability":
        if logits.shape[1] == 1:
            raise UsageError("start = 'probability': the softmax of one output is always 1; take 'logit'.")
        return torch.softmax(logits, dim=1)[:, target]
    if start == "evidence":
        others = torch.cat([logits[:, :target], logits[:, target + 1 :]], dim=1)
        return logits[:, target] - others.mean(1) if others.shape[1] else logits[:, target]
    raise UsageError(f"start = {start!r}: allowed are 'logit', 'probability' and 'evidence'.")


def require_explainable(model: nn.Module, volumes: Tensor) -> None:
    """Refuse volumes that the model cannot take or that are not finite."""
    if volumes.dim() != 5 or not len(volumes):
        raise BadInputError(f"volumes must be (batch, channel, D, H, W) and are {tuple(volumes.shape)}.")
    if volumes.dtype not in (torch.float32, torch.float64):
        raise BadInputError(f"volumes are {volumes.dtype}; attribution works in float32 or float64.")
    for name, weights in model.named_parameters():
        if weights.dtype != volumes.dtype or weights.device != volumes.device:
            raise BadInputError(
                f"volumes are {volumes.dtype} on {volumes.device}, but {name} is {weights.dtype} on {weights.device}; "
                "bring both to one precision and device."
            )
    broken = [index for index, volume in enumerate(volumes) if not bool(on_host(torch.isfinite(volume).all()))]
    if broken:
        raise BadInputError(f"volume {broken[0]} of the batch has values that are not finite (NaN or infinity).")


@contextmanager
def exact_float32(device: torch.device) -> Iterator[None]:
    """Context with full float32 precision, deterministic convolutions and no autocast; restored afterwards."""
    matmul = torch.backends.cuda.matmul
    allowed = matmul.allow_tf32
    with (
        torch.backends.cudnn.flags(
            enabled=torch.backends.cudnn.enabled, benchmark=False, deterministic=True, allow_tf32=False
        ),
        torch.autocast(device.type, enabled=False),
    ):
        matmul.allow_tf32 = False
        try:
            yield
        finally:
            matmul.allow_tf32 = allowed


BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(frozen=True)
class NetworkView:
    """One output of a network as a function of the features at a boundary.

    `volumes`: (B, 1, D, H, W). `features`: (B, C, d, h, w), values at the boundary; detached. `start`: value of the
    target that is explained. `before`, `after`: the layers on either side of the boundary, by name; at the input
    nothing is before it. `model`: the whole network, which LRP needs. `stage`: the boundary as requested. `own_score`:
    (B,), the value of the target for the volumes themselves. `pooling`: the stage whose attention is right behind the
    boundary, if there is one.
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
    D, H, W), in its precision and on its device. `stage`: a number of stages (of a `StagedModel`) or children (of an
    `nn.Sequential`), or the name of a layer, meaning right after it.
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
            score = start_values(_run_watched(after, features), target, start)  # refuses a wrong target early
        yield NetworkView(volumes, features, target, start, before, after, model, stage, score, pooling)


def pooling_before(layers: Layers) -> PoolsByAttention | None:
    """The only layer before a boundary, if it pools by attention: the boundary is before its pooling then."""
    alone = layers[0][1] if len(layers) == 1 else None
    return alone if isinstance(alone, PoolsByAttention) else None


def placed_layers(layers: Layers) -> Layers:
    """The layers that make the features of a boundary, without a pooling by attention behind them."""
    pooling = pooling_before(layers)
    return layers if pooling is None else tuple(_open(f"{layers[0][0]}.body", pooling.body))


def require_unchanging(model: nn.Module) -> None:
    """Refuse a model whose forward pass depends on the batch or changes its activations."""
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
