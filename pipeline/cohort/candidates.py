"""Which images an input folder holds, and which of them are used.

`walk_input` lists the files, and the reader of a layout (ADNI, OASIS, BIDS and so on) makes a `Candidate` of each
image. The functions here drop candidates, each with a reason.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from heatlas.pipeline.cohort.cells.tables import RANGES, SUFFIXES, problem_notes
from heatlas.pipeline.cohort.cells.values import adni_participant
from heatlas.pipeline.cohort.images.conversion import check_pair, is_pair
from heatlas.pipeline.cohort.images.files import (
    are_followed,
    is_dead,
    is_dicom,
    is_image,
    is_irregular,
    is_nifti,
    leads_in_a_circle,
)
from heatlas.pipeline.cohort.images.headers import HeaderFinding, check_header, read_raw_header
from heatlas.pipeline.cohort.people.persons import known_among
from heatlas.pipeline.cohort.records import FollowUp, Scan
from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE, KINDS, ImageKind
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted, did_you_mean, listed, nearest, note_on, plain
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.digests import file_digest
from heatlas.pipeline.run.work.progress import Progress

FOREIGN_SUFFIXES = (
    *(".hdr", ".mgz", ".mgh", ".mnc", ".nrrd", ".nhdr", ".head"),
    *(".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".7z", ".rar"),
)
"""Archives, and images in unsupported formats (the header file if an image has two files)."""


@dataclass(frozen=True)
class InputFiles:
    """Files below an input folder, as paths relative to it with POSIX separators, sorted."""

    images: tuple[str, ...] = ()  # NIfTI files
    tables: tuple[str, ...] = ()  # CSV files
    # Names of DICOM files by folder: those that end in ``.dcm`` or ``.ima``, and those without a letter ending that
    # begin as DICOM does
    dicom: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    metadata: tuple[str, ...] = ()  # XML files
    linked_folders: tuple[str, ...] = ()  # not followed; with --follow-links those in a circle
    unreadable: tuple[str, ...] = ()  # folders that could not be listed
    foreign: tuple[str, ...] = ()  # images of other formats, and archives, which may contain images
    irregular: tuple[str, ...] = ()  # tables or XML files that are a named pipe, a socket or a device
    # Files and folders whose names are not UTF-8 or hold control characters, which a table cannot hold; escaped
    unwritable: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()  # halves of Analyze pairs (``.hdr``, ``.img``)
    workbooks: tuple[str, ...] = ()  # Excel and OpenDocument files
    dead_links: tuple[str, ...] = ()  # links that lead nowhere and may stand for a folder: names without an ending

    @property
    def dicom_count(self) -> int:
        return sum(map(len, self.dicom.values()))


def walk_input(root: Path, entered: str = ".*") -> InputFiles:
    """List the files below a folder, without hidden ones; `entered`: pattern of the paths of folders."""
    paths: dict[str, list[str]] = {item.name: [] for item in dataclasses.fields(InputFiles) if item.name != "dicom"}
    dicom: dict[str, tuple[str, ...]] = {}

    def cannot_list(error: OSError) -> None:
        paths["unreadable"].append(_relative(str(error.filename), root))

    for folder, folders, files in os.walk(root, onerror=cannot_list, followlinks=are_followed()):
        here = _relative(folder, root)
        prefix = "" if here == "." else here + "/"
        unwritable = {name for name in (*folders, *files) if plain(name, lines=False) != name}
        paths["unwritable"] += [plain(prefix + name, lines=False) for name in unwritable]
        shown = (name for name in folders if name not in unwritable and not name.startswith("."))
        visible = sorted(name for name in shown if re.fullmatch(entered, prefix + name))
        links = {name for name in visible if os.path.islink(os.path.join(folder, name))}  # noqa: PTH114, PTH118 speed
        if are_followed():
            links = {name for name in links if leads_in_a_circle(root, prefix + name)}
        paths["linked_folders"] += [prefix + name for name in links]
        folders[:] = [name for name in visible if name not in links]
        paths["dead_links"] += [prefix + name for name in files if "." not in name and is_dead(folder, name)]
        series = []
        for name in files:
            if name.startswith(".") or name in unwritable:
                continue
            if name.lower().endswith((".hdr", ".img")):
                paths["pairs"].append(prefix + name)
            kind = _kind_of_file(folder, name)
            if kind is not None:
                paths[kind].append(prefix + name)
            elif is_dicom(folder, name):
                series.append(name)
        if series:
            dicom[here] = tuple(sorted(series))
    return InputFiles(
        dicom=dict(sorted(dicom.items())), **{kind: tuple(sorted(of_kind)) for kind, of_kind in paths.items()}
    )


def _kind_of_file(folder: str, name: str) -> str | None:
    """The field of `InputFiles` that a file belongs to by its name; None if it may be DICOM."""
    lower = name.lower()
    if is_nifti(name):
        return "images"
    if lower.endswith((".csv", ".xml")):
        return "irregular" if is_irregular(folder, name) else "tables" if lower.endswith(".csv") else "metadata"
    if lower.endswith(SUFFIXES):
        return "workbooks"
    return "foreign" if lower.endswith(FOREIGN_SUFFIXES) else None


def _relative(path: str, root: Path) -> str:
    return os.path.relpath(path, root).replace(os.sep, "/")


@dataclass(frozen=True)
class OtherImage:
    """An image of another kind of the same session."""

    path: str  # relative to the input folder
    entry: str  # as `Scan.entry`
    preference: tuple[int | str, ...]  # as of `Candidate`
    problem: str | None = None  # why it cannot be used


@dataclass(frozen=True)
class Candidate:
    """An image with its row of the scan table and further values from its source."""

    scan: Scan
    # All filled cells of the source tables at the scan's visit; a contrast may use any of them
    columns: Mapping[str, str] = field(default_factory=dict)
    preference: tuple[int | str, ...] = ()  # the image with the smallest value in its session is used
    criteria: tuple[str, ...] = ()  # the criteria of `preference` in words; may be shorter
    follow_up: FollowUp | None = None  # follow-up of someone without dementia after the scan, if known
    others: Mapping[str, Sequence[OtherImage]] = field(default_factory=dict)  # of the same session, by suffix

    def with_scan(self, **facts: Any) -> Candidate:
        return dataclasses.replace(self, scan=dataclasses.replace(self.scan, **facts))

    def dropped(self, reason: str) -> Candidate:
        return dataclasses.replace(self, scan=self.scan.dropped(reason))

    def dropped_for(self, why: Callable[[Candidate], str | None]) -> Candidate:
        """Dropped if there is a reason; one that is dropped already keeps its own."""
        reason = why(self) if self.scan.kept else None
        return self if reason is None else self.dropped(reason)


def drop(candidates: Iterable[Candidate], why: Callable[[Candidate], str | None]) -> list[Candidate]:
    """Drop those for which there is a reason."""
    return [candidate.dropped_for(why) for candidate in candidates]


def only_participants(candidates: Sequence[Candidate], participants: Sequence[str]) -> list[Candidate]:
    """Drop the scans of all but some participants, named with or without ``sub-``, or as ADNI's ``002_S_0295``."""
    if not participants:
        return list(candidates)
    people = {candidate.scan.participant_id for candidate in candidates}
    wanted = {participant_named(name, people): name for name in participants}
    unknown = {participant: name for participant, name in wanted.items() if participant not in people}
    if unknown:
        known = sorted(people)
        raise BadInputError(
            f"--participant-label {', '.join(unknown.values())}: no such participant among the {len(people)} of the "
            f"input, which begin {', '.join(known[:3])}.{did_you_mean(*(nearest(one, known) for one in unknown))}"
        )
    reason = "participant not chosen by --participant-label"
    return drop(candidates, lambda candidate: None if candidate.scan.participant_id in wanted else reason)


