"""Difference in relevance density between the classes per bilateral group, corrected over all groups and maps.

These are the density rows of the comparison of positive and negative class in `pipeline.statistics.groups.comparisons`,
adjusted for the test fold only, with the same p values: Welch's t, permuting participants in the same way for all maps
and groups (Westfall & Young 1993).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

from heatlas.pipeline.run.declared import Inference, Table
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.members import CLASSES
from heatlas.pipeline.statistics.data.relevance_columns import RelevanceColumns
from heatlas.pipeline.statistics.groups.comparisons import COMPARISONS_COLUMNS, compare
from heatlas.pipeline.statistics.linear.fold_effect import EVEN

_AS_COMPARED = ("ci_low", "ci_high", "interval", "hedges_g", "hedges_g_low", "hedges_g_high", "fold_held")
EFFECT_COLUMNS = {
    "map": "Relevance map",
    "group": "Bilateral group of regions",
    "mean_positive": "Mean density over participants of the positive class (each participant's scans averaged first)",
    "mean_negative": "Mean density over participants of the negative class",
    "difference": "mean_positive - mean_negative; if fold_held, the mean of the differences within test folds, "
    f"weighted by n1 n2 / (n1 + n2), {EVEN}",
    **{name: COMPARISONS_COLUMNS[name] for name in _AS_COMPARED},
    "t": "Welch's t; if fold_held, from a model with fold and one residual variance per class",
    "df": "Degrees of freedom of t (Welch-Satterthwaite)",
    "p": COMPARISONS_COLUMNS["p"].replace("groups", "classes").replace("each group", "each class"),
    "p_fwe": "Family-wise p: corrected by the largest |t| of each permutation over all maps and groups",
    "p_fdr": "p adjusted for the false discovery rate over all maps and groups (Benjamini-Hochberg)",
    "family": "Family of tests that the p values are corrected over",
    "n_positive": "Participants of the positive class",
    "n_negative": "Participants of the negative class",
    "n_permutations": "Number of permutations",
    "exact": "true if all distinct permutations were used",
    "note": "Why there is no value, or a caveat",
}
REGION_EFFECTS_TABLE = Table(
    "region_effects", EFFECT_COLUMNS, "map and bilateral group",
    "In which regions does density differ between the classes?", filled=("map", "group", "n_positive", "n_negative"),
    inference=Inference("secondary", "all regions and maps, in density"),
)  # fmt: skip


def region_effects(inputs: StatisticsInputs) -> pd.DataFrame:
    """Table ``region_effects``: a row per map and bilateral group."""
    settings = dataclasses.replace(inputs.config.statistics, covariates="")
    table = compare(inputs, RelevanceColumns.of(inputs.values, ["density"]), *CLASSES, settings).table
    n_tests = int(np.isfinite(table["p"].to_numpy(float)).sum())
    names = {"mean_first": "mean_positive", "mean_second": "mean_negative", "n_first": "n_positive"}
    table = table.rename(columns=names | {"n_second": "n_negative"})
    return table.assign(family=f"{n_tests} maps x groups" if n_tests else "none")[list(EFFECT_COLUMNS)]
