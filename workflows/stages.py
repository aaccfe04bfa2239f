"""The stages of a run: their inputs and outputs.

Each stage reads the records of earlier stages and writes its own; nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.templates import configured_grid
from heatlas.pipeline.cohort.images.conversion import convert_scans
from heatlas.pipeline.cohort.people.tasks import TWO_CLASSES, task_of
from heatlas.pipeline.cohort.reading import PLANTED
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.evaluation.planted import (
    PLANTED_EFFECTS_TABLE,
    PLANTED_RECOVERY_TABLE,
    evaluate_effects,
    evaluate_planted,
)
from heatlas.pipeline.explaining.likeness import write_likeness
from heatlas.pipeline.explaining.own_regions import add_own_regions
from heatlas.pipeline.explaining.planted_in_scan import write_planted
from heatlas.pipeline.explaining.stage import APPLIED_STAGE, explain_all, explain_applied
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.regions.stage import aggregate_applied, aggregate_relevance
from heatlas.pipeline.registration.images.faces import without_face
from heatlas.pipeline.registration.own_labels import carry_labels
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.layout.bundle_layout import BundleLayout
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.jobs import Job, Outcome, run_step
from heatlas.pipeline.statistics.data.inputs import files_read
from heatlas.pipeline.statistics.data.values import measure_images
from heatlas.pipeline.statistics.images.voxelwise import compare_voxelwise
from heatlas.pipeline.statistics.stage import analyse, compare_applied
from heatlas.pipeline.training.application import PREDICTIONS_APPLIED_TABLE, apply_networks
from heatlas.pipeline.training.baselines.stage import compare_with_baselines
from heatlas.pipeline.training.given import take_networks
from heatlas.pipeline.training.prediction import PREDICTIONS_TABLE
from heatlas.pipeline.training.stage import train_folds
from heatlas.reports.page.build import build_report, report_inputs, written_files
from heatlas.reports.people.scan_pictures import draw_scans
from heatlas.reports.read.run_record import read_run
from heatlas.workflows.registration import register_and_finish


def predicted(work: Work, *stages: str) -> list[Scan]:
    """Labelled scans with an out-of-fold prediction, which can be explained."""
    names = set(PREDICTIONS_TABLE.read(work.layout, ["scan_id"])["scan_id"])
    return [scan for scan in work.labelled("registration", *stages) if scan.scan_id in names]


def applied_scans(work: Work, *stages: str) -> list[Scan]:
    """Scans outside the contrast with a prediction."""
    if not PREDICTIONS_APPLIED_TABLE.path(work.layout).is_file():
        return []
    names = set(PREDICTIONS_APPLIED_TABLE.read(work.layout, ["scan_id"])["scan_id"])
    return [scan for scan in work.outside("registration", *stages) if scan.scan_id in names]


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
        return without_face(job, scan, work.files(scan), work.input_root, config.registration, work.digests)

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
    seen = configured_input(config).box if config.objective.own_anatomy else None
    carried = carry_labels(work, work.located(scans), seen)
    outcomes = take_networks(work) if work.without_labels else train_folds(work, scans)
    firsts = outcomes[: len(split.folds)]  # further repeats follow, and are only compared
    trained = [fold.index for fold, outcome in zip(split.folds, firsts, strict=True) if outcome.ok]
    applied = apply_networks(work, work.outside("registration"), trained)
    atlas = load_atlas(config.regions.atlas, configured_grid(config.registration))
    baselines = compare_with_baselines(work, scans, PackedAtlas.of(atlas))
    shown = [one for one in outcomes if not (one.ok and work.without_labels)]  # networks of another run are copied
    return Result([*carried, *shown, *applied], step_done=baselines)


def explain(work: Work) -> Result:
    """Explain every scan by networks that were not trained with its participant."""
    layout, config = work.layout, work.config
    atlas = load_atlas(config.regions.atlas, configured_grid(config.registration))
    labelled, outcomes, scans = work.labelled("registration"), list[Outcome](), list[Scan]()
    if work.without_labels:
        applied = explain_applied(work, applied_scans(work), labelled, atlas)
    else:
        scans, predictions = predicted(work), PREDICTIONS_TABLE.read(layout, ["scan_id"])
        outcomes, applied = explain_all(work, scans, predictions, applied_scans(work), labelled, atlas)
    compared = bool(config.training.networks_of) and write_likeness(work, [*scans, *applied_scans(work)])
    planted = write_planted(work, [one.job for one in (*outcomes, *applied) if one.ok])
    return Result([*outcomes, *applied], step_done=compared or planted)


def aggregate(work: Work) -> Result:
    """Gather the region sums of all scans and average heatmaps per group."""
    layout, config = work.layout, work.config
    applied = applied_scans(work, APPLIED_STAGE)
    if work.without_labels:
        run = RunLayout(Path(config.training.networks_of))
        tables = (PREDICTIONS_TABLE.path(run), PREDICTIONS_APPLIED_TABLE.path(layout))
        done = aggregate_applied(work, applied, tables, work.map_names, run)
        return Result(own_regions(work, applied), done)
    scans, predictions = predicted(work, "attribution"), PREDICTIONS_TABLE.read(layout, ["scan_id"])
    grid = configured_grid(config.registration)
    done, outcomes = aggregate_relevance(work, scans, predictions, work.map_names, grid)
    tables = (PREDICTIONS_TABLE.path(layout), PREDICTIONS_APPLIED_TABLE.path(layout))
    others = aggregate_applied(work, applied, tables, work.map_names)
    return Result([*outcomes, *own_regions(work, [*scans, *applied])], done or others)


def own_regions(work: Work, scans: Sequence[Scan]) -> list[Outcome]:
    """Sum the maps over people's own segmentations, where there are any."""
    return add_own_regions(work, work.located(scans), work.map_names)


