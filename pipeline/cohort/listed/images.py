"""A folder of images with a table that says where they are and whose: ``heatlas run FOLDER OUT --table people.csv``.

One row is one image, with its participant and, where somebody has several, its session. Rows without a path are
visits without a scan: their diagnoses say who progressed. Paths start from the input folder or from the folder of the
table. Whatever a wrong table could mix up (a file of two people, two images of one visit, a file that is not there) is
refused before anything else is read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from heatlas.pipeline.cohort.bids.dataset import about_facts, with_course
from heatlas.pipeline.cohort.bids.derivatives import entry_of_file
from heatlas.pipeline.cohort.bids.tables import ScanFacts, diagnosis_histories, facts_of
from heatlas.pipeline.cohort.candidates import Candidate, InputFiles
from heatlas.pipeline.cohort.cells.ranges import problem_notes
from heatlas.pipeline.cohort.images.file_kinds import image_stem, is_image
from heatlas.pipeline.cohort.images.links import are_followed
from heatlas.pipeline.cohort.listed.people import PeopleRow, PeopleTable, as_bids, find_table, read_people
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted, listed
from heatlas.pipeline.run.template_name import DEFAULT_TEMPLATE


def read_listed(
    root: Path, files: InputFiles, config: CohortConfig, space: str = DEFAULT_TEMPLATE
) -> tuple[list[Candidate], list[str]]:
    """Read a folder of images by its table: one candidate per row with a path, and notes."""
    table = read_people(find_table(config.table, root))
    images = {row: _image(root, table, row) for row in table.rows if row.path}
    require_single(table, images, of_visits=True)
    tables = as_bids(table)
    names = scan_ids(images)
    histories, history_notes = diagnosis_histories(tables)
    read = [_candidate(root, table.file.name, row, path, names[row], config, space) for row, path in images.items()]
    candidates = [with_course(candidate, histories, config.mci_horizon_months) for candidate, _ in read]
    unscanned = [row.named for row in table.rows if not row.path]
    unlisted = sorted(set(files.images) - set(images.values()))
    notes = [*tables.notes, *problem_notes(tables.impossible), *history_notes]
    if unscanned:
        notes.append(f"{counted(len(unscanned), 'row')} of {table.file.name} without a path: {listed(unscanned)}")
    if unlisted:
        notes.append(f"{counted(len(unlisted), 'image')} in the folder without a row ignored: {listed(unlisted, 3)}")
    return candidates, notes + about_facts([(candidate.scan, facts) for candidate, facts in read if facts])


def _candidate(
    root: Path, table: str, row: PeopleRow, path: str, scan_id: str, config: CohortConfig, space: str
) -> tuple[Candidate, ScanFacts | None]:
    scan = Scan(row.person, row.session, scan_id, path)
    entry, problem, sidecar = entry_of_file(root / path, config.kind, space, config.label)
    if problem is not None:
        return Candidate(scan.dropped(problem)), None
    facts = facts_of(scan, {}, row.cells, {}, sidecar, (table, table, table))
    return Candidate(facts.scan_with(entry), row.cells), facts


def scan_ids(images: Mapping[PeopleRow, str]) -> dict[PeopleRow, str]:
    """Identifier of each image: the name of its file where all differ, else participant and session."""
    stems = {row: image_stem(path) for row, path in images.items()}
    if len(set(stems.values())) == len(stems):
        return stems
    return {row: "_".join(part for part in (row.person, row.session) if part) for row in images}


def _image(root: Path, table: PeopleTable, row: PeopleRow) -> str:
    """Path of an image relative to the input folder."""
    where = f"{table.file}: line {row.line}, column {table.path_column}: {row.path}"
    if not is_image(row.path):
        raise BadInputError(f"{where} is no image. Give paths of NIfTI or FreeSurfer files (.nii, .nii.gz, .mgz).")
    tried = dict.fromkeys((_placed(root / row.path), _placed(table.file.parent / row.path)))
    found = [path for path in tried if path.is_file() or path.is_symlink()]
    if not found:
        tops = " or ".join(dict.fromkeys(map(str, (root, table.file.parent))))
        raise BadInputError(
            f"{where}: no such file, from {tops}. Correct the path, or leave the cell empty for a visit without a scan."
        )
    inside = [path.relative_to(root).as_posix() for path in found if path.is_relative_to(root)]
    if not inside:
        raise BadInputError(
            f"{where} lies outside {root}. Give a folder that holds all images as INPUT, or --follow-links if "
            "links lead there."
        )
    if len(inside) > 1:
        raise BadInputError(f"{where} is there twice, as {' and '.join(inside)}. Write it from {root}.")
    return inside[0]


def _placed(path: Path) -> Path:
    """A path without links among its folders unless they are followed; the file itself is judged with the headers."""
    return Path(os.path.normpath(path)) if are_followed() else path.parent.resolve() / path.name


def require_single(table: PeopleTable, images: Mapping[PeopleRow, str], of_visits: bool) -> None:
    """Refuse a file or subject in two rows, and two images of one visit."""
    of_files = ("is in", lambda row: images[row], "Correct the cells, or remove all but one of the rows")
    of_people = (
        "has an image in",
        lambda row: row.named,
        "Name the session of each in a column session, or keep one row",
    )
    for what, key, remedy in (of_files, of_people)[: 1 + of_visits]:
        rows: dict[str, list[PeopleRow]] = {}
        for row in images:
            rows.setdefault(key(row), []).append(row)
        several = [_said(what, name, of) for name, of in rows.items() if len(of) > 1]
        if several:
            raise BadInputError(f"{table.file}: {listed(several, 3)}. {remedy}.")


def _said(what: str, name: str, rows: Sequence[PeopleRow]) -> str:
    """The rows of one file or visit, with the people of a file that several share."""
    people = listed(dict.fromkeys(row.person for row in rows), 3)
    of = f" (of {people})" if what == "is in" else ""
    return f"{name} {what} lines {' and '.join(str(row.line) for row in rows)}{of}"
