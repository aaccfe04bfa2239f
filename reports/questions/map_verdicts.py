"""Whether a map can be trusted: what the evaluation says of it, and what is found of planted truth.

The evaluation (``heatlas evaluate``) gives ``verdicts.tsv``. On synthetic cohorts it is known which regions were
planted, so the report says whether maps find them, and whether planted effects are found.
"""

from __future__ import annotations

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.evaluation.planted import TOP
from heatlas.reports.questions.findings import Place, place_of
from heatlas.reports.questions.question import CLEAR, Verdict
from heatlas.reports.questions.verdicts import classes_compared, rows_where
from heatlas.reports.read.run_record import RunRecord, has_passed
from heatlas.reports.words.numbers import count, fixed, listing, mid_sentence, number, percent, sentence_case
from heatlas.reports.words.wording import worded

NOT_EVALUATED = "Null and faithfulness checks of the maps have not been run yet (heatlas evaluate)."
COHORTS = {"run": "scans of the run", "planted": "copies of its controls with planted loss"}
"""What the maps were judged on, by the name of the cohort in the tables."""
_NULLS = {
    "uniform": "Even everywhere (no network)",
    "random": "Random (no network)",
    "fakeCamImage": "Fake-CAM (no network)",
    "edges": "Edge detector (no network)",
    "scanDifference": "|scan − mean control| (no network)",
}


def title_of(name: object) -> str:
    """Name of a map, or of an image that needs no network, as a reader sees it.

    Examples
    --------
    >>> title_of("edges"), title_of("lrpB000")
    ('Edge detector (no network)', 'LRP β=0')
    """
    return _NULLS.get(str(name)) or map_title(str(name))


def lines_on(run: RunRecord, name: str) -> list[str]:
    """The verdict line on a map for each cohort that it was judged on."""
    rows = rows_where(run, "verdicts", map=name)
    several = len(rows) > 1
    return [
        f"{COHORTS.get(row['cohort'], row['cohort']) + ': ' if several else ''}{row['verdict']}"
        for row in rows.to_dict("records")
    ]


def _passed_in_words(run: RunRecord, name: str) -> str:
    answer = has_passed(run.tables["verdicts"], name)
    if answer is None:
        return "has neither passed nor failed, since not everything could be asked"
    return "passed" if answer else "did not pass"


def evaluated(run: RunRecord, name: str) -> str:
    """What the evaluation found about the leading map, to end the headline; empty where there was none."""
    if not run.has("verdicts"):
        return ""
    lines = lines_on(run, name)
    if not lines:
        return f" The evaluation of this run did not cover {map_title(name)}."
    if has_passed(run.tables["verdicts"], name) is False:
        return " This map did not pass the evaluation of this run; the warnings say why."
    return f" In the evaluation of this run, this map {_passed_in_words(run, name)}: {'. '.join(lines)}."


def bench_sentence(run: RunRecord, name: str) -> str:
    """What the evaluation found about a map, in two sentences; in one, that it did not look at it."""
    if not run.has("verdicts"):
        return run.why_absent("verdicts", otherwise=NOT_EVALUATED)
    lines = lines_on(run, name)
    if not lines:
        return f"The evaluation of this run did not cover {map_title(name)}."
    return (
        f"In the evaluation of this run, {map_title(name)} {_passed_in_words(run, name)}. "
        f"{sentence_case('; '.join(lines))}."
    )


def evaluation(run: RunRecord) -> Verdict:
    """Which maps passed, and whether the leading one is among them."""
    names = list(dict.fromkeys(run.tables["verdicts"]["map"]))
    passed = [title_of(name) for name in names if has_passed(run.tables["verdicts"], name)]
    answer = f"Passed: {listing(passed)}." if passed else "No map passed."
    lead = run.leading_map
    return Verdict(
        answer,
        f"The report leads with {map_title(lead)}, which {_passed_in_words(run, lead)}."
        if lead in names
        else f"The report leads with {map_title(lead)}, which was not evaluated.",
    )


NEARLY_ALL = 0.9  # an effect that is found in at least this share of the regions says nothing about its place


def planted_effects(run: RunRecord) -> Verdict | None:
    """Which planted effects were found only as a difference in nearly every region; None without any."""
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
        f"Density over both classes follows the prediction, so nearly every region passes: {listing(said)}."
        f"{_within(run)} The section “Are the planted regions found?” says whether the planted regions lead.",
    )


