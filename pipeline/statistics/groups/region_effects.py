"""Difference in relevance density between the classes, per bilateral group, corrected over all groups and maps.

The density rows of the comparison in `pipeline.statistics.groups.comparisons`, positive class against negative class,
without covariates but the test fold; the p values are the same in both tables. Welch's t with participants reassigned,
the same way for all maps and groups (Westfall & Young 1993). A studentised statistic keeps its level under unequal
variances, also in unequal groups (Janssen 1997).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

from pipeline.run.declared import Table
from pipeline.statistics.data.inputs import StatisticsInputs
from pipeline.statistics.data.relevance_columns import RelevanceColumns
from pipeline.statistics.groups.comparisons import compare
from pipeline.statistics.groups.members import CLASSES

EFFECT_COLUMNS = {
    "map": "Relevance map",
    "group": "Bilateral group of regions",
    "mean_positive": "Mean density over participants of the positive class (each participant's scans averaged first)",
    "mean_negative": "Mean density over participants of the negative class",
    "difference": "Difference of the classes with fold held: the mean of the differences within folds, each weighted "
    "by n1 n2 / (n1 + n2); mean_positive - mean_negative where fold_held is false",
    "ci_low": "Lower bound of the interval of the difference, participants drawn within each class",
    "ci_high": "Upper bound of the interval of the difference",
    "interval": "BCa or percentile; none where there is none",
    "hedges_g": "Difference in pooled standard deviations (within folds, if held), corrected for small samples; n/a "
    "where these rest on fewer than 8 degrees of freedom",
    "fold_held": "Whether the test fold, whose maps come from one network, is held in difference, t and p",
    "t": "Welch's t; with fold held the same of the model with fold, one residual variance per class",
    "df": "Its degrees of freedom (Welch-Satterthwaite)",
    "p": "Two-sided p from reassigning participants to the classes, within folds if held, (b+1)/(m+1)",
    "p_fwe": "p corrected for all maps and groups by the largest |t| of each permutation",
    "p_fdr": "p adjusted by Benjamini and Hochberg over all maps and groups",
    "family": "Tests corrected together",
    "n_positive": "Participants of the positive class",
    "n_negative": "Participants of the negative class",
    "n_permutations": "Permutations used",
    "exact": "true if these are all permutations there are",
    "note": "Why there is no value, or what to know of it",
}
REGION_EFFECTS_TABLE = Table(
    "region_effects", EFFECT_COLUMNS, "map and bilateral group",
    "In which regions does density differ between the classes?", filled=("map", "group", "n_positive", "n_negative"),
)  # fmt: skip


def region_effects(inputs: StatisticsInputs) -> pd.DataFrame:
    """Table ``region_effects``: a row per map and bilateral group."""
    settings = dataclasses.replace(inputs.config.statistics, covariates="")
    table = compare(inputs, RelevanceColumns.of(inputs.values, ["density"]), *CLASSES, settings).table
    n_tests = int(np.isfinite(table["p"].to_numpy(float)).sum())
    names = {"mean_first": "mean_positive", "mean_second": "mean_negative", "n_first": "n_positive"}
    table = table.rename(columns=names | {"n_second": "n_negative"})
    return table.assign(family=f"{n_tests} maps x groups" if n_tests else "none")[list(EFFECT_COLUMNS)]
