"""Which files of an input folder are images, by name and first bytes, and which links are followed.

A link out of the input is followed only if the user says so (``--follow-links``). The choice holds for the reading of a
whole input, hence a context and no argument of twenty functions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
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

    Names that end in numbers are common (UIDs). Of an unreadable file, reading its header reports the problem.
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


def dicom_files(file: Path) -> tuple[str, ...]:
    """Names of the DICOM files in the folder of one of them, sorted; hidden files are left out."""
    try:
        names = sorted(os.listdir(file.parent))  # noqa: PTH208 names are wanted
    except OSError:
        return ()
    return tuple(n for n in names if not n.startswith(".") and not is_nifti(n) and is_dicom(str(file.parent), n))


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


_FOLLOWED: ContextVar[bool] = ContextVar("links out of the input are followed", default=False)


@contextmanager
def following_links(followed: bool) -> Iterator[None]:
    """Follow links out of the input folder while an input is read, or do not."""
    token = _FOLLOWED.set(followed)
    try:
        yield
    finally:
        _FOLLOWED.reset(token)


def are_followed() -> bool:
    """Whether links out of the input folder are followed."""
    return _FOLLOWED.get()


def link_problem(root: Path, image: str) -> str | None:
    """Why a path must not be followed: it leads out of the input folder, nowhere, or in a circle."""
    path = root / image
    if Path(image).is_absolute() or ".." in Path(image).parts:
        return "a path outside the input folder: give one relative to it"
    if not path.is_symlink() and not any((root / parent).is_symlink() for parent in Path(image).parents):
        return None
    try:
        target = path.resolve(strict=True)
    except PermissionError:
        return "no permission to read it"
    except (OSError, RuntimeError):  # RuntimeError: a loop of links, in Python 3.11
        return dead_link(path)
    if not target.is_relative_to(root) and not are_followed():
        # The target is not named: its path may contain the name of a person.
        return "a link to a file outside the input folder: copy the file into it, or give --follow-links"
    return None


def dead_link(path: Path) -> str:
    """What is wrong with a link that cannot be followed: a circle, a file that DataLad has not fetched, or no file."""
    try:
        target = path.resolve()
    except (OSError, RuntimeError):
        return "a link in a circle"
    if target.is_symlink():  # Python 3.13 and later give the link of the circle back
        return "a link in a circle"
    if any(pair == (".git", "annex") for pair in zip(target.parts, target.parts[1:], strict=False)):
        return "a link that leads nowhere: its content has not been fetched; run `datalad get` in the dataset"
    return "a link that leads nowhere"


def leads_in_a_circle(root: Path, folder: str) -> bool:
    """Whether a linked folder, by its path from `root`, holds itself or a folder on the way to it."""
    target = (root / folder).resolve()
    above = [root, *(root / parent for parent in Path(folder).parents)]
    return any(place.resolve().is_relative_to(target) for place in above)


def is_dead(folder: str, name: str) -> bool:
    """Whether a name is that of a link that leads nowhere, or in a circle."""
    path = os.path.join(folder, name)  # noqa: PTH118 speed
    return os.path.islink(path) and not os.path.exists(path)  # noqa: PTH110, PTH114 speed
