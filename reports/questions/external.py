"""Does it hold in another cohort? A run and the cohort that its networks were applied to, side by side."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.reports.frame.pages import PERFORMANCE
from heatlas.reports.questions.question import Caution, Check, Question, Verdict
from heatlas.reports.questions.views import CI, IntervalChart, View
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import fixed, interval, is_missing, mid_sentence, percent, signed

OTHER_SHARE = 0.1
"""Difference in the share of the positive class above which it is named."""


@dataclass(frozen=True)
class TwoCohorts:
    """The measures in which a run and this cohort are compared."""

    rows: pd.DataFrame
    leading_map: str
    positive: str
    negative: str
    confidence: float
    from_another_run: bool  # whether its networks answered for labelled people of this cohort
    has_evidence: bool

    def measure(self, name: str, **where: str) -> pd.Series | None:
        """A measure over all people unless a class is named; None where it has no value."""
        rows = self.rows
        for column, value in {"measure": name, "label": "all", **where}.items() if len(rows) else ():
            rows = rows[rows[column] == value]
        return None if rows.empty or is_missing(rows["estimate"].iloc[0]) else rows.iloc[0]

    def span(self, row: pd.Series) -> str:
        return interval(row["ci_low"], row["ci_high"], 2, self.confidence)


def facts(run: RunRecord) -> TwoCohorts:
    return TwoCohorts(
        run.tables.get("external_validation", pd.DataFrame()), run.leading_map, run.positive, run.negative,
        run.config.statistics.confidence, bool(run.config.training.networks_of) and not run.without_labels,
        bool(run.evidence_maps),
    )  # fmt: skip


def _answer(cohorts: TwoCohorts) -> Verdict | None:
    """Whether the networks are as good here as where they come from, and whether the classes differ in like regions."""
    area = cohorts.measure("auc")
    if area is None:
        return None
    answer = "Not told apart: the networks are about as good here as where they come from, or too few people to say."
    if area["ci_high"] < 0:
        answer = "No: the networks are less accurate here than where they come from."
    elif area["ci_low"] > 0:
        answer = "The networks are more accurate here than where they come from."
    grounds = (
        f"Area under the curve {fixed(area['new'])} here ({int(area['n_new'])} people) and {fixed(area['run'])} in the "
        f"test people of the run ({int(area['n_run'])}): difference {signed(area['estimate'])} ({cohorts.span(area)})."
    )
    regions = cohorts.measure("rank_correlation", map=cohorts.leading_map)
    if regions is not None:
        grounds += (
            f" Over regions, the sizes of the difference between the classes in both cohorts correlate with ρ = "
            f"{fixed(regions['estimate'])} ({cohorts.span(regions)}; {mid_sentence(map_title(cohorts.leading_map))}), "
            "which the noise of each region draws towards 0."
        )
    return Verdict(answer, grounds)


def _differences(cohorts: TwoCohorts) -> list[str]:
    """How the cohorts differ, in sentences; empty where nothing is known to."""
    said = []
    share, level = cohorts.measure("share_positive"), cohorts.measure("probability_less_share")
    if share is not None and abs(share["estimate"]) > OTHER_SHARE:
        said.append(
            f"{percent(share['new'], 0)} of the people here are {cohorts.positive} and {percent(share['run'], 0)} in "
            "the run: accuracy, precision and the Brier score depend on that share, areas do not."
        )
    if level is not None and (level["ci_low"] > 0 or level["ci_high"] < 0):
        said.append(
            f"Probabilities are off by {signed(level['new'])} on average here and by {signed(level['run'])} in the "
            "run; set a threshold on this cohort before you use one."
        )
    images = cohorts.measure("intensity", label=cohorts.negative)
    if images is not None and images["estimate"] > images["by_chance"]:
        said.append(
            f"Intensities of registered scans of {cohorts.negative} differ between the cohorts (median g over regions "
            f"{fixed(images['estimate'])}, by chance up to {fixed(images['by_chance'])}): scanner or processing may "
            "explain part of any difference."
        )
    return said


def _other_cohort(cohorts: TwoCohorts) -> Caution | None:
    """Networks of another run: how the cohorts differ, and that the controls of maps are in sample."""
    if not cohorts.from_another_run:
        return None
    controls = (
        "Maps relative to controls compare with people whom the networks were trained with, so the evidence of these "
        "controls is in sample and lies further from that of patients than new controls would."
    )
    differences = _differences(cohorts)
    text = " ".join([*differences, *[controls] * cohorts.has_evidence])
    title = "The cohorts differ." if differences else "Controls are those of the other cohort."
    return Caution("serious" if differences else "note", title, text, "external") if text else None


EXTERNAL = Question(
    "external", "Does it hold in this cohort? The run and this cohort side by side", "External validation",
    PERFORMANCE,
    "The networks were trained with other people. Of the cohort of the run that they are from, only predictions and "
    "maps out of fold count; the people here are answered by all networks together, as one. The interval of a "
    "difference is combined from an interval of each cohort.",
    (
        View(
            "external_validation", "Performance and calibration of both cohorts.",
            ("measure", "run", "new", "estimate", *CI, "n_run", "n_new", "note"), where={"part": ["performance"]},
            intervals=IntervalChart(
                ("measure",), "estimate", "ci_low", "ci_high", "here less run", n=("n_run", "n_new")
            ),
        ),
        View(
            "external_validation",
            "Agreement over regions: rank correlation of Hedges' g of the classes, which noise draws towards 0.",
            ("map", "estimate", *CI, "n_run", "n_new"), where={"part": ["regions"]}, leading=False, optional=True,
        ),
        View(
            "external_validation", "Who is in both cohorts.",
            ("measure", "label", "run", "new", "estimate", *CI, "n_run", "n_new"), where={"part": ["people"]},
            shown=30,
        ),
        View(
            "external_validation", "Intensities of registered scans, and sites.",
            ("measure", "label", "run", "new", "estimate", "by_chance", "n_run", "n_new"),
            where={"part": ["images", "sites"]},
        ),
        View(
            "external_calibration", "Predicted and observed frequency of {positive} in both cohorts.",
            ("cohort", "low", "high", "mean_probability", "share_positive", *CI, "n_participants"),
        ),
    ),
    facts,
    _answer,
    (Check("other-cohort", _other_cohort),),
)  # fmt: skip
