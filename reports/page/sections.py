"""The sections of the report, each with its page.

The title, the warnings and the summary stand above the sections and are made by `reports.cautions.all_cautions` and
`reports.content.run.summary`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from heatlas.pipeline.cohort.people.tasks import TWO_CLASSES, KindName
from heatlas.reports.analyses import catalogue
from heatlas.reports.analyses.map_verdicts import NOT_EVALUATED
from heatlas.reports.analyses.map_verdicts import evaluation as passed_maps
from heatlas.reports.analyses.verdicts import Verdict
from heatlas.reports.analyses.views import ANY_TASK, CLASSES, TWO, AnalysisSection
from heatlas.reports.content.relevance import (
    before_after,
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
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import listing


@dataclass(frozen=True)
class Section:
    """One section of the report."""

    id: str  # anchor; stable, since warnings and readers link to it
    title: str
    short: str  # name in the table of contents
    page: pages.Chapter
    build: Callable[[Material], Mapping[str, Any]]  # gives the variables of the template
    requires: tuple[str, ...] = ()  # tables without which the section cannot be made
    absent: str = ""  # shown in place of the section when one of them is missing; without it the section is left out
    applies: Callable[[RunRecord], bool] | None = None  # whether the section has anything to say
    tasks: frozenset[KindName] = TWO  # kinds of tasks that the section is made for
    verdict: Callable[[RunRecord], Verdict | None] | None = None  # its answer, for the list of the index
    template_file: str = ""  # in ``reports/templates/sections``; that of its anchor if there is no other

    @property
    def template(self) -> str:
        return self.template_file or f"{self.id}.html.j2"

    def applies_to(self, run: RunRecord) -> bool:
        """Whether it is made for the task of the run, and has anything to say."""
        return run.task.kind.name in self.tasks and (self.applies is None or self.applies(run))


@dataclass(frozen=True)
class BuiltSection:
    """A section ready to be rendered: with its variables, or with the sentence that says why it is empty."""

    section: Section
    content: Mapping[str, Any] = field(default_factory=dict)
    absent: str = ""

    @property
    def components(self) -> Sequence[Component]:
        """Interactive parts of the section; what a builder gives as ``components``."""
        found: Sequence[Component] = self.content.get("components", ())
        return found


def build_section(section: Section, material: Material) -> BuiltSection | None:
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
    number = material.run.task.is_number
    names = [section.short for section in SECTIONS if section.tasks == TWO and section.id not in _SYNTHETIC]
    names += ["Region table"] * number
    this = "predicts a number" if number else "has several classes"
    return {"text": f"Not defined for a run that {this}, as they compare two classes: {listing(names)}."}


def _in_short(material: Material) -> Mapping[str, Any]:
    """Every question that has a verdict with its answer in a line, and the analyses that could not be done."""
    run, rows = material.run, []
    for section in SECTIONS:
        if section.verdict is not None and section.applies_to(run) and section.id != catalogue.PRIMARY.id:
            has_tables = all(run.has(name) for name in section.requires)
            answer = partial(section.verdict, run)
            found, wrong = material.faults.attempt(f"“{section.title}”", answer) if has_tables else (None, "")
            said = found.answer if found else wrong or section.absent
            rows += [(section.title, said, section.id)] if said else []
    undone = list(dict.fromkeys(run.tables["notes"]["analysis"].dropna())) if run.has("notes") else []
    return {"rows": rows, "undone": listing(undone)}


_SYNTHETIC = (catalogue.PLANTED.id, catalogue.EFFECTS_FOUND.id)


def section_of(analysis: AnalysisSection) -> Section:
    """The section of an analysis; without `absent` left out where none of its tables is there and nothing says why."""
    return Section(
        analysis.id, analysis.title, analysis.short, analysis.page, analysis.build,
        analysis.tables if analysis.absent else (), analysis.absent, None if analysis.absent else analysis.applies,
        analysis.tasks, analysis.verdict, "analysis.html.j2",
    )  # fmt: skip


OWN: Sequence[Section] = (
    Section(
        "applied", "What do the networks say?", "Predictions", pages.SUMMARY, catalogue.APPLIED.build,
        ("predictions_applied",), applies=lambda run: run.without_labels, template_file="analysis.html.j2",
    ),
    Section(
        "brain", "Where does it look?", "Brain", pages.SUMMARY, headline.build_brain, ("relevance_bilateral",),
        "There are no heatmaps yet.", tasks=ANY_TASK,
    ),
    Section(
        "ranking", "Which regions differ most?", "Regions", pages.SUMMARY, headline.build_ranking,
        ("group_comparisons",), "Regions have not been compared between the classes yet.",
    ),
    Section(
        "in-short", "Other questions, in one line each", "In short", pages.SUMMARY, _in_short, tasks=ANY_TASK,
        applies=lambda run: not run.without_labels,
    ),
    Section(
        "participants", "Everyone, one page each", "Participants", pages.SUMMARY, cohort.build_participants,
        ("scans",), "The input has not been read yet.", tasks=ANY_TASK,
    ),
    Section(
        "performance", "How good is the classifier?", "Performance", pages.PERFORMANCE, performance.build,
        ("predictions",), "There are no predictions yet.",
    ),
    Section(
        "maps", "Where does it look? Mean maps", "Mean maps", pages.MAPS, maps.build, ("relevance_bilateral",),
        "There are no mean heatmaps yet.", tasks=ANY_TASK,
    ),
    Section(
        "patients", "Two individual patients", "Two patients", pages.MAPS, patients.build, ("fingerprints",),
        "No pair of patients has been chosen yet.", applies=lambda run: run.config.report.people,
    ),
    Section(
        "beta", "Does the answer depend on β?", "Choice of β", pages.MAPS, lrp.build_beta, ("beta_overlap",),
        "The overlap between values of β is not known yet.",
    ),
    Section(
        "regions", "Which regions?", "Regions", pages.REGIONS, regions.build, ("relevance_bilateral",),
        "Heatmaps have not been summed over regions yet.", tasks=ANY_TASK,
    ),
    Section(
        "region-table", "All regions", "Region table", pages.REGIONS, regions.build_table, ("region_summary",),
        "The summary over regions is written with the statistics; this run has none yet.", tasks=CLASSES,
    ),
    Section(
        "image-differences", "What differs in the images, and what does the network use?", "Images and evidence",
        pages.REGIONS, differences.build, ("image_differences",), "Images have not been compared with the maps: "
        "notes.tsv says why, or the statistics have not run.", verdict=differences.verdict,
    ),
    Section(
        "voxelwise", "Where do images and maps differ, voxel by voxel?", "Voxel by voxel", pages.REGIONS,
        voxelwise.build, (voxelwise.TESTS,), applies=lambda run: run.has(voxelwise.TESTS), verdict=voxelwise.verdict,
    ),
    Section(
        "volume", "Does relevance follow atrophy?", "Hippocampal volume", pages.CLINICAL, volume.build,
        ("volume_association",), "The association with hippocampal volume is not known: either the statistics have "
        "not run, or no scan has a volume.",
    ),
    Section(
        "cohort", "Who is in it", "Cohort", pages.COHORT, cohort.build, ("scans",),
        "The input has not been read yet: there is no scans.tsv.", tasks=ANY_TASK,
    ),
    Section(
        "registration", "Do the scans lie on the template?", "Registration", pages.REGISTRATION, registration.build,
        ("registration",), "No scan has been registered yet.", tasks=ANY_TASK,
    ),
    Section(
        "training", "Did the networks learn?", "Training", pages.TRAINING, performance.build_training,
        ("histories",), "No network has been trained yet.", tasks=ANY_TASK,
    ),
    Section(
        "conservation", "Does the relevance add up?", "Conservation", pages.TRAINING, lrp.build_conservation,
        ("conservation",), "No scan has been explained yet.", tasks=ANY_TASK,
    ),
    Section("methods", "Methods text", "Methods", pages.METHODS, colophon.build_methods, tasks=ANY_TASK),
    Section(
        "undefined", "What is not defined for this task", "Not defined", pages.METHODS, _undefined,
        tasks=ANY_TASK - {TWO_CLASSES},
    ),
    Section("glossary", "Glossary", "Glossary", pages.METHODS, colophon.build_glossary, tasks=ANY_TASK),
    Section(
        "evaluation", "Which map can be trusted? Evaluation of the maps", "Evaluation of the maps", pages.EVALUATION,
        evaluation.build, ("verdicts", "evaluation"), NOT_EVALUATED, tasks=ANY_TASK, verdict=passed_maps,
    ),
    Section(
        "before-after", "What did training with maps change?", "Training with maps", pages.EVALUATION,
        before_after.build, applies=before_after.applies, tasks=ANY_TASK,
    ),
    Section(
        "evaluation-parts", "Further results of the evaluation", "Parts of the evaluation", pages.EVALUATION,
        evaluation.build_parts, applies=evaluation.applies, tasks=ANY_TASK,
    ),
    Section(
        "provenance", "How to repeat this run", "Provenance", pages.PROVENANCE, colophon.build_provenance,
        tasks=ANY_TASK,
    ),
    Section(
        "credits", "How to cite, credits and licences", "How to cite", pages.PROVENANCE, colophon.build_credits,
        tasks=ANY_TASK,
    ),
)  # fmt: skip
"""Sections that are no analysis of the statistics stage."""
SECTIONS: Sequence[Section] = sorted(
    [section_of(catalogue.PRIMARY), *OWN, *map(section_of, catalogue.ANALYSES)],
    key=lambda section: pages.CHAPTERS.index(section.page),
)
"""All sections, page by page. A new one is an entry of `OWN` or of `reports.analyses.catalogue.ANALYSES`."""


def sections_of(page: pages.Chapter) -> list[str]:
    """Anchors of the sections of a page, in order."""
    return [section.id for section in SECTIONS if section.page == page]
