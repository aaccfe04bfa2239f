"""The three region metrics of Böhle et al. (2019): sum, density, gain."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.pipeline.cohort.people.persons import name_of_person
from heatlas.pipeline.run.config.settings import GainReference


def density(sums: NDArray[np.float64], n_voxels: NDArray[np.integer]) -> NDArray[np.float64]:
    """Sum per voxel; NaN where there is no voxel.

    Examples
    --------
    >>> density(np.array([6.0, 0.0]), np.array([4, 0])).tolist()
    [1.5, nan]
    """
    result = np.full(np.shape(sums), np.nan)
    np.divide(sums, n_voxels, out=result, where=np.asarray(n_voxels) > 0)
    return result


def gain(sums: NDArray[np.float64], reference: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum relative to the mean sum of controls; NaN where that mean is not positive or not known.

    A ratio to zero or to negative relevance (which beta > 0 can give) has no meaning as "times as much".

    Examples
    --------
    >>> gain(np.array([3.0, 3.0, 3.0]), np.array([2.0, 0.0, -1.0])).tolist()
    [1.5, nan, nan]
    """
    result = np.full(np.shape(sums), np.nan)
    np.divide(sums, reference, out=result, where=np.asarray(reference) > 0)
    return result


def negative_class_reference(table: pd.DataFrame, over: GainReference) -> pd.Series:
    """Mean sum of the negative class in the same test fold: the denominator of gain.

    Only scans of one fold were explained by one network, so only they are on one scale.

    `table`: with ``participant_id``, ``fold``, ``target`` (0 = negative class), ``map``, ``group`` and ``sum``; a row
    per scan, map and group. `over`: mean over participants, each by the mean of their scans, so that a control with
    five scans counts once; or over scans, as in the founding study. Returns aligned with `table`; NaN in a fold without
    such a scan.
    """
    keys = ["fold", "map", "group"]
    controls = table[table["target"] == 0]
    if over == "participants":
        person = controls["participant_id"].map(name_of_person(controls["participant_id"].unique()))
        controls = controls.groupby([*keys, person], sort=False)["sum"].mean().reset_index()
    means = controls.groupby(keys, sort=False)["sum"].mean().rename("reference_sum")
    return table[keys].join(means, on=keys)["reference_sum"]
