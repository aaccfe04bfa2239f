"""Brain masks given with the scans: their paths, and how they are read.

A mask belongs to a scan by its BIDS name beside it, ``sub-01_T1w.nii.gz`` and ``sub-01_desc-brain_mask.nii.gz``, or by
a pattern in the settings, such as ``derivatives/masks/{participant_id}/{name}_desc-brain_mask.nii.gz``.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from heatlas.atlases.resampling import resample_labels
from heatlas.atlases.spaces import Grid
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.registration.images.t1w import T1wImage, load_labels
from heatlas.pipeline.run.config.images import KINDS
from heatlas.pipeline.run.errors import BadInputError

SUFFIXES = (".nii.gz", ".nii")


def mask_path(input_root: Path, scan: Scan, pattern: str = "") -> Path:
    """Path of the mask of a scan, existing or not.

    `input_root`: folder that the image paths of scans, and patterns, start from. `scan`: with an image; if that is
    registered through a T1-weighted one, the mask is that of the latter. `pattern`: as
    `RegistrationConfig.mask_pattern`; empty for the BIDS name beside the scan. Returns the existing file or, without
    one, the expected path.
    """
    if pattern:
        fields = {
            "participant_id": scan.participant_id,
            "session_id": scan.session_id or "",
            "name": scan.name,
            "scan_id": scan.scan_id,
        }
        return input_root / pattern.format(**fields)
    image = input_root / (scan.t1w or scan.file)
    return next((path for path in _beside(image) if path.is_file()), _beside(image)[0])


def _beside(image: Path) -> list[Path]:
    """Possible names of a mask beside an image.

    >>> [path.name for path in _beside(Path("sub-01_run-2_desc-preproc_T1w.nii.gz"))]
    ['sub-01_run-2_desc-brain_mask.nii.gz', 'sub-01_run-2_desc-brain_mask.nii']
    """
    stem = image.name.removesuffix(".gz").rpartition(".")[0] or image.name
    stem = re.sub(rf"_({'|'.join(KINDS)})$", "", stem)
    stem = re.sub(r"_(desc|label)-[^_]+", "", stem)
    return [image.with_name(f"{stem}_desc-brain_mask{suffix}") for suffix in SUFFIXES]


def read_mask(path: Path, image: T1wImage) -> np.ndarray:
    """Read a mask on the voxels of a scan; a missing or empty mask, or one outside the scan, is refused.

    A mask on another grid, or in another order of axes, is resampled by both affines, nearest neighbour.
    """
    labels, affine = load_labels(path)
    source, target = Grid(_three(labels), affine), Grid(_three(image.data), image.affine)
    mask = (labels > 0).astype(np.int32)
    if not mask.any():
        raise BadInputError(f"{path}: the mask is empty. Give a mask of the brain.")
    if not source.same_as(target):
        try:
            mask = resample_labels(mask, source, target).labels
        except BadInputError as error:
            raise BadInputError(f"{path}: the mask does not overlap {image.path} ({error}).") from error
    if not mask.any():
        raise BadInputError(f"{path}: the mask does not overlap {image.path}. Give a mask in the space of the scan.")
    return np.asarray(mask > 0)


def _three(array: np.ndarray) -> tuple[int, int, int]:
    i, j, k = array.shape
    return i, j, k
