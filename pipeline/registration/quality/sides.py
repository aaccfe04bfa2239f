"""Which scans have left and right exchanged: the asymmetry of a scan against that of the other scans.

Brains are asymmetric in the same way (petalia, planum temporale, vessels of one side), so a scan whose asymmetry is the
opposite of the others' is likely mirrored. Images are compared by the affine map alone, on voxels of 4 mm: a warp to an
asymmetric template would give all scans its asymmetry. Each scan is first moved onto its midline, since a tilt of a
degree is a larger difference between the sides than any anatomy.

The scans are compared with each other only. If all are mirrored, they look alike, and nothing is found.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import scipy.ndimage

from heatlas.atlases.spaces import Grid, template_grid
from heatlas.atlases.templates import brain_box, load_template, span_of, template_on
from heatlas.pipeline.registration.ants_transform import Volume, on_grid, read_displacement
from heatlas.pipeline.registration.quality.limits import largest_part
from heatlas.pipeline.registration.quality.outliers import MIN_COHORT
from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE

VOXEL_MM = 4.0
SMOOTHING_MM = 4.0
"""Standard deviation, to average over folds, which differ between people."""
CLIPPED = 3.0
"""Standard deviations beyond which intensities count no more, as of vessels and remnants of the skull."""
STEPS = 3
"""Gauss-Newton steps to the midline."""
FARTHEST = np.array([12.0, 0.25, 0.25])
"""Largest movement to the midline that is believed: mm, and slopes of the plane along y and z."""
MIRRORED_SCORE = -0.05
"""Scores below it are named: see docs/registration.md."""
SMALLEST_MEDIAN = 0.1
"""Median of the scores below which the scans have no asymmetry in common."""
ONE_SIDED = 5.0
"""Standard deviations of controls beyond which the sides differ as of a lesion (`one_sided_ml`)."""
SHADING_MM = 20.0
"""Full width at half maximum of a Gaussian: shading of a scanner differs between the sides more widely than this."""
ROUNDS = 2
"""How often mirrored scans are turned round."""
DIVIDED_SHARE = 0.25
"""Share of named scans above which it is not clear which ones are right."""


@dataclass(frozen=True)
class Halves:
    """Where left and right are compared: voxels of the right half, and the grid they belong to."""

    mask: np.ndarray  # (X, Y, Z), bool, the same on both sides: the brain of the template and of its mirror image
    affine: np.ndarray  # 4x4, diagonal
    points: np.ndarray  # (P, 3), mm, of the right half, at least one voxel inside the mask


@dataclass(frozen=True)
class Sides:
    """What can be said about the sides of the scans of a cohort."""

    scores: np.ndarray  # (scans,), correlation with the mean asymmetry of the others; NaN if there are too few scans
    mirrored: np.ndarray  # (scans,), bool
    unknown: str = ""  # why nothing can be said; empty if something can


def halves_of(mask: np.ndarray, affine: np.ndarray) -> Halves:
    """Halves of a template with this brain mask, on a grid of diagonal affine that is symmetric about x = 0."""
    if not np.isclose(affine[0, 3], -affine[0, 0] * (mask.shape[0] - 1) / 2):
        raise ValueError("the grid is not symmetric about x = 0")
    both = mask & mask[::-1]
    inner = scipy.ndimage.binary_erosion(both)
    places = np.argwhere(inner) * np.diag(affine)[:3] + affine[:3, 3]
    return Halves(both, affine, places[places[:, 0] > 0])


def asymmetry(values: np.ndarray, halves: Halves) -> np.ndarray:
    """Right minus left of a scan that lies on the template by an affine map, after moving it onto its midline.

    `values`: (X, Y, Z), any unit, on the grid of `halves`; the voxels that are not 0 are the brain. Returns (P,),
    float32, mean 0 and length 1 (or all 0); that of the mirrored image is its negative.
    """
    inside = halves.mask & (values != 0)
    if not inside.any():
        return np.zeros(len(halves.points), np.float32)
    spread = float(values[inside].std()) or 1.0
    normal = np.where(inside, np.clip((values - values[inside].mean()) / spread, -CLIPPED, CLIPPED), 0)
    smooth = scipy.ndimage.gaussian_filter(normal, SMOOTHING_MM / np.abs(np.diag(halves.affine)[:3]))
    away = _difference(smooth, halves, _midline(smooth, halves))
    away -= away.mean()
    length = float(np.linalg.norm(away))
    return np.asarray(away / length if length > 0 else away, dtype=np.float32)


def _midline(values: np.ndarray, halves: Halves) -> np.ndarray:
    """Offset in mm, and slopes along y and z, of the plane about which an image is most symmetric; least squares."""
    plane = np.zeros(3)
    small = np.array([0.5, 0.005, 0.005])
    for _ in range(STEPS):
        # From both sides, so that a mirrored image goes the mirrored way
        slopes = [
            (_difference(values, halves, plane + step) - _difference(values, halves, plane - step)) / (2 * step.max())
            for step in small * np.eye(3)
        ]
        plane = plane + np.linalg.lstsq(np.stack(slopes, 1), -_difference(values, halves, plane), rcond=None)[0]
    return plane if (np.abs(plane) < FARTHEST).all() else np.zeros(3)


def _difference(values: np.ndarray, halves: Halves, plane: np.ndarray) -> np.ndarray:
    """Right minus left about the plane x = a + b y + c z, at the points of the right half."""
    a, b, c = plane
    sides = []
    for sign in (1.0, -1.0):
        x, y, z = halves.points[:, 0] * sign, halves.points[:, 1], halves.points[:, 2]
        there = np.stack([x + a + b * y + c * z, y - b * x, z - c * x])
        voxels = (there - halves.affine[:3, 3:]) / np.diag(halves.affine)[:3, None]
        sides.append(scipy.ndimage.map_coordinates(values, voxels, order=1, output=np.float64))
    return np.asarray(sides[0] - sides[1])


def one_sided_ml(distances: np.ndarray, template: str) -> float:
    """Largest connected part, in ml, in which the sides differ more than `ONE_SIDED` standard deviations of controls.

    `distances`: (P,), an `asymmetry` less the mean of controls, each point divided by its spread.
    """
    halves = _halves(template)
    if distances.shape != (len(halves.points),):
        return float("nan")
    sizes = [largest_part(_right_half(sign * distances > ONE_SIDED, halves)) for sign in (1, -1)]
    return max(sizes) * VOXEL_MM**3 * 1e-3


def _right_half(values: np.ndarray, halves: Halves) -> np.ndarray:
    """Values at the points (P,) as a volume, 0 elsewhere."""
    voxels = np.rint((halves.points - halves.affine[:3, 3]) / np.diag(halves.affine)[:3]).astype(int)
    volume = np.zeros(halves.mask.shape, values.dtype)
    volume[tuple(voxels.T)] = values
    return volume


def without_shading(values: np.ndarray, template: str) -> np.ndarray:
    """An `asymmetry` (P,), or a mean of many, less itself smoothed; that of the mirrored image is its negative."""
    halves = _halves(template)
    if values.shape != (len(halves.points),):
        return values
    right, there = (_right_half(one, halves) for one in (values.astype(np.float64), np.ones(len(values))))
    width = SHADING_MM / np.sqrt(8 * np.log(2)) / VOXEL_MM
    wide, weight = (scipy.ndimage.gaussian_filter(one, width) for one in (right - right[::-1], there + there[::-1]))
    return np.asarray((right - wide / np.maximum(weight, 1e-3))[there > 0])


def side_scores(asymmetries: Sequence[np.ndarray], signs: np.ndarray | None = None) -> np.ndarray:
    """Correlation of each scan's `asymmetry` with the mean of the others, each point divided by its spread over scans.

    The sequence is gone through twice and may read from files: one array at a time is in memory. `signs`, (scans,), 1
    or -1, turn scans round where they count as one of the others.
    """
    if not len(asymmetries):
        return np.zeros(0)
    turned = np.ones(len(asymmetries)) if signs is None else signs
    total, squares = np.zeros(len(asymmetries[0])), np.zeros(len(asymmetries[0]))
    for values, sign in zip(asymmetries, turned, strict=True):
        total += sign * values
        squares += values.astype(np.float64) ** 2
    spread = np.sqrt(np.maximum(squares / len(asymmetries) - (total / len(asymmetries)) ** 2, 0))
    # Half the median as the least, so that a place that is the same in all scans by chance does not decide
    spread = np.maximum(spread, max(0.5 * float(np.median(spread)), 1e-9))
    scores = []
    for raw, sign in zip(asymmetries, turned, strict=True):
        values, others = raw / spread, (total - sign * raw) / spread
        length = float(np.linalg.norm(others) * np.linalg.norm(values))
        scores.append(float(others @ values) / length if length > 1e-9 else 0.0)
    return np.array(scores)


def compare_sides(asymmetries: Sequence[np.ndarray]) -> Sides:
    """Which scans look mirrored by their `asymmetry` (a sequence as in `side_scores`), and whether that can be told.

    Mirrored scans weaken the mean, so they are turned round and the others are compared with it once more. Whether
    there is an asymmetry in common is asked before: turned round, even random images have one.
    """
    count, nobody = len(asymmetries), np.zeros(len(asymmetries), dtype=bool)
    if count < MIN_COHORT:
        return Sides(np.full(count, np.nan), nobody, f"fewer than {MIN_COHORT} scans to compare with each other")
    scores = side_scores(asymmetries)
    if np.median(scores) < SMALLEST_MEDIAN:
        return Sides(scores, nobody, "the scans have no asymmetry in common; their sides may be mixed")
    for _ in range(ROUNDS):
        scores = side_scores(asymmetries, np.where(scores < 0, -1.0, 1.0))
    mirrored = scores < MIRRORED_SCORE
    if mirrored.mean() > DIVIDED_SHARE:
        return Sides(
            scores,
            nobody,
            f"{mirrored.sum()} of {count} scans differ from the others in their sides, too many to "
            "tell which of the two groups is mirrored",
        )
    return Sides(scores, mirrored)


def write_asymmetry(
    path: Path, t1w: Path, resolution_mm: float, inverse_warp: Path | None = None, template: str = DEFAULT_TEMPLATE
) -> None:
    """Write the `asymmetry` of a registered scan (``.npy``), with the warp taken back if there is one."""
    image: Any = nib.load(t1w)
    grid = _symmetric(template)
    values = on_grid(Volume(np.asarray(image.dataobj, dtype=np.float32), image.affine), grid)
    if inverse_warp is not None:
        values = without_warp(values, grid, read_displacement(inverse_warp), _box_affine(resolution_mm, template))
    np.save(path, asymmetry(values, _halves(template)), allow_pickle=False)


def without_warp(values: np.ndarray, grid: Grid, inverse: np.ndarray, affine: np.ndarray) -> np.ndarray:
    """The image W of a scan after affine map and warp as it was after the affine map alone: W(y + w(y)).

    `values` are (X, Y, Z) on `grid`; `inverse` holds the displacements w of the inverse warp, (X', Y', Z', 3), in mm,
    on a grid of `affine`. Outside that grid nothing is displaced.
    """
    points = _moved(grid.affine, np.moveaxis(np.indices(grid.shape), 0, -1))
    places = np.moveaxis(_moved(np.linalg.inv(affine), points), -1, 0)
    moved = [
        points[..., axis] + scipy.ndimage.map_coordinates(inverse[..., axis], places, order=1) for axis in range(3)
    ]
    voxels = np.moveaxis(_moved(np.linalg.inv(grid.affine), np.stack(moved, -1)), -1, 0)
    return np.asarray(scipy.ndimage.map_coordinates(values, voxels, order=1), dtype=np.float32)


def _moved(affine: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Points (..., 3) under an affine map."""
    return np.asarray(points @ affine[:3, :3].T + affine[:3, 3])


class _StoredArrays(Sequence[np.ndarray]):
    """Arrays that are read when they are asked for."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, place: Any) -> Any:
        return np.load(self._paths[place], allow_pickle=False)


def sides_of(paths: Sequence[Path]) -> Sides:
    return compare_sides(_StoredArrays(paths))


def _symmetric(template: str) -> Grid:
    first, last = span_of(template)
    reach = VOXEL_MM * (max(-first[0], last[0]) // VOXEL_MM)
    return template_grid(VOXEL_MM, ((-reach, *first[1:]), (reach, *last[1:])))


@functools.cache
def _halves(template: str) -> Halves:
    brain = template_on(_symmetric(template), template)
    return halves_of(np.asarray(brain.brain_mask), brain.grid.affine)


@functools.cache
def _box_affine(resolution_mm: float, template: str) -> np.ndarray:
    brain = load_template(resolution_mm, template)
    return brain_box(brain).grid(brain.grid).affine
