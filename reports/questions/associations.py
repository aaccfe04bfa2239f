"""Whether relevance follows clinical measures, or the number that is predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.cohort.people.tasks import NUMBER
from heatlas.reports.frame.pages import CLINICAL
from heatlas.reports.frame.tables import correction
from heatlas.reports.questions.findings import FEW_FIRSTS, firsts_in_words, with_places
from heatlas.reports.questions.question import CLASSES, CLEAR, Question, Verdict
from heatlas.reports.questions.rows import rows_where, survivors
from heatlas.reports.questions.views import CI, IntervalChart, N, View
from heatlas.reports.read.run_record import OUTCOMES, RunRecord
from heatlas.reports.words.numbers import count, fixed, interval, listing, mid_sentence, number, p_value
from heatlas.reports.words.wording import biomarker_in_words, covariates_in_words


@dataclass(frozen=True)
class Associations:
    """Correlations of density in the leading map within each class, and what all were adjusted for."""

    within: Mapping[str, pd.DataFrame]  # those that were tested, by class
    covariates: tuple[str, ...]  # formulas
    title: str  # of the map
    in_words: Callable[[Any], str]  # of a measure


def facts(run: RunRecord) -> Associations | None:
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


def _answer(found: Associations) -> Verdict | None:
    """Correlations within a class, for the leading map; correction is within each measure and estimator."""
    parts, sets, least = [], 0, 1.0
    for label, rows in found.within.items():
        first = rows.sort_values("p_fwe", kind="stable").iloc[0]
        sets, least = sets + rows.groupby(["biomarker", "estimator"]).ngroups, min(least, float(first["p_fwe"]))
        parts.append(
            f"within {label}: {number(int((rows['p_fwe'] < CLEAR).sum()))} of {count(len(rows), 'correlation')} with a "
            f"corrected p {correction('p_fwe')} below 0.05, clearest {mid_sentence(first['group'])} with "
            f"{found.in_words(first['biomarker'])} "
            f"({first['estimator']} r\xa0=\xa0{fixed(first['r'])}, n = {number(first['n_participants'])}, corrected "
            f"{p_value(first['p_fwe'])})"
        )
    if not parts:
        return None
    if least >= CLEAR:
        answer = "Not shown within a class."
    elif least * sets < CLEAR:
        answer = "Yes, within a class and in some regions."
    else:
        answer = (
            "Within a class, some correlations are significant, but so few may be chance in "
            f"{count(sets, 'set')} of tests."
        )
    return Verdict(
        answer,
        f"{found.title}, density, participants permuted, corrected within each of {count(sets, 'set')} (a "
        f"measure, an estimator, a class): {'; '.join(parts)}.",
    )


def _methods(found: Associations) -> str:
    formulas = found.covariates
    adjusted = list(dict.fromkeys(name for terms in formulas for name in covariates_in_words(terms).split(", ")))
    text = (
        "Associations of regional relevance with biomarkers were tested over participants by permutation, the largest "
        "|r| of each permutation giving family-wise p values, with the false discovery rate beside them [@fdr]"
    )
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
        f"{firsts_in_words(run, rows)} Pearson's r in the first by estimate: {fixed(first['r'])} ({bounds}), "
        f"{count(int(first['n_participants']), 'participant')}, {map_title(run.leading_map)}; {tested}.".strip(),
    )


_COLUMNS = (
    "biomarker", "scan_group", "estimator", "covariates", "map", "group", "r", *CI, "p", "p_fwe", "p_fdr", *N, "note",
)  # fmt: skip

ASSOCIATIONS = Question(
    "associations", "Does relevance follow clinical measures?", "Clinical measures", CLINICAL,
    "Correlation over participants of regional relevance with volumes, scores and further measures at the visit of "
    "the scan; each person's scans are averaged first and participants are permuted. Corrected p values take account "
    "of all regions and maps of a question at once. A correlation over both classes together also reflects "
    "the difference between the classes; a correlation within a class does not.",
    (
        View(
            "associations", "Within a class: density against clinical measures, clearest first.", _COLUMNS,
            where={"metric": ["density"], "scan_group": ["{positive}", "{negative}", *OUTCOMES]},
            order=("p_fwe", "-r"), shown=20, finding="p_fwe", optional=True,
            intervals=IntervalChart(("biomarker", "group", "scan_group", "map", "estimator"), "r", "ci_low", "ci_high",
                                "correlation"),
        ),
        View(
            "associations", "Over both classes: density against clinical measures, clearest first.", _COLUMNS,
            where={"metric": ["density"], "scan_group": ["all", None]}, order=("p_fwe", "-r"), shown=10,
            finding="p_fwe", optional=True,
            text="Over {positive} and {negative} together, relevance and most measures differ between the classes, "
            "relevance because maps are scaled by the {start} of {positive}. A correlation here may reflect "
            "only that.",
        ),
    ),
    facts,
    _answer,
    methods=_methods,
    tasks=CLASSES,
)  # fmt: skip

NUMBER_ASSOCIATIONS = Question(
    "number-associations", "Does relevance follow the number?", "Relevance and the number", CLINICAL,
    "Correlation over participants of regional relevance with the target, with the corrected gap and with further "
    "measures; each person's scans are averaged first and participants are permuted. Corrected p values take account "
    "of all regions and maps of a question at once. Maps explain the predicted number, so regions whose relevance "
    "follows the target contribute most to the prediction.",
    (
        View("associations", "Density against the target and further measures, clearest first.", _COLUMNS,
             where={"metric": ["density"]}, order=("p_fwe", "-r"), shown=20, finding="p_fwe"),
    ),
    answer=follows_number,
    tasks=frozenset({NUMBER}),
)  # fmt: skip
