"""The sections of the report, top to bottom. Adding one is adding an entry here and a template.

The title, the warnings and the summary stand above the sections and are made by `reports.cautions.all_cautions` and
`reports.content.run.summary`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.cohort.people.tasks import KINDS, NUMBER, SEVERAL_CLASSES, TWO_CLASSES, KindName
from reports.analyses import catalogue
from reports.analyses.views import Analysis
from reports.content.relevance import (
    beta,
    conservation,
    effects,
    maps,
    patients,
    planted,
    region_table,
    regions,
    volume,
)
from reports.content.run import cohort, colophon, glossary, participants, performance, registration, training
from reports.page.specification import Section

ANY_TASK = frozenset(KINDS)


def _analysis(analysis: Analysis, tasks: frozenset[KindName] = frozenset({TWO_CLASSES})) -> Section:
    """Section of an analysis; left out where none of its tables is there and nothing says why."""
    return Section(
        analysis.id, analysis.title, analysis.short, "analysis.html.j2", analysis.build, applies=analysis.applies,
        tasks=tasks,
    )  # fmt: skip


SECTIONS: Sequence[Section] = (
    Section(
        "cohort", "Who is in it", "Cohort", "cohort.html.j2", cohort.build, ("scans",),
        "The input has not been read yet: there is no scans.tsv.", tasks=ANY_TASK,
    ),
    _analysis(catalogue.NUMBER_PERFORMANCE, frozenset({NUMBER})),
    _analysis(catalogue.CLASSES_PERFORMANCE, frozenset({SEVERAL_CLASSES})),
    Section(
        "performance", "How good is the classifier?", "Performance", "performance.html.j2", performance.build,
        ("predictions",), "There are no predictions yet.",
    ),
    _analysis(catalogue.REPEATS, ANY_TASK),
    _analysis(catalogue.NUMBER_ASSOCIATIONS, frozenset({NUMBER})),
    Section(
        "maps", "Where does it look? Mean maps", "Mean maps", "maps.html.j2", maps.build, ("predictions", "relevance"),
        "There are no mean heatmaps yet.",
    ),
    Section(
        "regions", "Which regions? Sum, density and gain", "Regions", "regions.html.j2", regions.build,
        ("predictions", "relevance"), "Heatmaps have not been summed over regions yet.",
    ),
    Section(
        "region-table", "All regions", "Region table", "region-table.html.j2", region_table.build,
        ("region_summary",), "The summary over regions is written with the statistics; this run has none yet.",
    ),
    _analysis(catalogue.COMPARISONS),
    Section(
        "effects", "Regions that tell the classes apart", "Region effects", "effects.html.j2", effects.build,
        ("region_effects",), "Differences between the classes have not been tested yet.",
    ),
    Section(
        "volume", "Does relevance follow atrophy?", "Hippocampal volume", "volume.html.j2", volume.build,
        ("volume_association",), "The association with hippocampal volume is not known: either the statistics have "
        "not run, or no scan has a volume.",
    ),
    _analysis(catalogue.ASSOCIATIONS, frozenset({TWO_CLASSES, SEVERAL_CLASSES})),
    _analysis(catalogue.SUBGROUPS),
    _analysis(catalogue.PROGRESSION),
    _analysis(catalogue.NORMS),
    _analysis(catalogue.MAIN_EFFECTS),
    _analysis(catalogue.SHORTCUTS),
    _analysis(catalogue.HARMONISATION),
    Section(
        "planted", "Are the planted regions found?", "Planted truth", "planted.html.j2", planted.build,
        ("planted_recovery",), optional=True,
    ),
    _analysis(catalogue.EFFECTS_FOUND),
    Section(
        "beta", "Does the answer depend on β?", "Choice of β", "beta.html.j2", beta.build, ("beta_overlap",),
        "The overlap between values of β is not known yet.",
    ),
    _analysis(catalogue.AGREEMENT),
    Section(
        "patients", "Two individual patients", "Two patients", "patients.html.j2", patients.build, ("fingerprints",),
        "No pair of patients has been chosen yet.",
    ),
    Section(
        "participants", "Everyone, one page each", "Participants", "participants.html.j2", participants.build,
        ("scans",), "The input has not been read yet.", tasks=ANY_TASK,
    ),
    Section(
        "registration", "Do the scans lie on the template?", "Registration", "registration.html.j2",
        registration.build, ("registration",), "No scan has been registered yet.", tasks=ANY_TASK,
    ),
    Section(
        "training", "Did the networks learn?", "Training", "training.html.j2", training.build, ("histories",),
        "No network has been trained yet.", tasks=ANY_TASK,
    ),
    Section(
        "conservation", "Does the relevance add up?", "Conservation", "conservation.html.j2", conservation.build,
        ("conservation",), "No scan has been explained yet.", tasks=ANY_TASK,
    ),
    Section("glossary", "Words of this report", "Glossary", "glossary.html.j2", glossary.build, tasks=ANY_TASK),
    Section("methods", "Methods text", "Methods", "methods.html.j2", colophon.build_methods, tasks=ANY_TASK),
    Section(
        "provenance", "How to repeat this run", "Provenance", "provenance.html.j2", colophon.build_provenance,
        tasks=ANY_TASK,
    ),
    Section("credits", "Credits and licences", "Credits", "credits.html.j2", colophon.build_credits, tasks=ANY_TASK),
)  # fmt: skip
