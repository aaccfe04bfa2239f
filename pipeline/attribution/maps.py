"""Relevance maps as files: NIfTI in template space with a sidecar that says what the numbers mean.

Equal maps give equal bytes: nibabel writes gzip without a time stamp, and the header holds nothing of the moment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

from atlases.spaces import Grid

MNI_SPACE = 4
"""NIfTI code of an affine into MNI152 space."""
DESCRIPTION_LENGTH = 79


def write_map(path: Path, values: np.ndarray, grid: Grid, title: str) -> None:
    """Write a map on the template grid as float32 NIfTI.

    Parameters
    ----------
    path : Path
        Ends in ``.nii.gz``; compressed at level 1, since float maps hardly gain from more.
    values : array, shape of `grid`
    grid : Grid
        Of the template.
    title : str
        For the description field of the header: cut at its 79 characters, each that is not ASCII written as ``?``
        (the sidecar has the text in full).

    Raises
    ------
    ValueError
        If the values do not lie on the grid.
    """
    if values.shape != tuple(grid.shape):
        raise ValueError(f"{path.name}: map has shape {values.shape}, the template grid {tuple(grid.shape)}.")
    image: Any = nib.Nifti1Image(np.asarray(values, np.float32), grid.affine)  # type: ignore[no-untyped-call]
    image.set_sform(grid.affine, code=MNI_SPACE)
    image.set_qform(grid.affine, code=MNI_SPACE)
    image.header.set_xyzt_units("mm")
    image.header["descrip"] = title[:DESCRIPTION_LENGTH].encode("ascii", "replace")
    nib.save(image, path)


def sidecar(image_path: Path) -> Path:
    """Path of the JSON file beside an image.

    Examples
    --------
    >>> sidecar(Path("sub-01_desc-gb_relevance.nii.gz")).name
    'sub-01_desc-gb_relevance.json'
    """
    return image_path.with_name(image_path.name.removesuffix(".nii.gz") + ".json")