def infer(work: Work) -> Result:
    """Test relevance against volume and between groups; for a demo cohort, also against the planted truth."""
    layout, config = work.layout, work.config
    if work.without_labels:
        scans = applied_scans(work, APPLIED_STAGE)
        run = Path(config.training.networks_of)
        read = [*files_read(layout), *files_read(RunLayout(run)), BundleLayout(run).norms]
        return Result(step_done=run_step(
            layout, "statistics", read, [config.statistics, [scan.scan_id for scan in scans]], [compare_applied],
            lambda: compare_applied(layout, config), work.digests,
        ))  # fmt: skip
    explained = predicted(work, "attribution")
    measured, atlas = False, None
    if task_of(config.cohort).kind.name == TWO_CLASSES:
        atlas = PackedAtlas.of(load_atlas(config.regions.atlas, configured_grid(config.registration)))
        measured = measure_images(work, explained, atlas)

    truth = work.input_root / PLANTED  # there only if the input is a demo cohort

    def statistics() -> list[Path]:
        written = analyse(layout, explained, PREDICTIONS_TABLE.read(layout, ["scan_id"]), config, work.executor)
        if task_of(config.cohort).kind.name != TWO_CLASSES:
            return written  # the planted effects are differences of two classes
        if truth.is_file():
            evaluate_planted(layout, truth)
            written.append(PLANTED_RECOVERY_TABLE.path(layout))
        effects = truth.with_name("effects.json")
        if effects.is_file():
            classes = config.cohort.negative, config.cohort.positive
            evaluate_effects(layout, effects, work.map_names[0], classes)
            written.append(PLANTED_EFFECTS_TABLE.path(layout))
        return written

    inputs = [*files_read(layout), truth, truth.with_name("effects.json")]
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
        voxelwise = compare_voxelwise(work, explained, predictions, atlas)
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


@dataclass(frozen=True)
class Stage:
    """A stage that a command of another distribution ends with.

    `require_settings`: refuses settings that cannot work; told whether the workers may be on other machines.
    `require_scans`: refuses kept scans that it cannot work with.
    """

    name: str
    work: Callable[[Work], Result]
    require_settings: Callable[[Config, bool], None]
    require_scans: Callable[[Config, Sequence[Scan]], object]


STAGE_FUNCTIONS: dict[str, Callable[[Work], Result]] = {
    "registration": register,
    "training": train,
    "attribution": explain,
    "regions": aggregate,
    "statistics": infer,
    "report": report,
}
