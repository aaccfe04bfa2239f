"""Tasks: what a network learns to predict about a scan, two classes, several classes or a number.

A *kind* of task defines how it is split, measured and explained; all kinds are in `KINDS`. A *task* is a kind with the
names from the settings of a run. It answers what differs between kinds, so that others need not ask which kind it is.
The label of a scan is always text: its class, or its number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError

KindName = Literal["two classes", "several classes", "number"]
TWO_CLASSES: KindName = "two classes"
SEVERAL_CLASSES: KindName = "several classes"
NUMBER: KindName = "number"
MOST_STRATA = 5
"""Largest number of quantiles by which folds are stratified."""


@dataclass(frozen=True)
class Words:
    """How sentences speak of a task.

    Of what the networks explain: its name, what maps show of it, and what blue and red in a map do to it. Then the unit
    of evidence, someone to compare with, and the answer of the networks.
    """

    explained: str
    evidence: str
    supports: str
    opposes: str
    unit: str
    control: str
    answer: str


@dataclass(frozen=True)
class Task:
    """What the networks of a run predict.

    Parameters
    ----------
    column : str
        Column of the label.
    outputs : tuple of str
        Name of each output unit: the classes, or the column of the number.
    explained : str
        The output that maps explain.
    """

    kind: Kind
    column: str
    outputs: tuple[str, ...]
    explained: str

    @property
    def is_number(self) -> bool:
        return self.kind.name == NUMBER

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes that are told apart; none where a number is predicted."""
        return () if self.is_number else self.outputs

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups in which scans are shown: the classes, or all scans together."""
        return self.classes or ("all",)

    @property
    def words(self) -> Words:
        column, explained = self.column, self.explained
        if self.is_number:
            return Words(
                f"the predicted {column}",
                f"predicted {column}",
                f"raises the predicted {column}",
                f"lowers {column}",
                f"units of {column}",
                f"someone with {column}",
                "prediction",
            )
        return Words(
            explained, f"evidence for {explained}", f"speaks for {explained}", f"speaks against {explained}", "logits",
            f"a control ({self.outputs[0]})", "contrast",
        )  # fmt: skip

    @property
    def unit(self) -> int:
        """Index of the output that is explained."""
        return self.outputs.index(self.explained)

    @property
    def units(self) -> tuple[int, ...]:
        """Outputs whose class is told from all others: each of several, the one explained of two, none of a number."""
        return tuple(range(len(self.outputs))) if len(self.classes) > 2 else (self.unit,) * bool(self.classes)

    @property
    def scores(self) -> list[str]:
        """Columns of ``predictions.tsv`` with the answer: the number, or the probability of each of `units`."""
        if len(self.classes) > 2:
            return [f"probability_{name}" for name in self.classes]
        return ["probability"] if self.classes else ["prediction"]

    def is_control(self, label: str | None) -> bool:
        """Whether a scan with this label may be one to compare with: of the first class; any, for a number."""
        return self.is_number or label == self.outputs[0]

    def explains(self, label: str | None) -> bool:
        """Whether maps of a scan with this label show what is explained: of that class; any, for a number."""
        return self.is_number or label == self.explained

    def ranks_by(self, labels: Sequence[str | None], scans: Sequence[str]) -> list[float]:
        """What regions are ranked by, of each scan: 1 for the class explained, else 0; or the number, standardised."""
        if not self.is_number:
            return [float(label == self.explained) for label in labels]
        numbers = np.array([self.value(label, scan) for label, scan in zip(labels, scans, strict=True)])
        return [float(z) for z in (numbers - numbers.mean()) / (numbers.std() or 1.0)]

    def value(self, label: str | None, scan: str) -> float:
        """Target value of a label: the index of the class, or the number.

        BadInputError if the label does not belong to this task.
        """
        if not self.is_number:
            if label not in self.outputs:
                raise BadInputError(f"{scan}: label {label!r} is not one of {', '.join(map(repr, self.outputs))}.")
            return self.outputs.index(label)
        try:
            number = float(label or "")
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise BadInputError(f"{scan}: {self.column} = {label!r} is not a finite number.")
        return number


@dataclass(frozen=True)
class Kind:
    """A kind of task."""

    name: KindName
    does: str  # what a run of this kind does, after "this run"
    measures: tuple[str, ...]  # by which networks are compared, the first first
    score: str  # measure by which the best epoch is chosen, besides the loss
    score_sign: int  # 1 if a higher score is better, -1 if a lower one is
    # ``of_person(values)``: the value of a participant, from those of their scans
    of_person: Callable[[Sequence[float]], float]
    # ``strata(values, folds)``: the stratum of each participant, from the values of their scans
    strata: Callable[[Mapping[str, Sequence[float]], int], dict[str, int]]
    applies: bool  # whether networks are applied to kept scans without a label

    @property
    def undefined(self) -> str:
        """Why comparisons of two classes are not defined for it, as a sentence; empty if they are."""
        return "" if self.name == TWO_CLASSES else f"It compares two classes, and this run {self.does}."


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def highest_class(values: Mapping[str, Sequence[float]], folds: int) -> dict[str, int]:
    """Stratum of each participant: the highest class of their scans, so AD for someone with CN and AD scans."""
    return {person: int(max(numbers)) for person, numbers in values.items()}


def quantiles(values: Mapping[str, Sequence[float]], folds: int) -> dict[str, int]:
    """Stratum of each participant: the quantile of the mean of their scans' numbers.

    There are at most `MOST_STRATA`, few enough for each to have members in every fold.

    >>> quantiles({"a": [61], "b": [80, 84], "c": [70], "d": [55], "e": [71], "f": [90]}, folds=3)
    {'a': 0, 'b': 1, 'c': 0, 'd': 0, 'e': 1, 'f': 1}
    """
    means = {person: mean(numbers) for person, numbers in values.items()}
    ranked = sorted(means, key=lambda person: (means[person], person))
    strata = max(1, min(MOST_STRATA, len(ranked) // max(folds, 3)))
    place = {person: rank * strata // len(ranked) for rank, person in enumerate(ranked)}
    return {person: place[person] for person in values}


_OF_CLASSES = ("auc_within_folds", "balanced_accuracy")
KINDS: Mapping[KindName, Kind] = {
    kind.name: kind
    for kind in (
        Kind(TWO_CLASSES, "has two classes", _OF_CLASSES, "balanced_accuracy", 1, max, highest_class, applies=True),
        Kind(
            SEVERAL_CLASSES, "has several classes", _OF_CLASSES, "balanced_accuracy", 1, max, highest_class,
            applies=False,
        ),
        Kind(NUMBER, "predicts a number", ("mae",), "mae", -1, mean, quantiles, applies=False),
    )
}  # fmt: skip
"""All kinds of tasks. A new kind is one entry here."""


def task_of(config: CohortConfig) -> Task:
    """The task of a run.

    Examples
    --------
    >>> task_of(CohortConfig(classes=("CN", "MCI", "AD"))).unit
    2
    >>> task_of(CohortConfig(target="age")).outputs
    ('age',)
    """
    if config.target:
        return Task(KINDS[NUMBER], config.target, (config.target,), config.target)
    kind = KINDS[SEVERAL_CLASSES if len(config.labels) > 2 else TWO_CLASSES]
    return Task(kind, config.contrast_column, config.labels, config.positive)
