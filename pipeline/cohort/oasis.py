"""OASIS-1 and OASIS-2 as downloaded: their tables, and a folder per session with Analyze pairs, anywhere below.

The tables, CSV or workbook, are recognised by their columns, whatever they are called (downloads carry a digest in the
name). One row is one session: M/F, Age, Hand, education (levels 1 to 5 of OASIS-1, years of OASIS-2), MMSE, CDR, eTIV
(cm³), nWBV, ASF, and the days since the first session. Of OASIS-1 the average of a session's scans is used, of OASIS-2
the first scan (`KINDS`). Both come from one scanner of 1.5 T. Orientation: `pipeline.cohort.images.conversion`.

The diagnosis is that of the Clinical Dementia Rating: 0 is CN, above is AD, none is none (OASIS-1 rated hardly anybody
below 60). Participants are named as by Clinica, ``sub-OASIS10001``; a session by its months since the first
(``ses-M000``). A repeated session of OASIS-1 (``_MR2``, within 90 days) is at least month 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from heatlas.pipeline.cohort.candidates import Candidate, InputFiles
from heatlas.pipeline.cohort.cells import tables as text_tables
from heatlas.pipeline.cohort.cells import values
from heatlas.pipeline.cohort.cells.values import month_session, visit_of
from heatlas.pipeline.cohort.images.conversion import header_of, is_pair
from heatlas.pipeline.cohort.people.diagnosis import Diagnosis, cdr_diagnosis, follow_up
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import listed, note_on

SESSION = {"OAS1": "ID", "OAS2": "MRI ID"}
"""Column of the session by release."""
NAMES = {"OAS1": "oasis_cross-sectional", "OAS2": "oasis_longitudinal"}
REQUIRED = {"OAS1": ("M/F", "Age", "CDR"), "OAS2": ("M/F", "Age", "CDR", "Visit")}
DELAY = {"OAS1": "Delay", "OAS2": "MR Delay"}
COLUMNS: values.Columns = {
    "age": ("Age", values.positive),
    "sex": ("M/F", values.sex),
    "mmse": ("MMSE", values.score),
    "cdr": ("CDR", values.score),
    "tiv_mm3": ("tiv_mm3", values.positive),
}
"""Columns of either release that fill a scan; the intracranial volume is converted first."""
_MM3_PER_CM3 = 1000.0
_LARGEST_CM3 = 10_000.0


@dataclass
class OasisTable:
    """Rows by session as the source has them, the intracranial volume in mm³, and what is wrong with them."""

    name: str
    rows: dict[str, Mapping[str, str]] = field(default_factory=dict)
    impossible: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_oasis_table(root: Path, tables: Sequence[str], release: str) -> OasisTable:
    """Find and read the table of a release; refused if it is of another, lacks a column, or two disagree."""
    columns = {name: _columns(root / name) for name in tables}
    fitting = [name for name, names in columns.items() if SESSION[release] in names and "CDR" in names]
    of_release = [name for name in fitting if release != "OAS1" or "MRI ID" not in columns[name]]
    read_tables = {name: _read(root / name, release) for name in of_release}
    with_rows = {name: table for name, table in read_tables.items() if table.rows}
    if not with_rows:
        raise BadInputError(_no_table(root, columns, release))
    first, *others = with_rows.values()
    for other in others:
        differing = sorted(
            key
            for key, row in other.rows.items()
            if not all(_agree(first.rows.get(key, row), row, name) for name in row)
        )
        if differing:
            raise BadInputError(
                f"{root}: {first.name} and {other.name} disagree on {listed(differing, 3)}. Keep only one of them."
            )
        first.rows = {**other.rows, **first.rows}
    return first


def _agree(row: Mapping[str, str], other: Mapping[str, str], name: str) -> bool:
    """Whether two rows have the same value in a column, as a number where it is one, or one of them has none."""
    if name not in row or name not in other:
        return True
    return row[name] == other[name] or values.number(row[name]) == values.number(other[name]) is not None


def _columns(path: Path) -> list[str]:
    if path.suffix.lower() not in text_tables.SUFFIXES:
        return text_tables.read_header(path)
    try:
        return [str(name) for name in text_tables.read_workbook(path)[0].columns]
    except BadInputError:  # a workbook of something else
        return []


def _read(path: Path, release: str) -> OasisTable:
    table = OasisTable(path.name)
    frame, table.notes = text_tables.read_sheet(path)
    lacking = [name for name in REQUIRED[release] if name not in frame.columns]
    if lacking:
        raise BadInputError(
            f"{path}: column {', '.join(lacking)} is missing, so this is no {NAMES[release]} table as released; found: "
            f"{', '.join(map(str, frame.columns))}. Download it again from the page of OASIS-{release[-1]}."
        )
    by_session: dict[str, tuple[int, Mapping[str, str]]] = {}
    for line, cells in text_tables.filled_rows(frame):
        session = cells.get(SESSION[release], "")
        if not session.startswith(f"{release}_"):
            continue
        first, earlier = by_session.get(session, (line, cells))
        if differing := [name for name in earlier if not _agree(earlier, cells, name)]:
            pair = f"{differing[0]} {earlier[differing[0]]} and {cells[differing[0]]}"
            raise BadInputError(
                f"{path}: lines {first} and {line} are both of {session} and contradict each other ({pair}). Correct "
                "or remove one of them."
            )
        by_session[session] = first, {**cells, **earlier}
        row = text_tables.possible_cells(path.name, line, _in_mm3(cells, release), table.impossible)
        table.rows[session] = {**row, **table.rows.get(session, {})}
    return table


def _in_mm3(cells: Mapping[str, str], release: str) -> dict[str, str]:
    """Cells with the intracranial volume in mm³ as ``tiv_mm3``, and OASIS-2's years of education as ``education``."""
    row = dict(cells)
    volume = values.number(row.pop("eTIV", None))
    if volume is not None:
        row["tiv_mm3"] = str(volume * _MM3_PER_CM3 if volume < _LARGEST_CM3 else volume)
    if release == "OAS2" and "EDUC" in row:
        row["education"] = row.pop("EDUC")
    return row


