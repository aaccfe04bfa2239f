"""Several runs of one cohort side by side: accuracy (McNemar), agreement of rankings, maps, and what both cost.

Runs are compared on the scans that all of them predicted with the same label; other scans are counted. The unit is the
participant, correct if most of their scans are correct, or with half correct, if the first session is. Scores of maps
and costs are those that each run recorded: what it did not measure is missing, and the note names the command.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from heatlas.pipeline.cohort.people.persons import name_of_person
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.documents import known_json
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Flags, Floats, Resampling
from heatlas.pipeline.statistics.comparison import rankings
from heatlas.pipeline.statistics.data.inputs import renamed
from heatlas.pipeline.statistics.data.values import RelevanceValues, joined
from heatlas.pipeline.statistics.performance.classification import ALL_FOLDS, measured_rows
from heatlas.pipeline.statistics.resampling.bootstrap import bootstrap_intervals, weighted_mean

MIN_PARTICIPANTS = 2
"""Fewer shared participants are refused."""
ALIKE = "both are right and wrong about the same participants"


MCNEMAR_TABLE = declared("mcnemar", __file__)


@dataclass(frozen=True, eq=False)
class Run:
    """One run to compare."""

    name: str
    config: Config
    predictions: pd.DataFrame
    values: RelevanceValues

    @property
    def control(self) -> str:
        """Kind of control run, as recorded with the predictions; ``not recorded`` for older runs."""
        if "control" not in self.predictions.columns:
            return "not recorded"
        return ", ".join(dict.fromkeys(self.predictions["control"].astype(str)))


def with_one_name_per_person(runs: Sequence[Run]) -> list[Run]:
    """The runs with one participant_id per person (`pipeline.cohort.people.persons`)."""
    names = name_of_person(name for run in runs for name in run.predictions["participant_id"])
    return [
        dataclasses.replace(
            run,
            predictions=renamed(run.predictions, names),
            values=dataclasses.replace(run.values, scans=renamed(run.values.scans, names)),
        )
        for run in runs
    ]


def common_scans(runs: Sequence[Run]) -> list[str]:
    """Scans predicted by all runs, in the order of the first run.

    BadInputError for fewer than two runs, different contrasts, a scan whose class differs between runs without shuffled
    labels, or too few scans in common.
    """
    if len(runs) < 2:
        raise BadInputError("compare: two runs or more are needed. Name several run folders.")
    first = runs[0]
    for run in runs[1:]:
        contrasts = [
            (r.config.cohort.contrast_column, r.config.cohort.negative, r.config.cohort.positive) for r in runs
        ]
        if len(set(contrasts)) > 1:
            named = "; ".join(f"{r.name}: {c} {n} against {p}" for r, (c, n, p) in zip(runs, contrasts, strict=True))
            raise BadInputError(f"compare: runs with different contrasts cannot be compared ({named}).")
        both = first.predictions.merge(run.predictions, on="scan_id", suffixes=("_a", "_b"))
        for column in ("participant_id", "target"):
            if column == "target" and "shuffled labels" in (first.control + run.control):
                continue
            other = both[both[f"{column}_a"] != both[f"{column}_b"]]
            if len(other):
                raise BadInputError(
                    f"predictions.tsv: scan {other['scan_id'].iloc[0]} has another {column} in {run.name} than in "
                    f"{first.name}. Compare runs of the same input."
                )
    shared = set.intersection(*(set(run.predictions["scan_id"]) for run in runs))
    if not shared:
        names = ", ".join(run.name for run in runs)
        raise BadInputError(f"predictions.tsv: no scan was predicted by all of {names}. Compare runs of one cohort.")
    people = first.predictions.loc[first.predictions["scan_id"].isin(shared), "participant_id"].unique()
    if len(people) < MIN_PARTICIPANTS:
        raise BadInputError(
            f"compare: {', '.join(run.name for run in runs)} share {counted(len(shared), 'scan')} of "
            f"{counted(len(people), 'participant')}; at least {MIN_PARTICIPANTS} are needed. Compare "
            "runs of one cohort."
        )
    return [scan for scan in first.predictions["scan_id"] if scan in shared]


def votes(run: Run, scans: Sequence[str]) -> pd.Series:
    """Whether each participant is classified correctly."""
    table = run.predictions.set_index("scan_id").loc[list(scans)]
    right = table["outcome"].isin(["TP", "TN"]).astype(float)
    by_person = right.groupby(table["participant_id"], sort=True)
    order = table.assign(_right=right).sort_values(["participant_id", "session_id"], na_position="first", kind="stable")
    first = order.groupby("participant_id", sort=True)["_right"].first()
    share = by_person.mean()
    return (share > 0.5) | ((share == 0.5) & (first == 1))


def mcnemar_table(runs: Sequence[Run], scans: Sequence[str], seed: int) -> pd.DataFrame:
    voted = {run.name: votes(run, scans) for run in runs}
    rows = [
        _pair(a, b, voted[a.name].to_numpy(bool), voted[b.name].to_numpy(bool), len(scans), seed)
        for a, b in combinations(runs, 2)
    ]
    table = MCNEMAR_TABLE.frame(rows)
    return table.assign(p_holm=multipletests(table["p"], method="holm")[1])


def _pair(a: Run, b: Run, right_a: Flags, right_b: Flags, n_scans: int, seed: int) -> dict[str, Any]:
    both, only_a = int((right_a & right_b).sum()), int((right_a & ~right_b).sum())
    only_b, neither = int((~right_a & right_b).sum()), int((~right_a & ~right_b).sum())
    gain = right_a.astype(float) - right_b.astype(float)
    draws = Resampling.draws(a.config.statistics, generator(seed, "compare", a.name, b.name))
    intervals = bootstrap_intervals(lambda weights: weighted_mean(gain, weights), [0] * len(gain), draws)
    return {
        "run_a": a.name,
        "run_b": b.name,
        "control_a": a.control,
        "control_b": b.control,
        "n_participants": len(gain),
        "n_scans": n_scans,
        "n_only_a": len(a.predictions) - n_scans,
        "n_only_b": len(b.predictions) - n_scans,
        "both_right": both,
        "only_a_right": only_a,
        "only_b_right": only_b,
        "both_wrong": neither,
        "accuracy_a": float(right_a.mean()),
        "accuracy_b": float(right_b.mean()),
        "difference": float(gain.mean()),
        **intervals.row(),
        "p": float(mcnemar([[both, only_a], [only_b, neither]], exact=True).pvalue),
        "note": joined(too_few(len(gain)), intervals.notes[0] if only_a + only_b else ALIKE),
    }


def too_few(participants: int) -> str | None:
    """A note if p cannot fall below 0.05 with this few participants."""
    least = min(1.0, 2 * 0.5**participants)
    return f"{counted(participants, 'participant')}: p cannot be below {least:.3g}" if least > 0.05 else None


def atlases_note(runs: Sequence[Run]) -> str | None:
    """A note if the runs have different atlases."""
    named = [f"{run.name}: {run.config.regions.atlas}" for run in runs]
    several = len({run.config.regions.atlas for run in runs}) > 1
    return f"different atlases; regions are matched by name ({'; '.join(named)})" if several else None


def run_agreement_table(runs: Sequence[Run], scans: Sequence[str], seed: int) -> pd.DataFrame:
    """Agreement of region rankings between runs, for each map in all of them; settings of the first run."""
    return rankings.agreement_table(_rankings(runs, scans), runs[0].config.statistics, seed)


def _rankings(runs: Sequence[Run], scans: Sequence[str]) -> Iterator[rankings.Rankings]:
    first = runs[0].values
    explained = set(scans).intersection(*(run.values.scans["scan_id"] for run in runs))
    maps = [name for name in first.maps if all(name in run.values.maps for run in runs)]
    groups = [name for name in first.groups if all(name in run.values.groups for run in runs)]
    lost = len(set().union(*(run.values.groups for run in runs))) - len(groups)
    note = joined(atlases_note(runs), f"{counted(lost, 'region')} missing in a run left out" if lost else None)
    for population, chosen in rankings.populations(first.scans["target"].to_numpy(float)).items():
        rows = first.scans[chosen & first.scans["scan_id"].isin(explained).to_numpy(bool)]
        ids, people = set(rows["scan_id"]), rows["participant_id"].nunique()
        for metric in rankings.METRICS:
            for map_name in maps:
                means = {run.name: _means(run.values, ids, metric, map_name, groups) for run in runs}
                yield rankings.Rankings("runs", map_name, metric, population, means, people, len(rows), note)


def _means(values: RelevanceValues, ids: set[str], metric: str, map_name: str, groups: Sequence[str]) -> Floats:
    """Mean of each group over the participants of the scans named."""
    means = rankings.mean_over_people(values, metric, values.scans["scan_id"].isin(ids).to_numpy(bool))
    chosen: Floats = means[values.maps.index(map_name), [values.groups.index(name) for name in groups]]
    return chosen


RUNS_TABLE = declared("family_comparison", __file__)
MAPS_TABLE = declared("map_comparison", __file__)
MAP_AGREEMENT_TABLE = declared("map_agreement", __file__)
UNMEASURED = "no scores of maps: run heatlas evaluate on this run"


def run_table(runs: Sequence[tuple[Run, RunLayout]], scans: Sequence[str]) -> pd.DataFrame:
    return RUNS_TABLE.frame([_run_row(run, layout, scans) for run, layout in runs])


def _run_row(run: Run, layout: RunLayout, scans: Sequence[str]) -> dict[str, Any]:
    """Costs, and the balanced accuracy as the report of the run has it, from the scans of all runs alone."""
    predictions = run.predictions[run.predictions["scan_id"].isin(scans)]
    measured = measured_rows(ALL_FOLDS, predictions, run.config.statistics, run.config.seed)
    found = next(row for row in measured if row["metric"] == "balanced_accuracy")
    costs = _costs(run, layout)
    return {
        "run": run.name,
        "architecture": run.config.model.architecture,
        "balanced_accuracy": found["estimate"],
        **{name: found[name] for name in ("n_participants", "n_scans", "ci_low", "ci_high", "interval")},
        **costs,
        "note": joined(costs["note"], found["note"]),
    }


def _costs(run: Run, layout: RunLayout) -> dict[str, Any]:
    """Size of the networks, and times, from the descriptions and receipts of a run."""
    folds = sorted(set(run.predictions["fold"].astype(int)))
    sizes = [size for fold in folds if (size := _entry(layout.fold(fold).description, "parameters")) is not None]
    times = [time for fold in folds if (time := _entry(layout.receipt("training", f"fold-{fold}"), "seconds"))]
    explained = layout.receipt("attribution", "any").parent
    each = [time for path in sorted(explained.glob("*.json")) if (time := _entry(path, "seconds"))]
    missing = [name for name, values in (("networks", sizes), ("times of training", times)) if not values]
    return {
        "n_networks": len(sizes),
        "parameters": max(sizes, default=None),
        "training_seconds": float(np.mean(times)) if times else None,
        "explaining_seconds": float(np.mean(each)) if each else None,
        "note": f"the run holds no {' and no '.join(missing)}" if missing else None,
    }


def _entry(path: Path, name: str) -> float | None:
    """A number of a JSON file; None where there is no such file or number."""
    value = known_json(path).get(name)
    return value if isinstance(value, int | float) else None


def map_table(runs: Sequence[tuple[Run, RunLayout]]) -> pd.DataFrame:
    rows = [row for run, layout in runs for row in _map_rows(run, layout)]
    return MAPS_TABLE.frame(rows).astype({"passed": "boolean"})


def _map_rows(run: Run, layout: RunLayout) -> Iterator[dict[str, Any]]:
    scores = _read(layout.evaluation / "evaluation.tsv", ("network", "severity"), ("real", "all"))
    verdicts = _read(layout.evaluation / "verdicts.tsv", (), ())
    planted = _read(layout.statistics("planted_recovery"), ("metric", "outcome"), ("density", "TP"))
    for name in run.values.maps:
        row: dict[str, Any] = {"run": run.name, "architecture": run.config.model.architecture, "map": name}
        of_map = scores[scores["map"] == name] if len(scores) else scores
        if len(of_map):  # planted copies know the truth of each scan
            best = of_map.sort_values("cohort", key=lambda column: column != "planted").iloc[0]
            names = {"hits": "hits_difference", "auroc": "auroc_difference", "auroc_mean": "auroc_mean"}
            names |= {name_of_number: name_of_number for name_of_number in ("n_planted", "pointing", "seconds")}
            row |= {column: best.get(source) for column, source in names.items()}
            judged = verdicts[(verdicts["map"] == name) & (verdicts["cohort"] == best["cohort"])]
            row["passed"] = judged["passed"].iloc[0] if len(judged) else None
        else:
            row["note"] = UNMEASURED
        truth = planted[planted["map"] == name] if len(planted) else planted
        if len(truth):
            row |= {"enrichment": truth["enrichment"].iloc[0], "hits_found": truth["hits"].iloc[0]}
            row["n_planted_found"] = truth["n_planted"].iloc[0]
        yield row


def _read(path: Any, columns: Sequence[str], values: Sequence[str]) -> pd.DataFrame:
    """Rows of a table with these values; an empty frame where the run has no such table."""
    if not path.is_file():
        return pd.DataFrame()
    table = read_table(path)
    for column, value in zip(columns, values, strict=True):
        table = table[table[column] == value]
    return table


def region_table(runs: Sequence[Run], scans: Sequence[str]) -> pd.DataFrame:
    """Agreement of every map with every map of another run; `MAP_AGREEMENT_TABLE`."""
    explained = set(scans).intersection(*(run.values.scans["scan_id"] for run in runs))
    rows = []
    for a, b in combinations(runs, 2):
        groups = [name for name in a.values.groups if name in b.values.groups]
        means, people = zip(*(_means_of_positive(run, explained, groups) for run in (a, b)), strict=True)
        for place_a, map_a in enumerate(a.values.maps):
            for place_b, map_b in enumerate(b.values.maps):
                pair = np.stack([means[0][place_a], means[1][place_b]])
                pair = pair[:, ~np.isnan(pair).any(axis=0)]
                row = {"run_a": a.name, "map_a": map_a, "run_b": b.name, "map_b": map_b, "n_regions": pair.shape[1]}
                rows.append(row | {"n_participants": people[0], **_correlation(pair)})
    return MAP_AGREEMENT_TABLE.frame(rows)


def _means_of_positive(run: Run, explained: set[str], groups: Sequence[str]) -> tuple[Floats, int]:
    """Mean densities (maps, groups) over participants of the positive class, and how many they are."""
    values = run.values
    chosen = (values.scans["target"].to_numpy(float) == 1) & values.scans["scan_id"].isin(explained).to_numpy(bool)
    means = rankings.mean_over_people(values, "density", chosen)
    places = [values.groups.index(name) for name in groups]
    return means[:, places], values.scans["participant_id"][chosen].nunique()


def _correlation(pair: Floats) -> dict[str, Any]:
    if pair.shape[1] < 3:
        return {"note": "fewer than three regions in common"}
    if (np.ptp(pair, axis=1) == 0).any():
        return {"note": "a map has the same value in every region"}
    return {"spearman": float(stats.spearmanr(*pair).statistic)}
