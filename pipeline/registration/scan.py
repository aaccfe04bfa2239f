"""One scan, from its file to arrays in template space.

Registration runs on the box of the template that contains the brain (`atlases.templates`); outside it the displacement
and the registered brain are 0. Images are interpolated once, from the data as acquired; only the copy used to estimate
the transform is coarser (`pipeline.registration.ants_transform`).

An image of another kind (FLAIR, T2w, PET) comes through the T1-weighted image of its session: a rigid map takes it to
that one, whose transforms take both to the template, and whose brain is that of both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.ndimage

from heatlas.atlases.spaces import Grid
from heatlas.atlases.templates import Template, brain_box
from heatlas.pipeline.registration import ants_transform as transform
from heatlas.pipeline.registration import torch_affine
from heatlas.pipeline.registration.entry_points import stated_brain
from heatlas.pipeline.registration.images.brain_extraction import BrainMask, find_brain
from heatlas.pipeline.registration.images.t1w import load_t1w
from heatlas.pipeline.registration.quality.measures import assess, mutual_information, rotation_angle
from heatlas.pipeline.run.config.images import ImageKind
from heatlas.pipeline.run.config.settings import RegistrationConfig
from heatlas.pipeline.run.errors import BadInputError

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
    # (X, Y, Z), float32; see `log_jacobian`. Outside the box, where the
    # displacement is 0, it is the logarithm of the affine part alone
    log_jacobian: np.ndarray
    grid: Grid  # the template grid
    transforms: transform.Transforms
    quality: dict[str, float]  # of ``registration.tsv``
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

    `prefix`: start of the names of the transform files, in a folder that exists. `entry`: ``brain`` for an image that
    is declared brain-extracted (`pipeline.cohort.records.Scan.entry`). `mask_path`: of this scan, existing or not.
    `others`: images that are registered through the scan (`carry`).
    """
    image = load_t1w(path)
    model = Path(config.synthstrip_model) if config.synthstrip_model else None
    brain = stated_brain(image) if entry == "brain" else find_brain(image, config.brain_extraction, mask_path, model)
    whole_mask = transform.closest_ras(transform.Volume(brain.mask, image.affine))
    mask = transform.around_brain(whole_mask, whole_mask.data, BRAIN_MARGIN_MM)
    scan = transform.around_brain(
        transform.closest_ras(transform.Volume(image.data, image.affine)), whole_mask.data, BRAIN_MARGIN_MM
    )
    if config.bias_correction:
        scan = transform.Volume(transform.correct_bias_field(scan, mask.data), scan.affine)
    box = brain_box(template)
    fixed = transform.Volume(box.crop(template.t1w), box.grid(template.grid).affine)
    masked = transform.Volume(np.where(mask.data, scan.data, np.float32(0)), scan.affine)
    moving = transform.coarsen(masked, DRIVING_VOXEL * float(fixed.voxel_sizes.min()))
    if transform.engine_of(config.transform) == transform.AFFINE_TORCH:
        transforms = torch_affine.register(fixed, moving, prefix, path)
    else:
        transforms = transform.register(fixed, moving, config.transform, seed, prefix)
    values = transform.resample(scan, transforms, fixed.data.shape, fixed.affine)
    scan_mask = transform.resample(mask, transforms, fixed.data.shape, fixed.affine) >= 0.5
    keep = box.crop(template.brain_mask) if config.brain_extraction == "template-mask" else scan_mask
    values[~keep] = 0
    linear = transform.read_affine(transforms.affine)[:3, :3]
    displacement = transform.read_displacement(transforms.warp)
    determinant = jacobian_determinant(displacement, fixed.affine)
    inside, voxel_mm = box.crop(template.brain_mask), float(fixed.voxel_sizes[0])
    quality = assess(values, scan_mask, fixed.data, inside, determinant, displacement, linear, voxel_mm)
    carried = []
    for other, kind in others:
        head = transform.closest_ras(transform.Volume(image.data, image.affine))
        rigid = prefix.with_name(f"{prefix.name}rigid_{kind.suffix}_")
        image_carried = carry(
            other, kind, head, whole_mask, transforms, box.grid(template.grid), config.bias_correction, seed, rigid
        )
        within = box.paste(np.where(keep, image_carried.values, np.float32(0)), template.grid.shape)
        carried.append(dataclasses.replace(image_carried, values=within))
    quality |= worst_of([carried_image.quality for carried_image in carried])
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


