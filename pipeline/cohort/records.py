"""The scan table: one row per scan found, kept or dropped with a reason.

A *participant* is a person, a *session* a visit, a *scan* one image of a session, T1-weighted by default. The *label*
of a scan is its class in the contrast under study (by default diagnosis, CN against AD). Scans outside the contrast,
such as MCI, are kept and registered, but have no label and are not used for training.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from heatlas.pipeline.run.declared import Table, declared
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import require_filled, require_known, require_numbers, require_whole

OLDEST_AGE = 89.0
"""Ages above are written as this one (see `pipeline.cohort.sharing`)."""


SCANS_TABLE = declared("scans", __file__)
SCAN_COLUMNS = SCANS_TABLE.meanings
CLINICAL_TABLE = Table(
    "clinical",
    {},
    "scan",
    "What else is known of people at the visit? Its columns are those of the input.",
    stage="cohort",
    file="clinical.tsv",
    finite=True,
)


ENTRIES = ("scan", "brain", "template")
"""Possible states of an image."""


@dataclass(frozen=True)
class Scan:
    """One row of the scan table; see `SCAN_COLUMNS` for units."""

    participant_id: str
    session_id: str | None
    scan_id: str
    image: str | None
    diagnosis: str | None = None
    label: str | None = None
    entry: str = "scan"
    diagnosis_source: str | None = None
    progression: str | None = None
    age: float | None = None
    sex: str | None = None
    site: str | None = None
    field_strength: float | None = None
    apoe4: int | None = None
    mmse: float | None = None
    cdr: float | None = None
    tiv_mm3: float | None = None
    tiv_source: str | None = None
    hippocampus_mm3: float | None = None
    hippocampus_left_mm3: float | None = None
    hippocampus_right_mm3: float | None = None
    hippocampus_source: str | None = None
    kept: bool = True
    reason: str | None = None
    location: str | None = None
    """Real path of the image if `image` is anonymised; never written."""
    t1w: str | None = None
    """Path, relative to the input folder, of the T1-weighted image that an image of another kind is registered through;
    a column of no table."""
    further: tuple[str, ...] = ()
    """Paths, relative to the input folder, of the images of the further kinds; a column of no table."""

    @property
    def file(self) -> str:
        """Path of the image relative to the input folder, for opening it; must never be written to outputs."""
        return self.location or self.image or ""

    @property
    def name(self) -> str:
        """Participant and session joined as in BIDS file names."""
        return "_".join(part for part in (self.participant_id, self.session_id) if part)

    @property
    def place(self) -> tuple[str, tuple[str | int, ...], str]:
        """Where the scan stands among others: by participant, visit and identifier; session 9 before session 10."""
        pieces = re.split(r"(\d+)", self.session_id or "")
        return self.participant_id, tuple(int(piece) if piece.isdigit() else piece for piece in pieces), self.scan_id

    def dropped(self, reason: str) -> Scan:
        return dataclasses.replace(self, kept=False, reason=reason)

    def filled_in(self, pattern: str) -> str:
        """A pattern of the settings, such as ``{name}_mask.nii.gz``, for this scan."""
        names = {"participant_id": self.participant_id, "session_id": self.session_id or "", "name": self.name}
        return pattern.format(**names, scan_id=self.scan_id)


@dataclass(frozen=True)
class FollowUp:
    """Follow-up of someone without dementia; months from the diagnosis at the scan."""

    converted: bool  # whether AD was diagnosed and is the last diagnosis (before a dementia of another cause)
    months_to_conversion: float | None  # until the first diagnosis of AD; None if there was none
    # Until the last diagnosis, 0 if there was none after the scan; a dementia of another cause ends it
    months_followed: float
    other_dementia: bool = False  # whether a dementia of another cause, without AD before, ended it: a competing event


@dataclass(frozen=True)
class ScanTable:
    """All scans found in an input, sorted by participant, session and scan.

    Refused if two kept scans share a session, or a scan_id, by which predictions and maps are matched.
    """

    scans: tuple[Scan, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "scans", tuple(sorted(self.scans, key=lambda scan: scan.place)))
        seen: set[str] = set()
        by_id: dict[str, Scan] = {}
        for scan in self.kept:
            if scan.name in seen:
                raise BadInputError(f"{scan.name}: two scans of one session are kept; all but one must be dropped.")
            seen.add(scan.name)
            other = by_id.setdefault(scan.scan_id, scan)
            if other is not scan:
                raise BadInputError(
                    f"scan_id {scan.scan_id} belongs to two scans, {_described(other)} and {_described(scan)}. Remove "
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
        rows = [dataclasses.asdict(scan) for scan in self.scans]
        frame = pd.DataFrame(rows, columns=list(SCAN_COLUMNS))
        return frame.astype({"apoe4": "Int64"})

    def write(self, where: RunLayout | Path) -> None:
        SCANS_TABLE.write(where, self.frame())

    @classmethod
    def read(cls, where: RunLayout | Path) -> ScanTable:
        """Read ``scans.tsv``; refused if it is not as `write` leaves it."""
        path, frame = SCANS_TABLE.path(where), SCANS_TABLE.read(where)
        unknown = [name for name in frame.columns if name not in SCAN_COLUMNS]
        if unknown:
            raise BadInputError(f"{path}: unknown column {', '.join(unknown)}; known are {', '.join(SCAN_COLUMNS)}.")
        if not len(frame):
            return cls(())
        require_whole(path)
        require_filled(path, frame, ["participant_id", "scan_id", "kept"])
        require_known(path, frame, "kept", (True, False))
        require_numbers(path, frame, [f.name for f in dataclasses.fields(Scan) if f.type == "float | None"])
        require_numbers(path, frame, ["apoe4"], whole=True)
        if "entry" in frame:
            require_known(path, frame, "entry", ENTRIES)
        rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
        for row in rows:
            row["kept"] = bool(row["kept"])
            row["apoe4"] = None if row["apoe4"] is None else int(row["apoe4"])
        try:
            return cls(tuple(Scan(**{str(k): v for k, v in row.items()}) for row in rows))
        except BadInputError as error:
            raise BadInputError(f"{path}: {error}") from error


def _described(scan: Scan) -> str:
    return f"{scan.name} ({scan.image or 'no image'})"
