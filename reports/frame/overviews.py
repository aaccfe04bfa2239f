"""Overview figures of all registered scans, to be judged by eye: one unit of work each, drawn by the workers.

Nine slices of the scan in template space, three of each plane, with the outlines of the template's brain mask (orange)
and of its white matter (blue). Where the scan's own edges follow the lines, the registration is good. L and R are the
sides of the person.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from heatlas.atlases.templates import Template, load_template
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.registration.stage import REGISTRATION_TABLE
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.digests import unit_key
from heatlas.pipeline.run.work.jobs import Job, Outcome, receipt_key, run_jobs
from heatlas.reports.figures.gallery import NIGHT, font, write
from heatlas.reports.figures.slices import BrainImage, Cut, PanelGrid, Pixels, grey_panel, slice_name, with_contours
from heatlas.reports.words.numbers import fixed, is_missing

CUTS: tuple[tuple[Cut, ...], ...] = (
    (("sagittal", -26.0), ("sagittal", 2.0), ("sagittal", 30.0)),
    (("coronal", -50.0), ("coronal", -20.0), ("coronal", 14.0)),
    (("axial", -16.0), ("axial", 10.0), ("axial", 36.0)),
)
"""In mm; through the hippocampi, the midline, ventricles and both poles."""
PIXELS, MARGIN_MM = 240, 6.0
MAX_BYTES = 150_000
MASK_COLOUR, WHITE_COLOUR, TEXT_COLOUR = (230, 159, 0), (86, 180, 233), (235, 235, 235)
WHITE_MATTER_SHARE = 0.8
"""White matter of the template begins here, as a share of its brightest percentile; grey matter lies below."""
BAR_PIXELS = 18
FLICKER = " Point at the picture or tap it, and it alternates with the template."


def draw_overview(scan: BrainImage, template: Template, lines: Sequence[str]) -> bytes:
    """Overview of one registered scan.

    `scan`: on the template grid, 0 outside the brain. `lines`: written below the slices: what the scan is, its numbers,
    why it is in doubt. Returns a PNG of at most `MAX_BYTES`; equal input gives equal bytes.
    """
    inside = scan.values[scan.values > 0]
    bright = float(np.percentile(inside[:: max(len(inside) // 100_000, 1)], 99.5)) if len(inside) else 1.0
    panels = [[_panel(scan, bright, template, cut) for cut in cuts] for cuts in CUTS]
    slices = np.concatenate([np.concatenate(row, axis=1) for row in panels])
    sheet = Image.new("RGB", (slices.shape[1], slices.shape[0] + BAR_PIXELS * len(lines) + 6), NIGHT)
    sheet.paste(Image.fromarray(slices))
    for number, line in enumerate(lines):
        place = (6, slices.shape[0] + BAR_PIXELS * number)
        ImageDraw.Draw(sheet).text(place, line, fill=TEXT_COLOUR, font=font(12))
    return _png(sheet)


def write_overview(path: Path, t1w: Path, template: Template, lines: Sequence[str]) -> None:
    """Draw the overview of an image in template space into a file."""
    path.write_bytes(draw_overview(BrainImage.read(t1w), template, lines))


def _panel(scan: BrainImage, bright: float, template: Template, cut: Cut) -> Pixels:
    """One slice with the contours of the template, and the sides of the person where it shows both."""
    picture = grey_panel(PanelGrid.of(cut, PIXELS, MARGIN_MM), scan, bright, (255, 255, 255))
    for body, colour in zip(_bodies_of(template)[cut], (WHITE_COLOUR, MASK_COLOUR), strict=True):
        picture = with_contours(picture, body, colour)
    sheet = Image.fromarray(picture)
    write(sheet, (3, PIXELS - 16), slice_name(cut))
    if cut[0] != "sagittal":
        write(sheet, (3, 2), "L")
        write(sheet, (PIXELS - 13, 2), "R")
    return np.asarray(sheet)


Bodies = Mapping[Cut, tuple[NDArray[np.bool_], NDArray[np.bool_]]]
_KEPT: list[tuple[Template, Bodies]] = []


def _bodies_of(template: Template) -> Bodies:
    """White matter and brain of a template on every panel, kept for the scans that follow."""
    if not _KEPT or _KEPT[0][0] is not template:
        edge = WHITE_MATTER_SHARE * float(np.percentile(template.t1w[template.brain_mask], 99))
        both = (template.t1w, template.brain_mask)
        white, brain = (BrainImage(values.astype(np.float32), template.grid.affine) for values in both)
        plans = [PanelGrid.of(cut, PIXELS, MARGIN_MM) for cuts in CUTS for cut in cuts]
        _KEPT[:] = [(template, {plan.cut: (plan.sample(white) > edge, plan.sample(brain) > 0.5) for plan in plans})]
    return _KEPT[0][1]


def _png(sheet: Image.Image) -> bytes:
    """With as many colours as the size allows; a noisy scan gets fewer."""
    content = b""
    for colours in (64, 32, 16, 8):
        buffer = io.BytesIO()
        few = sheet.quantize(colours, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(buffer, format="PNG", optimize=True)
        content = buffer.getvalue()
        if len(content) <= MAX_BYTES:
            break
    return content


STAGE = "overview"
CHARACTERS = 100  # of a line below the slices


def draw_overviews(layout: RunLayout, scans: Sequence[Scan], resolution_mm: float, executor: Executor) -> list[Outcome]:
    """Draw the overview of every registered scan that has none, or one of another registration.

    `scans`: registered ones. Returns one per scan.
    """
    quality = REGISTRATION_TABLE.read(layout)
    by_id = {str(row["scan_id"]): row for row in quality.to_dict("records")}
    jobs = [overview_job(layout, scan, by_id[scan.scan_id], resolution_mm) for scan in scans]
    return run_jobs(layout, jobs, executor, "overviews")


def overview_job(layout: RunLayout, scan: Scan, row: Mapping[Any, Any], resolution_mm: float) -> Job:
    """Unit of work of one scan, given its row of ``registration.tsv``."""
    files = layout.scan(scan.participant_id, scan.session_id, resolution_mm)
    lines = caption_lines(files.name, row)
    registered = receipt_key(layout, "registration", files.name) or ""
    key = unit_key({"registration": registered}, [lines, resolution_mm], draw_one)
    arguments = (files.image, resolution_mm, files.template, lines)
    return Job(STAGE, files.name, key, {"overview": files.overview}, draw_one, arguments)


def draw_one(outputs: dict[str, Path], t1w: Path, resolution_mm: float, template: str, lines: Sequence[str]) -> None:
    """Job: draw the overview of one scan."""
    write_overview(outputs["overview"], t1w, load_template(resolution_mm, template), lines)


def caption_lines(name: str, row: Mapping[Any, Any]) -> list[str]:
    """What is written below the slices: the scan, its numbers, why it is in doubt.

    `name`: BIDS prefix of the scan. `row`: its row of ``registration.tsv``.
    """
    numbers = [f"correlation {fixed(row['correlation'], 3)}", f"Dice {fixed(row['dice'], 3)}"]
    if not is_missing(row["scale"]):
        numbers.append(f"scale {fixed(row['scale'], 2)}")
    if not is_missing(row["brain_mm3"]):
        numbers.append(f"brain {fixed(float(str(row['brain_mm3'])) / 1000, 0)} ml")
    lines = [f"{name}: {', '.join(numbers)}"]
    if not is_missing(row["flags"]):
        lines += textwrap.wrap(f"in doubt: {row['flags']}", CHARACTERS)
    return lines
