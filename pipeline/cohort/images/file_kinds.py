"""Tell NIfTI from DICOM files by their names and first bytes.

Apart from the walk through an input folder, because conversion needs this too, and hours of registration must not
depend on how folders are walked.
"""

from __future__ import annotations

import os
from pathlib import Path

from heatlas.pipeline.run.documents import irregular_kind

IMAGE_SUFFIXES = (".nii", ".nii.gz")
MGZ = ".mgz"
"""Ending of images of FreeSurfer, which are read and never written."""
DICOM_SUFFIXES = (".dcm", ".ima", ".dicom")


def is_irregular(folder: str, name: str) -> bool:
    """Whether a name is that of a named pipe, a socket or a device; unreadable files are left to their reader."""
    try:
        return irregular_kind(os.path.join(folder, name)) is not None  # noqa: PTH118 speed
    except OSError:
        return False


def is_dicom(folder: str, name: str) -> bool:
    """Whether a file is taken for DICOM: by its ending, or without one by the four letters after its preamble.

    Names that end in numbers are common (UIDs). An unreadable file may be a slice, so it counts as DICOM, and reading
    its header reports the problem.
    """
    ending = os.path.splitext(name)[1].lower()  # noqa: PTH122 speed
    if ending in DICOM_SUFFIXES:
        return True
    if name == "DICOMDIR" or (ending and not ending[1:].isdigit()):
        return False
    if is_irregular(folder, name):
        return False
    try:
        with open(os.path.join(folder, name), "rb") as handle:  # noqa: PTH118, PTH123 speed
            return handle.read(132)[128:] == b"DICM"
    except PermissionError:
        return True
    except OSError:
        return False


def dicom_files(one: Path) -> tuple[str, ...]:
    """Names of the DICOM files in the folder of one of them, sorted; hidden files are left out."""
    try:
        names = sorted(os.listdir(one.parent))  # noqa: PTH208 names are wanted
    except OSError:
        return ()
    return tuple(n for n in names if not n.startswith(".") and not is_nifti(n) and is_dicom(str(one.parent), n))


def is_nifti(name: str) -> bool:
    """Whether a file is NIfTI by its name."""
    return name.lower().endswith(IMAGE_SUFFIXES)


def is_image(name: str) -> bool:
    """Whether a file is read as it is: NIfTI, or an image of FreeSurfer.

    >>> is_image("mri/T1.MGZ"), is_image("T1.nii.gz"), is_image("T1.mgh")
    (True, True, False)
    """
    return is_nifti(name) or name.lower().endswith(MGZ)


def image_stem(name: str) -> str:
    """File name without the suffix of its format.

    >>> image_stem("sub-01/anat/sub-01_T1w.nii.gz")
    'sub-01_T1w'
    """
    base = name.rsplit("/", 1)[-1]
    for suffix in (*sorted(IMAGE_SUFFIXES, key=len, reverse=True), MGZ):
        if base.lower().endswith(suffix):
            return base[: -len(suffix)]
    return base
