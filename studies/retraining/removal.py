"""Which regions are removed, and the trainings without them: one per fold and set of regions.

Removed are the first regions of a ranking up to a share of the volume, and random ones of that volume. What is removed
must not be chosen by those who are tested afterwards. So each method ranks regions in the training part of a fold
alone: the network of the fold explains people it was trained with, each compared with other controls of that part.
"""

from __future__ import annotations

import dataclasses
import hashlib
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
from heatlas.pipeline.evaluation.scores.rankings import ranked
from heatlas.pipeline.explaining.controls import controls_of
from heatlas.pipeline.explaining.explained_scan import Explanation
from heatlas.pipeline.explaining.networks import ReferenceScan
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.work.digests import DigestCache, unit_key
from heatlas.pipeline.run.work.jobs import Job, Outcome, run_jobs
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.training.objectives.known_networks import without_other_runs
from heatlas.pipeline.training.stage import FoldTask, fold_job, registered_versions
from heatlas.studies.retraining.unit import Removal, retrain_fold

Floats = NDArray[np.float64]
RANKING = "training-maps"
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

    Raises BadInputError before any training; names the fold and its class.
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

    Returns None where a map says nothing in the training part of the fold.
    """
    parts = [training_part(cohort, fold) for fold in cohort.tested_folds]
    jobs = [map_jobs(part, explanations, digests, RANKING) for part in parts]
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


SHARES = (0.05, 0.15)
"""Shares of the labelled volume that networks see."""
FULL, LEAST = 0.9, 0.5
"""Part of the volume asked for at which no smaller group from further down is added, and that has to be reached."""


def group_sizes(atlas: PackedAtlas, labels: NDArray[np.int64]) -> dict[str, int]:
    """Voxels of each bilateral group among the labels of what networks see."""
    numbers, counts = np.unique(labels, return_counts=True)
    size = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    return {name: sum(size.get(number, 0) for number in members) for name, members in atlas.regions.groups.items()}


def by_value(groups: Sequence[str], values: NDArray[np.float64]) -> tuple[str, ...]:
    """Groups from the largest value to the smallest; those without a value last; ties in the order of the atlas.

    Examples
    --------
    >>> by_value(["a", "b", "c"], np.array([1.0, np.nan, 2.0]))
    ('c', 'a', 'b')
    """
    return tuple(groups[place] for place in np.argsort(-ranked(values), kind="stable"))


def random_orders(groups: Sequence[str], draws: int, seed: int) -> tuple[tuple[str, ...], ...]:
    """Random rankings; each is used in all folds."""
    return tuple(
        tuple(groups[place] for place in generator(seed, "removed-at-random", draw).permutation(len(groups)))
        for draw in range(draws)
    )


def removed(order: Sequence[str], sizes: Mapping[str, int], share: float) -> tuple[str, ...]:
    """The first groups of an order that fill a share of the volume.

    A group that would exceed the share is passed over, as white matter exceeds 5 %, and the next that fits is taken,
    until `FULL` of the share is filled or nothing more fits. So the sets of any two orders are about equally large.

    Raises BadInputError if they fill less than `LEAST` of the share.

    Examples
    --------
    >>> removed(["a", "b", "c", "d"], {"a": 6, "b": 50, "c": 4, "d": 40}, 0.1)
    ('a', 'c')
    """
    wanted, filled, taken = share * sum(sizes.values()), 0, []
    for name in order:
        if sizes[name] and filled + sizes[name] <= wanted:
            taken.append(name)
            filled += sizes[name]
        if filled >= FULL * wanted:
            break
    if filled >= LEAST * wanted and taken:
        return tuple(taken)
    raise BadInputError(
        f"remove and retrain: whole regions cannot fill {share:.0%} of the volume: they reach {filled} of {wanted:.0f} "
        "voxels. Take an atlas with smaller regions, or leave out this part (--parts)."
    )


def require_fillable(sizes: Mapping[str, int], shares: Sequence[float]) -> None:
    """Refuse shares that no set of regions fills, before anything is explained or trained; raises as `removed`."""
    if not any(sizes.values()):
        raise BadInputError("remove and retrain: no region of the atlas lies in what the networks see.")
    for share in shares:
        removed(sorted(sizes, key=lambda name: sizes[name]), sizes, share)


STAGE = "retraining"


class Retraining:
    """Makes the jobs of a cohort: one per fold and set of regions, whichever methods and draws ask for the set."""

    def __init__(self, cohort: JudgedCohort, digests: DigestCache) -> None:
        self._cohort, self._scans = cohort, cohort.labelled
        self._versions = registered_versions(cohort.layout, self._scans, cohort.config, digests)
        self._controls = controls_of(cohort.compared_with, cohort.split, cohort.config)
        self._spec = configured_input(cohort.config)

    def job(self, fold: Fold, groups: Sequence[str]) -> Job:
        cohort = self._cohort
        members = cohort.atlas.regions.groups
        numbers = tuple(sorted(number for name in groups for number in members[name]))
        token = hashlib.sha256(repr(numbers).encode()).hexdigest()[:10]
        layout = dataclasses.replace(cohort.layout, networks=f"{cohort.name}_without-{token}")
        base = fold_job(
            layout,
            fold,
            self._scans,
            self._spec,
            without_other_runs(cohort.config),
            self._versions,
            prefix=f"{layout.networks}_",
        )
        chosen = self._controls.by_fold[fold.index][: self._controls.size]
        resolution = cohort.config.registration.resolution_mm
        controls = tuple(
            ReferenceScan(cohort.layout.scan(one.participant_id, one.session_id, resolution), self._versions[one.name])
            for one in chosen
        )
        inputs = {"training": base.key} | {f"control {place}": one.digest for place, one in enumerate(controls)}
        key = unit_key(inputs, [numbers, cohort.atlas.version], retrain_fold)
        task: FoldTask = base.arguments[0]
        outputs = {name: base.outputs[name] for name in ("predictions", "predictions_columns")}
        removal = Removal(numbers, controls, cohort.atlas)
        return Job(STAGE, base.unit, key, outputs, retrain_fold, (task, key, removal), on_gpu=True)
