"""A region outlined on the template, over the mean maps of both classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.ndimage
from PIL import Image

from atlases.labels import load_atlas
from atlases.spaces import template_grid
from pipeline.run.errors import HeatlasError
from pipeline.run.layout.map_names import map_title
from reports.figures import slices
from reports.figures.gallery import Picture, inlined
from reports.figures.pictures import NIGHT, png, write
from reports.page.material import Material
from reports.people.portrait import GAP, HEAD, PIXELS, named
from reports.words.numbers import shortened


@dataclass(frozen=True)
class MeanMap:
    """One mean map and the scale on which its colours stand; without an image, the place of one that is lost."""

    title: str
    image: slices.BrainImage | None
    scale: slices.ColourScale


@dataclass(frozen=True)
class RegionPictures:
    """Images read once for the pictures of all regions."""

    backdrop: slices.Backdrop
    labels: slices.BrainImage
    groups: Mapping[str, tuple[int, ...]]  # labels of each bilateral group
    maps: Sequence[MeanMap]
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
            atlas = load_atlas(run.config.regions.atlas, template_grid(run.config.registration.resolution_mm))
        except HeatlasError:
            return None
        name = run.main_maps[0]
        views = {label: material.group_view(label, name) for label in run.labels if material.expects_map(label)}
        there = [view for view in views.values() if view is not None]
        if not there:
            return None
        scale, maps = there[0].scale(slices.GROUP_PERCENTILES), []
        for label, view in views.items():
            image = None if view is None else slices.BrainImage.read(run.layout.group_map(label, name))
            title = f"{map_title(name)}, {'mean' if image is not None else 'no map'} of {label}"
            maps.append(MeanMap(title, image, scale))
        caption = (
            f"Outlined in white, on the template; slices through its middle. Colours as in the report: "
            f"{'; '.join(shown.title for shown in maps)}. Left is left."
        )
        missing = material.missing_maps(views, [name])
        caption += f" {missing}" if missing else ""
        return cls(
            backdrop,
            slices.BrainImage(atlas.labels, np.asarray(atlas.grid.affine)),
            atlas.regions.groups,
            maps,
            caption,
        )

    def draw(self, group: str) -> Picture | None:
        """Three slices through the largest side of the region, one row per map; None if it has no voxel."""
        cuts = self._cuts(group)
        if cuts is None:
            return None
        chosen = dict.fromkeys(self.groups[group], 1)
        width, height = 3 * (PIXELS + GAP), HEAD + PIXELS + GAP
        sheet = Image.new("RGB", (len(self.maps) * width, height), NIGHT)
        for block, shown in enumerate(self.maps):
            write(sheet, (block * width + 4, 2), shown.title)
        for column, cut in enumerate(cuts):
            plan = slices.Plan.of(cut, PIXELS)
            anatomy = slices.grey_panel(plan, self.backdrop.image, self.backdrop.ceiling)
            bodies = slices.outlined_bodies(plan, self.labels, chosen)
            for block, shown in enumerate(self.maps):
                panel = anatomy
                if shown.image is not None:
                    panel = slices.with_map(anatomy, plan, shown.image, shown.scale)
                picture = named(slices.with_outlines(panel, bodies), {}, cut)
                sheet.paste(picture, (block * width + column * (PIXELS + GAP), HEAD))
        alt = f"{shortened(group)}, outlined on three slices of the template."
        return Picture("", inlined(png(sheet), "png"), alt, self.caption, sheet.width, dark=True)

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
