"""Which scans have left and right exchanged: the asymmetry of a scan against that of the other scans.

Brains are asymmetric in the same way (petalia, planum temporale, vessels of one side), so a scan whose asymmetry is the
opposite of the others' is likely mirrored. Images are compared by the affine map alone, on voxels of 4 mm: a warp to an
asymmetric template would give all scans its asymmetry. Each scan is first moved onto its own midline, since a tilt of a
degree is a larger difference between the sides than any anatomy.

The scans are compared with each other only. If all are mirrored, they look alike, and nothing is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.ndimage

from heatlas.pipeline.registration.quality.outliers import MIN_COHORT

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
    found = np.zeros(3)
    small = np.array([0.5, 0.005, 0.005])
    for _ in range(STEPS):
        # From both sides, so that a mirrored image goes the mirrored way
        slopes = [
            (_difference(values, halves, found + step) - _difference(values, halves, found - step)) / (2 * step.max())
            for step in small * np.eye(3)
        ]
        found = found + np.linalg.lstsq(np.stack(slopes, 1), -_difference(values, halves, found), rcond=None)[0]
    return found if (np.abs(found) < FARTHEST).all() else np.zeros(3)


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


def side_scores(asymmetries: Sequence[np.ndarray], signs: np.ndarray | None = None) -> np.ndarray:
    """Correlation of each scan's `asymmetry` with the mean of the others, each point divided by its spread over scans.

    The sequence is gone through twice and may read from files: one array at a time is in memory. `signs`, (scans,), 1
    or -1, turn scans round where they count as one of the others.
    """
    if not len(asymmetries):
        return np.zeros(0)
    turned = np.ones(len(asymmetries)) if signs is None else signs
    total, squares = np.zeros(len(asymmetries[0])), np.zeros(len(asymmetries[0]))
    for one, sign in zip(asymmetries, turned, strict=True):
        total += sign * one
        squares += one.astype(np.float64) ** 2
    spread = np.sqrt(np.maximum(squares / len(asymmetries) - (total / len(asymmetries)) ** 2, 0))
    # Half the median as the least, so that a place that is the same in all scans by chance does not decide
    spread = np.maximum(spread, max(0.5 * float(np.median(spread)), 1e-9))
    scores = []
    for raw, sign in zip(asymmetries, turned, strict=True):
        one, others = raw / spread, (total - sign * raw) / spread
        length = float(np.linalg.norm(others) * np.linalg.norm(one))
        scores.append(float(others @ one) / length if length > 1e-9 else 0.0)
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
            scores, nobody, f"{mirrored.sum()} of {count} scans differ from the others in their sides, too many to "
            "tell which of the two groups is mirrored",
        )  # fmt: skip
    return Sides(scores, mirrored)
