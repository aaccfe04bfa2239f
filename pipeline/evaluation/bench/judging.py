"""Judge the maps of a cohort: one unit of work per scan, then rows and sums of its maps over regions.

The sums give the densities of each region by each map, and how far the classes differ in them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.bench.scan_job import NullNetwork, ScanToJudge, judge_scan
from heatlas.pipeline.evaluation.cohorts import PLANTED, JudgedCohort
from heatlas.pipeline.evaluation.nulls import (
    REAL,
    UNTRAINED,
    cascade_name,
    layers_with_parameters,
    networks_of,
    shuffled_name,
)
from heatlas.pipeline.evaluation.scores.localisation import ratio_of
from heatlas.pipeline.explaining.controls import ReferencePool, controls_of
from heatlas.pipeline.explaining.explained_scan import Explanation
from heatlas.pipeline.explaining.networks import Network
from heatlas.pipeline.models.families.registry import code_of
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.regions.effect_size import hedges_g
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.digests import Code, DigestCache
from heatlas.pipeline.run.work.jobs import Job, Outcome, run_jobs
from heatlas.pipeline.run.work.seeds import derived_seed

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
LEAST_SPREAD = 1e-6
"""Least standard deviation within classes, over the largest density: a perfect map has none, and must come first."""


@dataclass(frozen=True, eq=False)
class CohortMaps:
    """Scores and sums of all scans of a cohort.

    `scores`: rows of `pipeline.evaluation.bench.scan_job`, with ``scan_id``. `sums`: by network and map, then by scan
    id: over bilateral groups; a scan without a finite map is missing. `n_voxels`: of each group. `methods`: by map.
    `intensity`: by scan id: mean of each group, as networks see it.
    """

    scores: pd.DataFrame
    sums: Mapping[tuple[str, str], Mapping[str, Floats]]
    n_voxels: Floats
    groups: tuple[str, ...]
    methods: Mapping[str, str] = field(default_factory=dict)
    intensity: Mapping[str, Floats] = field(default_factory=dict)


def densities(cohort: JudgedCohort, rows: CohortMaps, network: str, name: str, scans: set[str]) -> pd.DataFrame:
    """Mean density per participant and outcome: index ``participant_id, outcome, fold``, a column per group.

    A scan without a finite map is left out; a map that is 0 everywhere counts as it is.
    """
    made, outcome = [], cohort.outcome
    for scan in cohort.scans:
        if scan.scan_id in scans:
            values = density_of(rows, network, name, scan.scan_id)
            made.append([scan.participant_id, outcome[scan.scan_id], cohort.fold_of(scan), *values.tolist()])
    table = pd.DataFrame(made, columns=["participant_id", "outcome", "fold", *rows.groups])
    return table.groupby(["participant_id", "outcome", "fold"], sort=False).mean().dropna()


def density_of(rows: CohortMaps, network: str, name: str, scan_id: str) -> Floats:
    """Density of each group in a scan; NaN without a finite map."""
    sums = rows.sums.get((network, name), {}).get(scan_id)
    if sums is None:
        return np.full(len(rows.groups), np.nan)
    return np.divide(sums, rows.n_voxels, out=np.zeros(len(sums)), where=rows.n_voxels > 0)


def class_difference(table: pd.DataFrame, paired: bool) -> Floats:
    """Hedges' g of each group between the classes, with the fold held, or the person of planted copies.

    Where a number is predicted: the slope on it, per standard deviation, in the same unit. `paired`: whether everyone
    has a copy of either class.
    """
    level = table.index.get_level_values("participant_id" if paired else "fold")
    outcome = table.index.get_level_values("outcome").to_numpy(float)
    return hedges_g(table.to_numpy(float), outcome, pd.factorize(level)[0], LEAST_SPREAD)


def is_paired(cohort: JudgedCohort) -> bool:
    return cohort.name.startswith(PLANTED)


def density_ratio(densities: Sequence[Floats], planted: Flags, other: Flags) -> float:
    """Mean |density| in another group over the mean |density| in planted groups; NaN without scans that have a map.

    Infinite where only the other group has something; NaN where neither has.

    Examples
    --------
    >>> density_ratio([np.array([2.0, -1.0, 0.0])], np.array([True, False, False]), np.array([False, True, False]))
    0.5
    """
    finite = [row for row in densities if np.isfinite(row).all()]
    if not finite:
        return float("nan")
    sizes = np.abs(np.stack(finite))
    return ratio_of(float(sizes[:, other].mean()), float(sizes[:, planted].mean()))


STAGE = "judging"
THOROUGH = 12
"""Positive scans in which all of faithfulness is measured, unless the settings say how many."""
CASCADE_STEPS = 4
"""Networks of the cascade, from the head alone to all layers."""


@dataclass(frozen=True)
class Extent:
    """How much is asked beside the maps of the true networks and those made without a network; nothing by default.

    `shuffles`: swaps of labels, each with networks of its own. `nulls`: untrained networks and cascades, in one
    positive scan per fold. `faithful`: all of faithfulness in a few positive scans per fold (``[evaluation] scans``),
    recognition through the map in every one. `controls`: whether every fold must have controls, whatever the methods
    need.
    """

    shuffles: int = 0
    nulls: bool = False
    faithful: bool = False
    controls: bool = False


class Judge:
    """Makes the jobs of a cohort."""

    def __init__(
        self, cohort: JudgedCohort, explanations: tuple[Explanation, ...], extent: Extent, digests: DigestCache
    ) -> None:
        self.cohort, self.explanations, self.extent, self.digests = cohort, explanations, extent, digests
        self._controls: ReferencePool = controls_of(cohort.compared_with, cohort.split, cohort.config)
        by_fold: dict[int, list[str]] = {}
        for scan in cohort.positive:
            by_fold.setdefault(cohort.fold_of(scan), []).append(scan.scan_id)
        self._first = {scans[0] for scans in by_fold.values()}
        wanted = cohort.config.evaluation.scans or math.ceil(THOROUGH / max(len(by_fold), 1))
        self._thorough = {scan for scans in by_fold.values() for scan in scans[:wanted]}

    def require_controls(self) -> None:
        """Refuse folds without a training control, if something that is asked compares with controls."""
        if self.extent.controls or any(asked.entry.needs_reference for asked in self.explanations):
            for scan in self.cohort.scans:
                if self._controls.mean is None:
                    self._controls.of(self.cohort.fold_of(scan), scan)

    def jobs(self) -> list[Job]:
        self.require_controls()
        fold = self.cohort.fold_of(self.cohort.scans[0])  # has a network, which another may lack
        layers = len(layers_with_parameters(load_model(self.cohort.layout.fold(fold)).model))
        steps = sorted({round(step) for step in np.linspace(1, layers, CASCADE_STEPS)})
        jobs = [self._job(scan, steps) for scan in self.cohort.scans]
        self.digests.save()
        return jobs

    def _job(self, scan: Scan, steps: Sequence[int]) -> Job:
        cohort = self.cohort
        real = NullNetwork(REAL, self._network(scan, REAL))
        networks = [real]
        names = [shuffled_name(number + 1) for number in range(self.extent.shuffles)]
        fold = real.network.fold
        trained = [name for name in names if networks_of(cohort, name).fold(fold).weights not in cohort.untrained]
        networks += [NullNetwork(name, self._network(scan, name)) for name in trained]
        seed = derived_seed(cohort.config.seed, "evaluation", "drawn-anew", fold)
        if self.extent.nulls and scan.scan_id in self._first:
            networks.append(NullNetwork(UNTRAINED, real.network, True, None, seed))
            networks += [NullNetwork(cascade_name(step), real.network, True, step, seed) for step in steps]
        truth = cohort.truth
        has_truth = truth is not None and scan.label == cohort.config.cohort.positive
        groups = cohort.atlas.regions.groups
        labels = tuple(number for name in truth.groups for number in groups[name]) if has_truth and truth else ()
        marked = truth is not None and any(
            distractor.kind == "marker" and scan.name in distractor.scans for distractor in truth.distractors
        )
        faithful = self.extent.faithful and scan.scan_id in self._thorough
        seen, config = self.extent.faithful and scan in cohort.positive, cohort.config
        task = ScanToJudge(
            scan, self._files(scan), self.explanations, cohort.atlas, labels, marked, seen, faithful, config.evaluation,
            tuple(networks), config.seed, config.training,
        )  # fmt: skip
        outputs = {
            "scores": cohort.layout.scores_of_scan(cohort.name, scan.name),
            "sums": cohort.layout.sums_of_scan(cohort.name, scan.name),
        }
        return task.job(
            STAGE, f"{cohort.name}_{scan.name}", outputs, self.digests, judge_scan, *self._code, on_gpu=True
        )

    @property
    def _code(self) -> list[Code]:
        """Of the methods and the network."""
        return [*{asked.module for asked in self.explanations}, *code_of(self.cohort.config.model)]

    def _files(self, scan: Scan) -> ScanFiles:
        resolution = self.cohort.config.registration.resolution_mm
        return self.cohort.layout.scan(scan.participant_id, scan.session_id, resolution)

    def _network(self, scan: Scan, name: str) -> Network:
        """With its controls, where it has some: image maps and faithfulness use them, but can do without."""
        fold = self.cohort.fold_of(scan)
        files = networks_of(self.cohort, name).fold(fold)
        pool, resolution = self._controls, self.cohort.config.registration.resolution_mm
        some = pool.mean is not None or pool.by_fold.get(fold)
        controls = pool.references(fold, scan, self.cohort.layout, resolution, self.digests) if some else ()
        return Network.of(fold, files, self.digests, controls)


def judged_rows(
    cohort: JudgedCohort,
    explanations: tuple[Explanation, ...],
    extent: Extent,
    executor: Executor,
    digests: DigestCache,
) -> tuple[JudgedCohort, CohortMaps, list[Outcome]]:
    """Judge every scan of a cohort, and gather what was found; scans that failed are left out and listed."""
    jobs = Judge(cohort, explanations, extent, digests).jobs()
    title = "planted copies" if cohort.name == PLANTED else "run"
    outcomes = run_jobs(cohort.layout, jobs, executor, f"maps of the {title}")
    return *maps_of(cohort, explanations, outcomes), outcomes


def those_judged(cohort: JudgedCohort, outcomes: Sequence[Outcome]) -> JudgedCohort:
    """A cohort without the scans that failed; refuses one of which all scans of a class failed."""
    failed = {outcome.job.arguments[0].scan.scan_id for outcome in outcomes if not outcome.ok}
    left = tuple(scan for scan in cohort.scans if scan.scan_id not in failed)
    for label in cohort.task.classes:
        if not any(scan.label == label for scan in left):
            raise BadInputError(f"every scan of {label} failed; see {cohort.layout.failures}.")
    if not left:
        raise BadInputError(f"every scan failed; see {cohort.layout.failures}.")
    return dataclasses.replace(cohort, scans=left)


def gathered(cohort: JudgedCohort, outcomes: Sequence[Outcome], explanations: Sequence[Explanation]) -> CohortMaps:
    """Read the rows and sums of all scans, the sums pooled over both sides."""
    groups = cohort.atlas.regions.groups
    frames: list[pd.DataFrame] = []
    sums: dict[tuple[str, str], dict[str, NDArray[np.float64]]] = {}
    intensity: dict[str, NDArray[np.float64]] = {}
    n_voxels = np.zeros(len(groups))
    for outcome in outcomes:
        scan: Scan = outcome.job.arguments[0].scan
        frames.append(read_table(outcome.job.outputs["scores"]).assign(scan_id=scan.scan_id))
        with np.load(outcome.job.outputs["sums"], allow_pickle=False) as file:
            numbers = file["numbers"].tolist()
            pooled = np.array([[number in members for number in numbers] for members in groups.values()], float)
            n_voxels = pooled @ file["n_voxels"]
            with np.errstate(invalid="ignore"):
                intensity[scan.scan_id] = (pooled @ file["image"]) / n_voxels
            for name, values in zip(file["names"].tolist(), file["sums"] @ pooled.T, strict=True):
                network, _, of = str(name).partition("|")
                sums.setdefault((network, of), {})[scan.scan_id] = values
    methods = {name: asked.entry.name for asked in explanations for name in asked.names}
    return CohortMaps(pd.concat(frames, ignore_index=True), sums, n_voxels, tuple(groups), methods, intensity)


def map_jobs(
    cohort: JudgedCohort, explanations: tuple[Explanation, ...], digests: DigestCache, stage: str
) -> list[Job]:
    """One unit per scan: its maps by the networks of the cohort, summed over regions; `stage` names the receipts."""
    untold = dataclasses.replace(cohort, truth=None)  # regions are scored, voxels are not
    jobs = Judge(untold, explanations, Extent(), digests).jobs()
    return [dataclasses.replace(job, stage=stage) for job in jobs]


def maps_of(
    cohort: JudgedCohort, explanations: Sequence[Explanation], outcomes: Sequence[Outcome]
) -> tuple[JudgedCohort, CohortMaps]:
    left = those_judged(cohort, outcomes)
    return left, gathered(left, [outcome for outcome in outcomes if outcome.ok], explanations)


def participant_densities(cohort: JudgedCohort, rows: CohortMaps, name: str, network: str = REAL) -> pd.DataFrame:
    return densities(cohort, rows, network, name, {scan.scan_id for scan in cohort.scans})
