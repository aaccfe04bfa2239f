"""Made-up people with MCI, seen by the networks and followed, and people of the contrast with several visits."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from made_up import FAST, predictions_of

from heatlas.pipeline.cohort.people.splits import Split
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.statistics.data.inputs import AppliedScans, StatisticsInputs
from heatlas.pipeline.statistics.data.values import RelevanceValues

MAPS = ("lrpB000", "gb")
GROUPS = ("Hippocampus", "Cuneus", "Empty")


def mci_people(n: int = 60, seed: int = 0, effect: float = 1.0) -> tuple[list[Scan], pd.DataFrame, np.ndarray]:
    """Scans, clinical table and risk of people with MCI; whoever has more risk converts sooner."""
    rng = np.random.default_rng(seed)
    risk = rng.normal(size=n)
    months = np.ceil(rng.exponential(30 * np.exp(-effect * risk)) / 6) * 6
    followed = rng.choice([24.0, 36.0, 48.0, 60.0], size=n)
    converted = months <= followed
    scans = [
        Scan(
            f"sub-M{i:03d}", "ses-M000", f"J{i}", None, "MCI", None, age=float(rng.integers(60, 88)),
            progression="pMCI" if converted[i] and months[i] <= 36 else "sMCI" if followed[i] >= 36 else "uMCI",
            sex="F" if i % 2 else "M", mmse=float(rng.integers(24, 30)), tiv_mm3=1.4e6,
            hippocampus_mm3=6500 - 300 * risk[i], hippocampus_source="made up",
        )
        for i in range(n)
    ]  # fmt: skip
    clinical = pd.DataFrame(
        dict(converted=converted.astype(float), months_to_conversion=np.where(converted, months, np.nan))
        | dict(months_followed=followed, years_since_first_scan=0.0),
        index=pd.Index([scan.scan_id for scan in scans], name="scan_id"),
    )
    return scans, clinical, risk


def relevance_table(scans: Sequence[Scan], hippocampus: np.ndarray, seed: int = 1) -> pd.DataFrame:
    """Relevance that follows what is given in the hippocampus, and nothing elsewhere."""
    rng = np.random.default_rng(seed)
    rows = []
    for scan, value in zip(scans, hippocampus, strict=True):
        for name in MAPS:
            for group, own in zip(GROUPS, (5 + value, 3 + rng.normal(), 0.0), strict=True):
                sums = own if group != "Empty" else 0.0
                density = own / 10 if group != "Empty" else np.nan
                rows.append([scan.scan_id, name, group, sums, density, np.nan])
    return pd.DataFrame(rows, columns=["scan_id", "map", "group", "sum", "density", "gain"])


def applied_to(
    scans: Sequence[Scan], clinical: pd.DataFrame, logit: np.ndarray, hippocampus: np.ndarray
) -> AppliedScans:
    predictions = dict(participant_id=[s.participant_id for s in scans], session_id=[s.session_id for s in scans])
    predictions |= dict(scan_id=[s.scan_id for s in scans], logit_negative=-logit / 2, logit_positive=logit / 2)
    predictions = pd.DataFrame(predictions | dict(probability=1 / (1 + np.exp(-logit))))
    values = RelevanceValues.of(relevance_table(scans, hippocampus), predictions, "predictions_applied.tsv")
    return AppliedScans(tuple(scans), predictions, values, clinical)


def inputs_of(
    folder: Path,
    scans: Sequence[Scan],
    hippocampus: np.ndarray,
    clinical: pd.DataFrame | None = None,
    applied: AppliedScans | None = None,
    config: Config = FAST,
    predictions: pd.DataFrame | None = None,
) -> StatisticsInputs:
    made = predictions_of(scans) if predictions is None else predictions
    values = RelevanceValues.of(relevance_table(scans, hippocampus), made)
    empty = pd.DataFrame(index=pd.Index([], name="scan_id", dtype=object))
    return StatisticsInputs(
        RunLayout(folder), tuple(scans), made, values, empty if clinical is None else clinical, pd.DataFrame(),
        Split(()), applied, config,
    )  # fmt: skip


def with_settings(**changes) -> Config:
    """The fast configuration with other statistics settings."""
    return dataclasses.replace(FAST, statistics=dataclasses.replace(FAST.statistics, **changes))
