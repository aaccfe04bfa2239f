"""Three methods as functions, deprecated: `heatlas.explain` takes the name of any method, and its settings."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal

from torch import nn

from heatlas.pipeline.explaining.any_network import explain
from heatlas.pipeline.explaining.explained_image import Explained
from heatlas.pipeline.explaining.given_images import Image


def lrp(
    network: nn.Module,
    image: Image,
    *,
    rules: Literal["founding", "focus", "composite"] = "founding",
    beta: float = 0.0,
    batch_norm: Literal["auto", "fold", "identity"] = "auto",
    **options: Any,
) -> Explained:
    """Layer-wise relevance propagation.

    .. deprecated:: 0.1.0
        Use ``heatlas.explain(network, image, method="lrp", settings={...})``.

    Parameters
    ----------
    network, image
        As of `heatlas.explain`.
    rules : {"founding", "focus", "composite"}
        The β-rule everywhere, or a composite of rules; see `pipeline.attribution.lrp.composites`.
    beta : float
        Of the β-rule.
    batch_norm : {"auto", "fold", "identity"}
        Folded into the convolution before it, or passed; "auto", as in a run, folds where the network allows it.
    **options
        ``target``, ``stage``, ``start``, ``others`` and the rest of `heatlas.explain`.

    Returns
    -------
    Explained
        With the ledger of what each layer passed on and lost.

    Examples
    --------
    >>> import torch
    >>> network = nn.Sequential(nn.Conv3d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(2, 2))
    >>> lrp(network, torch.rand(8, 9, 10), beta=0.5).map.shape
    (8, 9, 10)
    """
    return _explain(network, image, "lrp", {"rules": rules, "beta": beta, "batch_norm": batch_norm}, options)


def deeplift(
    network: nn.Module,
    image: Image,
    reference: Sequence[Image],
    *,
    compare: Literal["mean", "each"] = "mean",
    **options: Any,
) -> Explained:
    """DeepLIFT by the rescale rule, relative to images of controls.

    .. deprecated:: 0.1.0
        Use ``heatlas.explain(network, image, method="deeplift", settings={...})``.

    Parameters
    ----------
    network, image, reference
        As of `heatlas.explain`.
    compare : {"mean", "each"}
        With the mean of the controls, or with each of them, of whose maps it takes the mean.
    **options
        ``target``, ``stage``, ``start``, ``others`` and the rest of `heatlas.explain`.

    Returns
    -------
    Explained
        The map adds up to ``value - reference_value``.

    Examples
    --------
    >>> import torch
    >>> network = nn.Sequential(nn.Conv3d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(2, 2))
    >>> abs(deeplift(network, torch.rand(8, 9, 10), [torch.rand(8, 9, 10)]).missing) < 1e-6
    True
    """
    return _explain(network, image, "deeplift", {"compare": compare}, {**options, "reference": reference})


def expected_gradients(
    network: nn.Module,
    image: Image,
    reference: Sequence[Image],
    *,
    alphas: int = 8,
    seed: int = 0,
    **options: Any,
) -> Explained:
    """Expected gradients, relative to images of controls.

    .. deprecated:: 0.1.0
        Use ``heatlas.explain(network, image, method="expected-gradients", settings={...})``.

    Parameters
    ----------
    network, image, reference
        As of `heatlas.explain`.
    alphas : int
        Points on the way from each control; one forward and backward pass each.
    seed : int
        Of the points.
    **options
        ``target``, ``stage``, ``start``, ``others`` and the rest of `heatlas.explain`.

    Returns
    -------
    Explained
        The map adds up to ``value - reference_value``.

    Examples
    --------
    >>> import torch
    >>> network = nn.Sequential(nn.Conv3d(1, 2, 3), nn.Tanh(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(2, 2))
    >>> abs(expected_gradients(network, torch.rand(8, 9, 10), [torch.rand(8, 9, 10)]).missing) < 1e-5
    True
    """
    settings = {"alphas": alphas, "seed": seed}
    return _explain(network, image, "expected-gradients", settings, {**options, "reference": reference})


def _explain(
    network: nn.Module, image: Image, method: str, named: dict[str, Any], options: dict[str, Any]
) -> Explained:
    """What the function names, over further settings of the method."""
    warnings.warn(
        f'heatlas.{method.replace("-", "_")} will be removed; use heatlas.explain(network, image, method="{method}", '
        "settings={...}).",
        DeprecationWarning,
        stacklevel=3,
    )
    return explain(network, image, method, settings={**(options.pop("settings", None) or {}), **named}, **options)
