"""Time, memory and disk against the size of a study; the numbers of docs/benchmarks/growth.md.

    OMP_NUM_THREADS=1 python benchmarks/growth.py stages --output docs/benchmarks/growth.md
    OMP_NUM_THREADS=1 python benchmarks/growth.py heatmaps --output docs/benchmarks/growth.md     # a quarter of an hour
    python benchmarks/growth.py registrations --cohort COHORT --output docs/benchmarks/growth.md  # five minutes

stages         One stage at a time on synthetic units and scans; one process, one thread, CPU seconds, best of three.
               "Memory" is that of arrays and, for scans kept on disk, the resident memory that the process gained.
heatmaps       The stage against the bare LRP engine, for one β and five. The stage reads scans and networks, makes
               maps, adds them up over regions and people, and writes tables; the engine explains the same volumes
               (random values in the brain) with the same network (random weights), all in memory. Seconds of the clock,
               one worker and one thread each, arms in turns, best of `--repeats` after a first turn.
registrations  Of the cohort of `heatlas demo` at 2 mm, one thread each: by one run with one worker, by one with a
               worker for each core, and by as many runs at once as there are cores, which share nothing but memory and
               disk. Seconds of the clock from the first scan to the last, by the receipts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import torch
from harness import ROOT, arguments_of, show, table
from timed import best_of, in_turns
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
from heatlas.pipeline.models.kept_volumes import KeptVolumes
from heatlas.pipeline.models.storage import load_model, save_model
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.executors import open_executor
from heatlas.pipeline.run.work.host import kept_memory
from heatlas.pipeline.run.work.jobs import Job, run_jobs
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Resampling
from heatlas.pipeline.statistics.linear.design import design_of
from heatlas.pipeline.statistics.linear.freedman_lane import freedman_lane
from heatlas.pipeline.statistics.linear.permutations import Exchangeability

SHAPE = (49, 58, 49)
"""The template at 4 mm."""
CLASSES = ("CN", "AD")


def touch(outputs: dict[str, Path], number: int) -> None:
    outputs["table"].write_text(f"value\n{number}\n")


def rerun(units: int) -> list[str]:
    """First run of small units, and a second one that finds them done."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool:
        layout = RunLayout(Path(folder))
        jobs = [Job("s", f"u{n}", str(n), {"table": layout.root / f"{n}.tsv"}, touch, (n,)) for n in range(units)]
        first = best_of(lambda: run_jobs(layout, jobs, pool, ""), 1)
        again = best_of(lambda: run_jobs(layout, jobs, pool, ""))
    return [f"{units:,}", f"{first:.2f}", f"{again:.2f}", f"{1000 * again / units:.2f}"]


def kept(scans: int, batch: int = 4) -> list[str]:
    """An epoch over scans kept on disk: first, later, resident memory gained."""
    with tempfile.TemporaryDirectory() as folder:
        paths, one = tuple(Path(folder, f"{n}.npy") for n in range(scans)), np.ones((1, *SHAPE), np.float16)
        for path in paths:
            np.save(path, one)
        data = KeptVolumes(paths, (scans, 1, *SHAPE), torch.device("cpu"))
        order = torch.from_numpy(np.random.default_rng(0).permutation(scans))

        def epoch() -> None:
            for places in torch.split(order, batch):
                data[places].float()

        epoch_before = psutil.Process().memory_info().rss
        first = best_of(epoch, 1)
        gained = psutil.Process().memory_info().rss - epoch_before
        later, disk = best_of(epoch), sum(path.stat().st_size for path in paths) / 1e9
    per = [f"{1000 * seconds / scans:.2f}" for seconds in (first, later)]
    return [f"{scans:,}", *per, f"{max(gained, 0) / 1e6:.0f}", f"{disk:.2f}", f"{data.bytes / 1e9:.2f}"]


