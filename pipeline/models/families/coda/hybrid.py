"""Hybrids: a CoDA head on the frozen first stages of any trained network, explained down to where the stages end.

Source: Böhle 2024, section 5.2.4. The head sees the features of a stage, and its contributions are of these features:
exact, and as coarse as their grid. The deeper the head reaches, the finer it explains; below it nothing is explained.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.models.contract import StagedModel
from pipeline.models.dynamic.logits import LogitLayer, bias_of_chance
from pipeline.models.families.coda.dau import Bound
from pipeline.models.families.coda.network import Layers, SumPool, stack
from pipeline.run.errors import UsageError


class UnitProjection(nn.Module):
    """Fewer channels for each voxel, by weights of norm 1 per channel, so that no answer exceeds the norm of its voxel.

    Parameters
    ----------
    before, after : int
        Channels.
    """

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(after, before))

    @property
    def rows(self) -> Tensor:
        """The weights (after, before), of norm 1."""
        return functional.normalize(self.weight, dim=1)

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv3d(x, self.rows[:, :, None, None, None])


class Frozen(nn.Sequential):
    """Stages that are not trained: weights without gradients, and evaluation mode whatever the network is set to."""

    def __init__(self, stages: Sequence[nn.Module]) -> None:
        super().__init__(*stages)
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> Frozen:
        """Stay in evaluation mode, so that running statistics stay what they are."""
        super().train(False)
        return self


def hybrid(
    trained: StagedModel,
    stages: int,
    layers: Layers,
    outputs: int,
    example: Tensor,
    projection: int = 0,
    bound: Bound = "wb",
    initial_logits: float = 0.5,
) -> StagedModel:
    """A network whose first stage is the frozen stem; the others are trained.

    Stages: the stem, the projection if there is one, one per layer, the last with the sum over voxels and the logits.
    Stage 1 is where contributions are exact. The temperature is set from data before training.

    Parameters
    ----------
    trained : StagedModel
        Of any family; its first stages are shared with the hybrid, not copied.
    stages : int
        How many of them are kept.
    layers : Layers
        Of the head.
    outputs : int
    example : Tensor
        A volume (1, 1, D, H, W), from which the channels of the stem follow.
    projection : int
        Channels that features are projected to first; 0 for no projection.
    bound : {"wb", "sq", "l2"}
    initial_logits : float
        Root mean square of the logits before training.

    Raises
    ------
    UsageError
        For a number of stages that leaves no head to replace or no features with voxels.
    """
    if not 1 <= stages < len(trained.stages):
        raise UsageError(
            f"stages = {stages}: the network has {len(trained.stages)}; keep 1 or more of them, and replace 1 or more."
        )
    stem = Frozen(trained.stages[:stages])
    with torch.no_grad():
        features = stem(example)
    if features.dim() != 5:
        raise UsageError(f"stages = {stages}: stage {stages} gives no features with voxels; keep fewer stages.")
    before = features.shape[1]
    head: list[nn.Module] = [UnitProjection(before, projection)] if projection else []
    *body, last = stack(layers, projection or before, outputs, bound)
    logits = LogitLayer(bias=bias_of_chance(outputs) if outputs > 1 else 0.0, initial_size=initial_logits)
    return StagedModel([stem, *head, *body, nn.Sequential(last, SumPool(), logits)])
