"""Rankings of regions by each method from the training part of a fold alone.

What is removed must not be chosen by those who are tested afterwards. So the network of a fold explains people it was
trained with, each compared with other controls of the training part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor

import numpy as np
from numpy.typing import NDArray

from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.bench.judging import (
    class_difference,
    is_paired,
    map_jobs,
    maps_of,
    participant_densities,
)
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.nulls import DIFFERENCE, NO_NETWORK, REAL
from heatlas.pipeline.explaining.controls import controls_of
from heatlas.pipeline.explaining.explanation import Explanation
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import Outcome, run_jobs
from heatlas.pipeline.run.work.seeds import generator

Floats = NDArray[np.float64]
STAGE = "training-maps"
MOST = 40
"""How many people of each class are explained in a fold: enough to rank regions."""
FEWEST = 2
"""Controls and patients of a training part; a control is compared with another one."""


class TrainingPart(JudgedCohort):
    """People that a network explains although it was trained with them."""

    def fold_of(self, scan: Scan) -> int:
        return self.split.folds[0].index


def require_controls(cohort: JudgedCohort) -> None:
    """Refuse a fold whose training part is too small to rank regions and to replace them.

    Raises
    ------
    BadInputError
        Before any training; names the fold and its class.
    """
    controls = controls_of(cohort.compared_with, cohort.split, cohort.config)
    names = cohort.config.cohort
    for fold in cohort.tested_folds:
        patients = {
            scan.participant_id
            for scan in cohort.labelled
            if scan.participant_id in fold.train and scan.label == names.positive
        }
        for label, count in ((names.negative, len(controls.by_fold[fold.index])), (names.positive, len(patients))):
            if count < FEWEST:
                raise BadInputError(
                    f"remove and retrain: fold {fold.index} has {count} of {label} in its training part, and "
                    f"{FEWEST} are needed to rank regions and to take tissue from. Use fewer folds, add participants, "
                    "or leave this part out (--parts)."
                )


def training_part(cohort: JudgedCohort, fold: Fold) -> TrainingPart:
    """Training people of a fold as a cohort that its network explains; the first scan of each class.

    If a class has more than `MOST`, so many of them are drawn.
    """
    firsts: dict[tuple[str, str | None], Scan] = {}
    for scan in cohort.labelled:
        if scan.participant_id in set(fold.train):
            firsts.setdefault((scan.participant_id, scan.label), scan)
    chosen: list[Scan] = []
    for label in cohort.config.cohort.labels:
        own = [scan for (_, of), scan in firsts.items() if of == label]
        order = generator(cohort.config.seed, "training-maps", fold.index).permutation(len(own))[:MOST]
        chosen += [own[place] for place in sorted(order)]
    given = {one.name: getattr(cohort, one.name) for one in dataclasses.fields(JudgedCohort)}
    given |= {"name": f"{cohort.name}_training-{fold.index}", "scans": tuple(chosen)}
    return TrainingPart(**given | {"split": Split((Fold(fold.index, fold.train, (), ()),))})


def training_rankings(
    cohort: JudgedCohort, explanations: tuple[Explanation, ...], executor: Executor, digests: DigestCache
) -> tuple[Mapping[str, Mapping[int, Floats | None]], list[Outcome]]:
    """Class difference of every group, by map and fold.

    Returns
    -------
    mapping of str to mapping of int to array or None
        None where a map says nothing in the training part of the fold.
    list of Outcome
    """
    parts = [training_part(cohort, fold) for fold in cohort.tested_folds]
    jobs = [map_jobs(part, explanations, digests, STAGE) for part in parts]
    outcomes = run_jobs(cohort.layout, [job for own in jobs for job in own], executor, "maps of the training parts")
    found: dict[str, dict[int, Floats | None]] = {}
    rest: Sequence[Outcome] = outcomes
    for part, own in zip(parts, jobs, strict=True):
        now, rest = rest[: len(own)], rest[len(own) :]
        left, rows = maps_of(part, explanations, now)
        for name, network in [(name, REAL) for name in rows.methods] + [(DIFFERENCE, NO_NETWORK)]:
            values = class_difference(participant_densities(left, rows, name, network), is_paired(cohort))
            said = np.isfinite(values).any()
            found.setdefault(name, {})[part.split.folds[0].index] = values if said else None
    return found, outcomes
