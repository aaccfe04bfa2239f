"""A table of people and images: ``heatlas run FOLDER OUT --table people.csv``.

One row is one image, with its participant and, where somebody has several, its session. Rows without a path are visits
without a scan: their diagnoses say who progressed. Paths start from the input folder or from that of the table.
Whatever a wrong table could mix up (a file of two people, two images of one visit, a file that is not there) is refused
before anything else is read.

All other cells mean what they mean in ``participants.tsv`` (`pipeline.cohort.bids.tables`). Where the names of images
say whose they are (FreeSurfer subjects, CAPS), the table needs no paths, and ``participants.tsv`` of a BIDS dataset
around the images may take its place: `visits_and_tables`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from heatlas.pipeline.cohort.bids import tables as bids_tables
from heatlas.pipeline.cohort.bids.dataset import with_courses
from heatlas.pipeline.cohort.bids.derivatives import entry_of_file
from heatlas.pipeline.cohort.bids.tables import PARTICIPANTS, BidsTables, Cells, ScanFacts
from heatlas.pipeline.cohort.candidates import Candidate, InputFiles
from heatlas.pipeline.cohort.cells import tables as text_tables
from heatlas.pipeline.cohort.cells.values import PTID, identifier, visit_of_session
from heatlas.pipeline.cohort.images.files import are_followed, image_stem, is_image
from heatlas.pipeline.cohort.oasis import SESSION_FOLDER, participant
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.segmented.subjects import named_scan
from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted, listed, note_on

PEOPLE = ("participantid", "participant", "subjectid", "subject", "sub", "fsid", "ptid", "person", "id")
SESSIONS = ("sessionid", "session", "ses", "visitid", "visit", "viscode2", "viscode", "timepoint")
PATHS = (
    *("path", "filepath", "filename", "file", "imagepath", "imagefile", "image", "scanpath", "scan"),
    *("t1w", "t1", "nifti"),
)
"""Names of columns as `plain_name` spells them; of several of people or sessions the first is used."""
LONGEST_NAME = 80
"""Letters of participant and session; names of files hold 255, and the rest of those of maps takes up to 150."""
_PTID = re.compile(rf"{PTID}([_-]\w+)?", re.IGNORECASE)
_ROUNDED = re.compile(r"\d{16,}\.0*|\d(\.\d+)?e\+\d+", re.IGNORECASE)
"""A number that a spreadsheet rounded to 15 digits: with a point after more digits, or with an exponent."""
_ERROR = re.compile(r"#(N/A|REF!|VALUE!|NAME\?|DIV/0!|NUM!|NULL!|SPILL!)", re.IGNORECASE)
_BIDS = re.compile(r"sub-[A-Za-z0-9]+([_/]ses-[A-Za-z0-9]+)?")


@dataclass(frozen=True, eq=False)
class PeopleRow:
    """One row: whose it is, of which visit, and all filled cells."""

    line: int
    person: str  # as ``sub-01``
    session: str | None  # as ``ses-M012``
    path: str  # as the table writes it; empty if there is none
    cells: Cells

    @property
    def named(self) -> str:
        return " ".join(part for part in (self.person, self.session) if part)


@dataclass(frozen=True)
class PeopleTable:
    """The rows of a table of people, and what is wrong with it."""

    file: Path
    path_column: str
    rows: tuple[PeopleRow, ...]
    notes: tuple[str, ...]
    impossible: tuple[str, ...]  # cells with impossible values


def require_short(where: object, person: str, session: str | None) -> None:
    """Refuse a participant and session that no file can be named after; `where` says which row or image has them."""
    letters = len(person) + len(session or "")
    if letters > LONGEST_NAME:
        raise BadInputError(
            f"{where}: the names of participant and session ({person[:20]}…) have {letters} letters, and files are "
            f"named after them. Give names of at most {LONGEST_NAME} letters."
        )


def find_table(text: str, root: Path) -> Path:
    """The file that a setting names: as a path, or in the input folder."""
    for path in (Path(text), root / text):
        if os.path.isfile(path):  # noqa: PTH113 `Path.is_file` raises for a path longer than the system allows
            return path.resolve()
    raise BadInputError(f"cohort.table = '{text}': no such file, neither here nor in {root}. Correct --table.")


def read_people(file: Path, subjects: Mapping[str, tuple[str, str | None]] | None = None) -> PeopleTable:
    """Read a table (CSV, TSV or workbook); BadInputError if a column is missing or could be either of two.

    `subjects`: participant and session by the name of each folder of a subject, which may stand in place of paths.
    """
    frame, notes = text_tables.read_sheet(file)
    rows = text_tables.filled_rows(frame)
    text_tables.require_clear_sex(text_tables.sex_codes(file, (cells for _, cells in rows)))
    columns = [str(name) for name in frame.columns]
    path = _path_column(file, columns, rows) if subjects is None else _subject_column(columns, rows, subjects)
    person = _first([name for name in columns if name != path], PEOPLE) or (path if subjects is not None else None)
    if not person:
        raise BadInputError(_no_column(file, "participants", "participant_id", columns))
    session = _first(columns, SESSIONS)
    of_path = "path" if subjects is None else "subject"
    uses = [f"{path} for the {of_path}" if path else "", f"{person} for the participant", f"{session} for the session"]
    notes.append(f"columns of {file.name} that are used: {', '.join(use for use in uses[: 2 + bool(session)] if use)}")
    nameless = [str(line) for line, cells in rows if cells and person not in cells]
    if nameless:
        count = counted(len(nameless), "row")
        notes.append(f"{count} of {file.name} without {person} left out: line {listed(nameless)}")
    impossible: list[str] = []
    people: dict[str, tuple[str, str]] = {}
    people_rows = []
    for line, cells in rows:
        if person not in cells:
            continue
        who, visit = _visit(file, line, person, cells[person])
        spelling, other = people.setdefault(who.casefold(), (who, cells[person]))
        if spelling != who:
            raise BadInputError(f"{file}: '{other}' and '{cells[person]}' differ in case alone. Write them alike.")
        if _spelling(other) != _spelling(cells[person]) and not visit:
            raise BadInputError(f"{file}: '{other}' and '{cells[person]}' would both be {who}. Rename one of them.")
        if session is not None and session in cells:
            _require_exact(file, line, session, cells[session])
            visit = session_of(who, cells[session])
        require_short(f"{file}: line {line}", who, visit)
        values = text_tables.possible_cells(file.name, line, cells, impossible)
        rest = {name: cell for name, cell in values.items() if name not in (person, session, path)}
        people_rows.append(PeopleRow(line, who, visit, cells.get(path, ""), rest))
    if not people_rows:
        raise BadInputError(f"{file}: has no row of a participant. Give a table with one row per image.")
    return PeopleTable(file, path, tuple(people_rows), tuple(notes), tuple(impossible))


def names_images(file: Path) -> bool:
    """Whether a table has a column of paths with images in all its cells."""
    frame, _ = text_tables.read_sheet(file)
    rows = text_tables.filled_rows(frame)
    path_columns = [str(name) for name in frame.columns if text_tables.plain_name(str(name)) in PATHS]
    cells = [[cells[name] for _, cells in rows if name in cells] for name in path_columns]
    return any(column_cells and all(map(is_image, column_cells)) for column_cells in cells)


def as_bids(table: PeopleTable) -> BidsTables:
    """The same as the tables of a BIDS dataset hold it: by visit where a row names one, else by person."""
    name = table.file.name
    tables = BidsTables(impossible=list(table.impossible), notes=list(table.notes), names=(name, name, name))
    visits = [((row.person, row.session), row.cells) for row in table.rows if row.session is not None]
    tables.sessions = bids_tables.merge_rows(visits, name, tables.notes)
    people = [(row.person, row.cells) for row in table.rows if row.session is None]
    tables.participants = bids_tables.merge_rows(people, name, tables.notes)
    return tables


def visit_named(text: str) -> tuple[str, str | None]:
    """Participant and session that the name of a person or subject stands for; an empty name without letter or digit.

    >>> visit_named("sub-01_ses-M12"), visit_named("002_S_0295_m12"), visit_named("OAS1_0061_MR2")
    (('sub-01', 'ses-M12'), ('sub-ADNI002S0295', 'ses-M012'), ('sub-OASIS10061', 'ses-MR2'))
    >>> visit_named("007"), visit_named("subj_3"), visit_named("12.0"), visit_named("-")
    (('sub-007', None), ('sub-subj3', None), ('sub-12', None), ('', None))
    """
    text = identifier(text) or ""
    if _BIDS.fullmatch(text) or _PTID.fullmatch(text):
        _, person, session = named_scan(text)
        return person or "", session
    if oasis := SESSION_FOLDER.fullmatch(text):
        return participant(text), f"ses-MR{oasis['number']}"
    plain = re.sub(r"[^A-Za-z0-9]", "", re.sub(r"^sub-", "", text, flags=re.IGNORECASE))
    return (f"sub-{plain}" if plain else ""), None


def session_of(person: str, text: str) -> str | None:
    """Name of a session; visits of ADNI and words for them become months.

    >>> session_of("sub-1", "bl"), session_of("sub-1", "m12"), session_of("sub-1", "ses-02"), session_of("sub-1", "2.0")
    ('ses-M000', 'ses-M012', 'ses-02', 'ses-2')
    >>> session_of("sub-1", "v11"), session_of("sub-ADNI002S0295", "v11"), session_of("sub-1", "?")
    ('ses-v11', 'ses-M012', None)
    """
    text = identifier(text) or ""
    plain = re.sub(r"[^A-Za-z0-9]", "", re.sub(r"^ses-", "", text, flags=re.IGNORECASE))
    if not text.lower().startswith("ses-") and (visit := visit_of_session(person, text)).known:
        return visit.session_id
    return f"ses-{plain}" if plain else None


def _visit(file: Path, line: int, column: str, text: str) -> tuple[str, str | None]:
    _require_exact(file, line, column, text)
    person, session = visit_named(text)
    if not person:
        raise BadInputError(f"{file}: line {line}, column {column}: '{text}' is no name. Correct or remove the row.")
    return person, session


def _require_exact(file: Path, line: int, column: str, text: str) -> None:
    """Refuse a name that a spreadsheet made an error, or a number and rounded, so that it may be of several people."""
    if _ERROR.fullmatch(text.strip()):
        raise BadInputError(
            f"{file}: line {line}, column {column}: '{text}' is an error of the spreadsheet. Correct it."
        )
    if _ROUNDED.fullmatch(text.strip()):
        raise BadInputError(
            f"{file}: line {line}, column {column}: '{text}' is a number of more digits than a spreadsheet keeps. Give "
            "the cells of this column as text."
        )


def _spelling(text: str) -> str:
    """A name without its prefix and case, but with its punctuation."""
    return re.sub(r"^sub-", "", (identifier(text) or "").lower())


def _path_column(file: Path, columns: Sequence[str], rows: Sequence[tuple[int, Cells]]) -> str:
    """The column of paths: the one with such a name, or of several the only one whose cells all end like images."""
    with_name = [name for name in columns if text_tables.plain_name(name) in PATHS]
    if not with_name:
        raise BadInputError(_no_column(file, "paths of images", "path", columns))
    if len(with_name) > 1:
        fitting = [name for name in with_name if all(is_image(cells[name]) for _, cells in rows if name in cells)]
        if len(fitting) != 1:
            raise BadInputError(
                f"{file}: columns {' and '.join(fitting or with_name)} may hold the paths of images. Rename all but "
                "one of them."
            )
        with_name = fitting
    return with_name[0]


def _subject_column(
    columns: Sequence[str], rows: Sequence[tuple[int, Cells]], subjects: Mapping[str, tuple[str, str | None]]
) -> str:
    """The column that names the folders of subjects; empty if none does, or if participants name them as well.

    Numbers of folders are in other columns by chance. A column that is not of participants must name a folder in at
    least half of its cells, none of them twice, and more folders than the participants do.
    """
    filled = {name: [cells[name] for _, cells in rows if name in cells] for name in columns}
    n_folders = {name: sum(cell in subjects for cell in cells) for name, cells in filled.items()}
    person = _first(columns, PEOPLE)
    people = {who for who, _ in subjects.values()}
    by_person = sum(visit_named(cell)[0] in people for cell in filled.get(person or "", ()))
    unique = [name for name in columns if name != person and len(set(filled[name])) == len(filled[name])]
    naming = [name for name in unique if 2 * n_folders[name] >= len(filled[name])]
    best = max(naming, key=lambda name: n_folders[name], default="")
    if best and n_folders[best] > by_person:
        return best
    return person if person and n_folders[person] else ""


def _first(columns: Sequence[str], names: Sequence[str]) -> str | None:
    by_name = {text_tables.plain_name(column): column for column in reversed(columns)}
    return next((by_name[name] for name in names if name in by_name), None)


def _no_column(file: Path, what: str, name: str, columns: Sequence[str]) -> str:
    return f"{file}: no column with {what}; found: {listed(columns, 20)}. Name the column {name}."


def read_listed(
    root: Path, files: InputFiles, config: CohortConfig, space: str = DEFAULT_TEMPLATE
) -> tuple[list[Candidate], list[str]]:
    """Read a folder of images by its table: one candidate per row with a path, and notes."""
    table = read_people(find_table(config.table, root))
    images = {row: _image(root, table, row) for row in table.rows if row.path}
    require_single(table, images, of_visits=True)
    tables = as_bids(table)
    names = scan_ids(images)
    read = [_candidate(root, table.file.name, row, path, names[row], config, space) for row, path in images.items()]
    candidates, notes, fact_notes = with_courses(read, tables, config.mci_horizon_months)
    notes += note_on([row.named for row in table.rows if not row.path], "row", f"of {table.file.name} without a path")
    unlisted = sorted(set(files.images) - set(images.values()))
    notes += note_on(unlisted, "image", "in the folder without a row ignored", limit=3)
    return candidates, notes + fact_notes


def _candidate(
    root: Path, table: str, row: PeopleRow, path: str, scan_id: str, config: CohortConfig, space: str
) -> tuple[Candidate, ScanFacts | None]:
    scan = Scan(row.person, row.session, scan_id, path)
    entry, problem, sidecar = entry_of_file(root / path, config.kind, space, config.label)
    if problem is not None:
        return Candidate(scan.dropped(problem)), None
    facts = bids_tables.facts_of(scan, {}, row.cells, {}, sidecar, (table, table, table))
    return Candidate(replace(facts.scan, entry=entry), row.cells), facts


def scan_ids(images: Mapping[PeopleRow, str]) -> dict[PeopleRow, str]:
    """Identifier of each image: the name of its file where all differ, else participant and session."""
    stems = {row: image_stem(path) for row, path in images.items()}
    if len(set(stems.values())) == len(stems):
        return stems
    return {row: row.named.replace(" ", "_") for row in images}


def _image(root: Path, table: PeopleTable, row: PeopleRow) -> str:
    """Path of an image relative to the input folder."""
    where = f"{table.file}: line {row.line}, column {table.path_column}: {row.path}"
    if not is_image(row.path):
        raise BadInputError(f"{where} is no image. Give paths of NIfTI or FreeSurfer files (.nii, .nii.gz, .mgz).")
    tried = dict.fromkeys(_resolve_folders(root, folder / row.path) for folder in (root, table.file.parent))
    existing = [path for path in tried if os.path.isfile(path) or os.path.islink(path)]  # noqa: PTH113, PTH114
    if not existing:
        tops = " or ".join(dict.fromkeys(map(str, (root, table.file.parent))))
        raise BadInputError(
            f"{where}: no such file, from {tops}. Correct the path, or leave the cell empty for a visit without a scan."
        )
    inside = [path.relative_to(root).as_posix() for path in existing if path.is_relative_to(root)]
    if not inside:
        raise BadInputError(
            f"{where} lies outside {root}. Give a folder that holds all images as INPUT, or --follow-links if "
            "links lead there."
        )
    if len(inside) > 1:
        raise BadInputError(f"{where} is there twice, as {' and '.join(inside)}. Write it from {root}.")
    return inside[0]


def _resolve_folders(root: Path, path: Path) -> Path:
    """A path without links among its folders, unless they are followed; the file is judged with the headers."""
    written = Path(os.path.normpath(path))
    return written if are_followed() and written.is_relative_to(root) else path.parent.resolve() / path.name


def require_single(table: PeopleTable, images: Mapping[PeopleRow, str], of_visits: bool) -> None:
    """Refuse a file or subject in two rows, and two images of one visit."""
    by_file: dict[str, list[PeopleRow]] = {}
    by_visit: dict[str, list[PeopleRow]] = {}
    for row, image in images.items():
        by_file.setdefault(image, []).append(row)
        by_visit.setdefault(row.named, []).append(row)

    def refuse(several: Mapping[str, Sequence[PeopleRow]], what: str, remedy: str) -> None:
        cases = []
        for name, rows in several.items():
            people = f" (of {listed(dict.fromkeys(row.person for row in rows), 3)})" if several is by_file else ""
            cases += [f"{name} {what} lines {' and '.join(str(row.line) for row in rows)}{people}"] * (len(rows) > 1)
        if cases:
            raise BadInputError(f"{table.file}: {listed(cases, 3)}. {remedy}.")

    refuse(by_file, "is in", "Correct the cells, or remove all but one of the rows")
    if of_visits:
        refuse(by_visit, "has an image in", "Name the session of each in a column session, or keep one row")


_NEAR = 4
"""Folders above the input that may hold its table, as above ``derivatives/fmriprep/sourcedata/freesurfer``."""


def visits_and_tables(
    root: Path, named: Mapping[str, tuple[str, str | None]], config: CohortConfig
) -> tuple[dict[str, tuple[str, str | None]], BidsTables, list[str]]:
    """Participant and session of each subject, by its name, what the tables say of them, and where these are.

    The tables are ``--table``, else ``participants.tsv`` in the folder or one above, with the sessions tables beside
    it.
    """
    if config.table and (file := find_table(config.table, root)).name != PARTICIPANTS:
        table = read_people(file, named)
        rows = {row: row.path for row in table.rows if row.path in named}
        require_single(table, rows, of_visits=False)
        visits_of_rows = {name: (row.person, row.session or named[name][1]) for row, name in rows.items()}
        renamed = any(named[name][0] != row.person for row, name in rows.items())  # then no folder stands for itself
        return visits_of_rows if renamed else {**named, **visits_of_rows}, as_bids(table), []
    near = [find_table(config.table, root).parent] if config.table else [root, *root.parents[:_NEAR]]
    where = next((folder for folder in near if (folder / PARTICIPANTS).is_file()), None)
    if where is None:
        raise BadInputError(
            f"{root}: no table of its people. Give one with --table, with a column of the subjects' names, or put a "
            f"{PARTICIPANTS} there."
        )
    visits = sorted(set(named.values()), key=str)
    tables = bids_tables.read_bids_tables(where, sorted({person for person, _ in visits}), visits)
    return dict(named), tables, [] if where == root else [f"tables come from {where.name}"]