COARSE_MM, FINE_MM = 4.0, 2.0
"""Voxels from which the rigid map is estimated, first from both starts, then from the better one."""
REACH_MM = 8.0
"""How far around the brain the images are compared."""
MARGIN_MM = 20.0
"""How much of an image is kept around the brain."""
MAX_UNSEEN = 0.05
"""Share of the brain that an image may miss."""


@dataclass(frozen=True)
class CarriedImage:
    """An image of another kind on a grid of template space."""

    values: np.ndarray  # (X, Y, Z), float32, intensities of the image, 0 outside it
    rigid: Path  # from the T1-weighted image to this one, as ANTs writes it
    orientation: str  # see `pipeline.registration.images.t1w.T1wImage`
    quality: Mapping[str, float]  # columns ``t1w_...`` of ``registration.tsv``


def carry(
    path: Path,
    kind: ImageKind,
    head: transform.Volume,
    brain: transform.Volume,
    transforms: transform.Transforms,
    grid: Grid,
    correct: bool,
    seed: int,
    prefix: Path,
) -> CarriedImage:
    """Bring one image to template space.

    `head`, `brain`: the T1-weighted image of the session and its brain mask, on one grid. `transforms`: from template
    to the T1-weighted image. `correct`: whether intensities of MRI are corrected. `prefix`: start of the names of the
    transform files, in a folder that exists.
    """
    image = load_t1w(path)
    whole = transform.closest_ras(transform.Volume(image.data, image.affine))
    rigid, alike = _rigid_map(transform.around_brain(head, brain.data, MARGIN_MM), brain, whole, seed, prefix)
    to_image = transform.read_affine(rigid)
    unseen = _unseen_share(brain, to_image, whole)
    if unseen > MAX_UNSEEN:
        raise BadInputError(
            f"{path}: misses {unseen:.0%} of the brain in the T1-weighted image of the session. Look at both: give an "
            "image of the whole brain, of the same person."
        )
    mask = on_voxels(brain, np.linalg.inv(to_image), whole)
    cropped = transform.around_brain(whole, mask, MARGIN_MM)
    if correct and kind.uneven:
        within = transform.around_brain(transform.Volume(mask.astype(np.float32), whole.affine), mask, MARGIN_MM)
        cropped = transform.Volume(transform.correct_bias_field(cropped, within.data), cropped.affine)
    chain = dataclasses.replace(transforms, rigid=rigid)
    centre = brain.affine @ np.append(np.argwhere(brain.data > 0.5).mean(axis=0), 1)  # of the brain, homogeneous
    quality = {
        "t1w_mutual_information": alike,
        "t1w_shift_mm": float(np.linalg.norm((to_image @ centre - centre)[:3])),
        "t1w_rotation_degrees": rotation_angle(to_image[:3, :3]),
    }
    return CarriedImage(transform.resample(cropped, chain, grid.shape, grid.affine), rigid, image.orientation, quality)


