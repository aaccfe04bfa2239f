"""Selection of scans: one image per session is used, every other is dropped with a reason."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from heatlas.pipeline.cohort.images.file_kinds import is_image
from heatlas.pipeline.cohort.images.headers import check_header
from heatlas.pipeline.cohort.images.pairs import check_pair, is_pair
from heatlas.pipeline.cohort.people.persons import known_among
from heatlas.pipeline.cohort.records import FollowUp, Scan
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted, listed
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.progress import Progress


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

    def dropped(self, reason: str) -> Candidate:
        return dataclasses.replace(self, scan=self.scan.dropped(reason))


def only_participants(candidates: Sequence[Candidate], participants: Sequence[str]) -> list[Candidate]:
    """Drop the scans of all but some participants, named with or without ``sub-``, or as ADNI's ``002_S_0295``."""
    if not participants:
        return list(candidates)
    found = {candidate.scan.participant_id for candidate in candidates}
    wanted = {participant_named(name, found): name for name in participants}
    unknown = [name for participant, name in wanted.items() if participant not in found]
    if unknown:
        raise BadInputError(
            f"--participant-label {', '.join(unknown)}: no such participant among the {len(found)} of the input, "
            f"which begin {', '.join(sorted(found)[:3])}."
        )
    return [
        candidate
        if candidate.scan.participant_id in wanted or not candidate.scan.kept
        else candidate.dropped("participant not chosen by --participant-label")
        for candidate in candidates
    ]


def without_people(candidates: Sequence[Candidate], path: Path) -> list[Candidate]:
    """Drop the scans of people whom a table names, by any of their names; raises BadInputError if it names nobody."""
    named = read_table(path, ["participant_id"])["participant_id"].dropna().astype(str)
    if not len(named):
        raise BadInputError(f"{path}: its column participant_id names nobody. Correct cohort.without.")
    known = set(known_among([candidate.scan.participant_id for candidate in candidates], sorted(set(named))))
    return [
        candidate.dropped(f"named in {path.name} (cohort.without)")
        if candidate.scan.kept and candidate.scan.participant_id in known
        else candidate
        for candidate in candidates
    ]


def participant_named(name: str, found: set[str]) -> str:
    """The participant_id for a label: with or without ``sub-``, or ADNI's ``002_S_0295``.

    Examples
    --------
    >>> participant_named("002_S_0295", {"sub-ADNI002S0295"}), participant_named("01", {"sub-01"})
    ('sub-ADNI002S0295', 'sub-01')
    """
    bare = name.strip().removeprefix("sub-")
    choices = [f"sub-{bare}", "sub-ADNI" + bare.replace("_", "").upper()]
    return next((choice for choice in choices if choice in found), choices[0])


def with_readable_headers(
    root: Path, candidates: Sequence[Candidate], max_voxel_mm: float
) -> tuple[list[Candidate], list[str]]:
    """Drop images whose header shows that they cannot be used; images already dropped keep their reason.

    DICOM series are not checked again: their headers were read when they were found. Notes name headers that contradict
    themselves, and which part is used.
    """
    checked = []
    repaired: dict[str, list[str]] = {}
    with Progress(len(candidates), "Reading image headers") as bar:
        for candidate in candidates:
            image = candidate.scan.image
            if candidate.scan.kept and image is not None and (is_image(image) or is_pair(image)):
                finding = (check_pair if is_pair(image) else check_header)(root, image, max_voxel_mm)
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


def without_duplicates(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Keep the first of several files with one image id, in path order."""
    first: dict[tuple[str, str], Candidate] = {}
    for candidate in sorted(_kept(candidates), key=lambda c: c.scan.image or ""):
        first.setdefault((candidate.scan.participant_id, candidate.scan.scan_id), candidate)

    def decided(candidate: Candidate) -> Candidate:
        used = first.get((candidate.scan.participant_id, candidate.scan.scan_id))
        if not candidate.scan.kept or used is None or used.scan.image == candidate.scan.image:
            return candidate
        return candidate.dropped(f"duplicate image id: {candidate.scan.scan_id}, {used.scan.image} is used")

    return [decided(candidate) for candidate in candidates]


ANOTHER_PREFERRED = "another scan of this session is preferred"
"""Beginning of the reason of a scan that is not the one of its session."""


def one_per_session(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Keep the scan with the smallest preference of several of one session."""
    best: dict[str, Candidate] = {}
    for candidate in _kept(candidates):
        name = candidate.scan.name
        if name not in best or _rank(candidate) < _rank(best[name]):
            best[name] = candidate
    return [
        candidate
        if not candidate.scan.kept or best[candidate.scan.name] is candidate
        else candidate.dropped(f"{ANOTHER_PREFERRED}: {_why(best[candidate.scan.name], candidate)}")
        for candidate in candidates
    ]


def _why(best: Candidate, beaten: Candidate) -> str:
    """The scan that is used, and the first criterion on which the two differ."""
    pairs = zip(best.preference, beaten.preference, best.criteria, strict=False)
    decided = next((words for one, other, words in pairs if one != other), None)
    return best.scan.scan_id + (f" ({decided})" if decided else "")


def _rank(candidate: Candidate) -> tuple[tuple[int | str, ...], str]:
    return candidate.preference, candidate.scan.image or ""


def _kept(candidates: Iterable[Candidate]) -> list[Candidate]:
    return [candidate for candidate in candidates if candidate.scan.kept]
