"""From a person's anatomy at a visit to an image as a scanner would produce it, and its true volumes.

Head position, voxel grid, contrast, bias field, blur and noise come from a separate random stream that is independent
of the diagnosis, so that only anatomy distinguishes the groups. A site's receive coil is the same for both groups.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.spatial.transform import Rotation

from heatlas.pipeline.cohort.demo.anatomy import SPACING_MM, Array, PersonShape, ReferenceAnatomy, pull_back, sample
from heatlas.pipeline.cohort.demo.people import CHANGES

ORIENTATIONS = ("LAS", "RAS", "PSR", "LIA")
CENTRE_MM = np.array([0.0, -18.0, 8.0])
"""Point of template space about which heads are rotated and scaled."""

MARGIN_MM = 12.0
"""Field of view beyond the brain."""

RESIDUAL_BIAS = 0.015
"""Standard deviation of a first-order coefficient of the log bias field: what N3 leaves (an assumption)."""

CONTRAST_SPREAD = 0.04
"""Standard deviation of log gamma between scans of one harmonised protocol (an assumption)."""


@dataclass(frozen=True, eq=False)
class Acquisition:
    """One scanning session."""

    # (4, 4): head position: template mm of the person's brain at reference size, to scanner mm
    template_to_world: NDArray[np.float64]
    voxel_to_world: NDArray[np.float64]  # (4, 4): affine of the image
    shape: tuple[int, int, int]
    gamma: float  # contrast: intensity = gain * reference**gamma
    gain: float
    bias: NDArray[np.float64]  # (4, 4, 4): legendre coefficients of the log bias field, up to third order
    coil: float  # growth of log signal per mm towards the back of the head, from the site's receive coil
    blur_voxels: float
    noise: float  # standard deviation of both channels, relative to white matter
    slope: float  # scaling of the stored integers
    qform_only: bool  # no sform in the header, as with some converters
    noise_seed: int


@dataclass(frozen=True, eq=False)
class Scanned:
    """An image and its true volumes."""

    image: Any  # int16 with scaling, background 0
    # Volume of each group in the order of `CHANGES`, tissue left in grey matter, fluid in ventricles; then of the group
    # that differs between the sexes
    volumes_mm3: tuple[float, ...]
    intracranial_mm3: float  # volume inside the brain outline, which the disease does not change


def draw_acquisition(
    rng: np.random.Generator, reference: ReferenceAnatomy, person: PersonShape, resolution_mm: float, coil: float = 0.0
) -> Acquisition:
    """Draw position, grid, contrast and noise of one scan."""
    angles = np.clip(rng.normal(0, 3.5, 3), -8, 8)
    pose = np.eye(4)
    pose[:3, :3] = Rotation.from_euler("xyz", angles, degrees=True).as_matrix() @ np.diag(person.scale)
    pose[:3, 3] = CENTRE_MM + np.clip(rng.normal(0, 8, 3), -20, 20) - pose[:3, :3] @ CENTRE_MM
    zooms = resolution_mm * rng.uniform(0.95, 1.1, 3)
    voxel_to_world, shape = _voxel_grid(reference, pose, zooms, str(rng.choice(ORIENTATIONS)))
    orders = np.indices((4, 4, 4)).sum(axis=0)
    bias = rng.normal(0, RESIDUAL_BIAS, (4, 4, 4)) * ((orders > 0) & (orders <= 3)) / np.maximum(orders, 1)
    return Acquisition(
        template_to_world=pose,
        voxel_to_world=voxel_to_world,
        shape=shape,
        gamma=float(np.exp(rng.normal(0, CONTRAST_SPREAD))),
        gain=float(rng.uniform(300, 900)),
        bias=bias,
        coil=coil,
        blur_voxels=float(rng.uniform(0.2, 0.45)),
        noise=float(rng.uniform(0.02, 0.04)),
        slope=float(np.round(rng.uniform(0.05, 1.0), 3)),
        qform_only=bool(rng.random() < 0.25),
        noise_seed=int(rng.integers(2**31)),
    )


def _voxel_grid(
    reference: ReferenceAnatomy, pose: NDArray[np.float64], zooms: NDArray[np.float64], orientation: str
) -> tuple[NDArray[np.float64], tuple[int, int, int]]:
    """Affine and shape of a grid along the scanner's axes that holds the head, stored in a given orientation."""
    inside = [np.flatnonzero(reference.brain.any(axis=tuple(a for a in range(3) if a != axis))) for axis in range(3)]
    corners = np.stack(np.meshgrid(*[w[[0, -1]] for w in inside], indexing="ij")).reshape(3, -1).T + reference.origin
    world = corners @ pose[:3, :3].T + pose[:3, 3]
    first, last = world.min(axis=0) - MARGIN_MM, world.max(axis=0) + MARGIN_MM
    shape = np.ceil((last - first) / zooms).astype(int) + 1
    ras = np.diag([*zooms, 1.0])
    ras[:3, 3] = first
    orientations: Any = nib.orientations
    stored = orientations.axcodes2ornt(tuple(orientation))
    change = orientations.ornt_transform(orientations.axcodes2ornt(("R", "A", "S")), stored)
    affine = ras @ orientations.inv_ornt_aff(change, tuple(shape))
    order = np.argsort(change[:, 0].astype(int))
    permuted = shape[order]
    return affine, (int(permuted[0]), int(permuted[1]), int(permuted[2]))


