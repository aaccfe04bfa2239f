"""Labels of people's own anatomy, taken to template space by the transforms of their scans."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from heatlas.atlases.images import UNREADABLE, write_template_image
from heatlas.atlases.resampling import resample_labels
from heatlas.atlases.spaces import Grid, require_same_grid, template_grid
from heatlas.atlases.templates import span_of
from heatlas.pipeline.cohort.images.headers import kind_of, read_raw_header
from heatlas.pipeline.cohort.people.splits import Split
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.segmented.labels import labels_of_scans, region_numbers, t1w_of
from heatlas.pipeline.registration.ants_transform import Interpolation, Transforms, Volume, resample
from heatlas.pipeline.registration.images.preparation import closest_ras
from heatlas.pipeline.registration.images.t1w import load_labels, voxel_to_world
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.private_paths import shown_as, without_home
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.work.digests import DigestCache, unit_key
from heatlas.pipeline.run.work.jobs import Job, Outcome, record_failures, run_jobs

log = logging.getLogger("heatlas")
STAGE = "own-labels"
NOTHING = 0
INSIDE = 0.85
"""Least share of a segmentation in the brain of its scan; of one in another space, much lies outside."""
_OF_SUBJECT = ("orig.mgz", "T1.mgz", "brain.mgz")
"""Images of the `mri` folder of a subject, on whose grid its segmentation lies."""


@dataclass(frozen=True)
class OwnLabels:
    """What the job of one scan needs: `numbers` are those of the regions that masks are made of."""

    files: ScanFiles
    labels: Path
    numbers: tuple[int, ...]
    placed: bool


def labels_in_template(
    path: Path, files: ScanFiles, grid: Grid, *, placed: bool
) -> tuple[NDArray[np.int32], dict[int, float]]:
    """A segmentation on the grid of the maps, and the volume of each region in mm³ on its own grid.

    It is taken forward by the transforms of its scan, by nearest neighbour; that of a scan that came in template space
    (`placed`) must lie there too.
    """
    labels, affine = load_labels(path)
    numbers, counts = np.unique(labels[labels != NOTHING], return_counts=True)
    voxel = abs(float(np.linalg.det(affine[:3, :3])))
    volumes = {int(number): round(int(count) * voxel, 3) for number, count in zip(numbers, counts, strict=True)}
    return _carried(labels, affine, files, grid, placed, "nearestNeighbor"), volumes


def _carried(
    labels: NDArray[np.int32], affine: NDArray[np.float64], files: ScanFiles, grid: Grid, placed: bool,
    interpolation: Interpolation,
) -> NDArray[np.int32]:  # fmt: skip
    if placed:
        i, j, k = labels.shape
        return resample_labels(labels, Grid((i, j, k), affine), grid).labels
    transforms = Transforms(files.affine_transform, files.warp, files.inverse_warp)
    moving = closest_ras(Volume(labels.astype(np.float32), affine))  # exact: labels are far below 2 ** 24
    values = resample(moving, transforms, grid.shape, grid.affine, interpolation)
    return np.asarray(np.rint(values), dtype=np.int32)


def carry(outputs: dict[str, Path], task: OwnLabels) -> Mapping[str, float]:
    """Write the regions of one scan in template space; the function of a `Job`.

    Each voxel takes the label that has the largest share of it, by linear interpolation, or none.
    """
    grid = template_grid(task.files.resolution_mm, span_of(task.files.template))
    with shown_as(task.labels, "the label image of the scan"):
        labels, affine = load_labels(task.labels)
    marked = _carried((labels != NOTHING).astype(np.int32), affine, task.files, grid, task.placed, "nearestNeighbor")
    inside = share_inside(marked != NOTHING, task.files.brain_mask, grid)
    if inside < INSIDE:
        raise BadInputError(
            f"the label image of the scan lies to {1 - inside:.0%} outside its brain in template space. Give one in "
            "the space of the image (docs/inputs.md)."
        )
    wanted = np.where(np.isin(labels, task.numbers), labels, NOTHING)
    found = _carried(wanted, affine, task.files, grid, task.placed, "genericLabel")
    write_template_image(outputs["labels"], found.astype(np.float32), grid, "Heatlas: regions of the person's own")
    return {"regions": len(np.unique(found[found != NOTHING]))}


def share_inside(marked: NDArray[np.bool_], brain_mask: Path, grid: Grid) -> float:
    """Share of marked voxels in the brain of a scan; 0 if none is marked."""
    try:
        image = nib.nifti1.Nifti1Image.from_filename(brain_mask)
        brain = np.asanyarray(image.dataobj) > 0.5
    except UNREADABLE as error:
        raise BadInputError(f"{brain_mask}: cannot be read ({error}); run the registration again.") from error
    require_same_grid(Grid.of(image), grid, brain_mask.name)
    return float(brain[marked].mean()) if marked.any() else 0.0


def carry_labels(
    layout: RunLayout, input_root: Path, scans: Sequence[Scan], config: Config, executor: Executor,
    digests: DigestCache,
) -> list[Outcome]:  # fmt: skip
    """Write the regions of ``[objective]`` of all scans that have labels of their own; remove those of others.

    Parameters
    ----------
    layout : RunLayout
    input_root : Path
        Folder that the image paths of the scans start from.
    scans : sequence of Scan
        Registered, with the paths of their images.
    config, executor, digests

    Returns
    -------
    list of Outcome
        One per scan with labels; nothing where the settings do not ask for them.
    """
    if not config.objective.own_anatomy:
        return []
    found, jobs = labels_of_scans(input_root, scans, config), []
    for scan in scans:
        files = layout.scan(scan.participant_id, scan.session_id, config.registration.resolution_mm)
        if scan.scan_id not in found:
            files.own_labels.unlink(missing_ok=True)  # of an earlier run, with other input
            continue
        path = found[scan.scan_id]
        task = OwnLabels(files, path, region_numbers(path, input_root, config.objective.regions),
                         scan.entry == "template")  # fmt: skip
        used = [files.brain_mask] if task.placed else [files.brain_mask, files.warp, files.affine_transform]
        inputs = {"labels": digests.digest(path), "registration": digests.joined(used)}
        key = unit_key(inputs, [task.numbers, files.resolution_mm, task.placed], carry)
        jobs.append(Job(STAGE, files.name, key, {"labels": files.own_labels}, carry, (task,)))
    log.info("%d of %d labelled scans have labels of their own, which guide their maps", len(jobs), len(scans))
    outcomes = run_jobs(layout, jobs, executor, "own labels") if jobs else []
    for outcome in outcomes:
        if not outcome.ok:  # whoever has no labels is not guided; those of an earlier run are of other settings
            outcome.job.outputs["labels"].unlink(missing_ok=True)
    if not jobs:
        record_failures(layout, [], [STAGE])
    digests.save()
    return outcomes


def require_own_labels(config: Config, input_root: Path, scans: Sequence[Scan], split: Split) -> str:
    """Refuse label images that cannot guide maps, by their headers and tables, before any work starts.

    Parameters
    ----------
    config : Config
    input_root : Path
    scans : sequence of Scan
        With a label.
    split : Split

    Returns
    -------
    str
        How many have labels of their own.

    Raises
    ------
    UsageError
        For an unknown region, or a fold that trains with nobody who has labels.
    BadInputError
        If no scan has labels, a table is missing, or an image cannot be read or lies on another grid than its scan.
    """
    found = labels_of_scans(input_root, scans, config)
    if not found:
        raise BadInputError(
            'objective.region_labels = "own": no scan has a label image. Put _dseg.nii.gz beside the images, or set '
            "cohort.freesurfer_folder or regions.own_labels."
        )
    for scan in (scan for scan in scans if scan.scan_id in found):
        path = found[scan.scan_id]
        region_numbers(path, input_root, config.objective.regions)
        own, seen = _grid_of(path), _image_with_labels(path, t1w_of(input_root, scan))
        if seen is not None:
            require_same_grid(own, _grid_of(seen), f"{without_home(path)} and its image {seen.name}")
    people = {scan.participant_id for scan in scans if scan.scan_id in found}
    for fold in split.folds:
        if not people & set(fold.train):
            raise UsageError(
                f"objective.region_labels: nobody in the training part of fold {fold.index} has labels of their own. "
                'Segment more people, or set "atlas".'
            )
    everybody = {scan.participant_id for scan in scans}
    return (
        f"{len(people)} of {len(everybody)} participants have labels of their own, and only their maps are guided "
        '(objective.region_labels = "own")'
    )


def _image_with_labels(labels: Path, t1w: Path) -> Path | None:
    """The image whose grid labels must have: FreeSurfer's own in its folders, which scans need not lie on."""
    if labels.parent.name == "mri":
        return next((path for name in _OF_SUBJECT if (path := labels.with_name(name)).is_file()), None)
    return t1w if t1w.is_file() and not t1w.name.lower().endswith(".dcm") else None


def _grid_of(path: Path) -> Grid:
    """Grid of an image, from its header alone."""
    try:
        header = read_raw_header(path)
    except (*UNREADABLE, ValueError) as error:
        raise BadInputError(f"{without_home(path)}: not a readable {kind_of(path)} image ({error}).") from error
    i, j, k = header.get_data_shape()[:3]
    return Grid((i, j, k), voxel_to_world(header, path).affine)
