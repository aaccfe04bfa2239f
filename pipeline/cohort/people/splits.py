"""Training, validation and test parts, always of whole participants: who trains, and who may be predicted by what.

Splits are stratified by class, or by quantile of the number to predict, and then made alike in sex, age and site
(`pipeline.cohort.people.balance`). scikit-learn's ``StratifiedKFold`` over participants makes the folds;
``StratifiedGroupKFold`` over scans balances the number of scans greedily and may leave a fold without a class. A
network never predicts a person that it was trained or selected with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.model_selection import StratifiedKFold

from heatlas.pipeline.cohort.people.balance import balance_table, balanced, facts_of, features_of
from heatlas.pipeline.cohort.people.persons import known_among, same_person
from heatlas.pipeline.cohort.people.tasks import Task, participant_strata, task_of
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.run.config.settings import CohortConfig, Config
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.plain_text import counted, listed
from heatlas.pipeline.run.tables import read_table, require_filled, require_known, require_numbers, require_whole
from heatlas.pipeline.run.work.seeds import derived_seed, generator

SPLITS_TABLE = declared("splits", __file__)
PARTS = SPLITS_TABLE.values["part"]


@dataclass(frozen=True)
class Fold:
    """Participants of one fold, by part, each sorted."""

    index: int
    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]


def few_people(fold: Fold, labels: Mapping[str, Any], share: float, seed: int) -> Fold:
    """The fold with a share of the training participants of each class, at least one of each.

    Drawn by a seed: the same person has the same rank in every fold, and fewer are always among more.

    >>> fold = Fold(0, ("a", "b", "c", "d"), ("e",), ("f",))
    >>> len(few_people(fold, {"a": "CN", "b": "CN", "c": "AD", "d": "AD"}, 0.5, seed=1).train)
    2
    """
    kept: list[str] = []
    for label in sorted({str(labels.get(name)) for name in fold.train}):
        people = [name for name in fold.train if str(labels.get(name)) == label]
        people.sort(key=lambda name: derived_seed(seed, "few", name))
        kept += people[: max(round(share * len(people)), 1)]
    return replace(fold, train=tuple(sorted(kept)))


@dataclass(frozen=True)
class Split:
    """All folds of a run; refused if a participant is in two parts of a fold, or tested in two folds."""

    folds: tuple[Fold, ...]

    def __post_init__(self) -> None:
        for fold in self.folds:
            require_disjoint(fold)
        tested = Counter(person for fold in self.folds for person in fold.test)
        twice = sorted(person for person, times in tested.items() if times > 1)
        if twice:
            raise BadInputError(f"split: {', '.join(twice[:5])} tested in more than one fold. Make the split again.")

    def fold_of_test(self, participant_id: str) -> Fold | None:
        return next((fold for fold in self.folds if participant_id in fold.test), None)

    def write(self, where: RunLayout | Path) -> None:
        rows = [(person, fold.index, part) for fold in self.folds for part in PARTS for person in getattr(fold, part)]
        SPLITS_TABLE.write(where, rows)

    @classmethod
    def read(cls, where: RunLayout | Path) -> Split:
        path, frame = SPLITS_TABLE.path(where), SPLITS_TABLE.read(where)
        require_whole(path)
        require_filled(path, frame, list(SPLITS_TABLE.meanings))
        require_numbers(path, frame, ["fold"], whole=True)
        require_known(path, frame, "part", PARTS)
        members: dict[int, dict[str, list[str]]] = {}
        for person, index, part in frame[list(SPLITS_TABLE.meanings)].itertuples(index=False):
            members.setdefault(int(index), {name: [] for name in PARTS})[part].append(person)
        try:
            return cls(tuple(_fold(index, parts) for index, parts in sorted(members.items())))
        except BadInputError as error:
            raise BadInputError(f"{path}: {error}") from error


def require_disjoint(fold: Fold) -> None:
    """Refuse a fold with a participant in two parts; checked again before every prediction."""
    for first, second in combinations(PARTS, 2):
        both = sorted(set(getattr(fold, first)) & set(getattr(fold, second)))
        if both:
            raise BadInputError(
                f"split: fold {fold.index} has {', '.join(both[:5])} in {first} and {second}; results would be too "
                "good. Make the split again."
            )


def require_labels(index: int, part: str, labels: Sequence[str | None], task: Task, remark: str = "") -> None:
    """Refuse a part of a fold in which a class is missing or all numbers are equal; `remark` ends the message."""
    lacking = [
        f"no usable scan of {label} ({counted(len(labels), 'scan')} in all)"
        for label in task.classes
        if label not in labels
    ]
    if not task.classes and len(set(labels)) < 2:
        lacking = [f"{len(labels)} usable scans and fewer than two values of {task.column}"]
    if lacking:
        raise BadInputError(
            f"fold {index}: the {part} part has {lacking[0]}. Use fewer folds, a larger cohort.validation_fraction, or "
            f"more participants.{remark}"
        )


def after_inclusion(config: CohortConfig) -> str:
    """A sentence for messages on too few people, where a rule left some out; empty without a rule."""
    return f" These are left by cohort.include = {config.include!r}; a wider rule keeps more." if config.include else ""


def fitting_folds(smallest: int, folds: int) -> int:
    """The most folds, up to those wanted, that leave two people of the smallest class outside each test part.

    If none does, the fewest beyond; 0 for fewer than three people.

    >>> fitting_folds(40, 5), fitting_folds(4, 5), fitting_folds(3, 5), fitting_folds(3, 2), fitting_folds(2, 2)
    (5, 4, 3, 3, 0)
    """
    tried = [*range(min(folds, smallest), 1, -1), *range(folds + 1, smallest + 1)]
    return next((k for k in tried if smallest - ceil(smallest / k) >= 2), 0)


def make_split(table: ScanTable, config: CohortConfig, seed: int) -> Split:
    """Split the labelled participants; BadInputError if a class has too few.

    `CohortConfig.split`: ``folds``: everyone is tested once, a share of the others validates. ``single``: fixed numbers
    of test and validation participants per class, the rest for training, as in the founding study.
    """
    task = task_of(config)
    names, person_of, strata = _people(table, config)
    count = max(strata.values(), default=0) + 1
    titles = task.classes or (["all"] if count == 1 else [f"quantile {n + 1} of {count}" for n in range(count)])
    by_class = {
        title: sorted(person for person, stratum in strata.items() if stratum == number)
        for number, title in enumerate(titles)
    }
    numbers = ", ".join(f"{label} {len(people)}" for label, people in by_class.items())
    if not all(by_class.values()):
        several = task.kind.name == "several classes"
        classes = f"{len(task.outputs)} classes are" if several else "two classes are"
        check = "cohort.classes" if several else "cohort.negative and cohort.positive"
        later = "several counts as the last" if several else "both counts as the second"
        raise BadInputError(
            f"contrast '{task.column}': {classes} needed, but labelled participants are {numbers} "
            f"(someone with {later}). Check {check}, or add scans.{after_inclusion(config)}"
        )
    if config.split == "single":
        folds: tuple[Fold, ...] = (_single_fold(by_class, config, seed, numbers),)
    else:
        facts = facts_of(table.labelled, person_of)
        folds = _k_folds(by_class, facts, config, seed, numbers)
    return Split(
        tuple(
            _fold(
                fold.index, {part: [name for person in getattr(fold, part) for name in names[person]] for part in PARTS}
            )
            for fold in folds
        )
    )


def split_balance(split: Split, table: ScanTable, config: CohortConfig, seed: int) -> pd.DataFrame:
    """How alike the test folds are, or the parts of a single split; columns of `SPLIT_BALANCE_TABLE`."""
    _, person_of, strata = _people(table, config)
    facts = facts_of(table.labelled, person_of)
    groups = [fold.test for fold in split.folds]
    if len(groups) == 1:
        groups = [getattr(split.folds[0], part) for part in PARTS]
    place = {person_of[name]: number for number, group in enumerate(groups) for name in group}
    variables = config.balance if config.split == "folds" else ()
    people = [person for person in facts.index if person in place]
    fold, stratum = (np.array([which[person] for person in people], np.intp) for which in (place, strata))
    return balance_table(facts.loc[people], stratum, fold, variables, generator(seed, "split", "by chance"))


def _people(
    table: ScanTable, config: CohortConfig
) -> tuple[dict[str, tuple[str, ...]], dict[str, str], dict[str, int]]:
    """Names of each labelled person, the person behind each name, and the stratum of each person."""
    names = same_person(scan.participant_id for scan in table.labelled)
    person_of = {name: person for person, of_person in names.items() for name in of_person}
    return names, person_of, participant_strata(table.labelled, task_of(config), person_of, config.folds)


def _k_folds(
    by_class: Mapping[str, Sequence[str]], facts: pd.DataFrame, config: CohortConfig, seed: int, numbers: str
) -> tuple[Fold, ...]:
    k = config.folds
    if (fitting := fitting_folds(min(map(len, by_class.values())), k)) != k:
        few = listed([f"{3 - len(group)} of {name}" for name, group in by_class.items() if len(group) < 3])
        remedy = (
            f"Set cohort.folds = {fitting}"
            if fitting
            else f"Add participants, at least {few}: the fewest are 3 of each class, with cohort.folds = 3"
        )
        raise BadInputError(
            f"cohort.folds = {k}: each fold must test, validate and train on at least one participant of each class, "
            f"but labelled participants are {numbers}. {remedy}, or choose another contrast or target."
            f"{after_inclusion(config)}"
        )
    people = np.array([person for group in by_class.values() for person in group])
    target = np.repeat(np.arange(len(by_class)), [len(group) for group in by_class.values()])
    splitter = StratifiedKFold(k, shuffle=True, random_state=derived_seed(seed, "split"))
    drawn = np.empty(len(people), np.intp)
    for index, (_, test) in enumerate(splitter.split(people, target)):
        drawn[test] = index
    features = features_of(facts.loc[people], config.balance)
    tested_in = balanced(drawn, target, features, generator(seed, "split", "balance"))
    folds = []
    for index in range(k):
        rest = np.flatnonzero(tested_in != index)
        validates = np.zeros(len(rest), np.intp)
        for label in np.unique(target):
            members = np.flatnonzero(target[rest] == label)
            share = min(max(round(config.validation_fraction * len(members)), 1), len(members) - 1)
            order = generator(seed, "split", "validation", index, int(label)).permutation(len(members))
            validates[members[order[:share]]] = 1
        features = features_of(facts.loc[people[rest]], config.balance)
        rng = generator(seed, "split", "validation balance", index)
        part = balanced(validates, target[rest], features, rng)
        names = {name: list(people[rest[part == number]]) for number, name in enumerate(PARTS[:2])}
        folds.append(_fold(index, {**names, "test": list(people[tested_in == index])}))
    return tuple(folds)


def _single_fold(by_class: Mapping[str, Sequence[str]], config: CohortConfig, seed: int, numbers: str) -> Fold:
    n_test, n_validation = config.test_participants_per_class, config.validation_participants_per_class
    if min(map(len, by_class.values())) <= n_test + n_validation:
        raise BadInputError(
            f"cohort.split = 'single': {n_test} participants of each class to test, {n_validation} to validate and one "
            f"to train make {n_test + n_validation + 1}, but labelled participants are {numbers}. Set cohort.split = "
            "'folds', or lower cohort.test_participants_per_class and cohort.validation_participants_per_class."
            f"{after_inclusion(config)}"
        )
    parts: dict[str, list[str]] = {part: [] for part in PARTS}
    for number, members in enumerate(by_class.values()):
        order = [members[i] for i in generator(seed, "split", "single", number).permutation(len(members))]
        parts["test"] += order[:n_test]
        parts["validation"] += order[n_test : n_test + n_validation]
        parts["train"] += order[n_test + n_validation :]
    return _fold(0, parts)


def _fold(index: int, parts: Mapping[str, Sequence[str]]) -> Fold:
    train, validation, test = (tuple(sorted(map(str, parts[part]))) for part in PARTS)
    return Fold(index, train, validation, test)


def annotated_people(people: Sequence[str], share: float, seed: int) -> frozenset[str]:
    """A share of some people, drawn by a seed; the same person has the same rank in every fold.

    >>> len(annotated_people([f"sub-{n}" for n in range(20)], 0.1, seed=1))
    2
    """
    count = round(share * len(people))
    if count == 0:
        raise UsageError(
            f"objective.annotated = {share:g}: of {len(people)} training participants that is nobody; set at least "
            f"{1 / len(people):.2g}."
        )
    return frozenset(sorted(people, key=lambda name: derived_seed(seed, "annotated", name))[:count])


def training_part(config: Config, fold: Fold, scans: Sequence[Scan]) -> Fold:
    """The fold with the people who train: all, or the share that ``training.participants`` says."""
    if config.training.participants == 1:
        return fold
    classes = task_of(config.cohort).classes
    labels = {scan.participant_id: scan.label if classes else None for scan in scans}
    return few_people(fold, labels, config.training.participants, config.seed)


def guided_people(config: Config, fold: Fold, scans: Sequence[Scan], segmented: Collection[str]) -> frozenset[str]:
    """The annotated people of a training part who have labels of their own.

    `fold`: with the people who train. `scans`: with a label. `segmented`: who has labels of their own with all regions.
    """
    wanted = config.objective
    with_labels = [name for name in fold.train if name in segmented]
    if not with_labels:
        raise UsageError(
            f"objective.region_labels: nobody in the training part of fold {fold.index} has labels of their own with "
            f'{", ".join(wanted.regions)}. Segment more people, or set "atlas".'
        )
    people = annotated_people(with_labels, wanted.annotated, config.seed)
    if wanted.classes and not any(scan.participant_id in people and scan.label in wanted.classes for scan in scans):
        raise UsageError(
            f"objective.classes: nobody of {', '.join(wanted.classes)} in the training part of fold {fold.index} is "
            "annotated and has labels of their own. Segment more people, or name other classes."
        )
    return people


def networks_for(participants: Sequence[str], split: Split) -> dict[str, tuple[int, ...]]:
    """Folds whose networks may predict each participant: those that neither train nor validate with them.

    Someone with labelled scans has the fold that tests them (none if a single split trains with them);
    everyone else has all folds. Someone with two names (`pipeline.cohort.people.persons`) is one person.

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
    """Folds whose networks predicted each scan outside the contrast, from ``predictions_applied.tsv``."""
    predictions = read_table(table, ["scan_id", "networks"], ("networks",))
    networks = dict(zip(predictions["scan_id"], predictions["networks"], strict=True))
    missing = [scan_id for scan_id in scan_ids if scan_id not in networks]
    if missing:
        raise BadInputError(f"{table}: scan {missing[0]} has no row. Run training again.")
    return {scan_id: tuple(map(int, str(networks[scan_id]).split(";"))) for scan_id in scan_ids}


