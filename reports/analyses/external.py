"""Whether a result holds in another cohort: the answer of the section, and how the cohorts differ."""

from __future__ import annotations

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.reports.analyses.verdicts import Verdict
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import fixed, interval, is_missing, mid_sentence, percent, signed

OTHER_SHARE = 0.1
"""Difference in the share of the positive class above which it is named."""


def row_of(run: RunRecord, measure: str, **where: str) -> pd.Series | None:
    """A row of ``external_validation.tsv``, over all people unless a class is named; None where it has no value."""
    if not run.has("external_validation"):
        return None
    rows = run.tables["external_validation"]
    for column, value in {"measure": measure, "label": "all", **where}.items():
        rows = rows[rows[column] == value]
    return None if rows.empty or is_missing(rows["estimate"].iloc[0]) else rows.iloc[0]


def _span(run: RunRecord, row: pd.Series) -> str:
    return interval(row["ci_low"], row["ci_high"], 2, run.config.statistics.confidence)


def verdict(run: RunRecord) -> Verdict | None:
    """Whether the networks are as good here as where they come from, and whether the classes differ in like regions."""
    area = row_of(run, "auc")
    if area is None:
        return None
    answer = "Not told apart: the networks are about as good here as where they come from, or too few people to say."
    if area["ci_high"] < 0:
        answer = "No: the networks are less accurate here than where they come from."
    elif area["ci_low"] > 0:
        answer = "The networks are more accurate here than where they come from."
    grounds = (
        f"Area under the curve {fixed(area['new'])} here ({int(area['n_new'])} people) and {fixed(area['run'])} in the "
        f"test people of the run ({int(area['n_run'])}): difference {signed(area['estimate'])} ({_span(run, area)})."
    )
    regions = row_of(run, "rank_correlation", map=run.leading_map)
    if regions is not None:
        grounds += (
            f" Over regions, the sizes of the difference between the classes in both cohorts correlate with ρ = "
            f"{fixed(regions['estimate'])} ({_span(run, regions)}; {mid_sentence(map_title(run.leading_map))}), "
            "which the noise of each region draws towards 0."
        )
    return Verdict(answer, grounds)


def differences(run: RunRecord) -> list[str]:
    """How the cohorts differ, in sentences; empty where nothing is known to."""
    said = []
    share, level = row_of(run, "share_positive"), row_of(run, "probability_less_share")
    if share is not None and abs(share["estimate"]) > OTHER_SHARE:
        said.append(
            f"{percent(share['new'], 0)} of the people here are {run.positive} and {percent(share['run'], 0)} in the "
            "run: accuracy, precision and the Brier score depend on that share, areas do not."
        )
    if level is not None and (level["ci_low"] > 0 or level["ci_high"] < 0):
        said.append(
            f"Probabilities are off by {signed(level['new'])} on average here and by {signed(level['run'])} in the "
            "run; set a threshold on this cohort before you use one."
        )
    images = row_of(run, "intensity", label=run.negative)
    if images is not None and images["estimate"] > images["by_chance"]:
        said.append(
            f"Intensities of registered scans of {run.negative} differ between the cohorts (median g over regions "
            f"{fixed(images['estimate'])}, by chance up to {fixed(images['by_chance'])}): scanner or processing may "
            "explain part of any difference."
        )
    return said
