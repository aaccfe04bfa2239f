"""F tests of the effect of site on mean and spread, over participants.

Location: participants' values on site beside the covariates, Freedman-Lane; the null hypothesis is that site has no
part in the values. Scale: `pipeline.statistics.harmonisation.spread_effect`, over sites with participants enough. Of
relevance, both hold the test fold (`pipeline.statistics.linear.fold_effect`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd

from pipeline.run.errors import BadInputError
from pipeline.statistics.arrays import Floats
from pipeline.statistics.data.notes import so_many
from pipeline.statistics.harmonisation.spread_effect import FEWEST, of_some_size, spread_test
from pipeline.statistics.linear.fold_effect import FoldModel, fold_of_units, model_within_folds
from pipeline.statistics.linear.freedman_lane import PermutationTest, freedman_lane

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
        If there is one site only (for scale: with participants enough), or it follows from the covariates or from fold.
    """
    # Without participant_id every row counts as a person; with a word before it, site 990 is a name and no number.
    names = [f"site {name}" for name in site]
    table = frame.drop(columns="participant_id", errors="ignore").assign(**{SITE: names})
    formula = " + ".join(part for part in (covariates.strip(), SITE) if part)
    if effect == "location":
        model = model_within_folds(formula, SITE, table, hold_fold)
        return freedman_lane(values, model.design, model.exchange, permutations, rng), model
    chosen = np.flatnonzero(of_some_size(site))
    table = table.iloc[chosen].reset_index(drop=True)
    if table[SITE].nunique() < 2:
        large = so_many(table[SITE].nunique(), "site")
        raise BadInputError(f"spread not compared: {large} with {FEWEST} or more participants; two are needed.")
    model = model_within_folds(formula, SITE, table, hold_fold)
    design, rows = model.design, model.design.rows
    columns = np.column_stack([design.nuisance, design.tested])
    fold = fold_of_units(table.iloc[rows], model.exchange.of_rows(rows), model.held)
    own = [names[row] for row in chosen[rows]]
    return spread_test(values[chosen[rows]], columns, own, fold, permutations, rng), model
