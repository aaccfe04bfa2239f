"""Remove and retrain: whether networks need the regions that a map ranks first.

For each map and share of the volume, and for random rankings: the first regions, ranked in the training part of each
fold alone, take the mean tissue of training controls in every scan, and the fold is trained again with the recipe of
the run. If networks need these regions, accuracy drops by more than without random regions of the same volume. No drop
does not show that the map is wrong: other regions can carry the same information. ``retraining.tsv`` says how well the
networks do.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from heatlas.pipeline.evaluation.bench.trainings import trained
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.scores.accuracy import SCORES, HeldOutPeople, Scored, rank_p, scored
from heatlas.pipeline.evaluation.scores.intervals import DRAWS
from heatlas.pipeline.explaining.explained_scan import Explanation
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.run.declared import Form, Table, described
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import Outcome
from heatlas.studies.retraining.removal import (
    SHARES,
    Retraining,
    by_value,
    group_sizes,
    random_orders,
    removed,
    require_controls,
    require_fillable,
    training_rankings,
)

NOTHING, AT_RANDOM = "nothing", "random"
_NAMES = {"balanced_accuracy": "balanced accuracy", "auc": "area under the ROC (pairs of people tested by one network)"}


def _columns(score: str, title: str) -> dict[str, str]:
    return {
        score: f"Test {title} of the networks trained without these regions",
        f"{score}_low": f"Lower bound of its 95 % bootstrap interval over participants; for {AT_RANDOM} the smallest "
        "of all draws",
        f"{score}_high": f"Upper bound; for {AT_RANDOM} the largest of all draws",
        f"{score}_drop": f"Loss compared with removing {NOTHING}",
        f"{score}_drop_low": "Lower bound of its 95 % bootstrap interval over participants, paired",
        f"{score}_drop_high": "Upper bound",
        f"{score}_random_drop": "Loss without random regions of the same volume, mean over draws",
        f"p_{score}": "(b + 1) / (m + 1), where b of m draws of random regions leave no more of it",
    }


RETRAINING_TABLE = Table(
    "retraining",
    {
        **described("cohort"),
        "map": f"Map whose first regions are removed. {NOTHING}: the networks as they are. {AT_RANDOM}: all draws of "
        "random regions",
        **described("method"),
        "volume_share": "Share of the labelled volume that is to be removed",
        "removed_share": "Share that was removed, mean over folds",
        "planted_share": "Share of the volume of planted groups that was removed, mean over folds",
        "removed_groups": "Groups removed, and in how many folds",
        "n_participants": "Participants tested",
        "n_draws": "Draws of random regions that were trained in every fold",
        **{name: text for score, title in _NAMES.items() for name, text in _columns(score, title).items()},
    },
    "cohort, map and share of the volume",
    "Do networks that never see the regions a map ranks first do worse than those without random regions?",
    stage="evaluation", filled=("cohort", "map", "volume_share", "n_participants"),
    forms={"map": Form.CODE},
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Removed:
    """Networks trained without some regions.

    `name`: map, or `AT_RANDOM`. `share`: share of the volume that was asked for. `groups`: removed groups by fold;
    empty where the map gives no ranking in a fold. `scores`: empty where a training failed or there was no ranking.
    """

    name: str
    share: float
    groups: Mapping[int, tuple[str, ...]]
    scores: Mapping[str, Scored]


def retraining_table(
    cohort: str,
    whole: Mapping[str, Scored],
    found: Sequence[Removed],
    sizes: Mapping[str, int],
    planted: Sequence[str],
    methods: Mapping[str, str],
    n_participants: int,
) -> pd.DataFrame:
    """One row for removing nothing, then per share those of the maps and that of all random draws.

    `whole`: scores of the networks as they are. `found`: one per map and share, and one per draw and share. `sizes`:
    voxels of each group. `planted`: groups where the classes differ; empty where nobody knows. `methods`: by map.
    """
    common = {"cohort": cohort, "n_participants": n_participants}
    rows: list[dict[str, object]] = [{**common, "map": NOTHING, "volume_share": 0.0, **_scores(whole)}]
    for share in sorted({one.share for one in found}):
        own = [one for one in found if one.share == share]
        draws = [one.scores for one in own if one.name == AT_RANDOM and one.scores]
        common["n_draws"] = len(draws)
        for one in own:
            if one.name != AT_RANDOM:
                row = {**common, "map": one.name, "method": methods.get(one.name), "volume_share": share}
                rows.append(row | _removed([one], sizes, planted) | _compared(one.scores, whole, draws))
        random = [one for one in own if one.name == AT_RANDOM]
        if random:
            row = {**common, "map": AT_RANDOM, "volume_share": share}
            rows.append(row | _removed(random, sizes, planted) | _of_draws(draws, whole))
    return RETRAINING_TABLE.frame(rows).astype({"n_draws": "Int64"})


def _removed(found: Sequence[Removed], sizes: Mapping[str, int], planted: Sequence[str]) -> dict[str, object]:
    sets = [groups for one in found for groups in one.groups.values()]
    if not sets:
        return {}
    voxels = [sum(sizes[name] for name in groups) for groups in sets]
    made: dict[str, object] = {"removed_share": float(np.mean(voxels)) / sum(sizes.values())}
    there = sum(sizes[name] for name in planted)
    if there:
        made["planted_share"] = float(np.mean([sum(sizes[n] for n in g if n in planted) for g in sets])) / there
    if len(found) == 1:
        counts = Counter(name for groups in sets for name in groups)
        made["removed_groups"] = "; ".join(f"{name} ({times})" for name, times in counts.most_common())
    return made


def _scores(scores: Mapping[str, Scored]) -> dict[str, object]:
    made: dict[str, object] = {}
    for name, one in scores.items():
        made |= {name: one.value, f"{name}_low": one.interval[0], f"{name}_high": one.interval[1]}
    return made


def _compared(
    scores: Mapping[str, Scored], whole: Mapping[str, Scored], draws: Sequence[Mapping[str, Scored]]
) -> dict[str, object]:
    made = _scores(scores)
    for name, one in scores.items():
        drop = whole[name] - one
        made |= {f"{name}_drop": drop.value}
        made |= {f"{name}_drop_low": drop.interval[0], f"{name}_drop_high": drop.interval[1]}
        values = np.array([draw[name].value for draw in draws])
        made[f"p_{name}"] = rank_p(one.value, values)
        if len(values):
            made[f"{name}_random_drop"] = float((whole[name].value - values).mean())
    return made


def _of_draws(draws: Sequence[Mapping[str, Scored]], whole: Mapping[str, Scored]) -> dict[str, object]:
    made: dict[str, object] = {}
    for name in SCORES if draws else ():
        values = np.array([draw[name].value for draw in draws])
        made |= {name: float(values.mean()), f"{name}_low": float(values.min()), f"{name}_high": float(values.max())}
        made[f"{name}_drop"] = made[f"{name}_random_drop"] = whole[name].value - float(values.mean())
    return made


def removal_lines(table: pd.DataFrame) -> list[str]:
    """What the table says, as printed: one line per map and share.

    Examples
    --------
    >>> row = dict.fromkeys(RETRAINING_TABLE.meanings, float("nan"))
    >>> row |= {"map": "m", "volume_share": 0.05, "balanced_accuracy": 0.5, "auc": 0.6}
    >>> whole = row | {"map": "nothing", "balanced_accuracy": 0.9, "auc": 0.95}
    >>> removal_lines(pd.DataFrame([whole, row]))[0].partition(": ")[2]
    'balanced accuracy 0.50 (0.90 with all), AUC 0.60 (0.95 with all)'
    """
    lines = []
    whole = table[table["map"] == NOTHING].iloc[0]
    for _, row in table[~table["map"].isin((NOTHING, AT_RANDOM))].iterrows():
        start = f"  without the {100 * row['volume_share']:g} % of the volume that {row['map']} ranks first: "
        parts = [f"{title} {_compared_text(row, whole, name)}" for name, title in _SHORT.items()]
        known = np.isfinite(row["balanced_accuracy"])
        lines.append(start + (", ".join(parts) if known else "not known, since a training failed or it ranks nothing"))
    return lines


_SHORT = {"balanced_accuracy": "balanced accuracy", "auc": "AUC"}


def _compared_text(row: pd.Series, whole: pd.Series, score: str) -> str:
    """A score beside that with all regions and that without random ones."""
    said = f"{row[score]:.2f} ({whole[score]:.2f} with all"
    if np.isnan(row[f"p_{score}"]):
        return f"{said})"
    random = whole[score] - row[f"{score}_random_drop"]
    return f"{said}, {random:.2f} without random ones, p = {row[f'p_{score}']:.2g})"


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

    `explanations`: methods whose rankings are tried; the difference of the scan from the controls, without any network,
    is always. `draws`: draws of random regions for each share. `shares`: shares of the volume. Raises BadInputError
    before any training: if a fold lacks controls or patients, or regions cannot fill a share.
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
