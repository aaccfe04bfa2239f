"""``--parts retrain``: whether networks need the regions that a map ranks first.

For each map and share of the volume, and for random rankings, the first regions take the mean tissue of training
controls in every scan, and each fold is trained again with the recipe of the run. If networks need these regions,
accuracy drops by more than without random regions of the same volume. No drop does not show that the map is wrong:
other regions can carry the same information.

What is removed must not be chosen by those who are tested afterwards. So each method ranks regions in the training part
of a fold alone: the network explains people it was trained with, each compared with other controls of that part.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
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
from heatlas.pipeline.evaluation.bench.part import Bench, Part, Shown, few_methods
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.nulls import DIFFERENCE, NO_NETWORK, REAL
from heatlas.pipeline.evaluation.scores.accuracy import DRAWS, SCORES, HeldOutPeople, Scored, rank_p, scored
from heatlas.pipeline.evaluation.variants import Variant, trained, wrapped
from heatlas.pipeline.explaining.controls import ReferencePool, controls_of
from heatlas.pipeline.explaining.explained_scan import Explanation
from heatlas.pipeline.explaining.networks import ReferenceScan
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import Job, Outcome, run_jobs
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.training.objectives.known_networks import without_other_runs
from heatlas.pipeline.training.stage import registered_versions
from heatlas.studies.retraining.removal import (
    SHARES,
    Removal,
    by_value,
    group_sizes,
    random_orders,
    removed,
    require_fillable,
    retrain_fold,
)
from heatlas.studies.tables import declared

log = logging.getLogger("heatlas")
Sets = Mapping[int, tuple[str, ...]]
Floats = NDArray[np.float64]
STAGE = "retraining"
RANDOM_DRAWS, QUICK_DRAWS = 19, 4  # of fewer than 19 no p can be .05
RANKING = "training-maps"
MOST = 40
"""How many people of each class are explained in a fold: enough to rank regions."""
FEWEST = 2
"""Controls and patients of a training part; a control is compared with another one."""
NOTHING, AT_RANDOM = "nothing", "random"


RETRAINING_TABLE = declared("retraining")


@dataclass(frozen=True, eq=False)
class Removed:
    """Networks trained without some regions.

    `name`: map, or `AT_RANDOM`. `share`: share of the volume that was asked for. `groups`: by fold; empty where the map
    gives no ranking in a fold. `scores`: empty where a training failed or there was no ranking.
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
    voxels of each group. `planted`: groups where the classes differ; empty where nobody knows.
    """
    common = {"cohort": cohort, "n_participants": n_participants}
    rows: list[dict[str, object]] = [{**common, "map": NOTHING, "volume_share": 0.0, **_scores(whole)}]
    for share in sorted({one.share for one in found}):
        of_share = [one for one in found if one.share == share]
        draws = [one.scores for one in of_share if one.name == AT_RANDOM and one.scores]
        common["n_draws"] = len(draws)
        for one in of_share:
            if one.name != AT_RANDOM:
                row = {**common, "map": one.name, "method": methods.get(one.name), "volume_share": share}
                rows.append(row | _removed([one], sizes, planted) | _compared(one.scores, whole, draws))
        random = [one for one in of_share if one.name == AT_RANDOM]
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
    cells: dict[str, object] = {}
    for name, one in scores.items():
        cells |= dict(zip((name, f"{name}_low", f"{name}_high"), (one.value, *one.interval), strict=True))
    return cells


def _compared(
    scores: Mapping[str, Scored], whole: Mapping[str, Scored], draws: Sequence[Mapping[str, Scored]]
) -> dict[str, object]:
    cells = _scores(scores) | _scores({f"{name}_drop": whole[name] - one for name, one in scores.items()})
    for name, one in scores.items():
        values = np.array([draw[name].value for draw in draws])
        cells[f"p_{name}"] = rank_p(one.value, values)
        if len(values):
            cells[f"{name}_random_drop"] = float((whole[name].value - values).mean())
    return cells


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
    said = f"{row[score]:.2f} ({whole[score]:.2f} with all"
    if np.isnan(row[f"p_{score}"]):
        return f"{said})"
    random = whole[score] - row[f"{score}_random_drop"]
    return f"{said}, {random:.2f} without random ones, p = {row[f'p_{score}']:.2g})"


class TrainingPart(JudgedCohort):
    """People that a network explains although it was trained with them."""

    def fold_of(self, scan: Scan) -> int:
        return self.split.folds[0].index


def require_controls(cohort: JudgedCohort) -> None:
    """Refuse a fold whose training part is too small to rank regions and to replace them."""
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
    """Training people of a fold as a cohort that its network explains; the first scan of each class, at most `MOST`."""
    firsts: dict[tuple[str, str | None], Scan] = {}
    for scan in cohort.labelled:
        if scan.participant_id in set(fold.train):
            firsts.setdefault((scan.participant_id, scan.label), scan)
    chosen: list[Scan] = []
    for label in cohort.config.cohort.labels:
        of_class = [scan for (_, of), scan in firsts.items() if of == label]
        order = generator(cohort.config.seed, "training-maps", fold.index).permutation(len(of_class))[:MOST]
        chosen += [of_class[place] for place in sorted(order)]
    given = {one.name: getattr(cohort, one.name) for one in dataclasses.fields(JudgedCohort)}
    given |= {"name": f"{cohort.name}_training-{fold.index}", "scans": tuple(chosen)}
    return TrainingPart(**given | {"split": Split((Fold(fold.index, fold.train, (), ()),))})


def training_rankings(
    cohort: JudgedCohort, explanations: tuple[Explanation, ...], executor: Executor, digests: DigestCache
) -> tuple[Mapping[str, Mapping[int, Floats | None]], list[Outcome]]:
    """Class difference of every group, by map and fold; None where a map says nothing in the training part."""
    parts = [training_part(cohort, fold) for fold in cohort.tested_folds]
    jobs = [map_jobs(part, explanations, digests, RANKING) for part in parts]
    every = [job for of_part in jobs for job in of_part]
    outcomes = run_jobs(cohort.layout, every, executor, "maps of the training parts")
    found: dict[str, dict[int, Floats | None]] = {}
    rest: Sequence[Outcome] = outcomes
    for part, of_part in zip(parts, jobs, strict=True):
        now, rest = rest[: len(of_part)], rest[len(of_part) :]
        left, rows = maps_of(part, explanations, now)
        for name, network in [(name, REAL) for name in rows.methods] + [(DIFFERENCE, NO_NETWORK)]:
            values = class_difference(participant_densities(left, rows, name, network), is_paired(cohort))
            said = np.isfinite(values).any()
            found.setdefault(name, {})[part.split.folds[0].index] = values if said else None
    return found, outcomes


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
    is always. `draws`: of random regions for each share of the volume.
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
            sets: Sets = {fold: removed(order, sizes, share) for fold, order in known.items()}
            wanted.append((name, share, sets if len(sets) == len(by_fold) else {}))
        for order in random_orders(groups, draws, cohort.config.seed):
            chosen = removed(order, sizes, share)
            wanted.append((AT_RANDOM, share, {fold.index: chosen for fold in cohort.tested_folds}))
    made, tables = _train(cohort, wanted, executor, digests)
    found = []
    for (name, share, sets), files in zip(wanted, tables, strict=True):
        found.append(Removed(name, share, sets, _scored(cohort, files, people, weights) if files else {}))
    planted = cohort.truth.groups if cohort.truth else ()
    methods = {name: asked.entry.name for asked in explanations for name in asked.names}
    n_participants = len({scan.participant_id for scan in cohort.scans})
    table = retraining_table(cohort.name, whole, found, sizes, planted, methods, n_participants)
    RETRAINING_TABLE.write(cohort.layout, table)
    log.info("Remove and retrain:")
    for line in removal_lines(table):
        log.info("%s", line)
    return outcomes + made


def _train(
    cohort: JudgedCohort, wanted: Sequence[tuple[str, float, Sets]], executor: Executor, digests: DigestCache
) -> tuple[list[Outcome], list[dict[int, Path]]]:
    """Train every set of regions once, whichever maps and draws ask for it; predictions by fold, empty if one lacks."""
    folds: dict[frozenset[str], set[int]] = {}
    for _, _, sets in wanted:
        for fold, groups in sets.items():
            folds.setdefault(frozenset(groups), set()).add(fold)
    controls = controls_of(cohort.compared_with, cohort.split, cohort.config)
    variants = {groups: _without(cohort, groups, of_set, controls, digests) for groups, of_set in folds.items()}
    networks = trained(cohort, list(variants.values()), executor, digests, "training without regions")
    tables = []
    for _, _, sets in wanted:
        jobs = {fold: networks.jobs[variants[frozenset(groups)].name].get(fold) for fold, groups in sets.items()}
        predictions = {fold: job.outputs["predictions"] for fold, job in jobs.items() if job is not None}
        tables.append(predictions if len(predictions) == len(jobs) else {})
    return networks.outcomes, tables


def _without(
    cohort: JudgedCohort, groups: Collection[str], folds: Collection[int], pool: ReferencePool, digests: DigestCache
) -> Variant:
    """Networks that never see some regions; only their predictions are kept."""
    numbers = tuple(sorted(number for name in groups for number in cohort.atlas.regions.groups[name]))
    token = hashlib.sha256(repr(numbers).encode()).hexdigest()[:10]
    resolution = cohort.config.registration.resolution_mm

    def removing(training: Job, fold: Fold) -> Job:
        chosen = pool.by_fold[fold.index][: pool.size]
        versions = registered_versions(cohort.layout, chosen, cohort.config, digests)
        controls = tuple(
            ReferenceScan(cohort.layout.scan(scan.participant_id, scan.session_id, resolution), versions[scan.name])
            for scan in chosen
        )
        inputs = {f"control {place}": control.digest for place, control in enumerate(controls)}
        outputs = {name: training.outputs[name] for name in ("predictions", "predictions_columns")}
        removal, facts = Removal(numbers, controls, cohort.atlas), [numbers, cohort.atlas.version]
        return wrapped(training, STAGE, retrain_fold, outputs, (removal,), facts, inputs)

    recipe = without_other_runs(cohort.config)
    return Variant(f"{cohort.name}_without-{token}", recipe, wrap=removing, folds=folds)


def _scored(
    cohort: JudgedCohort, tables: Mapping[int, Path], people: HeldOutPeople, weights: np.ndarray
) -> Mapping[str, Scored]:
    margins: dict[tuple[str, str], float] = {}
    for path in tables.values():
        frame = read_table(path, ["participant_id", "scan_id", "logit_negative", "logit_positive"])
        margin = (frame["logit_positive"] - frame["logit_negative"]).to_numpy(float)
        keys = zip(frame["participant_id"], frame["scan_id"].astype(str), strict=True)
        margins |= dict(zip(keys, margin, strict=True))
    try:
        values = np.array([margins[scan.participant_id, scan.scan_id] for scan in cohort.scans])
    except KeyError as error:
        raise BadInputError(
            f"{next(iter(tables.values()))}: no prediction of {error.args[0][0]}. Run heatlas run again to finish the "
            "predictions of the run."
        ) from error
    return scored(values, people, weights)


def _retrain(bench: Bench, cohort: JudgedCohort) -> list[Outcome]:
    request = bench.request
    draws = (QUICK_DRAWS if request.quick else RANDOM_DRAWS) if request.draws is None else request.draws
    shares = SHARES[:1] if request.quick else SHARES
    methods = few_methods(request, cohort.config)
    return remove_and_retrain(cohort, methods, draws, bench.executor, bench.digests, shares)


PART = Part(
    "retrain", "networks trained without the regions that a map ranks first", tables=(RETRAINING_TABLE,),
    run=_retrain, trains=True, shown=(Shown("Do networks need the regions ranked first?", "retraining"),),
    options={"draws": "only remove and retrain draws regions"},
)  # fmt: skip
