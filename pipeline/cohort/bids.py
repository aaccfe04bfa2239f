"""A BIDS dataset: ``sub-*/[ses-*/]anat/*_T1w.nii[.gz]``, ``participants.tsv`` and sessions tables.

What changes between visits is taken from ``sub-<id>/sub-<id>_sessions.tsv``, everything else from
``participants.tsv``. Of several images of a session the one with the lowest run number is used, then the first by
name. ``derivatives/``, ``sourcedata/`` and everything else outside ``sub-*`` is left alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.cohort import values
from pipeline.cohort.candidates import Candidate, listed
from pipeline.cohort.records import Scan
from pipeline.cohort.text_tables import filled_rows, read_text_table, require_columns
from pipeline.cohort.visits import visit_of
from pipeline.cohort.walking import InputFiles, image_stem
from pipeline.run.errors import BadInputError

PARTICIPANTS = "participants.tsv"
_IMAGE = re.compile(
    r"(?P<participant>sub-[A-Za-z0-9]+)/(?:(?P<session>ses-[A-Za-z0-9]+)/)?anat/"
    r"(?P=participant)_(?:(?P=session)_)?(?P<entities>(?:[a-z]+-[A-Za-z0-9+]+_)*)(?P<suffix>[A-Za-z0-9]+)\.nii(?:\.gz)?"
)

_COLUMNS = {
    "diagnosis": ("diagnosis", "dx"),
    "age": ("age",),
    "sex": ("sex", "gender"),
    "site": ("site", "site_id", "center"),
    "field_strength": ("field_strength", "magneticfieldstrength"),
    "apoe4": ("apoe4",),
    "mmse": ("mmse", "mms"),
    "cdr": ("cdr", "cdr_global"),
    "intracranial": ("tiv_mm3", "icv_mm3", "icv"),
    "brain": ("brain_volume_mm3",),
}
"""Column names, in lower case, that fill the scan table; the first that holds something wins."""


def enters(folder: str) -> bool:
    """Whether a folder of a BIDS dataset is searched for images."""
    return folder.startswith("sub-")


def read_bids(root: Path, files: InputFiles) -> tuple[list[Candidate], list[str]]:
    """Read a BIDS dataset.

    Parameters
    ----------
    root : Path
    files : InputFiles
        What lies below the ``sub-*`` folders of `root`.

    Returns
    -------
    candidates : list of Candidate
        One per T1-weighted image; images of other kinds are counted in a note.
    notes : list of str

    Raises
    ------
    BadInputError
        If ``participants.tsv`` is missing or lacks ``participant_id``.
    """
    participants, notes = _read_participants(root)
    matches = {path: _IMAGE.fullmatch(path) for path in files.images}
    named = {path: match for path, match in matches.items() if match is not None}
    t1w = {path: match for path, match in named.items() if match["suffix"] == "T1w"}
    people = sorted({match["participant"] for match in t1w.values()})
    sessions = {person: _read_sessions(root, person) for person in people}
    candidates = [_candidate(path, match, participants, sessions[match["participant"]]) for path, match in t1w.items()]
    notes += _left_alone(matches, named, t1w) + _rows_without_scan(participants, sessions, candidates)
    stand_in = sum(_stands_in(candidate) for candidate in candidates)
    if stand_in:
        notes.append(f"brain_volume_mm3 stands in for the intracranial volume of {stand_in} scans")
    return candidates, notes


def _read_participants(root: Path) -> tuple[dict[str, dict[str, str]], list[str]]:
    path = root / PARTICIPANTS
    if not path.is_file():
        raise BadInputError(f"{path}: missing. A table with participant_id and the contrast's column is needed.")
    frame = read_text_table(path, "\t")
    require_columns(path, frame, ["participant_id"], "Columns must be separated by tabs.")
    rows: dict[str, dict[str, str]] = {}
    repeated = []
    for cells in filled_rows(frame):
        if "participant_id" not in cells:
            continue
        person = "sub-" + cells.pop("participant_id").removeprefix("sub-")
        if person in rows:
            repeated.append(person)
        rows[person] = {**cells, **rows.get(person, {})}
    text = f"{len(repeated)} rows of {PARTICIPANTS} repeat a participant and only fill its gaps: {listed(repeated)}"
    return rows, [text] if repeated else []


def _read_sessions(root: Path, person: str) -> dict[str, dict[str, str]]:
    path = root / person / f"{person}_sessions.tsv"
    if not path.is_file():
        return {}
    frame = read_text_table(path, "\t")
    require_columns(path, frame, ["session_id"], "Columns must be separated by tabs.")
    rows: dict[str, dict[str, str]] = {}
    for cells in filled_rows(frame):
        if "session_id" in cells:
            rows.setdefault("ses-" + cells.pop("session_id").removeprefix("ses-"), cells)
    return rows


def _candidate(
    path: str,
    match: re.Match[str],
    participants: Mapping[str, Mapping[str, str]],
    sessions: Mapping[str, Mapping[str, str]],
) -> Candidate:
    person, session = match["participant"], match["session"]
    entities = dict(entity.split("-", 1) for entity in match["entities"].split("_") if entity)
    scan = Scan(person, session, image_stem(path), path)
    if person not in participants and session not in sessions:
        return Candidate(scan.dropped(f"no row in {PARTICIPANTS}"))
    derived = [f"{name}-{entities[name]}" for name in ("space", "desc") if name in entities]
    if derived:
        return Candidate(scan.dropped(f"a derivative, not an original image: {', '.join(derived)}"))
    of_participant = participants.get(person, {})
    of_session = sessions.get(session, {}) if session else {}
    run = int(entities["run"]) if entities.get("run", "").isdigit() else 1
    return Candidate(_filled(scan, of_session, of_participant), {**of_participant, **of_session}, (run,))


def _filled(scan: Scan, of_session: Mapping[str, str], of_participant: Mapping[str, str]) -> Scan:
    """The scan with what its session says, and its participant where the session is silent."""
    lower = {name.lower(): value for name, value in [*of_participant.items(), *of_session.items()]}

    def cell(field: str) -> str | None:
        return values.first_value(lower, *_COLUMNS[field])

    hippocampus, source = _hippocampus(lower)
    if hippocampus is not None:
        in_session = any(name.lower().startswith("hippocampus") for name in of_session)
        source = f"{'sessions table' if in_session else PARTICIPANTS}: {source}"
    return Scan(
        participant_id=scan.participant_id,
        session_id=scan.session_id,
        scan_id=scan.scan_id,
        image=scan.image,
        diagnosis=values.diagnosis(cell("diagnosis")),
        age=_age(lower, scan.session_id),
        sex=values.sex(cell("sex")),
        site=values.identifier(cell("site")),
        field_strength=values.field_strength(cell("field_strength")),
        apoe4=values.count(cell("apoe4")),
        mmse=values.score(cell("mmse")),
        cdr=values.score(cell("cdr")),
        tiv_mm3=values.positive(cell("intracranial") or cell("brain")),
        hippocampus_mm3=hippocampus,
        hippocampus_source=source,
    )


def _hippocampus(lower: Mapping[str, str]) -> tuple[float | None, str | None]:
    """Volume of both hippocampi in mm3 and the columns it comes from."""
    both = values.positive(values.first_value(lower, "hippocampus_mm3", "hippocampus"))
    if both is not None:
        return both, "hippocampus_mm3" if "hippocampus_mm3" in lower else "hippocampus"
    left, right = (values.positive(lower.get(f"hippocampus_{side}_mm3")) for side in ("left", "right"))
    if left is None or right is None:
        return None, None
    return left + right, "hippocampus_left_mm3 + hippocampus_right_mm3"


def _age(lower: Mapping[str, str], session: str | None) -> float | None:
    """Age at the visit; from the age at baseline (Clinica's ``age_bl``) and the session's month where need be."""
    age = values.positive(lower.get("age"))
    baseline = values.positive(lower.get("age_bl"))
    months = visit_of(session.removeprefix("ses-")).months if session else 0
    if age is None and baseline is not None and months is not None:
        return round(baseline + months / 12, 2)
    return age


def _stands_in(candidate: Candidate) -> bool:
    names = {name.lower() for name in candidate.columns}
    return not names & set(_COLUMNS["intracranial"]) and bool(names & set(_COLUMNS["brain"]))


def _left_alone(
    matches: Mapping[str, object], named: Mapping[str, re.Match[str]], t1w: Mapping[str, object]
) -> list[str]:
    notes = []
    others = Counter(match["suffix"] for path, match in named.items() if path not in t1w)
    if others:
        kinds = listed(f"{suffix} {count}" for suffix, count in sorted(others.items()))
        notes.append(f"{sum(others.values())} images in anat/ of other kinds left alone: {kinds}")
    misnamed = [path for path in matches if path not in named and re.search(r"T1w\.nii(\.gz)?$", path)]
    if misnamed:
        notes.append(f"{len(misnamed)} T1w images not named or placed as BIDS asks left alone: {listed(misnamed, 3)}")
    return notes


def _rows_without_scan(
    participants: Mapping[str, object],
    sessions: Mapping[str, Mapping[str, object]],
    candidates: Sequence[Candidate],
) -> list[str]:
    people = {candidate.scan.participant_id for candidate in candidates}
    visits = {(candidate.scan.participant_id, candidate.scan.session_id) for candidate in candidates}
    absent = [person for person in participants if person not in people]
    unseen = [f"{p} {s}" for p, rows in sessions.items() for s in rows if (p, s) not in visits]
    without_row = sorted({f"{p} {s}" for p, s in visits if s is not None and s not in sessions.get(p, {s: None})})
    notes = []
    if absent:
        notes.append(f"{len(absent)} participants in {PARTICIPANTS} have no T1w image: {listed(absent)}")
    if unseen:
        notes.append(f"{len(unseen)} sessions in sessions tables have no T1w image: {listed(unseen)}")
    if without_row:
        notes.append(
            f"{len(without_row)} sessions with images have no row in their sessions table: {listed(without_row)}"
        )
    return notes
