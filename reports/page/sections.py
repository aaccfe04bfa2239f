"""The sections of the report, each with its page.

The title, the warnings and the summary stand above the sections and are made by `reports.page.cautions` and
`reports.content.run.summary`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from heatlas.pipeline.cohort.people.tasks import TWO_CLASSES
from heatlas.reports.content.relevance import (
    differences,
    evaluation,
    headline,
    lrp,
    maps,
    patients,
    regions,
    volume,
    voxelwise,
)
from heatlas.reports.content.run import cohort, colophon, performance, registration
from heatlas.reports.frame import pages
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.pages import Component
from heatlas.reports.questions.analyses import ANALYSES
from heatlas.reports.questions.planted import PLANTED, PLANTED_EFFECTS
from heatlas.reports.questions.predictions import APPLIED
from heatlas.reports.questions.primary import PRIMARY
from heatlas.reports.questions.question import ANY_TASK, TWO, Question
from heatlas.reports.words.numbers import listing
from heatlas.studies.pages import before_after


@dataclass(frozen=True)
class BuiltSection:
    """A section ready to be rendered: with its variables, or with the sentence that says why it is empty."""

    section: Question
    content: Mapping[str, Any] = field(default_factory=dict)
    absent: str = ""

    @property
    def components(self) -> Sequence[Component]:
        """Interactive parts of the section; what a builder gives as ``components``."""
        found: Sequence[Component] = self.content.get("components", ())
        return found


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
    names = [section.short for section in QUESTIONS if section.tasks == TWO and section.id not in _SYNTHETIC]
    names += ["Region table"] * (not task.classes)
    return {"text": f"Not defined for a run that {task.kind.does}, as they compare two classes: {listing(names)}."}


def _in_short(material: Material) -> Mapping[str, Any]:
    """Every question that has a verdict with its answer in a line, and the analyses that could not be done."""
    run, rows = material.run, []
    for section in QUESTIONS:
        if section.answer is not None and section.applies_to(run) and section.id != PRIMARY.id:
            has_tables = all(run.has(name) for name in section.requires)
            answer = partial(section.answered, run)
            found, wrong = material.faults.attempt(f"“{section.title}”", answer) if has_tables else (None, "")
            said = found.answer if found else wrong or section.absent
            rows += [(section.title, said, section.id)] if said else []
    undone = list(dict.fromkeys(run.tables["notes"]["analysis"].dropna())) if run.has("notes") else []
    return {"rows": rows, "undone": listing(undone)}


_SYNTHETIC = (PLANTED.id, PLANTED_EFFECTS.id)


IN_SHORT = Question(
    "in-short", "Other questions, in one line each", "In short", pages.SUMMARY, draw=_in_short, tasks=ANY_TASK,
    applies=lambda run: not run.without_labels,
)  # fmt: skip
UNDEFINED = Question(
    "undefined", "What is not defined for this task", "Not defined", pages.METHODS, draw=_undefined,
    tasks=ANY_TASK - {TWO_CLASSES},
)  # fmt: skip

QUESTIONS: Sequence[Question] = sorted(
    [
        APPLIED, headline.BRAIN, headline.RANKING, IN_SHORT, cohort.PARTICIPANTS, PRIMARY,
        performance.PERFORMANCE, maps.MAPS, patients.PATIENTS, lrp.BETA, regions.REGIONS, regions.REGION_TABLE,
        differences.IMAGE_DIFFERENCES, voxelwise.VOXELWISE, volume.VOLUME_AND_RELEVANCE, cohort.COHORT,
        registration.REGISTRATION, performance.TRAINING, lrp.CONSERVATION, colophon.METHODS, UNDEFINED,
        colophon.GLOSSARY_PAGE, evaluation.EVALUATION, before_after.BEFORE_AFTER, evaluation.EVALUATION_PARTS,
        colophon.PROVENANCE, colophon.CREDITS, *ANALYSES,
    ],
    key=lambda question: pages.CHAPTERS.index(question.page),
)  # fmt: skip
"""All questions, page by page, on each page in this order."""


def sections_of(page: pages.Chapter) -> list[str]:
    """Anchors of the sections of a page, in order."""
    return [section.id for section in QUESTIONS if section.page == page]