def without_people(candidates: Sequence[Candidate], path: Path) -> list[Candidate]:
    """Drop the scans of people whom a table names, by any of their names; raises BadInputError without such names."""
    if not path.is_file():
        raise BadInputError(
            f"cohort.without = '{path}': no such file, from the folder of the settings file or "
            f"from {Path.cwd()}. Correct its path."
        )
    names = read_table(path, ["participant_id"])["participant_id"].dropna().astype(str)
    if not len(names):
        raise BadInputError(f"{path}: its column participant_id names nobody. Correct cohort.without.")
    people = set(known_among([candidate.scan.participant_id for candidate in candidates], sorted(set(names))))
    reason = f"named in {path.name} (cohort.without)"
    return drop(candidates, lambda candidate: reason if candidate.scan.participant_id in people else None)


def participant_named(name: str, people: set[str]) -> str:
    """The participant_id for a label: with or without ``sub-``, or ADNI's ``002_S_0295``.

    >>> participant_named("002_S_0295", {"sub-ADNI002S0295"}), participant_named("01", {"sub-01"})
    ('sub-ADNI002S0295', 'sub-01')
    """
    bare = name.strip().removeprefix("sub-")
    choices = [f"sub-{bare}", adni_participant(bare)]
    return next((choice for choice in choices if choice in people), choices[0])


