"""Which voxels of a scan are brain.

============== =====================================================================================================
method         what it does
============== =====================================================================================================
auto           nothing for a stripped image; else a mask given beside the scan; else deepbet
given-mask     the mask given beside the scan or by ``mask_pattern``; a scan without one fails
deepbet        always deepbet
synthstrip     always the user's ``mri_synthstrip`` (`synthstrip_mask`)
template-mask  finds the brain as ``auto`` does to drive the registration, then keeps what lies under the template's
               mask, as in the founding study
none           treats the image as stripped
============== =====================================================================================================

The founding study registered whole heads. The template available here is a brain, to which whole heads register badly
(in two of three tried, sizes were off by 9 and 17 %), so the brain is always extracted.

deepbet (Fisch et al. 2024, doi:10.1002/hbm.26606) is the default rather than HD-BET or SynthStrip because its weights
come with the package, so nothing is downloaded, and it runs on a CPU in seconds.

A mask belongs to a scan by its BIDS name beside it, ``sub-01_T1w.nii.gz`` and ``sub-01_desc-brain_mask.nii.gz``, or by
a pattern in the settings, such as ``derivatives/masks/{participant_id}/{name}_desc-brain_mask.nii.gz``.

The weights of SynthStrip (Hoopes et al. 2022, doi:10.1016/j.neuroimage.2022.119474) come with FreeSurfer, whose licence
does not allow redistribution, so the user's command ``mri_synthstrip`` is called with the weights file named in the
settings.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import scipy.ndimage

from heatlas.atlases.spaces import Grid, resample_labels
from heatlas.pipeline.cohort.bids.derivatives import read_sidecar
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.registration.images.t1w import T1wImage, load_labels
from heatlas.pipeline.run.config.images import KINDS
from heatlas.pipeline.run.errors import BadInputError, MissingDataError

STRIPPED_LITRES = (0.5, 2.3)
"""Volume of a stripped brain, including children and large men; a whole head is far above 2.3 litres."""
BRAIN_LITRES = (0.4, 2.6)
"""Plausible volume of a brain that was found."""
MIN_ZERO_SHARE = 0.15
"""Share of voxels outside the brain even in a tightly cropped image."""


@dataclass(frozen=True)
class BrainMask:
    """The brain in a scan."""

    mask: np.ndarray  # (I, J, K), bool, on the voxels of the scan
    # how it was found: ``stripped`` (the voxels that are not 0), ``given``, ``deepbet``, ``synthstrip`` or ``template``
    source: str
    litres: float  # volume of the mask


def find_brain(
    image: T1wImage, method: str, given: Path | None = None, synthstrip_model: Path | None = None
) -> BrainMask:
    """Brain mask of a scan by one of the methods of `RegistrationConfig.brain_extraction`; its size must be possible.

    `given` is the path of a mask of this scan, existing or not (`mask_path`).
    """
    exists = given is not None and given.is_file()
    if method == "given-mask" and not exists:
        raise BadInputError(
            f"{image.path}: no mask is given at {given}. Put it there, set registration.mask_pattern, or let "
            'registration.brain_extraction be "auto".'
        )
    automatic = method in ("auto", "template-mask")
    if method == "none" or (automatic and is_stripped(image)):
        mask = nonzero_brain(image.data)
        return BrainMask(mask, "stripped", litres(mask, image.affine))
    if given is not None and exists and (automatic or method == "given-mask"):
        return _checked_size(image, read_mask(given, image), "given", f"the mask {given}")
    if method == "synthstrip":
        if synthstrip_model is None:
            raise MissingDataError("registration.synthstrip_model is not set. Give the weights file of SynthStrip.")
        return _checked_size(image, synthstrip_mask(image, synthstrip_model), "synthstrip", "SynthStrip")
    return _checked_size(image, _deepbet_mask(image), "deepbet", "deepbet")


def _checked_size(image: T1wImage, mask: np.ndarray, source: str, finder: str) -> BrainMask:
    """The mask as a record; raises BadInputError if its volume cannot be that of a brain."""
    volume = litres(mask, image.affine)
    if not BRAIN_LITRES[0] <= volume <= BRAIN_LITRES[1]:
        raise BadInputError(
            f"{image.path}: {finder} finds {volume:.2f} litres of brain, which is implausible. Look at the scan; if "
            "it is a head, give it stripped or with another mask."
        )
    return BrainMask(mask, source, volume)


def is_stripped(image: T1wImage) -> bool:
    """Whether a scan is already brain-extracted.

    The ``SkullStripped`` field of a BIDS sidecar decides if there is one. Otherwise the image must be 0 around a single
    body of the volume of a brain (a head whose background was set to 0 is larger).
    """
    stated = stated_skull_stripped(image.path)
    if stated is not None:
        return stated
    outside = image.data == 0
    if outside.mean() < MIN_ZERO_SHARE:
        return False
    return STRIPPED_LITRES[0] <= litres(nonzero_brain(image.data), image.affine) <= STRIPPED_LITRES[1]


def stated_skull_stripped(path: Path) -> bool | None:
    """``SkullStripped`` of the BIDS sidecar beside an image; None without a sidecar or the field."""
    sidecar = sidecar_of(path)
    if not sidecar.is_file():
        return None
    try:
        return read_sidecar(path).get("SkullStripped")
    except ValueError as error:
        raise BadInputError(f"{sidecar}: {error}. Correct or remove it.") from error


def sidecar_of(path: Path) -> Path:
    """JSON file beside an image.

    >>> sidecar_of(Path("anat/sub-01_T1w.nii.gz")).as_posix()
    'anat/sub-01_T1w.json'
    """
    return path.with_name(path.name.removesuffix(".gz").rsplit(".", 1)[0] + ".json")


def nonzero_brain(data: np.ndarray) -> np.ndarray:
    """The largest connected component of voxels that are not 0, with holes filled."""
    parts, count = scipy.ndimage.label(data != 0)
    if count > 1:
        sizes = np.bincount(parts.ravel())
        sizes[0] = 0
        parts = parts == sizes.argmax()
    return np.asarray(scipy.ndimage.binary_fill_holes(parts), dtype=bool)


def litres(mask: np.ndarray, affine: np.ndarray) -> float:
    return float(np.count_nonzero(mask) * abs(np.linalg.det(affine[:3, :3])) * 1e-6)


def _deepbet_mask(image: T1wImage) -> np.ndarray:
    try:
        scan = nib.Nifti1Image(image.data, image.affine)  # type: ignore[no-untyped-call]
        _, mask, _ = _deepbet().run(scan)
    except (AssertionError, ValueError, IndexError, RuntimeError) as error:
        # deepbet raises these if its first network finds no brain
        raise BadInputError(
            f"{image.path}: deepbet finds no brain ({error or type(error).__name__}). Look at the scan."
        ) from error
    return np.asarray(mask.dataobj, dtype=bool)


@functools.cache
def _deepbet() -> Any:
    spec = importlib.util.find_spec("deepbet")
    if spec is None or spec.origin is None:
        raise MissingDataError(
            "brains are extracted by deepbet, which is not installed: pip install 'heatlas[extraction]', or give "
            "stripped images, masks (registration.mask_pattern) or SynthStrip (registration.brain_extraction)."
        )
    weights = Path(spec.origin).parents[1] / "data" / "models"
    for name in ("model.pt", "bbox_model.pt"):
        if not (weights / name).is_file():
            raise MissingDataError(f"{weights / name}: weights of deepbet are missing. Reinstall the package deepbet.")
    from deepbet import BrainExtraction

    return BrainExtraction(no_gpu=True)


SUFFIXES = (".nii.gz", ".nii")


def mask_path(input_root: Path, scan: Scan, pattern: str = "") -> Path:
    """Path of the mask of a scan, or of the T1-weighted image that it is registered through, existing or not.

    `input_root`: folder that the image paths of scans, and patterns, start from. `pattern`: as
    `RegistrationConfig.mask_pattern`; empty for the BIDS name beside the scan.
    """
    if pattern:
        return input_root / scan.filled_in(pattern)
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
    i, j, k = labels.shape
    source, target = Grid((i, j, k), affine), image.grid
    mask = (labels > 0).astype(np.int32)
    if not mask.any():
        raise BadInputError(f"{path}: the mask is empty. Give a mask of the brain.")
    if not source.same_as(target):
        try:
            mask = resample_labels(mask, source, target)
        except BadInputError as error:
            raise BadInputError(f"{path}: the mask does not overlap {image.path} ({error}).") from error
    if not mask.any():
        raise BadInputError(f"{path}: the mask does not overlap {image.path}. Give a mask in the space of the scan.")
    return np.asarray(mask > 0)


COMMAND = "mri_synthstrip"


def require_synthstrip(model: Path) -> None:
    if shutil.which(COMMAND) is None:
        raise MissingDataError(
            f"{COMMAND} is not on the PATH. Install FreeSurfer 7.3 or later, or choose another "
            "registration.brain_extraction."
        )
    if not model.is_file():
        raise MissingDataError(
            f"{model}: no such file. Give the weights of SynthStrip as registration.synthstrip_model."
        )


def synthstrip_mask(image: T1wImage, model: Path) -> np.ndarray:
    """Brain mask of a scan by SynthStrip, on the voxels of the scan; `model` holds the weights."""
    require_synthstrip(model)
    with tempfile.TemporaryDirectory(prefix="synthstrip_") as name:
        scan, mask = Path(name) / "scan.nii.gz", Path(name) / "mask.nii.gz"
        stored = nib.Nifti1Image(image.data, image.affine)  # type: ignore[no-untyped-call]
        stored.to_filename(scan)
        command = [COMMAND, "-i", str(scan), "-m", str(mask), "--model", str(model)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode or not mask.is_file():
            output = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
            raise BadInputError(
                f"{image.path}: {COMMAND} ended with code {done.returncode} and {'a' if mask.is_file() else 'no'} mask "
                f"({output}). Run it by hand on this scan."
            )
        return read_mask(mask, image)
