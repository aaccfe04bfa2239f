"""The stages of a run: their inputs and outputs.

Each stage reads the records of earlier stages and writes its own; nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.templates import configured_grid
from heatlas.pipeline.cohort.images.conversion import convert_scans
from heatlas.pipeline.cohort.people.splits import Split
from heatlas.pipeline.cohort.people.tasks import TWO_CLASSES, task_of
from heatlas.pipeline.cohort.reading import PLANTED
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.evaluation.planted import (
    PLANTED_EFFECTS_TABLE,
    PLANTED_RECOVERY_TABLE,
    evaluate_effects,
    evaluate_planted,
)
from heatlas.pipeline.explaining.own_regions import add_own_regions
from heatlas.pipeline.explaining.stage import APPLIED_STAGE, explain_applied, explain_scans
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.regions.stage import aggregate_applied, aggregate_relevance
from heatlas.pipeline.registration.images.faces import without_face
from heatlas.pipeline.registration.own_labels import carry_labels
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.layout.map_names import map_names
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import FAILURES_TABLE, Job, Outcome
from heatlas.pipeline.run.work.steps import run_step
from heatlas.pipeline.statistics.applied import compare_applied
from heatlas.pipeline.statistics.data.inputs import files_read
from heatlas.pipeline.statistics.data.values import measure_images
from heatlas.pipeline.statistics.images.voxelwise import compare_voxelwise
from heatlas.pipeline.statistics.stage import analyse
from heatlas.pipeline.training.application import PREDICTIONS_APPLIED_TABLE, apply_networks
from heatlas.pipeline.training.baselines.stage import compare_with_baselines
from heatlas.pipeline.training.given import take_networks
from heatlas.pipeline.training.prediction import PREDICTIONS_TABLE
from heatlas.pipeline.training.stage import train_folds
from heatlas.reports.page.build import build_report, report_inputs, written_files
from heatlas.reports.people.scan_pictures import draw_scans
from heatlas.reports.read.run_record import read_run
from heatlas.workflows.registration import register_and_finish


@dataclass(frozen=True)
class Work:
    """Input of every stage of a run."""

    layout: RunLayout
    input_root: Path
    config: Config
    scans: tuple[Scan, ...]
    split: Split
    executor: Executor
    digests: DigestCache

    @property
    def map_names(self) -> list[str]:
        return map_names(self.config.attribution)

    @property
    def truth(self) -> Path:
        """The planted truth, if the input is a demo cohort."""
        return self.input_root / PLANTED

    @property
    def without_labels(self) -> bool:
        """Whether networks of another run are applied to people of whom none has a label."""
        return bool(self.config.training.networks_of) and all(scan.label is None for scan in self.scans)

    def labelled(self, *stages: str) -> list[Scan]:
        """Labelled scans that failed in none of the given stages, as updated by registration.

        Registration may drop scans and add volumes in ``scans.tsv``.
        """
        return [scan for scan in self._unfailed(*stages) if scan.label is not None]

    def registered(self) -> list[Scan]:
        """All registered scans."""
        return self._unfailed("registration")

    def predicted(self, *stages: str) -> list[Scan]:
        """Labelled scans with an out-of-fold prediction, which can be explained."""
        names = set(PREDICTIONS_TABLE.read(self.layout, ["scan_id"])["scan_id"])
        return [scan for scan in self.labelled("registration", *stages) if scan.scan_id in names]

    def outside(self, *stages: str) -> list[Scan]:
        """Kept scans outside the contrast that are to be predicted and failed in none of the stages."""
        wanted = self.config.cohort.apply_outside_contrast and task_of(self.config.cohort).kind.applies
        return [scan for scan in self._unfailed(*stages) if scan.label is None] if wanted else []

    def applied(self, *stages: str) -> list[Scan]:
        """Scans outside the contrast with a prediction."""
        if not PREDICTIONS_APPLIED_TABLE.path(self.layout).is_file():
            return []
        names = set(PREDICTIONS_APPLIED_TABLE.read(self.layout)["scan_id"])
        return [scan for scan in self.outside("registration", *stages) if scan.scan_id in names]

    def located(self, scans: Sequence[Scan]) -> list[Scan]:
        """The same scans with the paths of their images."""
        names = {scan.scan_id for scan in scans}
        return [scan for scan in self.scans if scan.scan_id in names]

    def _unfailed(self, *stages: str) -> list[Scan]:
        failures = FAILURES_TABLE.read(self.layout.failures)
        failed = set(failures.loc[failures["stage"].isin(["conversion", *stages]), "unit"])
        return [scan for scan in ScanTable.read(self.layout).kept if scan.name not in failed]


@dataclass(frozen=True)
class Result:
    """Result of a stage: its units of work, and whether a step over the whole group was done."""

    outcomes: Sequence[Outcome] = ()
    step_done: bool = False

    def count(self, status: str) -> int:
        return sum(outcome.status == status for outcome in self.outcomes)

    @property
    def changed(self) -> bool:
        return self.step_done or self.count("done") > 0

    def __str__(self) -> str:
        counts = [f"{self.count(status)} {status}" for status in ("done", "unchanged", "failed") if self.count(status)]
        return ", ".join(counts) or ("done" if self.step_done else "unchanged")


def register(work: Work) -> Result:
    """Bring every kept scan, labelled or not, to template space; DICOM series become NIfTI first."""
    config = work.config

    def faceless(job: Job, scan: Scan) -> Job:
        files = work.layout.scan(scan.participant_id, scan.session_id, config.registration.resolution_mm)
        return without_face(job, scan, files, work.input_root, config.registration, work.digests)

    scans, conversions = convert_scans(
        work.layout, work.input_root, work.scans, config.cohort.max_voxel_mm, work.executor,
        faceless if config.privacy.removes_faces else None,
    )  # fmt: skip
    registrations, later = register_and_finish(work, scans)
    outcomes = [*(o for o in conversions if o.status != "unchanged"), *registrations, *(o for o in later if not o.ok)]
    return Result(outcomes, step_done=any(o.status == "done" for o in later))


def train(work: Work) -> Result:
    """Train one network per fold and predict unseen scans, including those outside the contrast."""
    scans, split, config = work.labelled("registration"), work.split, work.config
    located, kept = work.located(scans), [scan for scan in work.scans if scan.kept]
    seen = configured_input(config).box if config.objective.own_anatomy else None
    carried = carry_labels(work.layout, work.input_root, located, config, work.executor, work.digests, kept, seen)
    if work.without_labels:
        outcomes = take_networks(work.layout, split, config, work.executor, work.digests)
    else:
        outcomes = train_folds(work.layout, scans, split, config, work.executor, work.digests)
    firsts = outcomes[: len(split.folds)]  # further repeats follow, and are only compared
    trained = [fold.index for fold, outcome in zip(split.folds, firsts, strict=True) if outcome.ok]
    outside = work.outside("registration")
    applied = apply_networks(work.layout, outside, split, trained, work.config, work.executor, work.digests)
    atlas = load_atlas(config.regions.atlas, configured_grid(config.registration))
    beside = compare_with_baselines(
        work.layout, scans, split, config, PackedAtlas.of(atlas), work.executor, work.digests
    )
    return Result([*carried, *outcomes, *applied], step_done=beside)


def pretrain(work: Work) -> Result:
    """Train a backbone on all registered scans, labelled or not."""
    from heatlas.studies.pretraining.stage import pretrain as train_backbone

    return Result(train_backbone(work.layout, work.registered(), work.config, work.executor, work.digests))


def explain(work: Work) -> Result:
    """Explain every scan by networks that were not trained with its participant."""
    layout, config = work.layout, work.config
    atlas = load_atlas(config.regions.atlas, configured_grid(config.registration))
    labelled, outcomes = work.labelled("registration"), list[Outcome]()
    if not work.without_labels:
        scans, predictions = work.predicted(), PREDICTIONS_TABLE.read(layout, ["scan_id"])
        outcomes = explain_scans(
            layout, scans, work.split, predictions, atlas, config, work.executor, work.digests, labelled
        )
    applied = explain_applied(layout, work.applied(), labelled, work.split, atlas, config, work.executor, work.digests)
    return Result([*outcomes, *applied])


def aggregate(work: Work) -> Result:
    """Gather the region sums of all scans and average heatmaps per group."""
    layout, config = work.layout, work.config
    applied = work.applied(APPLIED_STAGE)
    if work.without_labels:
        run = RunLayout(Path(config.training.networks_of))
        tables = (PREDICTIONS_TABLE.path(run), PREDICTIONS_APPLIED_TABLE.path(layout))
        done = aggregate_applied(layout, applied, tables, work.map_names, config, work.digests, run)
        return Result(own_regions(work, applied), done)
    scans, predictions = work.predicted("attribution"), PREDICTIONS_TABLE.read(layout, ["scan_id"])
    grid = configured_grid(config.registration)
    done, outcomes = aggregate_relevance(
        layout, scans, predictions, work.map_names, grid, config, work.executor, work.digests
    )
    tables = (PREDICTIONS_TABLE.path(layout), PREDICTIONS_APPLIED_TABLE.path(layout))
    others = aggregate_applied(layout, applied, tables, work.map_names, config, work.digests)
    return Result([*outcomes, *own_regions(work, [*scans, *applied])], done or others)


def own_regions(work: Work, scans: Sequence[Scan]) -> list[Outcome]:
    """Sum the maps over people's own segmentations, where there are any."""
    return add_own_regions(
        work.layout, work.input_root, work.located(scans), work.map_names, work.config, work.executor, work.digests
    )


