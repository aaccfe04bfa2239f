"""Writing images in template space: fast, and the same bytes every time; and how reading one can fail."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from nibabel.filebasedimages import ImageFileError
from nibabel.spatialimages import HeaderDataError
from nibabel.wrapstruct import WrapStructError

from heatlas.atlases.spaces import Grid

MNI = nib.nifti1.xform_codes["mni"]
DESCRIPTION_LENGTH = 79
UNREADABLE = (
    OSError, EOFError, ValueError, MemoryError, OverflowError, zlib.error, ImageFileError, HeaderDataError,
    WrapStructError,
)  # fmt: skip
"""What nibabel raises on a file that is missing, empty, cut short, damaged, or not an image."""


def write_template_image(path: Path, values: np.ndarray, grid: Grid, title: str = "") -> None:
    """Write an image on a grid of template space as ``.nii.gz``.

    The gzip stream has the lowest compression level (several times faster than the default, about a tenth larger)
    and neither time nor name, so that equal values give equal bytes.

    `values`: shape of `grid`; booleans are stored as uint8, all else as float32. `grid`: its affine is stored as sform
    and qform with code 4 (MNI152). `title`: for the description field of the header: cut at its 79 characters, each
    that is not ASCII written as ``?``. Raises ValueError if the values do not lie on the grid.
    """
    if values.shape != tuple(grid.shape):
        raise ValueError(f"{path.name}: image has shape {values.shape}, the template grid {tuple(grid.shape)}.")
    stored = values.astype(np.uint8) if values.dtype == bool else values.astype(np.float32, copy=False)
    image: Any = nib.Nifti1Image(stored, grid.affine)  # type: ignore[no-untyped-call]
    image.set_sform(grid.affine, MNI)
    image.set_qform(grid.affine, MNI)
    image.header.set_xyzt_units("mm")
    image.header["descrip"] = title[:DESCRIPTION_LENGTH].encode("ascii", "replace")
    with path.open("wb") as raw, gzip.GzipFile("", "wb", compresslevel=1, fileobj=raw, mtime=0) as handle:
        image.to_stream(handle)
