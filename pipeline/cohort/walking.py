"""Find the files in an input folder without following links to folders."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.run.plain_text import plain
from pipeline.run.regular_files import irregular_kind

IMAGE_SUFFIXES = (".nii", ".nii.gz")
DICOM_SUFFIXES = (".dcm", ".ima", ".dicom")
FOREIGN_SUFFIXES = (
    *(".hdr", ".mgz", ".mgh", ".mnc", ".nrrd", ".nhdr", ".head"),
    *(".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".7z", ".rar"),
)
"""Archives, and images in unsupported formats (the header file if an image has two files)."""


@dataclass(frozen=True)
class InputFiles:
    """Files below an input folder, as paths relative to it with POSIX separators, sorted."""

    images: tuple[str, ...]  # NIfTI files
    tables: tuple[str, ...]  # CSV files
    # Names of DICOM files by folder: those that end in ``.dcm`` or ``.ima``, and those without a letter ending that
    # begin as DICOM does
    dicom: Mapping[str, tuple[str, ...]]
    metadata: tuple[str, ...]  # XML files
    linked_folders: tuple[str, ...]  # links to folders; not followed, so that loops are impossible
    unreadable: tuple[str, ...]  # folders that could not be listed
    foreign: tuple[str, ...]  # images of other formats, and archives, which may contain images
    irregular: tuple[str, ...] = ()  # names of tables or XML files that are a named pipe, a socket or a device
    # Files and folders whose names are not UTF-8 or hold control characters, which a table cannot hold; escaped
    unwritable: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()  # halves of Analyze pairs (``.hdr``, ``.img``)
    workbooks: tuple[str, ...] = ()  # Excel files

    @property
    def dicom_count(self) -> int:
        return sum(map(len, self.dicom.values()))


def walk_input(root: Path, enter: Callable[[str], bool] = lambda folder: True) -> InputFiles:
    """List the files below a folder, without hidden ones; `enter` says, by relative path, whether to enter a folder."""
    images: list[str] = []
    tables: list[str] = []
    metadata: list[str] = []
    dicom: dict[str, tuple[str, ...]] = {}
    linked: list[str] = []
    unreadable: list[str] = []
    foreign: list[str] = []
    irregular: list[str] = []
    unwritable: list[str] = []
    pairs: list[str] = []
    workbooks: list[str] = []

    def cannot_list(error: OSError) -> None:
        unreadable.append(_relative(str(error.filename), root))

    for folder, folders, files in os.walk(root, onerror=cannot_list):
        here = _relative(folder, root)
        prefix = "" if here == "." else here + "/"
        unwritable += [plain(prefix + name, lines=False) for name in (*folders, *files) if _is_unwritable(name)]
        folders[:] = [name for name in folders if not _is_unwritable(name)]
        visible = sorted(name for name in folders if not name.startswith(".") and enter(prefix + name))
        links = {name for name in visible if os.path.islink(os.path.join(folder, name))}  # noqa: PTH114, PTH118 speed
        linked += [prefix + name for name in sorted(links)]
        folders[:] = [name for name in visible if name not in links]
        series = []
        for name in files:
            lower = name.lower()
            if name.startswith(".") or _is_unwritable(name):
                continue
            if lower.endswith((".hdr", ".img")):
                pairs.append(prefix + name)
            if lower.endswith(IMAGE_SUFFIXES):
                images.append(prefix + name)
            elif lower.endswith((".csv", ".xml")):
                found = irregular if _is_irregular(folder, name) else tables if lower.endswith(".csv") else metadata
                found.append(prefix + name)
            elif lower.endswith(".xlsx"):
                workbooks.append(prefix + name)
            elif lower.endswith(FOREIGN_SUFFIXES):
                foreign.append(prefix + name)
            elif _is_dicom(folder, name):
                series.append(name)
        if series:
            dicom[here] = tuple(sorted(series))
    return InputFiles(
        images=tuple(sorted(images)),
        tables=tuple(sorted(tables)),
        dicom=dict(sorted(dicom.items())),
        metadata=tuple(sorted(metadata)),
        linked_folders=tuple(sorted(linked)),
        unreadable=tuple(sorted(unreadable)),
        foreign=tuple(sorted(foreign)),
        irregular=tuple(sorted(irregular)),
        unwritable=tuple(sorted(unwritable)),
        pairs=tuple(sorted(pairs)),
        workbooks=tuple(sorted(workbooks)),
    )


def _is_unwritable(name: str) -> bool:
    return plain(name, lines=False) != name


def _is_irregular(folder: str, name: str) -> bool:
    """Whether a name is that of a named pipe, a socket or a device; unreadable files are left to their reader."""
    try:
        return irregular_kind(os.path.join(folder, name)) is not None  # noqa: PTH118 speed
    except OSError:
        return False


def _is_dicom(folder: str, name: str) -> bool:
    """Whether a file is taken for DICOM: by its ending, or without one by the four letters after its preamble.

    Names that end in numbers are common (UIDs). An unreadable file may be a slice, so it counts as DICOM, and reading
    its header reports the problem.
    """
    ending = os.path.splitext(name)[1].lower()  # noqa: PTH122 speed
    if ending in DICOM_SUFFIXES:
        return True
    if name == "DICOMDIR" or (ending and not ending[1:].isdigit()):
        return False
    if _is_irregular(folder, name):
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
    return tuple(n for n in names if not n.startswith(".") and not is_nifti(n) and _is_dicom(str(one.parent), n))


def is_nifti(name: str) -> bool:
    """Whether a file is NIfTI by its name."""
    return name.lower().endswith(IMAGE_SUFFIXES)


def image_stem(name: str) -> str:
    """File name without its NIfTI suffix.

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
