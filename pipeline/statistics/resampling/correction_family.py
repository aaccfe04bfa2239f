"""Correction of p values over a named family of tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import false_discovery_control

POOLED_FDR = (
    "p adjusted for the false discovery rate over the family (Benjamini-Hochberg), made from the permutations of all "
    "regions of a map together, and at least p"
)
"""Meaning of a p_fdr made by `pipeline.statistics.linear.freedman_lane`."""


def benjamini_hochberg(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Adjusted p values that control the false discovery rate; missing tests (NaN) are ignored.

    Examples
    --------
    >>> benjamini_hochberg(np.array([0.01, np.nan, 0.04])).tolist()
    [0.02, nan, 0.04]
    """
    adjusted = np.full(len(p), np.nan)
    done = ~np.isnan(p)
    if done.any():
        adjusted[done] = false_discovery_control(p[done], method="bh")
    return adjusted


def pooled_fdr(pooled: NDArray[np.float64], p: NDArray[np.float64]) -> NDArray[np.float64]:
    """`benjamini_hochberg` of p from pooled permutations (`pipeline.statistics.linear.studentised.pooled_p`), at least p.

    Examples
    --------
    >>> pooled_fdr(np.array([0.0001, 0.03]), np.array([0.01, 0.02])).tolist()
    [0.01, 0.03]
    """
    return np.maximum(benjamini_hochberg(pooled), p)


def add_false_discovery_rate(table: pd.DataFrame, apart: Sequence[str], over: str, of: str = "p") -> pd.DataFrame:
    """Add ``p_fdr`` and ``family``.

    Parameters
    ----------
    table : pandas.DataFrame
        Must have the column `of`.
    apart : sequence of str
        Columns whose values separate families.
    over : str
        What varies within a family, for its name.
    of : str
        Column of uncorrected p.
    """
    adjusted = table.assign(p_fdr=np.nan, family="none")
    for values, part in table.groupby(list(apart), sort=False):
        rows, p = part.index, part[of].to_numpy(float)
        adjusted.loc[rows, "p_fdr"] = benjamini_hochberg(p)
        names = ", ".join(str(value) for value in values if value != "")
        adjusted.loc[rows, "family"] = f"{int((~np.isnan(p)).sum())} {over}: {names}"
    return adjusted
