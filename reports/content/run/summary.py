"""The top of the report: a few questions with answers in plain sentences, and the two pictures of the index.

Where the network looks is answered by evidence in logits where an evidence map leads, else by density. The pictures
are the leading map on the template, and the regions ranked by the size of the effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.cohort.people.tasks import TWO_CLASSES
from heatlas.pipeline.models.families.registry import is_foreign
from heatlas.pipeline.run.config.images import all_images
from heatlas.reports.content.relevance.maps import difference_pictures
from heatlas.reports.content.relevance.volume import VOLUME_AND_RELEVANCE
from heatlas.reports.content.run.performance import PERFORMANCE
from heatlas.reports.figures.gallery import Picture
from heatlas.reports.frame.material import Faults, Material
from heatlas.reports.frame.tables import PageTable, page_table, worded_columns
from heatlas.reports.questions.comparisons import PRIMARY, in_a_sentence
from heatlas.reports.questions.findings import (
    BY_MEASURE,
    densest,
    evidence_differences,
    firsts_in_words,
    in_words,
    leaders,
    leading_evidence,
    leading_in_words,
    leading_regions,
    least_voxels,
    map_shares,
    overlap_in_words,
    place_columns,
    small_regions,
    smaller_shares,
    summary_means,
    with_places,
)
from heatlas.reports.questions.predictions import (
    APPLIED,
    GUESSING,
    NO_FINDING,
    NUMBER_PERFORMANCE,
    learned_elsewhere,
    learning_in_words,
    networks_guess,
)
from heatlas.reports.questions.question import (
    ANY_TASK,
    CLEAR,
    Answer,
    Headline,
    Question,
    by_ranks,
    classes_compared,
    first_few,
)
from heatlas.reports.questions.trust import bench_sentence, evaluated, found_by_the_map, order_of_networks
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.vector.charts import IntervalRow, draw_intervals
from heatlas.reports.words.numbers import LONGEST_IN_TITLE, count, is_missing, listing, mid_sentence, number, shortened
from heatlas.reports.words.sentences import Words

WORDS = Words(__file__)

WHERE = "Where does it look?"


def where_it_looks(run: RunRecord) -> Answer:
    """Where the leading map lies; regions are named in large type and in the text only where they are a finding."""
    answer = _regions_by_evidence(run) if run.leads_with_evidence else _regions_by_density(run, run.leading_map)
    if answer.text.startswith(_NOT_KNOWN):
        return answer
    passed, tested = differing(run)
    doubt = doubt_about_regions(run)
    if doubt:
        figure = NO_FINDING if networks_guess(run) else "No region"
        return Answer(doubt, figure, more=f"{answer.text} {answer.more}")
    if not passed:
        return answer
    caption = WORDS.say("regions_differ", regions=len(passed), tested=tested, run=run, names=_some(passed))
    return replace(answer, figure=count(len(passed), "region"), figure_caption=caption)


def doubt_about_regions(run: RunRecord) -> str:
    """Why no region is a finding: the networks guess, or none differs; empty where some differ or none was tested."""
    passed, tested = differing(run)
    if networks_guess(run):
        return GUESSING
    return WORDS.say("none_differs", tested=tested, run=run) if tested and not passed else ""


def _regions_by_evidence(run: RunRecord) -> Answer:
    """Where the evidence of the classes differs; LRP, as in the founding study, below it."""
    name = run.leading_map
    found = leading_evidence(run, name, BY_MEASURE)
    if not found.regions:
        return Answer("Not known: the evidence of regions has not been compared between the classes.")
    tested = evidence_differences(run, name)
    level = 100 * run.config.statistics.confidence
    first = tested.loc[[found.regions[0]]].iloc[0]
    text = WORDS.say("largest_difference", region=found.regions[0], row=first, run=run, verdict=evaluated(run, name))
    more = WORDS.say("evidence_differs", run=run, regions=with_places(tested, found.regions), name=name)
    more += f" {firsts_in_words(run, tested)}".rstrip() + " "
    more += WORDS.say(
        "evidence_more", first=first, run=run, leading_in_words=leading_in_words(run, name, found.regions), level=level
    )
    more += f"{found.sentence.strip()} " if found.sentence else ""
    founding = next((one for one in run.main_maps if one in run.lrp_names), None)
    if founding is not None:
        below = _regions_by_density(run, founding)
        more += f"{bench_sentence(run, founding)} {below.text} {below.more}"
    return Answer(text, more=more.strip())


def _regions_by_density(run: RunRecord, name: str) -> Answer:
    """Where a map without a unit lies: its densest regions, its largest shares and gains."""
    densities = summary_means(run, name, "density", run.positive)
    if densities.empty:
        return Answer("Not known: no heatmaps have been summed over regions and analysed yet.")
    parts = map_shares(run, name, run.positive)
    if len(parts) and parts.isna().all():
        return Answer(f"Not known: {map_title(name)} maps of {run.positive} hold no relevance.")
    by_density, by_share = (leading_regions(run, name, metric) for metric in ("density", "sum"))
    people = run.group_sizes[run.positive][1]
    fewer = smaller_shares(run, name, tuple(dict.fromkeys([*by_density, *by_share])))
    text = WORDS.say(
        "densest",
        run=run,
        people=people,
        name=name,
        regions=in_words(by_density, parts),
        firsts_in_words=firsts_in_words(run, densest(run, name)),
    ).rstrip()
    if by_share:
        text += WORDS.say(
            "largest_shares", regions=in_words(by_share, parts), of_these=f" Of these, {fewer}." if fewer else ""
        )
    gains = summary_means(run, name, "gain", "TP")
    if len(gains):
        by_gain = leaders(run, gains, name, "gain", BY_MEASURE)
        hits = run.group_sizes["TP"][1]
        more = WORDS.say(
            "largest_gains",
            run=run,
            hits=hits,
            regions=in_words(by_gain.regions),
            overlap_in_words=overlap_in_words(by_density, by_gain.regions),
        )
    else:
        more = f"Gain against {run.negative} is not known."
    small = small_regions(run)
    if small:
        named = listing([f"{mid_sentence(group)}, {number(n)}" for group, n in small.items()])
        more += f" Regions of fewer than {count(least_voxels(run), 'voxel')} are ranked but not named ({named})."
    return Answer(text, more=more)


RANKED = 8
DIFFERING_NAMED = 7
"""Regions named in a sentence."""


def effects(run: RunRecord) -> tuple[pd.DataFrame, str]:
    """Regions of the leading map by Hedges' g between the classes, largest first, and the measure that is compared.

    The measure is evidence, or the share of the map, which does not follow the prediction.
    """
    name = run.leading_map
    if run.leads_with_evidence:
        return evidence_differences(run, name), "evidence"
    rows = classes_compared(run, map=name, metric="share")
    if rows.empty:
        return pd.DataFrame(), "share of the map"
    rows = rows[rows["hedges_g"].notna()].set_index("group")
    return rows.sort_values("hedges_g", ascending=False, kind="stable"), "share of the map"


def regions_that_differ(run: RunRecord) -> str:
    """How many regions of the leading map differ between the classes, and the first of them by name, in a sentence."""
    passed, tested = differing(run)
    if not tested:
        return ""
    if not passed:
        return WORDS.say("none_differs", tested=tested, run=run)
    names = f": {_some(passed)}"
    most = " When most regions differ, read the order, not the count." if len(passed) > tested / 2 else ""
    return f"{_number_that_differ(len(passed), tested)} the classes{names}.{most}"


def _some(groups: list[str]) -> str:
    return first_few([mid_sentence(group) for group in groups], DIFFERING_NAMED)


def count_not_planted(run: RunRecord) -> str:
    """How many of the regions that differ have no planted disease, in a sentence; empty if all have."""
    passed, _ = differing(run)
    others = sum(group not in run.planted for group in passed)
    return WORDS.say("no_planted_disease", others=others, passed=len(passed)) if others else ""


def _number_that_differ(regions: int, tested: int) -> str:
    return f"{number(regions)} of {count(tested, 'region')} {'differs' if regions == 1 else 'differ'} between"


def differing(run: RunRecord) -> tuple[list[str], int]:
    """Regions of the leading map that differ between the classes, and how many were tested."""
    rows = effects(run)[0] if run.has("group_comparisons") else pd.DataFrame()
    return ([] if rows.empty else [str(group) for group in rows.index[rows["p_fwe"] < CLEAR]]), len(rows)


def build_brain(material: Material) -> Mapping[str, Any]:
    """The difference of the classes on the template, the first regions that differ outlined, and on the surface."""
    run = material.run
    figures: list[Picture] = []
    missing = what = ""
    if run.keeps_mean_maps:
        tested = run.task.classes and not networks_guess(run)  # a line around a region reads as a finding
        figures, what = difference_pictures(material, *differing(run) if tested else ((), 0))
        missing = material.missing_maps(run.map_groups[:2], [run.leading_map])
    else:
        missing = 'This run keeps no mean maps ([attribution] keep_maps = "none").'
    text = f"The leading map is {mid_sentence(map_title(run.leading_map))}."
    if what:
        text += f" Shown in template space: {what}."
    return {"text": text, "figures": figures, "missing": missing, "banner": doubt_about_regions(run)}


def build_ranking(material: Material) -> Mapping[str, Any]:
    """Hedges' g of the leading regions with its interval, and what to expect without a difference."""
    run = material.run
    rows, measure = effects(run)
    if rows.empty:
        return {"chart": None, "answer": "No region could be compared between the classes."}
    found = leaders(run, rows["hedges_g"], run.leading_map, measure, RANKED)
    drawn = [
        IntervalRow(
            str(group), "" if is_missing(row["p_fwe"]) or row["p_fwe"] >= CLEAR else "corrected p < 0.05",
            row["hedges_g"], row["hedges_g_low"], row["hedges_g_high"], material.links.region(str(group)),
            row["g_by_chance"],
        )
        for group, row in rows.loc[list(found.regions)].iterrows()
    ]  # fmt: skip
    clear, first = int((rows["p_fwe"] < CLEAR).sum()), rows.iloc[0]
    classes = f"{run.positive} and {run.negative}"
    title = f"Hedges' g of the {measure}, {run.positive} against {run.negative}"
    short = " against ".join(shortened(name, LONGEST_IN_TITLE) for name in (run.positive, run.negative))
    axis = f"Hedges' g of the {measure}, {short}"
    caption = (
        WORDS.say(
            "ranking_caption",
            title=title,
            regions=len(drawn),
            rows=len(rows),
            run=run,
            level=100 * run.config.statistics.confidence,
            first=first,
            firsts_in_words=firsts_in_words(run, rows),
        ).rstrip()
        + found.sentence
    )
    null = "If the classes did not differ, g would be near 0 in every region."
    if rows["g_by_chance"].notna().any():
        null = WORDS.say("by_chance", level=100 * run.config.statistics.confidence)
    return {
        "chart": draw_intervals(drawn, axis, f"{title}: {listing([row.name for row in drawn[:5]])}.", 0.0),
        "caption": caption,
        "null": null,
        "table": _table(rows, material, f"{title}, all regions."),
        "answer": WORDS.say(
            "ranking_answer",
            number_that_differ=_number_that_differ(clear, len(rows)),
            classes=classes,
            by_ranks=by_ranks(run.positive, run.negative, rows.reset_index()),
            not_planted=not_planted(run, rows),
        ),
    }


