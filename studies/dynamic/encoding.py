"""How a volume enters a dynamic linear network: each intensity v as the pair [v, 1 - v].

The output of such a network is bounded by the norm of its input, so dark voxels could say nothing if they entered as
v alone. The pair has a norm of at least 0.707 for every intensity, and its direction says which intensity it was.
Source: Böhle, Fritz & Schiele 2021 (for colours); here for one sequence, or several as [v ..., 1 - v ...].
"""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from heatlas.pipeline.run.errors import BadInputError, UsageError

Background = Literal["null", "dark"]


class InputEncoding(nn.Module):
    """Encode volumes (B, k, D, H, W) in [0, 1] as pairs (B, 2k, D, H, W); the first stage of a network.

    `background`: what an intensity of exactly 0, as everywhere outside the brain mask, becomes. ``null``: [0, 0], which
    contributes exactly nothing. ``dark``: [0, 1], as in the source, a constant and fully reliable signal. Raises
    UsageError for another background.
    """

    keeps_places: ClassVar[bool] = True

    def __init__(self, background: Background = "null") -> None:
        super().__init__()
        if background not in get_args(Background):
            raise UsageError(f"background = {background!r}: allowed are {', '.join(get_args(Background))}.")
        self.background = background

    def forward(self, volumes: Tensor) -> Tensor:
        """The pairs.

        In training mode intensities are clipped to [0, 1], which augmentation by noise or a bias field may leave.

        Raises BadInputError in evaluation mode, if an intensity lies outside [0, 1] or is not finite.
        """
        if self.training:
            volumes = volumes.clamp(0, 1)
        elif not volumes.is_meta:  # shapes without values
            _require_unit_range(volumes)
        pairs = torch.cat([volumes, 1 - volumes], dim=1)
        if self.background == "dark":
            return pairs
        inside = (volumes > 0).to(volumes.dtype)
        return pairs * torch.cat([inside, inside], dim=1)

    def extra_repr(self) -> str:
        return f"background={self.background}"


def _require_unit_range(volumes: Tensor) -> None:
    low, high = map(float, torch.aminmax(volumes.detach()))
    if not 0 <= low <= high <= 1:
        raise BadInputError(
            f"the network takes intensities from 0 to 1, and these lie between {low:g} and {high:g}. Scale the volume "
            "inside its brain mask, as heatlas.pipeline.models.inputs does; z-scores and added noise go beyond."
        )


def decoded(pairs: Tensor) -> Tensor:
    """Intensities (B, k, ...) that pairs (B, 2k, ...), or weights on pairs, point at; 0 where neither is positive.

    ``v = p+ / (p+ + q+)`` of a pair [p, q], + being the positive part.

    Examples
    --------
    >>> decoded(torch.tensor([[0.6, -1.0], [0.2, -1.0]]).T[:, :, None]).flatten().tolist()
    [0.75, 0.0]
    """
    first, second = pairs.clamp(min=0).chunk(2, dim=1)
    total = first + second
    return torch.where(total > 0, first / total.clamp(min=torch.finfo(pairs.dtype).tiny), torch.zeros_like(total))