def _no_table(root: Path, columns: Mapping[str, Sequence[str]], release: str) -> str:
    """Why there is no table of a release: none at all, or one of another release."""
    wanted = f"{NAMES[release]}.csv (or .xlsx) from the page of OASIS-{release[-1]}"
    other = "OAS1" if release == "OAS2" else "OAS2"
    for name, names in columns.items():
        if "CDR" in names and (SESSION[other] in names or any("OASIS" in text or text == "Subject" for text in names)):
            which = f"OASIS-{other[-1]}" if SESSION[other] in names else "another release"
            return (
                f"{root / name}: a table of {which}, and the images are of OASIS-{release[-1]}: no row is of a session "
                f"such as {release}_0001_MR1. Put {wanted} here."
            )
    seen = f"; tables seen: {listed(columns, 5)}" if columns else ""
    return f"{root}: no table with the sessions of OASIS-{release[-1]} and their CDR{seen}. Put {wanted} here."


SESSION_FOLDER = re.compile(r"(?P<release>OAS[12])_(?P<person>\d{4})_MR(?P<number>\d+)")
OASIS3_FOLDER = re.compile(r"(sub-)?OAS3\d{4}_MR_d\d{4,5}")
TESLA = 1.5


class ImageKind(NamedTuple):
    """Which image of a session is used."""

    folder: str
    name: re.Pattern[str]
    entry: str
    wanted: str


_PROCESSED = "PROCESSED/MPRAGE"
KINDS: Mapping[tuple[str, str], ImageKind] = {
    ("OAS1", "subject"): ImageKind(
        "SUBJ_111", re.compile(r".*_sbj_111"), "scan", f"{_PROCESSED}/SUBJ_111/*_sbj_111.img"
    ),
    ("OAS1", "atlas"): ImageKind(
        "T88_111", re.compile(r".*_t88_masked_gfc"), "brain", f"{_PROCESSED}/T88_111/*_t88_masked_gfc.img"
    ),
    ("OAS2", "subject"): ImageKind("RAW", re.compile(r"mpr-?(?P<number>\d+).*"), "scan", "RAW/mpr-1.nifti.img"),
}
"""The image by release and `CohortConfig.oasis_image`."""


def is_oasis(files: InputFiles) -> bool:
    return any(_session_of(path) for path in files.pairs)


def read_oasis(
    root: Path, files: InputFiles, config: CohortConfig, _space: str = ""
) -> tuple[list[Candidate], list[str]]:
    """Read a download: one candidate per session with any image, and notes."""
    sessions: dict[str, list[str]] = {}
    for path in files.pairs:
        if (session := _session_of(path)) is not None:
            sessions.setdefault(session, []).append(path)
    releases = sorted({session[:4] for session in sessions})
    if len(releases) > 1:
        raise BadInputError(
            f"{root}: holds OASIS-1 and OASIS-2. Some people are in both under other names, which no table tells, and "
            "would be trained on and tested. Give one of them."
        )
    release = releases[0]
    kind = KINDS.get((release, config.oasis_image))
    if kind is None:
        raise BadInputError(
            f'cohort.oasis_image = {config.oasis_image!r}: OASIS-{release[-1]} has no such image. Set "subject".'
        )
    table = read_oasis_table(root, (*files.tables, *files.workbooks), release)
    histories = _histories(table, release)
    images = {session: _images(paths, kind) for session, paths in sorted(sessions.items())}
    candidates = [_candidate(session, of, kind, table, histories, config) for session, of in images.items()]
    twice = [session for session in sessions if len(dict(images[session])) < len(images[session])]
    unscanned = sorted(set(table.rows) - set(sessions))
    diagnosed = sum("CDR" in table.rows[session] for session in unscanned)
    text = f"in {table.name} without an image here, {diagnosed} of them with a diagnosis"
    rowless = sorted(set(sessions) - set(table.rows))
    notes = [
        *table.notes,
        *text_tables.problem_notes(table.impossible),
        *note_on(twice, "session", "there more than once, the first by path is used", verb="is"),
        *note_on(unscanned, "session", text),
        *note_on(rowless, "session", f"with images but no row in {table.name}"),
    ]
    if config.oasis_image == "atlas":
        notes.append("images of T88_111 are scaled to an atlas, so volumes measured in them are relative (ASF)")
    return candidates, notes


