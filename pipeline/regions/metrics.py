"""The three region metrics of Böhle et al. (2019): sum, density, gain."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray


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


def negative_class_reference(table: pd.DataFrame) -> pd.Series:
    """Mean sum over the scans of the negative class in the same test fold: the denominator of gain.

    Only scans of one fold were explained by one network, so only they are on one scale.

    Parameters
    ----------
    table : pandas.DataFrame
        With ``fold``, ``target`` (0 = negative class), ``map``, ``group`` and ``sum``; a row per scan, map and group.

    Returns
    -------
    pandas.Series
        Aligned with `table`; NaN in a fold without such a scan.
    """
    keys = ["fold", "map", "group"]
    means = table[table["target"] == 0].groupby(keys, sort=False)["sum"].mean().rename("reference_sum")
    return table[keys].join(means, on=keys)["reference_sum"]
