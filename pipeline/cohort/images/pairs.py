"""Analyze 7.5 pairs (``.hdr`` and ``.img``), which say nothing of the orientation: it is stated here, by folder.

An Analyze header has no map to the world, so left and right must be known from elsewhere. For the OASIS data sets:

=========  ====  =======================================================================================================
folder     axes  image
=========  ====  =======================================================================================================
SUBJ_111   ASL   the average of a session's 3 or 4 scans, sagittal, 256 x 256 x 160 voxels of 1 mm
RAW        ASL   one scan, sagittal, 256 x 256 x 128 voxels of 1 x 1 x 1.25 mm
T88_111    LAS   the average in the atlas of Talairach, transverse, 176 x 208 x 176 voxels of 1 mm
=========  ====  =======================================================================================================

The letters say towards what the first, second and third index rise. Sources: the fact sheet of OASIS (sagittal and
transverse; a capsule of vitamin E marked the left side in the scanner, Marcus et al. 2007); A. Winkler, "Converting
OASIS brains to NIFTI" (brainder.org, 2011), who derives ASL from that capsule; Clinica's ``oasis-to-bids``, whose
matrix for SUBJ_111 is ASL too; Analyze's own convention for transverse images, LAS.
A pair whose header is NIfTI (magic ``ni1``, as of OASIS-2) and states an orientation is read by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

from heatlas.atlases.images import UNREADABLE
from heatlas.pipeline.cohort.images.headers import HeaderFinding, geometry_problem, thickness_problem
from heatlas.pipeline.cohort.images.links import link_problem
from heatlas.pipeline.cohort.images.orientation import VOXEL_SIZE_MM, Orientation, by, choose_orientation
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.regular_files import irregular_kind

AXES = {"SUBJ_111": "ASL", "RAW": "ASL", "T88_111": "LAS"}
"""Directions of the three indices by folder; see the module's docstring."""
_DIRECTIONS = {"R": (0, 1), "L": (0, -1), "A": (1, 1), "P": (1, -1), "S": (2, 1), "I": (2, -1)}
_NIFTI_PAIR = b"ni1\0"


@dataclass(frozen=True)
class AnalyzePair:
    """The header of a pair, and the affine that is used: 4 x 4, voxel indices to world RAS+ in mm."""

    header: Any
    affine: np.ndarray
    is_nifti: bool


def is_pair(name: str) -> bool:
    """Whether a file is the image of a pair by its name."""
    return name.lower().endswith(".img")


def header_of(image: str) -> str:
    """Path of the header of a pair.

    >>> header_of("RAW/mpr-1.nifti.img")
    'RAW/mpr-1.nifti.hdr'
    """
    return image[: -len("img")] + ("HDR" if image.endswith("IMG") else "hdr")


def stated_affine(axes: str, shape: tuple[int, ...], zooms: np.ndarray) -> np.ndarray:
    """Affine of a volume by the directions of its indices; the world's origin is the middle of the volume.

    Examples
    --------
    >>> stated_affine("ASL", (3, 3, 3), np.ones(3)).astype(int).tolist()
    [[0, 0, -1, 1], [1, 0, 0, -1], [0, 1, 0, -1], [0, 0, 0, 1]]
    """
    affine = np.eye(4)
    affine[:3, :3] = 0.0
    for index, letter in enumerate(axes):
        axis, sign = _DIRECTIONS[letter]
        affine[axis, index] = sign * zooms[index]
    affine[:3, 3] = -affine[:3, :3] @ ((np.array(shape) - 1) / 2)
    return affine


def read_pair(path: Path) -> AnalyzePair | str:
    """Header and affine of a pair by its image file, or why there are none."""
    header_file = path.with_name(header_of(path.name))
    for half, name in ((path, "image"), (header_file, "header")):
        if not half.exists():
            return f"pair without its {name}: {half.name} is missing; download the session again"
        kind = irregular_kind(half)
        if kind is not None:
            return f"not a file: {kind}"
    with header_file.open("rb") as handle:
        block = handle.read(348)
    if len(block) < 348:
        return f"not a readable header: only {len(block)} bytes, fewer than a header has"
    if 348 not in (int.from_bytes(block[:4], "little"), int.from_bytes(block[:4], "big")):
        return "not a readable header: it does not begin like one of Analyze 7.5"
    is_nifti = block[344:348] == _NIFTI_PAIR
    reader: Any = nib.nifti1.Nifti1PairHeader if is_nifti else nib.AnalyzeHeader
    header = reader(block, check=False)
    problem = geometry_problem(header)
    if problem is not None:
        return problem
    voxels = int(np.prod(header.get_data_shape()))
    needed = voxels * int(header.get_data_dtype().itemsize)
    size = path.stat().st_size
    if size < needed:
        return f"truncated file: {size} bytes of {needed}"
    affine = _affine(header, is_nifti, path)
    return affine if isinstance(affine, str) else AnalyzePair(header, affine, is_nifti)


def _affine(header: Any, is_nifti: bool, path: Path) -> np.ndarray | str:
    """The affine that a NIfTI header states, else the one stated for the folder; or why there is none."""
    if is_nifti and (int(header["sform_code"]) > 0 or int(header["qform_code"]) > 0):
        chosen = choose_orientation(header)
        return chosen.affine if isinstance(chosen, Orientation) else chosen
    zooms = np.asarray(header["pixdim"][1:4], dtype=np.float64)
    low, high = VOXEL_SIZE_MM
    if not np.all((zooms >= low) & (zooms <= high)):  # also where it is not a number
        return f"impossible voxel size: {by(zooms)} mm"
    axes = AXES.get(path.parent.name)
    if axes is None:
        return f"no orientation is known for images in {path.parent.name}; known are {', '.join(AXES)}"
    return stated_affine(axes, header.get_data_shape()[:3], zooms)


def check_pair(root: Path, image: str, max_voxel_mm: float) -> HeaderFinding:
    """Check a pair as `pipeline.cohort.images.headers.check_header` checks a NIfTI file."""
    try:
        for half in (image, header_of(image)):
            problem = link_problem(root, half)
            if problem is not None and (root / half).exists():
                return HeaderFinding(problem)
        found = read_pair(root / image)
    except PermissionError:
        return HeaderFinding("no permission to read it")
    except (*UNREADABLE, KeyError) as error:
        return HeaderFinding(f"not a readable pair: {' '.join(str(error).split())[:120]}")
    if isinstance(found, str):
        return HeaderFinding(found)
    return HeaderFinding(thickness_problem(found.affine, max_voxel_mm))


def load_pair(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Voxels (3D, in the byte order of this machine) and affine of a pair."""
    found = read_pair(path)
    if isinstance(found, str):
        raise BadInputError(f"{path}: {found}.")
    kind: Any = nib.Nifti1Pair if found.is_nifti else nib.AnalyzeImage  # plain Analyze has no scaling
    stored = np.asanyarray(kind.from_filename(path).dataobj)
    voxels = stored.reshape(stored.shape[:3])
    if voxels.dtype == np.float64:
        voxels = voxels.astype(np.float32)
    return voxels.astype(voxels.dtype.newbyteorder("=")), found.affine
