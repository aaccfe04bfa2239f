"""Labels that say nothing: half of the participants of each class change places with the other class."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from pipeline.cohort.people.persons import name_of_person
from pipeline.cohort.people.splits import Fold
from pipeline.cohort.records import Scan
from pipeline.run.config.settings import CohortConfig
from pipeline.run.errors import BadInputError
from pipeline.run.work.seeds import derived_seed, generator

FEWEST = 2
"""People of a class in a training part: one person alone can only keep the label or change it, and labels that are all
changed say as much as true ones."""


def swapped(first: Sequence[str], second: Sequence[str], seed: int) -> frozenset[str]:
    """Participants of two classes that exchange their labels.

    As many of either class, so that classes keep their sizes. The number is the one that leaves no association of new
    and true labels, as far as whole people allow: n1 n2 / (n1 + n2). A plain permutation of few people often keeps
    some of it, and a network that learns it has learned something true.

    Examples
    --------
    >>> chosen = swapped(["a", "b", "c", "d"], ["e", "f", "g", "h"], seed=1)
    >>> len(chosen & set("abcd")), len(chosen & set("efgh"))
    (2, 2)
    """
    count = max(round(len(first) * len(second) / max(len(first) + len(second), 1)), min(len(first), len(second), 1))
    chosen: set[str] = set()
    for number, people in enumerate((sorted(first), sorted(second))):
        order = generator(seed, "swapped-labels", number).permutation(len(people))
        chosen |= {people[place] for place in order[:count]}
    return frozenset(chosen)


def with_swapped_labels(scans: Sequence[Scan], fold: Fold, config: CohortConfig, seed: int) -> tuple[Scan, ...]:
    """Scans of a fold with labels exchanged within its training part and within its validation part.

    Scans of the test part keep their labels, so that what the network says of them can be judged. Of people with scans
    of both classes, half exchange their own two labels. All names of a person change together.

    Raises
    ------
    BadInputError
        If the training part has fewer than `FEWEST` people of a class.
    """
    person = name_of_person(scan.participant_id for scan in scans)
    other = {config.negative: config.positive, config.positive: config.negative}
    changed: set[str] = set()
    for name, members in (("train", fold.train), ("validation", fold.validation)):
        part = [scan for scan in scans if scan.participant_id in members]
        positive = {person[scan.participant_id] for scan in part if scan.label == config.positive}
        negative = {person[scan.participant_id] for scan in part if scan.label == config.negative}
        if name == "train":
            _require_enough(fold, {config.negative: negative, config.positive: positive})
        own = derived_seed(seed, name, fold.index)
        both = sorted(positive & negative)
        order = generator(own, "both").permutation(len(both))
        changed |= {both[place] for place in order[: (len(both) + 1) // 2]}
        changed |= swapped(sorted(negative - positive), sorted(positive - negative), own)
    return tuple(
        dataclasses.replace(scan, label=other[str(scan.label)]) if person[scan.participant_id] in changed else scan
        for scan in scans
    )


def _require_enough(fold: Fold, people: Mapping[str, Collection[str]]) -> None:
    for label, own in people.items():
        if len(own) < FEWEST:
            raise BadInputError(
                f"fold {fold.index}: its training part has {len(own)} of {label}, and shuffled labels need at least "
                f"{FEWEST} people of each class there: with one, every label would be changed, and labels that are all "
                "changed are not random. Use fewer folds, add participants, or leave this test out "
                "(--parts faithfulness)."
            )
