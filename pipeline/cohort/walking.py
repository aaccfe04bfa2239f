"""Which files lie below an input folder, without following links out of it or in circles."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

IMAGE_SUFFIXES = (".nii", ".nii.gz")


@dataclass(frozen=True)
class InputFiles:
    """Files below an input folder, as paths relative to it with POSIX separators, sorted.

    Parameters
    ----------
    images : tuple of str
        NIfTI files.
    tables : tuple of str
        CSV files.
    dicom_count : int
        Files that end in ``.dcm``.
    linked_folders : tuple of str
        Links to folders; not followed, so that no loop is possible.
    unreadable : tuple of str
        Folders that could not be listed.
    """

    images: tuple[str, ...]
    tables: tuple[str, ...]
    dicom_count: int
    linked_folders: tuple[str, ...]
    unreadable: tuple[str, ...]


def walk_input(root: Path, enter: Callable[[str], bool] = lambda folder: True) -> InputFiles:
    """List the images and tables below a folder; hidden files and folders are left out.

    Parameters
    ----------
    root : Path
    enter : callable
        Whether to enter a folder, given its path relative to `root`.
    """
    images: list[str] = []
    tables: list[str] = []
    linked: list[str] = []
    unreadable: list[str] = []
    dicom_count = 0

    def cannot_list(error: OSError) -> None:
        unreadable.append(_relative(str(error.filename), root))

    for folder, folders, files in os.walk(root, onerror=cannot_list):
        here = _relative(folder, root)
        prefix = "" if here == "." else here + "/"
        visible = sorted(name for name in folders if not name.startswith(".") and enter(prefix + name))
        links = {name for name in visible if os.path.islink(os.path.join(folder, name))}  # noqa: PTH114, PTH118 speed
        linked += [prefix + name for name in sorted(links)]
        folders[:] = [name for name in visible if name not in links]
        for name in files:
            lower = name.lower()
            if name.startswith("."):
                continue
            if lower.endswith(IMAGE_SUFFIXES):
                images.append(prefix + name)
            elif lower.endswith(".csv"):
                tables.append(prefix + name)
            elif lower.endswith(".dcm"):
                dicom_count += 1
    return InputFiles(
        tuple(sorted(images)), tuple(sorted(tables)), dicom_count, tuple(sorted(linked)), tuple(sorted(unreadable))
    )


def image_stem(name: str) -> str:
    """File name without its NIfTI suffix.

    Examples
    --------
    >>> image_stem("sub-01/anat/sub-01_T1w.nii.gz")
    'sub-01_T1w'
    """
    base = name.rsplit("/", 1)[-1]
    for suffix in sorted(IMAGE_SUFFIXES, key=len, reverse=True):
        if base.lower().endswith(suffix):
            return base[: -len(suffix)]
    return base


def _relative(path: str, root: Path) -> str:
    return os.path.relpath(path, root).replace(os.sep, "/")