def worst_of(qualities: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The numbers of several carried images as one: the least alike, the largest movement.

    >>> worst_of([{"t1w_mutual_information": 1.2, "t1w_shift_mm": 1.0}, {"t1w_mutual_information": 1.1,
    ...           "t1w_shift_mm": 0.5}])
    {'t1w_mutual_information': 1.1, 't1w_shift_mm': 1.0}
    """
    return {
        name: (min if name == "t1w_mutual_information" else max)(quality[name] for quality in qualities)
        for name in (qualities[0] if qualities else ())
    }


def _rigid_map(
    head: transform.Volume, brain: transform.Volume, image: transform.Volume, seed: int, prefix: Path
) -> tuple[Path, float]:
    """The rigid map from a head to an image of another kind, and how alike both are by it.

    One search starts where the headers put both, which agrees for images of one scanner, the other with their centres
    of mass on each other, which is often nearer for images of two scanners.
    """

    def search(voxel_mm: float, start: str | None, name: str) -> tuple[float, Path]:
        fixed, moving = transform.coarsen(head, voxel_mm), transform.coarsen(image, voxel_mm)
        inside = on_voxels(brain, np.eye(4), fixed)
        near = scipy.ndimage.distance_transform_edt(~inside, sampling=fixed.voxel_sizes) <= REACH_MM
        path = transform.register_rigidly(fixed, moving, near, start, seed, prefix.with_name(prefix.name + name))
        to_image = np.linalg.inv(moving.affine) @ transform.read_affine(path) @ fixed.affine
        values = scipy.ndimage.affine_transform(
            moving.data, to_image[:3, :3], to_image[:3, 3], fixed.data.shape, order=1
        )
        return mutual_information(values[inside], fixed.data[inside]), path

    _, better = max(search(COARSE_MM, transform.HEADERS, "headers_"), search(COARSE_MM, transform.CENTRES, "centres_"))
    alike, path = search(FINE_MM, str(better), "fine_")
    return path, alike


def on_voxels(mask: transform.Volume, to_mask: np.ndarray, image: transform.Volume) -> np.ndarray:
    """A mask on the voxels of an image, nearest neighbour; `to_mask` (4x4) maps its world to that of the mask."""
    voxels = np.linalg.inv(mask.affine) @ to_mask @ image.affine
    values = scipy.ndimage.affine_transform(
        mask.data.astype(np.float32), voxels[:3, :3], voxels[:3, 3], image.data.shape, order=0
    )
    return np.asarray(values > 0.5)


def _unseen_share(brain: transform.Volume, to_image: np.ndarray, image: transform.Volume) -> float:
    """Share of the voxels of a mask that lie outside an image."""
    places = np.argwhere(brain.data > 0.5)[::7]  # enough of them
    to_voxel = np.linalg.inv(image.affine) @ to_image @ brain.affine
    voxels = places @ to_voxel[:3, :3].T + to_voxel[:3, 3]
    outside = (voxels < -0.5) | (voxels > np.array(image.data.shape) - 0.5)
    return float(outside.any(axis=1).mean())


SMALLEST_DETERMINANT = 1e-3
"""Lower bound before the logarithm; the share of voxels below 0 is a quality number."""


def jacobian_determinant(displacement: np.ndarray, affine: np.ndarray) -> np.ndarray:
    r"""Jacobian determinant of the map :math:`x \mapsto x + u(x)`.

    With voxel indices v, :math:`x = A v + o` and :math:`G = \partial u / \partial v`,

    .. math:: \det(I + \partial u / \partial x) = \det(I + G A^{-1}) = \det(A + G) / \det A .

    G is taken by central differences (one-sided at the faces).

    `displacement`: (X, Y, Z, 3), mm, world RAS+ components. `affine`: 4x4, voxel indices to world RAS+ in mm. Returns
    (X, Y, Z), float32; 1 = no change, > 1 = the map expands, <= 0 = it folds.
    """
    matrix = np.asarray(affine, dtype=np.float64)[:3, :3]
    # entry[i][k] = A_ik + du_i/dv_k, the matrix whose determinant is wanted, at every voxel
    entry = [[np.gradient(displacement[..., i], axis=k) + np.float32(matrix[i, k]) for k in range(3)] for i in range(3)]
    determinant = (
        entry[0][0] * (entry[1][1] * entry[2][2] - entry[1][2] * entry[2][1])
        - entry[0][1] * (entry[1][0] * entry[2][2] - entry[1][2] * entry[2][0])
        + entry[0][2] * (entry[1][0] * entry[2][1] - entry[1][1] * entry[2][0])
    )
    return np.asarray(determinant / np.linalg.det(matrix), dtype=np.float32)


def log_jacobian(determinant: np.ndarray, linear: np.ndarray) -> np.ndarray:
    r"""Natural logarithm of the volume change of the whole map template -> scan, affine part included.

    The map is :math:`x \mapsto L (x + u(x)) + t`, so its determinant is :math:`\det L \cdot \det(I + \nabla u)`.
    Values > 0 mean that the scan is larger than the template there, and the sum of the exponential over a region
    times the voxel volume is the region's volume in the scan. Subtract ``log(det L)``, three times the logarithm of the
    quality number ``scale``, for the change beyond head size.

    `determinant`: from `jacobian_determinant`; values below `SMALLEST_DETERMINANT` are raised to it. `linear`: 3x3
    matrix L of the affine map template -> scan. Returns float32, shape of `determinant`.
    """
    warp = np.log(np.maximum(determinant, np.float32(SMALLEST_DETERMINANT)))
    return np.asarray(warp + np.float32(np.log(abs(np.linalg.det(linear)))), dtype=np.float32)
