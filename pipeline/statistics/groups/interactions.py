"""Interaction of class and subgroup: whether the difference between the classes depends on the subgroup.

The interaction term of a linear model of relevance over participants with main effects, covariates and test fold,
tested by Freedman-Lane with one residual variance per class. Numeric variables (age, MMSE) are not cut into bands.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from heatlas.pipeline.run.columns import described
from heatlas.pipeline.run.declared import Inference, Table
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.members import (
    CLASSES,
    COURSE,
    Levels,
    TwoGroups,
    one_value_per_participant,
    subgroup_levels,
)
from heatlas.pipeline.statistics.data.notes import joined
from heatlas.pipeline.statistics.data.values import RelevanceColumns, kinds_of
from heatlas.pipeline.statistics.linear.fold_effect import EVEN, model_within_folds
from heatlas.pipeline.statistics.linear.freedman_lane import freedman_lane
from heatlas.pipeline.statistics.resampling.correction_family import POOLED_FDR

INTERACTIONS_COLUMNS = {
    "variable": "Column whose interaction with the class is tested",
    "levels": "Subgroups compared; n/a for a numeric variable",
    "map": "Relevance map; n/a if the variable cannot be tested",
    **described("group"),
    "estimate": "Change of the class difference in density per unit of the variable, or between two subgroups (later "
    f"minus first of levels), adjusted for fold {EVEN}; n/a for more than two subgroups",
    "standard_error": "Standard error of estimate",
    "statistic": "t, or F for more than two subgroups; with one residual variance per class",
    "df_tested": "Numerator degrees of freedom; 1 for t",
    "df": "Residual degrees of freedom (Welch-Satterthwaite)",
    "partial_r": "Partial correlation of density and interaction (effect size); for F the square root of partial R2",
    "p": "Two-sided permutation p over participants (Freedman-Lane; within test folds if adjusted for fold), "
    "(b+1)/(m+1)",
    "p_fwe": "Family-wise p: corrected by the largest statistic of each permutation over the family",
    "p_fdr": POOLED_FDR,
    "family": "Family of tests that the p values are corrected over",
    "covariates": "Other covariates of the model, including the test fold if used; n/a for none",
    "n_participants": "Participants without missing values",
    **described("n_scans", "n_permutations", "exact"),
    "note": "Why there is no test, or what was left out",
}
INTERACTIONS_TABLE = Table(
    "interactions", INTERACTIONS_COLUMNS, "variable, map and bilateral group",
    "Does the difference between the classes depend on the subgroup?",
    inference=Inference("exploratory", "all regions and maps of one variable"),
)  # fmt: skip
_NUMBERS = ("estimate", "standard_error", "statistic", "df", "partial_r", "p", "p_fwe", "p_fdr")


def interactions_tables(inputs: StatisticsInputs) -> pd.DataFrame:
    """Table ``interactions``: a row per variable, map and bilateral group."""
    columns = RelevanceColumns.of(inputs.values, ["density"])
    two = TwoGroups.of(inputs, *CLASSES)
    frame = inputs.frame.iloc[two.rows].assign(_positive=two.is_first.astype(float)).reset_index(drop=True)
    blocks = [pd.DataFrame(columns=list(INTERACTIONS_COLUMNS))]
    for variable in inputs.config.statistics.subgroups.variables:
        if variable == COURSE:  # the class itself
            continue
        try:
            blocks.append(_of_variable(inputs, columns, variable, frame, two))
        except BadInputError as error:
            blocks.append(_blank(variable, str(error).replace("_positive", "class").replace("_level", variable)))
    table = pd.concat(blocks[1:] or blocks, ignore_index=True)
    return table[list(INTERACTIONS_COLUMNS)]


def _of_variable(
    inputs: StatisticsInputs, columns: RelevanceColumns, variable: str, frame: pd.DataFrame, two: TwoGroups
) -> pd.DataFrame:
    """Rows of one variable.

    BadInputError if fewer than two subgroups have enough participants, or the interaction cannot be estimated.
    """
    settings = inputs.config.statistics
    levels = subgroup_levels(inputs, variable).of_rows(two.rows)
    notes = [two.note]
    if levels.is_number:
        values = one_value_per_participant(frame[variable], frame["participant_id"], False)
        _require_participants(frame, values.notna().to_numpy(), settings.subgroups.minimum_participants)
        names: tuple[str, ...] = ()
        # Centred and scaled for numerical stability; centring does not change the interaction, scaling is undone below.
        spread = float(values.std()) or 1.0
        coded = frame.assign(_level=(values - values.mean()) / spread)
    else:
        names, left_out = _large_enough(levels, frame, settings.subgroups.minimum_participants)
        if left_out:
            notes.append(f"fewer than {settings.subgroups.minimum_participants} of a class in {', '.join(left_out)}")
        spread = 1.0
        ranked = {name: f"{i} {name}" for i, name in enumerate(names)}  # so that levels sort in their natural order
        coded = frame.assign(_level=levels.of_scan.where(levels.of_scan.isin(names), None).map(ranked))
    others = [term.strip() for term in settings.covariates.split("+") if term.strip() not in ("", variable)]
    formula = " + ".join([*others, "_positive", "_level", "_positive:_level"])
    of_class = coded["_positive"].tolist()
    model = model_within_folds(formula, "_positive:_level", coded, settings.fold_effect, of_class)
    design = model.design
    rng = generator(inputs.seed, "statistics", "interactions", variable)
    relevance = columns.values[two.rows]
    test = freedman_lane(
        relevance, design, model.exchange, settings.permutations, rng, of_class, kinds=kinds_of(columns.table)
    )
    table = columns.table.drop(columns="metric").assign(
        variable=variable, levels=", ".join(names) or None, estimate=test.estimate / spread,
        standard_error=test.standard_error / spread, statistic=test.statistic, df=test.df, partial_r=test.partial_r,
        df_tested=test.df_tested, p=test.p, p_fwe=test.p_fwe, p_fdr=test.p_fdr,
        n_participants=test.n_units, n_scans=len(design.rows), n_permutations=test.n_permutations, exact=test.exact,
    )  # fmt: skip
    n_tests = int(np.isfinite(test.p).sum())
    held = [name for name in model.covariates if name != "_positive" and "_level" not in name]
    said = (design.note or "").replace("_level", variable).replace("_positive", "class")
    shared = joined(*notes, said)
    return table.assign(
        family=f"{n_tests} regions x maps" if n_tests else "none",
        covariates=", ".join(held) or None,
        note=np.array([joined(problem, shared) for problem in test.problems], dtype=object),
    )


def _large_enough(levels: Levels, frame: pd.DataFrame, minimum: int) -> tuple[tuple[str, ...], list[str]]:
    """Levels with enough participants of both classes, and the others with their counts."""
    kept: list[tuple[str, tuple[int, int]]] = []
    left_out: list[tuple[str, tuple[int, int]]] = []
    for level in levels.names:
        counts = _participants(frame, levels.members(level))
        (kept if min(counts) >= minimum else left_out).append((level, counts))
    shown = [f"{level} ({counts[0]} and {counts[1]})" for level, counts in left_out]
    if len(kept) < 2:
        raise BadInputError(
            f"{counted(len(kept), 'subgroup')} with {counted(minimum, 'participant')} of each class; two are needed"
            + (f"; too small: {', '.join(shown)}." if shown else ".")
        )
    return tuple(level for level, _ in kept), shown


def _require_participants(frame: pd.DataFrame, members: np.ndarray, minimum: int) -> None:
    counts = _participants(frame, members)
    if min(counts) < minimum:
        raise BadInputError(
            f"{counts[0]} and {counts[1]} participants of the two classes; {minimum} of each are needed."
        )


def _participants(frame: pd.DataFrame, members: np.ndarray) -> tuple[int, int]:
    """Number of participants of the positive and of the negative class."""
    is_positive = frame["_positive"].to_numpy() == 1
    people = frame["participant_id"]
    return people[members & is_positive].nunique(), people[members & ~is_positive].nunique()


def _blank(variable: str, note: str) -> pd.DataFrame:
    row: dict[str, object] = dict.fromkeys(INTERACTIONS_COLUMNS)
    row |= dict.fromkeys(_NUMBERS, np.nan) | {"family": "none", "exact": False, "variable": variable, "note": note}
    row |= dict.fromkeys(("df_tested", "n_participants", "n_scans", "n_permutations"), 0)
    return pd.DataFrame([row])
