"""A scan's relevance on its own brain, regions outlined: one unit of work each, drawn by the workers of a run.

Reading the images is what takes time, so it is done once per scan and never by ``heatlas report``.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from atlases.labels import Atlas, load_atlas
from atlases.spaces import template_grid
from pipeline.run.digests import unit_key
from pipeline.run.jobs import Job, Outcome, receipt_key, run_jobs
from pipeline.run.layout import map_title
from reports.figures.brain import AXIS, PERSON_PERCENTILES, BrainImage, Cut, view_map
from reports.figures.maps import slice_name
from reports.figures.panels import Pixels, Plan, grey_panel, middle_of, outlined_bodies, with_map, with_outlines
from reports.numbers import is_missing
from reports.run_record import RunRecord

STAGE = "portrait"
PACKAGES = ("reports.people.portrait", "reports.figures.panels", "reports.figures.brain", "atlases.labels")
CUTS: tuple[Cut, ...] = (
    ("sagittal", -26.0), ("coronal", -20.0), ("axial", -28.0), ("axial", -16.0), ("axial", 8.0), ("axial", 34.0),
)  # fmt: skip
OUTLINED = 5
PIXELS, HEAD, GAP = 170, 18, 4
COLOURS = 128


def draw_portraits(run: RunRecord, executor: Executor) -> list[Outcome]:
    """Draw every scan that has maps of its own; a scan whose picture is up to date is left alone.

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
    if not run.keeps_single_maps or not run.has("relevance"):
        return []
    layout, settings = run.layout, run.config
    resolution, jobs = settings.registration.resolution_mm, []
    tables = [run.tables[name] for name in ("relevance", "relevance_applied") if run.has(name)]
    for table in tables:
        for row in table.drop_duplicates("scan_id").itertuples():
            session = None if is_missing(row.session_id) else str(row.session_id)
            files = layout.scan(str(row.participant_id), session, resolution)
            maps = tuple(
                (name, files.relevance_map(name)) for name in run.main_maps if files.relevance_map(name).is_file()
            )
            if not maps or not files.t1w.is_file():
                continue
            groups = run.densest_groups.get(str(row.scan_id), ())[:OUTLINED]
            made_from = {
                stage: receipt_key(layout, stage, files.name) or "" for stage in ("registration", "attribution")
            }
            if not all(made_from.values()):  # without receipts (another scheduler's files), by size and time
                made_from = {path.name: str(path.stat().st_mtime_ns) for path in (files.t1w, *(p for _, p in maps))}
            key = unit_key(made_from, [groups, resolution, settings.regions.atlas, list(run.main_maps)], *PACKAGES)
            arguments = (files.t1w, maps, groups, settings.regions.atlas, resolution)
            jobs.append(Job(STAGE, files.name, key, {"portrait": files.portrait}, draw_one, arguments))
    return run_jobs(layout, jobs, executor, "pictures") if jobs else []


def draw_one(
    outputs: dict[str, Path], t1w: Path, maps: Sequence[tuple[str, Path]], groups: Sequence[str], atlas: str,
    resolution_mm: float,
) -> None:  # fmt: skip
    """Job: draw one scan."""
    outputs["portrait"].write_bytes(draw_portrait(t1w, maps, groups, _atlas(atlas, resolution_mm)))


@functools.cache
def _atlas(name: str, resolution_mm: float) -> Atlas:
    return load_atlas(name, template_grid(resolution_mm))


def draw_portrait(t1w: Path, maps: Sequence[tuple[str, Path]], groups: Sequence[str], atlas: Atlas) -> bytes:
    """One row of slices per map over the person's own brain, the leading regions outlined and numbered.

    Parameters
    ----------
    t1w : Path
        Brain in template space.
    maps : sequence of (str, Path)
        Map names and images.
    groups : sequence of str
        Bilateral groups to outline; the first is number 1.
    atlas : Atlas

    Returns
    -------
    bytes
        PNG; equal input gives equal bytes.
    """
    brain = BrainImage.read(t1w)
    inside = brain.values > 0
    ceiling = float(np.percentile(brain.values[inside], 99.5)) if inside.any() else 1.0
    labels = BrainImage(atlas.labels, np.asarray(atlas.grid.affine))
    numbers = {
        label: place for place, group in enumerate(groups, start=1) for label in atlas.regions.groups.get(group, ())
    }
    plans = [Plan.of(cut, PIXELS) for cut in CUTS]
    under = [grey_panel(plan, brain.slice(*plan.cut), brain.affine, ceiling) for plan in plans]
    width, row_height = len(CUTS) * (PIXELS + GAP), HEAD + PIXELS + GAP
    sheet = Image.new("RGB", (width, row_height * len(maps)), (11, 15, 20))
    for row, (name, path) in enumerate(maps):
        view = view_map(path, CUTS, inside)
        scale = view.scale(PERSON_PERCENTILES)
        _write(sheet, (4, row * row_height + 2), map_title(name))
        for column, (plan, anatomy) in enumerate(zip(plans, under, strict=True)):
            panel = with_map(anatomy, plan, view.slices[plan.cut], view.affine, scale)
            bodies = outlined_bodies(plan, labels.slice(*plan.cut), labels.affine, numbers)
            corner = (column * (PIXELS + GAP), row * row_height + HEAD)
            sheet.paste(_named(with_outlines(panel, bodies), middle_of(bodies), plan.cut), corner)
    buffer = io.BytesIO()
    sheet.quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(
        buffer, format="PNG", optimize=True
    )
    return buffer.getvalue()


def _named(panel: Pixels, places: Mapping[int, tuple[int, int]], cut: Cut) -> Image.Image:
    picture = Image.fromarray(panel)
    for number, (row, column) in places.items():
        _write(picture, (column - 3, row - 7), str(number))
    _write(picture, (3, PIXELS - 15), slice_name(cut).replace("−", "-"))
    if AXIS[cut[0]] != 0:
        _write(picture, (3, 2), "L")
    return picture


def _write(picture: Image.Image, place: tuple[int, int], text: str) -> None:
    draw = ImageDraw.Draw(picture)
    draw.text(place, text, fill=(235, 240, 245), font=_font(), stroke_width=1, stroke_fill=(0, 0, 0))


@functools.cache
def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(12)