def scan(
    reference: ReferenceAnatomy, person: PersonShape, severities: tuple[float, ...], acquisition: Acquisition
) -> Scanned:
    """Simulate a scan.

    Every voxel centre is followed back through head position, the person's warp and the disease to the point of the
    reference brain that fills it. True volumes are sums of region shares over voxel centres, so they are exact for the
    deformation of the image.
    """
    points = _reference_points(reference, person, severities, acquisition)
    brain = sample(reference.brain.view(np.uint8), points)
    intensity = sample(reference.t1w, points)
    inside, shares = reference.region_shares(points)
    lost = [change.loss_rate * s for change, s in zip(CHANGES, severities, strict=True)]
    rates = np.array([*lost, 0.0], np.float32)  # the sex difference removes no tissue
    remaining = np.exp(-np.tensordot(rates, shares, axes=1))
    regional = intensity[inside]
    intensity[inside] = regional - (1 - remaining) * np.maximum(regional - reference.fluid, 0)

    voxel_mm3 = abs(float(np.linalg.det(acquisition.voxel_to_world[:3, :3])))
    volumes = shares.sum(axis=1, dtype=np.float64) * np.exp(-rates.astype(np.float64)) * voxel_mm3
    return Scanned(
        image=_image(acquisition, intensity, brain > 0.5),
        volumes_mm3=tuple(volumes.tolist()),
        intracranial_mm3=float(brain.sum(dtype=np.float64)) * voxel_mm3,
    )


def _reference_points(
    reference: ReferenceAnatomy, person: PersonShape, severities: tuple[float, ...], acquisition: Acquisition
) -> Array:
    """Reference mm of the anatomy in each voxel, shape (3, *image shape)."""
    to_reference = np.linalg.inv(acquisition.template_to_world) @ acquisition.voxel_to_world
    matrix, offset = to_reference[:3, :3].astype(np.float32), to_reference[:3, 3] - reference.origin
    i, j, k = (np.arange(n, dtype=np.float32) for n in acquisition.shape)
    points = np.empty((3, *acquisition.shape), np.float32)
    for axis in range(3):
        a, b, c = matrix[axis]
        points[axis] = (a * i)[:, None, None] + (b * j)[:, None] + (c * k + np.float32(offset[axis]))
    coarse = points / np.float32(SPACING_MM)
    for axis, component in enumerate(pull_back(reference, person, severities)):
        points[axis] += sample(component, coarse)
    return points


def _coil_gain(acquisition: Acquisition, brain: NDArray[np.bool_]) -> Array:
    """Gain of the receive coil in each voxel: 1 halfway along the brain, more behind, less in front."""
    i, j, k = (
        weight * np.arange(n, dtype=np.float32)
        for weight, n in zip(acquisition.voxel_to_world[1, :3].astype(np.float32), acquisition.shape, strict=True)
    )
    forward = i[:, None, None] + j[:, None] + k
    inside = forward[brain]
    gain: Array = np.exp(np.float32(acquisition.coil) * ((inside.min() + inside.max()) / 2 - forward))
    return gain


def _image(acquisition: Acquisition, intensity: Array, brain: NDArray[np.bool_]) -> Any:
    """Contrast, blur, bias and noise on ideal intensities; brain only, stored as scaled integers."""
    signal = np.maximum(intensity, 0) ** np.float32(acquisition.gamma)
    signal = ndimage.gaussian_filter(signal, acquisition.blur_voxels)
    x, y, z = (np.linspace(-1, 1, n) for n in acquisition.shape)
    signal *= np.exp(np.polynomial.legendre.leggrid3d(x, y, z, acquisition.bias)).astype(np.float32)
    if acquisition.coil:
        signal *= _coil_gain(acquisition, brain)
    rng = np.random.default_rng(acquisition.noise_seed)
    inside = signal[brain]
    real, imaginary = rng.standard_normal((2, inside.size), dtype=np.float32) * np.float32(acquisition.noise)
    measured = np.hypot(inside + real, imaginary) * np.float32(acquisition.gain / acquisition.slope)
    stored = np.zeros(acquisition.shape, np.int16)
    stored[brain] = np.clip(np.rint(measured), 1, np.iinfo(np.int16).max)
    return nifti_image(
        stored,
        acquisition.voxel_to_world,
        "SYNTHETIC (Heatlas demo cohort)",
        "scanner",
        slope=acquisition.slope,
        qform_only=acquisition.qform_only,
    )


def nifti_image(
    stored: NDArray[Any],
    affine: NDArray[np.float64],
    description: str,
    space: str,
    slope: float | None = None,
    qform_only: bool = False,
) -> Any:
    """NIfTI image with a description (79 characters at most) and the meaning of its affine, "scanner" or "mni"."""
    image: Any = nib.Nifti1Image(stored, affine)  # type: ignore[no-untyped-call]
    if slope is not None:
        image.header.set_slope_inter(slope, 0)
    image.header.set_xyzt_units("mm", "sec")
    image.header["descrip"] = description.encode()
    image.set_qform(affine, code=space)
    image.set_sform(affine, code="unknown" if qform_only else space)
    return image


def nifti_bytes(image: Any, compressed: bool) -> bytes:
    """Bytes of the file; compressed ones have no time stamp."""
    content: bytes = image.to_bytes()
    return gzip.compress(content, compresslevel=1, mtime=0) if compressed else content
