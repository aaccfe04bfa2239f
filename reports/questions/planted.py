"""Are planted regions and planted effects found? Synthetic cohorts, of which the truth is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.evaluation.planted import TOP
from heatlas.reports.frame.pages import EVALUATION
from heatlas.reports.questions.findings import Place, place_of
from heatlas.reports.questions.question import CLEAR, Caution, Check, Question, Verdict
from heatlas.reports.questions.rows import classes_compared, rows_where
from heatlas.reports.questions.views import N, View
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import count, fixed, listing, mid_sentence, number, percent
from heatlas.reports.words.wording import worded

NEARLY_ALL = 0.9  # an effect that is found in at least this share of the regions says nothing about its place


@dataclass(frozen=True)
class Leaders:
    """Planted regions among the first, how many there are, how many are first, and the places of an evidence map."""

    hits: int
    planted: int
    top: int
    places: Mapping[str, Place]


@dataclass(frozen=True)
class Recovery:
    """What the leading map and the others find of the planted regions, all in true positives."""

    rows: pd.DataFrame  # by density and by gain
    others: pd.DataFrame
    leaders: Leaders | None  # by what the headline ranks; None where this is not known
    title: str
    by_evidence: bool
    by_chance: str  # with what the number found should be compared, in a sentence


def facts(run: RunRecord) -> Recovery | None:
    if not run.has("planted_recovery"):
        return None
    table = run.tables["planted_recovery"]
    is_leading = table["map"] == run.leading_map
    rows = table[is_leading]
    return Recovery(
        rows, table[~is_leading], _leaders(run, rows), map_title(run.leading_map), run.leads_with_evidence,
        _with_shuffled_labels(run),
    )  # fmt: skip


def _leaders(run: RunRecord, rows: pd.DataFrame) -> Leaders | None:
    """An evidence map ranks by Hedges' g between the classes, any other map by density in true positives."""
    rows = rows[rows["metric"] == "density"] if len(rows) else rows
    if rows.empty:
        return None
    if not run.leads_with_evidence:
        return Leaders(int(rows["hits"].iloc[0]), int(rows["n_planted"].iloc[0]), int(rows["top"].iloc[0]), {})
    ranked = {group: place_of(run, run.leading_map, group) for group in run.planted}
    places = {group: place for group, place in ranked.items() if place is not None}
    if not places:
        return None
    return Leaders(sum(place.number <= TOP for place in places.values()), len(run.planted), TOP, places)


def _with_shuffled_labels(run: RunRecord) -> str:
    rows = rows_where(run, "verdicts", map=run.leading_map, cohort="run")
    if len(rows) and pd.notna(rows["shuffled_hits"].iloc[0]):
        row = rows.iloc[0]
        return (
            f"With networks trained on shuffled labels, {fixed(row['shuffled_hits'], 1)} of {number(row['n_planted'])} "
            "are, on average (evaluation)."
        )
    if run.config.cohort.shuffle_labels:
        return "The labels of this run were shuffled: a run with the true labels should find more regions."
    return (
        "A network trained on shuffled labels may rank planted regions as high. To see how many it finds, repeat the "
        "run with shuffle_labels = true in [cohort]."
    )


def recovery(found: Recovery) -> Verdict | None:
    """What the leading map finds, by density and by gain."""
    if found.rows.empty:
        return None
    first = found.rows.iloc[0]
    if found.by_evidence:
        return _by_evidence(found, first)
    parts = [
        f"by {row['metric']}, {number(row['hits'])} of {number(row['n_planted'])} planted regions "
        f"{'is' if row['hits'] == 1 else 'are'} among the first {number(row['top'])} of {number(row['n_groups'])} (a "
        f"random ranking puts {fixed(row['expected_hits'])} there)"
        for row in found.rows[found.rows["metric"].isin(["density", "gain"])].to_dict("records")
    ]
    people = count(int(first["n_participants"]), "true-positive participant")
    return Verdict(
        f"{found.title}, {people}: {'; '.join(parts)}.",
        f"The planted regions hold {percent(first['volume_share'])} of the volume and "
        f"{percent(first['relevance_share'])} of the positive relevance.",
    )


def _by_evidence(found: Recovery, row: pd.Series) -> Verdict | None:
    """What an evidence map finds: planted regions among those whose evidence differs most between the classes."""
    leaders = found.leaders
    if leaders is None:
        return None
    places = [
        f"{mid_sentence(group)} {number(place.number)}" + (f" ({place.span})" if place.span else "")
        for group, place in leaders.places.items()
    ]
    return Verdict(
        f"{found.title}, ranked by the difference of evidence between the classes (Hedges' g): "
        f"{number(leaders.hits)} of {number(leaders.planted)} planted regions {'is' if leaders.hits == 1 else 'are'} "
        f"among the first {number(leaders.top)} of {number(row['n_groups'])}.",
        f"Places: {listing(places)}. The "
        f"planted regions hold {percent(row['volume_share'])} of the volume and {percent(row['relevance_share'])} of "
        "the positive evidence of true positives.",
    )


