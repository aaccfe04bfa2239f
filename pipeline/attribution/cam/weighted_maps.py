"""Class activation maps weighted by gradients or by the linear head, and Fake-CAM, the control of their metrics.

All sum the feature maps ``A^k`` at a boundary with weights derived from the gradient ``g = dy/dA`` of the score y. With
global average pooling and a linear head right after the boundary g is constant in space, and CAM divided by the number
of voxels, Grad-CAM, XGrad-CAM and HiRes-CAM agree (up to the ReLU). With any other head they differ, and CAM is not
defined. Maps keep the resolution of the boundary and the units of the formula; they are not scaled to [0, 1].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from heatlas.pipeline.attribution.cam.channel_maps import ratio, require_channels, require_nonnegative, weighted_sum
from heatlas.pipeline.attribution.gradient.gradients import score_gradient
from heatlas.pipeline.attribution.network_view import NetworkView
from heatlas.pipeline.models.graph.operations import SpatialMean
from heatlas.pipeline.run.errors import UsageError

TRANSPARENT = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.Flatten)
"""Layers that are the identity in evaluation mode."""
SHOWN = 3
"""Number of layers named in the error message."""


def class_weights(view: NetworkView, method: str) -> Tensor:
    """Row ``W_c`` of the linear head behind the boundary, (K,)."""
    layers = [(name, layer) for name, layer in view.after if not isinstance(layer, TRANSPARENT)]
    if len(layers) == 2:
        (_, first), (_, second) = layers
        if _pools_all(first, view.features.shape[2:]) and isinstance(second, nn.Linear):
            return second.weight[view.target].detach()
        if isinstance(first, nn.Conv3d) and _is_pointwise(first) and _pools_all(second, view.features.shape[2:]):
            return first.weight[view.target].detach().flatten()
    names = ", ".join(f"{name} ({type(layer).__name__})" for name, layer in layers[:SHOWN])
    more = f" and {len(layers) - SHOWN} more" if len(layers) > SHOWN else ""
    raise UsageError(
        f"{method} needs global average pooling and one linear layer right after the boundary, but found "
        f"{names}{more}. Choose the stage right before such a pooling; where there is none, use grad-cam, which "
        "equals CAM up to scale and ReLU for such a head and works for any."
    )


def _pools_all(layer: nn.Module, grid: Sequence[int]) -> bool:
    if isinstance(layer, SpatialMean):
        return True
    if isinstance(layer, nn.AdaptiveAvgPool3d):
        sizes = layer.output_size
        return sizes == 1 or tuple(sizes if isinstance(sizes, tuple | list) else ()) == (1, 1, 1)
    if isinstance(layer, nn.AvgPool3d):
        kernel, padding = layer.kernel_size, layer.padding
        whole = (kernel,) * 3 if isinstance(kernel, int) else tuple(kernel)
        return whole == tuple(grid) and padding in (0, (0, 0, 0)) and layer.divisor_override is None
    return False


def _is_pointwise(layer: nn.Conv3d) -> bool:
    return (
        layer.kernel_size == layer.stride == (1, 1, 1)
        and layer.groups == 1
        and layer.padding in (0, (0, 0, 0), "valid", "same")
    )


SPACE = (2, 3, 4)


def feature_gradient(view: NetworkView) -> Tensor:
    """Gradient of the score with respect to the features, (B, K, d, h, w)."""
    return score_gradient(view.score, view.features)


def grad_cam_weights(gradient: Tensor) -> Tensor:
    """Mean gradient of each channel, (B, K) (Selvaraju et al. 2017, eq. 1)."""
    return gradient.mean(SPACE)


def grad_cam_plus_plus_weights(features: Tensor, gradient: Tensor) -> Tensor:
    """``w_k = sum_i alpha_i relu(g_i)``, ``alpha_i = g_i^2 / (2 g_i^2 + (sum_j A_j) g_i^3)``: (B, K).

    Chattopadhay et al. 2018, eq. 19, for an exponential output over a piecewise linear score; the factor exp(y), one
    positive number per volume that overflows for large logits, is dropped. Only voxels with g > 0 count, where the
    fraction is ``1 / (2 + g sum A)``, which is finite for features (B, K, d, h, w) that are not negative; g = 0 gives
    0.

    >>> import torch
    >>> A = torch.tensor([1.0, 2.0]).view(1, 1, 1, 1, 2)
    >>> g = torch.tensor([2.0, -1.0]).view(1, 1, 1, 1, 2)  # alpha = 4 / (8 + 3 * 8) in the first voxel
    >>> grad_cam_plus_plus_weights(A, g).tolist()
    [[0.25]]
    """
    positive = gradient.relu()
    return (positive / (2 + positive * features.sum(SPACE, keepdim=True))).sum(SPACE)


def xgrad_cam_weights(features: Tensor, gradient: Tensor) -> Tensor:
    """``sum_i A_i g_i / sum_i A_i`` of each channel, 0 for an empty one, (B, K) (Fu et al. 2020, eq. 8).

    >>> import torch
    >>> A = torch.tensor([1.0, 3.0, 0.0, 0.0]).view(1, 2, 1, 1, 2)
    >>> xgrad_cam_weights(A, torch.tensor([4.0, 8.0, 5.0, 5.0]).view(1, 2, 1, 1, 2)).tolist()
    [[7.0, 0.0]]
    """
    return ratio((features * gradient).sum(SPACE), features.sum(SPACE))


def layer_cam_map(features: Tensor, gradient: Tensor) -> Tensor:
    """``relu(sum_k relu(g^k) A^k)``, voxel by voxel, (B, 1, d, h, w) (Jiang et al. 2021, eq. 6)."""
    return (gradient.relu() * features).sum(1, keepdim=True).relu()


def hires_cam_map(features: Tensor, gradient: Tensor) -> Tensor:
    """``sum_k g^k A^k``, voxel by voxel, (B, 1, d, h, w) (Draelos & Carin 2020)."""
    return (gradient * features).sum(1, keepdim=True)


@dataclass(frozen=True)
class Cam:
    """Class activation map (Zhou et al. 2016): channels weighted by the linear head's row of the class; signed.

    Defined for global average pooling and one linear layer right after the boundary, and for the logit. The mean of the
    map is the logit minus its bias.
    """

    name: ClassVar[str] = "cam"

    def require(self, view: NetworkView) -> None:
        require_channels(view, self.name)
        if view.start != "logit":
            raise UsageError(f"{self.name} is defined for start = 'logit' only, not {view.start!r}.")
        class_weights(view, self.name)

    def maps(self, view: NetworkView) -> Tensor:
        self.require(view)
        weights = class_weights(view, self.name)
        return weighted_sum(weights.expand(view.features.shape[:2]), view.features)


@dataclass(frozen=True)
class GradCam:
    """Grad-CAM (Selvaraju et al. 2017): channels weighted by their mean gradient, then ReLU.

    The mean is over space: a channel that matters in one place is highlighted wherever it is active.
    """

    name: ClassVar[str] = "grad-cam"

    def maps(self, view: NetworkView) -> Tensor:
        require_channels(view, self.name)
        return weighted_sum(grad_cam_weights(feature_gradient(view)), view.features).relu()


@dataclass(frozen=True)
class GradCamPlusPlus:
    """Grad-CAM++ (Chattopadhay et al. 2018): positive gradients, weighted down for widely active channels.

    The derivation requires the logit and non-negative features; anything else is refused.
    """

    name: ClassVar[str] = "grad-cam++"

    def maps(self, view: NetworkView) -> Tensor:
        require_channels(view, self.name)
        require_nonnegative(view, self.name)
        if view.start != "logit":
            raise UsageError(f"{self.name}: defined for start = 'logit' only, not {view.start!r}.")
        weights = grad_cam_plus_plus_weights(view.features, feature_gradient(view))
        return weighted_sum(weights, view.features).relu()


@dataclass(frozen=True)
class XGradCam:
    """XGrad-CAM (Fu et al. 2020): gradients averaged with the activation as weight, then ReLU."""

    name: ClassVar[str] = "xgrad-cam"

    def maps(self, view: NetworkView) -> Tensor:
        require_channels(view, self.name)
        require_nonnegative(view, self.name)
        return weighted_sum(xgrad_cam_weights(view.features, feature_gradient(view)), view.features).relu()


@dataclass(frozen=True)
class LayerCam:
    """Layer-CAM (Jiang et al. 2021): features weighted voxel by voxel with their positive gradient.

    Nothing is averaged over space, so it also works at early stages. Maps of several stages can be averaged on the grid
    of the input.
    """

    name: ClassVar[str] = "layer-cam"

    def maps(self, view: NetworkView) -> Tensor:
        return layer_cam_map(view.features, feature_gradient(view))


@dataclass(frozen=True)
class HiResCam:
    """HiRes-CAM (Draelos & Carin 2020): features times gradient, voxel by voxel.

    `relu`: keep only positive values. Otherwise the map is input x gradient at the boundary; with a linear head it sums
    to the logit minus its bias.
    """

    name: ClassVar[str] = "hires-cam"
    relu: bool = True

    def maps(self, view: NetworkView) -> Tensor:
        signed = hires_cam_map(view.features, feature_gradient(view))
        return signed.relu() if self.relu else signed


@dataclass(frozen=True)
class FakeCam:
    """1 everywhere and 0 in the first voxel, whatever the network and the volume.

    A control, not an explanation: a metric that rates it highly cannot distinguish maps. It is made at the boundary
    like any other map, so the zero covers a corner if upsampled from a later stage; use stage 0 for the published map.
    """

    name: ClassVar[str] = "fake-cam"

    def maps(self, view: NetworkView) -> Tensor:
        volumes, _, *grid = view.features.shape
        constant = view.features.new_ones(volumes, 1, *grid)
        constant[:, :, 0, 0, 0] = 0
        return constant
