"""Whether an image file is a readable three-dimensional image of the size of a head, from its header alone.

This takes seconds for ten thousand scans; checks that need the voxels (damaged gzip data, NaN, constant images) are
made when registration reads them. The header is read as stored: nibabel would silently turn a voxel size of 0 into 1.
"""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from nibabel.freesurfer.mghformat import MGHHeader

from heatlas.atlases.spaces import UNREADABLE
from heatlas.pipeline.cohort.images.file_kinds import MGZ
from heatlas.pipeline.cohort.images.links import link_problem
from heatlas.pipeline.cohort.images.orientation import Orientation, by, choose_orientation
from heatlas.pipeline.run.documents import irregular_kind

MAX_VOXELS = 2**30
_MOST_AFTER_VOXELS = 2**16
"""Bytes that may follow the voxels (tags of FreeSurfer) before a compressed file is read to its end."""
_MAGIC = {348: (slice(344, 348), (b"n+1\0",)), 540: (slice(4, 8), (b"n+2\0",))}
"""Position and value of the magic bytes of NIfTI-1 and NIfTI-2, by header size."""


@dataclass(frozen=True)
class HeaderFinding:
    """What the header of an image says."""

    problem: str | None  # why the image cannot be used; details follow a colon
    # Errors of the header that will be corrected; see `pipeline.cohort.images.orientation`
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
        return HeaderFinding(problem) if problem else _geometry(header, max_voxel_mm)
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
    """The header of an image of FreeSurfer, unless it lacks its orientation, for which nibabel would take a usual one.

    The block holds more than the header: what follows it are voxels, which nibabel would take for the end of the file.
    """
    kind = MGHHeader._hdrdtype
    if len(block) < kind.itemsize:
        raise ValueError(f"only {len(block)} bytes, fewer than a header has")
    stored = np.frombuffer(block[: kind.itemsize], kind)[0]
    if stored["version"] != 1:
        raise ValueError("does not begin like an MGZ header")
    if stored["goodRASFlag"] <= 0:
        raise ValueError("no orientation in the header, so left and right are uncertain")
    made: Any = MGHHeader  # nibabel declares no types here
    return made(block[: kind.itemsize], check=False)


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


def _geometry(header: Any, max_voxel_mm: float) -> HeaderFinding:
    orientation = choose_orientation(header)
    if not isinstance(orientation, Orientation):
        return HeaderFinding(orientation)
    return HeaderFinding(thickness_problem(orientation.affine, max_voxel_mm), orientation.repairs)


def thickness_problem(affine: np.ndarray, max_voxel_mm: float) -> str | None:
    """Why an image is too coarse: small structures such as the hippocampus are lost between thick slices."""
    sizes = np.linalg.norm(affine[:3, :3], axis=0)
    if sizes.max() <= max_voxel_mm:
        return None
    return f"slices too thick: voxels of {by(np.round(sizes, 3))} mm, cohort.max_voxel_mm is {max_voxel_mm:g}"


def _size_problem(header: Any, path: Path, size: int) -> str | None:
    """Truncation: fewer bytes than the header announces, after decompression if the file is compressed.

    The last four bytes of a gzip file hold the size of its content. If they agree with the header the file is whole;
    only the others (several streams, long tags, cut short) are decompressed to their end.
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
            size = _decompressed_size(path)
        except EOFError:
            return f"truncated file: its compressed content has no end ({size} bytes); copy or download it again"
    if size < needed:
        return f"truncated file: {size} bytes of {needed}" + " after decompression" * compressed
    return None


def _decompressed_size(path: Path) -> int:
    total = 0
    with gzip.open(path, "rb") as handle:
        while block := handle.read(2**20):
            total += len(block)
    return total
