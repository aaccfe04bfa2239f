"""Maps on a person's own brain, made of pixels.

A portrait has slices of one scan in a row per map, and regions in colour, the named ones outlined. A mosaic has one
slice of each person's own map, side by side.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from PIL import Image

from heatlas.atlases.labels import Atlas
from heatlas.reports.figures import slices
from heatlas.reports.figures.gallery import NIGHT, png, reduced, width_of, write
from heatlas.reports.figures.maps import tick

PIXELS, HEAD, GAP = 170, 18, 4
BAR, BAR_HEIGHT = 140, 9
SIDES_OF_PLANE = {"sagittal": ("P", "A"), "coronal": ("L", "R"), "axial": ("L", "R")}
FAINT = 0.1
"""Share of the largest value of a region below which a region is not in colour."""
_APART = 13  # pixels between two numbers
MAPS, REGIONS = "maps", "regions"
"""Under which names a portrait keeps the maps of its rows and the regions that it numbers."""


@dataclass(frozen=True)
class Row:
    """One row of slices."""

    title: str
    view: slices.MapView | slices.BrainImage
    scale: slices.ColourScale
    unit: str
    order: int = 1  # of the interpolation; 0 for values that hold for whole regions


def region_row(title: str, values: pd.Series, unit: str, atlas: Atlas) -> Row:
    """Every voxel of a region in the colour of the region's value.

    `values`: by bilateral group.
    """
    by_label = np.zeros(int(atlas.labels.max()) + 1)
    for group, value in values.items():
        labels = [label for label in atlas.regions.groups.get(str(group), ()) if label < len(by_label)]
        by_label[labels] = value
    highest = float(np.abs(by_label).max())
    scale = slices.ColourScale(FAINT * highest, highest, signed=bool((by_label < 0).any()))
    image = slices.BrainImage(by_label[atlas.labels].astype(np.float32), np.asarray(atlas.grid.affine))
    return Row(title, image, scale, unit, 0)


def draw_portrait(
    brain: slices.BrainImage, rows: Sequence[Row], groups: Sequence[str], atlas: Atlas, maps: Sequence[str]
) -> bytes:
    """Rows of slices over the person's own brain, the named regions but the giants outlined and numbered.

    `brain`: in template space, background 0. `groups`: bilateral groups to outline; the first is number 1. `maps`:
    names of the maps shown, which the file keeps. Returns a PNG; equal input gives equal bytes.
    """
    small = slices.without_giants(atlas, groups)
    inside = brain.values > 0
    ceiling = float(np.percentile(brain.values[inside], 99.5)) if inside.any() else 1.0
    labels = slices.BrainImage(atlas.labels, np.asarray(atlas.grid.affine))
    numbers = {
        label: place
        for place, group in enumerate(groups, start=1)
        if group in small
        for label in atlas.regions.groups.get(group, ())
    }
    plans = [slices.PanelGrid.of(cut, PIXELS) for cut in slices.MAP_CUTS]
    under = [slices.grey_panel(plan, brain, ceiling) for plan in plans]
    bodies = [slices.outlined_bodies(plan, labels, numbers) for plan in plans]
    places = [slices.middle_of(found) for found in bodies]
    width, row_height = len(plans) * (PIXELS + GAP), HEAD + PIXELS + GAP
    sheet = Image.new("RGB", (width, row_height * len(rows)), NIGHT)
    for place, row in enumerate(rows):
        write(sheet, (4, place * row_height + 2), row.title)
        _write_colour_bar(sheet, place * row_height + 2, row.scale, row.unit)
        for column, (plan, anatomy) in enumerate(zip(plans, under, strict=True)):
            panel = slices.with_map(anatomy, plan, row.view, row.scale, row.order)
            corner = (column * (PIXELS + GAP), place * row_height + HEAD)
            numbered = {} if row.order else places[column]  # where regions have one colour, numbers hide nothing
            sheet.paste(named(slices.with_outlines(panel, bodies[column]), numbered, plan.cut), corner)
    return png(sheet, {MAPS: maps, REGIONS: groups})


def coronal_slice(portrait: bytes) -> Image.Image:
    """The second slice of the first map of a portrait, through both hippocampi."""
    left, top = PIXELS + GAP, HEAD
    with Image.open(io.BytesIO(portrait)) as sheet:
        return sheet.convert("RGB").crop((left, top, left + PIXELS, top + PIXELS))


def first_map(portrait: bytes) -> Image.Image:
    """The first map of a portrait in two lines of three slices, its title above them and its colour bar below."""
    with Image.open(io.BytesIO(portrait)) as sheet:
        whole = sheet.convert("RGB")
    half, end = whole.width // 2, HEAD + PIXELS + GAP
    found = Image.new("RGB", (half, 2 * end), NIGHT)
    found.paste(whole.crop((0, 0, half, end)), (0, 0))
    found.paste(whole.crop((half, HEAD, whole.width, end)), (0, end))
    found.paste(whole.crop((half, 0, whole.width, HEAD)), (0, 2 * end - HEAD))
    return found


def named(panel: slices.Pixels, places: Mapping[int, tuple[int, int]], cut: slices.Cut) -> Image.Image:
    """A panel with the coordinate of its slice, its sides, and numbers at some places."""
    picture = Image.fromarray(panel)
    taken: list[tuple[int, int]] = []
    for number, (row, column) in places.items():
        while any(abs(row - other[0]) < _APART and abs(column - other[1]) < _APART for other in taken):
            row += 1
        taken.append((row, column))
        write(picture, (column - 3, row - 7), str(number))
    write(picture, (3, PIXELS - 15), slices.slice_name(cut).replace("−", "-"))
    left, right = SIDES_OF_PLANE[cut[0]]
    write(picture, (3, 2), left)
    write(picture, (PIXELS - 12, 2), right)
    return picture


def _write_colour_bar(sheet: Image.Image, top: int, scale: slices.ColourScale, unit: str) -> None:
    """Draw the colour bar of a row at its right end."""
    if scale.empty:
        return
    ramp = scale.ramp(BAR // 2)
    bar = (255 * slices.coloured(ramp, scale)[:, :3]).round().astype(np.uint8)
    lowest, highest = tick(float(ramp[0])), f"{tick(scale.high)} {unit}"
    left = sheet.width - width_of(highest) - 2 * GAP - len(ramp)
    sheet.paste(Image.fromarray(np.tile(bar, (BAR_HEIGHT, 1, 1))), (left, top + 3))
    write(sheet, (left - width_of(lowest) - GAP, top), lowest)
    write(sheet, (left + len(ramp) + GAP, top), highest)


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
