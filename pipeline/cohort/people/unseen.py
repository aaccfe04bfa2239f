"""Which networks may predict a person: never one that was trained or selected with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.cohort.people.persons import known_among, same_person
from pipeline.cohort.people.splits import Split
from pipeline.run.errors import BadInputError
from pipeline.run.tables import read_table


def networks_for(participants: Sequence[str], split: Split) -> dict[str, tuple[int, ...]]:
    """Folds whose networks may predict each participant: those that neither train nor validate with them.

    Someone with labelled scans has the fold that tests them (none if a single split trains with them);
    everyone else has all folds. Someone with two names (`pipeline.cohort.people.persons`) is one person.

    Examples
    --------
    >>> from pipeline.cohort.people.splits import Fold
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

    Raises
    ------
    BadInputError
        If a scan has no row.
    """
    predictions = read_table(table, ["scan_id", "networks"], ("networks",))
    named = dict(zip(predictions["scan_id"], predictions["networks"], strict=True))
    missing = [scan_id for scan_id in scan_ids if scan_id not in named]
    if missing:
        raise BadInputError(f"{table}: scan {missing[0]} has no row. Run training again.")
    return {scan_id: tuple(map(int, str(named[scan_id]).split(";"))) for scan_id in scan_ids}


def known_to_backbone(description: Mapping[str, Any]) -> Sequence[str]:
    """Participants that the backbone of a network has learned from; none for a network without a backbone."""
    known: Sequence[str] = description.get("backbone_participants", ())
    return known


def known_to_network(description: Mapping[str, Any]) -> list[str]:
    """Participants with whom a network, or its backbone, was trained or selected; sorted."""
    parts = description["participants"]
    return sorted({*parts["train"], *parts["validation"], *known_to_backbone(description)})


def require_unseen(description: Mapping[str, Any], where: str, participants: Sequence[str]) -> None:
    """Refuse to predict someone with whom the network was trained or selected, whatever the split in memory says.

    Parameters
    ----------
    description : mapping
        Of the network, as it was saved.
    where : str
        Names the network in messages.

    Raises
    ------
    BadInputError
        Naming the participant; or if the description does not say whom the network has seen.
    """
    if description.get("participants") is None:
        raise BadInputError(f"{where}: does not say with whom the network was trained. Train it again.")
    overlap = known_among(participants, known_to_network(description))
    if overlap:
        raise BadInputError(
            f"{where}: the network was trained or selected with {overlap[0]} and must not predict them. Train the "
            "fold again with the present split."
        )