def not_planted(run: RunRecord, rows: pd.DataFrame) -> str:
    """On synthetic people: which of the regions that pass are not planted; empty where the truth is not known."""
    passed = [str(group) for group in rows.index[rows["p_fwe"] < CLEAR]]
    others = [mid_sentence(group) for group in passed if group not in run.planted]
    if not run.planted or not passed:
        return ""
    if not others:
        return " All of them were planted."
    return WORDS.say("not_planted", planted=len(passed) - len(others), others=len(others))


def _table(rows: pd.DataFrame, material: Material, caption: str) -> PageTable:
    """All regions with what the chart shows of the first."""
    linked = rows.rename_axis("group").reset_index()
    linked = linked.assign(page=linked["group"].map(material.links.region).astype(object))
    columns = (*worded_columns(WORDS, "table"), *place_columns(rows))
    return page_table(linked, columns, caption)


BRAIN = Question.read(
    WORDS,
    "brain",
    draw=build_brain,
    tasks=ANY_TASK,
    headline=Headline(("predictions", "relevance_bilateral", "region_summary"), where_it_looks),
)
RANKING = Question.read(WORDS, "ranking", draw=build_ranking)


@dataclass(frozen=True)
class Summary:
    """What stands above the sections."""

    source: str
    question: str  # what was asked, in one sentence
    found: str  # the answers in short; empty where there are none
    trust: str  # what was done to find out whether the map is true, in a sentence or two
    answers: tuple[Answer, ...]


