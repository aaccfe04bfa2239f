"""Result of an attribution method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from heatlas.pipeline.attribution.lrp.ledger import Ledger


@dataclass(frozen=True)
class Attribution:
    """Maps of a batch of volumes.

    Parameters
    ----------
    values : Tensor
        (B, 1, D, H, W), one value per input voxel, on the grid of the input.
    method : str
        Its name in the registry.
    target : int
        Explained output unit.
    start_value : Tensor
        (B,), the explained value of the target: its logit, its softmax probability or its evidence.
    parameters : mapping
        Settings of the method.
    ledger : Ledger or None
        Where relevance went; None for methods that are not conservative.
    reference_value : Tensor or None
        (B,), the same value of the reference, for methods relative to controls, whose maps add up to ``start_value``
        minus this; None for all others.
    errors : Tensor or None
        (B, 1, D, H, W), standard errors of regions, shared out over their voxels as `values` are; None for a method
        that draws nothing at random.
    sampling_error : Tensor or None
        (B,), what the sum of the points that were drawn missed before a control variate made it add up; None for a
        method that draws no points.
    sign : Tensor or None
        (B,), of relevance: -1 where the map as a whole is turned, so that negative values speak for the target; see
        `pipeline.attribution.lrp.rules`. None where positive values always do, and for the mean of several
        networks.
    members : Tensor or None
        (M, B, 1, D, H, W), the maps of the members of an ensemble, of methods relative to controls; None for all
        others.
    channels : Tensor or None
        (B, C, D, H, W), the map of each channel of the input, of which `values` are the sum; None for an input of one
        channel, and a method that makes one map for all channels.
    """

    values: Tensor
    method: str
    target: int
    start_value: Tensor
    parameters: Mapping[str, str | float]
    ledger: Ledger | None = None
    reference_value: Tensor | None = None
    errors: Tensor | None = None
    sampling_error: Tensor | None = None
    sign: Tensor | None = None
    members: Tensor | None = None
    channels: Tensor | None = None

    @property
    def speaking_for(self) -> Tensor:
        """The map, positive where it speaks for the target."""
        return self.values if self.sign is None else self.values * self.sign.view(-1, 1, 1, 1, 1)
