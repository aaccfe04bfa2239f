"""The primary outcome: the one question that a run named before any result."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.reports.frame.pages import PERFORMANCE
from heatlas.reports.questions.question import CLASSES, CLEAR, Answer, Headline, Question, Verdict
from heatlas.reports.questions.views import CI, N, View
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import (
    LONGEST_TEXT,
    count,
    fixed,
    interval,
    is_missing,
    listing,
    mid_sentence,
    number,
    p_value,
    sentence_case,
    shortened,
)
from heatlas.reports.words.wording import biomarker_in_words, covariates_in_words, worded

_QUANTITIES = {"sum": "relevance", "density": "density", "gain": "gain", "share": "share of the map"}


@dataclass(frozen=True)
class Outcome:
    """The primary outcome."""

    row: pd.Series
    quantity: str  # what is correlated
    asked: str  # the outcome as the run named it, with what it is adjusted for
    confidence: float

    @property
    def is_known(self) -> bool:
        return not is_missing(self.row["p"])

    @property
    def note(self) -> str:
        return sentence_case(shortened(self.row["note"], LONGEST_TEXT))

    @property
    def span(self) -> str:
        return interval(self.row["ci_low"], self.row["ci_high"], 2, self.confidence)


def facts(run: RunRecord) -> Outcome | None:
    """The primary outcome of a run with classes."""
    if not run.has("primary") or not run.task.classes:
        return None
    row = run.tables["primary"].iloc[0]
    quantity = "evidence" if row["metric"] == "sum" and row["map"] in run.evidence_maps else _QUANTITIES[row["metric"]]
    of_map = "" if is_missing(row["map"]) else f" ({map_title(row['map'])})"
    together = f"{listing(list(reversed(run.task.outputs)))} together"
    whom = together if row["scan_group"] == "all" else shortened(row["scan_group"])
    held = "" if is_missing(row["covariates"]) else f", adjusted for {covariates_in_words(row['covariates'])}"
    asked = (
        f"partial correlation of {quantity}{of_map} in the {mid_sentence(row['group'])} with "
        f"{biomarker_in_words(run, row['biomarker'])}, {whom}{held}"
    )
    return Outcome(row, quantity, asked, run.config.statistics.confidence)


def _answer(outcome: Outcome) -> Verdict:
    """The answer to the primary question, and what it rests on."""
    row, named = outcome.row, f"Primary outcome (named before any result: {outcome.asked})."
    if not outcome.is_known:
        return Verdict("Not known.", f"{named} {outcome.note}")
    note = "" if is_missing(row["note"]) else f" {outcome.note}."
    return Verdict(
        "A correlation." if row["p"] < CLEAR else "No clear correlation.",
        f"{named} r\xa0=\xa0{fixed(row['r'])} ({outcome.span}), {p_value(row['p'])}, "
        f"{count(int(row['n_participants']), 'participant')}, {count(int(row['n_scans']), 'scan')}. Permutations "
        f"exchange {row['exchanged']}.{note}",
    )


_ASKED = "What is the primary outcome?"


def _headline(run: RunRecord) -> Answer | None:
    """The answer at the top of the report; None for a run without a primary outcome."""
    outcome = facts(run)
    if outcome is None:
        return None
    said, row = _answer(outcome), outcome.row
    if not outcome.is_known:
        return Answer(_ASKED, f"{said.answer} {said.grounds}")
    return Answer(
        _ASKED, f"{said.answer} {sentence_case(outcome.asked)}.", f"r = {fixed(row['r'])}",
        f"{outcome.span}, {p_value(row['p'])}, n = {number(row['n_participants'])}", said.grounds,
    )  # fmt: skip


def in_a_sentence(run: RunRecord) -> str:
    """The correlation in a sentence; empty where it is not known."""
    outcome = facts(run)
    if outcome is None or not outcome.is_known:
        return ""
    row = outcome.row
    shown = "correlates with" if row["p"] < CLEAR else "shows no clear correlation with"
    return (
        f"{sentence_case(outcome.quantity)} in the {mid_sentence(row['group'])} {shown} "
        f"{worded(row['biomarker'])} (r\xa0=\xa0{fixed(row['r'])})."
    )


def _methods(outcome: Outcome) -> str:
    how = f", tested by permutation of {outcome.row['exchanged']} [@freedman_lane]" if outcome.is_known else ""
    return (
        f"The primary outcome, named before any result, was the {outcome.asked}{how}. All other tests are "
        "secondary or exploratory, as the data dictionary of each table says with its family and correction."
    )


PRIMARY = Question(
    "primary", "The primary outcome", "Primary outcome", PERFORMANCE,
    "The one question that this run named before any result ([statistics.primary] of its configuration), so its p "
    "needs no correction. All other tests are secondary (a question of the study, corrected over all of its tests) or "
    "exploratory (several questions or audits side by side, not corrected for each other); the caption of each table "
    "says which, over which family its p values are corrected, and how.",
    (
        View(
            "primary", "One test.",
            ("map", "metric", "group", "biomarker", "scan_group", "covariates", "r", *CI, "p", "exchanged", *N,
             "note"), leading=False,
        ),
    ),
    facts,
    _answer,
    methods=_methods,
    tasks=CLASSES,
    headline=Headline(_ASKED, ("primary",), _headline),
)  # fmt: skip
