"""Whether an image file is a readable three-dimensional image of the size of a head, from its header alone.

This takes seconds for ten thousand scans; checks that need the voxels (damaged gzip data, NaN, constant images) are
made when registration reads them. The header is read as stored: nibabel would silently turn a voxel size of 0 into 1.

A NIfTI header can state the map from voxels to the world twice, as quaternion (qform) and as matrix (sform), each with
a code that is 0 for "not known". The choice follows the truth table of nipreps (niworkflows ``ValidateImage``):

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

import gzip
import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from nibabel.freesurfer.mghformat import MGHHeader
from nibabel.spatialimages import HeaderDataError

from heatlas.atlases.spaces import UNREADABLE
from heatlas.pipeline.cohort.images.files import MGZ, link_problem
from heatlas.pipeline.run.documents import irregular_kind

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
    """The affine by the table of the module, or why there is none; `header` as stored, not repaired by nibabel."""
    of_freesurfer = isinstance(header, MGHHeader)
    stored = np.asarray(header["delta"] if of_freesurfer else header["pixdim"][1:4], dtype=np.float64)
    if not np.all(np.isfinite(stored)) or np.any(stored <= 0):
        return f"impossible voxel size: {by(stored)} mm"
    unit, factor = ("", 1.0) if of_freesurfer else _unit(header, stored)
    zooms, to_mm = stored * factor, np.diag([factor, factor, factor, 1.0])
    if not _possible(zooms):
        return f"impossible voxel size: {by(zooms)} mm (units other than mm?)"
    if of_freesurfer:
        affine = np.asarray(header.get_affine(), dtype=np.float64)
        problem = _sform_problem(affine, zooms)
        if problem:
            return f"no usable orientation in the header: {problem}, so left and right are uncertain"
        return Orientation(affine, "MGZ")
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
    converted = (f"voxel size converted from {unit}",) if unit else ()
    if sform is not None and not sform_problem:
        repairs = (f"qform {qform_problem}",) if qform_problem not in ("", "absent") else ()
        if qform is not None and not qform_problem:
            distance = _largest_distance(sform, qform, header.get_data_shape()[:3])
            repairs = (f"qform differs by up to {distance:.1f} mm",) if distance > AFFINE_TOLERANCE_MM else ()
        return Orientation(sform, "sform", repairs + converted)
    if qform is not None and not qform_problem:
        return Orientation(qform, "qform", (f"sform {sform_problem}",) * (sform_problem != "absent") + converted)
    return (
        f"no usable orientation in the header: sform {sform_problem}, qform {qform_problem}, so left and right are "
        "uncertain"
    )


def by(values: object) -> str:
    """Three lengths, separated by x.

    >>> by([1, 1, 1.2])
    '1 x 1 x 1.2'
    """
    return " x ".join(f"{value:g}" for value in np.asarray(values).ravel())


def _possible(zooms: np.ndarray) -> bool:
    low, high = VOXEL_SIZE_MM
    return bool(np.all((zooms >= low) & (zooms <= high)))


def _unit(header: Any, zooms: np.ndarray) -> tuple[str, float]:
    """Unit to convert from, and the factor; empty if the numbers are plausible in millimetres, whatever the code."""
    unit, factor = _UNITS.get(int(header["xyzt_units"]) & 7, ("", 1.0))
    return (unit, factor) if _possible(zooms * factor) and not _possible(zooms) else ("", 1.0)


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


MAX_VOXELS = 2**30
_MOST_AFTER_VOXELS = 2**16
"""Bytes that may follow the voxels (tags of FreeSurfer) before a compressed file is read to its end."""
_MAGIC = {348: (slice(344, 348), (b"n+1\0",)), 540: (slice(4, 8), (b"n+2\0",))}
"""Position and value of the magic bytes of NIfTI-1 and NIfTI-2, by header size."""


@dataclass(frozen=True)
class HeaderFinding:
    """What the header of an image says."""

    problem: str | None  # why the image cannot be used; details follow a colon
    # Errors of the header that will be corrected; see `pipeline.cohort.images.headers`
    repairs: tuple[str, ...] = ()


def check_header(root: Path, image: str, max_voxel_mm: float) -> HeaderFinding:
    """Check an image by its header; links out of `root`, unless followed, and slices too thick are refused."""
    path = root / image
    try:
        problem = link_problem(root, image)
        if problem is not None:
            return HeaderFinding(problem)
        kind = irregular_kind(path)
        if kind is not None:
            return HeaderFinding(f"not a file: {kind}")
        size = path.stat().st_size
        if size == 0:
            return HeaderFinding("empty file")
        header = read_raw_header(path)
        problem = geometry_problem(header) or _size_problem(header, path, size)
        if problem:
            return HeaderFinding(problem)
        orientation = choose_orientation(header)
        if not isinstance(orientation, Orientation):
            return HeaderFinding(orientation)
        return HeaderFinding(thickness_problem(orientation.affine, max_voxel_mm), orientation.repairs)
    except PermissionError:
        return HeaderFinding("no permission to read it")
    except (*UNREADABLE, KeyError) as error:
        detail = " ".join(str(error).replace(str(path), "").split()) or type(error).__name__
        return HeaderFinding(f"not a readable {kind_of(path)} file: {detail[:120]}")


def kind_of(path: Path) -> str:
    """The format of an image, in words.

    >>> kind_of(Path("brain.mgz")), kind_of(Path("brain.nii.gz"))
    ('MGZ', 'NIfTI')
    """
    return "MGZ" if path.suffix.lower() == MGZ else "NIfTI"


def is_compressed(path: Path) -> bool:
    """Whether an image is a gzip stream, by its name."""
    return path.suffix.lower() in (".gz", MGZ)


def read_raw_header(path: Path) -> Any:
    """Read the header of a NIfTI image or one of FreeSurfer without repairing it; ValueError if the file is neither."""
    opener: Any = gzip.open if is_compressed(path) else open
    with opener(path, "rb") as handle:
        block = handle.read(540)
    if path.suffix.lower() == MGZ:
        return _mgz_header(block)
    if len(block) < 348:
        raise ValueError(f"only {len(block)} bytes, fewer than a header has")
    sizes = {int.from_bytes(block[:4], "little"), int.from_bytes(block[:4], "big")} & set(_MAGIC)
    if not sizes:
        raise ValueError("does not begin like a NIfTI header")
    size = sizes.pop()
    where, magics = _MAGIC[size]
    if block[where] not in magics:
        raise ValueError(f"wrong magic {block[where]!r}, not {magics[0]!r}")
    kind: Any = nib.Nifti1Header if size == 348 else nib.Nifti2Header
    return kind(block[:size], check=False)


def _mgz_header(block: bytes) -> Any:
    """The header of an image of FreeSurfer; without its orientation nibabel would take a usual one."""
    kind = MGHHeader._hdrdtype
    if len(block) < kind.itemsize:
        raise ValueError(f"only {len(block)} bytes, fewer than a header has")
    stored = np.frombuffer(block[: kind.itemsize], kind)[0]
    if stored["version"] != 1:
        raise ValueError("does not begin like an MGZ header")
    if stored["goodRASFlag"] <= 0:
        raise ValueError("no orientation in the header, so left and right are uncertain")
    reader: Any = MGHHeader  # nibabel declares no types here
    return reader(block[: kind.itemsize], check=False)


def geometry_problem(header: Any) -> str | None:
    """Why a header does not describe one volume of numbers; None if it does."""
    shape = tuple(int(n) for n in header.get_data_shape())
    text = "x".join(map(str, shape))
    if len(shape) < 3 or any(n != 1 for n in shape[3:]):
        average = "; average its frames or repeats first" if len(shape) > 3 else ""
        return f"{len(shape)}D image where one 3D volume is needed: {text}{average}"
    if min(shape) < 1:
        return f"image without voxels: {text}"
    if prod(shape) > MAX_VOXELS:
        return f"more voxels than a scan of a head can have: {text}"
    if header.get_data_dtype().fields is not None or header.get_data_dtype().kind not in "iuf":
        return f"voxels are not plain numbers: data type {header.get_data_dtype()}"
    return None


MIN_EXTENT_MM = 80.0
"""An adult brain is longer along every axis."""


def extent_problem(affine: np.ndarray, shape: Sequence[int]) -> str | None:
    """Why an image is too small to hold a brain; None if it may hold one.

    >>> extent_problem(np.diag([0.1, 0.1, 0.1, 1.0]), (256, 256, 180))
    'covers only 26 x 26 x 18 mm, less than a brain; is the voxel size right?'
    """
    extent = np.linalg.norm(affine[:3, :3], axis=0) * shape[:3]
    if np.all(extent >= MIN_EXTENT_MM):
        return None
    return f"covers only {by(np.round(extent))} mm, less than a brain; is the voxel size right?"


def thickness_problem(affine: np.ndarray, max_voxel_mm: float) -> str | None:
    """Why an image is too coarse: small structures such as the hippocampus are lost between thick slices."""
    return too_thick(np.linalg.norm(affine[:3, :3], axis=0), max_voxel_mm)


def too_thick(sizes: np.ndarray, max_voxel_mm: float) -> str | None:
    if sizes.max() <= max_voxel_mm:
        return None
    return f"slices too thick: voxels of {by(np.round(sizes, 3))} mm, cohort.max_voxel_mm is {max_voxel_mm:g}"


def _size_problem(header: Any, path: Path, size: int) -> str | None:
    """Truncation: fewer bytes than the header announces, after decompression if the file is compressed.

    The last four bytes of a gzip file hold the size of its content: only where they differ is it decompressed.
    """
    compressed = is_compressed(path)
    needed = int(header.get_data_offset()) + prod(header.get_data_shape()) * int(header.get_data_dtype().itemsize)
    if compressed:
        with path.open("rb") as handle:
            handle.seek(-4, os.SEEK_END)
            announced = int.from_bytes(handle.read(4), "little")
        if 0 <= announced - needed < _MOST_AFTER_VOXELS:
            return None
        try:
            with gzip.open(path, "rb") as content:
                size = sum(len(block) for block in iter(lambda: content.read(2**20), b""))
        except EOFError:
            return f"truncated file: its compressed content has no end ({size} bytes); copy or download it again"
    if size < needed:
        return f"truncated file: {size} bytes of {needed}" + " after decompression" * compressed
    return None
