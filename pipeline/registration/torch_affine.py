"""Affine registration without ANTs: the 12 parameters that give a brain most mutual information with the template.

The map is :math:`y = c_m + t + M (x - c_f)`, with the centres of mass of both brains, where the search starts (t = 0,
M = 1). First rotation and shift are found at voxels of 8 mm, then all entries of M and t at each level, from coarse to
fine (`LEVELS_MM`), by L-BFGS on all voxels of the template's box: nothing is drawn at random, and with one thread the
result is repeatable to the bit. Outside the scan is background.

Mutual information is that of Mattes et al. (2003, doi:10.1109/TMI.2003.809072), as in ANTs: a voxel of the template
lies in one bin, the scan's value at its place in four, by a cubic B-spline, which makes the histogram differentiable.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.io
import scipy.ndimage
import torch
from torch import Tensor

from heatlas.pipeline.registration.ants_transform import (
    LOOK,
    LPS_FROM_RAS,
    RegistrationError,
    Transforms,
    Volume,
    coarsen,
    write_no_displacement,
)

LEVELS_MM = (8.0, 4.0, 2.0)
"""Voxels of the template at each level; those finer than the template's are left out."""
SCAN_VOXEL = 0.75
"""Voxel size of the scan at a level, relative to the template's: equal ones would favour maps between voxel centres."""
SMOOTHED = 0.5
"""Standard deviation of a Gaussian on both, relative to the template's voxel: sharp borders of brain masks would decide
the size. At 4 mm, the distance from ANTs at 2 mm was 0.7 mm without, and 0.4 mm with it (six people of OASIS-20)."""
BINS = 32
BRIGHTEST = 99.5
"""Percentile of the brain above which all values share a bin."""
RADIUS_MM = 60.0
"""Of a brain: entries of M times this are displacements in mm, as those of t are."""
MOST_STEPS = 60
LEAST_COVERED = 0.1
"""Share of the template's brain that a scan covers at least: half a head covers half."""
LARGEST_CHANGE = 2.5
"""Of a length: brains of newborns are about half as long as those of adults."""


def register(fixed: Volume, moving: Volume, prefix: Path, source: Path) -> Transforms:
    """Register a scan (moving) to the template (fixed), and write the files that ANTs would; `prefix`: of their names.

    The displacement is 0, and its files say so. RegistrationError, which names the file `source`, without a usable map.
    """
    ends = ("0GenericAffine.mat", "1Warp.nii.gz", "1InverseWarp.nii.gz")
    affine, warp, inverse = (prefix.with_name(prefix.name + end) for end in ends)
    found = affine_map(fixed, moving) if moving.data.any() else np.full((4, 4), np.nan)
    if problem := _problem(found, fixed, moving):
        raise RegistrationError(f"{source}: is not registered: {problem}. {LOOK}")
    write_affine(affine, found)
    for path in (warp, inverse):
        write_no_displacement(path, fixed)
    return Transforms(affine, warp, inverse)


def affine_map(fixed: Volume, moving: Volume) -> np.ndarray:
    """The map (4x4) from template to scan, in world mm; background of both is 0."""
    centres = [_centre_of_mass(volume) for volume in (fixed, moving)]
    finest = float(fixed.voxel_sizes.min())
    levels = [width for width in LEVELS_MM if width > 0.99 * finest] or [finest]
    rotation, shift = np.eye(3), np.zeros(3)
    for number, width in enumerate(levels):
        template, scan = _smooth(coarsen(fixed, width), width), _smooth(coarsen(moving, SCAN_VOXEL * width), width)
        information = _information(template, scan, *centres)
        if number == 0:
            rotation, shift = _climbed(information, _turned, rotation, shift, 3)
        rotation, shift = _climbed(information, _deformed, rotation, shift, 9)
    found = np.eye(4)
    found[:3, :3] = rotation
    found[:3, 3] = centres[1] + shift - rotation @ centres[0]
    return found


def _problem(found: np.ndarray, fixed: Volume, moving: Volume) -> str:
    """What is wrong with a map from template to scan; empty if nothing is."""
    if not np.isfinite(found).all():
        return "no affine map onto the template was found"
    if np.linalg.det(found[:3, :3]) <= 0:
        return "the affine map onto the template exchanges left and right, or is flat"
    lengths = np.linalg.svd(found[:3, :3], compute_uv=False)
    if max(lengths[0], 1 / lengths[-1]) > LARGEST_CHANGE:
        return f"the affine map onto the template changes lengths by a factor of {lengths[-1]:.2g} to {lengths[0]:.2g}"
    to_voxels = np.linalg.inv(moving.affine) @ found @ fixed.affine
    seen = scipy.ndimage.affine_transform(
        (moving.data != 0).astype(np.float32), to_voxels[:3, :3], to_voxels[:3, 3], fixed.data.shape, order=0
    )
    covered = float(seen[fixed.data != 0].mean())
    return f"it covers {covered:.0%} of the template's brain" if covered < LEAST_COVERED else ""


def _smooth(volume: Volume, width: float) -> Volume:
    values = volume.data.astype(np.float32)
    return Volume(scipy.ndimage.gaussian_filter(values, SMOOTHED * width / volume.voxel_sizes), volume.affine)


