"""A page per scan to look through its relevance maps on its own brain: one unit of work each, made by the workers.

The maps of a thousand scans make a gigabyte of pages. They are coded once, when the maps are new; the page of a
participant only leads to them, so that the report is built again in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from nibabel.filebasedimages import ImageFileError

from pipeline.run.digests import file_digest, unit_key
from pipeline.run.errors import BadInputError
from pipeline.run.jobs import Job, Outcome, receipt_key, run_jobs
from pipeline.run.layout import ScanFiles, map_title
from pipeline.run.tables import write_text
from reports.figures.brain import PERSON_PERCENTILES, view_map
from reports.figures.maps import map_unit
from reports.fragments import COMPONENTS
from reports.links import participant_file
from reports.numbers import is_missing
from reports.pages import TEMPLATES, Frame, render
from reports.run_record import RunRecord
from reports.viewer.atlas import ViewingSpace, atlas_component
from reports.viewer.component import ViewerMap, viewer_component
from reports.viewer.of_run import SCALE, viewing_space

STAGE = "viewer"
PACKAGES = ("reports.viewer", "reports.pages", "reports.components", "atlases.labels")
_TEMPLATES = (
    TEMPLATES / "base.html.j2", TEMPLATES / "scan_viewer.html.j2", TEMPLATES / "report.css", TEMPLATES / "report.js",
    *(COMPONENTS / name for name in ("viewer.html.j2", "viewer.css", "viewer.js", "volumes.js")),
)  # fmt: skip


def make_scan_pages(run: RunRecord, executor: Executor) -> list[Outcome]:
    """Make the page of every scan that has maps of its own; one that is up to date is left alone.

    Parameters
    ----------
    run : RunRecord
        With relevance.
    executor : concurrent.futures.Executor

    Returns
    -------
    list of Outcome
        One per scan with maps; none where the run keeps no maps of single scans, or the template or the atlas is not
        at hand.
    """
    settings = run.config
    resolution, atlas = settings.registration.resolution_mm, settings.regions.atlas
    if not run.keeps_single_maps or not run.has("relevance") or viewing_space(resolution, atlas) is None:
        return []
    looks = [file_digest(path) for path in _TEMPLATES]
    jobs = []
    for files in _scans(run):
        names = [name for name in run.main_maps if files.relevance_map(name).is_file()]
        if not names or not files.t1w.is_file():
            continue
        images = [files.t1w, *map(files.relevance_map, names)]
        made_from = {
            stage: receipt_key(run.layout, stage, files.name) or "" for stage in ("registration", "attribution")
        }
        if not all(made_from.values()):  # without receipts (another scheduler's files), by size and time
            made_from = {path.name: f"{path.stat().st_size} {path.stat().st_mtime_ns}" for path in images}
        key = unit_key(made_from, [resolution, atlas, names, looks], *PACKAGES)
        jobs.append(Job(STAGE, files.name, key, {"viewer": files.viewer}, make_one, (files, names, resolution, atlas)))
    return run_jobs(run.layout, jobs, executor, "viewers") if jobs else []


def _scans(run: RunRecord) -> list[ScanFiles]:
    """Files of every scan with relevance, labelled or not."""
    tables = [run.tables[name] for name in ("relevance", "relevance_applied") if run.has(name)]
    found = {}
    for table in tables:
        for row in table.drop_duplicates("scan_id").itertuples():
            session = None if is_missing(row.session_id) else str(row.session_id)
            files = run.layout.scan(str(row.participant_id), session, run.config.registration.resolution_mm)
            found[files.name] = files
    return list(found.values())


def make_one(
    outputs: Mapping[str, Path], files: ScanFiles, names: Sequence[str], resolution_mm: float, atlas: str
) -> None:
    """Job: make the page of one scan.

    Raises
    ------
    HeatlasError
        If the template or the atlas is not at hand, or an image cannot be read.
    """
    space = viewing_space(resolution_mm, atlas) or ViewingSpace.of(resolution_mm, atlas)
    write_text(outputs["viewer"], scan_page(files, names, space))


def scan_page(files: ScanFiles, names: Sequence[str], space: ViewingSpace) -> str:
    """Page of one scan.

    Parameters
    ----------
    files : ScanFiles
    names : sequence of str
        Maps to show.
    space : ViewingSpace
    """
    brain = _brain(files.t1w, space)
    caption = SCALE.format(low=PERSON_PERCENTILES[0], high=PERSON_PERCENTILES[1], whose="the scan's own absolute map")
    maps = [_own_map(files, name, brain > 0) for name in names]
    viewer = viewer_component(space, maps, f"Relevance maps of {files.name}", caption, {files.name: brain})
    up = "../" * len(files.viewer.parent.relative_to(files.root).parts)
    frame = Frame(f"{files.name} · viewer", [], [viewer, atlas_component(space, with_brain=False)], f"{up}report.html")
    person = up + participant_file(files.participant_id)
    return render("scan_viewer.html.j2", frame, name=files.name, participant=files.participant_id, person=person)


def _own_map(files: ScanFiles, name: str, inside: np.ndarray) -> ViewerMap:
    scale = view_map(files.relevance_map(name), (), inside).scale(PERSON_PERCENTILES)
    return ViewerMap(
        files.relevance_map(name), files.name, name, files.name, map_title(name), scale.low, scale.high, scale.signed,
        f"{map_unit(name)} per voxel",
    )  # fmt: skip


def _brain(path: Path, space: ViewingSpace) -> np.ndarray:
    """The person's brain in template space."""
    try:
        image: Any = nib.load(path)
        brain = np.asarray(image.dataobj, dtype=np.float32)
    except (OSError, EOFError, ImageFileError, ValueError) as error:
        raise BadInputError(f"{path}: not readable ({error}). Remove it and run registration again.") from error
    if brain.shape != space.source.shape:
        raise BadInputError(
            f"{path}: has the shape {brain.shape}, the run's grid {space.source}. Run registration again."
        )
    return brain
