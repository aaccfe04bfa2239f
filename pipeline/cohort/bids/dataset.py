"""A BIDS dataset, raw or derivative (also by Clinica): ``sub-*/[ses-*/]anat/*_T1w.nii[.gz]`` and its tables.

Every image of the kind that is asked for (``cohort.suffix``) in a ``sub-*`` folder is a row of the scan table. Of
several in a session the least processed is used, without contrast agent (``ce-``), without ``acq-``, ``rec-``,
``echo-`` and ``inv-`` (the plain name is the main image), with the lowest ``run-``. The T1-weighted image beside
another kind, and images of further kinds, are chosen in the same way.

Everything outside ``sub-*`` and what ``.bidsignore`` names is ignored. A dataset inside ``derivatives/`` may be the
input; without tables in its folder, those of the dataset above are used.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pathspec import GitIgnoreSpec

from heatlas.pipeline.cohort.bids import tables as bids_tables
from heatlas.pipeline.cohort.bids.derivatives import ENTRIES, entities_of, entry_of, read_sidecar
from heatlas.pipeline.cohort.bids.tables import PARTICIPANTS, BidsTables, ScanFacts
from heatlas.pipeline.cohort.candidates import Candidate, InputFiles, OtherImage
from heatlas.pipeline.cohort.cells.tables import problem_notes
from heatlas.pipeline.cohort.images.files import image_stem
from heatlas.pipeline.cohort.people.diagnosis import follow_up, progression
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE, T1W, ImageKind
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.documents import read_regular
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted, listed, note_on

_IMAGE = re.compile(
    r"(?P<participant>sub-[A-Za-z0-9]+)/(?:(?P<session>ses-[A-Za-z0-9]+)/)?(?P<folder>anat|pet)/"
    r"(?P=participant)_(?:(?P=session)_)?(?P<entities>(?:[a-z]+-[A-Za-z0-9+]+_)*)(?P<suffix>[A-Za-z0-9]+)\.nii(?:\.gz)?"
)
_PLACE = r"sub-[^/]+/(ses-[^/]+/)?({folder}/)?[^/]+"
"""Where a misnamed image may lie; not folders of other kinds of scans (``func/``)."""
_SECONDARY = ("acq", "rec", "echo", "inv")
"""Entities of images other than the main one of a session."""

BIDSIGNORE = ".bidsignore"
MOST_WILDCARDS = 10


def read_bids(
    root: Path, files: InputFiles, config: CohortConfig, space: str = DEFAULT_TEMPLATE
) -> tuple[list[Candidate], list[str]]:
    """Read a BIDS dataset: one candidate per image of a kind; images of other kinds are counted in a note."""
    kind, *further = config.kinds
    used, ignored = split_ignored(root, files.images)
    folders = {each.folder for each in (T1W, kind, *further)}
    matches = {
        path: match if (match := _IMAGE.fullmatch(path)) is not None and match["folder"] in folders else None
        for path in used
    }
    asked = _of_kind(matches, kind)
    tables_root = bids_tables.table_root(root)
    tables = bids_tables.read_bids_tables(
        tables_root,
        sorted({match["participant"] for match in asked.values()}),
        sorted({(match["participant"], match["session"]) for match in asked.values()}, key=str),
    )
    if asked and tables.empty:
        raise BadInputError(
            f"{tables_root / PARTICIPANTS}: missing, and no sessions table either. A table with participant_id and the "
            "contrast's column is needed."
        )
    states = _States(root, {*config.kinds, *[T1W] * kind.through_t1w}, config.label, space)
    read = [_candidate(path, match, tables, kind, states) for path, match in asked.items()]
    anatomy = _of_sessions(matches, T1W, states) if kind.through_t1w else {}
    others: dict[str, _Sessions] = {each.suffix: _of_sessions(matches, each, states) for each in further}
    read = [(_with_session_images(candidate, anatomy, others), facts) for candidate, facts in read]
    taken = {candidate.scan.t1w for candidate, _ in read}
    for images in (images for candidate, _ in read for images in candidate.others.values()):
        for in_template in (False, True):  # the one that would be used in either space
            usable = (i.path for i in images if i.problem is None and (i.entry == "template") == in_template)
            taken.add(next(usable, None))
    misnamed = [path for path, match in matches.items() if match is None and _ends_as(path, kind)]
    candidates, table_notes, fact_notes = with_courses(read, tables, config.mci_horizon_months)
    candidates += [_drop_misnamed(path, kind) for path in misnamed]
    notes = [f"tables come from the dataset above, {tables_root.name}"] if tables_root != root else []
    notes += note_on(ignored, "image", f"excluded by {BIDSIGNORE}", limit=3)
    notes += table_notes + _other_images(matches, {*asked, *filter(None, taken)}, kind, folders)
    return candidates, notes + unmatched_notes(tables, [candidate for candidate, _ in read], kind) + fact_notes


def _of_kind(matches: Mapping[str, re.Match[str] | None], kind: ImageKind) -> dict[str, re.Match[str]]:
    return {
        path: match
        for path, match in matches.items()
        if match is not None and (match["suffix"], match["folder"]) == (kind.suffix, kind.folder)
    }


class _States:
    """Where images of a dataset enter, why they cannot be used, and their sidecars.

    `label`: that of the maps of tissue, where a kind is these. `space`: the name of the template.
    """

    def __init__(self, root: Path, kinds: Iterable[ImageKind], label: str, space: str) -> None:
        self.root, self.label, self.space = root, label, space
        self.shared: dict[str, dict[str, Any]] = {}  # ``T1w.json`` of the dataset, unless an image's own overrides it
        for kind in kinds:
            try:
                self.shared[kind.suffix] = read_sidecar(root / f"{kind.suffix}.nii.gz")
            except ValueError as error:
                raise BadInputError(f"{root / f'{kind.suffix}.json'}: {error}. Correct or remove it.") from error

    def of(self, path: str, match: re.Match[str], kind: ImageKind) -> tuple[str, str | None, dict[str, Any]]:
        entities = entities_of(match["entities"])
        try:
            sidecar = {**self.shared[kind.suffix], **read_sidecar(self.root / path)}
        except ValueError as error:
            return "scan", f"unreadable sidecar: {error}", {}
        entry, problem = entry_of(entities, sidecar.get("SkullStripped"), kind, self.space)
        if entities.get("part", "mag") != "mag":
            problem = f"not the magnitude image: part-{entities['part']}"
        if kind.normalised and entities.get("label") != self.label:
            problem = f"another map than cohort.label: label-{entities.get('label', '(absent)')}"
        return entry, problem, sidecar


def _ends_as(path: str, kind: ImageKind) -> bool:
    """Whether a file is named like an image of a kind, wherever it lies."""
    return re.fullmatch(rf".*{kind.suffix}\.nii(\.gz)?", path) is not None


_Sessions = Mapping[tuple[str, str | None], Sequence[OtherImage]]
"""Images of one kind by participant and session, in the order of the rule of the module."""


def _of_sessions(matches: Mapping[str, re.Match[str] | None], kind: ImageKind, states: _States) -> _Sessions:
    """All images of a kind, those that can be used first."""
    by_session: dict[tuple[str, str | None], list[OtherImage]] = {}
    for path, match in _of_kind(matches, kind).items():
        entry, problem, _ = states.of(path, match, kind)
        other = OtherImage(path, entry, preference(entities_of(match["entities"]), entry), problem)
        by_session.setdefault((match["participant"], match["session"]), []).append(other)
    return {
        key: sorted(images, key=lambda image: (image.problem is not None, image.preference, image.path))
        for key, images in by_session.items()
    }


def _with_session_images(candidate: Candidate, anatomy: _Sessions, others: Mapping[str, _Sessions]) -> Candidate:
    """The candidate with the T1-weighted image of its session, not one in template space, and further kinds."""
    key = candidate.scan.participant_id, candidate.scan.session_id
    t1w = next((i.path for i in anatomy.get(key, ()) if i.entry != "template" and i.problem is None), None)
    of_session = {suffix: images.get(key, ()) for suffix, images in others.items()}
    return dataclasses.replace(candidate.with_scan(t1w=t1w), others=of_session)


def preference(entities: Mapping[str, str], entry: str) -> tuple[int, ...]:
    """Sort key of an image among those of its session; the smallest is used.

    >>> preference({"run": "2"}, "scan") < preference({"acq": "fast", "run": "1"}, "scan")
    True
    >>> preference({"acq": "fast"}, "scan") < preference({"desc": "brain"}, "brain")
    True
    """
    run = int(entities["run"]) if entities.get("run", "").isdigit() else 1
    return ENTRIES.index(entry), int("ce" in entities), sum(name in entities for name in _SECONDARY), run


def _candidate(
    path: str, match: re.Match[str], tables: BidsTables, kind: ImageKind, states: _States
) -> tuple[Candidate, ScanFacts | None]:
    scan = Scan(match["participant"], match["session"], image_stem(path), path)
    if (lacking := row_problem(scan, tables)) is not None:
        return Candidate(scan.dropped(lacking)), None
    entry, problem, sidecar = states.of(path, match, kind)
    tesla = sidecar.get("MagneticFieldStrength")
    if tesla is not None and bids_tables.nominal_tesla(sidecar) is None:
        tables.impossible.append(
            f"sidecar of {path}, MagneticFieldStrength '{str(tesla)[:40]}' (not a positive number)"
        )
    return describe_scan(scan, tables, entry, preference(entities_of(match["entities"]), entry), sidecar, problem)


def row_problem(scan: Scan, tables: BidsTables, has_row: bool = True) -> str | None:
    person = scan.participant_id
    if has_row and person in tables.unreadable:
        return f"unreadable table: {tables.unreadable[person]}"
    has_row &= person in tables.participants or bool(tables.sessions.get((person, scan.session_id or "")))
    return None if has_row else f"no row in {tables.names[2]}"


def describe_scan(
    scan: Scan,
    tables: BidsTables,
    entry: str,
    preference: tuple[int | str, ...],
    sidecar: Mapping[str, object] = {},
    problem: str | None = None,
    criteria: tuple[str, ...] = (),
) -> tuple[Candidate, ScanFacts | None]:
    if problem is not None:
        return Candidate(scan.dropped(problem)), None
    of_person = tables.participants.get(scan.participant_id, {})
    of_session = tables.sessions.get((scan.participant_id, scan.session_id or ""), {})
    facts = bids_tables.facts_of(scan, of_person, of_session, tables.scans.get(scan.file, {}), sidecar, tables.names)
    filled = dataclasses.replace(facts.scan, entry=entry)
    return Candidate(filled, {**of_person, **of_session}, preference, criteria), facts


def with_courses(
    read: Sequence[tuple[Candidate, ScanFacts | None]], tables: BidsTables, horizon_months: int
) -> tuple[list[Candidate], list[str], list[str]]:
    """Add the progression after each scan, from the sessions tables; with notes on the tables, and on their facts."""
    histories, history_notes = bids_tables.diagnosis_histories(tables)
    candidates = []
    for candidate, _ in read:
        at, history = bids_tables.diagnosis_of(candidate.scan), histories.get(candidate.scan.participant_id, ())
        if at is not None and history:
            candidate = candidate.with_scan(progression=progression(history, at, horizon_months))
            candidate = dataclasses.replace(candidate, follow_up=follow_up(history, at))
        candidates.append(candidate)
    fact_notes = about_facts([(candidate.scan, facts) for candidate, facts in read if facts])
    return candidates, [*tables.notes, *problem_notes(tables.impossible), *history_notes], fact_notes


def _drop_misnamed(path: str, kind: ImageKind) -> Candidate:
    person = path.split("/", 1)[0]
    session = next((part for part in path.split("/")[1:-1] if re.fullmatch(r"ses-[A-Za-z0-9]+", part)), None)
    prefix = "_".join(part for part in (person, session) if part)
    return Candidate(
        Scan(person, session, image_stem(path), path).dropped(
            f"not a BIDS path: should be {'/'.join(prefix.split('_'))}/{kind.folder}/{prefix}_{kind.suffix}.nii.gz"
        )
    )


def _other_images(
    matches: Mapping[str, re.Match[str] | None], used: Collection[str], kind: ImageKind, folders: Collection[str]
) -> list[str]:
    suffixes = [match["suffix"] for path, match in matches.items() if match is not None and path not in used]
    kinds = listed(f"{suffix} {count}" for suffix, count in sorted(Counter(suffixes).items()))
    within = "/ and ".join(sorted(folders))
    notes = [f"{counted(len(suffixes), 'image')} of other kinds in {within}/ ignored: {kinds}"] if suffixes else []
    unnamed = [path for path, match in matches.items() if match is None and not _ends_as(path, kind)]
    unnamed = [path for path in unnamed if re.fullmatch(_PLACE.format(folder=kind.folder), path)]
    which = "T1-weighted ones" if kind is T1W else "those asked for"
    text = f"without a BIDS name ignored; {which} should end in _{kind.suffix}.nii.gz"
    return notes + note_on(unnamed, "image", text, limit=3)


def unmatched_notes(tables: BidsTables, candidates: Sequence[Candidate], kind: ImageKind = T1W) -> list[str]:
    people = {candidate.scan.participant_id for candidate in candidates}
    visits = {(candidate.scan.participant_id, candidate.scan.session_id) for candidate in candidates}
    absent = [person for person in tables.participants if person not in people]
    folders = {person.casefold(): person for person in people if person not in tables.participants}
    otherwise = [f"{person} for {folders[person.casefold()]}" for person in absent if person.casefold() in folders]
    unseen = [" ".join(visit) for visit in tables.sessions if visit not in visits]
    rowless = sorted(f"{p} {s}" for p, s in visits if s is not None and (p, s) not in tables.sessions)
    notes = []
    if otherwise:
        notes.append(
            f"ids in {tables.names[2]} in another case than those of the images, correct them: {listed(otherwise)}"
        )
    notes += note_on(absent, "participant", f"in {tables.names[2]} without a {kind.suffix} image")
    notes += note_on(unseen, "session", f"in sessions tables without a {kind.suffix} image")
    if tables.sessions:
        notes += note_on(rowless, "session", "with images but no row in their sessions table")
    return notes


def about_facts(read: Sequence[tuple[Scan, ScanFacts]]) -> list[str]:
    notes = []
    stand_ins = sum(facts.brain_stands_in for _, facts in read)
    if stand_ins:
        notes.append(f"brain_volume_mm3 replaces the missing intracranial volume of {counted(stand_ins, 'scan')}")
    pairs = Counter(pair for _, facts in read for pair in facts.doubled)
    for used, other in sorted({(used, other) for used, other, _ in pairs}):
        wrong, right = pairs[used, other, True], pairs[used, other, False]
        if wrong > 1 and not right:
            raise BadInputError(
                f"columns {used} and {other} contradict each other for all {wrong} scans. Correct, rename or remove "
                "one of them."
            )
        if wrong:
            notes.append(
                f"columns {used} and {other} contradict each other for {wrong} of {counted(wrong + right, 'scan')}; "
                f"{used} is used"
            )
    constant = [scan.name for scan, facts in read if facts.age_of_participant_later]
    text = f"after month 0 with the age of {PARTICIPANTS}, possibly the age at baseline"
    return notes + note_on(constant, "scan", f"{text}; give age in a sessions table, or age_bl")


def split_ignored(root: Path, paths: Iterable[str]) -> tuple[list[str], list[str]]:
    """Paths of the dataset, and those excluded by its ``.bidsignore``; one that cannot be read is refused."""
    patterns = read_patterns(root / BIDSIGNORE)
    used: list[str] = []
    ignored: list[str] = []
    for path in paths:
        (ignored if patterns.match_file(path) else used).append(path)
    return used, ignored


def read_patterns(path: Path) -> GitIgnoreSpec:
    """Patterns of a ``.bidsignore``; empty without the file."""
    try:
        lines = read_regular(path).decode("utf-8-sig").splitlines()
    except FileNotFoundError:
        lines = []
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path}: cannot be read ({error}). Check its permissions and encoding (UTF-8).") from error
    for line in lines:
        if line.count("*") > MOST_WILDCARDS:  # matching takes exponentially long
            raise BadInputError(
                f"{path}: the pattern {line[:40]!r}… has more than {MOST_WILDCARDS} asterisks. Split it."
            )
    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError as error:  # pathspec's pattern errors are ValueErrors
        raise BadInputError(f"{path}: a pattern is malformed ({error}). Write it as in a .gitignore.") from error
