"""Tasks: what a network learns to predict about a scan, two classes, several classes or a number.

A *kind* of task defines how it is split, measured and explained; all kinds are in `KINDS`. A *task* is a kind with the
names from the settings of a run. The label of a scan is always text: its class, or its number.
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
    def unit(self) -> int:
        """Index of the output that is explained."""
        return self.outputs.index(self.explained)

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
    score: str  # measure by which the best epoch is chosen, besides the loss
    score_sign: int  # 1 if a higher score is better, -1 if a lower one is
    # ``strata(values, folds)``: the stratum of each participant, from the values of their scans
    strata: Callable[[Mapping[str, Sequence[float]], int], dict[str, int]]
    applies: bool  # whether networks are applied to kept scans without a label
    undefined: str = ""  # why comparisons of two classes are not defined for it, as a sentence; empty if they are


def highest_class(values: Mapping[str, Sequence[float]], folds: int) -> dict[str, int]:
    """Stratum of each participant: the highest class of their scans, so AD for someone with CN and AD scans."""
    return {person: int(max(numbers)) for person, numbers in values.items()}


def quantiles(values: Mapping[str, Sequence[float]], folds: int) -> dict[str, int]:
    """Stratum of each participant: the quantile of the mean of their scans' numbers.

    There are at most `MOST_STRATA`, few enough for each to have members in every fold.

    >>> quantiles({"a": [61], "b": [80, 84], "c": [70], "d": [55], "e": [71], "f": [90]}, folds=3)
    {'a': 0, 'b': 1, 'c': 0, 'd': 0, 'e': 1, 'f': 1}
    """
    means = {person: float(np.mean(numbers)) for person, numbers in values.items()}
    ranked = sorted(means, key=lambda person: (means[person], person))
    strata = max(1, min(MOST_STRATA, len(ranked) // max(folds, 3)))
    place = {person: rank * strata // len(ranked) for rank, person in enumerate(ranked)}
    return {person: place[person] for person in values}


KINDS: Mapping[KindName, Kind] = {
    TWO_CLASSES: Kind(TWO_CLASSES, "balanced_accuracy", 1, highest_class, applies=True),
    SEVERAL_CLASSES: Kind(
        SEVERAL_CLASSES, "balanced_accuracy", 1, highest_class, applies=False,
        undefined="It compares two classes, and this run has several.",
    ),
    NUMBER: Kind(
        NUMBER, "mae", -1, quantiles, applies=False,
        undefined="It compares two classes, and this run predicts a number.",
    ),
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
