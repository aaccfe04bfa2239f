"""A viewer of the mean maps around one region, outlined: the part of the brain that a page of a region needs.

A whole brain with two maps would make each page a megabyte and a half; a box around the region is a tenth of that for
most. Regions that span the brain are shown in voxels of twice the side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.ndimage
from numpy.typing import NDArray

from atlases.spaces import Grid
from pipeline.regions.maps import read_map
from pipeline.run.layout.map_names import map_title
from reports.figures.slices import GROUP_PERCENTILES, ColourScale
from reports.page.components import Component
from reports.page.material import Material
from reports.viewer.atlas import ViewingSpace, atlas_component
from reports.viewer.component import ViewerMap, viewer_component
from reports.viewer.of_run import space_of
from reports.viewer.volumes import block_mean
from reports.words.numbers import shortened

MARGIN_MM = 20.0  # what is shown around the region on each side
MOST_VOXELS = 150_000  # of the shown box; larger ones are shown in coarser voxels

Box = tuple[slice, slice, slice]
Blocks = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class RegionViewers:
    """What the viewers of all regions share: the mean maps of the leading method, read once."""

    material: Material
    space: ViewingSpace  # of the whole brain
    map_name: str
    scale: ColourScale  # as in the viewer of the index
    blocks: Blocks  # shape of ``space.grid``; Mean map of each class

    @classmethod
    def of(cls, material: Material) -> RegionViewers | None:
        """None without the template, the atlas, or a mean map."""
        run, space = material.run, space_of(material)
        if space is None or not run.keeps_mean_maps:
            return None
        name = run.main_maps[0]
        views = {label: view for label in run.labels if (view := material.group_view(label, name)) is not None}
        if not views:
            return None
        blocks = {
            label: block_mean(read_map(run.layout.group_map(label, name), space.source), space.side) for label in views
        }
        first, *others = views.values()
        return cls(material, space, name, first.scale(GROUP_PERCENTILES, others), blocks)

    @cached_property
    def _coarse(self) -> tuple[ViewingSpace, Blocks]:
        """The whole brain in voxels of twice the side."""
        config = self.material.run.config
        space = ViewingSpace.on(self.space.grid, 2, config.regions.atlas)
        return space, {label: block_mean(values, 2) for label, values in self.blocks.items()}

    def components(self, group: str) -> Sequence[Component]:
        """Data and viewer of a bilateral group; none if it has no voxel."""
        space, blocks = self.space, self.blocks
        box = region_box(space, group)
        if box is not None and _voxels(box) > MOST_VOXELS:
            space, blocks = self._coarse
            box = region_box(space, group)
        if box is None:
            return ()
        shown = part_of(space, box)
        titles, unit = self.material.run.group_sizes, self.material.run.map_unit(self.map_name)
        maps = [
            ViewerMap(
                self.material.run.layout.group_map(label, self.map_name), label, self.map_name,
                f"{label}, mean of {titles[label][0]} scans", map_title(self.map_name), self.scale.low,
                self.scale.high, self.scale.signed, f"{unit} per voxel", values[box],
            )
            for label, values in blocks.items()
        ]  # fmt: skip
        numbers = shown.atlas.regions.groups[group]
        caption = (
            f"{shortened(group)} outlined, with {MARGIN_MM:g} mm around it; the viewer of the report shows the whole "
            "brain. Each voxel is the mean of those of the file inside it. Colours as in that viewer."
        )
        missing = self.material.missing_maps(self.material.run.labels, [self.map_name])
        caption += f" {missing}" if missing else ""
        viewer = viewer_component(
            shown, maps, f"Mean relevance maps around {shortened(group)}", caption, outlined=numbers
        )
        return atlas_component(shown), viewer


def region_box(space: ViewingSpace, group: str) -> Box | None:
    """Voxels within `MARGIN_MM` of a bilateral group along each axis; None if it has no voxel."""
    boxes = scipy.ndimage.find_objects(space.atlas.labels)
    numbers = [number for number in space.atlas.regions.groups.get(group, ()) if number <= len(boxes)]
    found = [boxes[number - 1] for number in numbers if boxes[number - 1] is not None]
    if not found:
        return None
    sides = []
    for axis, voxel_mm in enumerate(space.grid.voxel_sizes_mm):
        margin = math.ceil(MARGIN_MM / float(voxel_mm))
        first, last = min(box[axis].start for box in found), max(box[axis].stop for box in found)
        sides.append(slice(max(first - margin, 0), min(last + margin, space.grid.shape[axis])))
    x, y, z = sides
    return x, y, z


def part_of(space: ViewingSpace, box: Box) -> ViewingSpace:
    """A box of a viewing space as a space of its own; its regions are those with a voxel inside."""
    affine = np.array(space.grid.affine)
    affine[:3, 3] = space.grid.to_world([side.start for side in box])
    labels = space.atlas.labels[box]
    x, y, z = labels.shape
    grid = Grid((x, y, z), affine)
    there = set(np.unique(labels).tolist())
    empty = tuple(number for number in space.atlas.regions.numbers if number not in there)
    atlas = replace(space.atlas, grid=grid, labels=labels, empty=empty)
    template = replace(
        space.template, grid=grid, t1w=space.template.t1w[box], brain_mask=space.template.brain_mask[box]
    )
    return ViewingSpace(grid, 1, grid, template, atlas)


def _voxels(box: Box) -> int:
    return int(np.prod([side.stop - side.start for side in box]))
