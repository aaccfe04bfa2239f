"""Several runs of one cohort side by side: what their networks reach, what their maps find, and what both cost.

Accuracy is measured on the scans that all runs predicted; scores of maps and costs are those that each run recorded.
Nothing is computed again: what a run did not measure is missing, and the note names the command that measures it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from heatlas.pipeline.run.columns import described
from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.run.documents import known_json
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Flags, Floats
from heatlas.pipeline.statistics.comparison.rankings import mean_over_people
from heatlas.pipeline.statistics.comparison.runs import Run
from heatlas.pipeline.statistics.data.notes import joined
from heatlas.pipeline.statistics.resampling.bootstrap import INTERVAL_OF_SCALED, LOGIT, scaled_intervals, strata_of

RUNS_TABLE = Table(
    "family_comparison",
    {
        "run": "Run",
        "architecture": "Family of its networks",
        "n_participants": "Participants whom all runs predicted",
        "n_scans": "Their scans",
        "balanced_accuracy": "Mean of sensitivity and specificity over these scans",
        "ci_low": "Lower bound of its interval over participants",
        **described("ci_high"),
        "interval": INTERVAL_OF_SCALED + "; none",
        "n_networks": "Trained networks, one per fold",
        "parameters": "Trained numbers of one network",
        "training_seconds": "Mean over folds of the time that training took, on the machine of the run",
        "explaining_seconds": "Mean over scans of the time for all maps of a scan and their tables, on the machine of "
        "the run",
        "note": "What is missing, and why",
    },
    "run", "How accurate and how large are the networks of each run, and how long did they take?", stage="compare",
    file="family_comparison.tsv",
)  # fmt: skip
MAPS_TABLE = Table(
    "map_comparison",
    {
        "run": "Run",
        "architecture": "Family of its networks",
        "map": "Relevance map, named as in file names",
        "hits": "Planted groups among the first ten by Hedges' g between the classes",
        "hits_found": "Planted groups among the first ten by mean density over patients whom the run's networks "
        "recognised",
        "n_planted": "Planted groups that `hits` counts",
        "n_planted_found": "Planted groups that `hits_found` counts",
        "auroc": "Probability that a planted group comes before another, by Hedges' g",
        "auroc_mean": "The same by mean density over the positive class",
        "enrichment": "Share of relevance in the planted groups over their share of the volume; 1: no more than by "
        "chance",
        "pointing": "Share of scans whose largest value lies in a region where the scan is known to differ",
        "seconds": "Per scan and map, as `heatlas evaluate` measured it",
        "passed": "Whether the map passed every test of `heatlas evaluate`",
        "note": "What is missing, and the command that measures it",
    },
    "run and map", "How good are the maps of each run, where it was measured?", stage="compare",
    file="map_comparison.tsv",
)  # fmt: skip
MAP_AGREEMENT_TABLE = Table(
    "map_agreement",
    {
        "run_a": "First run",
        "map_a": "Its map",
        "run_b": "Second run",
        "map_b": "Its map",
        "spearman": "Rank correlation over bilateral groups of the mean density in scans of the positive class",
        "n_regions": "Bilateral groups with a value in both",
        "n_participants": "Participants of the positive class",
        "note": "Why there is no value",
    },
    "two maps of two runs", "Do maps of different runs mark the same regions?", stage="compare",
    file="map_agreement.tsv",
)  # fmt: skip
UNMEASURED = "no scores of maps: run heatlas evaluate on this run"


def run_table(runs: Sequence[tuple[Run, RunLayout]], scans: Sequence[str], seed: int) -> pd.DataFrame:
    """One row per run; `RUNS_TABLE`."""
    return RUNS_TABLE.frame([_run_row(run, layout, scans, seed) for run, layout in runs])


def _run_row(run: Run, layout: RunLayout, scans: Sequence[str], seed: int) -> dict[str, Any]:
    table = run.predictions.set_index("scan_id").loc[list(scans)]
    right = table["outcome"].isin(["TP", "TN"]).to_numpy().astype(np.float64)
    codes, people = pd.factorize(table["participant_id"].to_numpy(object))
    positive = table["target"].to_numpy(float) == 1
    sides = [_per_person(codes, right, side) for side in (positive, ~positive)]

    def statistic(weights: Floats) -> Floats:
        shares = [weights @ hit / (weights @ count) for hit, count in sides]
        return np.asarray(np.mean(shares, axis=0))

    row: dict[str, Any] = {"run": run.name, "architecture": run.config.model.architecture, "n_scans": len(scans)}
    row |= {"n_participants": len(people)} | _costs(run, layout)
    if all(count.sum() > 0 for _, count in sides):
        settings = run.config.statistics
        fold = table["fold"].to_numpy()[np.unique(codes, return_index=True)[1]]
        strata = strata_of(pd.factorize(fold)[0].astype(np.intp), (sides[0][1] > 0).astype(np.intp))
        found = scaled_intervals(
            lambda weights: statistic(weights)[:, None], strata, [LOGIT], settings.bootstrap_samples,
            settings.confidence, generator(seed, "families", run.name),
        )  # fmt: skip
        row |= {"balanced_accuracy": float(statistic(np.ones((1, len(people))))[0]), **found.row()}
        row["note"] = joined(row.get("note"), found.notes[0])
    else:
        row["note"] = joined(row.get("note"), "only one class among the scans of all runs")
    return row


def _per_person(codes: NDArray[np.intp], right: Floats, side: Flags) -> tuple[Floats, Floats]:
    """Right scans and scans of a class, of each person."""
    n = int(codes.max()) + 1
    count = np.bincount(codes[side], minlength=n).astype(float)
    return np.bincount(codes[side], right[side], n).astype(float), count


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
    """One row per run and map; `MAPS_TABLE`."""
    rows = [row for run, layout in runs for row in _map_rows(run, layout)]
    return MAPS_TABLE.frame(rows).astype({"passed": "boolean"})


def _map_rows(run: Run, layout: RunLayout) -> Iterator[dict[str, Any]]:
    scores = _read(layout.evaluation / "evaluation.tsv", ("network", "severity"), ("real", "all"))
    verdicts = _read(layout.evaluation / "verdicts.tsv", (), ())
    planted = _read(layout.statistics("planted_recovery"), ("metric", "outcome"), ("density", "TP"))
    for name in run.values.maps:
        row: dict[str, Any] = {"run": run.name, "architecture": run.config.model.architecture, "map": name}
        own = scores[scores["map"] == name] if len(scores) else scores
        if len(own):  # planted copies know the truth of each scan
            best = own.sort_values("cohort", key=lambda column: column != "planted").iloc[0]
            names = {"hits": "hits_difference", "auroc": "auroc_difference", "auroc_mean": "auroc_mean"}
            names |= {one: one for one in ("n_planted", "pointing", "seconds")}
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
    found = read_table(path)
    for column, value in zip(columns, values, strict=True):
        found = found[found[column] == value]
    return found


def region_table(runs: Sequence[Run], scans: Sequence[str]) -> pd.DataFrame:
    """Agreement of every map with every map of another run; `MAP_AGREEMENT_TABLE`."""
    explained = set(scans).intersection(*(run.values.scans["scan_id"] for run in runs))
    rows = []
    for a, b in combinations(runs, 2):
        groups = [name for name in a.values.groups if name in b.values.groups]
        means, people = zip(*(_means(run, explained, groups) for run in (a, b)), strict=True)
        for place_a, map_a in enumerate(a.values.maps):
            for place_b, map_b in enumerate(b.values.maps):
                pair = np.stack([means[0][place_a], means[1][place_b]])
                pair = pair[:, ~np.isnan(pair).any(axis=0)]
                row = {"run_a": a.name, "map_a": map_a, "run_b": b.name, "map_b": map_b, "n_regions": pair.shape[1]}
                rows.append(row | {"n_participants": people[0], **_correlation(pair)})
    return MAP_AGREEMENT_TABLE.frame(rows)


def _means(run: Run, explained: set[str], groups: Sequence[str]) -> tuple[Floats, int]:
    """Mean densities (maps, groups) over participants of the positive class, and how many they are."""
    values = run.values
    chosen = (values.scans["target"].to_numpy(float) == 1) & values.scans["scan_id"].isin(explained).to_numpy(bool)
    means = mean_over_people(values, "density", chosen)
    places = [values.groups.index(name) for name in groups]
    return means[:, places], values.scans["participant_id"][chosen].nunique()


def _correlation(pair: Floats) -> dict[str, Any]:
    if pair.shape[1] < 3:
        return {"note": "fewer than three regions in common"}
    if (np.ptp(pair, axis=1) == 0).any():
        return {"note": "a map has the same value in every region"}
    return {"spearman": float(stats.spearmanr(*pair).statistic)}
