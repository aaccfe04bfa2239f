"""Planted effects that were found, but where almost every region shows them: no evidence that the place is found."""

from __future__ import annotations

import pandas as pd

from reports.analyses.columns import worded
from reports.analyses.verdicts import CLEAR, Verdict, rows_where
from reports.read.run_record import RunRecord
from reports.words.numbers import count, listing, number

NEARLY_ALL = 0.9
"""Share of regions from which an effect that is found says nothing of place."""


def planted_effects(run: RunRecord) -> Verdict | None:
    """Which of the answers as planted rest on a difference that is nearly everywhere; None where none does."""
    rows = rows_where(run, "planted_effects", verdict="as planted", result="found")
    said = []
    for row in rows.to_dict("records"):
        tested = _everywhere(run, str(row["effect"]), str(row["analysis"]))
        clear = int((tested["p_fwe"] < CLEAR).sum()) if len(tested) else 0
        if len(tested) and clear >= NEARLY_ALL * len(tested):
            said.append(f"{worded(row['effect'])} in {number(clear)} of {count(len(tested), 'region')}")
    if not said:
        return None
    every = run.tables["planted_effects"]
    return Verdict(
        f"{number(int((every['verdict'] == 'as planted').sum()))} of {count(len(every), 'answer')} are as planted, but "
        f"{number(len(said))} of them {'is' if len(said) == 1 else 'are'} no evidence of place.",
        f"By density over both classes, which follows the prediction, nearly every region passes: {listing(said)}."
        f"{_within(run)} Whether the planted regions lead, their recovery tells.",
    )


def _everywhere(run: RunRecord, effect: str, analysis: str) -> pd.DataFrame:
    """The same test in all regions of the leading map, where it is one of density over both classes."""
    asked: dict[str, object] = {"map": run.main_maps[0], "metric": "density"}
    if analysis == "group_comparisons.tsv":
        asked["comparison"] = f"{run.positive}/{run.negative}"
    elif analysis == "associations.tsv":
        asked |= {"biomarker": effect.removeprefix("severity_"), "scan_group": "all", "estimator": "pearson"}
    else:
        return pd.DataFrame()
    rows = rows_where(run, analysis.removesuffix(".tsv"), **asked)
    return rows[rows["p_fwe"].notna()] if len(rows) else rows


def _within(run: RunRecord) -> str:
    """How many correlations with any measure pass within the patients, whom the prediction does not tell apart."""
    rows = rows_where(run, "associations", map=run.main_maps[0], metric="density", scan_group=run.positive)
    rows = rows[rows["p_fwe"].notna()] if len(rows) else rows
    if rows.empty:
        return ""
    clear = int((rows["p_fwe"] < CLEAR).sum())
    return f" Within {run.positive}, {number(clear)} of {count(len(rows), 'correlation')} with any measure pass."
