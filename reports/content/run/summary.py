"""The summary at the top of the report: a few questions with answers in plain sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.cohort.people.tasks import TWO_CLASSES
from heatlas.pipeline.run.config.image_kinds import all_images
from heatlas.pipeline.statistics.associations.volume_association import ADJUSTED, REGION
from heatlas.reports.content.relevance.headline import (
    WHERE,
    count_not_planted,
    leading_regions,
    regions_that_differ,
    smaller_shares,
    where_it_looks,
)
from heatlas.reports.frame.material import Faults
from heatlas.reports.questions import predictions, primary
from heatlas.reports.questions.agreement import order_of_networks
from heatlas.reports.questions.baselines import against_baselines
from heatlas.reports.questions.findings import (
    Estimate,
    performance_estimate,
    primary_volume,
    volume_estimate,
    within_folds,
)
from heatlas.reports.questions.map_verdicts import bench_sentence
from heatlas.reports.questions.planted import found_by_the_map
from heatlas.reports.questions.question import CLEAR, Answer
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import (
    count,
    fixed,
    interval,
    listing,
    mid_sentence,
    number,
    p_value,
    shortened,
)
from heatlas.reports.words.wording import hippocampal_source, worded


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
    two_classes = run.task.kind.name == TWO_CLASSES
    questions = _QUESTIONS if two_classes else _QUESTIONS_OF_OTHER_TASKS
    for question, tables, answer in _QUESTIONS_WITHOUT_LABELS if run.without_labels else questions:
        found, unusable = None, run.why_absent(*tables)
        if not unusable:
            found, unusable = faults.attempt(f"The answer to “{question}”", partial(answer, run))
        if unusable:
            found = Answer(question, f"{_NOT_KNOWN}. {unusable}")
        answers += [found] if found is not None else []
    answers.sort(key=lambda one: one.text.startswith(_NOT_KNOWN))  # no report begins with what is not known
    found_in_short, _ = faults.attempt("What was found", partial(_found, run))
    return Summary(_source(run), _asked(run), found_in_short or "", _trust(run), tuple(answers))


_NOT_KNOWN = "Not known"
_SPELLED = {"AD": "Alzheimer's disease (AD)", "CN": "cognitively normal (CN)", "MCI": "mild cognitive impairment (MCI)"}
_HOW_GOOD, _ATROPHY = "How good is the classifier?", "Does it agree with atrophy?"


def _source(run: RunRecord) -> str:
    kind = "Synthetic cohort" if run.is_synthetic else f"Input: {shortened(run.source.input.name)}"
    finished_on = str(run.provenance.get("time", ""))[:10]
    when = f" · run of {finished_on}" if finished_on else ""
    return f"{kind} · {task_in_words(run)} · seed {run.config.seed}{when}"


def _asked(run: RunRecord) -> str:
    """The question of the study."""
    task = run.task
    names = [_SPELLED.get(name, name) for name in reversed(task.outputs)]
    goal = f"predict {task.column}" if task.is_number else f"tell {listing(names)} apart"
    whose = " of synthetic people" if run.is_synthetic else ""
    images = all_images(run.config.cohort.kinds)
    if run.config.training.networks_of:
        return (
            f"Networks that were trained on another cohort to {goal} were applied to {images}{whose}. "
            "Heatmaps show which parts of the brain their answer rests on."
        )
    if run.is_given:
        return (
            f"A network that was trained elsewhere to {goal} was applied to {images}{whose}. Heatmaps "
            "show which parts of the brain its answer rests on."
        )
    return (
        f"A convolutional network was trained to {goal} in {images}{whose}. Heatmaps show which parts of "
        "the brain its answer rests on."
    )


def _found(run: RunRecord) -> str:
    """Accuracy and the regions that differ, of two classes, and the primary outcome, in a sentence each."""
    sentences = []
    estimate = None if run.task.kind.name != TWO_CLASSES else performance_estimate(run, "balanced_accuracy")
    if estimate is not None:
        sentences.append(
            f"Networks told {run.positive} from {run.negative} in people {run.in_whom} with a balanced accuracy of "
            f"{fixed(estimate.value)}."
        )
    sentences.append(against_baselines(run))
    if run.task.kind.name == TWO_CLASSES:
        sentences.append(regions_that_differ(run))
    sentences.append(primary.in_a_sentence(run))
    return " ".join(filter(None, sentences))


def _trust(run: RunRecord) -> str:
    """What the evaluation says of the leading map, and on synthetic people whether it finds what was planted."""
    if run.without_labels:
        return "As far as the run that the networks are from: its report says what they and their maps are worth."
    if not run.has("relevance_bilateral"):
        return "There are no maps yet."
    planted = found_by_the_map(run)
    planted += count_not_planted(run) if planted else ""
    if run.has("verdicts"):
        return planted + bench_sentence(run, run.leading_map) + order_of_networks(run)
    what = "the same map" if planted else f"the map ({mid_sentence(map_title(run.leading_map))})"
    unchecked = f"It has not been checked yet whether an untrained network gives {what} (heatlas evaluate)."
    return planted + unchecked + order_of_networks(run)


def task_in_words(run: RunRecord) -> str:
    """What is told apart or predicted."""
    task = run.task
    if task.is_number:
        return f"{task.column} predicted"
    return " against ".join(reversed(task.outputs))


def _classifier(run: RunRecord) -> Answer:
    estimate = performance_estimate(run, "balanced_accuracy")
    if estimate is None:
        if run.has("predictions") and not run.has("performance"):
            return Answer(_HOW_GOOD, "There are predictions; the statistics will add measures and intervals.")
        if run.has("predictions"):
            return Answer(_HOW_GOOD, "There are predictions, but no balanced accuracy over both classes.")
        return Answer(_HOW_GOOD, "Not known: no network has been trained and tested yet.")
    confidence = run.config.statistics.confidence
    estimates = {metric: performance_estimate(run, metric) for metric in ("sensitivity", "specificity", "auc")}
    others = [f"{worded(metric)} {fixed(one.value)}" for metric, one in estimates.items() if one is not None]
    text = (
        f"Networks told {run.positive} from {run.negative} in people {run.in_whom} with a balanced accuracy of "
        f"{fixed(estimate.value)} ({interval(estimate.low, estimate.high, 2, confidence)}), where 0.50 is guessing; "
        f"{listing(others)}. This rests on {count(estimate.scans, 'scan')} of "
        f"{count(estimate.participants, 'participant')}. {against_baselines(run)}"
    ).strip()
    return Answer(_HOW_GOOD, text, fixed(estimate.value), f"balanced accuracy, n = {number(estimate.participants)}")


def _volume(run: RunRecord) -> Answer:
    name = run.leading_map
    estimate = volume_estimate(run, name)
    if not run.has("volume_association"):
        return Answer(_ATROPHY, "Not known: the statistics have not been run yet.")
    if estimate is None:
        return Answer(_ATROPHY, "Not known: there are no true positives with a hippocampal volume, or too few of them.")
    guided = volume_estimate(run, "gb")
    known = [
        (map_title(one), estimate_of_map)
        for one, estimate_of_map in ((name, estimate), ("gb", guided))
        if estimate_of_map is not None
    ]
    what = "evidence" if run.leads_with_evidence else "relevance"
    adjusted = ", divided by intracranial volume," if primary_volume(run) == ADJUSTED else ""
    source = hippocampal_source(run)
    confidence = run.config.statistics.confidence
    each = [
        f"{title} r\xa0=\xa0{fixed(one.value)}{within_folds(one)} ({interval(one.low, one.high, 2, confidence)}, "
        f"{p_value(one.p_fdr)}, FDR-corrected over the maps)"
        for title, one in known
    ]
    text = (
        f"{_verdict([one for _, one in known])} Only true positives are compared here. If the network "
        f"uses atrophy, r is negative: more {what} in a "
        f"smaller hippocampus.{_not_grown(run, name)}"
    )
    more = (
        f"Among {count(estimate.participants, 'true-positive participant')}, "
        f"{what} in the hippocampus and its volume ({source}){adjusted} correlate as follows: {'; '.join(each)}. "
        f"{interval_against_p(known)}"
    )
    if guided is not None:
        same = (guided.value < 0) == (estimate.value < 0)
        more += f"The two maps {'agree' if same else 'disagree'} in the sign."
    figure = f"r = {fixed(estimate.value)}"
    caption = (
        f"{what} and volume{' ÷ intracranial volume' * bool(adjusted)}{within_folds(estimate)}, {map_title(name)}, "
        f"n = {count(estimate.participants, 'true positive')}, "
        f"FDR-corrected {p_value(estimate.p_fdr)}"
    )
    return Answer(_ATROPHY, text, figure, caption, more.strip())


def _not_grown(run: RunRecord, name: str) -> str:
    """Regions whose share of the map is smaller in the positive class, despite its atrophy; empty without any."""
    if not run.has("relevance_bilateral", "predictions") or name in run.evidence_maps:  # which is not read as a share
        return ""
    regions = dict.fromkeys((REGION, *leading_regions(run, name, "density"), *leading_regions(run, name, "sum")))
    fewer = smaller_shares(run, name, tuple(regions))
    return f" Between the classes, {fewer}: relevance there did not increase with the disease." if fewer else ""


def interval_against_p(known: Sequence[tuple[str, Estimate]]) -> str:
    """Which intervals and corrected p values of the same r seem to contradict each other."""
    without = [
        title for title, estimate in known if (estimate.low > 0 or estimate.high < 0) and estimate.p_fdr >= CLEAR
    ]
    around = [title for title, estimate in known if estimate.low <= 0 <= estimate.high and estimate.p_fdr < CLEAR]
    remarks = [
        f"{listing(titles)} {'has an interval' if len(titles) == 1 else 'have intervals'} {word} 0 but a corrected p "
        f"{side} 0.05"
        for titles, word, side in ((without, "without", "not below"), (around, "with", "below"))
        if titles
    ]
    if not remarks:
        return ""
    return f"{listing(remarks)}: intervals are not corrected; the conclusion rests on the corrected p. "


def _verdict(estimates: Sequence[Estimate]) -> str:
    """The answer in short, from the correlations that survive correction; the headline map comes first."""
    signs = {estimate.value < 0 for estimate in estimates if estimate.p_fdr < CLEAR}
    if not signs:
        return "No clear correlation."
    if len(signs) == 2:
        return "The maps contradict each other."
    if not estimates[0].p_fdr < CLEAR:
        return "No clear correlation by the headline map."
    return "Yes." if signs == {True} else "No: the opposite of what atrophy predicts."


_QUESTIONS: Sequence[tuple[str, tuple[str, ...], Callable[[RunRecord], Answer | None]]] = (
    (primary.ASKED, ("primary",), primary.in_the_summary),
    (_HOW_GOOD, ("predictions", "performance"), _classifier),
    (WHERE, ("predictions", "relevance_bilateral", "region_summary"), where_it_looks),
    (_ATROPHY, ("volume_association",), _volume),
)
_QUESTIONS_WITHOUT_LABELS: Sequence[tuple[str, tuple[str, ...], Callable[[RunRecord], Answer | None]]] = (
    (predictions.SAY, ("predictions_applied",), predictions.what_networks_say),
)
_QUESTIONS_OF_OTHER_TASKS: Sequence[tuple[str, tuple[str, ...], Callable[[RunRecord], Answer | None]]] = (
    (primary.ASKED, ("primary",), primary.in_the_summary),
    (predictions.HOW_PREDICTED, ("scans",), predictions.how_predicted),
)
"""Each question, the tables that its answer is read from, and the function that gives the answer or None."""
