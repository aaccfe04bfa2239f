"""``--parts grids``: confident test scans of each fold side by side, and which of them every map marks.

The tables hold the shares of every method and stage, what the literature found, the likeness of methods, and
invariance. AggAtt is the mean map of the best, the usual and the worst grids: maps of one cell position are sorted by
their share, ties by positive attribution in the cell, and cut into bins (`EDGES`) that share one scale. Source: Rao,
Böhle & Schiele 2022.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.pipeline.evaluation.bench.judging import Extent, Judge
from heatlas.pipeline.evaluation.bench.part import Bench, Part, Shown, methods_of, with_methods
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.nulls import REAL
from heatlas.pipeline.explaining.explained_scan import Explanation
from heatlas.pipeline.explaining.scan_jobs import explanations_of_run
from heatlas.pipeline.models.families.registry import family_of
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import FoldFiles
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import Job, Outcome, run_jobs
from heatlas.pipeline.run.work.seeds import generator
from heatlas.studies.grids.directions import (
    BY_CONSTRUCTION,
    DIRECTIONS_TABLE,
    GRIDS_TABLE,
    Claim,
    claims,
    directions,
    summary_of_grids,
)
from heatlas.studies.grids.job import SETTINGS_OF, GridToScore, layout_of, score_grid
from heatlas.studies.grids.layout import Candidates, Grid, Kind, confident, draw_grids
from heatlas.studies.grids.locality import has_global_pooling
from heatlas.studies.grids.studies import smoothing_kernels, spearman_matrix
from heatlas.studies.tables import declared

ALL_METHODS = "all"
"""Stands for every method where no grid could be made."""
SAME = 0.01
"""Difference of shares up to which a method explains both networks alike."""

AGREEMENT_TABLE, INVARIANCE_TABLE = declared("grid_agreement"), declared("invariance", SAME=SAME)


GRID_TABLES = (GRIDS_TABLE, DIRECTIONS_TABLE, AGREEMENT_TABLE, INVARIANCE_TABLE)


def agreement_table(scores: pd.DataFrame, cohort: str) -> pd.DataFrame:
    """Rank correlations of every two methods and stages, each pair once."""
    made: list[list[object]] = []
    of_grids = scores[scores["grid"].notna()]
    for (setting, kind), of_setting in of_grids.groupby(["setting", "kind"], sort=False):
        matrix = spearman_matrix(scores, str(setting), str(kind))
        values = matrix.to_numpy(float)
        count = of_setting["grid"].nunique()
        for a, b in combinations(range(len(matrix)), 2):
            made.append([cohort, setting, kind, *matrix.index[a], *matrix.index[b], values[a, b], count])
    return AGREEMENT_TABLE.frame(made).astype({"stage_a": "Int64", "stage_b": "Int64"})


def invariance_table(frames: Sequence[pd.DataFrame], cohort: str) -> pd.DataFrame:
    rows = pd.concat(frames, ignore_index=True)
    made = []
    for method, of_method in rows.groupby("method", sort=False):
        measured, notes = of_method[of_method["share_cancelling"].notna()], of_method["note"].dropna()
        plain, cancelling = measured["share_plain"].mean(), measured["share_cancelling"].mean()
        row: dict[str, object] = {"cohort": cohort, "method": method, "n_grids": len(measured), "share_plain": plain}
        row |= {"logit_difference": of_method["logit_difference"].max(), "share_cancelling": cancelling}
        row["invariant"] = None if np.isnan(cancelling) else bool(abs(cancelling - plain) <= SAME)
        made.append(row | {"note": notes.iloc[0] if len(notes) else None})
    return INVARIANCE_TABLE.frame(made).astype({"invariant": "boolean"})


EDGES = (0, 2, 5, 50, 95, 98, 100)
"""Per cent."""
SHOWN = 99.5
"""Percentile of absolute values at which the scale ends."""


@dataclass(frozen=True, eq=False)
class Bin:
    """Maps between two ranks, best first; `example`: the median of them; `mean`: (D, H, W)."""

    members: tuple[int, ...]
    example: int
    mean: NDArray[np.float64]
    share: float


def bin_edges(count: int, edges: Sequence[float] = EDGES) -> list[int]:
    """Ranks at which bins begin and end: rounded, at least one map per bin.

    Examples
    --------
    >>> bin_edges(100), bin_edges(10)
    ([0, 2, 5, 50, 95, 98, 100], [0, 1, 2, 5, 8, 9, 10])
    """
    bins = len(edges) - 1
    if count < bins:
        raise BadInputError(f"AggAtt: {count} defined maps cannot fill {bins} bins; make at least {bins} grids.")
    ranks = [round(count * edge / 100) for edge in edges]
    for place in range(1, bins):
        ranks[place] = max(ranks[place], ranks[place - 1] + 1)
    for place in range(bins - 1, 0, -1):
        ranks[place] = min(ranks[place], ranks[place + 1] - 1)
    return ranks


def aggregated(
    maps: NDArray[np.floating],
    shares: NDArray[np.floating],
    inside: NDArray[np.floating],
    edges: Sequence[float] = EDGES,
) -> tuple[list[Bin], float]:
    """Bins of maps (N, D, H, W) of one cell position, and the scale they share; undefined maps are in no bin.

    `shares`: (N,), NaN for undefined maps. `inside`: (N,), positive attribution in the cell. `edges`: per cent.
    """
    defined = np.flatnonzero(np.isfinite(shares))
    order = defined[np.lexsort((-np.asarray(inside)[defined], -np.asarray(shares)[defined]))]
    ranks = bin_edges(len(order), edges)
    bins = []
    for start, stop in pairwise(ranks):
        members = order[start:stop]
        mean = np.mean([np.asarray(maps[place], dtype=np.float64) for place in np.sort(members)], axis=0)
        share = float(np.asarray(shares, dtype=np.float64)[members].mean())
        bins.append(Bin(tuple(map(int, members)), int(members[(len(members) - 1) // 2]), mean, share))
    return bins, float(np.percentile(np.abs([part.mean for part in bins]), SHOWN))


FEWEST = len(EDGES) - 1
"""Defined maps below which the bins cannot be filled."""


def write_aggregated(path: Path, scores: pd.DataFrame, outcomes: Sequence[Outcome]) -> None:
    """Write the pictures of all methods with enough grids (NPZ); nothing where none has.

    Arrays: ``names`` (M,), ``settings`` (M,), ``stages`` (M,), ``counts`` (M,), ``means`` and ``examples``
    (M, bins, D, H), ``shares`` (M, bins), ``limits`` (M,).
    """
    pictures: dict[str, list[tuple[int, NDArray[np.float32]]]] = {}
    for outcome in outcomes:
        number = outcome.job.arguments[0].number
        with np.load(outcome.job.outputs["pictures"], allow_pickle=False) as file:
            for name in file.files:
                pictures.setdefault(name, []).append((number, file[name]))
    arrays: dict[str, list[object]] = {
        name: [] for name in ("names", "settings", "stages", "counts", "means", "examples", "shares", "limits")
    }
    for name, numbered in pictures.items():
        setting, method, stage = name.split("|")
        of_stage = scores[
            (scores["setting"] == setting) & (scores["method"] == method) & (scores["stage"] == int(stage))
        ]
        share = of_stage.dropna(subset="grid").set_index("grid")["share"]
        shares = np.array([share[number] for number, _ in numbered], dtype=float)
        if np.isfinite(shares).sum() < FEWEST:
            continue
        maps = np.stack([picture for _, picture in numbered])[..., None]
        half = [side // 2 for side in maps.shape[1:3]]
        inside = maps[:, : half[0], : half[1]].sum(axis=(1, 2, 3))
        bins, limit = aggregated(maps, shares, inside)
        means = [part.mean[..., 0] for part in bins]
        examples = [maps[part.example][..., 0] for part in bins]
        count = int(np.isfinite(shares).sum())
        values = [method, setting, int(stage), count, means, examples, [part.share for part in bins], limit]
        for column, value in zip(arrays, values, strict=True):
            arrays[column].append(value)
    path.unlink(missing_ok=True)
    if arrays["names"]:
        with path.open("wb") as handle:
            np.savez_compressed(handle, **{column: np.array(value) for column, value in arrays.items()})  # type: ignore[arg-type]


log = logging.getLogger("heatlas")
STAGE = "grids"
GRID_METHODS = ("layer-cam", "occlusion", "rise")
"""Methods judged on grids beside the usual ones: the literature says what to expect of them."""


def require_single(config: Config) -> None:
    """Refuse ensembles, which have no features of their own and no sign of theirs for a map."""
    if config.training.ensemble > 1:
        raise UsageError(
            f"--parts grids takes a network apart, and each fold of this run has {config.training.ensemble} networks "
            "([training] ensemble). Ask it of a run without ensembles."
        )


@dataclass(frozen=True)
class Planned:
    """One grid, the fold whose networks see it, and the smallest confidence of its scans; or why there is none."""

    fold: int
    kind: Kind
    grid: Grid | None
    confidence: float = float("nan")
    note: str = ""


class GridJobs(Judge):
    """Makes the jobs of a cohort."""

    def job(self, number: int, planned: Planned, every: bool) -> Job:
        cohort, grid = self.cohort, planned.grid
        assert grid is not None
        scans, config = [cohort.scans[place] for place in grid.scans], cohort.config
        task = GridToScore(
            number, grid, tuple(map(self._files, scans)), every, config.seed, config.evaluation.grids,
            self.explanations, self._network(scans[grid.cell], REAL), config.training, cohort.atlas,
        )  # fmt: skip
        unit = f"{cohort.name}_{grid.kind}-{number:04d}"
        outputs = {name: cohort.layout.grid_file(unit, name) for name in ("scores", "invariance", "pictures")}
        return task.job(STAGE, unit, outputs, self.digests, score_grid, *self._code, on_gpu=True)


def planned_grids(cohort: JudgedCohort, quick: bool) -> list[Planned]:
    """Grids of every fold: of each class the most confident scans are explained, as many as the settings say.

    With `quick` half as many, and no pairs. Where none can be made for a fold, kind and class, there is a note instead.
    """
    planned: list[Planned] = []
    settings = cohort.config.evaluation.grids
    most = max(1, settings.per_class // 2) if quick else settings.per_class
    kinds = [kind for kind in settings.kinds if kind != "pair" or not quick]
    for fold in cohort.tested_folds:
        places = [n for n, scan in enumerate(cohort.scans) if cohort.fold_of(scan) == fold.index]
        try:
            candidates = _candidates(cohort, fold.index, places)
        except BadInputError as error:
            planned += [
                Planned(fold.index, kind, None, note=_problem_of_fold(cohort, fold.index, error)) for kind in kinds
            ]
            continue
        for kind in kinds:
            for target in (0, 1):
                count = min(most, len(candidates.of(target)))
                seed = generator(cohort.config.seed, "grids", fold.index, kind, target)
                try:
                    grids = draw_grids(candidates, layout_of(kind, settings), kind, target, count, seed)
                except BadInputError as error:
                    planned.append(Planned(fold.index, kind, None, note=_problem_of_fold(cohort, fold.index, error)))
                    continue
                least = float(candidates.confidence.min())
                planned += [Planned(fold.index, kind, grid, least) for grid in grids]
    return planned


def _problem_of_fold(cohort: JudgedCohort, fold: int, error: BadInputError) -> str:
    text = str(error).removeprefix("grids: ")
    for number, name in enumerate((cohort.config.cohort.negative, cohort.config.cohort.positive)):
        text = text.replace(f"class {number}", name)
    return f"fold {fold}: {text}"


def _candidates(cohort: JudgedCohort, fold: int, places: Sequence[int]) -> Candidates:
    """Confident scans among the test scans of a fold, by their places in the cohort."""
    table = read_table(cohort.layout.fold(fold).predictions, ["scan_id", "probability"], ["scan_id"])
    likely = dict(zip(table["scan_id"], table["probability"].astype(float), strict=True))
    scans = [cohort.scans[place] for place in places]
    missing = [scan.name for scan in scans if scan.scan_id not in likely]
    if missing:
        raise BadInputError(
            f"{cohort.layout.fold(fold).predictions}: no prediction of {missing[0]}. Finish the run with heatlas run."
        )
    positive = np.array([likely[scan.scan_id] for scan in scans])
    labels = [int(scan.label == cohort.config.cohort.positive) for scan in scans]
    people = [scan.participant_id for scan in scans]
    settings = cohort.config.evaluation.grids
    fewest = layout_of("needle", settings).cells - 1
    candidates = confident(labels, people, np.stack([1 - positive, positive], axis=1), settings.top, fewest)
    return dataclasses.replace(candidates, scans=np.array(places)[candidates.scans])


def evaluate_grids(
    cohort: JudgedCohort, explanations: tuple[Explanation, ...], quick: bool, executor: Executor, digests: DigestCache
) -> list[Outcome]:
    """Score all grids of a cohort and write the tables."""
    planned = planned_grids(cohort, quick)
    maker = GridJobs(cohort, explanations, Extent(), digests)
    jobs = [maker.job(number, plan, not quick) for number, plan in enumerate(planned) if plan.grid is not None]
    digests.save()
    if not planned:
        raise UsageError('evaluation.grids.kinds holds only "pair", and --quick makes no pairs; run without --quick.')
    if not jobs:
        raise BadInputError(f"no grid can be made. {planned[0].note}")
    for note in dict.fromkeys(plan.note for plan in planned if plan.note):
        log.warning("Some grids cannot be made. %s", note)
    outcomes = run_jobs(cohort.layout, jobs, executor, "grids")
    made = [outcome for outcome in outcomes if outcome.ok]
    if not made:
        raise BadInputError(f"every grid failed; see {cohort.layout.failures}.")
    _write_tables(cohort, planned, made)
    return outcomes


def _write_tables(cohort: JudgedCohort, planned: Sequence[Planned], outcomes: Sequence[Outcome]) -> None:
    layout, seed = cohort.layout, cohort.config.seed
    scores = read_scores([outcome.job.outputs["scores"] for outcome in outcomes])
    people = {place: scan.participant_id for place, scan in enumerate(cohort.scans)}
    summary = summary_of_grids(scores, people, seed).assign(cohort=cohort.name)
    confidence = pd.DataFrame([(plan.kind, plan.confidence) for plan in planned], columns=["kind", "confidence"])
    summary["confidence"] = summary["kind"].map(confidence.groupby("kind")["confidence"].min())
    kept = scores.groupby(["setting", "kind"])["local"].agg(_yes_or_no)
    summary["local"] = [kept[setting, kind] for setting, kind in zip(summary["setting"], summary["kind"], strict=True)]
    summary = pd.concat([summary, _notes(cohort, planned)], ignore_index=True)
    GRIDS_TABLE.write(layout, summary.astype({"stage": "Int64"}))
    task: GridToScore = outcomes[0].job.arguments[0]
    answers_of_claims = directions(scores, people, claims_about(task.network.files), seed).assign(cohort=cohort.name)
    DIRECTIONS_TABLE.write(layout, answers_of_claims)
    AGREEMENT_TABLE.write(layout, agreement_table(scores, cohort.name))
    frames = [read_table(outcome.job.outputs["invariance"], [], ["method", "note"]) for outcome in outcomes]
    INVARIANCE_TABLE.write(layout, invariance_table(frames, cohort.name))
    write_aggregated(layout.aggregated_maps, scores, outcomes)
    answers = answers_of_claims["holds"].fillna("n/a").value_counts()
    counts = [int(answers.get(answer, 0)) for answer in ("yes", "no", "open", BY_CONSTRUCTION, "n/a")]
    text = "Grids: claims of the literature that hold: %d; do not: %d; open: %d; by construction: %d; not asked: %d."
    log.info(text, *counts)


def read_scores(paths: Sequence[Path]) -> pd.DataFrame:
    texts = ["setting", "method", "kind", "note", "local"]
    return pd.concat([read_table(path, [], texts) for path in paths], ignore_index=True)


def claims_about(files: FoldFiles) -> tuple[Claim, ...]:
    loaded = load_model(files)
    return claims(smoothing_kernels(min(loaded.input.shape)), has_global_pooling(loaded.model))


def _yes_or_no(answers: pd.Series) -> str | None:
    answers_given = set(answers.dropna())
    return None if not answers_given else "yes" if answers_given == {"yes"} else "no"


def _notes(cohort: JudgedCohort, planned: Sequence[Planned]) -> pd.DataFrame:
    """A row per setting and kind where a fold has no grid."""
    noted = {(setting, plan.kind, plan.note) for plan in planned if plan.note for setting in SETTINGS_OF[plan.kind]}
    rows = []
    for setting, kind, note in sorted(noted):
        row = {"cohort": cohort.name, "setting": setting, "kind": kind, "method": ALL_METHODS, "note": note}
        cells = layout_of(kind, cohort.config.evaluation.grids).cells
        rows.append(row | {"n_participants": 0, "n_grids": 0, "n_undefined": 0, "cells": cells})
    return GRIDS_TABLE.frame(rows)


def _grids(bench: Bench, cohort: JudgedCohort) -> list[Outcome]:
    methods = methods_of(bench.request, cohort.config)
    if not bench.request.methods:
        refused = family_of(cohort.config.model).refused
        methods = tuple(dict.fromkeys((*methods, *(name for name in GRID_METHODS if name not in refused))))
    explanations = explanations_of_run(with_methods(cohort.config, methods))
    return evaluate_grids(cohort, explanations, bench.request.quick, bench.executor, bench.digests)


PART = Part(
    "grids", "several scans side by side: which of them every map marks", tables=GRID_TABLES, run=_grids,
    require=lambda _, config: require_single(config), last=True,  # since a weak network may allow no grid at all
    at_stages=True,
    shown=(
        Shown("Of several scans, does a map mark the right one?", "grids"),
        Shown("Does what is known of grids hold here?", "grid_directions"),
        Shown("Does a map depend on how a function is written?", "invariance"),
    ),
)  # fmt: skip
