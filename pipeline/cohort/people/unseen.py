"""Which networks may predict a person: never one that was trained or selected with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heatlas.pipeline.cohort.people.persons import known_among, same_person
from heatlas.pipeline.cohort.people.splits import Split
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.tables import read_table


def networks_for(participants: Sequence[str], split: Split) -> dict[str, tuple[int, ...]]:
    """Folds whose networks may predict each participant: those that neither train nor validate with them.

    Someone with labelled scans has the fold that tests them (none if a single split trains with them);
    everyone else has all folds. Someone with two names (`pipeline.cohort.people.persons`) is one person.

    Examples
    --------
    >>> from heatlas.pipeline.cohort.people.splits import Fold
    >>> split = Split((Fold(0, ("sub-1",), (), ("sub-2",)), Fold(1, ("sub-2",), (), ("sub-1",))))
    >>> networks_for(["sub-1", "sub-3"], split)
    {'sub-1': (1,), 'sub-3': (0, 1)}
    """
    seen = {fold.index: {*fold.train, *fold.validation} for fold in split.folds}
    names = same_person([*participants, *(name for people in seen.values() for name in people)])
    names_of_person = {name: set(of) for of in names.values() for name in of}
    return {
        person: tuple(index for index, people in seen.items() if not names_of_person[person] & people)
        for person in dict.fromkeys(participants)
    }


def networks_that_answered(table: Path, scan_ids: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Folds whose networks predicted each scan outside the contrast, from ``predictions_applied.tsv``.

    BadInputError if a scan has no row.
    """
    predictions = read_table(table, ["scan_id", "networks"], ("networks",))
    named = dict(zip(predictions["scan_id"], predictions["networks"], strict=True))
    missing = [scan_id for scan_id in scan_ids if scan_id not in named]
    if missing:
        raise BadInputError(f"{table}: scan {missing[0]} has no row. Run training again.")
    return {scan_id: tuple(map(int, str(named[scan_id]).split(";"))) for scan_id in scan_ids}


def people_of(description: Mapping[str, Any], where: str, part: str) -> Sequence[str]:
    """Participants of a part of a network: ``train``, ``validation``, or ``backbone`` (nobody without one).

    BadInputError if the description does not say so: then nobody knows whom the network may not predict.

    `description`: of the network, as it was saved; `where`: names the network in messages.
    """
    if part == "backbone":
        found = description.get("backbone_participants", [])
    else:
        parts = description.get("participants")
        found = parts.get(part) if isinstance(parts, dict) else None
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise BadInputError(
            f"{where}: does not say with whom the network was trained ({part}). Restore the file or train it again."
        )
    return found


def known_to_network(description: Mapping[str, Any], where: str) -> list[str]:
    """Participants with whom a network, or its backbone, was trained or selected; sorted. Raises as `people_of`."""
    return sorted(
        {name for part in ("train", "validation", "backbone") for name in people_of(description, where, part)}
    )


def require_unseen(description: Mapping[str, Any], where: str, participants: Sequence[str]) -> None:
    """Refuse to predict someone with whom the network was trained or selected, whatever the split in memory says.

    Raises BadInputError, naming the participant; also as `people_of`.
    """
    overlap = known_among(participants, known_to_network(description, where))
    if overlap:
        raise BadInputError(
            f"{where}: the network was trained or selected with {overlap[0]} and must not predict them. Train the "
            "fold again with the present split."
        )
