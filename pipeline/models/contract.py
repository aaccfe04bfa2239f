"""What attribution may know of a network: an ordered list of stages, and nothing else.

Words: a *stage* is one module of the ordered list; its output is the only input of the next one. ``pre(model, x, l)``
is the output of the first `l` stages, ``rest(model, a, l)`` the remaining ones, so that
``rest(model, pre(model, x, l), l) == model(x)`` for every `l` from 0 to the number of stages. A *layer* is a module
that does one operation (a convolution, a ReLU); a stage is a layer or an `nn.Sequential` of layers or stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from pipeline.models.families.family import Architecture


class StagedModel(nn.Module):
    """A network that is the composition of its stages.

    Parameters
    ----------
    stages : sequence of nn.Module
        Applied in order. No module may appear twice, so that a hook on a module means one place of the network,
        and none may work in place, so that the activation a hook saw stays what it was.

    Raises
    ------
    ValueError
        If there is no stage, a module is shared between places, or a module works in place.

    Attributes
    ----------
    architecture : Architecture or None
        Family, settings and grid that it was built from; None for a network of no family, which cannot be stored.
    """

    architecture: Architecture | None = None

    def __init__(self, stages: Sequence[nn.Module]) -> None:
        super().__init__()
        _require_hookable(stages)
        self._stages = nn.ModuleList(stages)

    @property
    def stages(self) -> Sequence[nn.Module]:
        """The stages, first to last."""
        return tuple(self._stages)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of a batch of volumes, shape (B, classes)."""
        return rest(self, x, 0)


def pre(model: StagedModel, x: torch.Tensor, l: int) -> torch.Tensor:  # noqa: E741
    """Output of the first `l` stages; `x` itself for ``l = 0``."""
    return _apply(model.stages[: _checked(model, l)], x)


def rest(model: StagedModel, a: torch.Tensor, l: int) -> torch.Tensor:  # noqa: E741
    """The stages from number `l` on (counted from 0), applied to `a`, an output of ``pre(model, x, l)``."""
    return _apply(model.stages[_checked(model, l) :], a)


def layers(model: StagedModel) -> Iterator[nn.Module]:
    """The layers in the order of computation, with every `nn.Sequential` opened."""
    for stage in model.stages:
        yield from _open(stage)


def _open(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, nn.Sequential):
        for child in module:
            yield from _open(child)
    else:
        yield module


def _apply(stages: Sequence[nn.Module], a: torch.Tensor) -> torch.Tensor:
    for stage in stages:
        a = stage(a)
    return a


def _checked(model: StagedModel, l: int) -> int:  # noqa: E741
    if not 0 <= l <= len(model.stages):
        raise ValueError(f"stage boundary {l} does not exist: the model has {len(model.stages)} stages (0..n).")
    return l


def _require_hookable(stages: Sequence[nn.Module]) -> None:
    if not stages:
        raise ValueError("a staged model needs at least one stage.")
    seen: set[int] = set()
    for number, stage in enumerate(stages):
        for name, module in stage.named_modules(remove_duplicate=False):
            where = f"stage {number}{'.' + name if name else ''} ({type(module).__name__})"
            if id(module) in seen:
                raise ValueError(f"{where} is used twice; give every place of the network a module of its own.")
            if getattr(module, "inplace", False):
                raise ValueError(f"{where} works in place; create it with inplace=False.")
            seen.add(id(module))
