"""NIfTI images as reproducible bytes."""

from __future__ import annotations

import gzip
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray


def nifti_image(
    stored: NDArray[Any],
    affine: NDArray[np.float64],
    description: str,
    space: str,
    slope: float | None = None,
    qform_only: bool = False,
) -> Any:
    """NIfTI image with a description (79 characters at most) and the meaning of its affine, "scanner" or "mni".

    `slope` is the value of one stored unit; `qform_only` leaves the sform out.
    """
    image: Any = nib.Nifti1Image(stored, affine)  # type: ignore[no-untyped-call]
    if slope is not None:
        image.header.set_slope_inter(slope, 0)
    image.header.set_xyzt_units("mm", "sec")
    image.header["descrip"] = description.encode()
    image.set_qform(affine, code=space)
    image.set_sform(affine, code="unknown" if qform_only else space)
    return image


def nifti_bytes(image: Any, compressed: bool) -> bytes:
    """Bytes of the file; compressed ones have no time stamp."""
    content: bytes = image.to_bytes()
    return gzip.compress(content, compresslevel=1, mtime=0) if compressed else content
