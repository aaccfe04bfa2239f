"""Does it predict who converts? Prediction from the first scan, Cox models, and change over visits."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from heatlas.pipeline.run.config.settings import Config
from heatlas.reports.frame.pages import CLINICAL
from heatlas.reports.questions.question import CLEAR, Question, Verdict
from heatlas.reports.questions.rows import rows_where
from heatlas.reports.questions.views import CI, IntervalChart, N, View
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import count, fixed, interval, is_missing, listing, number, p_value
from heatlas.reports.words.wording import worded


@dataclass(frozen=True)
class Progression:
    """Predictors of conversion by their concordance, that of the networks among them, and which analyses there are."""

    concordance: pd.DataFrame
    adjusted: pd.DataFrame  # the Cox model of the networks' score with covariates
    has_prediction: bool
    has_cox: bool
    has_trajectories: bool  # with an estimate
    config: Config


def facts(run: RunRecord) -> Progression:
    slopes = rows_where(run, "trajectories", "estimate")
    return Progression(
        rows_where(run, "progression", measure="concordance"),
        rows_where(run, "cox", predictor="model", model="adjusted"),
        run.has("progression"), run.has("cox"), bool(len(slopes)), run.config,
    )  # fmt: skip


def _answer(found: Progression) -> Verdict | None:
    """Whether the network's score predicts conversion, or that there are too few people to tell."""
    rows, settings = found.concordance, found.config.statistics
    if rows.empty or not (rows["predictor"] == "model").any():
        return None
    row = rows[rows["predictor"] == "model"].iloc[0]
    people, events = int(row["n_participants"]), int(row["n_events"])
    needed, conversions = settings.progression.min_participants, settings.progression.min_events_per_variable
    in_words = "not known"
    if not is_missing(row["estimate"]):
        bounds = interval(row["ci_low"], row["ci_high"], 2, settings.confidence)
        in_words = f"{fixed(row['estimate'])} ({bounds}; uncorrected {p_value(row['p'])}, permuted; 0.5 is guessing)"
    grounds = f"Concordance of the network's score with the time to AD: {in_words}, n = {number(people)}, " \
              f"{count(events, 'conversion')} ({row['event']})."  # fmt: skip
    if people < needed or events < conversions or is_missing(row["estimate"]):
        return Verdict(
            f"Cannot be answered with n = {number(people)} people with MCI and {count(events, 'conversion')}.",
            f"At least {number(needed)} people, and {number(conversions)} conversions for each predictor of a Cox "
            f"model, are needed. The tables below are shown for completeness only. {grounds}",
        )
    others = rows[(rows["predictor"] != "model") & rows["estimate"].notna()].to_dict("records")
    named = [f"{worded(other['predictor'])} {fixed(other['estimate'])}" for other in others]
    beside = f" Other predictors: {listing(named)}." if named else ""
    if len(found.adjusted) and not is_missing(found.adjusted["hazard_ratio"].iloc[0]):
        first = found.adjusted.iloc[0]
        beside += (
            f" Cox model with covariates: hazard ratio {fixed(first['hazard_ratio'])}, corrected (FDR) "
            f"{p_value(first['p_fdr'])}, n = {number(first['n_participants'])}."
        )
    clear = row["p"] < CLEAR
    answer = ("Better than guessing." if row["estimate"] > 0.5 else "Worse than guessing.") if clear else "Not shown."
    return Verdict(answer, grounds + beside)


def _methods(found: Progression) -> str:
    parts = []
    if found.has_prediction:
        parts.append(
            "Participants with MCI were predicted by networks that were never trained on them; conversion to AD was "
            "predicted from their first scan, with Harrell's concordance [@concordance]."
        )
    if found.has_cox:
        parts.append(
            "Hazards come from Cox models [@cox], fitted with statsmodels [@statsmodels]; p values permute "
            "participants, and proportionality of hazards was tested with scaled Schoenfeld residuals [@schoenfeld]."
        )
    if found.has_trajectories:
        parts.append(
            "Change over visits was estimated by one least-squares slope per participant; mean slopes were tested by "
            "flipping signs, with a correction for skewness [@hall], differences by permuting participants within "
            "networks, with the network as a factor and one residual variance per group."
        )
    return " ".join(parts)


PROGRESSION = Question(
    "progression", "Does it predict who converts?", "Progression", CLINICAL,
    "People with MCI, predicted by networks that were trained on {positive} and {negative} and never on them. "
    "Concordance is the chance that, of two people, the one with the higher score converts first; 0.5 is guessing. "
    "Concordance and Cox models use all conversions to AD at any later visit; the area under the curve, sensitivity "
    "and specificity use those within {horizon} months, among people who were followed that long. Trajectories: "
    "each person's visits give one slope; a group's mean slope is tested by flipping signs, and groups are compared "
    "with the network held, by permuting people within networks.",
    (
        View(
            "progression", "Prediction of conversion to AD from the first scan.",
            ("predictor", "measure", "estimate", *CI, "p", "n_participants", "n_events", "event", "note"), shown=30,
            intervals=IntervalChart(("predictor", "measure"), "estimate", "ci_low", "ci_high", "estimate", 0.5),
        ),
        View(
            "cox", "Cox models, per standard deviation of the predictor.",
            ("predictor", "map", "group", "model", "covariates", "hazard_ratio", *CI, "p_wald", "p", "p_fdr",
             "p_proportional", "concordance",
             "n_participants", "n_events", "n_censored", "n_competing", "event", "note"),
            order=("p_fdr", "p"), shown=20, finding="p_fdr",
        ),
        View(
            "trajectories", "Change per year, in standard deviations.",
            ("response", "map", "group", "term", "estimate", *CI, "p", "p_fwe", "p_fdr",
             *N, "n_repeated", "note"),
            order=("p_fdr", "p"), shown=20, finding="p_fdr",
        ),
    ),
    facts,
    _answer,
    methods=_methods,
)  # fmt: skip
