"""A test between two groups in every voxel, corrected by the largest |t| and by threshold-free cluster enhancement.

The t of `pipeline.statistics.linear.robust` and the permutations of `pipeline.statistics.linear.exchangeability`, as in
every other test. Whole maps of t are made for a few permutations at a time and only their largest values kept, so that
memory does not grow with the number of permutations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.statistics.arrays import Flags, Floats
from pipeline.statistics.images.tfce import enhanced, neighbours_of
from pipeline.statistics.linear.exchangeability import Permutations, p_value
from pipeline.statistics.linear.freedman_lane import NO_SPREAD, LinearModel, largest_by_chance, reached
from pipeline.statistics.linear.robust import RobustModel

CHUNK_BYTES = 48_000_000
"""Of the largest array of a chunk of permutations."""


@dataclass(frozen=True, eq=False)
class VoxelTest:
    """Result for all voxels of a mask; arrays (voxels,), t 0 and p 1 where values do not vary.

    Parameters
    ----------
    t : array
        Signed, studentised.
    tfce : array
        Enhanced t, signed.
    p_fwe, p_fwe_tfce : array
        Two-sided, family-wise over the voxels: by the largest |t|, and the largest |enhanced t|, of each permutation.
    critical : float
        Size of t that p_fwe below alpha takes; infinite where none can have it.
    n_permutations : int
    exact : bool
        Whether these are all that there are.
    """

    t: Floats
    tfce: Floats
    p_fwe: Floats
    p_fwe_tfce: Floats
    critical: float
    n_permutations: int
    exact: bool


def voxel_test(
    values: Floats,
    model: LinearModel,
    permutations: Permutations,
    mask: Flags,
    alpha: float = 0.05,
    chunk_bytes: int = CHUNK_BYTES,
) -> VoxelTest:
    """Test the one tested column of a model in values (people, voxels of the mask).

    Parameters
    ----------
    values : array, shape (people, voxels)
        In the units of the model: people, with folds brought to one spread.
    model : LinearModel
    permutations : Permutations
        Of the people.
    mask : array of bool, shape (X, Y, Z)
        Which voxels of a volume the columns are, in its order.
    alpha : float
    chunk_bytes : int
        The result does not depend on it.
    """
    residuals = values - model.nuisance @ (model.nuisance.T @ values)
    norms = np.linalg.norm(residuals, axis=0)
    varies = norms**2 > NO_SPREAD * np.maximum((values**2).sum(axis=0), np.finfo(float).tiny)
    residuals = (residuals[:, varies] / norms[varies]).astype(np.float32)
    inside = mask.copy()
    inside[mask] = varies
    neighbours = neighbours_of(inside)
    robust = RobustModel(model.tested, model.moving_nuisance, model.df)
    as_observed = np.arange(len(values), dtype=np.int32)[None]
    t = robust.signed(as_observed, residuals)[0].astype(np.float64)
    tfce = enhanced(t, neighbours)
    step = max(1, chunk_bytes // (4 * max(residuals.shape[1], 1)))
    largest, largest_tfce = np.zeros(len(permutations)), np.zeros(len(permutations))
    for start in range(0, len(permutations), step):
        maps = robust.signed(permutations.rows[start : start + step], residuals)
        largest[start : start + step] = np.abs(maps).max(axis=1, initial=0.0)
        for place, one in enumerate(maps):
            largest_tfce[start + place] = np.abs(enhanced(one, neighbours)).max(initial=0.0)
    r_squared = (model.tested[:, 0] @ residuals) ** 2
    found = np.ones((2, len(varies)))
    for row, observed, by_chance in ((0, t, largest), (1, tfce, largest_tfce)):
        threshold = reached(np.abs(observed), r_squared)
        beyond = len(permutations) - np.searchsorted(np.sort(by_chance), threshold, side="left")
        found[row, varies] = p_value(beyond, len(permutations), permutations.exact)
    whole = np.zeros((2, len(varies)))
    whole[:, varies] = t, tfce
    critical = largest_by_chance(largest, alpha, permutations.exact)
    return VoxelTest(*whole, *found, critical, len(permutations), permutations.exact)
