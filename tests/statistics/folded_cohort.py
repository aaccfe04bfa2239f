"""A cohort in folds with sites, covariates, relevance and volumes, all of it planted, for tests of fold-wise models."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd

from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.statistics.data.inputs import AppliedScans, StatisticsInputs
from heatlas.pipeline.statistics.data.values import RelevanceValues

MAPS = ("lrpB050", "gb")
GROUPS = ("Amygdala", "Hippocampus", "Putamen", "Precuneus", "Lateral ventricle", "Thalamus")
QUICK = {"permutations": 199, "bootstrap_samples": 200, "normative": {"resamples": 20, "max_subtypes": 3}}


def quick_config(**statistics) -> Config:
    merged = dict(QUICK)
    for name, value in statistics.items():
        merged[name] = (QUICK.get(name, {}) | value) if isinstance(value, dict) else value
    return load_config(overrides={"statistics": merged, "seed": 3})


def scans_of(n: int, n_sites: int = 3, seed: int = 0, second_scans: int = 4) -> list[Scan]:
    """Participants, AD and CN in turn over the sites, some with a second scan a year later."""
    rng = np.random.default_rng(seed)
    scans = []
    for i in range(n):
        age, sex, tiv = 60 + 25 * rng.uniform(), "FM"[rng.integers(2)], 1.4e6 + 1e5 * rng.normal()
        label, site = ("AD", "CN")[i % 2], f"{100 + (i // 2) % n_sites}"
        for visit in range(2 if i < second_scans else 1):
            scans.append(
                Scan(
                    f"sub-{i:03d}", f"ses-M{12 * visit:03d}", f"I{10 * i + visit}", None, label, label, age=age + visit,
                    sex=sex, site=site, field_strength=1.5, tiv_mm3=tiv, mmse=29.0 if label == "CN" else 20 + i % 7,
                )
            )  # fmt: skip
    return scans


def inputs_of(
    scans: list[Scan], densities: np.ndarray, volumes: np.ndarray | None, config: Config, n_folds: int = 3
) -> StatisticsInputs:
    """Inputs as the stage reads them; densities of shape (scans, maps, groups), volumes (scans, groups).

    Participant i is tested in fold i // 6 modulo the number of folds.
    """
    keys = [{"participant_id": s.participant_id, "session_id": s.session_id, "scan_id": s.scan_id} for s in scans]
    number = [int(s.participant_id[4:]) // 6 % n_folds for s in scans]
    predictions = pd.DataFrame(
        [
            {**key, "fold": k, "label": s.label, "target": int(s.label == "AD"), "probability": 0.5, "outcome": "TP"}
            for key, s, k in zip(keys, scans, number, strict=True)
        ]
    )
    values = values_of(scans, densities, predictions)
    people = {s.participant_id: k for s, k in zip(scans, number, strict=True)}
    folds = tuple(
        Fold(
            k,
            tuple(sorted(p for p, own in people.items() if own != k)),
            (),
            tuple(sorted(p for p, own in people.items() if own == k)),
        )
        for k in range(n_folds)
    )
    return StatisticsInputs(
        RunLayout(Path("/nowhere")), tuple(scans), predictions, values, no_clinical(), volume_table(scans, volumes),
        Split(folds), None, config,
    )  # fmt: skip


def values_of(scans: list[Scan], densities: np.ndarray, predictions: pd.DataFrame) -> RelevanceValues:
    rows = [
        {"scan_id": s.scan_id, "map": m, "group": g, "sum": d, "density": d, "gain": d}
        for s, of_scan in zip(scans, densities, strict=True)
        for m, of_map in zip(MAPS, of_scan, strict=True)
        for g, d in zip(GROUPS, of_map, strict=True)
    ]
    return RelevanceValues.of(pd.DataFrame(rows), predictions)


def volume_table(scans: list[Scan], volumes: np.ndarray | None) -> pd.DataFrame:
    """Each group as a left and a right region of half the volume."""
    columns = ["scan_id", "name", "hemisphere", "group", "volume_mm3"]
    if volumes is None:
        return pd.DataFrame(columns=columns)
    rows = [
        (s.scan_id, f"{side} {g}", side, g, v / 2)
        for s, own in zip(scans, volumes, strict=True)
        for g, v in zip(GROUPS, own, strict=True)
        for side in ("left", "right")
    ]
    return pd.DataFrame(rows, columns=columns)


def no_clinical() -> pd.DataFrame:
    return pd.DataFrame(index=pd.Index([], name="scan_id", dtype=object))


def with_applied(inputs: StatisticsInputs, scans: list[Scan], densities: np.ndarray) -> StatisticsInputs:
    """The same run with scans outside the contrast."""
    predictions = pd.DataFrame({"participant_id": [s.participant_id for s in scans]}).assign(
        session_id=[s.session_id for s in scans], scan_id=[s.scan_id for s in scans], probability=0.5
    )
    applied = AppliedScans(tuple(scans), predictions, values_of(scans, densities, predictions), no_clinical())
    return dataclasses.replace(inputs, applied=applied)
