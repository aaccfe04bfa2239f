"""The statistics stage: tables of inference from tables of relevance; no image is read.

Analyses are listed here, run independently and written. Where the data do not allow one, a row of
``statistics/notes.tsv`` says why and the others go on; a programming error ends the stage. Where networks of another
run are applied to scans without labels (`compare_applied`), nothing can be right or wrong: there are scores against
the norms of the other run's controls alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from heatlas.pipeline.cohort.people.tasks import KINDS, NUMBER, SEVERAL_CLASSES, TWO_CLASSES, KindName, task_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.explaining.controls import NORMS_TABLE, read_norms
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.declared import Table, declared
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.bundle_layout import Bundle, open_bundle
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.associations.associations import associations_tables, primary_tables
from heatlas.pipeline.statistics.associations.volume_association import volume_association_tables
from heatlas.pipeline.statistics.comparison.external import external_tables
from heatlas.pipeline.statistics.comparison.rankings import ranking_agreement_tables
from heatlas.pipeline.statistics.data.features import NO_FOLD, VOLUME, CovariateColumns, FoldedScans, region_features
from heatlas.pipeline.statistics.data.inputs import (
    AppliedScans,
    StatisticsInputs,
    inputs_of_run,
    read_applied,
    read_inputs,
)
from heatlas.pipeline.statistics.data.values import joined, stacked
from heatlas.pipeline.statistics.groups.comparisons import comparisons_tables
from heatlas.pipeline.statistics.groups.fairness import fairness_tables
from heatlas.pipeline.statistics.groups.subgroups import interactions_tables, main_effects_tables, subgroups_tables
from heatlas.pipeline.statistics.groups.summaries import demographics_tables, region_summary_tables
from heatlas.pipeline.statistics.harmonisation.tables import HARMONISATION_TABLES, harmonisation_tables
from heatlas.pipeline.statistics.images.differences import image_differences_tables
from heatlas.pipeline.statistics.normative.shared_norms import (
    ANSWER,
    W_ANSWERS_TABLE,
    SharedNorms,
    answer_table,
    answers_of,
    norm_rows,
)
from heatlas.pipeline.statistics.normative.subtypes import NORMATIVE_TABLES, normative_tables
from heatlas.pipeline.statistics.normative.w_scores import (
    W_FINGERPRINTS_TABLE,
    W_SCORES_TABLE,
    Norm,
    fingerprint_table,
    norm_of,
)
from heatlas.pipeline.statistics.performance.baselines import baselines_tables
from heatlas.pipeline.statistics.performance.classification import performance_tables
from heatlas.pipeline.statistics.performance.other_tasks import classes_tables, number_tables, repeats_tables
from heatlas.pipeline.statistics.progression.prediction import progression_tables
from heatlas.pipeline.statistics.progression.trajectories import trajectory_table
from heatlas.pipeline.statistics.shortcuts import shortcut_table, site_prediction_table

Tables = Mapping[str, pd.DataFrame]
"""Tables by name."""

DATA_PROBLEMS = (BadInputError, np.linalg.LinAlgError)
"""Errors that data can cause; any other exception is a programming error."""

NOTES_TABLE = declared("notes", __file__)


@dataclass(frozen=True)
class Analysis:
    """A function from inputs to its table, or to several by name.

    The participant is the unit, p is (b + 1) / (m + 1), effects have intervals, and tests are corrected within a named
    family. A simulation without effect (``tests/statistics/error_rates``) must find the level near 5 %, with
    repeated scans per person. `tables` are those that it may write, `tasks` the kinds that it is defined for.
    """

    name: str
    function: Callable[[StatisticsInputs], pd.DataFrame | Tables]
    tables: tuple[Table, ...]
    tasks: Collection[KindName] = frozenset({TWO_CLASSES})


def _tables(*names: str) -> tuple[Table, ...]:
    return tuple(declared(name, __file__) for name in names)


EVERY_TASK = frozenset(KINDS)
ANALYSES = (
    Analysis("primary", primary_tables, _tables("primary"), EVERY_TASK),
    Analysis("demographics", demographics_tables, _tables("demographics", "demographic_tests"), EVERY_TASK),
    Analysis("performance", performance_tables, _tables("performance", "roc", "precision_recall", "calibration")),
    Analysis("performance_classes", classes_tables, _tables("performance_classes", "confusion"), {SEVERAL_CLASSES}),
    Analysis("performance_number", number_tables, _tables("performance_number"), {NUMBER}),
    Analysis("external", external_tables, _tables("external_validation", "external_calibration")),
    Analysis("baselines", baselines_tables, _tables("baselines"), EVERY_TASK),
    Analysis("performance_repeats", repeats_tables, _tables("performance_repeats"), EVERY_TASK),
    Analysis("region_summary", region_summary_tables, _tables("region_summary"), {TWO_CLASSES, SEVERAL_CLASSES}),
    Analysis("volume_association", volume_association_tables, _tables("volume_points", "volume_association")),
    Analysis("associations", associations_tables, _tables("associations"), EVERY_TASK),
    Analysis("group_comparisons", comparisons_tables, _tables("group_comparisons")),
    Analysis("image_differences", image_differences_tables, _tables("image_differences", "image_agreement")),
    Analysis("subgroups", subgroups_tables, _tables("subgroups")),
    Analysis("interactions", interactions_tables, _tables("interactions")),
    Analysis("main_effects", main_effects_tables, _tables("main_effects")),
    Analysis("fairness", fairness_tables, _tables("fairness")),
    Analysis("progression", progression_tables, _tables("cox", "progression")),
    Analysis("trajectories", trajectory_table, _tables("trajectories")),
    Analysis("shortcuts", shortcut_table, _tables("shortcuts")),
    Analysis("site_prediction", site_prediction_table, _tables("site_prediction")),
    Analysis("ranking_agreement", ranking_agreement_tables, _tables("ranking_agreement")),
    Analysis("harmonisation", harmonisation_tables, HARMONISATION_TABLES),
    Analysis("normative", normative_tables, (*NORMATIVE_TABLES, W_ANSWERS_TABLE)),
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

    `scans` are those with a prediction and heatmaps; performance is computed over all of `predictions`. An executor
    runs analyses in parallel; each has its own random stream, so the tables do not change. Data that do not allow an
    analysis raise no error: its rows or ``notes.tsv`` say why. BadInputError if a table of the run is invalid.
    """
    inputs = read_inputs(layout, scans, predictions, config)
    notes: list[tuple[str, str | None, str]] = [("inputs", None, text) for text in inputs.contradictions]
    written = []
    run_all: Callable[..., Iterator[Any]] = map if executor is None else executor.map
    # The last take longest: begun first, they leave no worker idle at the end.
    last_first = list(run_all(_attempt, ANALYSES[::-1], [inputs] * len(ANALYSES)))
    attempts: list[tuple[Tables, str | None]] = last_first[::-1]
    for analysis, (tables, problem) in zip(ANALYSES, attempts, strict=True):
        if problem:
            notes.append((analysis.name, ", ".join(table.name for table in analysis.tables), problem))
        for table in analysis.tables:
            if table.name in tables:
                written.append(table.write(layout, tables[table.name]))
            else:  # of an earlier run
                table.remove(layout)
    return [*written, NOTES_TABLE.write(layout, notes)]


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


