"""Tasks: what a network learns to predict about a scan (two classes, several classes or a number), and its labels.

A *kind* of task defines how it is split, measured and explained. A *task* is a kind with the names from the settings of
a run. The label of a scan is always text: its class, or its number.

A contrast is a column and two or more of its values, or comparisons of its numbers
(`pipeline.run.config.inclusion`). The column is one of the scan table (``diagnosis``, ``sex``, ``site`` ...) or of
the source tables at the scan's visit (``age_group``). A scan with another value has no label. It is kept, so that the
networks can predict it, unless ``apply_outside_contrast`` is off. A target (``cohort.target``) is any numeric column; a
scan without a value has no label and is dropped.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from heatlas.pipeline.cohort.candidates import Candidate
from heatlas.pipeline.cohort.cells.values import MISSING_CODES, code_text, number
from heatlas.pipeline.cohort.records import OLDEST_AGE, Scan
from heatlas.pipeline.run.config.inclusion import read_class
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted, did_you_mean, listed, nearest
from heatlas.pipeline.run.work.seeds import generator

KindName = Literal["two classes", "several classes", "number"]
TWO_CLASSES: KindName = "two classes"
SEVERAL_CLASSES: KindName = "several classes"
NUMBER: KindName = "number"
MOST_STRATA = 5
"""Largest number of quantiles by which folds are stratified."""


@dataclass(frozen=True)
class Words:
    """How sentences speak of a task."""

    explained: str
    evidence: str  # what maps show
    supports: str  # what red means in a map
    opposes: str  # what blue means
    unit: str  # of evidence
    control: str  # someone to compare with
    answer: str  # of the networks


@dataclass(frozen=True)
class Task:
    """What the networks of a run predict."""

    kind: Kind
    column: str  # of the label
    outputs: tuple[str, ...]  # name of each output unit: the classes, or the column of the number
    explained: str  # the output that maps explain

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
            predicted = f"predicted {column}"
            red, blue = f"raises the {predicted}", f"lowers {column}"
            unit, control = f"standard deviations of {column}", f"someone with {column}"
            return Words(f"the {predicted}", predicted, red, blue, unit, control, "prediction")
        red, blue, control = f"speaks for {explained}", f"speaks against {explained}", f"a control ({self.outputs[0]})"
        return Words(explained, f"evidence for {explained}", red, blue, "logits", control, "contrast")

    @property
    def unit(self) -> int:
        return self.outputs.index(self.explained)

    @property
    def units(self) -> tuple[int, ...]:
        """Outputs that stand for a class against the rest: all of several, the explained of two, none of a number."""
        return tuple(range(len(self.outputs))) if len(self.classes) > 2 else (self.unit,) * bool(self.classes)

    @property
    def scores(self) -> list[str]:
        """Columns of ``predictions.tsv`` with the answer: the number, or the probability of each of `units`."""
        if len(self.classes) > 2:
            return [f"probability_{name}" for name in self.classes]
        return ["probability"] if self.classes else ["prediction"]

    def is_control(self, label: str | None) -> bool:
        """Whether a scan with this label can serve as a control: the first class; for a number, every scan."""
        return self.is_number or label == self.outputs[0]

    def explains(self, label: str | None) -> bool:
        """Whether a scan with this label is of the class that is explained; for a number, every scan is."""
        return self.is_number or label == self.explained

    def ranks_by(self, labels: Sequence[str | None], scans: Sequence[str]) -> list[float]:
        """What regions are ranked by, of each scan: 1 for the class explained, else 0; or the number, standardised."""
        if not self.is_number:
            return [float(label == self.explained) for label in labels]
        numbers = np.array([self.value(label, scan) for label, scan in zip(labels, scans, strict=True)])
        return [float(z) for z in (numbers - numbers.mean()) / (numbers.std() or 1.0)]

    def value(self, label: str | None, scan: str) -> float:
        """Target value of a label: the index of the class, or the number."""
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


_OF_CLASSES = (("auc_within_folds", "balanced_accuracy"), "balanced_accuracy", 1, max, highest_class)
KINDS: Mapping[KindName, Kind] = {
    TWO_CLASSES: Kind(TWO_CLASSES, "has two classes", *_OF_CLASSES, applies=True),
    SEVERAL_CLASSES: Kind(SEVERAL_CLASSES, "has several classes", *_OF_CLASSES, applies=False),
    NUMBER: Kind(NUMBER, "predicts a number", ("mae",), "mae", -1, mean, quantiles, applies=True),
}
"""All kinds of tasks. A new kind is one entry here."""


def task_of(config: CohortConfig) -> Task:
    """The task of a run.

    >>> task_of(CohortConfig(classes=("CN", "MCI", "AD"))).unit
    2
    >>> task_of(CohortConfig(target="age")).outputs
    ('age',)
    """
    if config.target:
        return Task(KINDS[NUMBER], config.target, (config.target,), config.target)
    kind = KINDS[SEVERAL_CLASSES if len(config.labels) > 2 else TWO_CLASSES]
    return Task(kind, config.contrast_column, config.labels, config.positive)


SCAN_TABLE_COLUMNS = ("diagnosis", "progression", "sex", "site", "field_strength", "apoe4", "mmse", "cdr")
"""Columns of the scan table that may serve as contrast."""
NUMERIC_COLUMNS = ("age", "mmse", "cdr", "apoe4", "field_strength", "tiv_mm3", "hippocampus_mm3")
"""Columns of the scan table that may be predicted."""


def contrast_values(candidate: Candidate, column: str) -> tuple[str, ...]:
    """Values of a scan in a column: as in the scan table, then as in the source."""
    of_scan = getattr(candidate.scan, column) if column in (*SCAN_TABLE_COLUMNS, *NUMERIC_COLUMNS) else None
    values = (None if of_scan is None else code_text(of_scan), candidate.columns.get(column))
    return tuple(dict.fromkeys(value for value in values if value is not None))


def with_labels(candidates: Sequence[Candidate], config: CohortConfig) -> list[Candidate]:
    """Label each kept scan with its class or number, or None outside the contrast.

    Where no stage would use a scan without a label, it is dropped. A contrast that no scan fits is refused.
    """
    task = task_of(config)
    column = task.column
    matched = [candidate for candidate in candidates if candidate.scan.kept]
    held = Counter(values[0] for candidate in matched if (values := contrast_values(candidate, column)))
    present = {_class_of(candidate, task) for candidate in matched}
    if matched and not held:
        candidates_of_task = NUMERIC_COLUMNS if task.is_number else SCAN_TABLE_COLUMNS
        filled = {name for name in candidates_of_task if any(contrast_values(candidate, name) for candidate in matched)}
        there = sorted(filled.union(*(candidate.columns for candidate in matched)))
        meant = "" if task.is_number else _contrast_meant(matched, config.labels, column)
        meant = meant or nearest(column, there) or ""
        filled_columns = listed(there, 8 if meant else 40)
        raise BadInputError(
            f"cohort.{'target' if task.is_number else 'contrast_column'} = '{column}': no scan has a value in such a "
            f"column.{did_you_mean(meant)} With values: {filled_columns}. Choose with "
            f"{'--target COLUMN' if task.is_number else '--contrast COLUMN=CLASS,CLASS'}."
        )
    if task.is_number:
        return [_numbered(candidate, task) if candidate.scan.kept else candidate for candidate in candidates]
    settings = dict(zip(config.labels, [f"classes[{i}]" for i in range(len(config.labels))], strict=True))
    settings |= {config.negative: "negative", config.positive: "positive"}
    for wanted in config.labels:
        if matched and wanted not in present:
            if read_class(wanted, column):
                numbers = [read for value in held if (read := number(value)) is not None]
                span = f"has numbers from {min(numbers):g} to {max(numbers):g}" if numbers else "has no numbers"
                raise BadInputError(
                    f"cohort.{settings[wanted]} = '{wanted}': no scan is in this class; column '{column}' {span}. "
                    "Correct the contrast."
                )
            single = [value for value in held if held[value] == 1]
            hidden = {*single} if len(single) > 5 else set()  # such a column is no class, and may name people
            classes = [f"{value} ({counted(held[value], 'scan')})" for value in sorted({*held} - hidden)]
            existing = listed([*classes, *[f"{len(hidden)} values of one scan each"] * bool(hidden)], 20)
            raise BadInputError(
                f"cohort.{settings[wanted]} = '{wanted}': column '{column}' has no such value. It has {existing}."
                f"{did_you_mean(_contrast_meant(matched, config.labels, column))}"
            )
    return [_labelled(candidate, config, task) if candidate.scan.kept else candidate for candidate in candidates]


_MOST_CLASSES = 8
"""A column of more values than this is no contrast that someone may have meant."""


def _contrast_meant(matched: Sequence[Candidate], labels: Sequence[str], column: str) -> str:
    """The option that names values like the classes asked for: of their column, or of another; empty if none has.

    The diagnosis at the scan comes before columns of the source, which may hold another day's.
    """
    source = (name for candidate in matched for name in candidate.columns)
    for name in dict.fromkeys((column, *SCAN_TABLE_COLUMNS[:2], *source)):
        values = {held[0] for candidate in matched if (held := contrast_values(candidate, name))}
        if 1 < len(values) <= _MOST_CLASSES:
            meant = [nearest(label, sorted(values)) for label in labels]
            if len({*meant} - {None}) == len(labels):
                return f"--contrast {name}={','.join(map(str, meant))}"
    return ""


def _numbered(candidate: Candidate, task: Task) -> Candidate:
    """Label a kept scan with its number; text is refused."""
    numbers = contrast_values(candidate, task.column)
    if not numbers:
        return candidate.dropped(f"no value to predict: none in {task.column}")
    try:
        number = float(numbers[0])
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BadInputError(
            f"cohort.target = '{task.column}': {candidate.scan.name} has {numbers[0]!r} there, which is not a finite "
            "number. Correct the table, choose another column, or predict classes with --contrast."
        )
    if task.column.lower() == "age":  # labels are written to tables, which show no higher age
        number = min(number, OLDEST_AGE)
    return candidate.with_scan(label=code_text(number))


def _labelled(candidate: Candidate, config: CohortConfig, task: Task) -> Candidate:
    label = _class_of(candidate, task)
    if label is not None or (config.apply_outside_contrast and task.kind.applies):
        return candidate.with_scan(label=label)
    class_values = contrast_values(candidate, task.column)
    held = f"{class_values[0]} in" if class_values else "no value in"
    why = "cohort.apply_outside_contrast is off" if task.kind.applies else "networks of several classes are not applied"
    return candidate.dropped(f"outside the contrast ({why}): {held} {task.column}")


def _class_of(candidate: Candidate, task: Task) -> str | None:
    """The class that a scan belongs to by its value in the column, as text or as number."""
    by_number = {name: condition for name in task.outputs if (condition := read_class(name, task.column))}
    for value in contrast_values(candidate, task.column):
        if value in task.outputs:
            return value
        if value in MISSING_CODES:
            continue
        read = number(value)
        if read is not None and task.column.lower() == "age":
            read = min(read, OLDEST_AGE)
        for name, condition in by_number.items():
            # A source may hold ranges (``>60``): the same range is the class
            if condition.holds(read) if read is not None else read_class(value, task.column) == condition:
                return name
    return None


def unknown_diagnoses(candidates: Sequence[Candidate]) -> list[str]:
    """A note on diagnoses that are not CN, MCI or AD, and on scans without one."""
    kept = [candidate for candidate in candidates if candidate.scan.kept and candidate.scan.diagnosis is None]
    lower = [{name.lower(): value for name, value in candidate.columns.items()} for candidate in kept]
    texts = [columns.get("dx") or columns.get("diagnosis") for columns in lower]
    unknown = Counter(text for text in texts if text is not None)
    notes = []
    if unknown:
        kinds = listed(f"'{text}' ({counted(count, 'scan')})" for text, count in unknown.most_common())
        notes.append(f"diagnosis neither CN, MCI nor AD, treated as missing: {kinds}")
    absent = [candidate.scan.name for candidate, text in zip(kept, texts, strict=True) if text is None]
    text = f"{len(absent)} kept scans have no diagnosis at their visit: {listed(absent)}"
    return [*notes, text] if absent else notes


def participant_strata(scans: Sequence[Scan], task: Task, names: Mapping[str, str], folds: int) -> dict[str, int]:
    """Stratum of each labelled person; someone with CN and AD scans counts as AD, as in the founding study."""
    values: dict[str, list[float]] = {}
    for scan in scans:
        if scan.label is not None:
            person = names[scan.participant_id]
            values.setdefault(person, []).append(task.value(scan.label, scan.name))
    return task.kind.strata(values, folds)


def shuffled_labels(scans: Sequence[Scan], seed: int) -> list[Scan]:
    """A control: exchange the labels between participants.

    Each participant receives the labels of a random participant in order of sessions, so that a converter still looks
    like one. If the numbers of scans differ, labels are repeated or left out, keeping the first and the last; a single
    scan receives the last. Only labelled scans take part; all other columns stay.
    """
    sequences: dict[str, list[str]] = {}
    for scan in sorted(scans, key=lambda scan: scan.place):
        if scan.label is not None:
            sequences.setdefault(scan.participant_id, []).append(scan.label)
    people = list(sequences)
    donors = [people[i] for i in generator(seed, "shuffle-labels").permutation(len(people))]
    left = {
        person: iter(_stretched(sequences[donor], len(sequences[person])))
        for person, donor in zip(people, donors, strict=True)
    }
    result = list(scans)
    for i in sorted(range(len(scans)), key=lambda i: scans[i].place):
        if scans[i].label is not None:
            result[i] = dataclasses.replace(scans[i], label=next(left[scans[i].participant_id]))
    return result


def _stretched(sequence: Sequence[str], length: int) -> list[str]:
    if length == 1:
        return [sequence[-1]]
    return [sequence[round(i * (len(sequence) - 1) / (length - 1))] for i in range(length)]