def summarise(run: RunRecord, faults: Faults | None = None) -> Summary:
    """The summary of a run, as far as it went; answers that cannot be given are added to `faults`."""
    faults, answers = faults or Faults(run.layout), []
    questions = _OF_TWO_CLASSES if run.task.kind.name == TWO_CLASSES else _OF_OTHER_TASKS
    for question in _WITHOUT_LABELS if run.without_labels else questions:
        headline, asked = question.headline, question.asked or question.title
        if headline is None:
            continue
        found, unusable = None, run.why_absent(*headline.tables)
        if not unusable:
            found, unusable = faults.attempt(f"The answer to “{asked}”", partial(headline.answer, run))
        if unusable:
            found = Answer(f"{_NOT_KNOWN}. {unusable}")
        answers += [replace(found, question=asked)] if found is not None else []
    answers.sort(key=lambda one: one.text.startswith(_NOT_KNOWN))  # no report begins with what is not known
    found_in_short, _ = faults.attempt("What was found", partial(_found, run))
    return Summary(_source(run), _asked(run), found_in_short or "", _trust(run), tuple(answers))


_NOT_KNOWN = "Not known"
_SPELLED = {"AD": "Alzheimer's disease (AD)", "CN": "cognitively normal (CN)", "MCI": "mild cognitive impairment (MCI)"}


