"""Data that the viewer and the region explorer of a page share: labels, names of regions, the template brain."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.ndimage
from markupsafe import Markup
from matplotlib import colormaps
from matplotlib.colors import Colormap
from numpy.typing import NDArray

from heatlas.atlases.labels import Atlas, load_atlas
from heatlas.atlases.spaces import Grid, template_grid
from heatlas.atlases.templates import Template, span_of, template_on
from heatlas.reports.figures.gallery import cool, warm
from heatlas.reports.frame.pages import Component, embedded_json, template_text
from heatlas.reports.viewer.volumes import block_grid, block_side, packed

LIBRARY = template_text("components/volumes.js")
"""Script of everything that draws slices; goes before the scripts that use it."""
_TABLES = {"warm": warm(), "cool": cool(), "viridis": colormaps["viridis"], "gray": colormaps["gray"]}
BRIGHTEST_PERCENTILE = 99.5


@dataclass(frozen=True, eq=False)
class ViewingSpace:
    """The voxels that a page shows."""

    source: Grid  # of the run's maps
    side: int  # voxels of `source` per voxel of the page, each way
    grid: Grid  # of the page
    template: Template  # on `grid`
    atlas: Atlas  # on `grid`

    @classmethod
    def of(cls, resolution_mm: float, atlas: str, template: str) -> ViewingSpace:
        """Space of a run.

        `resolution_mm`: of the run. `atlas`, `template`: as in the run's configuration. Raises HeatlasError if the
        template's package or the atlas is not at hand.
        """
        return cls.on(template_grid(resolution_mm, span_of(template)), block_side(resolution_mm), atlas, template)

    @classmethod
    def on(cls, source: Grid, side: int, atlas: str, template: str) -> ViewingSpace:
        """Space of blocks of ``side`` voxels of a grid each way; see `of`."""
        grid = block_grid(source, side)
        return cls(source, side, grid, template_on(grid, template), load_atlas(atlas, grid))


def brain_codes(t1w: NDArray[Any]) -> NDArray[np.uint8]:
    """Grey levels of a brain whose background is 0; the brightest half per cent is white."""
    inside = t1w[t1w > 0]
    ceiling = float(np.percentile(inside, BRIGHTEST_PERCENTILE)) if inside.size else 1.0
    codes: NDArray[np.uint8] = np.clip(np.rint(255 * np.maximum(t1w, 0) / ceiling), 0, 255).astype(np.uint8)
    return codes


def atlas_component(space: ViewingSpace, with_brain: bool = True) -> Component:
    """Data that every viewer and explorer of a page reads; a page needs it once, anywhere.

    `with_brain`: whether something on the page shows the template's brain.
    """
    atlas = space.atlas
    numbers = [number for number in atlas.regions.numbers if number not in atlas.empty]
    rank = np.zeros(max(numbers, default=0) + 1, np.uint16)
    rank[numbers] = np.arange(1, len(numbers) + 1)
    boxes = scipy.ndimage.find_objects(atlas.labels)
    data = {
        "shape": list(space.grid.shape),
        "origin": space.grid.affine[:3, 3].tolist(),
        "voxel": np.diag(space.grid.affine)[:3].tolist(),
        "brain": packed(brain_codes(space.template.t1w), zlib.Z_RLE) if with_brain else None,
        "labels": packed(rank[atlas.labels]),
        "regions": [_region(space, number, boxes[number - 1]) for number in numbers],
        "colours": {name: _colours(table) for name, table in _TABLES.items()},
    }
    html = Markup('<script type="application/json" id="heatlas-atlas">{}</script>\n').format(embedded_json(data))
    return Component(html, scripts=(LIBRARY,))


def _colours(table: Colormap) -> str:
    """Red, green and blue of 256 steps of the figures' colours, in base64."""
    return base64.b64encode(np.rint(255 * table(np.linspace(0, 1, 256))[:, :3]).astype(np.uint8).tobytes()).decode()


def _region(space: ViewingSpace, number: int, box: tuple[slice, ...]) -> Mapping[str, Any]:
    region = space.atlas.regions.by_number(number)
    voxels = np.argwhere(space.atlas.labels[box] == number) + [side.start for side in box]
    central = voxels[np.argmin(((voxels - voxels.mean(axis=0)) ** 2).sum(axis=1))]
    return {
        "number": number, "name": region.name, "group": region.group, "hemisphere": region.hemisphere,
        "at": central.tolist(),
    }  # fmt: skip