def participant(session: str) -> str:
    """BIDS name of a participant, as Clinica's.

    >>> participant("OAS1_0001_MR1")
    'sub-OASIS10001'
    """
    release, person, _ = session.split("_")
    return f"sub-OASIS{release[-1]}{person}"


def session_name(session: str, row: Mapping[str, str]) -> str:
    """BIDS name of a session: months since the first, by days where the table has them.

    >>> session_name("OAS2_0001_MR2", {"MR Delay": "457"}), session_name("OAS1_0061_MR2", {"Delay": "3"})
    ('ses-M015', 'ses-M001')
    >>> session_name("OAS1_0001_MR1", {}), session_name("OAS1_0061_MR2", {})
    ('ses-M000', 'ses-MR2')
    """
    release, _, number = session.split("_")
    days = values.score(row.get(DELAY[release]))
    if number == "MR1":
        return month_session(0)
    return f"ses-{number}" if days is None else month_session(max(1, round(days / values.DAYS_PER_MONTH)))


def _session_of(path: str) -> str | None:
    return next((part for part in path.split("/")[:-1] if SESSION_FOLDER.fullmatch(part)), None)


def _candidate(
    session: str,
    images: Sequence[tuple[int, str]],
    kind: ImageKind,
    table: OasisTable,
    histories: Mapping[str, Sequence[Diagnosis]],
    config: CohortConfig,
) -> Candidate:
    row = table.rows.get(session, {})
    image = images[0][1] if images else None
    scan = Scan(participant(session), session_name(session, row), session, image, entry=kind.entry)
    if image is None:
        return Candidate(scan.dropped(f"not downloaded: no image {kind.wanted} in its folder"))
    if session not in table.rows:
        return Candidate(scan.dropped(f"no row in {table.name}"))
    facts = values.read_cells(row, COLUMNS)
    diagnosis = _diagnosis(facts["cdr"], config)
    filled = replace(
        scan,
        diagnosis=diagnosis,
        diagnosis_source=f"{table.name}: CDR" if diagnosis else None,
        field_strength=TESLA,
        tiv_source=None if facts["tiv_mm3"] is None else f"{table.name}: eTIV",
        **facts,
    )
    history = histories.get(scan.participant_id, ())
    at = next((past for past in history if past.session_id == scan.session_id), None)
    return Candidate(filled, row, follow_up=follow_up(history, at) if len(history) > 1 else None)


def _images(paths: Sequence[str], kind: ImageKind) -> list[tuple[int, str]]:
    """Number and path of the images of a session of a kind, the one that is used first."""
    images = set()
    for path in paths:
        folder, _, name = path.rpartition("/")
        stem = re.sub(r"(\.nifti)?\.(img|hdr)$", "", name, flags=re.IGNORECASE)
        match = kind.name.fullmatch(stem)
        if match is not None and folder.rpartition("/")[2] == kind.folder:
            number = int(match.groupdict().get("number") or 0)
            halves = (path[:-3] + ending for ending in ("img", "IMG"))
            images.add((number, path if is_pair(path) else next(image for image in halves if header_of(image) == path)))
    return sorted(images)


def _diagnosis(cdr: float | None, config: CohortConfig) -> str | None:
    """CN or AD by the CDR; by the stricter rule of the founding study if the settings say so."""
    if config.diagnosis_rule == "cdr":
        return cdr_diagnosis(cdr)
    return None if cdr is None else "CN" if cdr == 0 else "AD"


def _histories(table: OasisTable, release: str) -> dict[str, list[Diagnosis]]:
    """Diagnoses of each participant of OASIS-2 by months, also at sessions without an image."""
    histories: dict[str, list[Diagnosis]] = {}
    for session, row in table.rows.items() if release == "OAS2" else ():
        value, name = _diagnosis(values.score(row.get("CDR")), CohortConfig()), session_name(session, row)
        months = visit_of(name.removeprefix("ses-")).months
        if value is not None and months is not None:
            histories.setdefault(participant(session), []).append(
                Diagnosis(value, None, name, months, f"{table.name}: CDR")
            )
    return {person: sorted(of, key=lambda diagnosis: diagnosis.months or 0) for person, of in histories.items()}
