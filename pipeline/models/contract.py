"""What attribution may know of a network: an ordered list of stages, and nothing else.

Words: a *stage* is one module of the ordered list; its output is the only input of the next one. A *layer* is a module
that does one operation (a convolution, a ReLU); a stage is a layer or an `nn.Sequential` of layers or stages.
`pipeline.attribution.network_view` looks at a network from the boundary between two of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import nn

from heatlas.pipeline.models.families.family import Architecture


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
    monai_names : mapping of str to str
        Of a network of MONAI, its names of weights by ours.
    """

    architecture: Architecture | None = None
    monai_names: Mapping[str, str] = MappingProxyType({})

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
        for stage in self.stages:
            x = stage(x)
        return x


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
