"""Labels of people's own anatomy, taken to template space by the transforms of their scans."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heatlas.atlases import spaces
from heatlas.atlases.templates import span_of
from heatlas.pipeline.cohort.images.headers import kind_of, read_raw_header
from heatlas.pipeline.cohort.people.splits import Split, guided_people, training_part
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.segmented.images import labels_of_scans, n_longitudinal, region_numbers, t1w_of
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.registration.ants_transform import Interpolation, Transforms, Volume, closest_ras, resample
from heatlas.pipeline.registration.images.t1w import load_labels, voxel_to_world
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.plain_text import counted, shown_as, without_home
from heatlas.pipeline.run.work.jobs import FAILURES_TABLE, Outcome, record_failures, run_jobs
from heatlas.pipeline.run.work.unit import Unit, keyed, keyed_file

log = logging.getLogger("heatlas")
STAGE = "own-labels"
NOTHING = 0
INSIDE = 0.85
"""Least share of a segmentation in the brain of its scan; of one in another space, much lies outside."""
_OF_SUBJECT = ("orig.mgz", "T1.mgz", "brain.mgz")
"""Images of the `mri` folder of a subject, on whose grid its segmentation lies."""


class OwnLabels(Unit):
    """What the job of one scan needs: the regions that masks are made of, with their numbers, and what networks see.

    `registration`: files that the labels are carried by.
    """

    labels: Path = keyed_file("labels")
    regions: tuple[tuple[str, tuple[int, ...]], ...]
    files: ScanFiles = keyed("resolution_mm")
    placed: bool
    seen: spaces.Box | None = None
    registration: Sequence[Path] = keyed(
        inputs=lambda used, digests: {"registration": digests.joined(used)}, default=()
    )


def labels_in_template(
    path: Path, files: ScanFiles, grid: spaces.Grid, *, placed: bool
) -> tuple[NDArray[np.int32], dict[int, float]]:
    """A segmentation on the grid of the maps, and the volume of each region in mm³ on the grid it came on.

    It is taken forward by the transforms of its scan, by nearest neighbour; that of a scan that came in template space
    (`placed`) must lie there too.
    """
    labels, affine = load_labels(path)
    numbers, counts = np.unique(labels[labels != NOTHING], return_counts=True)
    voxel = abs(float(np.linalg.det(affine[:3, :3])))
    volumes = {int(number): round(int(count) * voxel, 3) for number, count in zip(numbers, counts, strict=True)}
    return _carry_labels(labels, affine, files, grid, placed, "nearestNeighbor"), volumes


def _carry_labels(
    labels: NDArray[np.int32], affine: np.ndarray, files: ScanFiles, grid: spaces.Grid, placed: bool, how: Interpolation
) -> NDArray[np.int32]:
    if placed:
        i, j, k = labels.shape
        return spaces.resample_labels(labels, spaces.Grid((i, j, k), affine), grid)
    transforms = Transforms(files.affine_transform, files.warp, files.inverse_warp)
    moving = closest_ras(Volume(labels.astype(np.float32), affine))  # exact: labels are far below 2 ** 24
    values = resample(moving, transforms, grid.shape, grid.affine, how)
    return np.asarray(np.rint(values), dtype=np.int32)


def carry(outputs: dict[str, Path], task: OwnLabels) -> Mapping[str, int | str]:
    """Write the regions of one scan in template space; the function of a `Job`.

    Each voxel takes the label that has the largest share of it, by linear interpolation, or none. Without a voxel of
    one of the regions nothing is marked: a map would be kept out of a region that the person does have.

    Returns the number of labels, and why there is none (``lacking``, empty if there are).
    """
    grid = spaces.template_grid(task.files.resolution_mm, span_of(task.files.template))
    with shown_as(task.labels, "the label image of the scan"):
        labels, affine = load_labels(task.labels)
    marked = _carry_labels(
        (labels != NOTHING).astype(np.int32), affine, task.files, grid, task.placed, "nearestNeighbor"
    )
    inside = share_inside(marked != NOTHING, task.files.brain_mask, grid)
    if inside < INSIDE:
        raise BadInputError(
            f"{outside_brain('the label image of the scan', inside)} Give one in the space of the image "
            "(docs/inputs.md)."
        )
    numbers = [number for _, region in task.regions for number in region]
    wanted = np.where(np.isin(labels, numbers), labels, NOTHING)
    carried = _carry_labels(wanted, affine, task.files, grid, task.placed, "genericLabel")
    shown = carried if task.seen is None else task.seen.crop(carried)
    lacking = [
        f"{name} ({'no voxel that the network sees' if np.isin(labels, region).any() else 'not in the label image'})"
        for name, region in task.regions
        if not np.isin(shown, region).any()
    ]
    if lacking:
        carried = np.zeros_like(carried)
    spaces.write_template_image(
        outputs["labels"], carried.astype(np.float32), grid, "Heatlas: regions of the person's own"
    )
    return {"regions": len(np.unique(carried[carried != NOTHING])), "lacking": ", ".join(lacking)}


def outside_brain(what: str, inside: float) -> str:
    """How much of a segmentation lies outside the brain of its scan.

    >>> outside_brain("the segmentation of the scan", 0.6)
    'the segmentation of the scan: 40 % of it lies outside the brain in template space.'
    """
    return f"{what}: {100 * (1 - inside):.0f} % of it lies outside the brain in template space."


def share_inside(marked: NDArray[np.bool_], brain_mask: Path, grid: spaces.Grid) -> float:
    """Share of marked voxels in the brain of a scan; 0 if none is marked. BadInputError for a brain without voxels."""
    brain = spaces.read_brain(brain_mask, grid)
    return float(brain[marked].mean()) if marked.any() else 0.0


def carry_labels(work: Work, scans: Sequence[Scan], seen: spaces.Box | None = None) -> list[Outcome]:
    """Write the regions of ``[objective]`` of all scans that have labels of their own; remove those of others.

    `scans`: registered, with the paths of their images. `seen`: what the network sees; None for everything.
    """
    layout, input_root, config, digests = work.layout, work.input_root, work.config, work.digests
    if not config.objective.own_anatomy:
        if layout.failures.is_file() and STAGE in set(FAILURES_TABLE.read(layout.failures)["stage"]):
            record_failures(layout, [], [STAGE])  # of an earlier run, with other settings
        return []
    kept = [scan for scan in work.scans if scan.kept]
    labels, jobs = labels_of_scans(input_root, scans, config, kept), []
    for scan in scans:
        files = work.files(scan)
        if scan.scan_id not in labels:
            files.own_labels.unlink(missing_ok=True)  # of an earlier run, with other input
            continue
        path = labels[scan.scan_id]
        numbers, placed = region_numbers(path, input_root, config.objective.regions), scan.entry == "template"
        used = [files.brain_mask] if placed else [files.brain_mask, files.warp, files.affine_transform]
        task = OwnLabels(path, numbers, files, placed, seen, used)
        jobs.append(task.job(STAGE, files.name, {"labels": files.own_labels}, digests, carry))
    outcomes = run_jobs(layout, jobs, work.executor, "own labels") if jobs else []
    guided = 0
    for outcome in outcomes:
        if not outcome.ok:  # whoever has no labels is not guided; those of an earlier run are of other settings
            outcome.job.outputs["labels"].unlink(missing_ok=True)
        elif lacking := outcome.result.get("lacking"):
            log.warning("%s: their maps are not guided, as their labels lack %s", outcome.job.unit, lacking)
        else:
            guided += 1
    regions = ", ".join(config.objective.regions)
    log.info(
        "%d of %d labelled scans have labels of their own with %s, which guide their maps", guided, len(scans), regions
    )
    if not jobs:
        record_failures(layout, [], [STAGE])
    digests.save()
    return outcomes


def require_own_labels(
    config: Config, input_root: Path, scans: Sequence[Scan], split: Split, kept: Sequence[Scan]
) -> list[str]:
    """Refuse label images that cannot guide maps, by their headers and tables, before any work starts.

    `scans`: with a label. `kept`: all kept scans of the input, as of `labels_of_scans`. Returns notes: how many have
    labels of their own, and what was left out.
    """
    labels, longitudinal = labels_of_scans(input_root, scans, config, kept), n_longitudinal(config)
    left_out = [
        f"{counted(longitudinal, 'longitudinal result')} (.long.) in cohort.freesurfer_folder left out for own labels: "
        "these lie in the space of their base template, not of the scan"
    ] * bool(longitudinal)
    if not labels:
        raise BadInputError(
            'objective.region_labels = "own": no scan has a label image. Put _dseg.nii.gz beside the images, or set '
            f"cohort.freesurfer_folder or regions.own_labels.{''.join(f' Note: {note}.' for note in left_out)}"
        )
    for scan in (scan for scan in scans if scan.scan_id in labels):
        path = labels[scan.scan_id]
        region_numbers(path, input_root, config.objective.regions)
        grid, seen = _grid_of(path), _image_with_labels(path, t1w_of(input_root, scan))
        if seen is not None:
            spaces.require_same_grid(grid, _grid_of(seen), f"{without_home(path)} and its image {seen.name}")
    people = {scan.participant_id for scan in scans if scan.scan_id in labels}
    for fold in split.folds:
        guided_people(config, training_part(config, fold, scans), scans, people)
    everybody = {scan.participant_id for scan in scans}
    guided = (
        f"at most {len(people)} of {len(everybody)} participants have labels of their own with all of "
        f'{", ".join(config.objective.regions)}, and only their maps are guided (objective.region_labels = "own")'
    )
    return [guided, *left_out]


def _image_with_labels(labels: Path, t1w: Path) -> Path | None:
    """The image whose grid labels must have: that of FreeSurfer in its folders, which scans need not lie on."""
    if labels.parent.name == "mri":
        return next((path for name in _OF_SUBJECT if (path := labels.with_name(name)).is_file()), None)
    return t1w if t1w.is_file() and not t1w.name.lower().endswith(".dcm") else None


def _grid_of(path: Path) -> spaces.Grid:
    """Grid of an image, from its header alone."""
    try:
        header = read_raw_header(path)
    except (*spaces.UNREADABLE, ValueError) as error:
        raise BadInputError(f"{without_home(path)}: not a readable {kind_of(path)} image ({error}).") from error
    i, j, k = header.get_data_shape()[:3]
    return spaces.Grid((i, j, k), voxel_to_world(header, path).affine)
