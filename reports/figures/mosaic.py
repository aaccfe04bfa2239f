"""One slice of each person's own map, side by side."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from heatlas.reports.figures.pictures import NIGHT, reduced, write

PER_ROW, LINE = 6, 15


@dataclass(frozen=True)
class Tile:
    """One person."""

    lines: tuple[str, ...]  # written above the slice: class and probability, participant
    slice: Image.Image


def draw_mosaic(tiles: Sequence[Tile]) -> bytes:
    """A PNG with a tile per person, in rows; at least one tile, all of one size."""
    width, height = tiles[0].slice.size
    head = LINE * max(len(tile.lines) for tile in tiles) + 4
    columns = min(PER_ROW, len(tiles))
    sheet = Image.new("RGB", (columns * width, -(-len(tiles) // columns) * (height + head)), NIGHT)
    for place, tile in enumerate(tiles):
        x, y = place % columns * width, place // columns * (height + head)
        sheet.paste(tile.slice, (x, y + head))
        for number, line in enumerate(tile.lines):
            write(sheet, (x + 4, y + 3 + LINE * number), line)
    buffer = io.BytesIO()
    reduced(sheet).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()
