"""The viewer: three planes through relevance maps, on the template or on a person's own brain, without a network.

Why slices on a canvas and not a library: see ``docs/viewer.md``, with the measurements.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.regions.maps import read_map
from heatlas.pipeline.run.errors import BadInputError, HeatlasError
from heatlas.pipeline.run.template_name import DEFAULT_TEMPLATE, axes_of
from heatlas.reports.figures.gallery import OUTCOME_NAMES
from heatlas.reports.figures.slices import GROUP_PERCENTILES, HIPPOCAMPAL_CUTS, ColourScale
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.pages import Component, embedded_json, render_part, template_text
from heatlas.reports.read.run_record import OUTCOMES, group_name
from heatlas.reports.viewer.atlas import LIBRARY, ViewingSpace, atlas_component, brain_codes
from heatlas.reports.viewer.volumes import LEVELS, Coded, block_mean, packed
from heatlas.reports.words.numbers import count, number

SCALE = "Colours run from the {low:g}th to the {high:g}th percentile of {whose} inside the brain, as in the figures."
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
    views = material.group_views
    wanted = [(group, name) for group in run.map_groups for name in run.ordered_maps]
    wanted += [(group, run.main_maps[0]) for group in OUTCOMES]
    there = [key for key in wanted if key in views]
    maps = []
    for group, name in there:
        alike = [views[key] for key in there if key[1] == name]  # the positive class first, if it has a map
        classes = [views[label, name] for label in run.map_groups if (label, name) in views]
        scale = alike[0].scale(GROUP_PERCENTILES, alike, classes)
        scans, people = run.group_sizes[group]
        of = f"{count(scans, 'scan')} of {count(people, 'person', 'people')}"
        maps.append(
            ViewerMap(
                run.layout.group_map(group, name), group, name,
                f"{OUTCOME_NAMES[group].capitalize() if group in OUTCOMES else group_name(group)}, mean of {of}",
                map_title(name), scale, f"{run.map_unit(name)} per voxel",
            )
        )  # fmt: skip
    if not maps:
        return None
    missing = material.missing_maps(run.map_groups, run.map_names) or material.missing_maps(OUTCOMES, run.main_maps[:1])
    whose = f"the absolute mean map of {group_name(run.map_groups[0])} by the method"
    caption = SCALE.format(low=GROUP_PERCENTILES[0], high=GROUP_PERCENTILES[1], whose=whose)
    caption = f"{caption.removesuffix('.')}; {LOWER}."
    return viewer_component(space, maps, "Mean relevance maps", f"{caption} {missing}".strip())


@dataclass(frozen=True, eq=False)
class ViewerMap:
    """One map that can be chosen."""

    path: Path  # image on the grid of the run
    group: str  # what it is chosen by; no two maps of a viewer share both
    method: str
    group_title: str  # as a reader sees them, with the n of a mean
    method_title: str
    scale: ColourScale  # `low` is the first threshold
    unit: str
    # Of the image on the run's grid, where it was read before
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
    `brains`: a person's brain in template space on ``space.source``, shown under the maps of a group in place of the
    template. `outlined`: labels of the atlas with a line around them.
    """
    chosen = [(one.group, one.method) for one in maps]
    if not chosen or len(set(chosen)) < len(chosen):
        raise BadInputError(f"viewer {title!r}: needs maps, each of another group or method, not {chosen}.")
    start = np.rint(space.grid.to_voxel([mm for _, mm in HIPPOCAMPAL_CUTS])).astype(int)
    data = {
        "start": start.tolist(),
        "outlined": [int(number) for number in outlined],
        "maps": [_payload(space, one) for one in maps],
        "brains": {
            group: packed(brain_codes(block_mean(brain, space.side)), zlib.Z_RLE) for group, brain in brains.items()
        },
    }
    html = render_part(
        "components/viewer.html.j2",
        title=title,
        caption=" ".join(filter(None, [caption, _exactness(space)])),
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
        "low": one.scale.low, "high": one.scale.high, "signed": one.scale.signed, "top": coded.top,
        "data": packed(coded.codes, zlib.Z_RLE),
    }  # fmt: skip


def _exactness(space: ViewingSpace) -> str:
    """What the numbers under the cursor are."""
    size = number(space.grid.voxel_sizes_mm[0])
    blocks = f", each the mean of {space.side}×{space.side}×{space.side} voxels of the file" if space.side > 1 else ""
    return (
        f"Voxels of {size} mm{blocks}, in {2 * LEVELS + 1} levels; ± is the largest rounding error of the value shown. "
        f"Coordinates are those of the template ({axes_of(space.template.name)}, RAS+)."
    )
