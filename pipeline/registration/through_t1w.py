"""An image of another kind (FLAIR, T2w, PET) to template space, through the T1-weighted image of its session.

A rigid map takes the image to the T1-weighted one; the transforms of that one take both to the template. The image is
interpolated once, by all maps together. The brain is that of the T1-weighted image.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.ndimage

from heatlas.atlases.spaces import Grid
from heatlas.pipeline.registration.ants_transform import (
    CENTRES,
    HEADERS,
    Transforms,
    Volume,
    read_affine,
    register_rigidly,
    resample,
)
from heatlas.pipeline.registration.images.preparation import around_brain, closest_ras, coarsen, correct_bias_field
from heatlas.pipeline.registration.images.t1w import load_t1w
from heatlas.pipeline.registration.quality.measures import mutual_information, rotation_angle
from heatlas.pipeline.run.config.images import ImageKind
from heatlas.pipeline.run.errors import BadInputError

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
    quality: Mapping[str, float]  # columns ``t1w_...`` of `pipeline.registration.quality.measures.QUALITY_COLUMNS`


def carry(
    path: Path,
    kind: ImageKind,
    head: Volume,
    brain: Volume,
    transforms: Transforms,
    grid: Grid,
    correct: bool,
    seed: int,
    prefix: Path,
) -> CarriedImage:
    """Bring one image to template space.

    `path`: the image; only read. `head`, `brain`: the T1-weighted image of the session and its brain mask, on one grid.
    `transforms`: from template to the T1-weighted image. `grid`: of the result. `correct`: whether intensities of MRI
    are corrected. `seed`: for ANTs. `prefix`: start of the names of the transform files, in a folder that exists.
    Raises BadInputError if the image cannot be read or misses a part of the brain. Raises RegistrationError if no rigid
    map is found.
    """
    image = load_t1w(path)
    whole = closest_ras(Volume(image.data, image.affine))
    rigid, alike = _rigid_map(around_brain(head, brain.data, MARGIN_MM), brain, whole, seed, prefix)
    to_image = read_affine(rigid)
    unseen = _unseen_share(brain, to_image, whole)
    if unseen > MAX_UNSEEN:
        raise BadInputError(
            f"{path}: misses {unseen:.0%} of the brain in the T1-weighted image of the session. Look at both: give an "
            "image of the whole brain, of the same person."
        )
    mask = on_voxels(brain, np.linalg.inv(to_image), whole)
    cropped = around_brain(whole, mask, MARGIN_MM)
    if correct and kind.uneven:
        within = around_brain(Volume(mask.astype(np.float32), whole.affine), mask, MARGIN_MM)
        cropped = Volume(correct_bias_field(cropped, within.data), cropped.affine)
    chain = dataclasses.replace(transforms, rigid=rigid)
    centre = _middle(brain)
    quality = {
        "t1w_mutual_information": alike,
        "t1w_shift_mm": float(np.linalg.norm((to_image @ centre - centre)[:3])),
        "t1w_rotation_degrees": rotation_angle(to_image[:3, :3]),
    }
    return CarriedImage(resample(cropped, chain, grid.shape, grid.affine), rigid, image.orientation, quality)


def worst_of(qualities: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The numbers of several carried images as one: the least alike, the largest movement.

    >>> worst_of([{"t1w_mutual_information": 1.2, "t1w_shift_mm": 1.0}, {"t1w_mutual_information": 1.1,
    ...           "t1w_shift_mm": 0.5}])
    {'t1w_mutual_information': 1.1, 't1w_shift_mm': 1.0}
    """
    return {
        name: (min if name == "t1w_mutual_information" else max)(one[name] for one in qualities)
        for name in (qualities[0] if qualities else ())
    }


def _rigid_map(head: Volume, brain: Volume, image: Volume, seed: int, prefix: Path) -> tuple[Path, float]:
    """The rigid map from a head to an image of another kind, and how alike both are by it.

    One search starts where the headers put both, which agrees for images of one scanner, the other with their centres
    of mass on each other, which is often nearer for images of two scanners.
    """

    def found(voxel_mm: float, start: str | None, name: str) -> tuple[float, Path]:
        fixed, moving = coarsen(head, voxel_mm), coarsen(image, voxel_mm)
        inside = on_voxels(brain, np.eye(4), fixed)
        near = scipy.ndimage.distance_transform_edt(~inside, sampling=fixed.voxel_sizes) <= REACH_MM
        path = register_rigidly(fixed, moving, near, start, seed, prefix.with_name(prefix.name + name))
        to_image = np.linalg.inv(moving.affine) @ read_affine(path) @ fixed.affine
        values = scipy.ndimage.affine_transform(
            moving.data, to_image[:3, :3], to_image[:3, 3], fixed.data.shape, order=1
        )
        return mutual_information(values[inside], fixed.data[inside]), path

    _, better = max(found(COARSE_MM, HEADERS, "headers_"), found(COARSE_MM, CENTRES, "centres_"))
    alike, path = found(FINE_MM, str(better), "fine_")
    return path, alike


def on_voxels(mask: Volume, to_mask: np.ndarray, image: Volume) -> np.ndarray:
    """A mask on the voxels of an image, nearest neighbour; `to_mask` (4x4) maps world of the image to its own."""
    voxels = np.linalg.inv(mask.affine) @ to_mask @ image.affine
    values = scipy.ndimage.affine_transform(
        mask.data.astype(np.float32), voxels[:3, :3], voxels[:3, 3], image.data.shape, order=0
    )
    return np.asarray(values > 0.5)


def _unseen_share(brain: Volume, to_image: np.ndarray, image: Volume) -> float:
    """Share of the voxels of a mask that lie outside an image."""
    places = np.argwhere(brain.data > 0.5)[::7]  # enough of them
    to_voxel = np.linalg.inv(image.affine) @ to_image @ brain.affine
    voxels = places @ to_voxel[:3, :3].T + to_voxel[:3, 3]
    outside = (voxels < -0.5) | (voxels > np.array(image.data.shape) - 0.5)
    return float(outside.any(axis=1).mean())


def _middle(mask: Volume) -> np.ndarray:
    """Centre of a mask in the world, homogeneous."""
    return np.asarray(mask.affine @ np.append(np.argwhere(mask.data > 0.5).mean(axis=0), 1))