def permuted(people: int, regions: int, permutations: int) -> list[str]:
    rng = generator(0, "growth")
    frame = pd.DataFrame(rng.normal(size=(people, 4)), columns=["x", "a", "b", "c"])
    values, design = rng.normal(size=(people, regions)), design_of("x + a + b + c", "x", frame)
    free = Exchangeability.free(people)
    seconds = best_of(lambda: freedman_lane(values, design, free, Resampling(permutations, generator(0, "orders"))))
    return [f"{people:,}", f"{regions:,}", f"{permutations:,}", f"{seconds:.2f}"]


def overhead(seconds: float, cluster: str | None) -> list[str]:
    """Wall time of one sleeping unit beyond its sleep, after a first one that starts the worker."""
    with tempfile.TemporaryDirectory() as folder, open_executor(1, cluster, Path(folder, "parsl")) as executor:
        for asleep in (0.0, seconds):
            begin = time.monotonic()
            executor.submit(time.sleep, asleep).result()
            spent = time.monotonic() - begin
    name = f"Parsl, {cluster}" if cluster else "processes"
    return [name, f"{seconds:g}", f"{spent - seconds:.2f}", f"{100 * (spent / seconds - 1):.1f}"]


def stage_arm(layout: RunLayout, cohort: Cohort, config: Config, executor: Executor) -> Callable[[], None]:
    """The heatmaps of all scans as a run makes them, from nothing."""
    people = tuple(files.participant_id for files in cohort.files)
    scans = [Scan(person, None, person, None, label=CLASSES[0]) for person in people]
    predictions = pd.DataFrame({"scan_id": people, "participant_id": people})
    predictions = predictions.assign(label=CLASSES[0], predicted=CLASSES[0], outcome="TN")
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


def engine_arm(layout: RunLayout, cohort: Cohort, config: Config) -> Callable[[], None]:
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


def heatmaps_of(resolution: float, betas: int, scans: int, repeats: int) -> list[str]:
    """A row: what each arm takes per scan, the rate of the stage as share of the engine's, memory and disk."""
    with tempfile.TemporaryDirectory() as folder:
        layout = RunLayout(Path(folder))
        cohort = written(layout.root, scans, resolution)
        torch.manual_seed(0)
        network, nobody = build_network(NETWORK, cohort.spec.shape, 2).eval(), {"train": [], "validation": []}
        save_model(layout.fold(0), network, cohort.spec, CLASSES, {"participants": nobody})
        every = [n / max(betas - 1, 1) for n in range(betas)]
        attribution = {"methods": ["lrp"], "betas": every, "keep_maps": "group"}
        config = load_config(overrides={"registration": {"resolution_mm": resolution}, "attribution": attribution})
        with open_executor(1) as executor:
            arms = {"engine": engine_arm(layout, cohort, config), "stage": stage_arm(layout, cohort, config, executor)}
            spent = in_turns(arms, repeats + 1, time.monotonic)
            worker = max(one.memory_info().rss for one in psutil.Process().children(recursive=True))
        disk = sum(path.stat().st_size for path in layout.partial_sums.glob("*_sums.npz"))
    alone, whole = (min(arm[1:]) / scans for arm in spent.values())
    seconds = [f"{alone:.2f}", f"{whole:.2f}", f"{100 * alone / whole:.0f}"]
    return [f"{resolution:g}", f"{betas}", *seconds, f"{worker / 2**30:.1f}", f"{disk / 1e6:.0f}"]


def started(cohort: Path, out: Path, people: Sequence[str], workers: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(ROOT / "workflows" / "adni.py"), "run", str(cohort), str(out), "--preset", "demo"]
    command += ["--stop-after", "registration", "--n-procs", str(workers), "--participant-label", *people]
    threads = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env={**os.environ, **threads}, stdout=subprocess.DEVNULL)


