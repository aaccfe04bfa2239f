"""The viewer: three planes through relevance maps, on the template or on a person's own brain, without a network.

Why slices on a canvas and not a library: see ``docs/viewer.md``, with the measurements.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.regions.maps import read_map
from pipeline.run.errors import BadInputError
from reports.figures.slices import HIPPOCAMPAL_CUTS
from reports.page.components import Component, embedded_json
from reports.page.pages import render_part, template_text
from reports.viewer.atlas import LIBRARY, ViewingSpace, brain_codes
from reports.viewer.volumes import LEVELS, Coded, block_mean, packed
from reports.words.numbers import number


@dataclass(frozen=True, eq=False)
class ViewerMap:
    """One map that can be chosen."""

    path: Path  # image on the grid of the run
    group: str  # what it is chosen by; no two maps of a viewer share both
    method: str
    group_title: str  # as a reader sees them, with the n of a mean
    method_title: str
    low: float  # where its colours begin and saturate, in absolute value; `low` is the first threshold
    high: float
    signed: bool  # whether negative values matter, so that the colour bar has two sides
    unit: str
    # Shape of the run's grid, optional; Of the image, where it was read before
    values: NDArray[np.float32] | None = None


def viewer_component(
    space: ViewingSpace,
    maps: Sequence[ViewerMap],
    title: str,
    caption: str = "",
    brains: Mapping[str, NDArray[Any]] = MappingProxyType({}),
    outlined: Sequence[int] = (),
) -> Component:
    """Make a viewer of some maps.

    The page also needs `reports.viewer.atlas.atlas_component`, once.

    `maps`: the first one is shown first: at the left hippocampus as the figures are, or in the first outlined region.
    `brains`: shape of ``space.source``; What lies under the maps of a group: a person's brain in template space,
    background 0. The template where there is none. `outlined`: labels of the atlas with a line around them. Raises
    BadInputError if there is no map, two share group and method, or one cannot be read.
    """
    chosen = [(one.group, one.method) for one in maps]
    if not chosen or len(set(chosen)) < len(chosen):
        raise BadInputError(f"viewer {title!r}: needs maps, each of another group or method, not {chosen}.")
    start = np.rint(space.grid.to_voxel([mm for _, mm in HIPPOCAMPAL_CUTS])).astype(int)
    data = {
        "start": start.tolist(),
        "outlined": [int(number) for number in outlined],
        "maps": [_payload(space, one) for one in maps],
        "brains": {group: _packed_brain(space, brain) for group, brain in brains.items()},
    }
    html = render_part(
        "components/viewer.html.j2",
        title=title,
        caption=" ".join(filter(None, [caption, _exactness(space)])),
        groups={one.group: one.group_title for one in maps},
        methods={one.method: one.method_title for one in maps},
        outlines=bool(outlined),
        data=embedded_json(data),
    )
    return Component(html, template_text("components/viewer.css"), (LIBRARY, template_text("components/viewer.js")))


def _packed_brain(space: ViewingSpace, brain: NDArray[Any]) -> str:
    return packed(brain_codes(block_mean(brain, space.side)), zlib.Z_RLE)


def _payload(space: ViewingSpace, one: ViewerMap) -> dict[str, Any]:
    values = read_map(one.path, space.source) if one.values is None else one.values
    coded = Coded.of(block_mean(values, space.side))
    return {
        "group": one.group, "method": one.method, "title": f"{one.group_title}, {one.method_title}", "unit": one.unit,
        "low": one.low, "high": one.high, "signed": one.signed, "top": coded.top,
        "data": packed(coded.codes, zlib.Z_RLE),
    }  # fmt: skip


def _exactness(space: ViewingSpace) -> str:
    """What the numbers under the cursor are."""
    size = number(space.grid.voxel_sizes_mm[0])
    blocks = f", each the mean of {space.side}×{space.side}×{space.side} voxels of the file" if space.side > 1 else ""
    return (
        f"Voxels of {size} mm{blocks}, in {2 * LEVELS + 1} levels; ± is the largest rounding error of the value shown. "
        "Coordinates are those of the template (MNI, RAS+)."
    )
