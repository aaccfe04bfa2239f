"""Tables of grids: shares of every method and stage, what the literature found, likeness of methods, invariance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from heatlas.pipeline.evaluation.grids.directions import DIRECTIONS_TABLE, GRIDS_TABLE
from heatlas.pipeline.evaluation.grids.studies import spearman_matrix
from heatlas.pipeline.run.columns import described
from heatlas.pipeline.run.declared import Table

ALL_METHODS = "all"
"""Stands for every method where no grid could be made."""
SAME = 0.01
"""Difference of shares up to which a method explains both networks alike."""

AGREEMENT_TABLE = Table(
    "grid_agreement",
    {
        **described("cohort"),
        **{name: GRIDS_TABLE.meanings[name] for name in ("setting", "kind")},
        "method_a": "Method of one map",
        "stage_a": "Its stage",
        "method_b": "Method of the other",
        "stage_b": "Its stage",
        "spearman": "Rank correlation of their shares over grids; n/a where a method has the same share on all",
        "n_grids": GRIDS_TABLE.meanings["n_grids"],
    },
    "setting, kind of grid and two methods at their stages", "Do methods find the same grids easy?",
    stage="evaluation", filled=("cohort", "setting", "method_a", "method_b", "n_grids"),
)  # fmt: skip

INVARIANCE_TABLE = Table(
    "invariance",
    {
        **described("cohort"),
        "method": GRIDS_TABLE.meanings["method"],
        "n_grids": "Grids whose last features were explained",
        "logit_difference": "Largest difference of the logits of the two networks, as share of the largest logit",
        "share_plain": "Mean share of |attribution| on features that the network does not read",
        "share_cancelling": "The same by a network that computes the same with two units that cancel",
        "invariant": f"true: the shares differ by at most {SAME:g}. false: the map depends on how a function is "
        "written",
        "note": "Why there is no share",
    },
    "method", "Does a map stay the same when another network computes the same function?", stage="evaluation",
    filled=("cohort", "method", "n_grids"),
)  # fmt: skip

GRID_TABLES = (GRIDS_TABLE, DIRECTIONS_TABLE, AGREEMENT_TABLE, INVARIANCE_TABLE)


def agreement_table(scores: pd.DataFrame, cohort: str) -> pd.DataFrame:
    """Rank correlations of every two methods and stages, each pair once."""
    made: list[list[object]] = []
    known = scores[scores["grid"].notna()]
    for (setting, kind), own in known.groupby(["setting", "kind"], sort=False):
        matrix = spearman_matrix(scores, str(setting), str(kind))
        values = matrix.to_numpy(float)
        for a, first in enumerate(matrix.index):
            for b in range(a + 1, len(matrix)):
                made.append([cohort, setting, kind, *first, *matrix.index[b], values[a, b], own["grid"].nunique()])
    return AGREEMENT_TABLE.frame(made).astype({"stage_a": "Int64", "stage_b": "Int64"})


def invariance_table(frames: Sequence[pd.DataFrame], cohort: str) -> pd.DataFrame:
    """Means over grids, a row per method."""
    rows = pd.concat(frames, ignore_index=True)
    made = []
    for method, own in rows.groupby("method", sort=False):
        known, notes = own[own["share_cancelling"].notna()], own["note"].dropna()
        plain, cancelling = known["share_plain"].mean(), known["share_cancelling"].mean()
        made.append(
            {
                "cohort": cohort, "method": method, "n_grids": len(known),
                "logit_difference": own["logit_difference"].max(), "share_plain": plain,
                "share_cancelling": cancelling,
                "invariant": None if np.isnan(cancelling) else bool(abs(cancelling - plain) <= SAME),
                "note": notes.iloc[0] if len(notes) else None,
            }
        )  # fmt: skip
    return INVARIANCE_TABLE.frame(made).astype({"invariant": "boolean"})
