"""Manifests: a cohort as image ids and digests, so that cohorts can be shared without the scans.

A manifest is a table with the columns ``scan_id`` and ``sha256`` and its data dictionary. It holds no age, diagnosis or
path; these come with the images from their source. The digest is that of the image, not of the file: stored voxels,
data type, scaling, shape and affine. So compression, file name and free text in the header, which LONI rewrites for
each download, do not matter; a single voxel does. The digest of a DICOM series is that of its files.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import nibabel as nib
import numpy as np
import pandas as pd

from heatlas.atlases.images import UNREADABLE
from heatlas.pipeline.cohort.candidates import Candidate
from heatlas.pipeline.cohort.images.dicom import series_of
from heatlas.pipeline.cohort.images.file_kinds import dicom_files, is_image
from heatlas.pipeline.cohort.images.pairs import is_pair
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.cells import require_digests
from heatlas.pipeline.run.columns import Form
from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.plain_text import listed
from heatlas.pipeline.run.work.digests import file_digest, text_digest
from heatlas.pipeline.run.work.progress import Progress

MANIFEST_COLUMNS = {
    "scan_id": "Identifier of the image in its source (ADNI image id, or BIDS file name without suffix)",
    "sha256": "SHA-256 of voxels, data type, scaling, shape and affine of the image; n/a if only ids are compared",
}
COMPARISON_COLUMNS = {
    "scan_id": MANIFEST_COLUMNS["scan_id"],
    "status": "same; unchecked (no digest in the manifest); different (another image under this id); unreadable; "
    "dropped (found, and not usable here); missing (not found here); extra (usable here, not in the manifest)",
    "detail": "Why, where the status alone does not say it",
}
MANIFEST_TABLE = Table(
    "manifest", MANIFEST_COLUMNS, "image of a cohort", "Which images is a cohort made of?", stage="cohort",
    forms={"sha256": Form.TEXT}, on_pages=False,
)  # fmt: skip
MANIFEST_COMPARISON_TABLE = Table(
    "manifest_comparison", COMPARISON_COLUMNS, "image of the manifest or the input",
    "Does the input hold the images of the manifest? Written with a manifest.", stage="cohort",
    file="manifest_comparison.tsv", filled=("scan_id", "status"), forms={"detail": Form.TEXT}, on_pages=False,
)  # fmt: skip
Status = Literal["same", "unchecked", "different", "unreadable", "dropped", "missing", "extra"]
MATCHING: frozenset[Status] = frozenset({"same", "unchecked"})


@dataclass(frozen=True)
class Manifest:
    """Images of a cohort: digest (or None) by scan id."""

    digests: Mapping[str, str | None]

    @property
    def digest(self) -> str:
        """One digest of the whole cohort, independent of the order of images; for a publication."""
        return text_digest("\n".join(f"{name} {digest}" for name, digest in sorted(self.digests.items())))

    def write(self, path: Path) -> None:
        """Write the table and its data dictionary."""
        rows = sorted(self.digests.items())
        MANIFEST_TABLE.write(path, rows)

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read a manifest.

        BadInputError if the file is missing or not a manifest, an id appears twice, or a digest is invalid.
        """
        frame = MANIFEST_TABLE.read(path)
        ids = [str(name) for name in frame["scan_id"]]
        repeated = [name for name, count in Counter(ids).items() if count > 1]
        if repeated or frame["scan_id"].isna().any():
            what = f"scan_id {listed(repeated)} appears twice" if repeated else "a scan_id is missing"
            raise BadInputError(f"{path}: {what}. Export the manifest again.")
        require_digests(path, frame, "sha256", "Export the manifest again.")
        digests = [None if pd.isna(digest) else str(digest) for digest in frame["sha256"]]
        return cls(dict(zip(ids, digests, strict=True)))


@dataclass(frozen=True)
class Match:
    """Result for one image of a manifest, or for one that is not in it."""

    scan_id: str
    status: Status
    detail: str | None = None


def make_manifest(root: Path, scans: Sequence[Scan], ids_only: bool = False) -> Manifest:
    """Manifest of scans.

    BadInputError if an image cannot be read.

    `root`: folder that their images lie in; `scans`: kept ones; `ids_only`: leave out the digests, which require
    reading every voxel.
    """
    digests = {} if ids_only else _digests(root, scans)
    failed = [digest for digest in digests.values() if isinstance(digest, BadInputError)]
    if failed:
        raise failed[0]
    return Manifest({scan.scan_id: None if ids_only else str(digests[scan.scan_id]) for scan in scans})


