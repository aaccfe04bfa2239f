"""What maps are judged on: scans, the networks that explain them, and where the difference between the classes is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.people.tasks import Task, task_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.planted import read_effects, read_planted
from heatlas.pipeline.evaluation.scores.accuracy import HeldOutPeople
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.pipeline.run.tables import read_table

RUN, PLANTED = "run", "planted"
"""Names of the cohorts: the scans of the run, and copies of its controls with planted loss."""
SEVERITY = "severity_"
"""Begins the columns of ``truth/severity.tsv`` that hold severities."""


@dataclass(frozen=True)
class Distractor:
    """Something in the image that does not tell the classes apart, and that no good map marks.

    `kind`: a change as large in both classes, an untouched region that goes with a planted one, or a bright spot
    outside the brain. `group`: bilateral group; empty for a marker. `scans`: names of the scans that have it.
    """

    name: str
    kind: str
    group: str
    scans: frozenset[str]


@dataclass(frozen=True)
class Truth:
    """Where the classes differ, known because the difference was planted; `severity`: by scan id."""

    groups: tuple[str, ...]
    severity: Mapping[str, float] = field(default_factory=dict)
    distractors: tuple[Distractor, ...] = ()


@dataclass(frozen=True)
class JudgedCohort:
    """A cohort on which maps are judged.

    `name`: `RUN` or `PLANTED`; with a suffix where other networks explain its scans. `layout`: where its scans are read
    and its true networks lie. `scans`: labelled, registered, each in the test part of a fold with a network. `truth`:
    None where nobody knows. `compared_with`: scans that controls are taken from: all labelled and registered scans of
    the run (with a single split, `scans` holds nobody that the network was trained with), or untouched copies (a person
    with two copies is a control). `labelled`: from which networks learn. `untrained`: weights of networks on shuffled
    labels whose training failed: they explain nothing.
    """

    name: str
    layout: EvaluationLayout
    scans: tuple[Scan, ...]
    split: Split
    config: Config
    atlas: PackedAtlas
    truth: Truth | None
    compared_with: tuple[Scan, ...]
    labelled: tuple[Scan, ...]
    untrained: frozenset[Path] = frozenset()

    @property
    def task(self) -> Task:
        return task_of(self.config.cohort)

    @property
    def positive(self) -> tuple[Scan, ...]:
        """Scans of the class that is explained; all where a number is predicted."""
        return tuple(scan for scan in self.scans if self.task.explains(scan.label))

    @property
    def outcome(self) -> dict[str, float]:
        """What regions are ranked by: 1 for the class that is explained, else 0; or the number, standardised."""
        ranks = self.task.ranks_by([scan.label for scan in self.scans], [scan.name for scan in self.scans])
        return dict(zip((scan.scan_id for scan in self.scans), ranks, strict=True))

    @property
    def people(self) -> HeldOutPeople:
        return HeldOutPeople(
            np.array([scan.participant_id for scan in self.scans]),
            np.array([self.fold_of(scan) for scan in self.scans]),
            np.array([scan.label == self.config.cohort.positive for scan in self.scans]),
        )

    def fold_of(self, scan: Scan) -> int:
        fold = self.split.fold_of_test(scan.participant_id)
        assert fold is not None  # else it would not be among the scans
        return fold.index

    @property
    def tested_folds(self) -> tuple[Fold, ...]:
        used = {self.fold_of(scan) for scan in self.scans}
        return tuple(fold for fold in self.split.folds if fold.index in used)


def truth_of_input(truth_json: Path, groups: Sequence[str]) -> Truth | None:
    """What was planted in the input of a run; None if it has no such file.

    `truth_json`: ``truth/planted.json`` of the input; ``severity.tsv`` beside it is read if it is there. `groups`: of
    the atlas of the run; planted groups that it does not have cannot be looked for.
    """
    if not truth_json.is_file():
        return None
    named = read_planted(truth_json)
    planted = tuple(name for name in named if name in groups)
    if not planted:
        raise BadInputError(f"{truth_json}: the atlas of the run has none of the planted groups {', '.join(named)}.")
    return Truth(planted, _severities(truth_json.with_name("severity.tsv")), _unused(truth_json, groups))


def _severities(path: Path) -> dict[str, float]:
    """Mean severity by scan id; empty without a table."""
    if not path.is_file():
        return {}
    table = read_table(path, ["scan_id"])
    columns = [name for name in table.columns if name.startswith(SEVERITY)]
    means = table[columns].to_numpy(float).mean(axis=1) if columns else np.full(len(table), np.nan)
    return {str(name): float(value) for name, value in zip(table["scan_id"], means, strict=True) if pd.notna(value)}


def _unused(truth_json: Path, groups: Sequence[str]) -> tuple[Distractor, ...]:
    """Differences in size that were planted alike in both classes (``effects.json``: the sex difference)."""
    path = truth_json.with_name("effects.json")
    effects = read_effects(path) if path.is_file() else []
    found = [group for one in effects if one["variable"] == "sex" and one["expected"] for group in one["groups"]]
    return tuple(
        Distractor(f"{name} differs by sex", "both classes", name, frozenset()) for name in found if name in groups
    )
