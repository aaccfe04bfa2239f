"""The mosaic of individual maps: each tile shows its own map, left is left."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from reports.figures.mosaic import LINE, PIXELS, Tile, draw_mosaic
from reports.figures.slices import MAP_CUTS, BrainImage, view_of


def tile(left: bool) -> Tile:
    affine = np.diag([4.0, 4.0, 4.0, 1.0])
    affine[:3, 3] = (-92, -132, -76)
    values = np.zeros((47, 58, 48), np.float32)
    values[5 : 15 if left else 5, 20:40, 10:40] = 1
    values[32 : 32 if left else 42, 20:40, 10:40] = 1
    return Tile(("AD, p = 0.90", "sub-1"), view_of(BrainImage(values, affine), MAP_CUTS, np.ones(values.shape, bool)))


def test_each_tile_shows_its_own_map_on_its_side():
    sides = [k % 3 == 0 for k in range(8)]
    pixels = np.asarray(Image.open(io.BytesIO(draw_mosaic([tile(s) for s in sides], None))).convert("RGB")).astype(int)
    head = 2 * LINE + 4
    assert pixels.shape[:2] == (2 * (PIXELS + head), 6 * PIXELS)
    coloured = np.ptp(pixels, axis=2) > 60
    for place, left in enumerate(sides):
        x, y = place % 6 * PIXELS, place // 6 * (PIXELS + head) + head
        halves = [coloured[y : y + PIXELS, a : a + PIXELS // 2].sum() for a in (x, x + PIXELS // 2)]
        assert halves[0 if left else 1] > 500
        assert halves[1 if left else 0] < 50