CAUTIOUS = "mean over {:g} networks, scored against maps of single networks, which vary more: z is rather too small"
NO_LABELS = (
    "Not enough people have a label, so nothing can be right or wrong and no groups can be compared. Give a cohort "
    "with labels for performance and group statistics."
)


@dataclass(frozen=True, eq=False)
class ControlNorms:
    """What is usual in the controls of a run: values (controls, groups) of one source, a scan each, and its facts."""

    source: str
    groups: tuple[str, ...]
    values: Floats
    frame: pd.DataFrame
    formula: str
    min_freedom: int

    def for_scan(self, facts: pd.DataFrame) -> tuple[Norm, Floats, str | None]:
        """The norm of a scan, its covariates (1, n), and which of them had to be left out."""
        learned = CovariateColumns.of(self.formula, self.frame)
        unknown = learned.unknown(facts)[0]
        norm, covariates = norm_of(self.values, self.frame, self.formula, self.min_freedom, without=tuple(unknown))
        missed = {name: why for name, why in unknown.items() if name not in learned.dropped}  # constant: no loss
        note = f"norm without {', '.join(missed)} ({'; '.join(missed.values())})" if missed else None
        return norm, covariates.matrix(facts)[0], note

    @property
    def rows(self) -> pd.DataFrame:
        """What an export gives away of them."""
        return norm_rows(self.source, self.groups, self.values, self.frame)