def with_readable_headers(
    root: Path, candidates: Sequence[Candidate], max_voxel_mm: float
) -> tuple[list[Candidate], list[str]]:
    """Drop images whose header shows that they cannot be used; notes name headers that contradict themselves.

    DICOM series are not checked again: their headers were read when they were found.
    """
    checked = []
    repaired: dict[str, list[str]] = {}
    with Progress(len(candidates), "Reading image headers") as bar:
        for candidate in candidates:
            image = candidate.scan.image
            if candidate.scan.kept and image is not None and (is_image(image) or is_pair(image)):
                finding = (check_pair if is_pair(image) else _checked_header)(root, image, max_voxel_mm)
                if finding.problem is not None:
                    candidate = candidate.dropped(finding.problem)
                elif finding.repairs:
                    # Numbers differ from scan to scan: one note per kind.
                    kind = re.sub(r" by up to .*| with another .*", "", "; ".join(finding.repairs))
                    repaired.setdefault(kind, []).append(candidate.scan.scan_id)
            checked.append(candidate)
            bar.update()
    return checked, [
        f"headers of {counted(len(names), 'image')} are corrected in memory ({kind}): {listed(names, 3)}"
        for kind, names in repaired.items()
    ]


def _checked_header(root: Path, image: str, max_voxel_mm: float) -> HeaderFinding:
    """What the header of an image says; one whose sform and qform mirror each other cannot be used."""
    finding = check_header(root, image, max_voxel_mm)
    if finding.problem is not None or not any(repair.startswith("qform differs") for repair in finding.repairs):
        return finding
    header = read_raw_header(root / image)
    sides = [np.linalg.det(affine[:3, :3]) > 0 for affine in (header.get_sform(), header.get_qform())]
    if sides[0] == sides[1]:
        return finding
    return HeaderFinding(
        f"left and right are uncertain: its sform (code {int(header['sform_code'])}) mirrors its qform (code "
        f"{int(header['qform_code'])}); set the code of the wrong one to 0"
    )


def possible_scans(candidates: Sequence[Candidate]) -> tuple[list[Candidate], list[str]]:
    """Remove impossible values of any origin from scans: image headers, sidecars, ages computed from dates."""
    checked, problems = [], []
    for candidate in candidates:
        scan = candidate.scan
        for column, allowed in RANGES.items():
            value = getattr(scan, column, None)
            if value is not None and not allowed.holds(value):
                problems.append(f"{scan.image or scan.scan_id}, {column} {value:g} (must be {allowed})")
                candidate = candidate.with_scan(**{column: None})
        checked.append(candidate)
    return checked, problem_notes(problems)


def with_anatomy(
    root: Path, candidates: Sequence[Candidate], kind: ImageKind, max_voxel_mm: float, space: str = DEFAULT_TEMPLATE
) -> list[Candidate]:
    """Drop images that can be registered neither by themselves nor through a T1-weighted image of their session."""
    if not kind.through_t1w:
        return list(candidates)

    def problem(candidate: Candidate) -> str | None:
        scan = candidate.scan
        if scan.entry == "template":
            return None
        if kind.normalised:
            return (
                f"not in template space: a {kind.scan} is used in the space of {space} only (space-{space}, or "
                "--start-at template)"
            )
        if scan.t1w is None:
            return (
                f"no T1w image of the session: a {kind.scan} is registered through it; add it, or give the image in "
                "template space (--start-at template)"
            )
        header_problem = _checked_header(root, scan.t1w, max_voxel_mm).problem
        return header_problem and f"T1w image of the session: {header_problem}"

    return [
        candidate.with_scan(t1w=None) if candidate.scan.kept and candidate.scan.entry == "template" else candidate
        for candidate in drop(candidates, problem)
    ]


def with_further_kinds(
    root: Path, candidates: Sequence[Candidate], config: CohortConfig, space: str = DEFAULT_TEMPLATE
) -> list[Candidate]:
    """Add the images of ``cohort.further_suffixes`` to each scan, and drop scans whose session lacks one.

    All enter alike: in template space if the first does, else in the space of the scanner.
    """
    if not config.further_suffixes:
        return list(candidates)
    return [_with_further(root, image, config, space) if image.scan.kept else image for image in candidates]


