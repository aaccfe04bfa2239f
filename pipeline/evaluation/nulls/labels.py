"""Labels that say nothing: half of the participants of each class change places with the other class.

Several classes, or numbers, change places among all participants of a part, by that of many random orders after which
new and true labels are least associated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from heatlas.pipeline.cohort.people.persons import name_of_person
from heatlas.pipeline.cohort.people.splits import Fold
from heatlas.pipeline.cohort.people.tasks import TWO_CLASSES, Task, task_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.work.seeds import derived_seed, generator

FEWEST = 2
"""People of a class in a training part: one person alone can only keep the label or change it, and labels that are all
changed say as much as true ones."""

ORDERS = 200
"""Random orders from which the least associated one is taken."""


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
    of both classes, half exchange their own two labels. All names of a person change together. Where there are several
    classes, or numbers, see `least_associated`.

    Raises
    ------
    BadInputError
        If the training part has fewer than `FEWEST` people of a class.
    """
    if task_of(config).kind.name != TWO_CLASSES:
        return _with_labels_of_others(scans, fold, task_of(config), seed)
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


def least_associated(values: NDArray[np.float64], is_number: bool, seed: int) -> NDArray[np.intp]:
    """Order of people whose values say least of their own: person ``i`` takes the value of person ``order[i]``.

    The one of `ORDERS` random orders with the smallest correlation of numbers; for classes, with the smallest sum of
    squared differences between the table of new and true classes and that of independence.

    Examples
    --------
    >>> order = least_associated(np.repeat([0.0, 1.0, 2.0], 3), False, seed=1)
    >>> np.repeat([0, 1, 2], 3)[order].reshape(3, 3).tolist()  # each class gets one of each
    [[1, 0, 2], [2, 1, 0], [1, 2, 0]]
    """
    random = generator(seed, "least-associated")
    columns = values[:, None] if is_number else (values[:, None] == np.unique(values)).astype(float)
    centred = columns - columns.mean(axis=0)
    orders = [random.permutation(len(values)) for _ in range(ORDERS)]
    return min(orders, key=lambda order: float(((centred.T @ centred[order]) ** 2).sum()))


def _with_labels_of_others(scans: Sequence[Scan], fold: Fold, task: Task, seed: int) -> tuple[Scan, ...]:
    """Each person takes the highest class, or the mean number, of another; numbers keep their course."""
    person = name_of_person(scan.participant_id for scan in scans)
    own: dict[str, list[float]] = {}
    for scan in scans:
        own.setdefault(person[scan.participant_id], []).append(task.value(scan.label, scan.name))
    value = {name: float(np.mean(all_) if task.is_number else max(all_)) for name, all_ in own.items()}
    new: dict[str, float] = {}
    for part, members in (("train", fold.train), ("validation", fold.validation)):
        people = sorted({person[scan.participant_id] for scan in scans if scan.participant_id in members})
        if not people:
            continue
        values = np.array([value[name] for name in people])
        if part == "train" and not task.is_number:
            classes = {label: [n for n in people if value[n] == k] for k, label in enumerate(task.outputs)}
            _require_enough(fold, classes)
        order = least_associated(values, task.is_number, derived_seed(seed, part, fold.index))
        new |= {name: float(values[donor]) for name, donor in zip(people, order, strict=True)}
    relabelled = []
    for scan in scans:
        name = person[scan.participant_id]
        if name in new and task.is_number:
            course = task.value(scan.label, scan.name) - value[name]
            scan = dataclasses.replace(scan, label=repr(new[name] + course))
        elif name in new:
            scan = dataclasses.replace(scan, label=task.outputs[int(new[name])])
        relabelled.append(scan)
    return tuple(relabelled)


def _require_enough(fold: Fold, people: Mapping[str, Collection[str]]) -> None:
    for label, own in people.items():
        if len(own) < FEWEST:
            raise BadInputError(
                f"fold {fold.index}: its training part has {len(own)} of {label}, and shuffled labels need at least "
                f"{FEWEST} people of each class there: with one, every label would be changed, and labels that are all "
                "changed are not random. Use fewer folds, add participants, or leave this test out "
                "(--parts faithfulness)."
            )