def compare_applied(layout: RunLayout, config: Config) -> list[Path]:
    """Write scores of scans without labels (of regions and of the answer), and why there are no other tables.

    BadInputError if a table of this run is invalid.
    """
    for table in STATISTICS_TABLES:
        table.remove(layout)
    notes = [("performance", "performance, roc, calibration, group_comparisons, associations", NO_LABELS)]
    written, applied = [], read_applied(layout, task_of(config.cohort))
    if applied is not None:
        try:
            norms = list(norms_of_run(Path(config.training.networks_of)))
            scores = applied_scores(layout, applied, norms)
        except BadInputError as error:
            notes.append(("normative", f"{W_SCORES_TABLE.name}, {W_FINGERPRINTS_TABLE.name}", str(error)))
        else:
            written = [W_SCORES_TABLE.write(layout, scores)]
            written.append(W_FINGERPRINTS_TABLE.write(layout, fingerprint_table(scores)))
            for one in norms:
                if isinstance(one, SharedNorms) and one.source == ANSWER:
                    written.append(W_ANSWERS_TABLE.write(layout, answer_table(applied, one)))
    return [*written, NOTES_TABLE.write(layout, notes)]


def norms_of_run(folder: Path) -> Iterator[ControlNorms | SharedNorms]:
    """The norms of a finished run, or of its export, by source, that of the answer last.

    BadInputError if a table is missing or invalid.
    """
    if bundle := open_bundle(folder):
        yield from _norms_of_export(bundle)
        return
    inputs = inputs_of_run(RunLayout(folder))
    scans, config = FoldedScans.of(inputs), inputs.config
    settings, task = config.statistics.normative, task_of(config.cohort)
    controls = scans.training(NO_FOLD) & scans.frame["label"].map(task.is_control).to_numpy(bool)
    for source in scans.sources:
        formula = settings.volume_covariates if source.source == VOLUME else settings.relevance_covariates
        frame = scans.frame[controls].reset_index(drop=True)
        values = source.values[controls]
        yield ControlNorms(source.source, source.groups, values, frame, formula, settings.min_freedom)
    answers = answers_of(scans.frame[controls])
    if answers is not None and len(rows := norm_rows(ANSWER, (ANSWER,), answers[:, None], scans.frame[controls])):
        yield SharedNorms(ANSWER, rows)


def norms_to_share(run: RunLayout) -> pd.DataFrame:
    """The norms of a finished run that its export holds; of volumes there are none. Raises as `norms_of_run`."""
    return stacked(NORMS_TABLE, [norms.rows for norms in norms_of_run(run.root) if norms.source != VOLUME])


def _norms_of_export(bundle: Bundle) -> Iterator[SharedNorms]:
    table = read_norms(bundle)
    if table is None:
        raise BadInputError(f"{bundle.layout.norms}: not there; the exported run had no regions. Apply the run itself.")
    for name, rows in table.groupby("map", sort=False):
        yield SharedNorms(str(name), rows)


def applied_scores(layout: RunLayout, applied: AppliedScans, norms: list[ControlNorms | SharedNorms]) -> pd.DataFrame:
    by_source = {source.source: source for source in region_features(applied.values, applied.volumes(layout))}
    frame, blocks = applied.frame, []
    for usual in norms:
        features = by_source.get(usual.source)
        if features is None or np.isnan(features.values).all():  # no volumes of an affine registration
            continue
        place = [features.groups.index(group) if group in features.groups else -1 for group in usual.groups]
        for row in range(len(frame)):
            values = np.where(np.array(place) < 0, np.nan, features.values[row][place])[None]
            norm, covariates, left_out = usual.for_scan(frame.iloc[[row]])
            w, z = norm.scores(values, covariates)
            networks = frame["n_networks"].iloc[row]
            mean = CAUTIOUS.format(networks) if usual.source != VOLUME and networks > 1 else None
            unknown = np.where(np.isnan(values[0]), "no value", "")
            notes = [joined(*why, left_out, mean) for why in zip(norm.problems, unknown.tolist(), strict=True)]
            facts = frame.iloc[row][["participant_id", "session_id", "scan_id"]].to_dict()
            facts |= {"label": None, "fold": NO_FOLD, "source": usual.source}
            blocks.append(pd.DataFrame({**facts, "group": usual.groups, "w": w[0], "z": z[0], "note": notes}))
    return stacked(W_SCORES_TABLE, blocks)
