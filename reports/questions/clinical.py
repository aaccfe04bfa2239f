"""Relevance and the disease: clinical measures or the number predicted, later conversion, norms of controls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.cohort.people.tasks import NUMBER
from heatlas.pipeline.run.config.settings import Config
from heatlas.reports.frame.tables import correction
from heatlas.reports.questions.findings import FEW_FIRSTS, firsts_in_words, with_places
from heatlas.reports.questions.question import CLASSES, CLEAR, Question, Verdict, rows_where, survivors
from heatlas.reports.questions.views import CI, N
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import (
    count,
    fixed,
    interval,
    is_missing,
    listing,
    number,
    p_value,
)
from heatlas.reports.words.sentences import Words
from heatlas.reports.words.wording import OWN, biomarker_in_words, covariates_in_words, worded

WORDS = Words(__file__)


@dataclass(frozen=True)
class Associations:
    """Correlations of density in the leading map within each class, and what all were adjusted for."""

    within: Mapping[str, pd.DataFrame]  # those that were tested, by class
    covariates: tuple[str, ...]  # formulas
    title: str  # of the map
    in_words: Callable[[Any], str]  # of a measure


def facts_of_associations(run: RunRecord) -> Associations | None:
    if not run.has("associations"):
        return None
    lead, table = run.leading_map, run.tables["associations"]
    within = {
        label: rows_where(run, "associations", scan_group=label, map=lead, metric="density", known="p_fwe")
        for label in run.labels
    }
    return Associations(
        {label: rows for label, rows in within.items() if len(rows)},
        tuple(dict.fromkeys(map(str, table["covariates"].dropna()))) if "covariates" in table else (),
        map_title(lead), partial(biomarker_in_words, run),
    )  # fmt: skip


def _answer_of_associations(found: Associations) -> Verdict | None:
    """Correlations within a class, for the leading map; correction is within each measure and estimator."""
    parts, sets, least = [], 0, 1.0
    for label, rows in found.within.items():
        first = rows.sort_values("p_fwe", kind="stable").iloc[0]
        sets, least = sets + rows.groupby(["biomarker", "estimator"]).ngroups, min(least, float(first["p_fwe"]))
        parts.append(
            WORDS.say(
                "correlations_within",
                label=label,
                rows=int((rows["p_fwe"] < CLEAR).sum()),
                correlations=len(rows),
                correction=correction("p_fwe"),
                first=first,
                in_words=found.in_words(first["biomarker"]),
            )
        )
    if not parts:
        return None
    if least >= CLEAR:
        answer = "Not shown within a class."
    elif least * sets < CLEAR:
        answer = "Yes, within a class and in some regions."
    else:
        answer = WORDS.say("maybe_by_chance", sets=sets)
    return Verdict(
        answer,
        WORDS.say("associations_grounds", found=found, sets=sets, parts=parts),
    )


def _methods_of_associations(found: Associations) -> str:
    formulas = found.covariates
    adjusted = list(dict.fromkeys(name for terms in formulas for name in covariates_in_words(terms).split(", ")))
    text = WORDS.say("associations_methods")
    if adjusted:
        each = ", each those that its row of the table names" if len(formulas) > 1 else ""
        text += f"; covariates held constant: {listing(adjusted)}{each} (Freedman-Lane [@freedman_lane] [@winkler])"
    return f"{text}."


def follows_number(run: RunRecord) -> Verdict | None:
    """In which regions the leading map follows a predicted number most, and between which places these lie."""
    rows = rows_where(
        run, "associations", "r", biomarker="target", map=run.leading_map, metric="density", estimator="pearson"
    )
    if rows.empty:
        return None
    tested, what = survivors(rows, "p_fwe"), "Evidence" if run.leads_with_evidence else "Density"
    rows = rows.set_index("group").sort_values("r", ascending=False, kind="stable")
    first, names = rows.iloc[0], [str(group) for group in rows.index[:FEW_FIRSTS]]
    bounds = interval(first["ci_low"], first["ci_high"], 2, run.config.statistics.confidence)
    return Verdict(
        f"{what} rises with {run.task.column} most in {with_places(rows, names)}.",
        WORDS.say(
            "follows_number",
            firsts_in_words=firsts_in_words(run, rows),
            first=first,
            bounds=bounds,
            run=run,
            tested=tested,
        ).strip(),
    )


_COLUMNS = (
    "biomarker", "scan_group", "estimator", "covariates", "map", "group", "r", *CI, "p", "p_fwe", "p_fdr", *N, "note",
)  # fmt: skip

ASSOCIATIONS = Question.read(
    WORDS,
    "associations",
    facts=facts_of_associations,
    answer=_answer_of_associations,
    methods=_methods_of_associations,
    tasks=CLASSES,
)

NUMBER_ASSOCIATIONS = Question.read(WORDS, "number-associations", answer=follows_number, tasks=frozenset({NUMBER}))


@dataclass(frozen=True)
class Progression:
    """Predictors of conversion by their concordance, that of the networks among them, and which analyses there are."""

    concordance: pd.DataFrame
    adjusted: pd.DataFrame  # the Cox model of the networks' score with covariates
    has_prediction: bool
    has_cox: bool
    has_trajectories: bool  # with an estimate
    config: Config


def facts_of_conversion(run: RunRecord) -> Progression:
    slopes = rows_where(run, "trajectories", "estimate")
    return Progression(
        rows_where(run, "progression", measure="concordance"),
        rows_where(run, "cox", predictor="model", model="adjusted"),
        run.has("progression"), run.has("cox"), bool(len(slopes)), run.config,
    )  # fmt: skip


def _answer_of_conversion(found: Progression) -> Verdict | None:
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
    grounds = WORDS.say("concordance", in_words=in_words, people=people, events=events, row=row)
    if people < needed or events < conversions or is_missing(row["estimate"]):
        return Verdict(
            f"Cannot be answered with n = {number(people)} people with MCI and {count(events, 'conversion')}.",
            WORDS.say("too_few_to_tell", needed=needed, conversions=conversions, grounds=grounds),
        )
    others = rows[(rows["predictor"] != "model") & rows["estimate"].notna()].to_dict("records")
    named = [f"{worded(other['predictor'])} {fixed(other['estimate'])}" for other in others]
    beside = f" Other predictors: {listing(named)}." if named else ""
    if len(found.adjusted) and not is_missing(found.adjusted["hazard_ratio"].iloc[0]):
        first = found.adjusted.iloc[0]
        beside += WORDS.say("hazard", first=first)
    clear = row["p"] < CLEAR
    answer = ("Better than guessing." if row["estimate"] > 0.5 else "Worse than guessing.") if clear else "Not shown."
    return Verdict(answer, grounds + beside)


def _methods_of_conversion(found: Progression) -> str:
    parts = []
    if found.has_prediction:
        parts.append(WORDS.say("methods_prediction"))
    if found.has_cox:
        parts.append(WORDS.say("methods_cox"))
    if found.has_trajectories:
        parts.append(WORDS.say("methods_trajectories"))
    return " ".join(parts)


PROGRESSION = Question.read(
    WORDS, "progression", facts=facts_of_conversion, answer=_answer_of_conversion, methods=_methods_of_conversion
)


FIT = 0.1  # largest share of control scores beyond ±1.96 (expected: 0.05) with which norms are said to fit
CENTRE = 0.2  # largest mean z of controls (expected: 0) with which norms are said to fit: a small effect (Cohen)
FEW_CONTROLS = 50


@dataclass(frozen=True)
class Norms:
    """What is known of norms and subtypes."""

    calibration: Mapping[str, pd.DataFrame]  # controls by region, of the leading map and of volumes, by their titles
    kinds: pd.DataFrame  # numbers of subtypes that were tried, of the leading map
    compared: pd.DataFrame  # measures in which they were compared
    has_scores: bool
    has_kinds: bool
    positive: str
    negative: str


def facts_of_norms(run: RunRecord) -> Norms:
    lead = run.leading_map
    sources = {lead: map_title(lead), "volume": f"volumes ({OWN})"}
    calibration = {
        title: rows_where(run, "w_calibration", fold="all", source=source, known="beyond")
        for source, title in sources.items()
    }
    return Norms(
        {title: rows for title, rows in calibration.items() if len(rows)},
        rows_where(run, "subtype_numbers", source=lead), rows_where(run, "subtype_comparison", source=lead),
        run.has("w_fingerprints"), run.has("subtype_numbers"), run.positive, run.negative,
    )  # fmt: skip


def _answer_of_norms(norms: Norms) -> Verdict | None:
    """Whether norms fit controls that they were not made from, and whether patients fall into subtypes."""
    parts, worst, off, fewest = [], 0.0, 0.0, float("inf")
    for title, rows in norms.calibration.items():
        worst, fewest = max(worst, float(rows["beyond"].mean())), min(fewest, int(rows["n_controls"].max()))
        centre = float(rows["mean_z"].mean())
        off = max(off, abs(centre))
        far = rows.sort_values("mean_z", key=abs, kind="stable").iloc[-1]
        parts.append(
            WORDS.say(
                "norm_scores",
                title=title,
                mean=rows["beyond"].mean(),
                controls=int(rows["n_controls"].max()),
                regions=len(rows),
                centre=centre,
                far=far,
            )
        )
    if not parts:
        return None
    doubt = ", but few controls were tested" if fewest < FEW_CONTROLS else ""
    wrong = [what for what, is_wrong in (("in the tails", worst > FIT), ("at the centre", off > CENTRE)) if is_wrong]
    answer = f"The norms do not fit well {listing(wrong)}." if wrong else f"Controls score as the norms predict{doubt}."
    return Verdict(
        answer,
        WORDS.say("norms_grounds", norms=norms, parts=parts, kinds=_kinds(norms)),
    )


def _kinds(norms: Norms) -> str:
    """Number of subtypes of the leading map, in a sentence."""
    rows = norms.kinds
    chosen = rows[rows["chosen"].astype(str).str.lower() == "true"] if len(rows) else rows
    if chosen.empty:
        return ""
    row, most = chosen.iloc[0], number(rows["k"].max())
    n = f"n = {number(row['n_participants'])} of {norms.positive}, gap statistic, no test"
    if int(row["k"]) == 1:
        return f" No subtypes: one group fits better than 2 to {most} ({n})."
    compared = norms.compared
    clear = int((compared["p_fdr"] < CLEAR).sum()) if len(compared) else 0
    return WORDS.say(
        "subtypes", row=row, n=n, clear=clear, measures=int(compared["p_fdr"].notna().sum()) if len(compared) else 0
    )


def _methods_of_norms(norms: Norms) -> str:
    scores = f"W-scores [@wscore] are residuals from a norm of {norms.negative} among the fold's training participants."
    subtypes = WORDS.say("methods_subtypes")
    return " ".join([scores] * norms.has_scores + [subtypes] * norms.has_kinds)


NORMS = Question.read(WORDS, "norms", facts=facts_of_norms, answer=_answer_of_norms, methods=_methods_of_norms)
