"""The mosaic of individual maps: each tile shows the slice of its own portrait."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import template_grid
from heatlas.reports.figures.gallery import shown_in
from heatlas.reports.figures.maps import (
    BAR,
    BAR_HEIGHT,
    CUTS,
    GAP,
    HEAD,
    LINE,
    MAPS,
    PIXELS,
    REGIONS,
    Row,
    Tile,
    coronal_slice,
    draw_mosaic,
    draw_portrait,
)
from heatlas.reports.figures.slices import PERSON_PERCENTILES, BrainImage, ColourScale, MapView, coloured


def portrait(shade: int) -> bytes:
    """Slices of one shade of grey each; the second of the first map has this one."""
    sheet = Image.new("RGB", (len(CUTS) * (PIXELS + GAP), 2 * (HEAD + PIXELS + GAP)), (255, 255, 255))
    for column in range(len(CUTS)):
        corner = (column * (PIXELS + GAP), HEAD)
        sheet.paste((shade if column == 1 else 255,) * 3, (*corner, corner[0] + PIXELS, corner[1] + PIXELS))
    buffer = io.BytesIO()
    sheet.save(buffer, format="PNG")
    return buffer.getvalue()


def test_each_tile_shows_the_coronal_slice_of_its_own_person():
    assert CUTS[1][0] == "coronal"
    shades = [20 + 18 * place for place in range(8)]
    tiles = [Tile(("AD, 0.90", "sub-1"), coronal_slice(portrait(shade))) for shade in shades]
    assert {tile.slice.size for tile in tiles} == {(PIXELS, PIXELS)}
    assert [tile.slice.getextrema()[0] for tile in tiles] == [(shade, shade) for shade in shades]
    pixels = np.asarray(Image.open(io.BytesIO(draw_mosaic(tiles))).convert("RGB")).astype(int)
    head = 2 * LINE + 4
    assert pixels.shape[:2] == (2 * (PIXELS + head), 6 * PIXELS)
    for place, shade in enumerate(shades):
        x, y = place % 6 * PIXELS + PIXELS // 2, place // 6 * (PIXELS + head) + head + PIXELS // 2
        assert abs(pixels[y, x, 0] - shade) <= 6  # of a palette of 256 colours


@pytest.mark.parametrize("signed", [False, True])
def test_a_row_of_a_portrait_says_what_its_colours_mean(signed):
    scale = ColourScale(0.2, 0.8, signed)
    atlas = load_atlas("neuromorphometrics-cat12", template_grid(4.0))
    grid = atlas.grid
    brain = np.ones(grid.shape, dtype=np.float32)
    view = MapView(
        {cut: np.zeros((2, 2)) for cut in CUTS},
        np.asarray(grid.affine),
        dict(zip(PERSON_PERCENTILES, (0.2, 0.8), strict=True)),
        0.5 * signed,
    )
    row = Row("Guided backpropagation", view, view.scale(PERSON_PERCENTILES), "unit")
    sheet = draw_portrait(BrainImage(brain, grid.affine), [row], (), atlas, ["gb"])
    assert shown_in(sheet, MAPS) == ("gb",)
    assert shown_in(sheet, REGIONS) == ()
    pixels = np.asarray(Image.open(io.BytesIO(sheet)).convert("RGB")).astype(int)
    line = pixels[2 + 3 + BAR_HEIGHT // 2]
    expected = (255 * coloured(scale.ramp(BAR // 2), scale)[:, :3]).astype(int)
    found = [
        start
        for start in range(len(line) - len(expected))
        if np.abs(line[start : start + len(expected)] - expected).max() <= 12
    ]
    assert len(found) == 1
    assert scale.ramp(3).tolist() == pytest.approx([-0.8, -0.5, -0.2] * signed + [0.2, 0.5, 0.8])
