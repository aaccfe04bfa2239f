"""For whom does it work, and what else influences relevance? Subgroups, interactions, other influences."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from heatlas.reports.frame.pages import FAIRNESS
from heatlas.reports.frame.tables import correction
from heatlas.reports.questions.question import CLEAR, Caution, Check, Question, Verdict
from heatlas.reports.questions.views import CI, IntervalChart, N, View
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import count, fixed, listing, number, p_value
from heatlas.reports.words.wording import level_in_words, variable_in_words, worded


@dataclass(frozen=True)
class Subgroups:
    """Measures of every subgroup against the rest, and which analyses there are."""

    measures: pd.DataFrame
    has_interactions: bool
    minimum_participants: int


def facts(run: RunRecord) -> Subgroups:
    return Subgroups(
        run.tables.get("fairness", pd.DataFrame()), run.has("interactions"),
        run.config.statistics.subgroups.minimum_participants,
    )  # fmt: skip


def _answer(subgroups: Subgroups) -> Verdict | None:
    """Which subgroups were compared, how many people they have, and whether any difference survives correction."""
    every = known = subgroups.measures
    if len(every):
        known = every[(every["metric"] == "balanced_accuracy") & every["estimate"].notna()]
    if known.empty:
        return None
    variables = listing([variable_in_words(name) for name in dict.fromkeys(known["variable"])])
    sizes = known["n_participants"]
    suppressed = len(every.loc[every["level"].notna(), ["variable", "level"]].drop_duplicates()) - len(known)
    scope = f"{count(len(known), 'subgroup')} by {variables}, n = {number(sizes.min())} to {number(sizes.max())}" + (
        f"; {number(suppressed)} more {'has' if suppressed == 1 else 'have'} too few people" if suppressed else ""
    )
    by_estimate = known.sort_values("estimate", kind="stable")
    ends = [
        f"{fixed(row['estimate'])} ({_subgroup(row)}, n = {number(row['n_participants'])})"
        for row in (by_estimate.iloc[0], by_estimate.iloc[-1])
    ]
    tested = every[every["p_fdr"].notna()].sort_values("p_fdr", kind="stable")
    clear = tested[tested["p_fdr"] < CLEAR]
    if tested.empty:
        answer, test = "Not known.", "No difference could be tested."
    elif clear.empty:
        answer = (
            f"None of the {count(len(tested), 'comparison')} that could be made finds a difference after correction. "
            "Among so few people, this does not show equal performance."
        )
        test = f"Clearest: {_tested(tested.iloc[0])}."
    else:
        answer = "It does not work equally well for everyone."
        test = f"After correction: {'; '.join(_tested(row) for _, row in clear.head(3).iterrows())}."
    return Verdict(
        answer,
        f"Compared: {scope}. Balanced accuracy lies between {listing(ends)}; each against everyone else, "
        f"membership permuted within the class, corrected {correction('p_fdr')} within each variable, "
        f"over its subgroups and measures. {test}",
    )


def _subgroup(row: pd.Series) -> str:
    return level_in_words(row["variable"], row["level"])


def _tested(row: pd.Series) -> str:
    measure = "" if row["metric"] == "balanced_accuracy" else f"{worded(row['metric'])} "
    sentence = f"{_subgroup(row)}, {measure}{fixed(row['estimate'])} against {fixed(row['rest'])}"
    return f"{sentence}, corrected {p_value(row['p_fdr'])}"


def _unequal(subgroups: Subgroups) -> Caution | None:
    """Subgroups in which the classifier is clearly better or worse."""
    rows = subgroups.measures
    unequal = rows[(rows["metric"] == "balanced_accuracy") & (rows["p_fdr"] < CLEAR)]
    if unequal.empty:
        return None
    parts = [f"{_subgroup(row)} ({fixed(row['estimate'])} against {fixed(row['rest'])})"
             for _, row in unequal.sort_values("p_fdr").head(4).iterrows()]  # fmt: skip
    return Caution(
        "serious", "It does not work equally well for everyone.",
        f"Balanced accuracy differs in {count(len(unequal), 'subgroup')}: {listing(parts)}.", "subgroups",
    )  # fmt: skip


def _methods(subgroups: Subgroups) -> str:
    parts = []
    if subgroups.has_interactions:
        parts.append(
            "Whether the difference between the classes depends on a subgroup was tested as an interaction "
            "(Freedman-Lane [@freedman_lane] [@winkler])."
        )
    if len(subgroups.measures):
        parts.append(
            f"Performance in subgroups of at least {number(subgroups.minimum_participants)} participants was compared "
            "with everyone else by exchanging membership between participants of the same class."
        )
    return " ".join(parts)


SUBGROUPS = Question(
    "subgroups", "For whom does it work? Performance and relevance in subgroups", "Subgroups", FAIRNESS,
    "Performance and relevance in women and men, at different ages and at different sites. Subgroups with too few "
    "participants have no values. A small p in one subgroup and a large one in another do not show a difference "
    "between them; this is tested by the interaction.",
    (
        View(
            "fairness", "Balanced accuracy by subgroup.",
            ("variable", "level", "estimate", *CI, "rest", "difference", "difference_low",
             "difference_high", "p", "p_fdr", *N, "n_positive", "n_negative", "note"),
            where={"metric": ["balanced_accuracy", None]}, shown=40, finding="p_fdr",
            intervals=IntervalChart(("level",), "estimate", "ci_low", "ci_high", "balanced accuracy", 0.5),
        ),
        View(
            "interactions", "Whether the difference between {positive} and {negative} depends on the subgroup.",
            ("variable", "levels", "map", "group", "estimate", "statistic", "partial_r", "p", "p_fwe", "p_fdr",
             *N, "note"),
            order=("p_fwe", "-partial_r"), shown=15, finding="p_fwe",
        ),
        View(
            "subgroups", "Density in the hippocampus by subgroup, over all explained participants (with MCI too).",
            ("variable", "level", "map", "n_participants", "n_scans", "mean_density", *CI,
             "class_difference", "class_difference_low", "class_difference_high", "class_hedges_g",
             "class_hedges_g_low", "class_hedges_g_high", "note"),
            where={"group": ["Hippocampus", None]}, shown=40,
        ),
    ),
    facts,
    _answer,
    (Check("unequal", _unequal, ("fairness",)),),
    _methods,
)  # fmt: skip

MAIN_EFFECTS = Question(
    "main-effects", "What else influences relevance and volume?", "Other influences", FAIRNESS,
    "Sex, age, education, field strength and site, each adjusted for the others and the class. Influences that have "
    "nothing to do with the disease may change volumes but should change relevance little.",
    (
        View(
            "main_effects", "Effects on density and volume, clearest first.",
            ("source", "variable", "contrast", "group", "estimate", "statistic", "partial_r", "p", "p_fwe", "p_fdr",
             "n_participants", "note"),
            order=("p_fwe", "-partial_r"), shown=20, finding="p_fwe",
        ),
    ),
)  # fmt: skip
