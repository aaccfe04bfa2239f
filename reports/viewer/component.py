"""The viewer: three planes through relevance maps, on the template or on a person's own brain, without a network.

Why slices on a canvas and not a library: see ``docs/benchmarks/viewer.md``, with the measurements. The viewer and the
region explorer of a page share labels, names of regions and the template brain.

Volumes are small enough to travel inside a page: fewer voxels, one byte each, compressed. A value v is kept as the code
c = ±round(127 √(|v| / top)), where top is the largest absolute value of the map, and read back as ±top (c / 127)².
Relevance has long tails: evenly spaced levels would round most of a brain to zero, the square root spends the levels
where the values are. No value is off by more than `Coded.error`.

The browser smooths what it shows (``volumes.js``; `smoothed_within` is the same filter), so that a page holds each map
once, as it is.
"""

from __future__ import annotations

import base64
import functools
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
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
from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.regions.maps import read_map
from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE, axes_of
from heatlas.pipeline.run.errors import BadInputError, HeatlasError
from heatlas.reports.figures.gallery import OUTCOME_NAMES, cool, warm
from heatlas.reports.figures.slices import HIPPOCAMPAL_CUTS, PERSON_PERCENTILES, SMOOTHED_MM
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.pages import Component, embedded_json, render_part, template_text
from heatlas.reports.read.run_record import OUTCOMES, group_name
from heatlas.reports.words.numbers import count, number

LEVELS = 127  # codes on either side of 0
FINEST_MM = 2.0
"""Voxel side of the viewer; maps with smaller voxels are averaged over blocks. A whole run at 1 mm would make a page of
some 60 MB, at 2 mm of some 7 MB."""


def block_side(voxel_mm: float) -> int:
    """Voxels per side of the blocks that one voxel of the viewer stands for.

    Examples
    --------
    >>> block_side(1.0), block_side(1.5), block_side(2.0), block_side(4.0)
    (2, 1, 1, 1)
    """
    return max(1, round(FINEST_MM / voxel_mm))


def block_grid(grid: Grid, side: int) -> Grid:
    """Grid of blocks of ``side`` voxels each way; the last block of an axis may stick out of the field of view.

    Examples
    --------
    >>> from heatlas.atlases.spaces import template_grid
    >>> block_grid(template_grid(1.0), 2).to_world([0, 0, 0]).tolist()
    [-95.5, -131.5, -77.5]
    """
    affine = np.array(grid.affine)
    affine[:3, 3] = grid.to_world([(side - 1) / 2] * 3)
    affine[:3, :3] *= side
    x, y, z = (math.ceil(n / side) for n in grid.shape)
    return Grid((x, y, z), affine)


def block_mean(values: NDArray[Any], side: int) -> NDArray[np.float32]:
    """Mean over blocks, so that sums over regions stay what they were.

    Blocks that stick out of the field of view are means over their voxels inside.
    """
    if side == 1:
        return np.asarray(values, dtype=np.float32)
    means: NDArray[Any] = np.asarray(values)
    for axis in range(3):
        lines = np.moveaxis(means, axis, 0)
        sums = lines[::side].astype(np.float64)
        for place in range(1, side):
            there = lines[place::side]
            sums[: len(there)] += there
        sizes = np.minimum(side, len(lines) - np.arange(0, len(lines), side))
        means = np.moveaxis(sums / sizes[:, None, None], 0, axis)
    return means.astype(np.float32)


@dataclass(frozen=True, eq=False)
class Coded:
    """A map of one byte per voxel."""

    codes: NDArray[np.int8]  # -127 to 127, shape (x, y, z)
    top: float  # largest absolute value; 0 for an empty map

    @classmethod
    def of(cls, values: NDArray[Any]) -> Coded:
        """Code a map of finite values."""
        size = np.abs(values)
        top = float(size.max(initial=0.0))
        if top == 0:
            return cls(np.zeros(size.shape, np.int8), top)
        levels = np.rint(LEVELS * np.sqrt(size / top))
        return cls(np.copysign(levels, values).astype(np.int8), top)

    @property
    def values(self) -> NDArray[np.float64]:
        """What a reader of the codes sees."""
        shares = self.codes.astype(np.float64) / LEVELS
        result: NDArray[np.float64] = self.top * np.sign(shares) * shares**2
        return result

    @property
    def error(self) -> NDArray[np.float64]:
        """How far, at most, the true value is from `values`, voxel by voxel.

        The true root lies within half a level of the code c, its square between (c - 1/2)² and (c + 1/2)² levels
        squared: at most c + 1/4 away from c².
        """
        result: NDArray[np.float64] = self.top * (np.abs(self.codes.astype(np.float64)) + 0.25) / LEVELS**2
        return result