def _centre_of_mass(volume: Volume) -> np.ndarray:
    voxel = scipy.ndimage.center_of_mass(volume.data.astype(np.float64))
    return np.asarray(volume.affine @ [*voxel, 1.0])[:3]


Information = Callable[[Tensor, Tensor], Tensor]
"""Mutual information of template and scan for a matrix M and a shift t."""


def _climbed(
    information: Information, matrix_of: Callable[[Tensor, Tensor], Tensor], matrix: np.ndarray, shift: np.ndarray,
    count: int,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Matrix and shift at the maximum near given ones; `matrix_of` changes the matrix by `count` numbers in mm."""
    start = torch.from_numpy(matrix)
    values = torch.from_numpy(np.concatenate([np.zeros(count), shift])).requires_grad_()
    search = torch.optim.LBFGS(
        [values], max_iter=MOST_STEPS, tolerance_grad=1e-6, tolerance_change=1e-7, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        search.zero_grad()
        lost = -information(matrix_of(start, values[:count] / RADIUS_MM), values[count:])
        lost.backward()  # type: ignore[no-untyped-call]
        return lost

    search.step(loss)  # type: ignore[no-untyped-call]
    found = values.detach()
    return matrix_of(start, found[:count] / RADIUS_MM).numpy(), found[count:].numpy()


def _turned(matrix: Tensor, angles: Tensor) -> Tensor:
    """A matrix turned about the axes of the world, by the exponential of a skew matrix."""
    x, y, z = angles
    zero = torch.zeros_like(x)
    skew = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero]).reshape(3, 3)
    turned: Tensor = torch.linalg.matrix_exp(skew) @ matrix
    return turned


def _deformed(matrix: Tensor, change: Tensor) -> Tensor:
    return matrix + change.reshape(3, 3)


def _information(fixed: Volume, moving: Volume, centre_fixed: np.ndarray, centre_moving: np.ndarray) -> Information:
    """Mutual information of two volumes as a function of the map between them."""
    voxels = np.stack(np.meshgrid(*map(np.arange, fixed.data.shape), indexing="ij"), -1).reshape(-1, 3)
    points = torch.from_numpy(voxels @ fixed.affine[:3, :3].T + fixed.affine[:3, 3] - centre_fixed)
    to_voxels = np.linalg.inv(moving.affine)
    # grid_sample counts from -1 to 1 and from the last axis to the first
    scale = 2 / np.maximum(np.array(moving.data.shape) - 1, 1)
    to_sample = torch.from_numpy((scale[:, None] * to_voxels[:3, :3])[::-1].copy())
    offset = torch.from_numpy((scale * (to_voxels[:3, :3] @ centre_moving + to_voxels[:3, 3]) - 1)[::-1].copy())
    values = torch.from_numpy(_in_bins(moving.data))[None, None]
    bins = torch.from_numpy(np.rint(_in_bins(fixed.data)).astype(np.int64).ravel())
    rows = bins * (BINS + 3)
    places = torch.arange(-1, 3)

    def information(matrix: Tensor, shift: Tensor) -> Tensor:
        at = points @ (to_sample @ matrix).T + (offset + to_sample @ shift)
        seen = torch.nn.functional.grid_sample(values, at[None, None, None], "bilinear", "zeros", align_corners=True)
        whole = seen.detach().floor().flatten()
        distance = seen.flatten() - whole
        cells = (rows + whole.long())[:, None] + 1 + places
        joint = torch.zeros(BINS * (BINS + 3), dtype=torch.float64)
        joint = joint.index_add(0, cells.flatten(), _cubic(distance).flatten()).reshape(BINS, -1) / len(rows)
        apart = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
        full = joint > 0
        return (joint[full] * (joint[full] / apart[full]).log()).sum()

    return information


def _cubic(distance: Tensor) -> Tensor:
    """Weights (N, 4) of the bins before, at, after and two after a value, `distance` above the bin that it is in."""
    near, far = distance, 1 - distance
    return torch.stack(
        [far**3, 4 - 6 * near**2 + 3 * near**3, 4 - 6 * far**2 + 3 * far**3, near**3], dim=1
    ) / 6  # fmt: skip


def _in_bins(data: np.ndarray) -> np.ndarray:
    """Values as fractional bins from 0, the background, to the last, of the brightest voxels of the brain."""
    brain = data[data > 0]
    top = float(np.percentile(brain, BRIGHTEST)) if brain.size else 1.0
    return np.clip(data.astype(np.float64) / top, 0, 1) * (BINS - 1)


def write_affine(path: Path, template_to_scan: np.ndarray) -> None:
    """Write a map as ITK does (``.mat``), about the origin, so that ANTs reads it too."""
    lps = LPS_FROM_RAS @ template_to_scan @ LPS_FROM_RAS
    parameters = np.concatenate([lps[:3, :3].ravel(), lps[:3, 3]])[:, None]
    content = {"AffineTransform_double_3_3": parameters, "fixed": np.zeros((3, 1))}
    scipy.io.savemat(path, content, format="4")
