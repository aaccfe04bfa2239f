"""What it changes to explain people by some networks of a run in place of all, and what either costs.

    python benchmarks/applied_networks.py RUN OTHER --people 20

RUN: finished, of several folds. OTHER: a finished run with the same grid; its people whom RUN did not train with are
explained. Prints, for each map, the rank correlation over regions between `heatlas apply` and the same with
``--networks all``, and the processor time of either and of the networks of one fold, as in a run.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from harness import arguments_of
from scipy.stats import spearmanr

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.templates import configured_grid
from heatlas.pipeline.cohort.people.splits import PARTS, Split
from heatlas.pipeline.cohort.records import ScanTable
from heatlas.pipeline.explaining.controls import controls_of
from heatlas.pipeline.explaining.explained_scan import ScanToExplain, explained_scan
from heatlas.pipeline.explaining.networks import Network
from heatlas.pipeline.explaining.scan_jobs import explanations_of_run
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.regions.region_sums import device_labels, device_region_sums
from heatlas.pipeline.run.layout.folder import read_run_config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.host import kept_memory

WAYS = ("applied", "all networks", "one fold")


def main() -> None:
    asked = arguments_of(__doc__, "run other", other={"type": Path}, people=20)
    torch.set_num_threads(1)
    run, other = RunLayout(asked.run.resolve()), RunLayout(asked.other.resolve())
    config, split = read_run_config(run), Split.read(run)
    mm = config.registration.resolution_mm
    known = {person for fold in split.folds for part in PARTS for person in getattr(fold, part)}
    scans = sorted(
        (scan for scan in ScanTable.read(other).kept if scan.participant_id not in known), key=lambda scan: scan.scan_id
    )
    scans = scans[:: max(1, len(scans) // asked.people)][: asked.people]
    pool = controls_of([scan for scan in ScanTable.read(run).kept if scan.label is not None], split, config)
    digests = DigestCache(run.digests)
    networks = []
    for fold in split.folds:
        files, controls = run.fold(fold.index), pool.references(fold.index, scans[0], run, mm, digests)
        networks.append(Network(fold.index, files, digests.digest(files.weights), controls))
    atlas = PackedAtlas.of(load_atlas(config.regions.atlas, configured_grid(config.registration)))
    whole = explanations_of_run(config)
    saved = explanations_of_run(replace(config, training=replace(config.training, networks_of=str(run.root))))
    rows = []
    for scan in scans:
        sums, seconds = {}, {}
        of_scan = other.scan(scan.participant_id, scan.session_id, mm)
        ways = ((saved, networks), (whole, networks), (whole, networks[:1]))
        for way, (explanations, of_way) in zip(WAYS, ways, strict=True):
            task = ScanToExplain(scan, explanations, tuple(of_way), of_scan, atlas, config.training)
            began = time.process_time()
            with kept_memory():  # as workers do
                explained = explained_scan(task)
            seconds[way] = time.process_time() - began
            labels = device_labels(atlas.labels, explained.loaded.input.box, torch.device("cpu"))
            sums[way] = device_region_sums(torch.stack([*explained.maps.values()]), labels).numpy()[:, 1:]
        pairs = zip(explained.maps, sums["applied"], sums["all networks"], strict=True)
        rank = {name: float(spearmanr(ours, theirs)[0]) for name, ours, theirs in pairs}
        rows.append({"person": scan.participant_id, **rank, **{f"s, {way}": seconds[way] for way in WAYS}})
        print(pd.Series(rows[-1]).to_string(), flush=True)
    table = pd.DataFrame(rows).set_index("person")
    print(pd.DataFrame({"median": table.median(), "lowest": table.min(), "highest": table.max()}).round(3).to_string())
    cost = table["s, applied"] / table["s, one fold"]
    print(f"applied / one fold: median {np.median(cost):.2f}, highest {cost.max():.2f}")


if __name__ == "__main__":
    main()
