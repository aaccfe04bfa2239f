"""One slice of each person's own map, side by side."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from reports.figures.pictures import NIGHT, reduced, write
from reports.figures.slices import PERSON_PERCENTILES, Backdrop, Cut, MapView, Plan, grey_panel, slice_name, with_map

CUT: Cut = ("coronal", -20.0)
"""Through both hippocampi."""
PIXELS, PER_ROW, LINE = 150, 6, 15


@dataclass(frozen=True)
class Tile:
    """One person."""

    lines: tuple[str, ...]  # written above the slice: class and probability, participant
    view: MapView


def draw_mosaic(tiles: Sequence[Tile], backdrop: Backdrop | None) -> bytes:
    """A PNG with a tile per person, in rows, each on the colour scale of the person's own map; at least one tile."""
    plan = Plan.of(CUT, PIXELS)
    dark = np.full((PIXELS, PIXELS, 3), NIGHT, dtype=np.uint8)
    under = dark if backdrop is None else grey_panel(plan, backdrop.image, backdrop.ceiling)
    head = LINE * max(len(tile.lines) for tile in tiles) + 4
    columns = min(PER_ROW, len(tiles))
    sheet = Image.new("RGB", (columns * PIXELS, -(-len(tiles) // columns) * (PIXELS + head)), NIGHT)
    for place, tile in enumerate(tiles):
        x, y = place % columns * PIXELS, place // columns * (PIXELS + head)
        picture = with_map(under, plan, tile.view, tile.view.scale(PERSON_PERCENTILES))
        sheet.paste(Image.fromarray(picture), (x, y + head))
        for number, line in enumerate(tile.lines):
            write(sheet, (x + 4, y + 3 + LINE * number), line)
        write(sheet, (x + 3, y + head), "L")
        write(sheet, (x + PIXELS - 13, y + head), "R")
    write(sheet, (3, sheet.height - 16), slice_name(CUT))
    buffer = io.BytesIO()
    reduced(sheet).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()
