"""The statistics stage: tables of inference from tables of relevance.

No image is read. Each analysis is a function from `StatisticsInputs` to tables that are declared beside it; this module
lists the analyses, runs them independently and writes their tables. If the data do not allow an analysis, the reason is
a row of ``statistics/notes.tsv`` and the other analyses continue; a programming error ends the stage.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from heatlas.pipeline.cohort.people.tasks import KINDS, NUMBER, SEVERAL_CLASSES, TWO_CLASSES, KindName, task_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.statistics.associations.associations import (
    ASSOCIATIONS_TABLE,
    PRIMARY_TABLE,
    associations_tables,
    primary_tables,
)
from heatlas.pipeline.statistics.associations.main_effects import MAIN_EFFECTS_TABLE, main_effects_tables
from heatlas.pipeline.statistics.associations.volume_association import (
    VOLUME_ASSOCIATION_TABLE,
    VOLUME_POINTS_TABLE,
    volume_association_tables,
)
from heatlas.pipeline.statistics.comparison.external import (
    EXTERNAL_CALIBRATION_TABLE,
    EXTERNAL_TABLE,
    external_tables,
)
from heatlas.pipeline.statistics.comparison.rankings import RANKING_AGREEMENT_TABLE, ranking_agreement_tables
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs, read_inputs
from heatlas.pipeline.statistics.groups.comparisons import GROUP_COMPARISONS_TABLE, comparisons_tables
from heatlas.pipeline.statistics.groups.fairness import FAIRNESS_TABLE, fairness_tables
from heatlas.pipeline.statistics.groups.region_summary import REGION_SUMMARY_TABLE, region_summary_tables
from heatlas.pipeline.statistics.groups.subgroups import (
    INTERACTIONS_TABLE,
    SUBGROUPS_TABLE,
    interactions_tables,
    subgroups_tables,
)
from heatlas.pipeline.statistics.harmonisation.tables import HARMONISATION_TABLES, harmonisation_tables
from heatlas.pipeline.statistics.images.differences import (
    IMAGE_AGREEMENT_TABLE,
    IMAGE_DIFFERENCES_TABLE,
    image_differences_tables,
)
from heatlas.pipeline.statistics.normative.subtypes import NORMATIVE_TABLES, normative_tables
from heatlas.pipeline.statistics.performance.baselines import BASELINES_TABLE, baselines_tables
from heatlas.pipeline.statistics.performance.classification import (
    CALIBRATION_TABLE,
    PERFORMANCE_TABLE,
    PRECISION_RECALL_TABLE,
    ROC_TABLE,
    performance_tables,
)
from heatlas.pipeline.statistics.performance.demographics import (
    DEMOGRAPHIC_TESTS_TABLE,
    DEMOGRAPHICS_TABLE,
    demographics_tables,
)
from heatlas.pipeline.statistics.performance.other_tasks import (
    CONFUSION_TABLE,
    PERFORMANCE_CLASSES_TABLE,
    PERFORMANCE_NUMBER_TABLE,
    PERFORMANCE_REPEATS_TABLE,
    classes_tables,
    number_tables,
    repeats_tables,
)
from heatlas.pipeline.statistics.progression.cox import COX_TABLE
from heatlas.pipeline.statistics.progression.prediction import PROGRESSION_TABLE, progression_tables
from heatlas.pipeline.statistics.progression.trajectories import TRAJECTORIES_TABLE, trajectory_table
from heatlas.pipeline.statistics.shortcuts import (
    SHORTCUTS_TABLE,
    SITE_PREDICTION_TABLE,
    shortcut_table,
    site_prediction_table,
)

Tables = Mapping[str, pd.DataFrame]
"""Tables by name."""

DATA_PROBLEMS = (BadInputError, np.linalg.LinAlgError)
"""Errors that data can cause; any other exception is a programming error."""

NOTES_COLUMNS = {
    "analysis": "Analysis of the statistics stage, or inputs",
    "tables": "Tables that are therefore missing; n/a for none",
    "reason": "Reason, and what can be done",
}
NOTES_TABLE = Table(
    "notes", NOTES_COLUMNS, "analysis that could not be made, or contradiction of inputs", "Why is a table missing?",
    filled=("analysis", "reason"),
)  # fmt: skip


@dataclass(frozen=True)
class Analysis:
    """A function from inputs to its table, or to several by name.

    The participant is the unit, p is (b + 1) / (m + 1), effects have intervals, and tests are corrected within a named
    family. A simulation without effect (``benchmarks/type_one_error_tables.py``) must find the level near 5 %, with
    repeated scans per person.

    `tables`: tables that it may write. `tasks`: kinds of tasks that it is defined for.
    """

    name: str
    function: Callable[[StatisticsInputs], pd.DataFrame | Tables]
    tables: tuple[Table, ...]
    tasks: frozenset[KindName] = frozenset({TWO_CLASSES})


EVERY_TASK = frozenset(KINDS)
ANALYSES = (
    Analysis("primary", primary_tables, (PRIMARY_TABLE,), EVERY_TASK),
    Analysis("demographics", demographics_tables, (DEMOGRAPHICS_TABLE, DEMOGRAPHIC_TESTS_TABLE), EVERY_TASK),
    Analysis(
        "performance", performance_tables, (PERFORMANCE_TABLE, ROC_TABLE, PRECISION_RECALL_TABLE, CALIBRATION_TABLE)
    ),
    Analysis(
        "performance_classes",
        classes_tables,
        (PERFORMANCE_CLASSES_TABLE, CONFUSION_TABLE),
        frozenset({SEVERAL_CLASSES}),
    ),
    Analysis("performance_number", number_tables, (PERFORMANCE_NUMBER_TABLE,), frozenset({NUMBER})),
    Analysis("external", external_tables, (EXTERNAL_TABLE, EXTERNAL_CALIBRATION_TABLE)),
    Analysis("baselines", baselines_tables, (BASELINES_TABLE,), EVERY_TASK),
    Analysis("performance_repeats", repeats_tables, (PERFORMANCE_REPEATS_TABLE,), EVERY_TASK),
    Analysis(
        "region_summary", region_summary_tables, (REGION_SUMMARY_TABLE,), frozenset({TWO_CLASSES, SEVERAL_CLASSES})
    ),
    Analysis("volume_association", volume_association_tables, (VOLUME_POINTS_TABLE, VOLUME_ASSOCIATION_TABLE)),
    Analysis("associations", associations_tables, (ASSOCIATIONS_TABLE,), EVERY_TASK),
    Analysis("group_comparisons", comparisons_tables, (GROUP_COMPARISONS_TABLE,)),
    Analysis("image_differences", image_differences_tables, (IMAGE_DIFFERENCES_TABLE, IMAGE_AGREEMENT_TABLE)),
    Analysis("subgroups", subgroups_tables, (SUBGROUPS_TABLE,)),
    Analysis("interactions", interactions_tables, (INTERACTIONS_TABLE,)),
    Analysis("main_effects", main_effects_tables, (MAIN_EFFECTS_TABLE,)),
    Analysis("fairness", fairness_tables, (FAIRNESS_TABLE,)),
    Analysis("progression", progression_tables, (COX_TABLE, PROGRESSION_TABLE)),
    Analysis("trajectories", trajectory_table, (TRAJECTORIES_TABLE,)),
    Analysis("shortcuts", shortcut_table, (SHORTCUTS_TABLE,)),
    Analysis("site_prediction", site_prediction_table, (SITE_PREDICTION_TABLE,)),
    Analysis("ranking_agreement", ranking_agreement_tables, (RANKING_AGREEMENT_TABLE,)),
    Analysis("harmonisation", harmonisation_tables, HARMONISATION_TABLES),
    Analysis("normative", normative_tables, NORMATIVE_TABLES),
)
"""All analyses, in order."""
STATISTICS_TABLES = (*(table for analysis in ANALYSES for table in analysis.tables), NOTES_TABLE)
"""All tables of the stage."""


def analyse(
    layout: RunLayout,
    scans: Sequence[Scan],
    predictions: pd.DataFrame,
    config: Config,
    executor: Executor | None = None,
) -> list[Path]:
    """Write all statistics tables of a run, each with its data dictionary.

    concurrent.futures.BrokenExecutor if a worker was lost. BadInputError if a table of the run is invalid
    (`read_inputs`). Data that do not allow an analysis (one class, too few participants, no volumes) raise no error:
    its rows or ``notes.tsv`` say why.

    `scans`: those with a prediction and heatmaps. `predictions`: ``predictions.tsv``, all of which performance is
    computed over. `executor`: runs analyses in parallel; each has its own random stream, so the tables do not change.

    Gives the tables written.
    """
    inputs = read_inputs(layout, scans, predictions, config)
    notes: list[tuple[str, str | None, str]] = [("inputs", None, text) for text in inputs.contradictions]
    written = []
    for analysis, (tables, problem) in zip(ANALYSES, _attempts(inputs, executor), strict=True):
        if problem:
            notes.append((analysis.name, ", ".join(table.name for table in analysis.tables), problem))
        for table in analysis.tables:
            if table.name in tables:
                written.append(table.write(layout, tables[table.name]))
            else:  # of an earlier run
                table.remove(layout)
    return [*written, NOTES_TABLE.write(layout, notes)]


def _attempts(inputs: StatisticsInputs, executor: Executor | None) -> list[tuple[Tables, str | None]]:
    """Each analysis, in the order of `ANALYSES`."""
    if executor is None:
        return [_attempt(analysis, inputs) for analysis in ANALYSES]
    return list(executor.map(_attempt, ANALYSES, [inputs] * len(ANALYSES)))


def _attempt(analysis: Analysis, inputs: StatisticsInputs) -> tuple[Tables, str | None]:
    """Tables of one analysis, or why there are none."""
    kind = task_of(inputs.config.cohort).kind
    if kind.name not in analysis.tasks:
        defined = TWO_CLASSES in analysis.tasks and kind.undefined
        return {}, f"not defined for this task. {defined}" if defined else None
    try:
        answer = analysis.function(inputs)
    except DATA_PROBLEMS as error:
        reason = str(error).replace(f"{inputs.layout.root}{os.sep}", "")  # paths relative to the run folder
        return {}, " ".join(reason.split()) or type(error).__name__
    tables = {analysis.tables[0].name: answer} if isinstance(answer, pd.DataFrame) else answer
    undeclared = set(tables) - {table.name for table in analysis.tables}
    if undeclared:
        raise ValueError(f"analysis {analysis.name}: tables not declared in ANALYSES: {sorted(undeclared)}")
    return tables, None