def rate(cohort: Path, folder: Path, groups: Sequence[Sequence[str]], workers: int) -> float:
    """Scans per second of runs at once, one for each group of people."""
    outs = [folder / f"{workers}-{len(groups)}-{number}" for number in range(len(groups))]
    runs = [started(cohort, out, people, workers) for out, people in zip(outs, groups, strict=True)]
    if any(run.wait() for run in runs):
        raise SystemExit(f"a run failed; see {folder}")
    receipts = [path for out in outs for path in (RunLayout(out).logs / "receipts" / "registration").glob("*.json")]
    ends = [path.stat().st_mtime for path in receipts]
    begins = [end - json.loads(path.read_text())["seconds"] for path, end in zip(receipts, ends, strict=True)]
    return float(len(receipts) / (max(ends) - min(begins)))


def write(given: argparse.Namespace, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(title)
    show("\n".join(table(columns, rows, "---:")), given.output, title, "Growth")


def stages(given: argparse.Namespace) -> None:
    sizes = [size for size in (100, 1000, 10_000) if size <= given.most]
    columns = ["scans", "first epoch, ms per scan", "later", "memory gained, MB", "disk, GB", "all in memory, GB"]
    write(given, "Scans kept for training", columns, [kept(size) for size in sizes])
    columns = ["units", "first run, s", "again, s", "again, ms per unit"]
    write(given, "Units and their receipts", columns, [rerun(size) for size in sizes[:2]])
    permuted(50, 10, 10)  # numba compiles
    cases = ((400, 136, 1000), (4000, 136, 1000), (400, 1360, 1000), (400, 136, 10_000))
    columns = ["people", "regions", "permutations", "s"]
    write(given, "Permutations", columns, [permuted(*case) for case in cases])
    columns = ["executor", "unit, s", "beyond it, s", "%"]
    write(given, "One unit of 20 s", columns, [overhead(20.0, where) for where in (None, "local")])


def heatmaps(given: argparse.Namespace) -> None:
    columns = ["voxels, mm", "values of β", "engine, s per scan", "stage, s per scan", "rate, % of the engine's"]
    columns += ["memory of the worker, GiB", "sums on disk, MB"]
    rows = [heatmaps_of(mm, betas, given.scans, given.repeats) for mm in (2.0, 1.0) for betas in (1, 5)]
    write(given, "Heatmaps against the engine", columns, rows)


def registrations(given: argparse.Namespace) -> None:
    cores = len(os.sched_getaffinity(0))
    names = [f"ADNI{path.name.replace('_', '')}" for path in sorted((given.cohort / "ADNI").glob("*_S_*"))]
    groups = [names[place::cores][: given.people] for place in range(cores)]
    with tempfile.TemporaryDirectory() as folder:
        one = rate(given.cohort, Path(folder), groups[:1], 1)
        apart = rate(given.cohort, Path(folder), groups, 1)
        together = rate(given.cohort, Path(folder), [[name for group in groups for name in group]], cores)
    rows = [
        ["one run, one worker", f"{60 * one:.1f}", "", ""],
        [f"{cores} runs at once, one worker each", f"{60 * apart:.1f}", f"{apart / one / cores:.2f}", ""],
    ]
    shares = (f"{together / one / cores:.2f}", f"{together / apart:.2f}")
    rows.append([f"one run, {cores} workers", f"{60 * together:.1f}", *shares])
    columns = ["registrations", "scans per minute", f"/ {cores} × one worker", "/ runs at once"]
    write(given, "Registrations on the cores of one machine", columns, rows)


PARTS = {"stages": stages, "heatmaps": heatmaps, "registrations": registrations}


def main() -> None:
    given = arguments_of(
        __doc__,
        "part --repeats --cohort --output",
        part={"choices": PARTS},
        repeats=2,
        cohort={"type": Path},
        most=(10_000, "scans of stages"),
        scans=(8, "of heatmaps"),
        people=(6, "of registrations, for each core"),
    )
    torch.set_num_threads(1)
    PARTS[given.part](given)


if __name__ == "__main__":
    main()
