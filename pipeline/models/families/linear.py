"""Ridge regression on voxels as a network: one linear layer over the image, smoothed by a fixed Gaussian if wanted.

For classes the layer gives logits (logistic regression). It is solved, not trained (`pipeline.training.exact`), and its
maps are exact: the evidence of a voxel is its weight times its difference from the controls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from heatlas.pipeline.models.families.family import Architecture, Shape, padded_family
from heatlas.pipeline.run.config.networks import ModelConfig
from heatlas.pipeline.run.config.ranges import between

if TYPE_CHECKING:
    from torch import nn

    from heatlas.pipeline.models.contract import StagedModel

TRUNCATE = 4.0
"""Standard deviations after which the Gaussian ends: that of `scipy.ndimage.gaussian_filter`."""
ONE_CHANNEL = (
    "it weights the channels of the last stage with voxels, and this network has none but the image. Its exact map is "
    "that of expected-gradients"
)


@dataclass(frozen=True)
class LinearConfig(ModelConfig):
    """Ridge regression on the voxels, logistic for classes, solved exactly."""

    architecture: Literal["linear"] = "linear"
    fwhm_voxels: Annotated[float, between(0, 64)] = 0.0
    """Full width at half maximum of a Gaussian by which the image is smoothed first, in voxels; 0 for none."""
    step: Annotated[int, between(1, 64)] = 1
    """Every which voxel of the smoothed image counts. A width of 8 mm and a step of 4 mm are those of the baseline
    `voxels`."""

    def checks(self) -> list[tuple[bool, str]]:
        fine = self.step <= max(self.fwhm_voxels, 1)
        return [(fine, "model.step must not be larger than model.fwhm_voxels, or voxels are skipped")]


def linear(shape: Shape, settings: LinearConfig, outputs: int) -> StagedModel:
    """A linear network, of one stage: there are no features between the image and its output."""
    from torch import nn

    from heatlas.pipeline.models.contract import StagedModel

    columns = math.prod(-(-side // settings.step) for side in shape)
    layers = [*_smoothing(settings), nn.Flatten(), nn.Linear(columns, outputs)]
    model = StagedModel([nn.Sequential(*layers)])
    model.architecture = Architecture(settings, shape)
    return model


def _smoothing(settings: LinearConfig) -> list[nn.Module]:
    """A Gaussian along each axis in turn, zero beyond the image, of which every `step`-th voxel is kept; or nothing."""
    import torch
    from torch import nn

    if not settings.fwhm_voxels:
        return []
    sd = settings.fwhm_voxels / math.sqrt(8 * math.log(2))
    radius = int(TRUNCATE * sd + 0.5)
    kernel = torch.exp(-(torch.arange(-radius, radius + 1, dtype=torch.float64) ** 2) / (2 * sd**2))
    layers: list[nn.Module] = []
    for axis in range(3):
        size, stride, padding = (
            _along(axis, value, other) for value, other in ((len(kernel), 1), (settings.step, 1), (radius, 0))
        )
        layer = nn.Conv3d(1, 1, size, stride, padding, bias=False).requires_grad_(False)
        layer.weight.copy_((kernel / kernel.sum()).reshape(layer.weight.shape))
        layers.append(layer)
    return layers


def _along(axis: int, value: int, other: int) -> Shape:
    """A value for one axis, and another for the two others."""
    left, back, top = (value if one == axis else other for one in range(3))
    return left, back, top


def _text(settings: LinearConfig) -> str:
    smoothed = (
        f"of the image smoothed by a Gaussian (full width at half maximum {settings.fwhm_voxels:g} voxels, every "
        f"{settings.step} voxels)"
        if settings.fwhm_voxels
        else "of the image"
    )
    return (
        f"was one linear layer over the voxels {smoothed}, solved as a ridge regression, logistic for classes [@ridge]"
    )


LINEAR = replace(
    padded_family(
        "linear",
        LinearConfig,
        linear,
        lambda settings: settings.step + 1,
        _text,
        refused=dict.fromkeys(
            ("cam", "grad-cam", "grad-cam++", "xgrad-cam", "score-cam", "ablation-cam", "opti-cam"), ONE_CHANNEL
        ),
    ),
    fitted_by="ridge",
)  # fmt: skip
