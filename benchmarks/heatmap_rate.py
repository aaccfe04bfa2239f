"""Heatmaps of a run against the bare LRP engine: scans per second, for one β and for five.

    OMP_NUM_THREADS=1 python benchmarks/heatmap_rate.py --output docs/benchmarks/growth.md     # a quarter of an hour

The stage reads scans and networks, makes maps, sums them over regions and compartments, adds them up for mean maps, and
writes tables and receipts. The engine alone explains the same volumes, held in memory, with the same network in memory.
Scans are random values in the brain of the template, the network has random weights. The stage has one worker process,
as a run has; one thread each; seconds of the clock, arms in turns, best of `--repeats` after a first turn.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

import pandas as pd
import psutil
import torch
from sections import arguments_of, show, table
from timed import in_turns
from training_rate import NETWORK, Cohort, written

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.templates import configured_grid
from heatlas.pipeline.attribution.entry import RunContext
from heatlas.pipeline.attribution.methods import attribute_all
from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.explaining.scan_jobs import explanations_of_run
from heatlas.pipeline.explaining.stage import explain_scans
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.models.inputs import read_network_volume
from heatlas.pipeline.models.storage import load_model, save_model
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.executors import open_executor
from heatlas.pipeline.run.work.host import kept_memory

CLASSES = ("CN", "AD")
SIZES = ((2.0, 1), (2.0, 5), (1.0, 1), (1.0, 5))
"""Millimetres and values of β."""


def stage(layout: RunLayout, cohort: Cohort, config: Config, executor: Executor) -> Callable[[], None]:
    """The heatmaps of all scans as a run makes them, from nothing."""
    people = tuple(files.participant_id for files in cohort.files)
    scans = [Scan(person, None, person, None, label=CLASSES[0]) for person in people]
    predictions = pd.DataFrame({
        "scan_id": people, "participant_id": people, "label": [scan.label for scan in scans],
        "predicted": CLASSES[0], "outcome": "TN",
    })  # fmt: skip
    split = Split((Fold(0, (), (), people),))
    atlas = load_atlas(config.regions.atlas, configured_grid(config.registration))
    digests = DigestCache(layout.digests)

    def explain() -> None:
        for receipt in (layout.logs / "receipts").rglob("*.json"):
            receipt.unlink()
        work = Work(layout, layout.root, config, tuple(scans), split, executor, digests)
        outcomes = explain_scans(work, scans, predictions, atlas)
        assert all(one.status == "done" for one in outcomes), outcomes

    return explain


def engine(layout: RunLayout, cohort: Cohort, config: Config) -> Callable[[], None]:
    """The maps alone, of volumes in memory by a network in memory."""
    [asked] = explanations_of_run(config)
    atlas = PackedAtlas.of(load_atlas(config.regions.atlas, configured_grid(config.registration)))
    network = load_model(layout.fold(0))
    method = asked.build(RunContext(atlas, cohort.spec.box, None))
    volumes = [torch.from_numpy(read_network_volume(files, cohort.spec))[None, None] for files in cohort.files]

    @kept_memory()
    def explain() -> None:
        for volume in volumes:
            attribute_all(network.model, volume, network.classes.index(asked.target), method, 0, asked.start)

    return explain


def measured(resolution: float, betas: int, scans: int, repeats: int) -> list[str]:
    """A row: what each arm takes per scan, the rate of the stage as share of the engine's, memory and disk."""
    with tempfile.TemporaryDirectory() as folder:
        layout = RunLayout(Path(folder))
        cohort = written(layout.root, scans, resolution)
        torch.manual_seed(0)
        network, nobody = build_network(NETWORK, cohort.spec.shape, 2).eval(), {"train": [], "validation": []}
        save_model(layout.fold(0), network, cohort.spec, CLASSES, {"participants": nobody})
        config = load_config(overrides={
            "registration": {"resolution_mm": resolution},
            "attribution": {
                "methods": ["lrp"], "betas": [n / max(betas - 1, 1) for n in range(betas)], "keep_maps": "group",
            },
        })  # fmt: skip
        with open_executor(1) as executor:
            arms = {"engine": engine(layout, cohort, config), "stage": stage(layout, cohort, config, executor)}
            spent = in_turns(arms, repeats + 1, time.monotonic)
            worker = max(one.memory_info().rss for one in psutil.Process().children(recursive=True))
        disk = sum(path.stat().st_size for path in layout.partial_sums.glob("*_sums.npz"))
    alone, whole = (min(arm[1:]) / scans for arm in spent.values())
    return [
        f"{resolution:g}", f"{betas}", f"{alone:.2f}", f"{whole:.2f}", f"{100 * alone / whole:.0f}",
        f"{worker / 2**30:.1f}", f"{disk / 1e6:.0f}",
    ]  # fmt: skip


def main() -> None:
    given = arguments_of(__doc__, ("--scans", {"type": int, "default": 8}), "--repeats", "--output", repeats=2)
    torch.set_num_threads(1)
    columns = [
        "voxels, mm", "values of β", "engine, s per scan", "stage, s per scan", "rate, % of the engine's",
        "memory of the worker, GiB", "sums on disk, MB",
    ]  # fmt: skip
    body = table(columns, [measured(*size, given.scans, given.repeats) for size in SIZES], "---:")
    show("\n".join(body), given.output, "Heatmaps against the engine", "Growth")


if __name__ == "__main__":
    main()
