"""Duplicate images: a copied or linked file that would enter as another scan.

Many of 10,000 scans of one protocol have the same size, so a piece from the middle is compared before whole files are
read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from pathlib import Path

from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.plain_text import counted, listed
from heatlas.pipeline.run.work.digests import file_digest

_PIECE = 65_536


def same_images(root: Path, scans: Iterable[Scan]) -> list[tuple[Scan, ...]]:
    """Scans whose files have the same bytes, in the order given.

    A DICOM series is compared by its first file, which holds unique identifiers.
    """
    groups: list[list[Scan]] = [list(scans)]
    for trait in (lambda path: path.stat().st_size, _middle, file_digest):
        groups = [part for group in groups for part in _alike(root, group, trait)]
    return [tuple(group) for group in groups]


def _alike(root: Path, scans: Sequence[Scan], trait: Callable[[Path], object]) -> list[list[Scan]]:
    """Groups of scans that share a trait of their file; unique scans are left out."""
    found: dict[object, list[Scan]] = {}
    for scan in scans:
        try:
            found.setdefault(trait(root / scan.file), []).append(scan)
        except OSError:  # reported where the image is read
            continue
    return [group for group in found.values() if len(group) > 1]


def _middle(path: Path) -> str:
    with path.open("rb") as handle:
        handle.seek(max(0, path.stat().st_size - _PIECE) // 2)
        return hashlib.sha256(handle.read(_PIECE)).hexdigest()


def same_images_note(groups: Sequence[Sequence[Scan]]) -> str:
    """A note on images that exist under several names; empty if there are none."""
    if not groups:
        return ""
    named = listed(" = ".join(scan.name for scan in group) for group in groups)
    images = counted(len(groups), "image", "is")
    return f"{images} used as several scans, byte for byte; find out whom each shows and remove the copies: {named}"


def same_kinds_note(root: Path, scans: Iterable[Scan]) -> str:
    """A note on sessions whose images of different kinds are one image; empty if there are none."""
    named = [scan.name for scan in scans if _has_one_image_twice([scan.file, scan.t1w, *scan.further], root)]
    if not named:
        return ""
    return (
        f"{counted(len(named), 'session', 'has', 'sessions')} one image as two kinds, byte for byte; find out which "
        f"kind it is and correct the other: {listed(named, 3)}"
    )


def _has_one_image_twice(paths: Iterable[str | None], root: Path) -> bool:
    files = [root / path for path in dict.fromkeys(paths) if path]
    try:
        return len(files) > 1 and any(
            one.stat().st_size == other.stat().st_size and file_digest(one) == file_digest(other)
            for one, other in combinations(files, 2)
        )
    except OSError:  # reported where the image is read
        return False
