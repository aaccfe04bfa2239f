"""An ensemble: networks of one family that learned the same fold from different seeds, as one network.

Its output is the mean of its members' *logits* (not of their probabilities), so that everything that is linear in the
logits is the mean over members: the evidence of a scan, and every map that adds up to it. From outside it is a network
like any other, of one stage; methods that look into a network look into each member (`pipeline.attribution.methods`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from heatlas.pipeline.models.contract import StagedModel


class MeanOfNetworks(nn.Module):
    """The mean of what several networks answer."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([network(x) for network in self.networks]).mean(0)


class Ensemble(StagedModel):
    """Networks of the same architecture, whose logits are averaged.

    `members`: at least two.
    """

    def __init__(self, members: Sequence[StagedModel]) -> None:
        super().__init__([MeanOfNetworks(members)])
        self.architecture = members[0].architecture


def members_of(model: nn.Module) -> tuple[nn.Module, ...]:
    """The members of an ensemble; any other network alone."""
    return tuple(model.stages[0].networks) if isinstance(model, Ensemble) else (model,)  # type: ignore[arg-type]


def ensemble_of(members: Sequence[StagedModel]) -> StagedModel:
    """The ensemble of some networks; of one, that network."""
    return members[0] if len(members) == 1 else Ensemble(members)
