"""Measures of one scan with a limit of their own, which need no controls: what they mean is the same in every scan.

Limits lie between ordinary scans and images made to be none, of 35 people and 279 of OASIS-1; both are in
docs/benchmarks/unlike_images.md.
"""

from __future__ import annotations

import numpy as np
import scipy.ndimage

AIR_MM, AIR_LEVEL = 30.0, 0.05
"""How far from the brain air is looked for, above its middle, where the skin is 25 mm away; and what is bright of it,
as a share of the median of the brain."""
RIM_MM = 4.1
"""The outer part of a brain, in which fluid and grey matter lie."""
HOLE_LEVEL, WHITE_LEVEL = 0.62, 0.82
"""What is darker than grey matter, and what is white, as shares of the white matter around, over `WHITE_MM`."""
WHITE_MM = 60.0
HOLE_DEPTH_MM, SHELL_MM, SHELL_WHITE = 12.0, 2.0, 0.8
"""Depth in the brain below which no furrow is looked at; and how much of what lies around a dark part must be white."""
HOLE_MM3, HOLE_FRONT_MM, FINE_MM = (30.0, 1500.0), -60.0, 2.5
"""Volume of dark parts that are looked at; how far back in the template (y), since tips of ventricles lie apart there;
and the largest voxels."""
PATTERN_MM, PATTERN_VOXEL_MM = 8.0, 4.0
"""Smoothing that is taken away from a brain before it is compared with others, and the voxels that are compared."""


def missing_ml(values: np.ndarray, mask: np.ndarray, voxel_mm: float) -> float:
    """Largest connected part of the template's brain that is 0 in a scan, without a rim of 4 mm, in ml."""
    inner = scipy.ndimage.binary_erosion(mask, iterations=max(round(4.0 / voxel_mm), 1))
    return largest_part(inner & (values == 0)) * voxel_mm**3 * 1e-3


def largest_part(there: np.ndarray) -> int:
    """Voxels of the largest connected part."""
    parts, count = scipy.ndimage.label(there)
    return int(np.bincount(parts.ravel())[1:].max()) if count else 0


def bright_rim(values: np.ndarray, brain: np.ndarray, voxel_mm: np.ndarray) -> float:
    """Share of the outer `RIM_MM` of a brain, on the voxels of its scan, that is brighter than its median."""
    if not brain.any():
        return float("nan")
    box = scipy.ndimage.find_objects(brain.astype(np.int8))[0]
    values, inside = values[box], np.pad(brain[box], 1)
    depth = scipy.ndimage.distance_transform_edt(inside, sampling=voxel_mm)[1:-1, 1:-1, 1:-1]
    middle = np.median(values[depth > 0])
    return float(np.mean(values[(depth > 0) & (depth <= RIM_MM)] > middle))


def enclosed_ml(values: np.ndarray, brain: np.ndarray, voxel_mm: np.ndarray, to_voxels: np.ndarray) -> float:
    """Largest dark part, in ml, that white matter encloses, as of a lacune; NaN on voxels above `FINE_MM`.

    `values`, `to_voxels`: as of `bright_air`. `brain`: (X, Y, Z), bool, on the voxels of the scan. Dark parts near the
    surface, as large as ventricles, or behind `HOLE_FRONT_MM` are left out.
    """
    if not brain.any() or voxel_mm.max() > FINE_MM:
        return float("nan")
    box = scipy.ndimage.find_objects(brain.astype(np.int8))[0]
    corner, to_template = [one.start for one in box], np.linalg.inv(to_voxels)
    values, brain = values[box].astype(np.float32), brain[box]
    if voxel_mm.max() < 1.5:
        values = scipy.ndimage.gaussian_filter(np.where(brain, values, 0), 0.7 / voxel_mm)
    low, high = np.percentile(values[brain], [60, 99.5])
    bright = brain & (values > low) & (values < high)
    size = np.maximum(np.rint(WHITE_MM / voxel_mm).astype(int), 1)
    level, share = (
        scipy.ndimage.uniform_filter(one.astype(np.float32), size) for one in (np.where(bright, values, 0), bright)
    )
    tone = np.where(share > 1e-3, values * share / np.maximum(level, 1e-6), 1)
    whole = np.pad(scipy.ndimage.binary_fill_holes(scipy.ndimage.binary_closing(brain, iterations=2)), 1)
    deep = scipy.ndimage.distance_transform_edt(whole, sampling=voxel_mm)[1:-1, 1:-1, 1:-1] > HOLE_DEPTH_MM
    parts, _ = scipy.ndimage.label((tone < HOLE_LEVEL) & brain)
    volumes = np.bincount(parts.ravel()) * float(np.prod(voxel_mm))
    reach = np.maximum(np.rint(SHELL_MM / voxel_mm).astype(int), 1)
    largest, places = 0.0, scipy.ndimage.find_objects(parts)
    for number in np.flatnonzero((volumes >= HOLE_MM3[0]) & (volumes <= HOLE_MM3[1])):
        if number == 0 or volumes[number] <= largest:
            continue
        place = places[number - 1]
        around = tuple(slice(max(one.start - r - 1, 0), one.stop + r + 1) for one, r in zip(place, reach, strict=True))
        part = parts[around] == number
        near = scipy.ndimage.binary_dilation(part, np.ones(2 * reach + 1, bool)) & ~scipy.ndimage.binary_dilation(part)
        middle = [(one.start + one.stop - 1) / 2 + first for one, first in zip(place, corner, strict=True)]
        if to_template[1] @ [*middle, 1] < HOLE_FRONT_MM:
            continue
        if deep[around][part].all() and (tone[around][near] > WHITE_LEVEL).mean() > SHELL_WHITE:
            largest = float(volumes[number])
    return largest * 1e-3


