"""The summary at the top of the report: a few questions with answers in plain sentences."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.cohort.people.tasks import TWO_CLASSES
from heatlas.pipeline.run.config.image_kinds import all_images
from heatlas.reports.content.relevance.headline import BRAIN, count_not_planted, regions_that_differ
from heatlas.reports.content.relevance.volume import VOLUME_AND_RELEVANCE
from heatlas.reports.content.run.performance import PERFORMANCE
from heatlas.reports.frame.material import Faults
from heatlas.reports.questions.agreement import order_of_networks
from heatlas.reports.questions.baselines import against_baselines
from heatlas.reports.questions.findings import performance_estimate
from heatlas.reports.questions.map_verdicts import bench_sentence
from heatlas.reports.questions.planted import found_by_the_map
from heatlas.reports.questions.predictions import APPLIED, NUMBER_PERFORMANCE
from heatlas.reports.questions.primary import PRIMARY, in_a_sentence
from heatlas.reports.questions.question import Answer
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import fixed, listing, mid_sentence, shortened


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
    for headline in [one.headline for one in (_WITHOUT_LABELS if run.without_labels else questions) if one.headline]:
        found, unusable = None, run.why_absent(*headline.tables)
        if not unusable:
            found, unusable = faults.attempt(f"The answer to “{headline.asked}”", partial(headline.answer, run))
        if unusable:
            found = Answer(headline.asked, f"{_NOT_KNOWN}. {unusable}")
        answers += [found] if found is not None else []
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
    names = [_SPELLED.get(name, name) for name in reversed(task.outputs)]
    goal = f"tell {listing(names)} apart" if task.classes else f"predict {task.column}"
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
    sentences.append(in_a_sentence(run))
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
    return " against ".join(reversed(task.classes)) or f"{task.column} predicted"


_OF_TWO_CLASSES = (PRIMARY, PERFORMANCE, BRAIN, VOLUME_AND_RELEVANCE)
_OF_OTHER_TASKS = (PRIMARY, NUMBER_PERFORMANCE)
_WITHOUT_LABELS = (APPLIED,)
"""Questions that the summary answers, in its order."""
