"""One scan, from its file to arrays in template space.

Registration runs on the box of the template that contains the brain (`atlases.brain_box`); outside it the displacement
and the registered brain are 0. Images are interpolated once, from the data as acquired; only the copy used to estimate
the transform is coarser (`pipeline.registration.images.preparation`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from heatlas.atlases.brain_box import brain_box
from heatlas.atlases.spaces import Grid
from heatlas.atlases.templates import Template
from heatlas.pipeline.registration.ants_transform import (
    Transforms,
    Volume,
    read_affine,
    read_displacement,
    register,
    resample,
)
from heatlas.pipeline.registration.entry_points import stated_brain
from heatlas.pipeline.registration.images.brain_extraction import BrainMask, find_brain
from heatlas.pipeline.registration.images.preparation import around_brain, closest_ras, coarsen, correct_bias_field
from heatlas.pipeline.registration.images.t1w import load_t1w
from heatlas.pipeline.registration.quality.measures import assess
from heatlas.pipeline.registration.through_t1w import CarriedImage, carry, worst_of
from heatlas.pipeline.registration.volumes.jacobian import jacobian_determinant, log_jacobian
from heatlas.pipeline.run.config.images import ImageKind
from heatlas.pipeline.run.config.settings import RegistrationConfig

BRAIN_MARGIN_MM = 10.0
DRIVING_VOXEL = 0.75
"""Voxel size of the image from which the transform is estimated, relative to the template's. Three OASIS brains at 2
mm, mean Dice of the warped manual labels with the atlas, and time: 1 mm voxels 0.603, 15.6 s; 1.5 mm 0.604, 13.5 s; 2
mm 0.594, 12.4 s."""


@dataclass(frozen=True)
class RegisteredScan:
    """A scan in template space."""

    t1w: np.ndarray  # (X, Y, Z) on the full template grid, float32, intensities of the scan; 0 outside `brain_mask`
    brain_mask: np.ndarray  # (X, Y, Z), bool, the mask of the scan (the template's for ``template-mask``)
    # (X, Y, Z), float32; see `pipeline.registration.volumes.jacobian.log_jacobian`. Outside the box, where the
    # displacement is 0, it is the logarithm of the affine part alone
    log_jacobian: np.ndarray
    grid: Grid  # the template grid
    transforms: Transforms
    quality: dict[str, float]  # of `pipeline.registration.quality.measures.QUALITY_COLUMNS`
    brain: BrainMask  # the brain in scan space
    orientation: str  # of the T1-weighted image; see `pipeline.registration.images.t1w.T1wImage`
    carried: tuple[CarriedImage, ...] = ()  # images of other kinds, registered through the scan; 0 outside `brain_mask`


def register_image(
    path: Path,
    template: Template,
    config: RegistrationConfig,
    seed: int,
    prefix: Path,
    entry: str = "scan",
    mask_path: Path | None = None,
    others: Sequence[tuple[Path, ImageKind]] = (),
) -> RegisteredScan:
    """Bring one scan to template space, and with it images of other kinds of the same session.

    `path`: t1-weighted NIfTI image; only read. `template`: on the grid of the result. `prefix`: start of the names of
    the transform files, in a folder that exists. `entry`: ``brain`` for an image that is declared brain-extracted
    (`pipeline.cohort.records.Scan.entry`). `mask_path`: path of a mask of this scan, existing or not
    (`pipeline.registration.images.given_masks`). `others`: images that are registered through the scan
    (`pipeline.registration.through_t1w`); only read. Raises BadInputError if the image or its mask cannot be used.
    Raises RegistrationError if no transform is found.
    """
    image = load_t1w(path)
    model = Path(config.synthstrip_model) if config.synthstrip_model else None
    brain = stated_brain(image) if entry == "brain" else find_brain(image, config.brain_extraction, mask_path, model)
    whole_mask = closest_ras(Volume(brain.mask, image.affine))
    mask = around_brain(whole_mask, whole_mask.data, BRAIN_MARGIN_MM)
    scan = around_brain(closest_ras(Volume(image.data, image.affine)), whole_mask.data, BRAIN_MARGIN_MM)
    if config.bias_correction:
        scan = Volume(correct_bias_field(scan, mask.data), scan.affine)
    box = brain_box(template)
    fixed = Volume(box.crop(template.t1w), box.grid(template.grid).affine)
    masked = Volume(np.where(mask.data, scan.data, np.float32(0)), scan.affine)
    moving = coarsen(masked, DRIVING_VOXEL * float(fixed.voxel_sizes.min()))
    transforms = register(fixed, moving, config.transform, seed, prefix)
    values = resample(scan, transforms, fixed.data.shape, fixed.affine)
    scan_mask = resample(mask, transforms, fixed.data.shape, fixed.affine) >= 0.5
    keep = box.crop(template.brain_mask) if config.brain_extraction == "template-mask" else scan_mask
    values[~keep] = 0
    linear = read_affine(transforms.affine)[:3, :3]
    displacement = read_displacement(transforms.warp)
    determinant = jacobian_determinant(displacement, fixed.affine)
    quality = assess(
        values, scan_mask, fixed.data, box.crop(template.brain_mask), determinant, displacement, linear,
        float(fixed.voxel_sizes[0]),
    )  # fmt: skip
    carried = []
    for other, kind in others:
        head = closest_ras(Volume(image.data, image.affine))
        rigid = prefix.with_name(f"{prefix.name}rigid_{kind.suffix}_")
        found = carry(
            other, kind, head, whole_mask, transforms, box.grid(template.grid), config.bias_correction, seed, rigid
        )
        inside = box.paste(np.where(keep, found.values, np.float32(0)), template.grid.shape)
        carried.append(dataclasses.replace(found, values=inside))
    quality |= worst_of([one.quality for one in carried])
    volume_change = log_jacobian(np.ones(template.grid.shape, dtype=np.float32), linear)
    volume_change[box.slices] = log_jacobian(determinant, linear)
    return RegisteredScan(
        t1w=box.paste(values, template.grid.shape),
        brain_mask=box.paste(keep, template.grid.shape),
        log_jacobian=volume_change,
        grid=template.grid,
        transforms=transforms,
        quality=quality,
        brain=brain,
        orientation=image.orientation,
        carried=tuple(carried),
    )
