"""From a model to a plan: which layer does what, decided and refused before any work starts.

A *plan* is the model's layers in order of computation, grouped into *steps*. A step ends where relevance has to be
shared out: at a layer with weights, together with what follows it (normalisation, ReLU, dropout, and a max-pooling if
one comes next), or at a max-pooling without such a layer. Layers that give relevance through one to one need no step.
What the plan does not know it refuses by name; nothing is approximated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor, nn

from pipeline.attribution.batch_norm import folded_weight
from pipeline.attribution.linear_maps import Convolution, FullyConnected, LinearMap
from pipeline.attribution.pooling import MaxPool
from pipeline.models.contract import StagedModel
from pipeline.run.errors import UsageError

BatchNormMode = Literal["fold", "identity"]

PASSED = (nn.ReLU, nn.Dropout, nn.Dropout3d, nn.Identity, nn.Flatten)
"""Layers that relevance passes unchanged (a flattening only changes its shape)."""
MODAL = (nn.Dropout, nn.Dropout3d, nn.BatchNorm3d)
"""Layers that do something else in training mode."""
KNOWN = (nn.Conv3d, nn.Linear, nn.BatchNorm3d, nn.MaxPool3d, *PASSED)


class Layer(NamedTuple):
    """A module that does one operation, and its name in the model."""

    name: str
    module: nn.Module


@dataclass(frozen=True)
class Step:
    """A stretch of the network that shares relevance out at one place.

    Parameters
    ----------
    name : str
        Of the layer with weights; of the max-pooling, or of the first layer passed, where there is none.
    layers : tuple of Layer
        What the forward pass does, before the pooling.
    linear : LinearMap or None
    weight : Tensor or None
        Effective weights, batch normalisation folded in if so planned.
    pool : MaxPool or None
        Max-pooling at the end of the step.
    """

    name: str
    layers: tuple[Layer, ...]
    linear: LinearMap | None
    weight: Tensor | None
    pool: MaxPool | None


def open_layers(model: nn.Module) -> tuple[Layer, ...]:
    """Layers of a model in the order of computation, each checked to be one that attribution knows.

    Parameters
    ----------
    model : StagedModel or nn.Sequential

    Raises
    ------
    UsageError
        For a model without a known order of layers, an unknown layer or layer option, or a layer in training mode;
        the message names it.
    """
    layers = tuple(_open("", model))
    for layer in layers:
        _require_known(layer)
    return layers


def plan_relevance(model: nn.Module, batch_norm: BatchNormMode) -> tuple[Step, ...]:
    """Plan LRP through a model.

    Parameters
    ----------
    model : StagedModel or nn.Sequential
        Ends in a layer with weights that gives logits.
    batch_norm : {"fold", "identity"}

    Raises
    ------
    UsageError
        As `open_layers`, and where folding is asked for but a batch normalisation does not follow a convolution.
    """
    if batch_norm not in ("fold", "identity"):
        raise UsageError(f"batch_norm = {batch_norm!r}: allowed are 'fold' and 'identity'.")
    steps: list[Step] = []
    stretch: list[Layer] = []
    for layer in open_layers(model):
        if isinstance(layer.module, nn.Conv3d | nn.Linear) and stretch:
            steps.append(_step(stretch, None, batch_norm))
            stretch = []
        if isinstance(layer.module, nn.MaxPool3d):
            steps.append(_step([*stretch, layer], _max_pool(layer.module), batch_norm))
            stretch = []
        else:
            stretch.append(layer)
    if stretch:
        steps.append(_step(stretch, None, batch_norm))
    return tuple(steps)


def _step(stretch: Sequence[Layer], pool: MaxPool | None, batch_norm: BatchNormMode) -> Step:
    """One step of layers that start with the one with weights, if there is one, and end with the pool, if any."""
    first, layers = stretch[0], tuple(stretch if pool is None else stretch[:-1])
    weight: Tensor | None = None
    linear: LinearMap | None = None
    if isinstance(first.module, nn.Conv3d):
        linear, weight = _convolution(first.module), first.module.weight.detach()
    elif isinstance(first.module, nn.Linear):
        linear, weight = FullyConnected(), first.module.weight.detach()
    if batch_norm == "fold":
        norm = _norm_to_fold(stretch)
        weight = weight if norm is None or weight is None else folded_weight(weight, norm).detach()
    return Step(first.name if linear or pool is None else stretch[-1].name, layers, linear, weight, pool)


def _norm_to_fold(stretch: Sequence[Layer]) -> nn.BatchNorm3d | None:
    """The normalisation right after the convolution that a stretch begins with; any other is refused."""
    found = None
    for place, (name, module) in enumerate(stretch):
        if isinstance(module, nn.BatchNorm3d):
            if place != 1 or not isinstance(stretch[0].module, nn.Conv3d):
                raise UsageError(
                    f"layer {name} (BatchNorm3d) does not follow a Conv3d directly and cannot be folded into one; use "
                    "batch_norm = 'identity', or put the normalisation between convolution and ReLU."
                )
            found = module
    return found


def _open(name: str, module: nn.Module) -> Iterator[Layer]:
    if isinstance(module, StagedModel):
        _require_own_forward(name, module, StagedModel)
        children = [(f"stages.{number}", stage) for number, stage in enumerate(module.stages)]
    elif isinstance(module, nn.Sequential):
        _require_own_forward(name, module, nn.Sequential)
        children = list(module.named_children())
        if len(children) != len(module):  # named_children() skips repetitions
            children = [(str(number), child) for number, child in enumerate(module)]
    else:
        yield Layer(name or "model", module)
        return
    for child_name, child in children:
        yield from _open(f"{name}.{child_name}" if name else child_name, child)


def _require_own_forward(name: str, module: nn.Module, base: type[nn.Module]) -> None:
    if type(module).forward is not base.forward:
        raise UsageError(
            f"{name or 'model'} ({type(module).__name__}) has a forward of its own, so the order of its layers is not "
            f"known; make it a plain {base.__name__}, the composition of its parts in order."
        )


def _require_known(layer: Layer) -> None:
    """Refuse what the steps would get wrong."""
    name, module = layer
    kind = next((kind for kind in KNOWN if isinstance(module, kind)), None)
    if kind is None or type(module).forward is not kind.forward:
        raise UsageError(
            f"layer {name} ({type(module).__name__}) is not supported by attribution; known are "
            f"{', '.join(kind.__name__ for kind in KNOWN)} inside Sequential or stages."
        )
    if module.training and isinstance(module, MODAL):
        raise UsageError(f"layer {name} ({type(module).__name__}) is in training mode; call model.eval() first.")
    problem = _unsupported_option(module)
    if problem:
        raise UsageError(f"layer {name} ({type(module).__name__}): {problem}.")


def _unsupported_option(module: nn.Module) -> str:
    if isinstance(module, nn.Conv3d):
        if module.padding_mode != "zeros":
            return f"padding_mode {module.padding_mode!r} is not supported; use 'zeros'"
        if module.padding == "same" and any(
            dilation * (size - 1) % 2 for dilation, size in zip(module.dilation, module.kernel_size, strict=True)
        ):
            return "padding 'same' of an even kernel is not symmetric and not supported; use an odd kernel"
    if isinstance(module, nn.BatchNorm3d) and module.running_mean is None:
        return "has no running statistics and normalises by the batch; train it with track_running_stats=True"
    if isinstance(module, nn.MaxPool3d) and module.return_indices:
        return "return_indices=True is not supported; create it without"
    if isinstance(module, nn.Flatten) and (module.start_dim != 1 or module.end_dim != -1):
        return "must flatten everything but the batch (start_dim=1, end_dim=-1)"
    return ""


def _convolution(module: nn.Conv3d) -> Convolution:
    padding = module.padding
    if padding == "same":
        padding = tuple(d * (k - 1) // 2 for d, k in zip(module.dilation, module.kernel_size, strict=True))
    elif isinstance(padding, str):
        padding = (0, 0, 0)
    return Convolution(module.stride, padding, module.dilation, module.groups)


def _max_pool(module: nn.MaxPool3d) -> MaxPool:
    return MaxPool(
        _triple(module.kernel_size),
        _triple(module.stride),
        _triple(module.padding),
        _triple(module.dilation),
        module.ceil_mode,
    )


def _triple(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value,) * 3 if isinstance(value, int) else tuple(value)