def recovery(run: RunRecord) -> Verdict | None:
    """What the leading map finds, by density and by gain."""
    rows = rows_where(run, "planted_recovery", map=run.leading_map)
    if rows.empty:
        return None
    if run.leads_with_evidence:
        return _recovery_by_evidence(run, rows.iloc[0])
    first = rows.iloc[0]
    parts = [
        f"by {row['metric']}, {number(row['hits'])} of {number(row['n_planted'])} planted regions "
        f"{'is' if row['hits'] == 1 else 'are'} among the first {number(row['top'])} of {number(row['n_groups'])} (a "
        f"random ranking puts {fixed(row['expected_hits'])} there)"
        for row in rows[rows["metric"].isin(["density", "gain"])].to_dict("records")
    ]
    people = count(int(first["n_participants"]), "true-positive participant")
    return Verdict(
        f"{map_title(run.leading_map)}, {people}: {'; '.join(parts)}.",
        f"The planted regions hold {percent(first['volume_share'])} of the volume and "
        f"{percent(first['relevance_share'])} of the positive relevance.",
    )


def _recovery_by_evidence(run: RunRecord, row: pd.Series) -> Verdict | None:
    """What an evidence map finds: planted regions among those whose evidence differs most between the classes."""
    found = planted_leaders(run)
    if found is None:
        return None
    hits, planted, top, places = found
    return Verdict(
        f"{map_title(run.leading_map)}, ranked by the difference of evidence between the classes (Hedges' g): "
        f"{number(hits)} of {number(planted)} planted regions {'is' if hits == 1 else 'are'} among the first "
        f"{number(top)} of {number(row['n_groups'])}.",
        f"Places: {listing([_with_place(group, place) for group, place in places.items()])}. The "
        f"planted regions hold {percent(row['volume_share'])} of the volume and {percent(row['relevance_share'])} of "
        "the positive evidence of true positives.",
    )


def _with_place(group: str, place: Place) -> str:
    """A region with its place, and between which it lies."""
    return f"{mid_sentence(group)} {number(place.number)}" + (f" ({place.span})" if place.span else "")


def planted_leaders(run: RunRecord) -> tuple[int, int, int, dict[str, Place]] | None:
    """Planted regions among the first by which the headline ranks, how many there are, the first, and their places.

    An evidence map ranks by Hedges' g between the classes, any other map by density in true positives. None where this
    is not known.
    """
    name = run.leading_map
    rows = rows_where(run, "planted_recovery", map=name, metric="density")
    if rows.empty:
        return None
    if not run.leads_with_evidence:
        return int(rows["hits"].iloc[0]), int(rows["n_planted"].iloc[0]), int(rows["top"].iloc[0]), {}
    ranked = {group: place_of(run, name, group) for group in run.planted}
    places = {group: place for group, place in ranked.items() if place is not None}
    if not places:
        return None
    return sum(place.number <= TOP for place in places.values()), len(run.planted), TOP, places


def other_leaders(run: RunRecord) -> str:
    """How many planted regions other maps find at most, in a clause; empty unless the leading map finds more.

    All in true positives, by the measure that shows a map at its best.
    """
    rows = run.tables["planted_recovery"] if run.has("planted_recovery") else pd.DataFrame()
    if rows.empty:
        return ""
    is_leading = rows["map"] == run.leading_map
    most, own = rows.loc[~is_leading, "hits"].max(), rows.loc[is_leading, "hits"].max()
    return f"other methods: at most {number(most)}" if own > most else ""


def shuffled_count(run: RunRecord) -> str:
    """With what the number of planted regions found should be compared: a run with shuffled labels."""
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


def planted_regions(run: RunRecord) -> Verdict | None:
    """`recovery`, and what to compare it with."""
    found = recovery(run)
    return None if found is None else Verdict(found.answer, f"{found.grounds} {shuffled_count(run)}")


def _everywhere(run: RunRecord, effect: str, analysis: str) -> pd.DataFrame:
    """The same test in all regions of the leading map, where it is one of density over both classes."""
    density = {"map": run.leading_map, "metric": "density"}
    if analysis == "group_comparisons.tsv":
        return classes_compared(run, known="p_fwe", **density)
    if analysis == "associations.tsv":
        biomarker = effect.removeprefix("severity_")
        return rows_where(
            run, "associations", "p_fwe", biomarker=biomarker, scan_group="all", estimator="pearson", **density
        )
    return pd.DataFrame()


def _within(run: RunRecord) -> str:
    """How many correlations with any measure pass within the patients, whom the prediction does not tell apart."""
    rows = rows_where(
        run, "associations", map=run.leading_map, metric="density", scan_group=run.positive, known="p_fwe"
    )
    if rows.empty:
        return ""
    clear = int((rows["p_fwe"] < CLEAR).sum())
    return f" Within {run.positive}, {number(clear)} of {count(len(rows), 'correlation')} with any measure pass."
