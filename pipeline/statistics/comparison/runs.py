"""Comparison of several runs of one cohort: accuracy (McNemar) and agreement of region rankings.

Runs may differ in seed, settings or model, or be control runs. They are compared on the scans that all of them
predicted with the same label; other scans are counted. The unit is the participant, correct if most of their scans are
correct, or with half correct, if the first session is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pandas as pd
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from heatlas.pipeline.cohort.people.persons import name_of_person
from heatlas.pipeline.run.columns import described
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Flags, Floats
from heatlas.pipeline.statistics.comparison.rankings import (
    METRICS,
    Rankings,
    agreement_table,
    mean_over_people,
    populations,
)
from heatlas.pipeline.statistics.data.inputs import renamed
from heatlas.pipeline.statistics.data.notes import joined
from heatlas.pipeline.statistics.data.values import RelevanceValues
from heatlas.pipeline.statistics.resampling.bootstrap import bootstrap_intervals

MIN_PARTICIPANTS = 2
"""Fewer shared participants are refused."""
ALIKE = "both are right and wrong about the same participants"


MCNEMAR_TABLE = Table(
    "mcnemar",
    {
        "run_a": "First run",
        "run_b": "Second run",
        "control_a": "Kind of control run of the first run; none for an ordinary run",
        "control_b": "The same for the second run",
        "n_participants": "Participants compared; correct if more than half of their scans are, or with half, if their "
        "first session is",
        "n_scans": "Scans predicted by every run",
        "n_only_a": "Scans of the first run that are not compared, since another run lacks them",
        "n_only_b": "The same for the second run",
        "both_right": "Participants correct in both runs",
        "only_a_right": "Participants correct only in the first run",
        "only_b_right": "Participants correct only in the second run",
        "both_wrong": "Participants wrong in both runs",
        "accuracy_a": "Share of participants correct in the first run",
        "accuracy_b": "Share of participants correct in the second run",
        "difference": "accuracy_a - accuracy_b",
        "ci_low": "Lower bound of the interval of difference over participants",
        **described("ci_high"),
        "interval": "Kind of bootstrap interval: BCa, percentile or none",
        "p": "Two-sided exact McNemar test (binomial, over the participants correct in only one of the runs)",
        "p_holm": "p adjusted over all pairs of runs (Holm)",
        "note": "Caveat",
    },
    "two runs", "Is one of two runs more often right?", stage="compare", file="mcnemar.tsv",
)  # fmt: skip


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
    """All pairs of runs; `MCNEMAR_TABLE`."""
    voted = {run.name: votes(run, scans) for run in runs}
    rows = [
        _pair(a, b, voted[a.name].to_numpy(bool), voted[b.name].to_numpy(bool), len(scans), seed)
        for a, b in combinations(runs, 2)
    ]
    table = MCNEMAR_TABLE.frame(rows)
    return table.assign(p_holm=multipletests(table["p"], method="holm")[1])


def _pair(a: Run, b: Run, right_a: Flags, right_b: Flags, n_scans: int, seed: int) -> dict[str, Any]:
    counts = [
        [int((right_a & right_b).sum()), int((right_a & ~right_b).sum())],
        [int((~right_a & right_b).sum()), int((~right_a & ~right_b).sum())],
    ]
    gain = right_a.astype(float) - right_b.astype(float)
    settings = a.config.statistics
    found = bootstrap_intervals(
        lambda weights: weights @ gain / weights.sum(axis=1),
        [0] * len(gain), settings.bootstrap_samples, settings.confidence, generator(seed, "compare", a.name, b.name),
    )  # fmt: skip
    (both, only_a), (only_b, neither) = counts
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
        **found.row(),
        "p": float(mcnemar(counts, exact=True).pvalue),
        "note": joined(too_few(len(gain)), found.notes[0] if only_a + only_b else ALIKE),
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
    return agreement_table(_rankings(runs, scans), runs[0].config.statistics, seed)


def _rankings(runs: Sequence[Run], scans: Sequence[str]) -> Iterator[Rankings]:
    first = runs[0].values
    explained = set(scans).intersection(*(run.values.scans["scan_id"] for run in runs))
    maps = [name for name in first.maps if all(name in run.values.maps for run in runs)]
    groups = [name for name in first.groups if all(name in run.values.groups for run in runs)]
    lost = len(set().union(*(run.values.groups for run in runs))) - len(groups)
    note = joined(atlases_note(runs), f"{counted(lost, 'region')} missing in a run left out" if lost else None)
    for population, chosen in populations(first.scans["target"].to_numpy(float)).items():
        rows = first.scans[chosen & first.scans["scan_id"].isin(explained).to_numpy(bool)]
        ids, people = set(rows["scan_id"]), rows["participant_id"].nunique()
        for metric in METRICS:
            for map_name in maps:
                means = {run.name: _means(run.values, ids, metric, map_name, groups) for run in runs}
                yield Rankings("runs", map_name, metric, population, means, people, len(rows), note)


def _means(values: RelevanceValues, ids: set[str], metric: str, map_name: str, groups: Sequence[str]) -> Floats:
    """Mean of each group over the participants of the scans named."""
    means = mean_over_people(values, metric, values.scans["scan_id"].isin(ids).to_numpy(bool))
    chosen: Floats = means[values.maps.index(map_name), [values.groups.index(name) for name in groups]]
    return chosen
