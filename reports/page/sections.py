"""The sections of the report.

Adding one is adding an entry here, its name to a page of `reports.frame.chapters`, and, if need be, a template.

The title, the warnings and the summary stand above the sections and are made by `reports.cautions.all_cautions` and
`reports.content.run.summary`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from heatlas.pipeline.cohort.people.tasks import KINDS, NUMBER, SEVERAL_CLASSES, TWO_CLASSES, KindName
from heatlas.reports.analyses import catalogue
from heatlas.reports.analyses.evaluation_verdict import NOT_EVALUATED
from heatlas.reports.analyses.evaluation_verdict import evaluation as passed_maps
from heatlas.reports.analyses.verdicts import Verdict
from heatlas.reports.analyses.views import AnalysisSection
from heatlas.reports.content.relevance import (
    before_after,
    differences,
    evaluation,
    evaluation_parts,
    headline,
    lrp,
    maps,
    patients,
    regions,
    volume,
    voxelwise,
)
from heatlas.reports.content.run import cohort, colophon, performance, registration
from heatlas.reports.frame.components import Component
from heatlas.reports.frame.material import Material
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import listing

ANY_TASK = frozenset(KINDS)
CLASSES = frozenset({TWO_CLASSES, SEVERAL_CLASSES})


@dataclass(frozen=True)
class Section:
    """One section of the report."""

    id: str  # anchor; stable, since warnings and readers link to it
    title: str
    short: str  # name in the table of contents
    template: str  # file in ``reports/templates/sections``
    build: Callable[[Material], Mapping[str, Any]]  # gives the variables of the template
    requires: tuple[str, ...] = ()  # tables without which the section cannot be made
    absent: str = ""  # shown in place of the section when one of them is missing; without it the section is left out
    applies: Callable[[RunRecord], bool] | None = None  # whether the section has anything to say
    tasks: frozenset[KindName] = frozenset({TWO_CLASSES})  # kinds of tasks that the section is made for
    verdict: Callable[[RunRecord], Verdict | None] | None = None  # its answer, for the list of the index

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
        absent = run.why_absent(*missing, otherwise=section.absent)
        return BuiltSection(section, absent=absent) if absent else None
    return BuiltSection(section, section.build(material))


def _undefined(material: Material) -> Mapping[str, Any]:
    """The sections that a run of another task does not have, in one sentence."""
    number = material.run.task.is_number
    names = [section.short for section in SECTIONS if section.tasks == {TWO_CLASSES} and section.id not in _SYNTHETIC]
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


def _analysis(
    analysis: AnalysisSection, tasks: frozenset[KindName] = frozenset({TWO_CLASSES}), absent: str = ""
) -> Section:
    """Section of an analysis; without `absent` left out where none of its tables is there and nothing says why."""
    tables = tuple(dict.fromkeys(view.table for view in analysis.views)) if absent else ()
    return Section(
        analysis.id, analysis.title, analysis.short, "analysis.html.j2", analysis.build, tables, absent,
        None if absent else analysis.applies, tasks, analysis.verdict,
    )  # fmt: skip


SECTIONS: Sequence[Section] = (
    Section(
        "brain", "Where does it look?", "Brain", "brain.html.j2", headline.build_brain, ("relevance_bilateral",),
        "There are no heatmaps yet.", tasks=ANY_TASK,
    ),
    Section(
        "ranking", "Which regions differ most?", "Regions", "ranking.html.j2", headline.build_ranking,
        ("group_comparisons",), "Regions have not been compared between the classes yet.",
    ),
    Section("in-short", "Other questions, in one line each", "In short", "in-short.html.j2", _in_short, tasks=ANY_TASK),
    Section(
        "cohort", "Who is in it", "Cohort", "cohort.html.j2", cohort.build, ("scans",),
        "The input has not been read yet: there is no scans.tsv.", tasks=ANY_TASK,
    ),
    _analysis(catalogue.PRIMARY, CLASSES),
    _analysis(catalogue.NUMBER_PERFORMANCE, frozenset({NUMBER})),
    _analysis(catalogue.CLASSES_PERFORMANCE, frozenset({SEVERAL_CLASSES})),
    Section(
        "performance", "How good is the classifier?", "Performance", "performance.html.j2", performance.build,
        ("predictions",), "There are no predictions yet.",
    ),
    _analysis(catalogue.BASELINES, ANY_TASK),
    _analysis(catalogue.REPEATS, ANY_TASK),
    _analysis(catalogue.NUMBER_ASSOCIATIONS, frozenset({NUMBER})),
    Section(
        "maps", "Where does it look? Mean maps", "Mean maps", "maps.html.j2", maps.build, ("relevance_bilateral",),
        "There are no mean heatmaps yet.", tasks=ANY_TASK,
    ),
    Section(
        "regions", "Which regions?", "Regions", "regions.html.j2", regions.build,
        ("relevance_bilateral",), "Heatmaps have not been summed over regions yet.", tasks=ANY_TASK,
    ),
    Section(
        "region-table", "All regions", "Region table", "region-table.html.j2", regions.build_table, ("region_summary",),
        "The summary over regions is written with the statistics; this run has none yet.", tasks=CLASSES,
    ),
    Section(
        "image-differences", "What differs in the images, and what does the network use?", "Images and evidence",
        "image-differences.html.j2", differences.build, ("image_differences",), "Images have not been compared with "
        "the maps: notes.tsv says why, or the statistics have not run.", verdict=differences.verdict,
    ),
    Section(
        "voxelwise", "Where do images and maps differ, voxel by voxel?", "Voxel by voxel", "voxelwise.html.j2",
        voxelwise.build, (voxelwise.TESTS,), applies=lambda run: run.has(voxelwise.TESTS), verdict=voxelwise.verdict,
    ),
    _analysis(catalogue.COMPARISONS),
    _analysis(catalogue.EFFECTS, absent="Differences between the classes have not been tested yet."),
    Section(
        "volume", "Does relevance follow atrophy?", "Hippocampal volume", "volume.html.j2", volume.build,
        ("volume_association",), "The association with hippocampal volume is not known: either the statistics have "
        "not run, or no scan has a volume.",
    ),
    _analysis(catalogue.ASSOCIATIONS, CLASSES),
    _analysis(catalogue.SUBGROUPS),
    _analysis(catalogue.PROGRESSION),
    _analysis(catalogue.NORMS),
    _analysis(catalogue.MAIN_EFFECTS),
    _analysis(catalogue.SHORTCUTS),
    _analysis(catalogue.HARMONISATION),
    _analysis(catalogue.PLANTED),
    _analysis(catalogue.EFFECTS_FOUND),
    Section(
        "evaluation", "Which map can be trusted? Evaluation of the maps", "Evaluation of the maps",
        "evaluation.html.j2", evaluation.build, ("verdicts", "evaluation"), NOT_EVALUATED, tasks=ANY_TASK,
        verdict=passed_maps,
    ),
    Section(
        "evaluation-parts", "Further results of the evaluation", "Parts of the evaluation", "evaluation-parts.html.j2",
        evaluation_parts.build, applies=evaluation_parts.applies, tasks=ANY_TASK,
    ),
    Section(
        "before-after", "What did training with maps change?", "Training with maps", "before-after.html.j2",
        before_after.build, applies=before_after.applies, tasks=ANY_TASK,
    ),
    Section(
        "beta", "Does the answer depend on β?", "Choice of β", "beta.html.j2", lrp.build_beta, ("beta_overlap",),
        "The overlap between values of β is not known yet.",
    ),
    _analysis(catalogue.AGREEMENT),
    Section(
        "patients", "Two individual patients", "Two patients", "patients.html.j2", patients.build, ("fingerprints",),
        "No pair of patients has been chosen yet.", applies=lambda run: run.config.report.people,
    ),
    Section(
        "undefined", "What is not defined for this task", "Not defined", "text.html.j2", _undefined,
        tasks=ANY_TASK - {TWO_CLASSES},
    ),
    Section(
        "participants", "Everyone, one page each", "Participants", "participants.html.j2", cohort.build_participants,
        ("scans",), "The input has not been read yet.", tasks=ANY_TASK,
    ),
    Section(
        "registration", "Do the scans lie on the template?", "Registration", "registration.html.j2",
        registration.build, ("registration",), "No scan has been registered yet.", tasks=ANY_TASK,
    ),
    Section(
        "training", "Did the networks learn?", "Training", "training.html.j2", performance.build_training,
        ("histories",), "No network has been trained yet.", tasks=ANY_TASK,
    ),
    Section(
        "conservation", "Does the relevance add up?", "Conservation", "conservation.html.j2", lrp.build_conservation,
        ("conservation",), "No scan has been explained yet.", tasks=ANY_TASK,
    ),
    Section("glossary", "Glossary", "Glossary", "glossary.html.j2", colophon.build_glossary, tasks=ANY_TASK),
    Section("methods", "Methods text", "Methods", "methods.html.j2", colophon.build_methods, tasks=ANY_TASK),
    Section(
        "provenance", "How to repeat this run", "Provenance", "provenance.html.j2", colophon.build_provenance,
        tasks=ANY_TASK,
    ),
    Section(
        "credits", "How to cite, credits and licences", "How to cite", "credits.html.j2", colophon.build_credits,
        tasks=ANY_TASK,
    ),
)  # fmt: skip
