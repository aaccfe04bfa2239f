"""The registered scan under the contours of the template, to be judged by eye.

Nine slices, three of each plane, of the scan in template space; drawn over it the outline of the template's brain mask
(orange) and of its white matter (blue). Where the scan's own edges follow the lines, the registration is good. L and R
are the sides of the person.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from atlases.templates import Template
from reports.figures.pictures import NIGHT, font, write
from reports.figures.slices import BrainImage, Cut, Pixels, Plan, grey_panel, with_outlines

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
    plan = Plan.of(cut, PIXELS, MARGIN_MM)
    picture = grey_panel(plan, scan, bright, (255, 255, 255))
    edge = WHITE_MATTER_SHARE * float(np.percentile(template.t1w[template.brain_mask], 99))
    for values, level, colour in ((template.t1w, edge, WHITE_COLOUR), (template.brain_mask, 0.5, MASK_COLOUR)):
        body = plan.sample(BrainImage(values.astype(np.float32), template.grid.affine)) > level
        picture = with_outlines(picture, body, colour)
    sheet = Image.fromarray(picture)
    if cut[0] != "sagittal":
        write(sheet, (3, 2), "L")
        write(sheet, (PIXELS - 13, 2), "R")
    return np.asarray(sheet)


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