def _answer(found: Recovery) -> Verdict | None:
    """`recovery`, and what to compare it with."""
    said = recovery(found)
    return None if said is None else Verdict(said.answer, f"{said.grounds} {found.by_chance}")


def _missed(found: Recovery) -> Caution | None:
    """Planted disease that the leading map does not show where the headline looks."""
    leaders = found.leaders
    if leaders is None or 2 * leaders.hits > leaders.planted:
        return None
    ranked = "difference of evidence between the classes" if found.by_evidence else "density"
    return Caution(
        "serious",
        "The maps miss most of the planted regions.",
        f"{number(leaders.hits)} of {number(leaders.planted)} planted regions {'is' if leaders.hits == 1 else 'are'} "
        f"among the first {number(leaders.top)} by {ranked}. This run does not tell whether the network missed them or "
        f"the map does not show what it used. {found.by_chance}",
        "planted",
    )


def found_by_the_map(run: RunRecord) -> str:
    """How many planted regions the leading map has among its first, for the summary; empty where this is not known."""
    found = facts(run)
    if found is None or found.leaders is None:
        return ""
    most, own = found.others["hits"].max(), found.rows["hits"].max()
    others = f" (other methods: at most {number(most)})" if own > most else ""
    return (
        f"The map ({mid_sentence(found.title)}) has {found.leaders.hits} of {found.leaders.planted} regions with "
        f"planted disease among its first {found.leaders.top}{others}. "
    )


@dataclass(frozen=True)
class Effects:
    """Planted effects that were found, each with the same test in every region, where that is one of density."""

    everywhere: Sequence[tuple[str, pd.DataFrame]]
    as_planted: int
    answers: int
    within: pd.DataFrame  # correlations within the patients, whom the prediction does not tell apart
    positive: str


def _facts_of_effects(run: RunRecord) -> Effects | None:
    if not run.has("planted_effects"):
        return None
    every, density = run.tables["planted_effects"], {"map": run.leading_map, "metric": "density"}
    rows = rows_where(run, "planted_effects", verdict="as planted", result="found")

    def everywhere(effect: str, analysis: str) -> pd.DataFrame:
        if analysis == "group_comparisons.tsv":
            return classes_compared(run, known="p_fwe", **density)
        if analysis == "associations.tsv":
            biomarker = effect.removeprefix("severity_")
            return rows_where(
                run, "associations", "p_fwe", biomarker=biomarker, scan_group="all", estimator="pearson", **density
            )
        return pd.DataFrame()

    return Effects(
        [(str(row["effect"]), everywhere(str(row["effect"]), str(row["analysis"]))) for row in rows.to_dict("records")],
        int((every["verdict"] == "as planted").sum()), len(every),
        rows_where(run, "associations", scan_group=run.positive, known="p_fwe", **density), run.positive,
    )  # fmt: skip


def _effects(found: Effects) -> Verdict | None:
    """Which planted effects were found only as a difference in nearly every region; None without any."""
    said = []
    for effect, tested in found.everywhere:
        clear = int((tested["p_fwe"] < CLEAR).sum()) if len(tested) else 0
        if len(tested) and clear >= NEARLY_ALL * len(tested):
            said.append(f"{worded(effect)} in {number(clear)} of {count(len(tested), 'region')}")
    if not said:
        return None
    within = ""
    if len(found.within):
        clear = int((found.within["p_fwe"] < CLEAR).sum())
        total = count(len(found.within), "correlation")
        within = f" Within {found.positive}, {number(clear)} of {total} with any measure pass."
    return Verdict(
        f"{number(found.as_planted)} of {count(found.answers, 'answer')} are as planted, but "
        f"{number(len(said))} of them {'is' if len(said) == 1 else 'are'} no evidence of place.",
        f"Density over both classes follows the prediction, so nearly every region passes: {listing(said)}."
        f"{within} The section “Are the planted regions found?” says whether the planted regions lead.",
    )


PLANTED = Question(
    "planted", "Are the planted regions found?", "Planted truth", EVALUATION,
    "The regions in which disease was planted are known. The table shows how many of them lead the ranking of regions "
    "in true positives, and how much of the positive relevance lies in them.",
    (
        View("planted_recovery", "Recovery of the planted regions in true positives.",
             ("map", "metric", "hits", "n_planted", "top", "expected_hits", "p_value", "found", "relevance_share",
              "volume_share", "enrichment", *N), leading=False, shown=40),
    ),
    facts,
    _answer,
    (Check("planted", _missed, ("planted_recovery",)),),
)  # fmt: skip

PLANTED_EFFECTS = Question(
    "planted-effects", "Are planted effects found, and only these?", "Planted effects", EVALUATION,
    "Planted effects are the disease in the planted regions and everything else that was put into the data of a "
    "synthetic cohort; they should be found. Null effects were not planted and should not be found.",
    (
        View(
            "planted_effects", "What was planted and what was found.",
            ("effect", "expected", "verdict", "where", "estimate", "estimate_is", "p", "p_is", "n_tests", "note"),
            leading=False, shown=40, verdicts=True,
        ),
    ),
    _facts_of_effects,
    _effects,
)  # fmt: skip
