"""The scan table: one row per scan found, kept or dropped with a reason.

Words: a *participant* is a person, a *session* a visit, a *scan* one T1-weighted image of a session. The *label*
of a scan is its class in the contrast under study (by default diagnosis, CN against AD); scans outside the
contrast, such as MCI, are kept and registered but have no label and take no part in training.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from pipeline.run.errors import BadInputError
from pipeline.run.tables import read_table, write_table

SCAN_COLUMNS = {
    "participant_id": "BIDS participant, with the prefix sub-",
    "session_id": "BIDS session, with the prefix ses-; n/a where the input has no sessions",
    "scan_id": "Identifier of the image in its source (ADNI image id, or BIDS file name without suffix)",
    "image": "Path of the image relative to the input folder, POSIX separators; n/a for a row without an image",
    "diagnosis": "Diagnosis at the visit of the scan: CN, MCI or AD",
    "label": "Class in the contrast of this run; n/a outside the contrast",
    "age": "Age at the scan in years",
    "sex": "F or M",
    "site": "Acquisition site",
    "field_strength": "Magnetic field in tesla",
    "apoe4": "Number of APOE e4 alleles",
    "mmse": "Mini-Mental State Examination at the visit",
    "cdr": "Clinical Dementia Rating (global) at the visit",
    "tiv_mm3": "Total intracranial volume in mm3",
    "hippocampus_mm3": "Volume of both hippocampi in mm3",
    "hippocampus_source": "Where the hippocampal volume comes from",
    "kept": "true if the scan is used",
    "reason": "Why the scan was dropped; n/a if kept",
}
"""Columns of ``scans.tsv`` and their descriptions (the BIDS data dictionary)."""


@dataclass(frozen=True)
class Scan:
    """One row of the scan table; see `SCAN_COLUMNS` for units."""

    participant_id: str
    session_id: str | None
    scan_id: str
    image: str | None
    diagnosis: str | None = None
    label: str | None = None
    age: float | None = None
    sex: str | None = None
    site: str | None = None
    field_strength: float | None = None
    apoe4: int | None = None
    mmse: float | None = None
    cdr: float | None = None
    tiv_mm3: float | None = None
    hippocampus_mm3: float | None = None
    hippocampus_source: str | None = None
    kept: bool = True
    reason: str | None = None

    @property
    def name(self) -> str:
        """Participant and session joined as in BIDS file names."""
        return "_".join(part for part in (self.participant_id, self.session_id) if part)

    def dropped(self, reason: str) -> Scan:
        """The same scan, not used, and why."""
        return dataclasses.replace(self, kept=False, reason=reason)


@dataclass(frozen=True)
class ScanTable:
    """All scans found in an input, sorted by participant, session and scan.

    Raises
    ------
    BadInputError
        If two kept scans share participant and session, or a scan_id: predictions and maps are matched by it.
    """

    scans: tuple[Scan, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "scans", tuple(sorted(self.scans, key=_sort_key)))
        seen: set[str] = set()
        by_id: dict[str, Scan] = {}
        for scan in self.kept:
            if scan.name in seen:
                raise BadInputError(f"{scan.name}: two scans of one session are kept; all but one must be dropped.")
            seen.add(scan.name)
            other = by_id.setdefault(scan.scan_id, scan)
            if other is not scan:
                raise BadInputError(
                    f"scan_id {scan.scan_id} is that of two scans, {_described(other)} and {_described(scan)}. Remove "
                    "or rename one of the images."
                )

    def __iter__(self) -> Iterator[Scan]:
        return iter(self.scans)

    def __len__(self) -> int:
        return len(self.scans)

    @property
    def kept(self) -> tuple[Scan, ...]:
        return tuple(scan for scan in self.scans if scan.kept)

    @property
    def labelled(self) -> tuple[Scan, ...]:
        """Kept scans inside the contrast."""
        return tuple(scan for scan in self.kept if scan.label is not None)

    def frame(self) -> pd.DataFrame:
        """The table as a data frame with the columns of `SCAN_COLUMNS`."""
        rows = [dataclasses.asdict(scan) for scan in self.scans]
        frame = pd.DataFrame(rows, columns=list(SCAN_COLUMNS))
        return frame.astype({"apoe4": "Int64"})

    def write(self, path: Path) -> None:
        """Write ``scans.tsv`` and its data dictionary."""
        write_table(path, self.frame(), SCAN_COLUMNS)

    @classmethod
    def read(cls, path: Path) -> ScanTable:
        """Read ``scans.tsv``.

        Raises
        ------
        BadInputError
            If a column is missing or unknown.
        """
        text = [f.name for f in dataclasses.fields(Scan) if f.type in ("str", "str | None")]
        frame = read_table(path, required=list(SCAN_COLUMNS), text_columns=text)
        unknown = [name for name in frame.columns if name not in SCAN_COLUMNS]
        if unknown:
            raise BadInputError(f"{path}: unknown column {', '.join(unknown)}; known are {', '.join(SCAN_COLUMNS)}.")
        if not len(frame):
            return cls(())
        rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
        for row in rows:
            row["kept"] = bool(row["kept"])
            row["apoe4"] = None if row["apoe4"] is None else int(row["apoe4"])
        return cls(tuple(Scan(**{str(k): v for k, v in row.items()}) for row in rows))


def _described(scan: Scan) -> str:
    return f"{scan.name} ({scan.image or 'no image'})"


def _sort_key(scan: Scan) -> tuple[str, str, str]:
    return scan.participant_id, scan.session_id or "", scan.scan_id