def _with_further(root: Path, candidate: Candidate, config: CohortConfig, space: str) -> Candidate:
    placed, paths = candidate.scan.entry == "template", []
    where = f" in the space of {space}, as its {config.suffix} image is" if placed else ""
    for suffix in config.further_suffixes:
        if KINDS[suffix].normalised and not placed:
            return candidate.dropped(
                f"not in template space: a {KINDS[suffix].scan} is used in the space of {space} only, and then with "
                f"the {config.suffix} image in that space"
            )
        problems: list[str] = []
        for image in candidate.others.get(suffix, ()):
            if image.problem is None and (image.entry == "template") != placed:
                continue
            problem = image.problem or _checked_header(root, image.path, config.max_voxel_mm).problem
            if problem is None:
                paths.append(image.path)
                break
            problems.append(problem)
        else:
            if problems:
                return candidate.dropped(f"{suffix} image of the session: {problems[0]}")
            return candidate.dropped(
                f"no {suffix} image of the session{where}: networks see {suffix} beside {config.suffix} "
                "(cohort.further_suffixes)"
            )
    return candidate.with_scan(further=tuple(paths))


def without_duplicates(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Keep the first of several files with one image id, in path order."""
    first: dict[tuple[str, str], str | None] = {}
    kept = [candidate.scan for candidate in candidates if candidate.scan.kept]
    for scan in sorted(kept, key=lambda scan: scan.image or ""):
        first.setdefault((scan.participant_id, scan.scan_id), scan.image)

    def problem(candidate: Candidate) -> str | None:
        scan = candidate.scan
        image = first[scan.participant_id, scan.scan_id]
        return None if image == scan.image else f"duplicate image id: {scan.scan_id}, {image} is used"

    return drop(candidates, problem)


ANOTHER_PREFERRED = "another scan of this session is preferred"
"""Beginning of the reason of a scan that is not the one of its session."""


def one_per_session(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Keep the scan with the smallest preference of several of one session."""
    best: dict[str, Candidate] = {}
    for candidate in candidates:
        name = candidate.scan.name
        if candidate.scan.kept and (name not in best or _rank(candidate) < _rank(best[name])):
            best[name] = candidate

    def problem(candidate: Candidate) -> str | None:
        used = best[candidate.scan.name]
        if used is candidate:
            return None
        pairs = zip(used.preference, candidate.preference, used.criteria, strict=False)
        decided = next((f" ({words})" for value, other, words in pairs if value != other), "")
        return f"{ANOTHER_PREFERRED}: {used.scan.scan_id}{decided}"

    return drop(candidates, problem)


def _rank(candidate: Candidate) -> tuple[tuple[int | str, ...], str]:
    return candidate.preference, candidate.scan.image or ""


_PIECE = 65_536
"""Bytes from the middle of a file, compared before whole files: many scans of one protocol have the same size."""


def same_images(root: Path, scans: Iterable[Scan]) -> list[tuple[Scan, ...]]:
    """Scans whose files have the same bytes; a DICOM series is compared by its first file, with its unique ids."""
    groups: list[list[Scan]] = [list(scans)]
    for trait in (lambda path: path.stat().st_size, _middle, file_digest):
        groups = [part for group in groups for part in _alike(root, group, trait)]
    return [tuple(group) for group in groups]


def _alike(root: Path, scans: Sequence[Scan], trait: Callable[[Path], object]) -> list[list[Scan]]:
    """Groups of scans that share a trait of their file; unique scans are left out."""
    alike: dict[object, list[Scan]] = {}
    for scan in scans:
        try:
            alike.setdefault(trait(root / scan.file), []).append(scan)
        except OSError:  # reported where the image is read
            continue
    return [group for group in alike.values() if len(group) > 1]


def _middle(path: Path) -> str:
    with path.open("rb") as handle:
        handle.seek(max(0, path.stat().st_size - _PIECE) // 2)
        return hashlib.sha256(handle.read(_PIECE)).hexdigest()


def same_images_note(groups: Sequence[Sequence[Scan]]) -> str:
    """A note on images that exist under several names; empty if there are none."""
    text = "used as several scans, byte for byte; find out whom each shows and remove the copies"
    return "".join(note_on((" = ".join(scan.name for scan in group) for group in groups), "image", text, verb="is"))


def same_kinds_note(root: Path, scans: Iterable[Scan]) -> list[str]:
    def has_one_twice(scan: Scan) -> bool:
        files = [root / path for path in dict.fromkeys([scan.file, scan.t1w, *scan.further]) if path]
        try:
            return any(
                file.stat().st_size == other.stat().st_size and file_digest(file) == file_digest(other)
                for file, other in combinations(files, 2)
            )
        except OSError:  # reported where the image is read
            return False

    alike = [scan.name for scan in scans if has_one_twice(scan)]
    text = "one image as two kinds, byte for byte; find out which kind it is and correct the other"
    return note_on(alike, "session", text, verb="has", limit=3)