PERCENTS = (0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 98, 99, 99.5, 100)
"""Percentiles of the absolute values by which a page draws maps; between them it interpolates."""


def smoothed_within(values: NDArray[Any], inside: NDArray[np.bool_], voxel_mm: Sequence[float]) -> NDArray[np.float64]:
    """A map after a Gaussian filter of `SMOOTHED_MM` that sees nothing outside a mask: G(map · mask) / G(mask)."""
    sigmas = [SMOOTHED_MM / math.sqrt(8 * math.log(2)) / float(side) for side in voxel_mm]
    above, below = (
        scipy.ndimage.gaussian_filter(volume.astype(np.float64), sigmas, mode="constant")
        for volume in (values * inside, inside)
    )
    smooth: NDArray[np.float64] = np.divide(above, below, out=np.zeros_like(above), where=inside)
    return smooth


def levels_of(values: NDArray[Any], inside: NDArray[np.bool_], voxel_mm: Sequence[float]) -> Mapping[str, list[float]]:
    """`PERCENTS` of the absolute values inside a mask: of a map as it is, and smoothed."""
    shown = {"plain": values, "smooth": smoothed_within(values, inside, voxel_mm)}
    return {how: np.percentile(np.abs(one[inside]), PERCENTS).tolist() for how, one in shown.items()}


def packed(array: NDArray[Any], strategy: int = zlib.Z_FILTERED) -> str:
    """Bytes of an array, first axis fastest, little-endian, as zlib stream in base64.

    Browsers take it apart without a library (``DecompressionStream("deflate")``).

    `strategy`: ``zlib.Z_RLE`` for volumes of one byte per voxel, whose only repetition is the background: smaller and
    three times as fast, see ``docs/benchmarks/viewer.md``. Labels, of two bytes, and tables repeat in longer patterns.
    """
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    stream = zlib.compressobj(4, strategy=strategy)
    return base64.b64encode(stream.compress(little.tobytes(order="F")) + stream.flush()).decode()


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


LOWER = "they begin lower where less than a tenth of another class would be drawn"


@functools.lru_cache(maxsize=1)
def viewing_space(resolution_mm: float, atlas: str, template: str = DEFAULT_TEMPLATE) -> ViewingSpace | None:
    """Space of a run, loaded once for all pages; None where the template's package or the atlas is not at hand."""
    try:
        return ViewingSpace.of(resolution_mm, atlas, template)
    except HeatlasError:
        return None


@functools.lru_cache(maxsize=1)
def _shared(resolution_mm: float, atlas: str, template: str) -> Component | None:
    space = viewing_space(resolution_mm, atlas, template)
    return None if space is None else atlas_component(space)


def space_of(material: Material) -> ViewingSpace | None:
    """Viewing space of a run."""
    config = material.run.config
    return viewing_space(config.registration.resolution_mm, config.regions.atlas, config.registration.template)


def shared_data(material: Material) -> Component | None:
    """Labels and brain that the viewers and explorers of a page read; every page that has one needs this once."""
    config = material.run.config
    return _shared(config.registration.resolution_mm, config.regions.atlas, config.registration.template)


def group_viewer(material: Material) -> Component | None:
    """Mean maps: both classes by every method, the outcomes by the leading one, so that the page stays small.

    None where no mean map was kept, or there is no template to show it on.
    """
    run, space = material.run, space_of(material)
    if space is None or not run.keeps_mean_maps:
        return None
    wanted = [(group, name) for group in run.map_groups for name in run.ordered_maps]
    wanted += [(group, run.main_maps[0]) for group in OUTCOMES]
    maps = []
    for group, name in wanted:
        if not material.has_map(group, name):
            continue
        scans, people = run.group_sizes[group]
        of = f"{count(scans, 'scan')} of {count(people, 'person', 'people')}"
        maps.append(
            ViewerMap(
                run.layout.group_map(group, name), group, name,
                f"{OUTCOME_NAMES[group].capitalize() if group in OUTCOMES else group_name(group)}, mean of {of}",
                map_title(name), f"{run.map_unit(name)} per voxel",
            )
        )  # fmt: skip
    if not maps:
        return None
    missing = material.missing_maps(run.map_groups, run.map_names) or material.missing_maps(OUTCOMES, run.main_maps[:1])
    return viewer_component(space, maps, "Mean relevance maps", missing, scaled=run.map_groups)


