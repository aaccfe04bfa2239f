"""Cohorts with a long tail: many participants of some classes, few of others, and a balanced part for testing.

The number of participants falls exponentially from the first class to the last, as in the long-tailed versions of CIFAR
(Cao et al. 2019, NeurIPS). Participants are drawn, not scans, so no one is in two parts. Draws are nested: another
ratio changes neither the test part nor who comes first in a class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.plain_text import counted, listed
from heatlas.pipeline.run.work.seeds import generator

HEAD, MID, TAIL = "head", "mid", "tail"
GROUPS = (HEAD, MID, TAIL)
"""Groups of classes, from the most frequent."""


@dataclass(frozen=True)
class LongTailedParts:
    """Who is in which part.

    `classes`: from the most frequent to the rarest in `training`. `few`: of `training`, as many of each class as the
    smallest has. `test`: others, as many of each class.
    """

    classes: tuple[str, ...]
    training: Mapping[str, tuple[str, ...]]
    few: Mapping[str, tuple[str, ...]]
    test: Mapping[str, tuple[str, ...]]

    @property
    def shots(self) -> int:
        return min(map(len, self.training.values()))

    @property
    def groups(self) -> Mapping[str, tuple[str, ...]]:
        return groups_of(self.classes)


def long_tailed_counts(sizes: Sequence[int], ratio: float) -> tuple[int, ...]:
    """Participants per class whose number falls exponentially: ``n ratio^(-c / (C - 1))``, rounded.

    n is the largest for which no class needs more participants than there are. `sizes`: participants that each class
    has, in the order of the long tail. `ratio`: of the first class over the last.

    Examples
    --------
    >>> long_tailed_counts([100, 100, 100], 10), long_tailed_counts([400, 100, 5], 10), long_tailed_counts([9, 7], 1)
    ((100, 32, 10), (50, 16, 5), (7, 7))
    """
    if not (np.isfinite(ratio) and ratio >= 1):
        raise UsageError(
            f"ratio = {ratio}: the most frequent class has at least as many as the rarest; give 1 or more."
        )
    if len(sizes) < 2:
        raise UsageError(f"a long tail over {counted(len(sizes), 'class', plural='classes')}: at least two are needed.")
    shares = float(ratio) ** (-np.arange(len(sizes)) / (len(sizes) - 1))
    largest = float((np.asarray(sizes) / shares).min())
    if largest * shares[-1] < 1 - 1e-9:
        raise UsageError(
            f"ratio = {ratio:g}: with {listed(map(str, sizes), len(sizes))} participants per class, the rarest would "
            f"have none. Give a ratio of at most {largest:.4g}, or more participants of the first class."
        )
    return tuple(np.rint(largest * shares).astype(int).tolist())


def groups_of(classes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Thirds of the classes, in the order of their frequency; the first groups are larger by one if need be.

    Two classes are head and tail.

    Examples
    --------
    >>> {name: len(members) for name, members in groups_of("abcdefghij").items()}
    {'head': 4, 'mid': 3, 'tail': 3}
    >>> groups_of(["CN", "AD"])
    {'head': ('CN',), 'tail': ('AD',)}
    """
    names = (HEAD, TAIL) if len(classes) < 3 else GROUPS
    parts = np.array_split(np.arange(len(classes)), len(names))
    return {name: tuple(classes[place] for place in part) for name, part in zip(names, parts, strict=True) if len(part)}


def by_class(class_of: Mapping[str, str], classes: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """Participants of each class, sorted; without given `classes`, the largest class first."""
    members: dict[str, list[str]] = {}
    for person in sorted(class_of):
        members.setdefault(class_of[person], []).append(person)
    order = list(classes) or sorted(members, key=lambda name: (-len(members[name]), name))
    others = sorted(set(members) - set(order))
    if others or len(set(order)) < len(order):
        raise UsageError(
            f"classes {listed(order, len(order))}: name each class of the participants once"
            + (f"; {listed(others)} is missing." if others else ".")
        )
    empty = [name for name in order if name not in members]
    if empty:
        raise BadInputError(
            f"class {listed(empty)} has no participant. Leave it out of the classes, or add people who have it."
        )
    return {name: tuple(members[name]) for name in order}


def draw_long_tail(
    class_of: Mapping[str, str], ratio: float, classes: Sequence[str], seed: int = 0
) -> dict[str, tuple[str, ...]]:
    """Participants of each class whose number falls exponentially, drawn from all who have one of the classes.

    `ratio`: participants of the first class over those of the last, up to rounding. `classes`: from the most frequent
    to the rarest.

    Examples
    --------
    >>> people = {f"sub-{n}": ("AD", "CN", "MCI")[n % 3] for n in range(60)}
    >>> {name: len(members) for name, members in draw_long_tail(people, 10, ["CN", "AD"]).items()}
    {'CN': 20, 'AD': 2}
    """
    members = by_class({person: name for person, name in class_of.items() if name in classes}, classes)
    counts = long_tailed_counts([len(people) for people in members.values()], ratio)
    drawn = _shuffle(members, seed)
    return {name: tuple(sorted(people[:count])) for (name, people), count in zip(drawn.items(), counts, strict=True)}


def _shuffle(members: Mapping[str, Sequence[str]], seed: int) -> dict[str, list[str]]:
    return {
        name: [people[place] for place in generator(seed, "long tail", name).permutation(len(people))]
        for name, people in members.items()
    }


def long_tailed_parts(
    class_of: Mapping[str, str], ratio: float, test_share: float = 0.25, classes: Sequence[str] = (), seed: int = 0
) -> LongTailedParts:
    """Draw a balanced test part, a long-tailed training part, and the few-shot part of it.

    `ratio`: participants of the first class over those of the last, in training; up to rounding. `test_share`: share of
    the participants of the smallest class who are tested; as many are of each other class. `classes`: from the most
    frequent to the rarest; by the number of participants if empty.

    Examples
    --------
    >>> people = {f"sub-{n}": "AD" if n % 3 == 0 else "CN" for n in range(60)}
    >>> parts = long_tailed_parts(people, ratio=5)
    >>> {name: (len(parts.training[name]), len(parts.few[name]), len(parts.test[name])) for name in parts.classes}
    {'CN': (35, 7, 5), 'AD': (7, 7, 5)}
    """
    if not 0 < test_share < 1:
        raise UsageError(f"test_share = {test_share}: give a share between 0 and 1, such as 0.25.")
    members = by_class(class_of, classes)
    smallest = min(members, key=lambda name: len(members[name]))
    if len(members[smallest]) < 2:
        raise BadInputError(
            f"class {smallest} has 1 participant; to train on and to test, it needs 2 or more. Add people who have it, "
            "or leave it out."
        )
    tested = min(max(1, round(test_share * len(members[smallest]))), len(members[smallest]) - 1)
    drawn = _shuffle(members, seed)
    counts = long_tailed_counts([len(people) - tested for people in drawn.values()], ratio)
    ends = dict(zip(drawn, counts, strict=True))
    return LongTailedParts(
        classes=tuple(drawn),
        training={name: tuple(people[tested : tested + ends[name]]) for name, people in drawn.items()},
        few={name: tuple(people[tested : tested + min(counts)]) for name, people in drawn.items()},
        test={name: tuple(people[:tested]) for name, people in drawn.items()},
    )
