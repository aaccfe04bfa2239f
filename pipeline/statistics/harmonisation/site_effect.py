"""What is left of site: F tests of where values lie and of how far they spread, over participants.

Location: participants' values on site beside the covariates, Freedman-Lane. Scale: Brown & Forsythe (1974), the same
test on absolute distances of the residuals from their site's median. The null hypothesis of both is that site has no
part in the values. Of relevance, both hold the test fold (`pipeline.statistics.fold_effect`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline.statistics.fold_effect import FoldModel, model_within_folds
from pipeline.statistics.linear.freedman_lane import PermutationTest, freedman_lane

Floats = NDArray[np.float64]
Effect = Literal["location", "scale"]

SITE = "site_tested"


def site_effect(
    effect: Effect,
    values: Floats,
    site: Sequence[str],
    covariates: str,
    frame: pd.DataFrame,
    permutations: int,
    rng: np.random.Generator,
    hold_fold: bool = False,
) -> tuple[PermutationTest, FoldModel]:
    """Test of site in every column of values.

    Parameters
    ----------
    effect : {"location", "scale"}
    values : array, shape (participants, columns)
        One row per participant.
    site : sequence of str
    covariates : str
        Formula over `frame`.
    frame : pandas.DataFrame
        One row per participant.
    permutations : int
    rng : numpy.random.Generator
    hold_fold : bool
        Whether the values come from networks that differ between folds.

    Returns
    -------
    PermutationTest
    FoldModel
        Of the test.

    Raises
    ------
    BadInputError
        If there is one site only, or it follows from the covariates or from fold.
    """
    # Without participant_id every row counts as a person; with a word before it, site 990 is a name and no number.
    table = frame.drop(columns="participant_id", errors="ignore").assign(**{SITE: [f"site {name}" for name in site]})
    formula = " + ".join(part for part in (covariates.strip(), SITE) if part)
    model = model_within_folds(formula, SITE, table, hold_fold)
    if effect == "scale":
        design = model.design
        values = _distances(values, np.column_stack([design.nuisance, design.tested]), design.rows, list(site))
        model = model_within_folds(SITE, SITE, table.iloc[design.rows].reset_index(drop=True), hold_fold)
    return freedman_lane(values, model.design, model.exchange, permutations, rng), model


def _distances(values: Floats, model: Floats, rows: NDArray[np.intp], site: list[str]) -> Floats:
    """Absolute distance of each residual from the median of its site; NaN where a column has missing values."""
    own = values[rows]
    residuals = own - model @ np.linalg.lstsq(model, np.nan_to_num(own), rcond=None)[0]
    names = np.array(site, dtype=object)[rows]
    distances = np.empty_like(residuals)
    for name in set(names):
        members = names == name
        distances[members] = np.abs(residuals[members] - np.median(residuals[members], axis=0))
    return distances
