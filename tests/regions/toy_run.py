"""A small atlas on an odd grid, and a run folder with maps on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
import torch

from heatlas.atlases.labels import Atlas
from heatlas.atlases.regions import Region, RegionTable
from heatlas.atlases.spaces import Grid
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.regions.audit import write_audit_table
from heatlas.pipeline.regions.packed_atlas import PackedAtlas, write_region_table
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.layout.run_layout import RunLayout

# PSR: first axis to posterior, second to superior, third to right; unequal sides and spacings.
PSR = np.array([[0, 0, 2.0, -8], [-1.5, 0, 0, 6], [0, 1.0, 0, -4], [0, 0, 0, 1]])
GRID = Grid((7, 9, 11), PSR)

REGIONS = RegionTable(
    (
        Region(4, "Third ventricle", "both", "n/a", "CSF", "Third ventricle"),
        Region(47, "Right hippocampus", "right", "limbic", "GM", "Hippocampus"),
        Region(48, "Left hippocampus", "left", "limbic", "GM", "Hippocampus"),
        Region(63, "Right vessel", "right", "n/a", "vessel", "Vessel"),  # no voxel on this grid
        Region(100, "Right cuneus", "right", "occipital", "GM", "Cuneus"),
        Region(101, "Left cuneus", "left", "occipital", "GM", "Cuneus"),
    )
)
MAPS = ("lrpB000", "lrpB100", "gb")
CONFIG: Config = load_config(overrides={"attribution": {"betas": [0.0, 1.0]}})


def toy_labels() -> np.ndarray:
    labels = np.zeros(GRID.shape, np.int32)
    labels[1:3, 2:5, 0:5] = 48
    labels[1:3, 2:5, 6:10] = 47
    labels[3:6, 2:4, 5] = 4
    labels[6, :, 7:] = 100
    labels[6, 1:, :4] = 101
    return labels


def toy_brain() -> np.ndarray:
    brain = np.zeros(GRID.shape, bool)
    brain[1:6, 1:8, 1:10] = True
    return brain


def toy_atlas() -> Atlas:
    return Atlas("toy", "Toy atlas", GRID, toy_labels(), REGIONS, "own work", "digest", (63,))


def scan(number: int, label: str, visit: int | None = 0) -> Scan:
    session = None if visit is None else f"ses-M{visit:03d}"
    return Scan(f"sub-{number:02d}", session, f"I{number}{visit or 0:02d}", None, label, label)


SCANS = (
    scan(1, "AD"), scan(1, "AD", 12), scan(2, "AD"), scan(3, "AD"), scan(4, "CN"), scan(4, "CN", 12), scan(5, "CN"),
    scan(6, "CN"),
)  # fmt: skip


def predictions() -> pd.DataFrame:
    """Two folds, each with both classes; participant 3 is missed, participant 6 is a false alarm."""
    rows = []
    for s in SCANS:
        target = int(s.label == "AD")
        called = target ^ (s.participant_id in ("sub-03", "sub-06"))
        rows.append(
            dict(participant_id=s.participant_id, session_id=s.session_id, scan_id=s.scan_id)
            | dict(fold=int(s.participant_id in ("sub-02", "sub-03", "sub-06")), target=target)
            | dict(probability=0.95 if called else 0.2)
            | dict(outcome=("T" if called == target else "F") + ("P" if called else "N"))
        )
    return pd.DataFrame(rows)


def toy_maps() -> dict[tuple[str, str], np.ndarray]:
    """Random float32 maps by scan name and map name; positive for beta 0 and for guided backpropagation."""
    rng = np.random.default_rng(8)
    maps = {}
    for s in SCANS:
        for name in MAPS:
            values = rng.normal(size=GRID.shape).astype(np.float32)
            maps[s.name, name] = values if name == "lrpB100" else np.abs(values)
    return maps


def write_toy_run(
    folder: Path, maps: Mapping[tuple[str, str], np.ndarray], scans: Sequence[Scan] = SCANS, atlas: Atlas | None = None
) -> RunLayout:
    """Maps and region tables as attribution leaves them; ``maps`` by participant, session and map name."""
    layout = RunLayout(folder)
    for s in scans:
        own = {name: maps[s.name, name] for name in MAPS}
        for name, values in own.items():
            path = map_path(layout, s, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            nib.save(nib.Nifti1Image(values, GRID.affine), path)
        write_toy_table(layout, s, own, atlas or toy_atlas())
    return layout


def write_toy_table(layout: RunLayout, s: Scan, maps: Mapping[str, np.ndarray], atlas: Atlas) -> None:
    files = layout.scan(s.participant_id, s.session_id, CONFIG.registration.resolution_mm)
    tensors = {name: torch.from_numpy(values) for name, values in maps.items()}
    packed = PackedAtlas.of(atlas)
    write_region_table(files.region_table, s, tensors, packed, GRID, None)
    brain = toy_brain()
    files.brain_mask.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(brain.astype(np.uint8), GRID.affine), files.brain_mask)
    volume = brain * np.linspace(0, 1, brain.size, dtype=np.float32).reshape(brain.shape)
    write_audit_table(files.audit_table, s, tensors, volume, files.brain_mask, packed, GRID, None)


def map_path(layout: RunLayout, s: Scan, name: str) -> Path:
    return layout.scan(s.participant_id, s.session_id, CONFIG.registration.resolution_mm).relevance_map(name)


class Inline:
    """An executor that works at once, in this process, and counts."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def submit(self, function, *arguments):
        future: Future = Future()
        self.done.append(arguments[1].unit)
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)
        return future
