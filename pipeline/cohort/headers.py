"""Whether an image file is a readable three-dimensional NIfTI, told from its header alone.

Cheap, so that ten thousand scans are checked in seconds; what needs the voxels (truncated gzip data, NaN, constant
images) is checked where the voxels are read, in registration.
"""

from __future__ import annotations

import zlib
from math import isfinite, prod
from pathlib import Path
from typing import Any

import nibabel as nib
from nibabel.filebasedimages import ImageFileError
from nibabel.spatialimages import HeaderDataError


def header_problem(root: Path, image: str) -> str | None:
    """Why an image cannot be used, or None.

    Parameters
    ----------
    root : Path
        Input folder, resolved; an image that is a link to a file outside it is refused.
    image : str
        Path relative to `root`.
    """
    path = root / image
    try:
        target = path.resolve(strict=True)
        if not target.is_relative_to(root):
            return f"a link to a file outside the input folder: {target}"
        size = target.stat().st_size
        if size == 0:
            return "empty file"
        image_file: Any = nib.load(path)
        return _shape_problem(image_file.header) or _size_problem(image_file.dataobj, path, size)
    except (FileNotFoundError, RuntimeError):  # RuntimeError: a loop of links, in Python 3.11
        return "a link that leads nowhere"
    except PermissionError:
        return "no permission to read it"
    except (ImageFileError, HeaderDataError, EOFError, OSError, ValueError, zlib.error) as error:
        detail = " ".join(str(error).replace(str(path), "").split()) or type(error).__name__
        return f"not a readable NIfTI file: {detail[:120]}"


def _shape_problem(header: Any) -> str | None:
    shape = tuple(int(n) for n in header.get_data_shape())
    text = "x".join(map(str, shape))
    if len(shape) < 3 or any(n != 1 for n in shape[3:]):
        return f"{len(shape)}D image where one 3D volume is needed: {text}"
    if min(shape) < 1:
        return f"image without voxels: {text}"
    if header.get_data_dtype().fields is not None or header.get_data_dtype().kind not in "iuf":
        return f"voxels are not plain numbers: data type {header.get_data_dtype()}"
    zooms = [float(zoom) for zoom in header.get_zooms()[:3]]
    if not all(isfinite(zoom) and zoom > 0 for zoom in zooms):
        return f"impossible voxel size: {', '.join(f'{z:g}' for z in zooms)} mm"
    return None


def _size_problem(data: Any, path: Path, size: int) -> str | None:
    """Truncation of an uncompressed file: fewer bytes than its header announces."""
    if path.suffix.lower() == ".gz":
        return None
    needed = int(data.offset) + prod(map(int, data.shape)) * int(data.dtype.itemsize)
    if size < needed:
        return f"truncated file: {size} bytes of {needed}"
    return None
