"""Which affine of a NIfTI header is used, from the header alone.

The header can state the map from voxels to the world twice, as quaternion (qform) and as matrix (sform), each with a
code that is 0 for "not known". The choice follows the truth table of nipreps (niworkflows ``ValidateImage``):

=================  =================  ==========  ====================================================
sform              qform              agree       used
=================  =================  ==========  ====================================================
usable, code > 0   usable, code > 0   yes         sform
usable, code > 0   usable, code > 0   no          sform; the distance is reported
usable, code > 0   not usable / 0     --          sform; what is wrong with the qform is reported
not usable / 0     usable, code > 0   --          qform; what is wrong with the sform is reported
not usable / 0     not usable / 0     --          none: refused
=================  =================  ==========  ====================================================

In the last row nipreps guesses; here the image is refused, because left and right would be uncertain. An sform is
usable if it is finite, invertible, without shear (ITK knows only rotations and voxel sizes) and has the voxel size of
the header. No file is changed: repairs are made in memory and reported. FreeSurfer's images state one affine, which is
checked in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from nibabel.freesurfer.mghformat import MGHHeader
from nibabel.spatialimages import HeaderDataError

VOXEL_SIZE_MM = (0.1, 10.0)
"""Voxel sizes outside this range indicate a wrong unit or a damaged header."""
AFFINE_TOLERANCE_MM = 0.1
SHEAR_TOLERANCE = 1e-3
_UNITS = {1: ("metres", 1e3), 3: ("micrometres", 1e-3)}
"""Codes of NIfTI's ``xyzt_units`` other than millimetres, and the factors to convert them."""


@dataclass(frozen=True)
class Orientation:
    """The affine that is used, and what was corrected.

    `affine`: 4x4, float64, voxel indices to world RAS+ in mm. `source`: ``sform`` or ``qform``, or ``MGZ`` for an image
    of FreeSurfer. `repairs`: errors of the header that are ignored or converted; empty for a valid header.
    """

    affine: np.ndarray
    source: str
    repairs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.source + (f" ({'; '.join(self.repairs)})" if self.repairs else "")


def choose_orientation(header: Any) -> Orientation | str:
    """Choose between the sform and the qform of a header; see the module's docstring.

    `header`: as stored, not repaired by nibabel (which turns a voxel size of 0 into 1).

    Gives the affine, or why there is none.
    """
    of_freesurfer = isinstance(header, MGHHeader)
    stored = np.asarray(header["delta"] if of_freesurfer else header["pixdim"][1:4], dtype=np.float64)
    if not np.all(np.isfinite(stored)) or np.any(stored <= 0):
        return f"impossible voxel size: {by(stored)} mm"
    if of_freesurfer:
        return _of_freesurfer(header, stored)
    unit, factor = _unit(header, stored)
    zooms, to_mm = stored * factor, np.diag([factor, factor, factor, 1.0])
    if np.any(zooms < VOXEL_SIZE_MM[0]) or np.any(zooms > VOXEL_SIZE_MM[1]):
        return f"impossible voxel size: {by(zooms)} mm (units other than mm?)"
    sform_problem, qform_problem = "absent", "absent"
    sform = qform = None
    if int(header["sform_code"]) > 0:
        sform = to_mm @ header.get_sform().astype(np.float64)
        sform_problem = _sform_problem(sform, zooms)
    if int(header["qform_code"]) > 0:
        try:
            qform = to_mm @ header.get_qform().astype(np.float64)
            qform_problem = "" if np.all(np.isfinite(qform)) else "not finite"
        except (ValueError, HeaderDataError):
            qform_problem = "not a rotation"
    repairs = (f"voxel size converted from {unit}",) if unit else ()
    if sform is not None and not sform_problem:
        return Orientation(sform, "sform", _about_qform(sform, qform, qform_problem, header) + repairs)
    if qform is not None and not qform_problem:
        return Orientation(qform, "qform", _problem("sform", sform_problem) + repairs)
    return (
        f"no usable orientation in the header: sform {sform_problem}, qform {qform_problem}, so left and right are "
        "uncertain"
    )


def _of_freesurfer(header: MGHHeader, zooms: np.ndarray) -> Orientation | str:
    """The affine of FreeSurfer's scanner space; millimetres always."""
    if np.any(zooms < VOXEL_SIZE_MM[0]) or np.any(zooms > VOXEL_SIZE_MM[1]):
        return f"impossible voxel size: {by(zooms)} mm (units other than mm?)"
    read: Any = header  # nibabel declares no types here
    affine = np.asarray(read.get_affine(), dtype=np.float64)
    problem = _sform_problem(affine, zooms)
    if problem:
        return f"no usable orientation in the header: {problem}, so left and right are uncertain"
    return Orientation(affine, "MGZ")


def by(values: object) -> str:
    """Three lengths, separated by x.

    Examples
    --------
    >>> by([1, 1, 1.2])
    '1 x 1 x 1.2'
    """
    return " x ".join(f"{value:g}" for value in np.asarray(values).ravel())


def _unit(header: Any, zooms: np.ndarray) -> tuple[str, float]:
    """Unit to convert from, and the factor; empty if the numbers are plausible in millimetres, whatever the code."""
    unit, factor = _UNITS.get(int(header["xyzt_units"]) & 7, ("", 1.0))
    low, high = VOXEL_SIZE_MM
    as_mm = np.all((zooms >= low) & (zooms <= high))
    converted = np.all((zooms * factor >= low) & (zooms * factor <= high))
    return (unit, factor) if converted and not as_mm else ("", 1.0)


def _about_qform(sform: np.ndarray, qform: np.ndarray | None, problem: str, header: Any) -> tuple[str, ...]:
    if qform is None or problem:
        return _problem("qform", problem)
    distance = _largest_distance(sform, qform, header.get_data_shape()[:3])
    return (f"qform differs by up to {distance:.1f} mm",) if distance > AFFINE_TOLERANCE_MM else ()


def _problem(form: str, problem: str) -> tuple[str, ...]:
    return () if problem == "absent" else (f"{form} {problem}",)


def _sform_problem(sform: np.ndarray, zooms: np.ndarray) -> str:
    """Why an sform cannot be used; empty if it can."""
    if not np.all(np.isfinite(sform)):
        return "not finite"
    columns = sform[:3, :3]
    lengths = np.linalg.norm(columns, axis=0)
    if np.any(lengths == 0) or abs(np.linalg.det(columns / lengths)) < 1e-6:
        return "singular"
    directions = columns / lengths
    if np.abs(directions.T @ directions - np.eye(3)).max() > SHEAR_TOLERANCE:
        return "sheared"
    if not np.allclose(lengths, zooms, rtol=1e-3):
        return f"with another voxel size, {by(lengths)} mm against {by(zooms)} mm"
    return ""


def _largest_distance(a: np.ndarray, b: np.ndarray, shape: tuple[int, ...]) -> float:
    """Largest distance in mm between the corners of a volume under two affines."""
    corners = np.stack(np.meshgrid(*[[0, n - 1] for n in shape], [1], indexing="ij"), -1).reshape(-1, 4)
    return float(np.linalg.norm(corners @ (a - b).T, axis=1).max())
