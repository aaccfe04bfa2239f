"""Pictures of single scans: drawn by the workers of a run, one unit of work each, and shown on the pages of people.

Reading the images and coding them is what takes time, so it is done once per scan, when its maps are new, and never by
``heatlas report``: the maps of a thousand scans make a gigabyte of pages. The page of a participant shows the portrait
and leads to the page with the viewer.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import nibabel as nib
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.atlases.labels import Atlas, load_atlas
from heatlas.atlases.spaces import UNREADABLE, Grid
from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.regions.maps import read_map
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.tables import write_text
from heatlas.pipeline.run.work.digests import file_digest, unit_key
from heatlas.pipeline.run.work.jobs import Job, Outcome, receipt_key, run_jobs
from heatlas.pipeline.statistics.normative.w_scores import ControlGroup
from heatlas.reports.figures.gallery import Picture, shown_in
from heatlas.reports.figures.portraits import FAINT, MAPS, REGIONS, Row, draw_portrait, region_row
from heatlas.reports.figures.slices import (
    MAP_CUTS,
    PERSON_PERCENTILES,
    SMOOTHED_MM,
    BrainImage,
    MapView,
    smoothed,
    view_of,
)
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.overviews import FLICKER
from heatlas.reports.frame.pages import INDEX, PARTICIPANTS, TEMPLATES, Component, Frame, participant_file, render
from heatlas.reports.frame.tables import Column, PageTable, numeric, page_table
from heatlas.reports.people.likeness import unlike_caution
from heatlas.reports.people.regions import ScanRegions, cautions_of_maps, measure_of, regions_of_scans
from heatlas.reports.questions.findings import small_regions
from heatlas.reports.questions.question import Caution
from heatlas.reports.read.people import ParticipantRecords
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.viewer.component import (
    ViewerMap,
    ViewingSpace,
    atlas_component,
    viewer_component,
    viewing_space,
)
from heatlas.reports.words.numbers import count, fixed, is_missing, listing, mid_sentence, shortened
from heatlas.reports.words.sentences import Words

WORDS = Words(__file__)


STAGE = "scan-pictures"
_TEMPLATES = (
    TEMPLATES / "base.html.j2", TEMPLATES / "macros.html.j2",
    TEMPLATES / "scan_viewer.html.j2", TEMPLATES / "report.css", TEMPLATES / "report.js",
    *(TEMPLATES / "components" / name for name in ("viewer.html.j2", "viewer.css", "viewer.js", "volumes.js")),
)  # fmt: skip


def draw_scans(run: RunRecord, executor: Executor) -> list[Outcome]:
    """Make portraits and viewer page of every scan that has maps of its own; what is up to date is left alone.

    `run`: with relevance.

    Gives one outcome per scan with maps; none where the run keeps no maps of single scans.
    """
    settings = run.config
    resolution, atlas = settings.registration.resolution_mm, settings.regions.atlas
    if not run.keeps_single_maps or run.region_sums.empty:
        return []
    looks = [file_digest(path) for path in _TEMPLATES]
    regions, jobs = regions_of_scans(run), []
    what = "Evidence" if run.leads_with_evidence else "Density"
    title = f"{what} of regions, {mid_sentence(map_title(run.leading_map))}"
    region_unit = run.map_unit(run.leading_map) + (" per voxel" if what == "Density" else "")
    for scan_id, files in _scans(run).items():
        units = {name: run.map_unit(name) for name in run.main_maps if files.relevance_map(name).is_file()}
        if not units or not files.image.is_file():
            continue
        shown = regions.get(scan_id, ScanRegions(pd.Series(dtype=float), ()))
        values = {str(group): float(value) for group, value in shown.values.items()}
        coloured = RegionColours(title, region_unit, values, shown.named)
        made_from = _made_from(run, files, [files.image, *map(files.relevance_map, units)])
        cautions = [*unlike_caution(run, scan_id), *cautions_of_maps(run, shown.named)]
        said = [(one.level, one.title, one.text) for one in cautions]
        parameters = [resolution, atlas, units, asdict(coloured), SMOOTHED_MM, looks, said]
        key = unit_key(made_from, parameters, draw_portrait, scan_page)
        outputs = {"portrait": files.portrait, "unsmoothed": files.unsmoothed_portrait, "viewer": files.viewer}
        arguments = (files, units, coloured, resolution, atlas, cautions)
        jobs.append(Job(STAGE, files.name, key, outputs, draw_one, arguments))
    return run_jobs(run.layout, jobs, executor, "pictures") if jobs else []


def _scans(run: RunRecord) -> dict[str, ScanFiles]:
    """Files of every scan with relevance, labelled or not, by its id."""
    tables = [run.tables[name] for name in ("relevance_bilateral", "relevance_applied_bilateral") if run.has(name)]
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


@dataclass(frozen=True)
class RegionColours:
    """The row of a portrait that shows regions."""

    title: str
    unit: str
    values: Mapping[str, float]  # by bilateral group
    named: tuple[str, ...]  # outlined in every row, in the order of their numbers


def draw_one(
    outputs: Mapping[str, Path], files: ScanFiles, units: Mapping[str, str], regions: RegionColours,
    resolution_mm: float, atlas: str, cautions: Sequence[Caution],
) -> None:  # fmt: skip
    """Job: draw one scan, its maps smoothed and as they are, and make its page.

    `units`: of the values of each map, by its name, in the order to show.

    Raises HeatlasError if the template or the atlas is not at hand, or an image cannot be read.
    """
    space = viewing_space(resolution_mm, atlas, files.template)
    if space is None:
        raise BadInputError(f"{files.name}: the template or the atlas {atlas!r} is not at hand on this machine.")
    grid = space.source
    brain = _brain(files.image, grid)
    anatomy, inside = BrainImage(brain, grid.affine), brain > 0
    labels = space.atlas if space.side == 1 else _atlas(atlas, grid)
    maps = {name: read_map(files.relevance_map(name), grid) for name in units}
    images = {name: BrainImage(values, grid.affine) for name, values in maps.items()}
    views = {name: view_of(image, MAP_CUTS, inside) for name, image in images.items()}
    smooth = {name: view_of(smoothed(image, inside=inside), MAP_CUTS, inside) for name, image in images.items()}
    first, *others = _rows(smooth, units, ", smoothed")
    of_regions = region_row(regions.title, pd.Series(regions.values, dtype=float), regions.unit, labels)
    for output, rows in (("portrait", [first, of_regions, *others]), ("unsmoothed", _rows(views, units))):
        outputs[output].write_bytes(draw_portrait(anatomy, rows, regions.named, labels, list(units)))
    write_text(outputs["viewer"], scan_page(files, brain, maps, units, space, cautions))


def _rows(views: Mapping[str, MapView], units: Mapping[str, str], how: str = "") -> list[Row]:
    """Rows of maps, each on its own colour scale; `how`: what was done to them, for the titles."""
    return [
        Row(f"{map_title(name)}{how}", view, view.scale(PERSON_PERCENTILES), units[name])
        for name, view in views.items()
    ]


@functools.cache
def _atlas(name: str, grid: Grid) -> Atlas:
    return load_atlas(name, grid)


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
    units: Mapping[str, str],
    space: ViewingSpace,
    cautions: Sequence[Caution] = (),
) -> str:
    """Page of one scan.

    `brain` (background 0) and `maps` (by name, in the order to show) lie on the grid ``space.source``.
    `units`: of the values of these maps.
    `cautions`: what to know before the maps are read.
    """
    shown = [
        ViewerMap(
            files.relevance_map(name), files.name, name, files.name, map_title(name), f"{units[name]} per voxel",
            values,
        )
        for name, values in maps.items()
    ]  # fmt: skip
    viewer = viewer_component(space, shown, f"Relevance maps of {files.name}", brains={files.name: brain})
    up = "../" * len(files.viewer.parent.relative_to(files.root).parts)
    components = [viewer, _labels_of(space)]
    frame = Frame(f"{files.name} · viewer", [], components, up + INDEX, within=up + PARTICIPANTS)
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


_SCALE = (
    "Colours run from the 90th to the 99.5th percentile of the scan's own map, purple to yellow above 0 and blue to "
    "white below"
)


def portraits_of(material: Material, people: ParticipantRecords, visits: pd.DataFrame) -> list[Mapping[str, Any]]:
    """The scans' relevance on their own brains, and the numbered regions with the person's place among controls.

    Empty where the run keeps no maps of single scans.
    """
    if not material.run.keeps_single_maps:  # a picture of an earlier setting may still lie there
        return []
    found = [_portrait(material, people, row) for row in visits.to_dict("records")]
    return [one for one in found if one is not None]


def _portrait(material: Material, people: ParticipantRecords, row: Mapping[Any, Any]) -> Mapping[str, Any] | None:
    run, files, name = material.run, material.run.files_of(row), name_of(row)
    content = material.picture(files.portrait)
    if content is None:
        return None
    maps, groups = shown_in(content, MAPS) or run.main_maps, shown_in(content, REGIONS)
    titles, leading = listing([map_title(one) for one in maps]), mid_sentence(map_title(maps[0]))
    numbered = "; ".join(f"{place} {shortened(group)}" for place, group in enumerate(groups, start=1))
    what = "evidence" if maps[0] in run.evidence_maps else "density"
    why = "those named above" if run.leads_with_evidence else "those with the highest density"
    of_page = regions_of_scans(run).get(str(row["scan_id"]))
    outdated = maps[0] != run.leading_map or of_page is None or groups != of_page.named
    again = " This picture is older than the numbers of this page; the command that made this run draws it again."
    smoothed = Picture(
        "", material.address(files.portrait), f"{len(MAP_CUTS)} slices of {name} with relevance: {titles}.",
        WORDS.say(
            "portrait", name=name, titles=titles, SMOOTHED_MM=SMOOTHED_MM, _SCALE=_SCALE, what=what, leading=leading,
            FAINT=FAINT, why=why, numbered=numbered, again=again if outdated else "",
        ), *_size_of(content),
    )  # fmt: skip
    raw = material.picture(files.unsmoothed_portrait)
    unsmoothed = None if raw is None else Picture(
        "", material.address(files.unsmoothed_portrait), f"{len(MAP_CUTS)} slices of {name}, not smoothed: {titles}.",
        f"{name}: the same maps as they are. {_SCALE}.", *_size_of(raw),
    )  # fmt: skip
    table = _numbered(material, people, row, groups) if groups and not outdated else None
    return {"smoothed": smoothed, "unsmoothed": unsmoothed, "regions": table}


def _numbered(
    material: Material, people: ParticipantRecords, row: Mapping[Any, Any], groups: tuple[str, ...]
) -> PageTable | None:
    """The numbered regions of a scan, with its place among controls."""
    run, name = material.run, material.run.leading_map
    wide, controls = people.values(name), people.controls(name, str(row["participant_id"]))
    if row["scan_id"] not in wide.index:
        return None
    scan, measure, small = wide.loc[row["scan_id"]].reindex(list(groups)), measure_of(run, name), small_regions(run)
    table = pd.DataFrame({"place": range(1, len(groups) + 1), "group": groups, "value": scan.to_numpy()})
    table["page"] = pd.Series([material.links.region(group) for group in groups], dtype=object)
    table["size"] = pd.Series([f"only {count(small[one], 'voxel')}" if one in small else None for one in groups])
    columns = [Column("place", "In the picture"), Column("group", "Region", link="page"),
               numeric("value", measure.title, measure.form)]  # fmt: skip
    caption = f"The numbered regions of {name_of(row)}"
    if controls is not None:
        table["mean"] = controls.mean.reindex(list(groups)).to_numpy()
        table["score"] = controls.scores(scan).reindex(list(groups)).to_numpy()
        table["below"] = _below(controls, scan)
        columns += [numeric("mean", f"Mean of {run.negative}", measure.form),
                    numeric("score", "Standard deviations from it", fixed),
                    Column("below", "Controls below")]  # fmt: skip
        caption += f", beside {controls.who} (this person is not among them)"
    if table["size"].notna().any():
        columns.append(Column("size", "Small region"))
    return page_table(table, tuple(columns), f"{caption}.")


def name_of(row: Mapping[Any, Any]) -> str:
    """Participant and session, as a reader sees them."""
    return f"{shortened(row['participant_id'])}{'' if is_missing(row['session_id']) else ' ' + str(row['session_id'])}"


def _below(controls: ControlGroup, scan: pd.Series) -> list[str]:
    """How many controls have less than a scan, by region of the scan."""
    known = controls.values.reindex(columns=scan.index).notna().sum()
    below = controls.values.reindex(columns=scan.index).lt(scan, axis=1).sum()
    return [f"{below[group]} of {known[group]}" for group in scan.index]


def viewers_of(material: Material, visits: pd.DataFrame) -> list[tuple[str, str]]:
    """Name of each scan that has a viewer page, and its address from the page of the participant."""
    if not material.run.keeps_single_maps:
        return []
    files = [material.run.files_of(row) for row in visits.to_dict("records")]
    return [(f.name, quote(f.viewer.relative_to(f.root).as_posix())) for f in files if f.viewer.is_file()]


def overview_of(material: Material, row: Mapping[Any, Any]) -> Picture | None:
    """The registered scan under the contours of the template."""
    path = material.run.files_of(row).overview
    content = material.picture(path)
    if content is None:
        return None
    name = name_of(row)
    return Picture(
        "", material.address(path), f"Nine slices of {name} under the contours of the template.",
        WORDS.say("overview_of", name=name, FLICKER=FLICKER), *_size_of(content),
        material.template_overview,
    )  # fmt: skip


def _size_of(content: bytes) -> tuple[int, bool, int]:
    """Width, that the page need not be dark around it, and height, from the IHDR chunk, which comes first."""
    return int.from_bytes(content[16:20], "big"), False, int.from_bytes(content[20:24], "big")
