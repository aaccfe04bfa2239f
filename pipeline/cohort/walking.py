"""Find the files in an input folder; links to folders are followed only with ``--follow-links``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from heatlas.pipeline.cohort.cells.workbooks import SUFFIXES
from heatlas.pipeline.cohort.images.file_kinds import is_dicom, is_irregular, is_nifti
from heatlas.pipeline.cohort.images.links import are_followed, is_dead, leads_in_a_circle
from heatlas.pipeline.run.plain_text import plain

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
    linked_folders: tuple[str, ...]  # links to folders that are not followed; with --follow-links those in a circle
    unreadable: tuple[str, ...]  # folders that could not be listed
    foreign: tuple[str, ...]  # images of other formats, and archives, which may contain images
    irregular: tuple[str, ...] = ()  # names of tables or XML files that are a named pipe, a socket or a device
    # Files and folders whose names are not UTF-8 or hold control characters, which a table cannot hold; escaped
    unwritable: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()  # halves of Analyze pairs (``.hdr``, ``.img``)
    workbooks: tuple[str, ...] = ()  # Excel and OpenDocument files
    dead_links: tuple[str, ...] = ()  # links that lead nowhere and may stand for a folder: names without an ending

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
    dead: list[str] = []

    def cannot_list(error: OSError) -> None:
        unreadable.append(_relative(str(error.filename), root))

    for folder, folders, files in os.walk(root, onerror=cannot_list, followlinks=are_followed()):
        here = _relative(folder, root)
        prefix = "" if here == "." else here + "/"
        unwritable += [plain(prefix + name, lines=False) for name in (*folders, *files) if _is_unwritable(name)]
        folders[:] = [name for name in folders if not _is_unwritable(name)]
        visible = sorted(name for name in folders if not name.startswith(".") and enter(prefix + name))
        links = _not_followed(root, folder, prefix, visible)
        linked += [prefix + name for name in sorted(links)]
        folders[:] = [name for name in visible if name not in links]
        dead += [prefix + name for name in files if "." not in name and is_dead(folder, name)]
        series = []
        for name in files:
            lower = name.lower()
            if name.startswith(".") or _is_unwritable(name):
                continue
            if lower.endswith((".hdr", ".img")):
                pairs.append(prefix + name)
            if is_nifti(name):
                images.append(prefix + name)
            elif lower.endswith((".csv", ".xml")):
                found = irregular if is_irregular(folder, name) else tables if lower.endswith(".csv") else metadata
                found.append(prefix + name)
            elif lower.endswith(SUFFIXES):
                workbooks.append(prefix + name)
            elif lower.endswith(FOREIGN_SUFFIXES):
                foreign.append(prefix + name)
            elif is_dicom(folder, name):
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
        dead_links=tuple(sorted(dead)),
    )


def _not_followed(root: Path, folder: str, prefix: str, names: Iterable[str]) -> set[str]:
    """Links among the names of folders: all of them, or if links are followed those that lead in a circle."""
    links = {name for name in names if os.path.islink(os.path.join(folder, name))}  # noqa: PTH114, PTH118 speed
    return {name for name in links if leads_in_a_circle(root, prefix + name)} if are_followed() else links


def _is_unwritable(name: str) -> bool:
    return plain(name, lines=False) != name


def _relative(path: str, root: Path) -> str:
    return os.path.relpath(path, root).replace(os.sep, "/")
