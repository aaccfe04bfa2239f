"""Time, memory and disk against the size of a study, one stage at a time; writes docs/benchmarks/growth.md's numbers.

``OMP_NUM_THREADS=1 python benchmarks/growth.py --output docs/benchmarks/growth.md``. Units and scans are synthetic, one
process, one thread; CPU seconds, best of three, in one run. "Memory" is that of arrays and, for scans kept on disk, the
resident memory that the process gained.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import torch
from sections import arguments_of, show, table
from timed import best_of

from heatlas.pipeline.models.kept_volumes import KeptVolumes
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.executors import open_executor
from heatlas.pipeline.run.work.jobs import Job, run_jobs
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Resampling
from heatlas.pipeline.statistics.linear.design import design_of
from heatlas.pipeline.statistics.linear.freedman_lane import freedman_lane
from heatlas.pipeline.statistics.linear.permutations import Exchangeability

SHAPE = (49, 58, 49)
"""The template at 4 mm."""


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


def main() -> None:
    given = arguments_of(__doc__, ("--most", {"type": int, "default": 10_000, "help": "scans"}), "--output")
    torch.set_num_threads(1)
    sizes = [size for size in (100, 1000, 10_000) if size <= given.most]
    permuted(50, 10, 10)  # numba compiles
    sections: dict[str, tuple[list[str], Callable[..., list[str]], list[tuple[Any, ...]]]] = {
        "Scans kept for training": (
            ["scans", "first epoch, ms per scan", "later", "memory gained, MB", "disk, GB", "all in memory, GB"],
            kept, [(size,) for size in sizes],
        ),
        "Units and their receipts": (
            ["units", "first run, s", "again, s", "again, ms per unit"], rerun, [(size,) for size in sizes[:2]],
        ),
        "Permutations": (
            ["people", "regions", "permutations", "s"], permuted,
            [(400, 136, 1000), (4000, 136, 1000), (400, 1360, 1000), (400, 136, 10_000)],
        ),
        "One unit of 20 s": (
            ["executor", "unit, s", "beyond it, s", "%"], overhead, [(20.0, None), (20.0, "local")],
        ),
    }  # fmt: skip
    for title, (columns, measure, sizes_of) in sections.items():
        print(title)
        rows = [measure(*size) for size in sizes_of]
        show("\n".join(table(columns, rows, "---:")), given.output, title, "Growth")


if __name__ == "__main__":
    main()
