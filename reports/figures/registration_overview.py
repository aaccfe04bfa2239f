"""The registered scan under the contours of the template, to be judged by eye.

Nine slices, three of each plane, of the scan in template space; drawn over it the outline of the template's brain mask
(orange) and of its white matter (blue). Where the scan's own edges follow the lines, the registration is good. L and R
are the sides of the person.

Drawn with numpy and Pillow: one figure per scan has to be quick and small, and matplotlib's contours are neither.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.ndimage
from PIL import Image, ImageDraw

from atlases.brain_box import brain_box
from atlases.templates import Template
from reports.figures.brain import AXIS, BrainImage, Plane
from reports.figures.lettering import font, write

CUTS: tuple[tuple[tuple[Plane, float], ...], ...] = (
    (("sagittal", -26.0), ("sagittal", 2.0), ("sagittal", 30.0)),
    (("coronal", -50.0), ("coronal", -20.0), ("coronal", 14.0)),
    (("axial", -16.0), ("axial", 10.0), ("axial", 36.0)),
)
"""In mm; through the hippocampi, the midline, ventricles and both poles."""
PIXEL_MM = 0.8
MAX_BYTES = 150_000
MASK_COLOUR, WHITE_COLOUR, TEXT_COLOUR = (230, 159, 0), (86, 180, 233), (235, 235, 235)
WHITE_MATTER_SHARE = 0.8
"""White matter of the template begins here, as a share of its brightest percentile; grey matter lies below."""
BAR_PIXELS = 18


def draw_overview(scan: BrainImage, template: Template, lines: Sequence[str]) -> bytes:
    """Overview of one registered scan.

    Parameters
    ----------
    scan : BrainImage
        On the template grid, 0 outside the brain.
    template : Template
    lines : sequence of str
        Written below the slices: what the scan is, its numbers, why it is in doubt.

    Returns
    -------
    bytes
        A PNG of at most `MAX_BYTES`; equal input gives equal bytes.
    """
    brain = BrainImage(template.t1w, template.grid.affine)
    mask = BrainImage(template.brain_mask.astype(np.float32), template.grid.affine)
    rows = [_row([_panel(scan, brain, mask, template, cut) for cut in cuts]) for cuts in CUTS]
    width = max(row.shape[1] for row in rows)
    sheet = np.concatenate([_padded(row, width) for row in rows], axis=0)
    return _png(_with_text(Image.fromarray(sheet), lines))


def write_overview(path: Path, t1w: Path, template: Template, lines: Sequence[str]) -> None:
    """Draw the overview of an image in template space into a file."""
    path.write_bytes(draw_overview(BrainImage.read(t1w), template, lines))


def _panel(
    scan: BrainImage, brain: BrainImage, mask: BrainImage, template: Template, cut: tuple[Plane, float]
) -> np.ndarray:
    """One slice, (rows from the top, columns from the left, RGB)."""
    inside = scan.values[scan.values > 0]
    bright = float(np.percentile(inside[:: max(len(inside) // 100_000, 1)], 99.5)) if len(inside) else 1.0
    grey = np.clip(_magnified(scan, template, cut) / bright, 0, 1)
    picture = np.repeat((255 * grey**1.3).astype(np.uint8)[..., None], 3, axis=-1)
    edge = WHITE_MATTER_SHARE * float(np.percentile(template.t1w[template.brain_mask], 99))
    for level, source, colour in ((edge, brain, WHITE_COLOUR), (0.5, mask, MASK_COLOUR)):
        body = _magnified(source, template, cut) > level
        picture[body & ~scipy.ndimage.binary_erosion(body)] = colour
    return picture if cut[0] == "sagittal" else _with_sides(picture)


def _with_sides(picture: np.ndarray) -> np.ndarray:
    """L and R of the person in the upper corners of a slice that shows both sides."""
    sheet = Image.fromarray(picture)
    write(sheet, (3, 2), "L")
    write(sheet, (sheet.width - 13, 2), "R")
    return np.asarray(sheet)


def _magnified(image: BrainImage, template: Template, cut: tuple[Plane, float]) -> np.ndarray:
    """Slice of the box around the brain, at `PIXEL_MM` per pixel, top row first."""
    plane, mm = cut
    box = brain_box(template)
    kept = tuple(part for axis, part in enumerate(box.slices) if axis != AXIS[plane])
    values = image.slice(plane, mm)[kept[1], kept[0]]
    return np.asarray(scipy.ndimage.zoom(values, image.pixel_mm(plane) / PIXEL_MM, order=1)[::-1])


def _row(panels: Sequence[np.ndarray]) -> np.ndarray:
    gap = np.zeros((panels[0].shape[0], 6, 3), dtype=np.uint8)
    return np.concatenate([part for panel in panels for part in (panel, gap)][:-1], axis=1)


def _padded(row: np.ndarray, width: int) -> np.ndarray:
    missing = width - row.shape[1]
    return np.pad(row, ((0, 6), (missing // 2, missing - missing // 2), (0, 0)))


def _with_text(picture: Image.Image, lines: Sequence[str]) -> Image.Image:
    sheet = Image.new("RGB", (picture.width, picture.height + BAR_PIXELS * len(lines) + 6))
    sheet.paste(picture, (0, 0))
    draw, letters = ImageDraw.Draw(sheet), font(12)
    for number, line in enumerate(lines):
        draw.text((6, picture.height + BAR_PIXELS * number), line, fill=TEXT_COLOUR, font=letters)
    return sheet


def _png(sheet: Image.Image) -> bytes:
    """With as many colours as the size allows; a noisy scan gets fewer."""
    content = b""
    for colours in (64, 32, 16, 8):
        buffer = io.BytesIO()
        sheet.quantize(colours, dither=Image.Dither.NONE).save(buffer, format="PNG", optimize=True)
        content = buffer.getvalue()
        if len(content) <= MAX_BYTES:
            break
    return content
