"""SynthStrip (Hoopes et al. 2022, doi:10.1016/j.neuroimage.2022.119474), if the user has installed it.

Its weights come with FreeSurfer, whose licence does not allow redistribution, so the user's command ``mri_synthstrip``
is called with the weights file named in the settings.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import nibabel as nib
import numpy as np

from heatlas.pipeline.registration.images.given_masks import read_mask
from heatlas.pipeline.registration.images.t1w import T1wImage
from heatlas.pipeline.run.errors import BadInputError, MissingDataError

COMMAND = "mri_synthstrip"


def require_synthstrip(model: Path) -> None:
    """Check before any work that the command and its weights exist."""
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
