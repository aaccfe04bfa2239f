"""Preprocessed images: brains already extracted, and brains already in template space.

Where an image enters is decided when the input is read (`pipeline.cohort.bids.derivatives`) and recorded in
``scans.tsv``. Here it is verified: a brain must have a plausible size, an image in template space must overlap it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from heatlas.atlases.spaces import Grid
from heatlas.atlases.templates import Template
from heatlas.pipeline.cohort.bids.derivatives import template_space_problem
from heatlas.pipeline.registration.ants_transform import Volume, on_grid
from heatlas.pipeline.registration.images import brain_extraction
from heatlas.pipeline.registration.images.t1w import T1wImage
from heatlas.pipeline.registration.quality.measures import correlation, dice, outside_share
from heatlas.pipeline.run.config.images import T1W, ImageKind
from heatlas.pipeline.run.config.settings import RegistrationConfig
from heatlas.pipeline.run.errors import BadInputError

MIN_DICE = 0.8
"""Even brains registered by an affine map alone overlap more with the template."""
MAX_MISSING = 0.15
"""Share of the brain of the first image that a further one may miss: brain extractions differ by less."""


@dataclass(frozen=True)
class PlacedScan:
    """A scan that came in template space."""

    t1w: np.ndarray  # (X, Y, Z) on the template grid, float32, intensities of the image; 0 outside `brain_mask`
    brain_mask: np.ndarray  # (X, Y, Z), bool
    grid: Grid  # the template grid
    brain: brain_extraction.BrainMask  # on the voxels of the image
    source_grid: Grid  # grid of the image as given
    # None for another kind of image than that of the template
    correlation: float | None  # as in ``registration.tsv``
    dice: float
    outside_share: float

    @property
    def resampled(self) -> bool:
        return not self.source_grid.same_as(self.grid)


def stated_brain(image: T1wImage) -> brain_extraction.BrainMask:
    """Brain mask of an image declared brain-extracted; refused if its non-zero voxels do not have a brain's volume."""
    mask = brain_extraction.nonzero_brain(image.data)
    volume = brain_extraction.litres(mask, image.affine)
    if not brain_extraction.STRIPPED_LITRES[0] <= volume <= brain_extraction.STRIPPED_LITRES[1]:
        raise BadInputError(
            f"{image.path}: is declared brain-extracted (desc-brain, SkullStripped or --start-at brain), but "
            f"{volume:.2f} litres of it are not 0. Set what is not brain to 0, or start at scan (--start-at scan)."
        )
    return brain_extraction.BrainMask(mask, "stripped", volume)


def placed_brain(
    image: T1wImage, kind: ImageKind, template: Template, config: RegistrationConfig, given: Path | None = None
) -> brain_extraction.BrainMask:
    """Brain mask of an image in template space.

    Networks of brain extraction know T1-weighted heads. Of other kinds, an image without a mask beside it that is not
    stripped, and any map of tissue, has the template's mask.
    """
    method, model = config.brain_extraction, Path(config.synthstrip_model) if config.synthstrip_model else None
    if kind == T1W or method == "given-mask" or (method == "none" and not kind.normalised):
        return brain_extraction.find_brain(image, method, given, model)
    if given is not None and given.is_file():
        return brain_extraction.find_brain(image, "given-mask", given)
    if not kind.normalised and brain_extraction.is_stripped(image):
        return brain_extraction.find_brain(image, "none")
    inside = on_grid(Volume(template.brain_mask.astype(np.float32), template.grid.affine), image.grid)
    return brain_extraction.BrainMask(inside >= 0.5, "template", brain_extraction.litres(inside >= 0.5, image.affine))


def place_in_template(
    image: T1wImage, brain: brain_extraction.BrainMask, template: Template, cut: bool = False, kind: ImageKind = T1W
) -> PlacedScan:
    """Resample an image in template space on the template grid, by its affine alone.

    An image on the template grid is not changed. On another grid, it is smoothed to the template's voxel size if its
    voxels are finer, and interpolated linearly. With `cut`, only what lies under the template's mask is kept. An image
    is refused if its brain lies elsewhere or is not covered.
    """
    source = _grid_in_template_space(image, template)
    t1w, mask = _on_template(image, source, template), _on_template_mask(brain.mask, source, template)
    overlap = dice(mask, template.brain_mask)
    if overlap < MIN_DICE:
        raise BadInputError(
            f"{image.path}: is declared to be in the space of {template.name}, but its brain overlaps the template's "
            f"by a Dice coefficient of only {overlap:.2f}. Give the scan itself, to be registered here."
        )
    inside, outside = template.brain_mask, outside_share(mask, template.brain_mask)
    mask = inside.copy() if cut else mask
    t1w[~mask] = 0
    alike = correlation(t1w[inside], template.t1w[inside]) if kind == T1W else None
    return PlacedScan(t1w, mask, template.grid, brain, source, alike, overlap, outside)


def place_beside(image: T1wImage, first: PlacedScan, template: Template, kind: ImageKind) -> PlacedScan:
    """Resample an image of a further kind on the template grid, within the brain of the first image of its session.

    Of a stripped image, the brain is where it is not 0: elsewhere it says nothing, and 0 would be the darkest tissue.
    """
    source = _grid_in_template_space(image, template)
    values, mask = _on_template(image, source, template), first.brain_mask
    if not kind.normalised and brain_extraction.is_stripped(image):
        mask = mask & _on_template_mask(brain_extraction.nonzero_brain(image.data), source, template)
    missing = 1 - mask.sum() / first.brain_mask.sum()
    if missing > MAX_MISSING:
        raise BadInputError(
            f"{image.path}: is 0 in {missing:.0%} of the brain of the first image of its session. Look at both: give "
            "images of one space, stripped alike."
        )
    return dataclasses.replace(first, t1w=np.where(mask, values, np.float32(0)), brain_mask=mask, source_grid=source)


def _grid_in_template_space(image: T1wImage, template: Template) -> Grid:
    """The grid of an image; BadInputError if it cannot lie in the space of the template."""
    problem = template_space_problem(image.grid, template.setting)
    if problem is not None:
        raise BadInputError(f"{image.path}: {problem}")
    return image.grid


def _on_template(image: T1wImage, source: Grid, template: Template) -> np.ndarray:
    """The values of an image on the template grid; those of the image itself where it lies there."""
    if source.same_as(template.grid):
        return image.data.astype(np.float32, copy=True)
    return on_grid(Volume(image.data, image.affine), template.grid)


def _on_template_mask(mask: np.ndarray, source: Grid, template: Template) -> np.ndarray:
    if source.same_as(template.grid):
        return mask.copy()
    return np.asarray(on_grid(Volume(mask.astype(np.float32), source.affine), template.grid) >= 0.5)
