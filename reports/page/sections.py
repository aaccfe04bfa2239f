"""The sections of the report, each with its page, and the reasons to doubt the result, the worst first.

A check is a function of the run, or of the facts of a question, that gives a caution or None. The summary is made by
`reports.content.run.summary`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from heatlas.atlases.templates import configured_template
from heatlas.pipeline.cohort.people.tasks import TWO_CLASSES
from heatlas.pipeline.run.plugins import plugged_in
from heatlas.reports.content.relevance import differences, evaluation, founding, maps, regions, volume
from heatlas.reports.content.run import cohort, colophon, performance, registration, summary
from heatlas.reports.frame import pages
from heatlas.reports.frame.material import Faults, Material
from heatlas.reports.people.first_scan import FIRST_SCAN
from heatlas.reports.people.likeness import LIKENESS_QUESTION
from heatlas.reports.questions.analyses import ANALYSES
from heatlas.reports.questions.comparisons import PRIMARY, scaled_by_probability
from heatlas.reports.questions.findings import in_words
from heatlas.reports.questions.predictions import APPLIED, learning_in_words, networks_guess, run_of_networks
from heatlas.reports.questions.question import ANY_TASK, TWO, Caution, Check, PartView, Question, Section
from heatlas.reports.questions.trust import PLANTED, PLANTED_EFFECTS
from heatlas.reports.read.run_files import APPLIED_OF, PREDICTIONS_OF
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import LONGEST_TEXT, count, listing, number, sentence_case, shortened
from heatlas.reports.words.sentences import Words

WORDS = Words(__file__)


@dataclass(frozen=True)
class BuiltSection:
    """A section ready to be rendered: with its variables, or with the sentence that says why it is empty."""

    section: Question
    content: Mapping[str, Any] = field(default_factory=dict)
    absent: str = ""


def build_section(section: Question, material: Material) -> BuiltSection | None:
    """Build one section; None if it is not made for the task, or has nothing to say."""
    run = material.run
    if not section.applies_to(run):
        return None
    missing = [name for name in section.requires if not run.has(name)]
    if missing:
        absent = run.why_absent(*missing, otherwise="" if run.without_labels else section.absent)
        return BuiltSection(section, absent=absent) if absent else None
    return BuiltSection(section, section.build(material))


def _undefined(material: Material) -> Mapping[str, Any]:
    """The sections that a run of another task does not have, in one sentence."""
    task = material.run.task
    names = [section.short for section in QUESTIONS if section.tasks == TWO and section.id not in _OF_OTHER_RUNS]
    names += ["Region table"] * (not task.classes)
    return {"text": f"Not defined for a run that {task.kind.does}, as they compare two classes: {listing(names)}."}


def _in_short(material: Material) -> Mapping[str, Any]:
    """Every other question that has a verdict with its answer in a line, and the analyses that could not be done."""
    run, rows = material.run, []
    for section in QUESTIONS:
        if section.answer is not None and section.applies_to(run) and section.id not in _SAID_ABOVE:
            has_tables = all(run.has(name) for name in section.requires)
            answer = partial(section.answered, run)
            found, wrong = material.faults.attempt(f"“{section.title}”", answer) if has_tables else (None, "")
            said = found.answer if found else wrong or section.absent
            rows += [(section.title, said, section.id)] if said else []
    undone = list(dict.fromkeys(run.tables["notes"]["analysis"].dropna())) if run.has("notes") else []
    return {"rows": rows, "undone": sentence_case(listing(undone))}


_SAID_ABOVE = (PRIMARY.id, "baselines", "comparisons", "effects")
"""Questions that the index answers in its first lines, its cards or its chart of regions."""
_OF_OTHER_RUNS = (PLANTED.id, PLANTED_EFFECTS.id, FIRST_SCAN.id, LIKENESS_QUESTION.id, APPLIED.id)
"""Questions of synthetic people, and of people without labels."""


IN_SHORT = Question.read(WORDS, "in-short", draw=_in_short, tasks=ANY_TASK, applies=lambda run: not run.without_labels)
UNDEFINED = Question.read(WORDS, "undefined", draw=_undefined, tasks=ANY_TASK - {TWO_CLASSES})

OWN = (
    FIRST_SCAN, LIKENESS_QUESTION, APPLIED, summary.BRAIN, summary.RANKING, IN_SHORT, cohort.PARTICIPANTS, PRIMARY,
    performance.PERFORMANCE, maps.MAPS, founding.PATIENTS, founding.BETA, regions.REGIONS, regions.REGION_TABLE,
    differences.IMAGE_DIFFERENCES, differences.VOXELWISE, volume.VOLUME_AND_RELEVANCE, cohort.COHORT,
    registration.REGISTRATION, performance.TRAINING, founding.CONSERVATION, colophon.METHODS, UNDEFINED,
    colophon.GLOSSARY_PAGE, evaluation.EVALUATION, colophon.PROVENANCE, colophon.CREDITS,
)  # fmt: skip
TAKEN = [
    *(question.id for question in (*OWN, *ANALYSES)), evaluation.FURTHER, *(view.name for view in evaluation.VIEWS)
]  # fmt: skip
ADDED = plugged_in("questions", Section, TAKEN)
PART_VIEWS = {view.name: view for view in (*evaluation.VIEWS, *ADDED) if isinstance(view, PartView)}


def _in_order() -> list[Question]:
    """All questions, those of plug-ins after the section that they name, or at the end of their page."""
    questions = [*OWN, evaluation.further_results(PART_VIEWS), *ANALYSES]
    for question in ADDED:
        if isinstance(question, Question):
            ids = [other.id for other in questions]
            questions.insert(ids.index(question.after) + 1 if question.after in ids else len(ids), question)
    return sorted(questions, key=lambda question: pages.CHAPTERS.index(question.page))


QUESTIONS: Sequence[Question] = _in_order()
"""All questions, page by page, on each page in this order."""


def sections_of(page: pages.Chapter) -> list[str]:
    """Anchors of the sections of a page, in order."""
    return [section.id for section in QUESTIONS if section.page == page]


UNSEEN_SHARE = 0.01
NAMED_FAULTS = 8  # faults named on the page


def find_cautions(run: RunRecord, faults: Faults | None = None) -> list[Caution]:
    """All cautions that apply, serious ones first; a check that cannot be made is added to `faults`."""
    faults = faults or Faults(run.layout)
    cautions = [faults.attempt("A warning", partial(check, run))[0] for check in CHECKS]
    cautions.append(_faulty(list(faults.said)))
    return sorted(filter(None, cautions), key=lambda caution: caution.level != "serious")


def _faulty(sentences: Sequence[str]) -> Caution | None:
    """Maps and sections that are missing from the report; tables have their own caution."""
    if not sentences:
        return None
    more = (
        f" {number(len(sentences) - NAMED_FAULTS)} more are in logs/run.log." if len(sentences) > NAMED_FAULTS else ""
    )
    return Caution("serious", "Parts of this report are missing.", " ".join(sentences[:NAMED_FAULTS]) + more)


def _synthetic(run: RunRecord) -> Caution | None:
    if not run.is_synthetic:
        return None
    return Caution.read(WORDS, "synthetic", planted_regions=_planted_regions(run))


def _planted_regions(run: RunRecord) -> str:
    """The planted regions by name; empty where the truth is not known."""
    if not run.planted:
        return ""
    named = in_words(run.planted)
    return f" in {count(len(run.planted), 'region')}, here called the planted regions: {named}"


def _shuffled(run: RunRecord) -> Caution | None:
    if not run.config.cohort.shuffle_labels:
        return None
    return Caution.read(WORDS, "shuffled")


def missing_stages(run: RunRecord) -> list[str]:
    """Stages of a run that have no results yet."""
    predictions = PREDICTIONS_OF[run.task.kind.name]
    if run.without_labels:
        tables = {
            "training": APPLIED_OF[run.task.kind.name],
            "regions": "relevance_applied_bilateral",
            "statistics": "notes",
        }
        return [stage for stage, table in tables.items() if not run.has(table) and table not in run.unreadable]
    stages = (
        ("registration", ("registration",)), ("training", (predictions,)),
        # Maps that owe nothing to a start value or reference are in the table of regions only.
        ("attribution", ("conservation", "evidence", "relevance_bilateral")),
        ("regions", ("relevance_bilateral",)), ("statistics", (predictions.replace("predictions", "performance"),)),
    )  # fmt: skip
    return [stage for stage, tables in stages if not any(run.has(table) or table in run.unreadable for table in tables)]


def _unfinished(run: RunRecord) -> Caution | None:
    missing = missing_stages(run)
    if not missing:
        return None
    return Caution.read(WORDS, "unfinished", missing=missing, first=missing[0])


def _unreadable(run: RunRecord) -> Caution | None:
    if not run.unreadable:
        return None
    which = "A table" if len(run.unreadable) == 1 else "Tables"
    return Caution("serious", f"{which} cannot be used.", run.why_absent(*run.unreadable))


def _changed(run: RunRecord) -> Caution | None:
    if not run.changed:
        return None
    which = "A table was" if len(run.changed) == 1 else "Tables were"
    return Caution("serious", f"{which} changed after the run.", " ".join(run.changed))


def _without_labels(run: RunRecord) -> Caution | None:
    if not run.without_labels:
        return None
    origin = run_of_networks(run)
    if origin is not None and networks_guess(origin):
        return Caution.read(WORDS, "not-learned-elsewhere", learned=learning_in_words(origin))
    return Caution.read(WORDS, "without-labels")


def _failed(run: RunRecord) -> Caution | None:
    by_stage = run.tables["failures"]["stage"].value_counts()
    counts = listing([f"{number(n)} in {stage}" for stage, n in by_stage.items()])
    return Caution.read(WORDS, "failed", counts=counts)


def _same_images(run: RunRecord) -> Caution | None:
    note = str(run.provenance.get("sources", {}).get("same_images", ""))
    if not note:
        return None
    text = f"{note[:1].upper()}{shortened(note[1:], LONGEST_TEXT)}. The same image then counts several times."
    return Caution("serious", "One image stands for several scans.", text, "cohort")


def _in_sample(run: RunRecord) -> Caution | None:
    if not run.may_have_seen:
        return None
    return Caution.read(WORDS, "in-sample")


def _undone(run: RunRecord) -> Caution | None:
    """Analyses that the data did not allow."""
    names = [str(name).replace("_", " ") for name in dict.fromkeys(run.tables["notes"]["analysis"]) if name != "inputs"]
    if not names:
        return None
    return Caution.read(WORDS, "undone", names=names)


def _binarised(run: RunRecord) -> Caution | None:
    control = str(getattr(run.config.training, "control", "none"))
    if control in ("", "none"):
        return None
    return Caution.read(WORDS, "binarised", control=control)


def _several_networks(run: RunRecord) -> Caution | None:
    if not run.has("relevance_bilateral") or len(run.models) < 2 or run.is_given:
        return None
    if run.config.statistics.fold_effect:
        tests = (
            "Every test on relevance is adjusted for the fold: it compares only people explained by the same network."
        )
    else:
        tests = "The tests are not adjusted for the fold ([statistics] fold_effect = false)."
    return Caution.read(WORDS, "several-networks", tests=tests)


def _unseen(run: RunRecord) -> Caution | None:
    """Part of the brain that lies outside the field of view of the networks."""
    described = [model for model in run.models.values() if "seen_shape" in model]
    if not described:
        return None
    brain = configured_template(run.config.registration).brain_mask
    shares = []
    for model in described:
        box, shape = model.get("input", {}).get("box"), model["seen_shape"]
        start = box["start"] if box else (0, 0, 0)
        seen = tuple(slice(first, first + side) for first, side in zip(start, shape, strict=True))
        shares.append(1 - np.count_nonzero(brain[seen]) / np.count_nonzero(brain))
    if max(shares) <= UNSEEN_SHARE:
        return None
    return Caution.read(WORDS, "unseen", shares=max(shares))


def _atlas(run: RunRecord) -> Caution | None:
    atlas = run.provenance.get("sources", {}).get("atlas", {})
    empty = atlas.get("empty", [])
    text = " ".join(
        filter(None, [atlas.get("note", ""), empty and f"Without a voxel at this resolution: {listing(empty)}."])
    )
    return Caution("note", "About the atlas.", text, "credits") if text else None


_OF_THE_RUN: Sequence[Check] = (
    Check("in-sample", _in_sample), Check("without-labels", _without_labels), Check("synthetic", _synthetic),
    Check("shuffled", _shuffled), Check("unfinished", _unfinished), Check("unreadable", _unreadable),
    Check("changed", _changed), Check("failed", _failed, ("failures",)), Check("same-images", _same_images),
    Check("binarised", _binarised), Check("undone", _undone, ("notes",)), Check("unseen", _unseen),
    Check("scaled", scaled_by_probability), Check("several-networks", _several_networks), Check("atlas", _atlas),
)  # fmt: skip
_ORDER = (
    "sums", "in-sample", "without-labels", "other-cohort", "synthetic", "shuffled", "unfinished", "unreadable",
    "changed", "failed", "same-images", "few", "chance", "not-better", "mirrored", "registration", "own-volumes",
    "not-learned", "not-converged", "imbalanced", "negative-start", "losses", "gain", "dropped", "empty-outcomes",
    "binarised", "contradictions", "site", "unequal", "no-region", "gathered", "unlike-classes", "miscalibrated",
    "undone", "planted", "leading-map", "unseen", "scaled", "several-networks", "atlas",
)  # fmt: skip
"""Cautions of one level in the order of the page; others follow."""


CHECKS = sorted(
    [*_OF_THE_RUN, *(check for question in QUESTIONS for check in question.checks)],
    key=lambda check: _ORDER.index(check.name) if check.name in _ORDER else len(_ORDER),
)
