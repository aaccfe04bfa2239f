"""Memory of the command and of Parsl's interchange while many units of work wait for a cluster.

``python benchmarks/cluster_memory.py`` queues units whose arguments take 0.6 MB each, with one local worker that
sleeps, and prints the largest resident memory of both processes; ``--at-once`` hands all units to Parsl, arguments
included, instead of few at a time (`pipeline.run.work.cluster`).
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import psutil
from sections import arguments_of, line, table

from heatlas.pipeline.run.work import cluster
from heatlas.pipeline.run.work.executors import open_executor

BYTES = 600_000


def pause(seconds: float, argument: tuple[int, bytes]) -> None:
    time.sleep(seconds)


def measured(units: int, seconds: float) -> tuple[float, float]:
    """Largest memory of this process beyond that at the start, and of the interchange, in MB."""
    argument = os.urandom(BYTES)
    most = [0.0, 0.0]
    with tempfile.TemporaryDirectory() as folder, open_executor(1, "local", Path(folder, "parsl")) as executor:
        before = psutil.Process().memory_info().rss
        futures = [executor.submit(pause, 0.2, (n, argument)) for n in range(units)]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            others = [child for child in psutil.Process().children() if "interchange" in " ".join(child.cmdline())]
            now = psutil.Process().memory_info().rss - before, sum(child.memory_info().rss for child in others)
            most = [max(pair) for pair in zip(most, now, strict=True)]
            time.sleep(0.5)
        for future in futures:
            future.cancel()
    return most[0] / 1e6, most[1] / 1e6


def main() -> None:
    at_once = {"action": "store_true", "help": "hand all units to Parsl at once, with their arguments"}
    arguments = arguments_of(
        __doc__,
        ("--units", {"type": int, "nargs": "+", "default": [100, 1000, 10_000]}),
        ("--seconds", {"type": float, "default": 20.0}),
        ("--at-once", at_once),
    )
    if arguments.at_once:
        cluster.SMALLEST_WINDOW, cluster.LARGE_BYTES = 10**9, 10**9
    print(*table(["units waiting", "command, MB more", "interchange, MB"], rule="---:"), sep="\n")
    for units in arguments.units:
        command, interchange = measured(units, arguments.seconds)
        print(line(units, f"{command:.0f}", f"{interchange:.0f}"), flush=True)


if __name__ == "__main__":
    main()
