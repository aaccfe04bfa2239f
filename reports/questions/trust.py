"""Whether a map can be trusted: what was planted, what the evaluation says of it, whether rankings agree.

Verdicts are those of ``heatlas evaluate`` (``verdicts.tsv``). Planted truth is known of synthetic people alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.evaluation.planted import TOP
from heatlas.reports.questions.findings import Place, place_of
from heatlas.reports.questions.question import CLEAR, Caution, Check, Question, Verdict, classes_compared, rows_where
from heatlas.reports.read.run_record import RunRecord, has_passed
from heatlas.reports.words.numbers import (
    count,
    is_missing,
    listing,
    mid_sentence,
    number,
)
from heatlas.reports.words.sentences import Words
from heatlas.reports.words.wording import worded

WORDS = Words(__file__)

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
    return WORDS.say("bench_sentence", name=name, passed_in_words=_passed_in_words(run, name), lines="; ".join(lines))


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


LARGELY, PARTLY = 0.7, 0.4  # smallest mean rank correlations with which rankings are said to agree largely, and in part
_BETWEEN = {"folds": "networks of different folds", "betas": "values of β", "methods": "LRP and guided backpropagation"}


def rankings_compared(run: RunRecord) -> pd.DataFrame | None:
    """Rankings by density that were compared, those of the leading map and those of several maps."""
    if not run.has("ranking_agreement"):
        return None
    rows = rows_where(run, "ranking_agreement", "kendall_w", metric="density", scans="all")
    if rows.empty:
        return rows
    rows = rows[rows["map"].isna() | (rows["map"] == run.leading_map)]
    return rows.assign(correlation=mean_rank_correlation(rows["kendall_w"], rows["n_rankings"]))


def mean_rank_correlation(w: pd.Series, n_rankings: pd.Series) -> pd.Series:
    """Mean Spearman correlation of all pairs of rankings, from Kendall's W (Kendall & Babington Smith 1939).

    W itself is 1 / m for m rankings drawn by chance, so that two rankings look more alike by it than five; this is 0.
    """
    return (n_rankings * w - 1) / (n_rankings - 1)


def _do_they_agree(rows: pd.DataFrame) -> Verdict | None:
    """Whether folds, values of beta and methods rank regions alike."""
    if rows.empty:
        return None
    least = rows.sort_values("correlation", kind="stable").iloc[0]
    lead = rows.sort_values("overlap", kind="stable").iloc[0]
    agree = (
        "largely agree" if least["correlation"] >= LARGELY else
        "agree in part" if least["correlation"] >= PARTLY else "hardly agree"
    )  # fmt: skip
    said, first = [_ranked(row) for _, row in rows.iterrows()], rows.iloc[0]
    return Verdict(
        WORDS.say(
            "rankings_agree",
            agree=agree,
            least_between=_between(least),
            least=least,
            lead=lead,
            most_shared_between=_between(lead),
        ),
        WORDS.say("rankings_grounds", first=first, said=said),
    )


def _ranked(row: pd.Series) -> str:
    return WORDS.say("ranked", between=_between(row), row=row)


def _between(row: pd.Series) -> str:
    said = _BETWEEN.get(str(row["between"]), str(row["between"]))
    return said if is_missing(row["map"]) else f"{said} ({map_title(str(row['map']))})"


def order_of_networks(run: RunRecord) -> str:
    """Whether networks trained on different people order regions alike in the leading map; empty if they do."""
    rows = rankings_compared(run)
    if run.is_given or rows is None or rows.empty:  # one network has nothing to agree with
        return ""
    between_folds = rows.loc[(rows["between"] == "folds") & (rows["map"] == run.leading_map), "correlation"]
    if between_folds.empty or between_folds.iloc[0] >= LARGELY:
        return ""
    how = "only in part alike" if between_folds.iloc[0] >= PARTLY else "very differently"
    return f" Networks trained on different people order the regions {how}: do not read much into the order."


AGREEMENT = Question.read(
    WORDS,
    "agreement",
    facts=rankings_compared,
    answer=_do_they_agree,
    methods=lambda rows: "Agreement of rankings of regions is Kendall's W [@kendall].",
)


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


def planted_recovery(run: RunRecord) -> Recovery | None:
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
        return WORDS.say("shuffled_networks", row=row)
    if run.config.cohort.shuffle_labels:
        return "The labels of this run were shuffled: a run with the true labels should find more regions."
    return WORDS.say("repeat_shuffled")


def recovery(found: Recovery) -> Verdict | None:
    """What the leading map finds, by density and by gain."""
    if found.rows.empty:
        return None
    first = found.rows.iloc[0]
    if found.by_evidence:
        return _by_evidence(found, first)
    parts = [
        WORDS.say("found_by", row=row)
        for row in found.rows[found.rows["metric"].isin(["density", "gain"])].to_dict("records")
    ]
    people = count(int(first["n_participants"]), "true-positive participant")
    return Verdict(
        f"{found.title}, {people}: {'; '.join(parts)}.",
        WORDS.say("planted_share", first=first),
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
        WORDS.say("found_by_evidence", found=found, leaders=leaders, row=row),
        WORDS.say("places_by_evidence", places=places, row=row),
    )


def _are_they_found(found: Recovery) -> Verdict | None:
    """`recovery`, and what to compare it with."""
    said = recovery(found)
    return None if said is None else Verdict(said.answer, f"{said.grounds} {found.by_chance}")


def _missed(found: Recovery) -> Caution | None:
    """Planted disease that the leading map does not show where the headline looks."""
    leaders = found.leaders
    if leaders is None or 2 * leaders.hits > leaders.planted:
        return None
    ranked = "difference of evidence between the classes" if found.by_evidence else "density"
    return Caution.read(WORDS, "missed", leaders=leaders, ranked=ranked, found=found)


def found_by_the_map(run: RunRecord) -> str:
    """How many planted regions the leading map has among its first, for the summary; empty where this is not known."""
    found = planted_recovery(run)
    if found is None or found.leaders is None:
        return ""
    most, hits = found.others["hits"].max(), found.rows["hits"].max()
    others = f" (other methods: at most {number(most)})" if hits > most else ""
    return WORDS.say("found_by_the_map", found=found, others=others)


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
        WORDS.say("effects_everywhere", found=found, said=len(said)),
        WORDS.say("effects_grounds", said=said, within=within),
    )


PLANTED = Question.read(
    WORDS,
    "planted",
    facts=planted_recovery,
    answer=_are_they_found,
    cautions=(Check("planted", _missed, ("planted_recovery",)),),
)

PLANTED_EFFECTS = Question.read(WORDS, "planted-effects", facts=_facts_of_effects, answer=_effects)


def _claims(run: RunRecord) -> Verdict | None:
    """How many claims hold; None where none could be asked."""
    each = run.tables["claims"].drop_duplicates("claim")
    asked = each[each["verdict"] != "not asked"]
    if asked.empty:
        return None
    found = asked["verdict"].value_counts()
    hold, differ, still = (int(found.get(one, 0)) for one in ("holds", "does not", "open"))
    people, networks = (int(asked[f"n_{one}"].iloc[0]) for one in ("participants", "networks"))
    trainings = int(asked["n_trainings"].iloc[0]) if "n_trainings" in asked else 1  # of a table from before --train
    others = len(each) - len(asked)
    grounds = WORDS.say("claims_grounds", people=people, networks=networks, trainings=trainings, others=others)
    return Verdict(WORDS.say("claims_hold", asked=len(asked), hold=hold, differ=differ, open=still), grounds)


CLAIMS = Question.read(WORDS, "claims", facts=lambda run: run if run.has("claims") else None, answer=_claims)
