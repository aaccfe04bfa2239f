"""The mean maps around one region: a picture with its outline on the template, and a viewer of a box around it.

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
from PIL import Image

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import Grid
from heatlas.atlases.templates import configured_grid
from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.regions.maps import read_map
from heatlas.pipeline.run.errors import HeatlasError
from heatlas.reports.figures import slices
from heatlas.reports.figures.gallery import NIGHT, Picture, inlined, png, write
from heatlas.reports.figures.portraits import GAP, HEAD, PIXELS, named
from heatlas.reports.figures.slices import PERSON_PERCENTILES, ColourScale
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.pages import Component
from heatlas.reports.viewer.component import (
    ViewerMap,
    ViewingSpace,
    atlas_component,
    block_mean,
    levels_of,
    space_of,
    viewer_component,
)
from heatlas.reports.words.numbers import shortened
from heatlas.reports.words.sentences import Words

WORDS = Words(__file__)


@dataclass(frozen=True)
class RegionPictures:
    """Images read once for the pictures of all regions."""

    backdrop: slices.Backdrop
    labels: slices.BrainImage
    groups: Mapping[str, tuple[int, ...]]  # labels of each bilateral group
    maps: Mapping[str, slices.BrainImage | None]  # mean maps by their title; None in the place of one that is lost
    scale: ColourScale  # of all
    caption: str

    @cached_property
    def boxes(self) -> list[tuple[slice, ...] | None]:
        """The box around each label, by label number from 1."""
        return list(scipy.ndimage.find_objects(self.labels.values))

    @classmethod
    def of(cls, material: Material) -> RegionPictures | None:
        """None without the template, the atlas, or a mean map. The place of a map that is lost stays empty."""
        run, backdrop = material.run, material.backdrop
        if backdrop is None or not run.keeps_mean_maps:
            return None
        try:
            atlas = load_atlas(run.config.regions.atlas, configured_grid(run.config.registration))
        except HeatlasError:
            return None
        name = run.main_maps[0]
        expected = [label for label in run.labels if material.expects_map(label)]
        maps: dict[str, slices.BrainImage | None] = {}
        for label in expected:
            there = material.group_view(label, name) is not None
            image = slices.BrainImage.read(run.layout.group_map(label, name)) if there else None
            title = f"{map_title(name)}, {'mean' if there else 'no map'} of {label}"
            if image is not None:
                image = slices.BrainImage(np.where(backdrop.mask, slices.smoothed(image).values, 0), image.affine)
            maps[title] = image
        views = [slices.view_of(image, (), backdrop.mask) for image in maps.values() if image is not None]
        if not views:
            return None
        caption = WORDS.say("of", maps=maps, smoothed=slices.SMOOTHED_MM, top=100 - PERSON_PERCENTILES[0])
        missing = material.missing_maps(expected, [name])
        caption += f" {missing}" if missing else ""
        labels = slices.BrainImage(atlas.labels, np.asarray(atlas.grid.affine))
        scale = views[0].scale(PERSON_PERCENTILES, views, views)
        return cls(backdrop, labels, atlas.regions.groups, maps, scale, caption)

    def draw(self, group: str) -> Picture | None:
        """Three slices through the largest side of the region, one row per map; None if it has no voxel."""
        cuts = self._cuts(group)
        if cuts is None:
            return None
        chosen = dict.fromkeys(self.groups[group], 1)
        width, height = 3 * (PIXELS + GAP), HEAD + PIXELS + GAP
        sheet = Image.new("RGB", (len(self.maps) * width, height), NIGHT)
        for block, title in enumerate(self.maps):
            write(sheet, (block * width + 4, 2), title)
        for column, cut in enumerate(cuts):
            plan = slices.PanelGrid.of(cut, PIXELS)
            anatomy = slices.grey_panel(plan, self.backdrop.image, self.backdrop.ceiling)
            bodies = slices.outlined_bodies(plan, self.labels, chosen)
            for block, image in enumerate(self.maps.values()):
                panel = anatomy if image is None else slices.with_map(anatomy, plan, image, self.scale)
                picture = named(slices.with_outlines(panel, bodies), {}, cut)
                sheet.paste(picture, (block * width + column * (PIXELS + GAP), HEAD))
        alt = f"{shortened(group)}, outlined on three slices of the template."
        return Picture("", inlined(png(sheet), "png"), alt, self.caption, sheet.width, dark=True, height=sheet.height)

    def _cuts(self, group: str) -> tuple[slices.Cut, ...] | None:
        """Slices through the voxel of the region's larger side that is nearest to that side's middle."""
        values, affine, found = self.labels.values, self.labels.affine, []
        for label in self.groups.get(group, ()):
            box = self.boxes[label - 1] if label <= len(self.boxes) else None
            if box is not None:
                found.append(np.argwhere(values[box] == label) + np.array([side.start for side in box]))
        if not found:
            return None
        voxels = max(found, key=len)
        nearest = voxels[np.argmin(((voxels - voxels.mean(axis=0)) ** 2).sum(axis=1))]
        planes: tuple[slices.Plane, ...] = ("sagittal", "coronal", "axial")
        return tuple(
            (plane, round(float(affine[k, 3] + affine[k, k] * nearest[k]), 1)) for k, plane in enumerate(planes)
        )


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
    blocks: Blocks  # mean map of each class, on ``space.grid``

    @classmethod
    def of(cls, material: Material) -> RegionViewers | None:
        """None without the template, the atlas, or a mean map."""
        run, space = material.run, space_of(material)
        if space is None or not run.keeps_mean_maps:
            return None
        name = run.main_maps[0]
        blocks = {
            label: block_mean(read_map(run.layout.group_map(label, name), space.source), space.side)
            for label in run.labels
            if material.group_view(label, name) is not None
        }
        return cls(material, space, name, blocks) if blocks else None

    @cached_property
    def _levels(self) -> Mapping[str, Mapping[str, list[float]]]:
        """Percentiles of each map in the whole brain, so that a weak region looks weak on its own page."""
        inside, sides = self.space.template.t1w > 0, self.space.grid.voxel_sizes_mm
        return {label: levels_of(values, inside, sides) for label, values in self.blocks.items()}

    @cached_property
    def _coarse(self) -> tuple[ViewingSpace, Blocks]:
        """The whole brain in voxels of twice the side."""
        config = self.material.run.config
        space = ViewingSpace.on(self.space.grid, 2, config.regions.atlas, config.registration.template)
        return space, {label: block_mean(values, 2) for label, values in self.blocks.items()}

    def components(self, group: str) -> Sequence[Component]:
        """Data and viewer of a bilateral group; none if it has no voxel."""
        space, blocks = self.space, self.blocks
        box = region_box(space, group)
        if box is not None and math.prod(side.stop - side.start for side in box) > MOST_VOXELS:
            space, blocks = self._coarse
            box = region_box(space, group)
        if box is None:
            return ()
        shown = part_of(space, box)
        titles, unit = self.material.run.group_sizes, self.material.run.map_unit(self.map_name)
        maps = [
            ViewerMap(
                self.material.run.layout.group_map(label, self.map_name), label, self.map_name,
                f"{label}, mean of {titles[label][0]} scans", map_title(self.map_name), f"{unit} per voxel",
                values[box], self._levels[label],
            )
            for label, values in blocks.items()
        ]  # fmt: skip
        numbers = shown.atlas.regions.groups[group]
        caption = WORDS.say("components", group=group, MARGIN_MM=MARGIN_MM)
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
