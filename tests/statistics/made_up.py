"""Small made-up runs for the tests of statistics."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from heatlas.pipeline.cohort.people.splits import Split
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import write_table
from heatlas.pipeline.statistics.data.inputs import VOLUME_COLUMNS, AppliedScans, StatisticsInputs
from heatlas.pipeline.statistics.data.values import RelevanceValues

MAPS = ("lrpB000", "lrpB100", "gb")
GROUPS = ("Third ventricle", "Amygdala", "Hippocampus", "Lateral ventricle")

FAST = load_config(overrides={"statistics": {"permutations": 199, "bootstrap_samples": 200}, "seed": 3})


def fast(**changes) -> Config:
    return dataclasses.replace(FAST, **changes)


def people(per_class: int = 8, scans_each: Sequence[int] = (1, 2, 3)) -> list[Scan]:
    """Patients and controls in turn, with one to three scans each."""
    scans = []
    for i in range(2 * per_class):
        label = "AD" if i % 2 else "CN"
        for visit in range(scans_each[i // 2 % len(scans_each)]):
            volume = 6000.0 + 150 * i + 10 * visit - (1500 if label == "AD" else 0)
            scans.append(
                Scan(
                    f"sub-{i:03d}", f"ses-M{12 * visit:03d}", f"I{100 * i + visit}", None, label, label,
                    age=60.0 + i + visit, sex="F" if i % 3 else "M", mmse=None if i == 0 else 29.0 - 4 * (i % 2),
                    tiv_mm3=1.4e6 + 1e4 * (i % 5), hippocampus_mm3=volume, hippocampus_source="made up",
                )
            )  # fmt: skip
    return scans


def predictions_of(scans: Sequence[Scan], wrong: Sequence[str] = ("sub-003", "sub-004")) -> pd.DataFrame:
    """Predictions that err for the named participants."""
    rows = []
    for i, scan in enumerate(scans):
        target = int(scan.label == "AD")
        called = target ^ (scan.participant_id in wrong)
        rows.append(
            dict(participant_id=scan.participant_id, session_id=scan.session_id, scan_id=scan.scan_id)
            | dict(fold=int(scan.participant_id[-1]) // 2 % 2, label=scan.label, target=target)
            | dict(probability=0.6 + 0.003 * i if called else 0.4 - 0.003 * i)
            | dict(outcome=("T" if called == target else "F") + ("P" if called else "N"))
        )
    return pd.DataFrame(rows)


def relevance_of(scans: Sequence[Scan], seed: int = 0, effect: float = 2.0) -> pd.DataFrame:
    """Relevance with a planted effect: more for patients and for small hippocampi, in the hippocampus only."""
    rng = np.random.default_rng(seed)
    rows = []
    for scan in scans:
        for name in MAPS:
            for k, group in enumerate(GROUPS):
                n_voxels = 10 * (k + 1)
                value = 5 + rng.normal(0, 0.3)
                if group == "Hippocampus":
                    value += effect * (scan.label == "AD") - 1e-3 * effect * ((scan.hippocampus_mm3 or 6000) - 6000)
                rows.append(
                    dict(participant_id=scan.participant_id, session_id=scan.session_id, scan_id=scan.scan_id, map=name)
                    | dict(group=group, n_voxels=n_voxels, sum=value, density=value / n_voxels, reference_sum=5.0)
                    | dict(gain=value / 5)
                )
    return pd.DataFrame(rows)


def made_up_run(folder: Path, scans: Sequence[Scan], relevance: pd.DataFrame) -> RunLayout:
    layout = RunLayout(folder)
    write_table(layout.group / "relevance_bilateral.tsv", relevance)
    return layout


def inputs_of(
    scans: Sequence[Scan],
    config: Config | None = None,
    *,
    relevance: pd.DataFrame | None = None,
    predictions: pd.DataFrame | None = None,
    clinical: pd.DataFrame | None = None,
    volumes: pd.DataFrame | None = None,
    applied: AppliedScans | None = None,
) -> StatisticsInputs:
    """Inputs of the analyses without a run folder."""
    predictions = predictions_of(scans) if predictions is None else predictions
    relevance = relevance_of(scans) if relevance is None else relevance
    return StatisticsInputs(
        layout=RunLayout(Path("nowhere")),
        scans=tuple(scans),
        predictions=predictions,
        values=RelevanceValues.of(relevance, predictions),
        clinical=pd.DataFrame(index=pd.Index([], name="scan_id")) if clinical is None else clinical,
        volumes=pd.DataFrame(columns=list(VOLUME_COLUMNS)) if volumes is None else volumes,
        split=Split(()),
        applied=applied,
        config=config or FAST,
    )


def of_one_spread(values: np.ndarray, fold: np.ndarray, kinds: Sequence[str] | None = None) -> np.ndarray:
    """Values (people,) or (people, columns) in one spread, columns of a kind by the median factor.

    The factor of a fold is the root of the pooled variance over that of the fold and of four more people.
    """
    columns = pd.DataFrame(np.asarray(values, float).reshape(len(values), -1))
    groups = columns.groupby(np.asarray(fold))
    variance, freedom = groups.var().fillna(0.0), groups.size() - 1
    pooled = variance.mul(freedom, axis=0).sum() / freedom.sum()
    mixed = (variance.mul(freedom, axis=0) + 4 * pooled).div(freedom + 4, axis=0)
    logs = np.log(pooled / mixed) / 2
    factors = logs.T.groupby(["" for _ in logs] if kinds is None else list(kinds)).transform("median").T
    scaled = columns * np.exp(factors.loc[np.asarray(fold)].to_numpy())
    return np.asarray(scaled).reshape(np.shape(values))


def means_in_one_spread(inputs: StatisticsInputs, values: np.ndarray, people: Sequence[str]) -> pd.DataFrame:
    """Participants' means (people, groups) of a map's values (scans, groups), folds brought to one spread."""
    frame = pd.DataFrame(values, columns=list(GROUPS)).groupby(inputs.frame["participant_id"].to_numpy()).mean()
    fold = inputs.frame.groupby("participant_id")["fold"].first()
    frame = frame.loc[list(people)]
    return pd.DataFrame(of_one_spread(frame, fold[frame.index]), frame.index, frame.columns)


def settings(**changes) -> Config:
    """Few permutations, and the given settings of the statistics."""
    base = {"permutations": 199, "bootstrap_samples": 200}
    return load_config(overrides={"statistics": base | changes, "seed": 3})