def _source(run: RunRecord) -> str:
    kind = "Synthetic cohort" if run.is_synthetic else f"Input: {shortened(run.source.input.name)}"
    finished_on = str(run.provenance.get("time", ""))[:10]
    when = f" · run of {finished_on}" if finished_on else ""
    return f"{kind} · {task_in_words(run)} · seed {run.config.seed}{when}"


def _asked(run: RunRecord) -> str:
    """The question of the study."""
    task = run.task
    names = [_SPELLED.get(name) or run.in_words(name) for name in task.outputs][::-1]
    goal = f"tell {listing(names)} apart" if task.classes else f"predict {task.column}"
    whose = " of synthetic people" if run.is_synthetic else ""
    images = all_images(run.config.cohort.kinds)
    if run.config.training.networks_of and not is_foreign(run.config.model):
        return WORDS.say("asked_of_others_networks", goal=goal, images=images, whose=whose)
    if run.is_given:
        return WORDS.say("asked_of_one_network", goal=goal, images=images, whose=whose)
    return WORDS.say("asked", goal=goal, images=images, whose=whose)


def _found(run: RunRecord) -> str:
    """Whether the networks learned; only then which regions differ, of two classes, and the primary outcome."""
    sentences = [learning_in_words(run)]
    if networks_guess(run):
        return f"{sentences[0]} {WORDS.say('so_no_regions')}"
    if run.task.kind.name == TWO_CLASSES:
        sentences.append(regions_that_differ(run))
    sentences.append(in_a_sentence(run))
    return " ".join(filter(None, sentences))


def _trust(run: RunRecord) -> str:
    """What the evaluation says of the leading map, and on synthetic people whether it finds what was planted."""
    if run.without_labels:
        learned = learned_elsewhere(run)
        return WORDS.say("trust_elsewhere" if learned else "trust_unknown", learned=learned)
    if not run.has("relevance_bilateral"):
        return "There are no maps yet."
    planted = found_by_the_map(run)
    planted += count_not_planted(run) if planted else ""
    if run.has("verdicts"):
        return planted + bench_sentence(run, run.leading_map) + order_of_networks(run)
    return planted + WORDS.say("unchecked") + order_of_networks(run)


def task_in_words(run: RunRecord) -> str:
    """What is told apart or predicted."""
    task = run.task
    return " against ".join(map(run.in_words, reversed(task.classes))) or f"{task.column} predicted"


_OF_TWO_CLASSES = (PERFORMANCE, BRAIN, VOLUME_AND_RELEVANCE, PRIMARY)
_OF_OTHER_TASKS = (NUMBER_PERFORMANCE, PRIMARY)
_WITHOUT_LABELS = (APPLIED,)
"""Questions that the summary answers, in its order."""
