"""What the literature varies: stages (ML-Att), smoothing, and the configuration of LRP. Lists to run through one score.

Source: Rao, Böhle & Schiele 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from torch import nn

from pipeline.attribution.entry import last_spatial_stage
from pipeline.attribution.gradient.gradients import InputTimesGradient
from pipeline.attribution.gradient.integrated_gradients import IntegratedGradients
from pipeline.attribution.gradient.smoothing import SmoothInputTimesGradient, SmoothIntegratedGradients
from pipeline.attribution.lrp.methods import Lrp
from pipeline.attribution.methods import Method
from pipeline.evaluation.grids.grid_scores import Asked

KERNEL_SHARES = (9 / 224, 17 / 224, 33 / 224, 65 / 224, 129 / 224, 257 / 224)
"""Edges of the Gaussians of the literature, as shares of the edge of a cell."""
BETAS = (0.0, 0.25, 0.5, 0.75, 1.0)
GAMMAS = (0.0, 0.001, 0.01, 0.1, 0.25)
STEPS = 20
"""Of integrated gradients."""


@dataclass(frozen=True)
class Depth:
    """A stage of a network, and how deep it lies: 0 is the input, 1 the last stage with places."""

    stage: int
    relative: float


def depths(model: nn.Module) -> tuple[Depth, ...]:
    """Every stage at which a map can be asked for, from the input to the last with a convolution."""
    last = last_spatial_stage(model)
    return tuple(Depth(stage, stage / last if last else 0.0) for stage in range(last + 1))


def at_every_depth(name: str, method: Method, model: nn.Module) -> tuple[Asked, ...]:
    """One method at every stage."""
    return tuple(Asked(name, method, depth.stage) for depth in depths(model))


def smoothing_kernels(edge: int) -> tuple[int, ...]:
    """Odd edges of Gaussians for cells of `edge` voxels.

    Examples
    --------
    >>> smoothing_kernels(96), smoothing_kernels(64)
    ((5, 7, 15, 29, 55, 111), (3, 5, 9, 19, 37, 73))
    """
    sizes = (round(share * edge) for share in KERNEL_SHARES)
    return tuple(dict.fromkeys(size + (size % 2 == 0) for size in sizes))


def smoothing_study(edge: int, steps: int = STEPS) -> tuple[Asked, ...]:
    """IxG and integrated gradients at the input, without smoothing and with every kernel."""
    asked = [
        Asked("input-x-gradient", InputTimesGradient()),
        Asked("integrated-gradients", IntegratedGradients(steps=steps, tolerance=1)),
    ]
    for kernel in smoothing_kernels(edge):
        asked.append(Asked(f"smooth-input-x-gradient kernel={kernel}", SmoothInputTimesGradient(kernel=kernel)))
        smooth = SmoothIntegratedGradients(steps=steps, tolerance=1, kernel=kernel)
        asked.append(Asked(f"smooth-integrated-gradients kernel={kernel}", smooth))
    return tuple(asked)


def lrp_study(
    stage: int | str = 0, betas: Sequence[float] = BETAS, gammas: Sequence[float] = GAMMAS
) -> tuple[Asked, ...]:
    """Configurations of LRP: the β-rule everywhere, *focus* (ε, z+, zB), and *composite* (ε, γ, zB).

    The bounds of zB are [0, 1] in the brain and 0 outside it, voxel by voxel. γ = 0 is LRP-0 on convolutions, and γ to
    infinity approaches *focus*.
    """
    return (
        *(Asked(f"lrp beta={beta:g}", Lrp(beta=beta), stage) for beta in betas),
        Asked("lrp focus", Lrp(rules="focus"), stage),
        *(Asked(f"lrp composite gamma={gamma:g}", Lrp(rules="composite", gamma=gamma), stage) for gamma in gammas),
    )


def spearman_matrix(scores: pd.DataFrame, setting: str) -> pd.DataFrame:
    """Rank correlation of the shares of every two methods and stages over the same grids.

    Parameters
    ----------
    scores : pandas.DataFrame
        Of `pipeline.evaluation.grids.grid_scores.grid_scores`; the share of undefined maps counts as 0.
    setting : {"GridPG", "DiFull", "DiPart"}

    Returns
    -------
    pandas.DataFrame
        Rows and columns are (method, stage) in the order of the table; NaN where a method has the same share on all
        grids.
    """
    own = scores[(scores["setting"] == setting) & scores["grid"].notna()]
    wide = own.assign(share=own["share"].fillna(0)).pivot_table(
        index="grid", columns=["method", "stage"], values="share", sort=False
    )
    return wide.corr(method="spearman")
