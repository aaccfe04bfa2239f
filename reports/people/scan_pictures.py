"""Portrait and viewer page of every scan: one unit of work each, made by the workers of a run.

Reading the images and coding them is what takes time, so it is done once per scan, when its maps are new, and never by
``heatlas report``: the maps of a thousand scans make a gigabyte of pages. The page of a participant only leads there.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from atlases.images import UNREADABLE
from atlases.labels import Atlas, load_atlas
from atlases.spaces import Grid, template_grid
from pipeline.regions.maps import read_map
from pipeline.run.errors import BadInputError
from pipeline.run.layout.map_names import map_title
from pipeline.run.layout.scan_files import ScanFiles
from pipeline.run.tables import write_text
from pipeline.run.work.digests import file_digest, unit_key
from pipeline.run.work.jobs import Job, Outcome, receipt_key, run_jobs
from reports.cautions.findings import Caution
from reports.cautions.method_cautions import cautions_of_maps
from reports.figures.slices import PERSON_PERCENTILES, BrainImage, MapView, view_of
from reports.page.components import Component
from reports.page.links import participant_file
from reports.page.pages import TEMPLATES, Frame, render
from reports.people.portrait import CUTS, OUTLINED, draw_portrait
from reports.read.run_record import RunRecord
from reports.viewer.atlas import ViewingSpace, atlas_component
from reports.viewer.component import SCALE, ViewerMap, viewer_component, viewing_space

STAGE = "scan-pictures"
_TEMPLATES = (
    TEMPLATES / "base.html.j2", TEMPLATES / "macros.html.j2",
    TEMPLATES / "scan_viewer.html.j2", TEMPLATES / "report.css", TEMPLATES / "report.js",
    *(TEMPLATES / "components" / name for name in ("viewer.html.j2", "viewer.css", "viewer.js", "volumes.js")),
)  # fmt: skip


def draw_scans(run: RunRecord, executor: Executor) -> list[Outcome]:
    """Make portrait and viewer page of every scan that has maps of its own; what is up to date is left alone.

    Parameters
    ----------
    run : RunRecord
        With relevance.
    executor : concurrent.futures.Executor

    Returns
    -------
    list of Outcome
        One per scan with maps; none where the run keeps no maps of single scans.
    """
    settings = run.config
    resolution, atlas = settings.registration.resolution_mm, settings.regions.atlas
    if not run.keeps_single_maps or not run.has("relevance"):
        return []
    looks = [file_digest(path) for path in _TEMPLATES]
    jobs = []
    for scan_id, files in _scans(run).items():
        units = {name: run.map_unit(name) for name in run.main_maps if files.relevance_map(name).is_file()}
        if not units or not files.t1w.is_file():
            continue
        groups = run.densest_groups.get(scan_id, ())[:OUTLINED]
        made_from = _made_from(run, files, [files.t1w, *map(files.relevance_map, units)])
        cautions = cautions_of_maps(run, groups)
        said = [(one.level, one.title, one.text) for one in cautions]
        key = unit_key(made_from, [resolution, atlas, units, groups, looks, said], draw_portrait, scan_page)
        outputs = {"portrait": files.portrait, "viewer": files.viewer}
        jobs.append(Job(STAGE, files.name, key, outputs, draw_one, (files, units, groups, resolution, atlas, cautions)))
    return run_jobs(run.layout, jobs, executor, "pictures") if jobs else []


def _scans(run: RunRecord) -> dict[str, ScanFiles]:
    """Files of every scan with relevance, labelled or not, by its id."""
    tables = [run.tables[name] for name in ("relevance", "relevance_applied") if run.has(name)]
    found: dict[str, ScanFiles] = {}
    for table in tables:
        rows = table.drop_duplicates("scan_id").to_dict("records")
        found.update({str(row["scan_id"]): run.files_of(row) for row in rows})
    return found


def _made_from(run: RunRecord, files: ScanFiles, images: Sequence[Path]) -> Mapping[str, str]:
    """What the pictures of a scan depend on: receipts, or without them (another scheduler's files) size and time."""
    stages = ("registration", "attribution", "attribution-applied")
    receipts = {stage: receipt_key(run.layout, stage, files.name) or "" for stage in stages}
    if receipts["registration"] and (receipts["attribution"] or receipts["attribution-applied"]):
        return receipts
    return {path.name: f"{path.stat().st_size} {path.stat().st_mtime_ns}" for path in images}


def draw_one(
    outputs: Mapping[str, Path], files: ScanFiles, units: Mapping[str, str], groups: Sequence[str],
    resolution_mm: float, atlas: str, cautions: Sequence[Caution],
) -> None:  # fmt: skip
    """Job: draw one scan and make its page.

    `units`: of the values of each map, by its name, in the order to show.

    Raises HeatlasError if the template or the atlas is not at hand, or an image cannot be read.
    """
    space = viewing_space(resolution_mm, atlas)
    grid = template_grid(resolution_mm)
    if space is None:
        raise BadInputError(f"{files.name}: the template or the atlas {atlas!r} is not at hand on this machine.")
    brain = _brain(files.t1w, grid)
    maps = {name: read_map(files.relevance_map(name), grid) for name in units}
    views = {name: view_of(BrainImage(values, grid.affine), CUTS, brain > 0) for name, values in maps.items()}
    own = BrainImage(brain, grid.affine)
    labels = space.atlas if space.side == 1 else _atlas(atlas, resolution_mm)
    outputs["portrait"].write_bytes(draw_portrait(own, views, units, groups, labels))
    write_text(outputs["viewer"], scan_page(files, brain, maps, views, units, space, cautions))


@functools.cache
def _atlas(name: str, resolution_mm: float) -> Atlas:
    return load_atlas(name, template_grid(resolution_mm))


def _brain(path: Path, grid: Grid) -> NDArray[np.float32]:
    """The person's brain in template space."""
    try:
        image: Any = nib.load(path)
        brain = np.asarray(image.dataobj, dtype=np.float32)
    except UNREADABLE as error:
        raise BadInputError(f"{path}: not readable ({error}). Remove it and run registration again.") from error
    if brain.shape != grid.shape:
        raise BadInputError(f"{path}: has the shape {brain.shape}, the run's grid {grid}. Run registration again.")
    return brain


def scan_page(
    files: ScanFiles,
    brain: NDArray[np.float32],
    maps: Mapping[str, NDArray[np.float32]],
    views: Mapping[str, MapView],
    units: Mapping[str, str],
    space: ViewingSpace,
    cautions: Sequence[Caution] = (),
) -> str:
    """Page of one scan.

    `brain` (background 0) and `maps` (by name, in the order to show) lie on the grid ``space.source``.
    `views`: of the same maps; their percentiles are what the colours are set on. `units`: of the values of these maps.
    `cautions`: what to know before the maps are read.
    """
    caption = SCALE.format(low=PERSON_PERCENTILES[0], high=PERSON_PERCENTILES[1], whose="the scan's own absolute map")
    shown = []
    for name, values in maps.items():
        scale, unit = views[name].scale(PERSON_PERCENTILES), f"{units[name]} per voxel"
        shown.append(
            ViewerMap(
                files.relevance_map(name), files.name, name, files.name, map_title(name), scale, unit, values,
            )
        )  # fmt: skip
    viewer = viewer_component(space, shown, f"Relevance maps of {files.name}", caption, {files.name: brain})
    up = "../" * len(files.viewer.parent.relative_to(files.root).parts)
    frame = Frame(f"{files.name} · viewer", [], [viewer, _labels_of(space)], f"{up}report.html")
    person = up + participant_file(files.participant_id)
    return render(
        "scan_viewer.html.j2",
        frame,
        name=files.name,
        participant=files.participant_id,
        person=person,
        cautions=cautions,
    )


@functools.lru_cache(maxsize=1)
def _labels_of(space: ViewingSpace) -> Component:
    """Labels without the template, once for all scans that a process makes pages of."""
    return atlas_component(space, with_brain=False)
