"""One image under several names: a copied file, or a link, that enters as another scan.

Of 10,000 scans of one protocol many files have the same size, so a piece from the middle is compared before whole
files are read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pipeline.cohort.records import Scan
from pipeline.run.plain_text import counted, listed
from pipeline.run.work.digests import file_digest

_PIECE = 65_536


def same_images(root: Path, scans: Iterable[Scan]) -> list[tuple[Scan, ...]]:
    """Scans whose files have the same bytes, in the order given.

    Parameters
    ----------
    root : Path
    scans : iterable of Scan
        Those that are used; of a DICOM series the first file is compared, which holds identifiers of its own.
    """
    groups: list[list[Scan]] = [list(scans)]
    for trait in (_size, _middle, file_digest):
        groups = [part for group in groups for part in _alike(root, group, trait)]
    return [tuple(group) for group in groups]


def _alike(root: Path, scans: Sequence[Scan], trait: Callable[[Path], object]) -> list[list[Scan]]:
    """Scans that share a trait of their file; those that share it with none are left out."""
    found: dict[object, list[Scan]] = {}
    for scan in scans:
        try:
            found.setdefault(trait(root / scan.file), []).append(scan)
        except OSError:  # said where the image is read
            continue
    return [group for group in found.values() if len(group) > 1]


def _size(path: Path) -> int:
    return path.stat().st_size


def _middle(path: Path) -> str:
    with path.open("rb") as handle:
        handle.seek(max(0, path.stat().st_size - _PIECE) // 2)
        return hashlib.sha256(handle.read(_PIECE)).hexdigest()


def same_images_note(groups: Sequence[Sequence[Scan]]) -> str:
    """A note on images that are there under several names; empty without any."""
    if not groups:
        return ""
    named = listed(" = ".join(scan.name for scan in group) for group in groups)
    images = counted(len(groups), "image", "is")
    return f"{images} used as several scans, byte for byte; find out whose each is, and remove the copies: {named}"
