"""Loss planted in a scan: tissue of chosen regions shrinks, and what is beside it, or fluid, takes its place.

Loss follows the same model of atrophy as in the demo cohort (`pipeline.cohort.demo.people`), here on real brains: each
region has a rate of loss per unit of severity, a third of it (on the log scale) contraction, two thirds loss in place,
tissue replaced by fluid.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from heatlas.atlases.labels import Atlas, load_atlas
from heatlas.atlases.spaces import UNREADABLE, Grid, read_brain, require_same_grid, template_grid
from heatlas.atlases.templates import load_template, span_of
from heatlas.pipeline.cohort.demo.anatomy import (
    SPACING_MM,
    Array,
    coarse_share,
    compose,
    exponential,
    random_velocity,
    resizing_velocities,
    sample,
)
from heatlas.pipeline.cohort.demo.people import PlantedChange
from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.work.jobs import require_registered

JITTER_RMS_MM, JITTER_SMOOTHNESS_MM = 0.5, 16.0
"""Random deformation of copies that networks learn from, so that none can be told by having been interpolated."""
SHARE_SMOOTHING_MM = 1.0
FLUID_GROUP = "Lateral ventricle"
FLUID_PERCENTILE = 10.0
"""Percentile of the intensities in the atlas's ventricles: where these are slits, most of the voxels hold tissue."""
BRAIN_PERCENTILE = 2.0
"""Percentile of the intensities of the brain that is fluid, where the atlas has no ventricles."""


@dataclass(frozen=True, eq=False)
class PlantingSite:
    """Where changes can be planted.

    `velocities`: (changes, 3, X, Y, Z), contraction at severity 1, on a 3 mm grid of template space. `shares`:
    (changes, *grid), share of each voxel that belongs to the region of each change. `rates`: (changes,), -log of the
    tissue that is left in place at severity 1. `fluid`: voxels of the ventricles, by which the intensity of fluid is
    measured. `origin`: (3,), template coordinates (mm) of the first point of the 3 mm grid.
    """

    grid: Grid
    velocities: Array
    shares: Array
    rates: NDArray[np.float64]
    fluid: NDArray[np.bool_]
    origin: NDArray[np.float64]


@functools.lru_cache(maxsize=1)
def planting_site(
    atlas_name: str, changes: tuple[PlantedChange, ...], resolution_mm: float, template: str = DEFAULT_TEMPLATE
) -> PlantingSite:
    """Prepare changes for scans of a resolution; kept for further scans of a process."""
    span = span_of(template)
    fine, grid = template_grid(1.0, span), template_grid(resolution_mm, span)
    atlas, coarse_atlas = load_atlas(atlas_name, fine), load_atlas(atlas_name, grid)
    regions = [numbers_of(atlas, change.group) for change in changes]
    brain = coarse_share(load_template(1.0, template).brain_mask)
    coarse = np.stack([coarse_share(np.isin(atlas.labels, numbers)) for numbers in regions])
    sigma = [SHARE_SMOOTHING_MM / size for size in grid.voxel_sizes_mm]
    shares = [
        ndimage.gaussian_filter(np.isin(coarse_atlas.labels, numbers).astype(np.float32), sigma) for numbers in regions
    ]
    fluid = np.isin(coarse_atlas.labels, atlas.regions.groups.get(FLUID_GROUP, ()))
    return PlantingSite(
        grid,
        resizing_velocities(coarse, brain, [change.log_size for change in changes]),
        np.stack(shares),
        np.array([change.loss_rate for change in changes]),
        fluid,
        fine.affine[:3, 3].copy(),
    )


def numbers_of(atlas: Atlas, name: str) -> Sequence[int]:
    """Label numbers of a bilateral group, or of the one region of this name."""
    named = {region.name: (region.number,) for region in atlas.regions.regions} | atlas.regions.groups
    if name not in named:
        raise BadInputError(f"the atlas {atlas.name} has no group {name!r} to plant a change in.")
    return named[name]


def planted_copy(
    volume: Array,
    brain: NDArray[np.bool_],
    site: PlantingSite,
    severities: Sequence[float],
    rng: np.random.Generator | None = None,
) -> Array:
    """A copy of a scan with changes of given severities (0 for none), with `rng` after a small random deformation."""
    disease = np.tensordot(np.asarray(severities, np.float32), site.velocities, axes=1)
    field = exponential(-disease, SPACING_MM)
    if rng is not None:
        x, y, z = site.velocities.shape[2:]
        velocity = random_velocity(rng, (x, y, z), SPACING_MM, JITTER_SMOOTHNESS_MM, JITTER_RMS_MM)
        field = compose(field, exponential(velocity, SPACING_MM), SPACING_MM)
    affine = site.grid.affine
    centres = np.tensordot(affine[:3, :3], np.indices(site.grid.shape), axes=1) + affine[:3, 3].reshape(3, 1, 1, 1)
    reference = (centres - site.origin.reshape(3, 1, 1, 1)).astype(np.float32) / np.float32(SPACING_MM)
    moved = centres + np.stack([sample(component, reference) for component in field])
    inverse = np.linalg.inv(affine)
    points = (np.tensordot(inverse[:3, :3], moved, axes=1) + inverse[:3, 3].reshape(3, 1, 1, 1)).astype(np.float32)
    copied = sample(np.ascontiguousarray(volume, dtype=np.float32), points)
    lost = np.tensordot((site.rates * np.asarray(severities)).astype(np.float32), site.shares, axes=1)
    remaining = np.exp(-sample(lost, points))
    level = fluid_level(volume, brain, site.fluid)
    changed: Array = copied - (1 - remaining) * np.maximum(copied - level, 0)
    return with_range_of(volume, np.where(brain, changed, volume).astype(np.float32), brain)


def with_range_of(volume: Array, changed: Array, brain: NDArray[np.bool_]) -> Array:
    """A changed volume with the lowest and highest intensity of the brain as they were, at their voxels.

    Networks see intensities between these two. Interpolation smooths the brightest voxel of a scan, and by that alone
    all others would change by a tenth, in one copy more than in the other.
    """
    places = np.flatnonzero(brain)
    inside = volume.reshape(-1)[places]
    kept = np.clip(changed, inside.min(), inside.max()).reshape(-1)
    kept[places[[inside.argmin(), inside.argmax()]]] = inside.min(), inside.max()
    return np.asarray(np.where(brain, kept.reshape(volume.shape), changed))


def fluid_level(volume: Array, brain: NDArray[np.bool_], fluid: NDArray[np.bool_]) -> np.float32:
    """Intensity of fluid: a low percentile of the ventricles, or of the brain without any."""
    inside = volume[brain & fluid]
    return np.float32(
        np.percentile(inside, FLUID_PERCENTILE) if inside.size else np.percentile(volume[brain], BRAIN_PERCENTILE)
    )


def read_registered(source: ScanFiles, grid: Grid) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Intensities and brain mask of a registered scan, which lies on a grid."""
    require_registered(source)
    brain = read_brain(source.brain_mask, grid)
    try:
        image: Any = nib.nifti1.Nifti1Image.from_filename(source.image)
        volume = np.asarray(image.dataobj, dtype=np.float32)
    except UNREADABLE as error:
        raise BadInputError(f"{source.image}: cannot be read ({error}); run the registration again.") from error
    require_same_grid(Grid.of(image), grid, source.image.name)
    return volume, brain