def on_voxels(mask: np.ndarray, affine: np.ndarray, to_voxels: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A mask of the template (and its affine) on the voxels of a scan; `to_voxels` is that of `bright_air`."""
    back = np.linalg.inv(to_voxels @ affine)
    found = scipy.ndimage.affine_transform(mask.astype(np.uint8), back[:3, :3], back[:3, 3], shape, order=0)
    return np.asarray(found > 0)


def bright_air(values: np.ndarray, to_voxels: np.ndarray, mask: np.ndarray, affine: np.ndarray) -> float:
    """Share of the air beside a head that is brighter than `AIR_LEVEL` of the brain; NaN where hardly any is in view.

    `values`: the scan as given. `to_voxels` (4x4): from the space of the template to its voxels. `mask`, `affine`: the
    brain of the template.
    """
    voxel_mm = float(affine[0, 0])
    wider = np.pad(mask, round(40 / voxel_mm))
    affine = affine @ np.block([[np.eye(3), np.full((3, 1), -float(round(40 / voxel_mm)))], [np.eye(4)[3:]]])
    away = scipy.ndimage.distance_transform_edt(~wider) * voxel_mm
    air = np.argwhere(away > AIR_MM)
    air = air[air @ affine[2, :3] + affine[2, 3] >= 0]
    beside, brain = (_seen(values, points, to_voxels @ affine) for points in (air, np.argwhere(wider)))
    if len(beside) < 0.1 * len(air) or not (brain > 0).any():
        return float("nan")
    return float(np.mean(beside > AIR_LEVEL * np.median(brain[brain > 0])))


def _seen(values: np.ndarray, points: np.ndarray, to_voxels: np.ndarray) -> np.ndarray:
    """Values at points that are in the field of view."""
    voxels = np.rint(points @ to_voxels[:3, :3].T + to_voxels[:3, 3]).astype(int)
    return np.asarray(values[tuple(voxels[((voxels >= 0) & (voxels < values.shape)).all(1)].T)])


def fine_pattern(values: np.ndarray, mask: np.ndarray, voxel_mm: float) -> np.ndarray:
    """What a brain in template space has of its own, of mean 0 and length 1: its values less themselves smoothed."""
    step = max(round(PATTERN_VOXEL_MM / voxel_mm), 1)
    inner = scipy.ndimage.binary_erosion(mask, iterations=step)
    brain = scipy.ndimage.uniform_filter(np.where(mask, values, 0).astype(np.float32), step)
    fine = brain - scipy.ndimage.gaussian_filter(brain, PATTERN_MM / voxel_mm)
    found = fine[::step, ::step, ::step][inner[::step, ::step, ::step]]
    found = found - found.mean()
    return np.asarray(found / (float(np.linalg.norm(found)) or 1.0), dtype=np.float32)


def agreement(patterns: np.ndarray, mean: np.ndarray, people: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Largest correlation of each brain with one of another person, less what all share, and whose it is.

    `patterns` (N, P) and `mean` (P,): `fine_pattern` of scans, and of the mean of controls. NaN where there is nobody
    else.
    """
    own = patterns - np.outer(patterns @ mean, mean)
    own = own / np.maximum(np.linalg.norm(own, axis=1, keepdims=True), 1e-6)
    names = np.array(people)
    alike = np.where(names[:, None] != names[None], own @ own.T, -np.inf)
    largest = alike.max(axis=1)
    return np.where(np.isfinite(largest), largest, np.nan), alike.argmax(axis=1)
