"""F tests of the effect of site on mean and variance, over participants.

Location: values on site and covariates by Freedman-Lane, with one variance per site if sites are few and large enough
(`pipeline.statistics.linear.fold_effect.with_variances`). Scale: `pipeline.statistics.harmonisation.spread_effect`,
over sites with enough participants and within classes, whose spread would pass for that of sites where the two go
together. Both are adjusted for the test fold in relevance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.statistics.arrays import Floats, Indices
from heatlas.pipeline.statistics.harmonisation.spread_effect import FEWEST, in_large_sites, spread_test
from heatlas.pipeline.statistics.linear.fold_effect import FOLD, FoldModel, model_within_folds, with_variances
from heatlas.pipeline.statistics.linear.freedman_lane import PermutationTest, freedman_lane

Effect = Literal["location", "scale"]

SITE = "site_tested"
CLASS = "label"


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
    """Test the effect of site in every column of values (participants, columns); also returns the model.

    `covariates` is a formula over `frame` (one row per participant), whose column `label` is the class in the test of
    scale; `hold_fold` is for values of networks that differ between folds. BadInputError if there is only one site (for
    scale: with enough participants), or site is collinear with the covariates or fold.
    """
    # Without participant_id every row is a participant; the prefix makes site 990 a name, not a number.
    names = [f"site {name}" for name in site]
    table = frame.drop(columns="participant_id", errors="ignore").assign(**{SITE: names})
    formula = " + ".join(part for part in (covariates.strip(), SITE) if part)
    if effect == "location":
        model, groups = with_variances(model_within_folds(formula, SITE, table, hold_fold), names, SITE)
        return freedman_lane(values, model.design, model.exchange, permutations, rng, groups), model
    chosen = np.flatnonzero(in_large_sites(site))
    table = table.iloc[chosen].reset_index(drop=True)
    if table[SITE].nunique() < 2:
        large = counted(table[SITE].nunique(), "site")
        raise BadInputError(f"scale not compared: {large} with {FEWEST} or more participants; two are needed.")
    model = model_within_folds(formula, SITE, table, hold_fold)
    design, rows = model.design, model.design.rows
    columns = np.column_stack([design.nuisance, design.tested])
    within = [name for name, used in ((FOLD, model.held), (CLASS, CLASS in table)) if used]
    cell: Indices = np.zeros(len(rows), np.intp)
    if within:
        cell = np.asarray(table.iloc[rows].groupby(within, dropna=False).ngroup(), dtype=np.intp)
    site_of_rows = [names[row] for row in chosen[rows]]
    return spread_test(values[chosen[rows]], columns, site_of_rows, cell, permutations, rng), model