@dataclass(frozen=True, eq=False)
class ViewerMap:
    """One map that can be chosen."""

    path: Path  # image on the grid of the run
    group: str  # what it is chosen by; no two maps of a viewer share both
    method: str
    group_title: str  # as a reader sees them, with the n of a mean
    method_title: str
    unit: str
    # Of the image on the run's grid, where it was read before
    values: NDArray[np.float32] | None = None
    levels: Mapping[str, list[float]] | None = None  # `levels_of` the whole brain, where the page shows a part of it


def viewer_component(
    space: ViewingSpace,
    maps: Sequence[ViewerMap],
    title: str,
    caption: str = "",
    brains: Mapping[str, NDArray[Any]] = MappingProxyType({}),
    outlined: Sequence[int] = (),
    scaled: Sequence[str] = (),
) -> Component:
    """Make a viewer of some maps.

    The page also needs `reports.viewer.component.atlas_component`, once.

    `maps`: the first one is shown first: at the left hippocampus as the figures are, or in the first outlined region.
    `brains`: a person's brain in template space on ``space.source``, shown under the maps of a group in place of the
    template. `outlined`: labels of the atlas with a line around them. `scaled`: groups whose maps set the colours, the
    first of them the brightest; else all.
    """
    chosen = [(one.group, one.method) for one in maps]
    if not chosen or len(set(chosen)) < len(chosen):
        raise BadInputError(f"viewer {title!r}: needs maps, each of another group or method, not {chosen}.")
    start = np.rint(space.grid.to_voxel([mm for _, mm in HIPPOCAMPAL_CUTS])).astype(int)
    data = {
        "start": start.tolist(),
        "outlined": [int(number) for number in outlined],
        "scaled": list(scaled) or [one.group for one in maps],
        "percents": PERCENTS,
        "window": PERSON_PERCENTILES,
        "fwhm": SMOOTHED_MM,
        "maps": [_payload(space, one) for one in maps],
        "brains": {
            group: packed(brain_codes(block_mean(brain, space.side)), zlib.Z_RLE) for group, brain in brains.items()
        },
    }
    html = render_part(
        "components/viewer.html.j2",
        title=title,
        caption=" ".join(filter(None, [caption, _exactness(space)])),
        threshold=PERSON_PERCENTILES[0],
        fwhm=f"{SMOOTHED_MM:g}",
        groups={one.group: one.group_title for one in maps},
        methods={one.method: one.method_title for one in maps},
        pairs=[f"{one.group_title}, {one.method_title}" for one in maps],
        planes=_planes(space),
        data=embedded_json(data),
    )
    return Component(html, template_text("components/viewer.css"), (LIBRARY, template_text("components/viewer.js")))


def _planes(space: ViewingSpace) -> dict[str, tuple[int, int, int]]:
    """Width and height of each canvas in pixels, and voxels across, so that planes beside each other have one scale.

    They stand in the page, which then does not jump when the slices are drawn. Slices of a part of the brain are as
    large as those of a whole one.
    """
    x, y, z = space.grid.shape
    scale = max(4, round(440 / max(x, y, z)))
    across = {"sagittal": (y, z), "coronal": (x, z), "axial": (x, y)}
    return {plane: (scale * wide, scale * tall, wide) for plane, (wide, tall) in across.items()}


def _payload(space: ViewingSpace, one: ViewerMap) -> dict[str, Any]:
    values = read_map(one.path, space.source) if one.values is None else one.values
    coded = Coded.of(block_mean(values, space.side))
    return {
        "group": one.group, "method": one.method, "title": f"{one.group_title}, {one.method_title}", "unit": one.unit,
        "levels": one.levels, "top": coded.top, "data": packed(coded.codes, zlib.Z_RLE),
    }  # fmt: skip


def _exactness(space: ViewingSpace) -> str:
    """What the numbers under the cursor are."""
    size = number(space.grid.voxel_sizes_mm[0])
    blocks = f", each the mean of {space.side}×{space.side}×{space.side} voxels of the file" if space.side > 1 else ""
    low, high = PERSON_PERCENTILES
    return (
        f"Colours run from the {low:g}th to the {high:g}th percentile of absolute values in the brain, of the "
        f"first map of a method for all its maps; {LOWER}. Voxels of {size} mm{blocks}, rounded to "
        f"{2 * LEVELS + 1} levels. Coordinates are those of the template ({axes_of(space.template.name)}, RAS+)."
    )
