"""Whether the slices of a DICOM series make one complete volume.

The position of a slice (centre of its first pixel, mm) is projected on the normal of its plane (DICOM PS3.3, C.7.6.2).
In a complete volume these distances are evenly spaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heatlas.pipeline.cohort.images.orientation import by

MIN_SLICES = 16
"""A series with fewer is a localizer or a fragment."""
SPACING_TOLERANCE = 0.25
"""Largest deviation of a distance from the slice spacing, as a share; a missing slice doubles the distance."""
SAME_DIRECTION = 1e-3


@dataclass(frozen=True)
class Slice:
    """Geometry of one DICOM file; lengths in mm, None where missing in the header."""

    path: str
    shape: tuple[int, int]  # rows and columns
    position: tuple[float, ...] | None  # ImagePositionPatient
    orientation: tuple[float, ...] | None  # ImageOrientationPatient: directions of rows and columns
    spacing: tuple[float, ...] | None  # PixelSpacing
    echo_time: float | None  # ms
    frames: int  # more than 1 for a file that holds a whole volume (enhanced MR)


def stack_problem(slices: Sequence[Slice], announced: int | None, max_voxel_mm: float) -> str | None:
    """Why slices of one series do not make one volume, or None; `announced` is the number that the header gives."""
    if any(one.frames > 1 for one in slices):
        return None if len(slices) == 1 else f"mixed series: {len(slices)} files of several frames each"
    shapes = {one.shape for one in slices}
    if len(shapes) > 1:
        return f"mixed series: slices of {len(shapes)} sizes, {', '.join(by(shape) for shape in sorted(shapes)[:3])}"
    if len(slices) < MIN_SLICES:
        return f"too few slices for a head: {len(slices)}, a localizer or a fragment"
    located = [(one.position, one.orientation) for one in slices if one.position and one.orientation]
    if len(located) < len(slices):
        return f"slices without a position in their header: {len(slices) - len(located)} of {len(slices)}"
    directions = np.array([orientation for _, orientation in located])
    if np.abs(directions - directions[0]).max() > SAME_DIRECTION:
        return "mixed series: slices in several directions, as a localizer has them"
    normal = np.cross(directions[0, :3], directions[0, 3:])
    distances = np.array([position for position, _ in located]) @ normal
    echoes = {one.echo_time for one in slices}
    return _spacing_problem(np.sort(distances), len(echoes), announced) or _thickness(slices, distances, max_voxel_mm)


def _spacing_problem(distances: np.ndarray, echoes: int, announced: int | None) -> str | None:
    """Why slices at ascending `distances` (mm) are incomplete, uneven or overlap; None if they are not."""
    count = len(distances)
    steps = np.diff(distances)
    whole = steps[steps > 1e-3]
    if len(whole) < count - 1:
        doubled = count - 1 - len(whole)
        why = f"{echoes} echoes" if echoes > 1 else "a repeat, or several images in one series"
        return f"mixed series: {doubled} of {count} slices lie where another one lies ({why}); give one volume"
    step = float(np.median(steps))
    gaps = steps / step
    missing = int(np.rint(gaps[gaps > 1 + SPACING_TOLERANCE] - 1).sum())
    if missing:
        places = ", ".join(f"after slice {index + 1}" for index in np.flatnonzero(gaps > 1 + SPACING_TOLERANCE)[:3])
        return f"missing slices: {missing} of {count + missing}, {places}; download the series again"
    if np.abs(gaps - 1).max() > SPACING_TOLERANCE:
        return f"uneven slices: {steps.min():.2f} to {steps.max():.2f} mm apart"
    if announced is not None and count < announced < 2 * count:
        return (
            f"missing slices: {announced - count} of {announced} that the header announces; download the series again"
        )
    return None


def _thickness(slices: Sequence[Slice], distances: np.ndarray, max_voxel_mm: float) -> str | None:
    step = float(np.ptp(distances)) / (len(slices) - 1)
    sizes = (*(slices[0].spacing or (step, step)), step)
    if max(sizes) <= max_voxel_mm:
        return None
    return f"slices too thick: voxels of {by(np.round(sizes, 3))} mm, cohort.max_voxel_mm is {max_voxel_mm:g}"
