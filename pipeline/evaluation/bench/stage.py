"""The bench of a finished run: every method against nulls, planted truth and the network itself; a verdict on each."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from heatlas.atlases.labels import Atlas
from heatlas.pipeline.cohort.people.splits import SPLITS_TABLE, Split
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.bench import distractors, table, verdicts
from heatlas.pipeline.evaluation.bench.cohorts import RUN, Judged, truth_of_input
from heatlas.pipeline.evaluation.bench.densities import Rows
from heatlas.pipeline.evaluation.bench.judging import Extent, Judge, judged_rows
from heatlas.pipeline.evaluation.bench.request import ANY_TASK, FEW_METHODS, SEPARATE, Request, methods_of, with_methods
from heatlas.pipeline.evaluation.bench.trainings import trained
from heatlas.pipeline.evaluation.consensus.networks import require_different
from heatlas.pipeline.evaluation.consensus.stage import agree
from heatlas.pipeline.evaluation.consensus.tables import CONSENSUS_TABLES
from heatlas.pipeline.evaluation.grids.stage import GRID_METHODS, evaluate_grids, require_single
from heatlas.pipeline.evaluation.grids.tables import GRID_TABLES
from heatlas.pipeline.evaluation.interactions import sides, sources
from heatlas.pipeline.evaluation.nulls.networks import shuffled_jobs
from heatlas.pipeline.evaluation.planting.cohort import planted_cohort
from heatlas.pipeline.evaluation.planting.marked import marker_cohort
from heatlas.pipeline.evaluation.planting.marker_table import MARKER_TABLE
from heatlas.pipeline.evaluation.representations.stage import judge_backbone, require_frozen
from heatlas.pipeline.evaluation.representations.table import REPRESENTATIONS_TABLE
from heatlas.pipeline.evaluation.retraining.before_after import before_and_after, require_maps
from heatlas.pipeline.evaluation.retraining.before_after_table import BEFORE_AFTER_TABLE
from heatlas.pipeline.evaluation.retraining.removal import SHARES
from heatlas.pipeline.evaluation.retraining.stage import remove_and_retrain
from heatlas.pipeline.evaluation.retraining.table import RETRAINING_TABLE
from heatlas.pipeline.explaining.explanation import Explanation
from heatlas.pipeline.explaining.requested import explanations_of_run
from heatlas.pipeline.explaining.scan_jobs import require_all_defined
from heatlas.pipeline.models.families.registry import build_network, family_of
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.registration.volumes.tables import VOLUMES_TABLE
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.pipeline.run.tables import read_table, write_table
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import Outcome, record_failures, run_jobs

log = logging.getLogger("heatlas")

BENCH_TABLES = (
    table.EVALUATION_TABLE, distractors.DISTRACTORS_TABLE, verdicts.VERDICTS_TABLE, sides.INTERACTIONS_TABLE,
    sources.SOURCES_TABLE, *GRID_TABLES, RETRAINING_TABLE, MARKER_TABLE,
    BEFORE_AFTER_TABLE, REPRESENTATIONS_TABLE, *CONSENSUS_TABLES,
)  # fmt: skip
"""Tables of ``heatlas evaluate``; a run has none of them."""


@dataclass(frozen=True)
class Evaluated:
    """Tables and outcomes of the bench."""

    evaluation: pd.DataFrame
    verdicts: pd.DataFrame
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True)
class Bench:
    """What all parts work with."""

    layout: EvaluationLayout
    request: Request
    scans: tuple[Scan, ...]
    split: Split
    config: Config
    atlas: Atlas
    executor: Executor
    digests: DigestCache

    def evaluate(self, truth_json: Path) -> Evaluated:
        """Do all parts and write the tables.

        Parameters
        ----------
        truth_json : Path
            ``truth/planted.json`` of the input, which need not exist.

        Raises
        ------
        UsageError
            For an unknown method or part, a method that is not defined for the network, or a part that is defined for
            two classes only.
        BadInputError
            If the run has no network, controls are missing, or every unit of work failed.
        """
        self._require_task()
        self._require_defined()
        require_different(self.request.families, self.config)
        if "objective" in self.request.parts:
            require_maps(self.config)
        if "representations" in self.request.parts:
            require_frozen(self.config)
        if "grids" in self.request.parts:
            require_single(self.config)
        cohorts: list[tuple[Judged, Extent]] = []
        outcomes: list[Outcome] = []
        if self.split.folds:
            cohort = self._of_run(truth_json)
            extent = self.request.extent()
            cohort, trained = self._with_nulls(cohort, extent)
            outcomes += trained
            cohorts.append((cohort, extent))
        elif "plant" not in self.request.parts:
            raise BadInputError(
                f"{SPLITS_TABLE.path(self.layout)}: no such table, so this run has no networks. Finish it with heatlas "
                "run, or ask for --plant, which needs registered scans only."
            )
        if "plant" in self.request.parts:
            cohort, made = planted_cohort(self.layout, self.scans, self.config, self.atlas, self.executor, self.digests)
            outcomes += made
            extent = self.request.extent(shuffles=1)
            cohort, trained = self._with_nulls(cohort, extent)
            outcomes += trained
            cohorts.append((cohort, extent))
        outcomes += self._separate(cohorts[0][0])
        asked = set(self.request.parts) - {"plant"}
        if asked and asked <= SEPARATE:  # the verdicts of an earlier call stay
            return Evaluated(
                pd.DataFrame(columns=list(table.COLUMNS)), pd.DataFrame(columns=list(verdicts.COLUMNS)), tuple(outcomes)
            )
        evaluation, marked = [], []
        for cohort, extent in cohorts:
            explanations = self._explanations(cohort.config)
            cohort, rows, judged = judged_rows(cohort, explanations, extent, self.executor, self.digests)
            outcomes += judged
            if "interactions" in self.request.parts and cohort.name == cohorts[0][0].name:
                outcomes += self._interactions(cohort, extent, rows)
            evaluation.append(table.evaluation_table(cohort, rows))
            marked.append(distractors.distractor_table(cohort, rows))
        return self._written(pd.concat(evaluation), pd.concat(marked), outcomes)

    def _written(self, evaluation: pd.DataFrame, marked: pd.DataFrame, outcomes: Sequence[Outcome]) -> Evaluated:
        record_failures(self.layout, outcomes)  # each cohort has recorded its own alone
        evaluation = with_earlier(self.layout.evaluation_scores, evaluation)
        marked = with_earlier(self.layout.distractors, marked)
        said = verdicts.verdict_table(evaluation)
        write_table(self.layout.evaluation_scores, evaluation, table.COLUMNS)
        write_table(self.layout.distractors, marked, distractors.COLUMNS)
        write_table(self.layout.verdicts, said, verdicts.COLUMNS)
        return Evaluated(evaluation, said, tuple(outcomes))

    def _interactions(self, cohort: Judged, extent: Extent, rows: Rows) -> list[Outcome]:
        """Sides of regions together, and what evidence goes with; of the first cohort."""
        explanations = self._explanations(cohort.config)
        jobs = Judge(cohort, explanations, extent, self.digests).sides()
        outcomes = run_jobs(self.layout, jobs, self.executor, "sides of regions")
        write_table(self.layout.interactions, sides.interaction_table(cohort, outcomes), sides.COLUMNS)
        known = cohort.name == RUN and VOLUMES_TABLE.path(self.layout).is_file()
        volumes = VOLUMES_TABLE.read(self.layout) if known else None
        maps = [name for asked in explanations if asked.entry.needs_reference for name in asked.names]
        write_table(self.layout.evidence_sources, sources.source_table(cohort, rows, maps, volumes), sources.COLUMNS)
        return outcomes

    def _grids(self, cohort: Judged) -> list[Outcome]:
        """Several scans side by side, of the first cohort; by the usual methods also those of `GRID_METHODS`."""
        methods = methods_of(self.request, cohort.config)
        if not self.request.methods:
            refused = family_of(cohort.config.model).refused
            methods = tuple(dict.fromkeys((*methods, *(one for one in GRID_METHODS if one not in refused))))
        explanations = explanations_of_run(with_methods(cohort.config, methods))
        return evaluate_grids(cohort, explanations, self.request.quick, self.executor, self.digests)

    def _separate(self, cohort: Judged) -> list[Outcome]:
        """Parts with tables of their own, on the first cohort."""
        request, made = self.request, []
        if "retrain" in request.parts:
            shares = SHARES[:1] if request.quick else SHARES
            asked = self._few(cohort.config)
            made += remove_and_retrain(cohort, asked, request.random_draws, self.executor, self.digests, shares)
        if "consensus" in request.parts:
            made += agree(
                cohort, self._few, request.further_seeds, request.families, request.quick, self.executor, self.digests
            )
        if "marker" in request.parts:
            made += marker_cohort(cohort, self.executor, self.digests)
        if "objective" in request.parts:
            made += before_and_after(cohort, self.executor, self.digests)
        if "representations" in request.parts:
            made += judge_backbone(cohort, self.scans, self.executor, self.digests)
        if "grids" in request.parts:  # last, since a weak network may allow no grid at all
            made += self._grids(cohort)
        return made

    def _few(self, config: Config) -> tuple[Explanation, ...]:
        """The methods named, or a few, less those not defined for the family of networks."""
        refused = family_of(config.model).refused
        asked = dict.fromkeys(self.request.methods or FEW_METHODS)
        named = tuple(name for name in asked if name not in refused)
        return explanations_of_run(with_methods(config, named))

    def _require_task(self) -> None:
        """Refuse parts that compare two classes, in a run that has another task."""
        undefined = task_of(self.config.cohort).kind.undefined
        asked = [part for part in self.request.parts if part not in ANY_TASK]
        if self.split.folds and undefined and asked:
            raise UsageError(f"--parts {asked[0]}: {undefined} Defined for every task are {', '.join(ANY_TASK)}.")

    def _require_defined(self) -> None:
        """Refuse methods that are not defined for the network, before anything is planted or trained."""
        explanations, spec = self._explanations(self.config), configured_input(self.config)
        conditional = [asked for asked in explanations if hasattr(asked.entry.record, "require")]
        if conditional:
            network = build_network(self.config.model, spec.shape, len(task_of(self.config.cohort).outputs)).eval()
            require_all_defined(network, spec, PackedAtlas.of(self.atlas), conditional)

    def _explanations(self, config: Config) -> tuple[Explanation, ...]:
        return explanations_of_run(with_methods(config, methods_of(self.request, config)))

    def _of_run(self, truth_json: Path) -> Judged:
        """Scans of the run that a network of the run may explain: of each participant and class the first."""
        task = task_of(self.config.cohort)
        tested: dict[tuple[str, str | None], Scan] = {}
        for scan in self.scans:
            fold = self.split.fold_of_test(scan.participant_id) if scan.label is not None else None
            if fold is not None and self.layout.fold(fold.index).weights.is_file():
                tested.setdefault((scan.participant_id, None if task.is_number else scan.label), scan)
        if not tested:
            raise BadInputError(
                f"{self.layout.root}: no scan has a network that has not seen it. Finish the run with heatlas run."
            )
        for label in () if task.is_number else task.outputs:
            if not any(own == label for _, own in tested):
                raise BadInputError(
                    f"{self.layout.root}: no scan of {label} has a network that has not seen it, and regions are "
                    "ranked by the difference between the classes. Finish the run with heatlas run."
                )
        packed = PackedAtlas.of(self.atlas)
        # what was planted is a disease; a network that predicts a number need not use it
        truth = None if task.is_number else truth_of_input(truth_json, list(packed.regions.groups))
        if truth is None:
            log.info("No truth is known of the scans of the run; --plant makes one from its controls.")
        labelled = tuple(scan for scan in self.scans if scan.label is not None)
        return Judged(
            RUN, self.layout, tuple(tested.values()), self.split, self.config, packed, truth, labelled, labelled
        )

    def _with_nulls(self, cohort: Judged, extent: Extent) -> tuple[Judged, list[Outcome]]:
        """Train networks on labels that say nothing; a network that cannot be trained is missing from the nulls.

        Raises
        ------
        BadInputError
            Before any training: if a fold lacks controls that are needed, or people to exchange labels.
        """
        Judge(cohort, self._explanations(cohort.config), extent, self.digests).require_controls()
        jobs = shuffled_jobs(cohort, range(1, extent.shuffles + 1), self.digests)
        self.digests.save()
        outcomes = trained(self.layout, jobs, self.executor, "training on shuffled labels")
        failed = frozenset(one.job.outputs["weights"] for one in outcomes if not one.ok)
        return dataclasses.replace(cohort, untrained=failed), outcomes


def with_earlier(path: Path, made: pd.DataFrame) -> pd.DataFrame:
    """Rows just made, and those of cohorts that an earlier call judged and this one did not (planted copies).

    A table with other columns, of another version, is not continued.
    """
    earlier = read_table(path) if path.is_file() else made.iloc[:0]
    if list(earlier.columns) != list(made.columns):
        return made
    others = earlier[~earlier["cohort"].isin(set(made["cohort"]))]
    return pd.concat([made, others], ignore_index=True) if len(others) else made
