"""Remove and retrain: whether networks need the regions that a map ranks first.

For each map and share of the volume, and for random rankings: the first regions, ranked in the training part of each
fold alone, take the mean tissue of training controls in every scan, and the fold is trained again with the recipe of
the run. If networks need these regions, accuracy drops by more than without random regions of the same volume. No drop
does not show that the map is wrong: other regions can carry the same information.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

import numpy as np

from heatlas.pipeline.evaluation.bench.trainings import trained
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.retraining.rankings import require_controls, training_rankings
from heatlas.pipeline.evaluation.retraining.removal import (
    SHARES,
    by_value,
    group_sizes,
    random_orders,
    removed,
    require_fillable,
)
from heatlas.pipeline.evaluation.retraining.table import (
    AT_RANDOM,
    RETRAINING_TABLE,
    Removed,
    removal_lines,
    retraining_table,
)
from heatlas.pipeline.evaluation.retraining.training import Retraining
from heatlas.pipeline.evaluation.scores.accuracy import HeldOutPeople, Scored, scored
from heatlas.pipeline.evaluation.scores.intervals import DRAWS
from heatlas.pipeline.explaining.explanation import Explanation
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import Outcome

log = logging.getLogger("heatlas")
Sets = Mapping[int, tuple[str, ...]]


def remove_and_retrain(
    cohort: JudgedCohort,
    explanations: tuple[Explanation, ...],
    draws: int,
    executor: Executor,
    digests: DigestCache,
    shares: Sequence[float] = SHARES,
) -> list[Outcome]:
    """Do all trainings, and write ``retraining.tsv``.

    Parameters
    ----------
    cohort : JudgedCohort
    explanations : tuple of Explanation
        Methods whose rankings are tried; the difference of the scan from the controls, without any network, is always.
    draws : int
        Draws of random regions for each share.
    shares : sequence of float
        Shares of the volume.

    Raises
    ------
    BadInputError
        Before any training: if a fold lacks controls or patients, or regions cannot fill a share.
    """
    sizes = group_sizes(cohort.atlas, cohort.atlas.labels_in(configured_input(cohort.config).box))
    require_fillable(sizes, shares)
    require_controls(cohort)
    people = cohort.people
    weights = people.weights(DRAWS, cohort.config.seed)
    folds = {fold.index: cohort.layout.fold(fold.index).predictions for fold in cohort.tested_folds}
    whole = _scored(cohort, folds, people, weights)
    rankings, outcomes = training_rankings(cohort, explanations, executor, digests)
    groups = list(sizes)
    wanted: list[tuple[str, float, Sets]] = []
    for share in shares:
        for name, by_fold in rankings.items():
            known = {fold: by_value(groups, values) for fold, values in by_fold.items() if values is not None}
            sets = {fold: removed(order, sizes, share) for fold, order in known.items()}
            wanted.append((name, share, sets if len(sets) == len(by_fold) else {}))
        for order in random_orders(groups, draws, cohort.config.seed):
            chosen = removed(order, sizes, share)
            wanted.append((AT_RANDOM, share, {fold.index: chosen for fold in cohort.tested_folds}))
    made, tables = _train(cohort, wanted, executor, digests)
    found = [Removed(name, share, sets, _scored(cohort, files, people, weights) if files else {})
             for (name, share, sets), files in zip(wanted, tables, strict=True)]  # fmt: skip
    planted = cohort.truth.groups if cohort.truth else ()
    methods = {name: asked.entry.name for asked in explanations for name in asked.names}
    table = retraining_table(
        cohort.name, whole, found, sizes, planted, methods, len({scan.participant_id for scan in cohort.scans})
    )
    RETRAINING_TABLE.write(cohort.layout, table)
    log.info("Remove and retrain:")
    for line in removal_lines(table):
        log.info("%s", line)
    return outcomes + made


def _train(
    cohort: JudgedCohort, wanted: Sequence[tuple[str, float, Sets]], executor: Executor, digests: DigestCache
) -> tuple[list[Outcome], list[dict[int, Path]]]:
    """Train every set of regions once; predictions by fold, empty where one is missing."""
    folds = {fold.index: fold for fold in cohort.tested_folds}
    makes = Retraining(cohort, digests)
    asked = dict.fromkeys((fold, frozenset(groups)) for _, _, sets in wanted for fold, groups in sets.items())
    jobs = {(fold, groups): makes.job(folds[fold], sorted(groups)) for fold, groups in asked}
    digests.save()
    outcomes = trained(cohort.layout, list(jobs.values()), executor, "training without regions")
    made = {key: job.outputs["predictions"] for (key, job), one in zip(jobs.items(), outcomes, strict=True) if one.ok}
    tables = []
    for _, _, sets in wanted:
        own = {fold: made.get((fold, frozenset(groups))) for fold, groups in sets.items()}
        tables.append({fold: path for fold, path in own.items() if path is not None} if all(own.values()) else {})
    return outcomes, tables


def _scored(
    cohort: JudgedCohort, tables: Mapping[int, Path], people: HeldOutPeople, weights: np.ndarray
) -> Mapping[str, Scored]:
    margins: dict[tuple[str, str], float] = {}
    for path in tables.values():
        frame = read_table(path, ["participant_id", "scan_id", "logit_negative", "logit_positive"])
        margin = (frame["logit_positive"] - frame["logit_negative"]).to_numpy(float)
        margins |= dict(
            zip(zip(frame["participant_id"], frame["scan_id"].astype(str), strict=True), margin, strict=True)
        )
    try:
        values = np.array([margins[scan.participant_id, scan.scan_id] for scan in cohort.scans])
    except KeyError as error:
        raise BadInputError(
            f"{next(iter(tables.values()))}: no prediction of {error.args[0][0]}. Run heatlas run again to finish the "
            "predictions of the run."
        ) from error
    return scored(values, people, weights)
