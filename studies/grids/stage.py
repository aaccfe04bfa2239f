"""``--parts grids``: confident test scans of each fold side by side, and which of them every map marks."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from heatlas.pipeline.evaluation.bench.judging import Extent, Judge
from heatlas.pipeline.evaluation.bench.part import Bench, Part, Shown, methods_of, with_methods
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.nulls import REAL
from heatlas.pipeline.explaining.explanation import Explanation
from heatlas.pipeline.explaining.requested import explanations_of_run
from heatlas.pipeline.models.families.registry import family_of
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import FoldFiles
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.digests import DigestCache, unit_key
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
from heatlas.studies.grids.studies import smoothing_kernels
from heatlas.studies.grids.tables import (
    AGREEMENT_TABLE,
    ALL_METHODS,
    GRID_TABLES,
    INVARIANCE_TABLE,
    agreement_table,
    invariance_table,
    write_aggregated,
)

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
        """The unit of work of one grid."""
        cohort, grid = self.cohort, planned.grid
        assert grid is not None
        scans = [cohort.scans[place] for place in grid.scans]
        files, network = tuple(map(self._files, scans)), self._network(scans[grid.cell], REAL)
        task = GridToScore(
            number, grid, files, network, self.explanations, cohort.config.training, cohort.atlas, every,
            cohort.config.seed, cohort.config.evaluation.grids,
        )  # fmt: skip
        inputs = {"weights": network.weights_digest}
        for place, scan_files in enumerate(files):
            inputs[f"cell {place}"] = self.digests.joined(scan_files.seen)
        inputs |= {f"control {place}": control.digest for place, control in enumerate(network.controls)}
        facts = [
            number, dataclasses.astuple(grid), [scan.name for scan in scans], every, cohort.config.seed,
            dataclasses.astuple(cohort.config.evaluation.grids), [asked.version for asked in self.explanations],
        ]  # fmt: skip
        key = unit_key(inputs, facts, score_grid, *sorted({asked.module for asked in self.explanations}))
        unit = f"{cohort.name}_{grid.kind}-{number:04d}"
        outputs = {name: cohort.layout.grid_file(unit, name) for name in ("scores", "invariance", "pictures")}
        return Job(STAGE, unit, key, outputs, score_grid, (task,), on_gpu=True)


def planned_grids(cohort: JudgedCohort, quick: bool) -> list[Planned]:
    """Grids of every fold: of each class the most confident scans are explained, as many as the settings say.

    With `quick` half as many, and no pairs. Where no grid can be made for a fold, kind and class, there is a
    note instead.
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
    """What went wrong in a fold, with the names of the classes."""
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
    """Score all grids of a cohort and write the tables.

    Raises BadInputError if no grid can be made in any fold, or all failed. Raises UsageError for settings that leave
    nothing to make.
    """
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
    """Tables of all grids that were scored, and the arrays of their figure."""
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
    log.info("Grids: claims of the literature that hold: %d; do not: %d; open: %d; by construction: %d; not asked: %d.",
             *(int(answers.get(answer, 0)) for answer in ("yes", "no", "open", BY_CONSTRUCTION, "n/a")))  # fmt: skip


def read_scores(paths: Sequence[Path]) -> pd.DataFrame:
    """Scores of some grids, from the tables of their units of work."""
    texts = ["setting", "method", "kind", "note", "local"]
    return pd.concat([read_table(path, [], texts) for path in paths], ignore_index=True)


def claims_about(files: FoldFiles) -> tuple[Claim, ...]:
    """What the literature says of networks like this one."""
    loaded = load_model(files)
    return claims(smoothing_kernels(min(loaded.input.shape)), has_global_pooling(loaded.model))


def _yes_or_no(answers: pd.Series) -> str | None:
    answers_given = set(answers.dropna())
    return None if not answers_given else "yes" if answers_given == {"yes"} else "no"


def _notes(cohort: JudgedCohort, planned: Sequence[Planned]) -> pd.DataFrame:
    """A row per setting and kind where a fold has no grid."""
    rows = {
        (setting, planned_grid.kind, planned_grid.note)
        for planned_grid in planned
        if planned_grid.note
        for setting in SETTINGS_OF[planned_grid.kind]
    }
    made = [
        {"cohort": cohort.name, "setting": setting, "kind": kind, "method": ALL_METHODS, "n_participants": 0,
         "n_grids": 0, "n_undefined": 0, "cells": layout_of(kind, cohort.config.evaluation.grids).cells, "note": note}
        for setting, kind, note in sorted(rows)
    ]  # fmt: skip
    return GRIDS_TABLE.frame(made)


def _grids(bench: Bench, cohort: JudgedCohort) -> list[Outcome]:
    """Judge the usual methods and those of `GRID_METHODS`."""
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
