"""Heads with global average pooling and one linear layer, the only ones that CAM is defined for.

There are two equivalent forms: pooling then linear, or a 1x1x1 convolution then pooling. For both the logit is ``sum_k
W_ck mean(A^k) + b_c``.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from heatlas.pipeline.attribution.network_view import NetworkView
from heatlas.pipeline.models.graph.operations import SpatialMean
from heatlas.pipeline.run.errors import UsageError

TRANSPARENT = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.Flatten)
"""Layers that are the identity in evaluation mode."""
SHOWN = 3
"""Number of layers named in the error message."""


def class_weights(view: NetworkView, method: str) -> Tensor:
    """Row ``W_c`` of the linear head behind the boundary, (K,).

    Raises UsageError if anything other than global average pooling and one linear layer follows; the message names it.
    """
    layers = [(name, layer) for name, layer in view.after if not isinstance(layer, TRANSPARENT)]
    if len(layers) == 2:
        (_, first), (_, second) = layers
        if _pools_all(first, view.features.shape[2:]) and isinstance(second, nn.Linear):
            return second.weight[view.target].detach()
        if isinstance(first, nn.Conv3d) and _is_pointwise(first) and _pools_all(second, view.features.shape[2:]):
            return first.weight[view.target].detach().flatten()
    found = ", ".join(f"{name} ({type(layer).__name__})" for name, layer in layers[:SHOWN])
    more = f" and {len(layers) - SHOWN} more" if len(layers) > SHOWN else ""
    raise UsageError(
        f"{method} needs global average pooling and one linear layer right after the boundary, but found "
        f"{found}{more}. Choose the stage right before such a pooling; where there is none, use grad-cam, which "
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
