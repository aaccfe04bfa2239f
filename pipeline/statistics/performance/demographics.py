"""Demographics of the analysed participants, by class, and tests of their differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from heatlas.pipeline.cohort.people.tasks import TWO_CLASSES, task_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.regions.effect_size import hedges_g
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.declared import CLASSES, Inference, Table
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.members import interval_of_g

TOTAL = "all"

DEMOGRAPHICS_COLUMNS = {
    "label": "Class, or all; a participant with scans of both classes is in both",
    "variable": "scans (per participant), age (years), female (share), mmse, tiv_mm3 or hippocampus_mm3",
    "n_participants": "Participants of the class",
    "n_scans": "Scans of the class",
    "n_known": "Participants with a value",
    "mean": "Mean over participants (each participant's scans of the class averaged first)",
    "sd": "Standard deviation over participants (n - 1)",
    "minimum": "Smallest value over participants",
    "maximum": "Largest value over participants",
}
DEMOGRAPHICS_TABLE = Table(
    "demographics", DEMOGRAPHICS_COLUMNS, "class and variable", "Who is in the cohort?", filled=("label", "variable",
    "n_participants", "n_known"), values={"label": (CLASSES, "all")},
)  # fmt: skip
TESTS_COLUMNS = {
    "variable": "As in demographics",
    "test": "Welch's t; for sex, Fisher's exact test",
    "statistic": "t; for sex the odds ratio of being female",
    "p": "Two-sided p, uncorrected; a large p does not show that the classes are alike",
    "hedges_g": "Difference in pooled standard deviations, positive class minus negative; n/a for sex",
    "hedges_g_low": "Lower bound of the interval of hedges_g, from the same t",
    "hedges_g_high": "Upper bound of the interval",
    "n_positive": "Participants of the positive class with a value",
    "n_negative": "Participants of the negative class with a value",
    "note": "Why there is no value, or who was left out",
}
DEMOGRAPHIC_TESTS_TABLE = Table(
    "demographic_tests", TESTS_COLUMNS, "variable", "Do the classes differ in age, sex and other characteristics?",
    filled=("variable",),
    inference=Inference("exploratory", "each variable alone, as a description of the cohort"),
)  # fmt: skip
_NOTHING = dict.fromkeys(("test", "statistic", "p", "hedges_g", "hedges_g_low", "hedges_g_high"), np.nan) | {
    "note": None
}
_VARIABLES = ("scans", "age", "female", "mmse", "tiv_mm3", "hippocampus_mm3")


def demographics(scans: Sequence[Scan], cohort: CohortConfig) -> pd.DataFrame:
    """One row per class and variable, including classes without scans."""
    frame = pd.DataFrame([_facts(scan) for scan in scans], columns=["participant_id", "label", *_VARIABLES])
    rows = []
    classes = () if cohort.target else tuple(reversed(cohort.labels))  # positive first
    for label in (TOTAL, *classes):
        rows_of_class = frame if label == TOTAL else frame[frame["label"] == label]
        people = rows_of_class.groupby("participant_id")
        values = people[list(_VARIABLES[1:])].mean().assign(scans=people.size().astype(float))
        for variable in _VARIABLES:
            rows.append(_row(label, variable, len(rows_of_class), values[variable]))
    return pd.DataFrame(rows, columns=list(DEMOGRAPHICS_COLUMNS))


def demographics_tables(inputs: StatisticsInputs) -> Mapping[str, pd.DataFrame]:
    """Tables ``demographics`` and ``demographic_tests``."""
    cohort = inputs.config.cohort
    tables = {"demographics": demographics(inputs.scans, cohort)}
    if task_of(cohort).kind.name == TWO_CLASSES:
        tables["demographic_tests"] = demographic_tests(inputs.scans, cohort, inputs.config.statistics.confidence)
    return tables


def demographic_tests(scans: Sequence[Scan], cohort: CohortConfig, confidence: float = 0.95) -> pd.DataFrame:
    """Tests of differences between the classes, one row per variable, with participants as units.

    Participants with scans of both classes are left out and counted in the note. `confidence` is that of the intervals.
    """
    frame = pd.DataFrame([_facts(scan) for scan in scans], columns=["participant_id", "label", *_VARIABLES])
    classes = frame.groupby("participant_id")["label"].nunique()
    both = set(classes.index[classes > 1])
    frame = frame[~frame["participant_id"].isin(both)]
    people = frame.groupby("participant_id")
    values = (
        people[list(_VARIABLES[1:])].mean().assign(scans=people.size().astype(float), label=people["label"].first())
    )
    left_out = f"{counted(len(both), 'participant')} with scans of both classes left out" if both else None
    rows = []
    for variable in _VARIABLES:
        a, b = (values.loc[values["label"] == name, variable].dropna() for name in (cohort.positive, cohort.negative))
        test = _fisher(a, b) if variable == "female" else welch(a, b, confidence)
        notes = [note for note in (test.pop("note"), left_out) if note]
        rows.append({"variable": variable, **test, "n_positive": len(a), "n_negative": len(b),
                     "note": "; ".join(notes) or None})  # fmt: skip
    return pd.DataFrame(rows, columns=list(TESTS_COLUMNS))


def welch(a: pd.Series, b: pd.Series, confidence: float = 0.95) -> dict[str, Any]:
    """Welch's t of two groups of participants, and Hedges' g with its interval, or a note why not."""
    answer: dict[str, Any] = _NOTHING | {"test": "Welch's t"}
    alike = [np.ptp(side) <= 1e-12 * np.abs(side).max() for side in (a.to_numpy(float), b.to_numpy(float)) if len(side)]
    if min(len(a), len(b)) < 2 or all(alike):
        return {**answer, "note": "fewer than two values in a class, or all values are equal"}
    result = stats.ttest_ind(a, b, equal_var=False)
    if not np.isfinite(result.statistic):
        return {**answer, "note": "values are too close together, or too large, for a variance"}
    values = np.concatenate([a, b]).astype(float)[:, None]
    g = hedges_g(values, np.arange(len(values)) < len(a))
    critical = stats.t.isf((1 - confidence) / 2, result.df)
    low, high = interval_of_g(g, np.zeros(len(values), np.intp), np.array([result.statistic]), critical)
    return {**answer, "statistic": float(result.statistic), "p": float(result.pvalue), "hedges_g": float(g[0]),
            "hedges_g_low": float(low[0]), "hedges_g_high": float(high[0])}  # fmt: skip


def _fisher(a: pd.Series, b: pd.Series) -> dict[str, Any]:
    answer: dict[str, Any] = _NOTHING | {"test": "Fisher's exact"}
    if not len(a) or not len(b):
        return {**answer, "note": "no value in a class"}
    table = [[int((x > 0.5).sum()), int((x <= 0.5).sum())] for x in (a, b)]
    if not np.sum(table, axis=0).all():
        return {**answer, "note": "all values are equal"}
    odds, p = stats.fisher_exact(table)
    is_finite = bool(np.isfinite(odds))
    return {**answer, "statistic": float(odds) if is_finite else np.nan, "p": float(p),
            "note": None if is_finite else "the odds ratio is not finite"}  # fmt: skip


def _facts(scan: Scan) -> dict[str, Any]:
    numbers = {name: getattr(scan, name) for name in ("age", "mmse", "tiv_mm3", "hippocampus_mm3")}
    female = None if scan.sex is None else float(scan.sex == "F")
    values = {name: np.nan if value is None else float(value) for name, value in {**numbers, "female": female}.items()}
    return {"participant_id": scan.participant_id, "label": scan.label, "scans": 1.0, **values}


def _row(label: str, variable: str, n_scans: int, values: pd.Series) -> dict[str, Any]:
    there = values.dropna()
    return {
        "label": label,
        "variable": variable,
        "n_participants": len(values),
        "n_scans": n_scans,
        "n_known": len(there),
        "mean": there.mean(),
        "sd": there.std(ddof=1),
        "minimum": there.min(),
        "maximum": there.max(),
    }
