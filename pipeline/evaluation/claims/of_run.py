"""Claims asked of a finished run: what its tables and maps hold, what each claim costs, and the answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import nan
from pathlib import Path
from time import perf_counter

import numpy as np
import pandas as pd

from heatlas.atlases.templates import configured_grid
from heatlas.pipeline.cohort.people.persons import name_of_person
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.records import SCANS_TABLE, ScanTable
from heatlas.pipeline.evaluation.claims.records import Ask, Claim, judged
from heatlas.pipeline.evaluation.claims.relevance import (
    BETAS,
    GUIDED,
    PREDICTED,
    SPARSITY,
    VOLUME,
    NotAskedError,
    Relevance,
    statistics,
)
from heatlas.pipeline.evaluation.claims.rule import (
    DRAWS,
    Design,
    Estimate,
    Floats,
    Statistic,
    area_of,
    estimate,
    holm,
    less,
)
from heatlas.pipeline.evaluation.scores.localisation import entropy, gini
from heatlas.pipeline.evaluation.tables import declared
from heatlas.pipeline.explaining.on_demand import EXPLAINED_BILATERAL_TABLE
from heatlas.pipeline.regions.maps import read_map
from heatlas.pipeline.regions.tables import RELEVANCE_BILATERAL_TABLE
from heatlas.pipeline.registration.volumes import VOLUMES_TABLE
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.layout.run_layout import ExplanationLayout, RunLayout
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.tables import require_numbers
from heatlas.pipeline.training.prediction import PREDICTIONS_TABLE

CLAIMS_TABLE = declared("claims")
NOT_ASKED = "not asked"
COIN, SOURCE = 0.5, "probability"
TRIED = 20
"""Draws that the cost is measured on."""
OF_PREDICTED = "guidedBackpropagationTargetPredicted"
HIPPOCAMPUS = "Hippocampus"


@dataclass(frozen=True, eq=False)
class Trained:
    """What one training says: a folder of a run, rows of ``predictions.tsv``, and sums of maps by region.

    `rows`: of each person the first scan with all maps, by the name of the person. `maps`: rows alike, regions as
    columns.
    """

    layout: RunLayout
    config: Config
    rows: pd.DataFrame
    maps: dict[str, pd.DataFrame]
    voxels: dict[str, int]

    def of(self, people: pd.Index) -> Trained:
        maps = {name: sums.loc[people] for name, sums in self.maps.items()}
        return replace(self, rows=self.rows.loc[people], maps=maps)

    @cached_property
    def volumes(self) -> Floats:
        """Of the hippocampus: those that came with the scans, else those of the registration."""
        own = {scan.scan_id: scan.hippocampus_mm3 for scan in ScanTable.read(self.layout).kept}
        found = self.rows["scan_id"].map(own).astype(float)
        if found.isna().all() and VOLUMES_TABLE.path(self.layout).is_file():
            rows = VOLUMES_TABLE.read(self.layout, ["scan_id", "group", "volume_mm3", "tissue_mm3"])
            rows = rows[rows["group"] == HIPPOCAMPUS]
            own_size = rows["tissue_mm3"].fillna(rows["volume_mm3"]).where(rows["volume_mm3"].notna())
            each = own_size.groupby(rows["scan_id"]).sum(min_count=1)
            found = self.rows["scan_id"].map(each).astype(float)
        if found.isna().all():
            raise NotAskedError("nobody's hippocampal volume is known (an affine registration measures none)")
        return np.array(found, dtype=np.float64)

    @cached_property
    def files(self) -> list[ScanFiles]:
        named = self.rows[["participant_id", "session_id"]].itertuples(index=False)
        resolution = self.config.registration.resolution_mm
        return [self.layout.scan(person, None if pd.isna(of) else str(of), resolution) for person, of in named]

    @cached_property
    def sparsity(self) -> pd.DataFrame:
        return pd.DataFrame([self.sparsity_of(files) for files in self.files])

    @property
    def betas(self) -> dict[float, str]:
        return {beta: name for beta, name in BETAS.items() if beta in self.config.attribution.betas}

    def sparsity_of(self, files: ScanFiles) -> dict[str, float]:
        """Gini index and entropy of the positive values of each map of LRP in the brain."""
        grid = configured_grid(self.config.registration)
        found: dict[str, float] = {}
        brain = read_map(files.brain_mask, grid) > 0
        for beta, name in self.betas.items():
            own = read_map(files.relevance_map(name), grid)[brain].astype(float)
            found |= {f"{SPARSITY[0]} at {beta:g}": gini(own), f"{SPARSITY[1]} at {beta:g}": entropy(own)}
        return found

    def seconds_of_maps(self, measures: Sequence[str]) -> float:
        """How long reading all maps takes, from one scan."""
        for files in self.files:
            if not all(path.is_file() for path in (files.brain_mask, *map(files.relevance_map, self.betas.values()))):
                raise NotAskedError('maps of LRP are not there for all people ([attribution] keep_maps = "all")')
        start = perf_counter()
        first = self.sparsity_of(self.files[0])
        if unknown := [name for name in measures if name not in first]:
            raise NotAskedError(f"no map for {unknown[0]}: see betas of [attribution]")
        return (perf_counter() - start) * len(self.files)


@dataclass(frozen=True, eq=False)
class People:
    """People who have a prediction by a network that has not seen them, and all maps, in every training."""

    trainings: Sequence[Trained]

    @property
    def config(self) -> Config:
        return self.trainings[0].config

    def measure(self, name: str) -> Floats:
        """Of each, (people, trainings)."""
        if name == "probability":
            each = [one.rows[name].to_numpy(float) for one in self.trainings]
        elif name == VOLUME:
            each = [self.trainings[0].volumes] * len(self.trainings)
        elif name.startswith(SPARSITY):
            each = [one.sparsity[name].to_numpy(float) for one in self.trainings]
        else:
            raise NotAskedError(f"no {name} in the tables of a run")
        return np.stack(each, axis=1)


@dataclass(frozen=True, eq=False)
class Answers:
    """What a run says to claims."""

    people: People
    relevance: Relevance

    @cached_property
    def statistics(self) -> dict[str, Statistic]:
        return statistics(self.relevance)

    @cached_property
    def design(self) -> Design:
        return Design(self.relevance.classes, self.relevance.fold_of)

    def cost(self, claim: Claim) -> float:
        """Seconds that it takes; NotAskedError if it cannot be asked."""
        explained = task_of(self.people.config.cohort).explained
        if claim.about and claim.about != explained:
            raise NotAskedError(f"it is about {claim.about}, and the maps of this run explain {explained}")
        sides = [side for ask in claim.asks for side in ask.sides]
        if any(side.startswith(SPARSITY) for side in sides):
            return sum(one.seconds_of_maps(sides) for one in self.people.trainings)
        for ask in claim.asks:
            if not np.isfinite(self.sides(ask)).all():
                raise NotAskedError(f"{ask.words} is not defined for these people")
        start, weights = perf_counter(), np.ones((TRIED, len(self.relevance.classes)))
        for side in sides:
            self.statistics[side](0, weights)
        return (perf_counter() - start) * DRAWS / TRIED * len(self.people.trainings)

    def estimate(self, of: Ask) -> Estimate:
        first, *second = [self.statistics[side] for side in of.sides]
        return estimate(less(first, *second) if second else first, self.design)

    def sides(self, of: Ask) -> list[float]:
        everybody, trainings = np.ones((1, len(self.relevance.classes))), range(len(self.people.trainings))
        each = [[self.statistics[side](one, everybody)[0] for one in trainings] for side in of.sides]
        return [float(np.mean(one)) for one in each]

    @property
    def start(self) -> str:
        """That maps start from another value than those of the source; empty where they do not."""
        start = self.people.config.attribution.start_value
        return "" if start == SOURCE else f"maps start from the {start}, those of the source from the {SOURCE}"

    @cached_property
    def know(self) -> bool:
        """Whether the networks are better than a coin."""
        own = self.relevance
        area = area_of(own.measure("probability"), own.positive, own.fold_of)
        return estimate(area, self.design).interval[0] > COIN


def answers_of(layout: RunLayout, config: Config, further: Sequence[RunLayout] = ()) -> Answers:
    """What the run says of its people; NotAskedError for one of which nothing can be asked.

    `further`: folders of further trainings of its recipe. People who are asked have an answer of each.
    """
    task = task_of(config.cohort)
    if task.kind.undefined:
        raise NotAskedError(f"claims compare two classes, and this run {task.kind.does}")
    trainings = [_trained(one, config) for one in (layout, *further)]
    first, *others = trainings
    everybody = first.rows.index
    for one in others:
        everybody = everybody[everybody.isin(one.rows.index)]
    trainings = [one.of(everybody) for one in trainings]
    classes, voxels = trainings[0].rows["target"].to_numpy(int), first.voxels
    if len(np.unique(classes)) < 2:
        raise NotAskedError("claims compare two classes, and the people with predictions and maps are of fewer")
    names = [name for name in first.maps if all(name in one.maps for one in others)]
    maps = {name: np.stack([one.maps[name][list(voxels)].to_numpy() for one in trainings]) for name in names}
    folds = np.stack([pd.factorize(one.rows["fold"])[0] for one in trainings], axis=1)
    people = People(trainings)
    return Answers(people, Relevance(maps, voxels, classes, folds, people.measure))


def _trained(layout: RunLayout, config: Config) -> Trained:
    for table in (PREDICTIONS_TABLE, RELEVANCE_BILATERAL_TABLE):
        if not table.path(layout).is_file():
            raise NotAskedError(f"no {table.file}: the run is not finished, or nobody's class is known")
    rows = PREDICTIONS_TABLE.read(layout, ["participant_id", "session_id", "scan_id", "fold", "target", "probability"])
    sums = RELEVANCE_BILATERAL_TABLE.read(layout, ["scan_id", "map", "group", "n_voxels", "sum"])
    require_numbers(PREDICTIONS_TABLE.path(layout), rows, ["fold", "target", "probability"])
    require_numbers(RELEVANCE_BILATERAL_TABLE.path(layout), sums, ["n_voxels", "sum"])
    sums = sums[(sums["n_voxels"] > 0) & sums["map"].isin([*BETAS.values(), GUIDED])]
    if sums.empty:
        raise NotAskedError("no maps of LRP or guided backpropagation: see methods of [attribution]")
    voxels = {str(group): int(n) for group, n in sums.groupby("group", sort=False)["n_voxels"].first().items()}
    wide = sums.pivot_table(index="scan_id", columns=["map", "group"], values="sum").dropna()
    rows = rows[rows["scan_id"].isin(wide.index)].dropna(subset=["fold", "target", "probability"])
    rows = rows.assign(person=rows["participant_id"].map(name_of_person(rows["participant_id"].unique())))
    rows = rows.sort_values(["person", "session_id", "scan_id"], kind="stable").drop_duplicates("person")
    rows = rows.set_index("person")
    wide = wide.loc[rows["scan_id"]]
    maps = {str(name): pd.DataFrame(wide[name])[list(voxels)] for name in wide.columns.unique("map")}
    path = ExplanationLayout(layout.root).bilateral(OF_PREDICTED)
    if path.is_file():
        own = EXPLAINED_BILATERAL_TABLE.read(path, ["scan_id", "group", "sum"])
        require_numbers(path, own, ["sum"])
        of_predicted = own.pivot_table(index="scan_id", columns="group", values="sum")
        of_predicted = of_predicted.reindex(index=rows["scan_id"], columns=list(voxels))
        if of_predicted.notna().all(axis=None):
            maps[PREDICTED] = of_predicted
    return Trained(layout, config, rows, {name: one.set_axis(rows.index) for name, one in maps.items()}, voxels)


def sources_of(layout: RunLayout, further: Sequence[RunLayout] = ()) -> list[Path]:
    """Tables that the answers are made from; maps change with the sums over their regions."""
    of_people, of_each = (SCANS_TABLE, VOLUMES_TABLE), (PREDICTIONS_TABLE, RELEVANCE_BILATERAL_TABLE)
    found = [table.path(layout) for table in of_people]
    for one in (layout, *further):
        found += [*(table.path(one) for table in of_each), ExplanationLayout(one.root).bilateral(OF_PREDICTED)]
    return found


def planned(claims: Sequence[Claim], answers: Answers | str) -> Iterator[tuple[Claim, str, float]]:
    """Each claim with why it is not asked, and the seconds that it takes if it is.

    `answers`: a text is why nothing can be asked of the run.
    """
    for claim in claims:
        why, seconds = "", nan
        try:
            if claim.command:
                raise NotAskedError(f"{'needs training' if claim.trains else 'needs maps of its own'}: {claim.command}")
            if isinstance(answers, str):
                raise NotAskedError(answers)
            seconds = answers.cost(claim)
        except NotAskedError as error:
            why = str(error)
        yield claim, why, seconds


def claims_table(plan: Sequence[tuple[Claim, str, float]], answers: Answers | str) -> pd.DataFrame:
    """A row for each number that decides a claim."""
    rows: list[dict[str, object]] = []
    for claim, why, _ in plan:
        told: dict[str, object] = {
            "claim": claim.id,
            "said": claim.says,
            "said_in": claim.where,
            "found_there": claim.there,
        }
        if why or isinstance(answers, str):
            rows.append(told | {"verdict": NOT_ASKED, "note": why})
            continue
        start = perf_counter()
        found = {ask.of: answers.estimate(ask) for ask in claim.asks}
        verdict, note, p = judged(claim.asks, found.__getitem__, answers.sides, lambda _: answers.know)
        folds = [len(np.unique(one)) for one in answers.relevance.fold_of.T]
        note = "; ".join(filter(None, (note, answers.start)))
        told |= {"verdict": verdict, "note": note, "p": p, "n_participants": len(answers.relevance.classes)}
        told |= {"n_networks": sum(folds), "n_trainings": len(folds), "seconds": perf_counter() - start}
        rows += [told | _numbers(ask, found[ask.of]) for ask in claim.asks]
    table = CLAIMS_TABLE.frame(rows)
    ps = table.dropna(subset="p").drop_duplicates("claim").set_index("claim")["p"]
    return table.assign(p_holm=table["claim"].map(dict(zip(ps.index, holm(ps.tolist()), strict=True))))


def _numbers(ask: Ask, found: Estimate) -> dict[str, object]:
    low, high = found.interval
    if ask.ends and len(ask.sides) == 1:
        low, high = (min(max(one, ask.ends[0]), ask.ends[1]) for one in (low, high))
    numbers = {"measure": ask.words, "rule": ask.rule, "estimate": found.mean, "ci_low": low, "ci_high": high}
    if not ask.points:
        return numbers
    margins = np.clip(ask.points * np.array([ask.margin(found.mean), *ask.margins(low, high)]), -100, 100)
    return numbers | dict(zip(("points", "points_low", "points_high"), margins, strict=True))