def select(root: Path, candidates: Sequence[Candidate], manifest: Manifest) -> tuple[list[Candidate], list[Match]]:
    """Keep the images of a manifest, drop all others, and report the result for each.

    Images with another digest are dropped too. There is one match per image of the manifest, then one per usable image
    that is not in it.
    """
    wanted = [one.scan for one in candidates if one.scan.kept and one.scan.scan_id in manifest.digests]
    digests = _digests(root, [scan for scan in wanted if manifest.digests[scan.scan_id] is not None])
    reasons = {one.scan.scan_id: one.scan.reason for one in candidates if not one.scan.kept}
    usable = {scan.scan_id for scan in wanted}
    matches = {
        name: _match(name, digest, digests.get(name)) if name in usable else _absent(name, reasons)
        for name, digest in manifest.digests.items()
    }
    selected, extra = [], []
    for candidate in candidates:
        match = matches.get(candidate.scan.scan_id)
        if not candidate.scan.kept:
            selected.append(candidate)
        elif match is None:
            extra.append(Match(candidate.scan.scan_id, "extra"))
            selected.append(candidate.dropped("not in the manifest"))
        elif match.status in MATCHING:
            selected.append(candidate)
        else:
            selected.append(candidate.dropped(f"{match.status}, compared with the manifest: {match.detail}"))
    return selected, [*matches.values(), *extra]


def write_comparison(where: RunLayout | Path, matches: Iterable[Match]) -> None:
    """Write the result of matching a manifest, one row per image."""
    MANIFEST_COMPARISON_TABLE.write(where, [(match.scan_id, match.status, match.detail) for match in matches])


def _match(name: str, expected: str | None, found: str | BadInputError | None) -> Match:
    if expected is None:
        return Match(name, "unchecked")
    if isinstance(found, BadInputError):
        return Match(name, "unreadable", str(found))
    return Match(name, "same") if found == expected else Match(name, "different", f"sha256 {found}, not {expected}")


def _absent(name: str, reasons: Mapping[str, str | None]) -> Match:
    return Match(name, "dropped", reasons[name]) if name in reasons else Match(name, "missing")


def _digests(root: Path, scans: Sequence[Scan]) -> dict[str, str | BadInputError]:
    """Digest of each image, or its error; in threads, since unpacking and hashing release Python's lock."""

    def digest(scan: Scan) -> str | BadInputError:
        try:
            one_file = is_image(scan.file) or is_pair(scan.file)
            own = image_digest(root / scan.file) if one_file else _series_digest(root, scan.file)
            others = [image_digest(root / path) for path in (scan.t1w, *scan.further) if path]
            return text_digest(" ".join([own, *others])) if others else own
        except BadInputError as error:
            return BadInputError(str(error).replace(f"{root}/", ""))

    with ThreadPoolExecutor(os.cpu_count()) as pool, Progress(len(scans), "Reading images") as bar:
        found = {}
        for scan, result in zip(scans, pool.map(digest, scans), strict=True):
            found[scan.scan_id] = result
            bar.update()
    return found


def _series_digest(root: Path, image: str) -> str:
    """One digest of the files of a DICOM series, whatever their names."""
    series = series_of(root, image, dicom_files(root / image), math.inf)
    if series is None:
        raise BadInputError(f"{root / image}: belongs to no DICOM series. Download the scan again.")
    try:
        return text_digest("\n".join(sorted(file_digest(root / file) for file in series.files)))
    except OSError as error:
        raise BadInputError(f"{root / image}: a file of its series cannot be read ({error.strerror}).") from error


def image_digest(path: Path) -> str:
    """SHA-256 of a NIfTI image: of its voxels as stored, their type, scaling, shape and affine."""
    try:
        image: Any = nib.load(path)
        stored = np.asarray(image.dataobj.get_unscaled())
    except UNREADABLE as error:
        raise BadInputError(f"{path}: cannot be read ({error}). Download or convert the scan again.") from error
    description = [
        list(stored.shape),
        stored.dtype.newbyteorder("=").str.lstrip("<>=|"),
        [float(value) for value in (image.dataobj.slope, image.dataobj.inter)],
        np.round(image.affine, 4).tolist(),
    ]
    digest = hashlib.sha256(repr(description).encode())
    little = stored.astype(stored.dtype.newbyteorder("<"), copy=False)
    digest.update(little.tobytes(order="F"))
    return digest.hexdigest()
