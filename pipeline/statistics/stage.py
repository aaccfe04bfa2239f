"""The statistics stage: tables of inference from tables of relevance.

Everything is computed from tables; no image is read. Each analysis is one function from `StatisticsInputs` to tables
with their data dictionaries; this module lists them, keeps them apart and writes. Data that do not allow an analysis
leave a row in ``statistics/notes.tsv`` and the other analyses their tables; a defect of the program ends the stage.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.cohort.records import Scan
from pipeline.run.config.settings import Config
from pipeline.run.declared import Table
from pipeline.run.errors import BadInputError
from pipeline.run.layout.run_layout import RunLayout
from pipeline.run.tables import write_table
from pipeline.statistics.associations.associations import associations_tables
from pipeline.statistics.associations.main_effects import main_effects_tables
from pipeline.statistics.associations.volume_association import volume_association_tables
from pipeline.statistics.comparison.rankings import ranking_agreement_tables
from pipeline.statistics.data.inputs import StatisticsInputs, read_inputs
from pipeline.statistics.groups.comparisons import comparisons_tables
from pipeline.statistics.groups.fairness import fairness_tables
from pipeline.statistics.groups.interactions import interactions_tables
from pipeline.statistics.groups.region_effects import region_effects_tables
from pipeline.statistics.groups.region_summary import region_summary_tables
from pipeline.statistics.groups.subgroups import subgroups_tables
from pipeline.statistics.harmonisation.tables import harmonisation_tables
from pipeline.statistics.normative.tables import normative_tables
from pipeline.statistics.performance.classification import performance_tables
from pipeline.statistics.performance.demographics import demographics_tables
from pipeline.statistics.progression.tables import progression_tables, trajectories_tables
from pipeline.statistics.shortcuts.tables import shortcuts_tables, site_prediction_tables

Tables = Mapping[str, tuple[pd.DataFrame, Mapping[str, str]]]
"""Table by name, each with its data dictionary."""

DATA_PROBLEMS = (BadInputError, np.linalg.LinAlgError)
"""What data can do to an analysis; any other exception is a defect of the program."""

NOTES_COLUMNS = {
    "analysis": "Analysis of the statistics stage, or inputs",
    "tables": "Tables that are missing because of it; n/a where none is",
    "reason": "Why, and what can be done",
}
NOTES_TABLE = Table(
    "notes", NOTES_COLUMNS, "analysis that could not be made, or contradiction of inputs", "Why is a table missing?",
    filled=("analysis", "reason"),
)  # fmt: skip


@dataclass(frozen=True)
class Analysis:
    """A function from inputs to tables, and the tables it may write."""

    name: str
    tables: tuple[str, ...]
    function: Callable[[StatisticsInputs], Tables]


ANALYSES = (
    Analysis("demographics", ("demographics", "demographic_tests"), demographics_tables),
    Analysis("performance", ("performance", "roc", "precision_recall", "calibration"), performance_tables),
    Analysis("region_summary", ("region_summary",), region_summary_tables),
    Analysis("region_effects", ("region_effects",), region_effects_tables),
    Analysis("volume_association", ("volume_points", "volume_association"), volume_association_tables),
    Analysis("associations", ("associations",), associations_tables),
    Analysis("group_comparisons", ("group_comparisons",), comparisons_tables),
    Analysis("subgroups", ("subgroups",), subgroups_tables),
    Analysis("interactions", ("interactions",), interactions_tables),
    Analysis("main_effects", ("main_effects",), main_effects_tables),
    Analysis("fairness", ("fairness",), fairness_tables),
    Analysis("progression", ("cox", "progression"), progression_tables),
    Analysis("trajectories", ("trajectories",), trajectories_tables),
    Analysis("shortcuts", ("shortcuts",), shortcuts_tables),
    Analysis("site_prediction", ("site_prediction",), site_prediction_tables),
    Analysis("ranking_agreement", ("ranking_agreement",), ranking_agreement_tables),
    Analysis(
        "harmonisation",
        ("harmonised_relevance", "harmonised_volumes", "harmonisation_models", "site_effects"),
        harmonisation_tables,
    ),
    Analysis(
        "normative",
        (
            "w_scores",
            "w_norms",
            "w_calibration",
            "w_fingerprints",
            "subtypes",
            "subtype_numbers",
            "subtype_comparison",
        ),
        normative_tables,
    ),
)
"""All analyses, in order. A new one is one line here."""


def analyse(
    layout: RunLayout,
    scans: Sequence[Scan],
    predictions: pd.DataFrame,
    config: Config,
    executor: Executor | None = None,
) -> list[Path]:
    """Write all statistics tables of a run, each with its data dictionary.

    Parameters
    ----------
    layout : RunLayout
    scans : sequence of Scan
        Those with a prediction and heatmaps.
    predictions : pandas.DataFrame
        ``predictions.tsv``; performance is over all of it.
    config : Config
    executor : concurrent.futures.Executor, optional
        Does analyses side by side; each has random numbers of its own, so the tables are the same.

    Returns
    -------
    list of Path
        The tables written.

    Raises
    ------
    concurrent.futures.BrokenExecutor
        If a worker was lost.
    BadInputError
        If a table of the run itself is broken (`read_inputs`). Data that do not allow an analysis (one class, too
        few participants, no volumes) are no error: its rows, or its note, say why.
    """
    inputs = read_inputs(layout, scans, predictions, config)
    notes: list[tuple[str, str | None, str]] = [("inputs", None, said) for said in inputs.contradictions]
    written = []
    for analysis, (tables, problem) in zip(ANALYSES, _attempts(inputs, executor), strict=True):
        if problem:
            notes.append((analysis.name, ", ".join(analysis.tables), problem))
        for name in analysis.tables:
            path = layout.statistics(name)
            if name in tables:
                write_table(path, *tables[name])
                written.append(path)
            else:  # what an earlier run wrote is no longer true
                path.unlink(missing_ok=True)
                path.with_suffix(".json").unlink(missing_ok=True)
    write_table(layout.statistics("notes"), pd.DataFrame(notes, columns=list(NOTES_COLUMNS)), NOTES_COLUMNS)
    return [*written, layout.statistics("notes")]


def _attempts(inputs: StatisticsInputs, executor: Executor | None) -> list[tuple[Tables, str | None]]:
    """Each analysis, in the order of `ANALYSES`."""
    if executor is None:
        return [_attempt(analysis, inputs) for analysis in ANALYSES]
    return list(executor.map(_attempt, ANALYSES, [inputs] * len(ANALYSES)))


def _attempt(analysis: Analysis, inputs: StatisticsInputs) -> tuple[Tables, str | None]:
    """Tables of one analysis, or why there are none."""
    try:
        tables = analysis.function(inputs)
    except DATA_PROBLEMS as error:
        said = str(error).replace(f"{inputs.layout.root}{os.sep}", "")  # tables name files as the run folder does
        return {}, " ".join(said.split()) or type(error).__name__
    undeclared = set(tables) - set(analysis.tables)
    if undeclared:
        raise ValueError(f"analysis {analysis.name}: tables not declared in ANALYSES: {sorted(undeclared)}")
    return tables, None