def people_of(description: Mapping[str, Any], where: str, part: str) -> Sequence[str]:
    """Participants of a part of a network: ``train``, ``validation``, or ``backbone`` (nobody without one).

    BadInputError if its `description`, as it was saved, does not say so: then nobody knows whom it may not predict.
    """
    parts = description.get("participants")
    people = parts.get(part) if isinstance(parts, dict) else None
    if part == "backbone":
        people = description.get("backbone_participants", [])
    if not isinstance(people, list) or not all(isinstance(name, str) for name in people):
        raise BadInputError(
            f"{where}: does not say with whom the network was trained ({part}). Restore the file or train it again."
        )
    return people


def known_to_network(description: Mapping[str, Any], where: str) -> list[str]:
    """Participants with whom a network, or its backbone, was trained or selected; sorted."""
    parts = ("train", "validation", "backbone")
    return sorted({name for part in parts for name in people_of(description, where, part)})


def require_unseen(description: Mapping[str, Any], where: str, participants: Sequence[str]) -> None:
    """Refuse to predict someone with whom the network was trained or selected, whatever the split in memory says."""
    overlap = known_among(participants, known_to_network(description, where))
    if overlap:
        raise BadInputError(
            f"{where}: the network was trained or selected with {overlap[0]} and must not predict them. Train the "
            "fold again with the present split."
        )
