"""A scan's relevance on its own brain: slices in a row per map, the leading regions outlined and numbered."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image

from atlases.labels import Atlas
from pipeline.run.layout.map_names import map_title
from reports.figures import slices
from reports.figures.maps import tick
from reports.figures.pictures import NIGHT, png, width_of, write

CUTS: tuple[slices.Cut, ...] = (
    ("sagittal", -26.0), ("coronal", -20.0), ("axial", -28.0), ("axial", -16.0), ("axial", 8.0), ("axial", 34.0),
)  # fmt: skip
OUTLINED = 5
PIXELS, HEAD, GAP = 170, 18, 4
BAR, BAR_HEIGHT = 140, 9
SIDES = {"sagittal": ("P", "A"), "coronal": ("L", "R"), "axial": ("L", "R")}


def draw_portrait(
    brain: slices.BrainImage, maps: Mapping[str, slices.MapView], units: Mapping[str, str], groups: Sequence[str],
    atlas: Atlas,
) -> bytes:  # fmt: skip
    """One row of slices per map over the person's own brain, the leading regions outlined and numbered.

    `brain`: in template space, background 0. `maps`: by map name, with the slices of `CUTS`. `units`: of their values.
    `groups`: bilateral groups to outline; the first is number 1. Returns a PNG; equal input gives equal bytes.
    """
    inside = brain.values > 0
    ceiling = float(np.percentile(brain.values[inside], 99.5)) if inside.any() else 1.0
    labels = slices.BrainImage(atlas.labels, np.asarray(atlas.grid.affine))
    numbers = {
        label: place for place, group in enumerate(groups, start=1) for label in atlas.regions.groups.get(group, ())
    }
    plans = [slices.Plan.of(cut, PIXELS) for cut in CUTS]
    under = [slices.grey_panel(plan, brain, ceiling) for plan in plans]
    bodies = [slices.outlined_bodies(plan, labels, numbers) for plan in plans]
    places = [slices.middle_of(found) for found in bodies]
    width, row_height = len(CUTS) * (PIXELS + GAP), HEAD + PIXELS + GAP
    sheet = Image.new("RGB", (width, row_height * len(maps)), NIGHT)
    for row, (name, view) in enumerate(maps.items()):
        scale = view.scale(slices.PERSON_PERCENTILES)
        write(sheet, (4, row * row_height + 2), map_title(name))
        _write_colour_bar(sheet, row * row_height + 2, scale, units[name])
        for column, (plan, anatomy) in enumerate(zip(plans, under, strict=True)):
            panel = slices.with_map(anatomy, plan, view, scale)
            corner = (column * (PIXELS + GAP), row * row_height + HEAD)
            sheet.paste(named(slices.with_outlines(panel, bodies[column]), places[column], plan.cut), corner)
    return png(sheet)


def coronal_slice(portrait: bytes) -> Image.Image:
    """The second slice of the first map of a portrait, through both hippocampi."""
    left, top = PIXELS + GAP, HEAD
    with Image.open(io.BytesIO(portrait)) as sheet:
        return sheet.convert("RGB").crop((left, top, left + PIXELS, top + PIXELS))


def named(panel: slices.Pixels, places: Mapping[int, tuple[int, int]], cut: slices.Cut) -> Image.Image:
    """A panel with the coordinate of its slice, its sides, and numbers at some places."""
    picture = Image.fromarray(panel)
    for number, (row, column) in places.items():
        write(picture, (column - 3, row - 7), str(number))
    write(picture, (3, PIXELS - 15), slices.slice_name(cut).replace("−", "-"))
    left, right = SIDES[cut[0]]
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
