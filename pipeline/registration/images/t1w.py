"""Read images of heads, T1-weighted or others, and report everything that is wrong with one before any work is done.

*Voxel space* counts voxels along the stored axes, in any order and direction. *World space* is millimetres to the
right, front and up (RAS+). An image always comes with the affine from voxel to world space; the stored order of axes is
kept. `pipeline.cohort.images.headers` chooses between the two affines of a NIfTI header.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from nibabel.openers import ImageOpener

from heatlas.atlases.spaces import UNREADABLE, Grid
from heatlas.pipeline.cohort.images.content import AGAIN, require_grey_values
from heatlas.pipeline.cohort.images.headers import (
    MAX_VOXELS,
    Orientation,
    by,
    choose_orientation,
    extent_problem,
    is_compressed,
    kind_of,
    read_raw_header,
)
from heatlas.pipeline.run.errors import BadInputError


@dataclass(frozen=True)
class T1wImage:
    """A checked image, T1-weighted or of another kind."""

    path: Path  # file it was read from
    data: np.ndarray  # (I, J, K), float32, scaled intensities, axes as stored
    affine: np.ndarray  # 4x4, voxel indices to world RAS+ in mm; invertible, without shear
    orientation: str  # part of the header that gave the affine, and corrections of the header, if any

    @property
    def grid(self) -> Grid:
        i, j, k = self.data.shape
        return Grid((i, j, k), self.affine)


def load_t1w(path: Path) -> T1wImage:
    """Read and check an image, T1-weighted or of another kind: whole, three-dimensional, of a head's size, finite."""
    image, header = _open(path)
    shape = _spatial_shape(image.shape, path)
    if header.get_data_dtype().kind not in "iuf":
        raise BadInputError(
            f"{path}: stores {header.get_data_dtype()} values, not grey values. Export the scan as a plain image."
        )
    orientation = voxel_to_world(header, path)
    if problem := extent_problem(orientation.affine, shape):
        raise BadInputError(f"{path}: {problem} Give a scan of the whole head.")
    data = _read_values(image, path).reshape(shape)
    require_grey_values(data, path)
    return T1wImage(path, data, orientation.affine, str(orientation))


def load_labels(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read a label image: (I, J, K), int32, axes as stored, and its affine to world RAS+ in mm."""
    image, header = _open(path)
    shape = _spatial_shape(image.shape, path)
    affine = voxel_to_world(header, path).affine
    values = _read_values(image, path).reshape(shape)
    labels = np.rint(values).astype(np.int32)
    if not np.array_equal(labels, values):
        raise BadInputError(f"{path}: holds values that are not whole numbers; give a label image.")
    return labels, affine


def voxel_to_world(header: Any, path: Path) -> Orientation:
    """Affine of a header as stored, not repaired (`pipeline.cohort.images.headers`); `path` is for the message."""
    orientation = choose_orientation(header)
    if isinstance(orientation, Orientation):
        return orientation
    raise BadInputError(f"{path}: {orientation}. Convert the scan again from its DICOM files, or correct its header.")


def _open(path: Path) -> tuple[Any, Any]:
    """The image and its header as stored, before nibabel repairs it (a voxel size of 0 would become 1)."""
    if not path.is_file():
        raise BadInputError(f"{path}: no such image. Check the input folder.")
    try:
        image: Any = nib.load(path)
        if isinstance(image, nib.MGHImage):
            return image, read_raw_header(path)
        if not isinstance(image, nib.Nifti1Pair):
            raise BadInputError(f"{path}: is {type(image).__name__}, not NIfTI. Convert it to NIfTI (.nii.gz).")
        header_class: Any = type(image).header_class
        with ImageOpener(str(image.file_map.get("header", image.file_map["image"]).filename)) as handle:
            header = header_class.from_fileobj(handle, check=False)
    except UNREADABLE as error:
        raise BadInputError(f"{path}: not a readable {kind_of(path)} image ({_first_line(error)}). {AGAIN}") from error
    return image, header


def _spatial_shape(shape: tuple[int, ...], path: Path) -> tuple[int, int, int]:
    spatial = shape[:3]
    if len(spatial) < 3 or any(n != 1 for n in shape[3:]):
        raise BadInputError(
            f"{path}: has shape {by(shape)}; a scan has three axes. Give a single volume (average the frames or "
            "repeats, or pick one)."
        )
    if min(spatial) < 2 or np.prod(spatial, dtype=np.int64) > MAX_VOXELS:
        raise BadInputError(f"{path}: shape {by(shape)} cannot be a scan of a head. {AGAIN}")
    return spatial  # type: ignore[return-value]


def _read_values(image: Any, path: Path) -> np.ndarray:
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            values = np.asarray(image.dataobj, dtype=np.float32)
        file = Path(image.file_map["image"].filename)
        if is_compressed(file):  # read to its end, where the checksum is; nibabel stops after the last voxel
            with gzip.open(file) as handle:
                while handle.read(2**24):
                    pass
        return values
    except UNREADABLE as error:
        raise BadInputError(f"{path}: truncated or damaged image data ({_first_line(error)}). {AGAIN}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