def infer(work: Work) -> Result:
    """Test relevance against volume and between groups; for a demo cohort, also against the planted truth."""
    layout, config = work.layout, work.config
    if work.without_labels:
        scans = work.applied(APPLIED_STAGE)
        read = [*files_read(layout), *files_read(RunLayout(Path(config.training.networks_of)))]
        return Result(step_done=run_step(
            layout, "statistics", read, [config.statistics, [scan.scan_id for scan in scans]], [compare_applied],
            lambda: compare_applied(layout, config), work.digests,
        ))  # fmt: skip
    explained = work.predicted("attribution")
    measured, atlas = False, None
    if task_of(config.cohort).kind.name == TWO_CLASSES:
        atlas = PackedAtlas.of(load_atlas(config.regions.atlas, configured_grid(config.registration)))
        measured = measure_images(layout, explained, config, atlas, work.executor, work.digests)

    def statistics() -> list[Path]:
        written = analyse(layout, explained, PREDICTIONS_TABLE.read(layout, ["scan_id"]), config, work.executor)
        if task_of(config.cohort).kind.name != TWO_CLASSES:
            return written  # the planted effects are differences of two classes
        if work.truth.is_file():
            evaluate_planted(layout, work.truth)
            written.append(PLANTED_RECOVERY_TABLE.path(layout))
        effects = work.truth.with_name("effects.json")
        if effects.is_file():
            classes = config.cohort.negative, config.cohort.positive
            evaluate_effects(layout, effects, work.map_names[0], classes)
            written.append(PLANTED_EFFECTS_TABLE.path(layout))
        return written

    inputs = [*files_read(layout), work.truth, work.truth.with_name("effects.json")]
    parameters = [config.statistics, config.cohort, config.attribution, config.training.control, config.seed]
    done = run_step(
        layout,
        "statistics",
        inputs,
        parameters,
        [analyse, evaluate_planted, evaluate_effects],
        statistics,
        work.digests,
    )
    if atlas is not None:
        predictions = PREDICTIONS_TABLE.read(layout, ["scan_id"])
        voxelwise = compare_voxelwise(layout, explained, predictions, config, atlas, work.executor, work.digests)
        done = done or voxelwise or measured
    return Result(step_done=done)


def report(work: Work) -> Result:
    """Draw the maps of single scans on their brains and make their viewers, in the workers, and write the report."""
    layout = work.layout
    pictures = draw_scans(read_run(layout), work.executor)

    def build() -> list[Path]:
        build_report(layout, executor=work.executor)
        return written_files(layout)

    done = run_step(layout, "report", report_inputs(layout), None, [build_report], build, work.digests)
    return Result(pictures, done)


STAGE_FUNCTIONS: dict[str, Callable[[Work], Result]] = {
    "registration": register,
    "training": train,
    "pretraining": pretrain,
    "attribution": explain,
    "regions": aggregate,
    "statistics": infer,
    "report": report,
}
