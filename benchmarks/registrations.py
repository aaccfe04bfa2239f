"""Registrations on the cores of one machine: one run with a worker for each core against one core's rate for each.

    python benchmarks/registrations.py COHORT --output docs/benchmarks/growth.md    # five minutes

COHORT is that of `heatlas demo`. Scans are registered as in the demo (2 mm), one thread each: by one run with one
worker, by one run with a worker for each core, and by as many runs at once as there are cores, with one worker each,
which share nothing but memory and disk. Seconds of the clock from the first scan to the last, by the receipts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sections import arguments_of, show, table

from heatlas.pipeline.run.layout.run_layout import RunLayout

WORKFLOW = Path(__file__).parents[1] / "workflows" / "adni.py"


def started(cohort: Path, out: Path, people: Sequence[str], workers: int) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, str(WORKFLOW), "run", str(cohort), str(out), "--preset", "demo", "--stop-after", "registration",
        "--n-procs", str(workers), "--participant-label", *people,
    ]  # fmt: skip
    threads = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(WORKFLOW.parents[1])}
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


def main() -> None:
    people = ("--people", {"type": int, "default": 6, "help": "for each core"})
    given = arguments_of(__doc__, "cohort", people, "--output")
    cores = len(os.sched_getaffinity(0))
    names = [f"ADNI{path.name.replace('_', '')}" for path in sorted((given.cohort / "ADNI").glob("*_S_*"))]
    groups = [names[place::cores][: given.people] for place in range(cores)]
    together = [name for group in groups for name in group]
    with tempfile.TemporaryDirectory() as folder:
        one = rate(given.cohort, Path(folder), groups[:1], 1)
        alone = rate(given.cohort, Path(folder), groups, 1)
        own = rate(given.cohort, Path(folder), [together], cores)
    rows = [
        ["one run, one worker", f"{60 * one:.1f}", "", ""],
        [f"{cores} runs at once, one worker each", f"{60 * alone:.1f}", f"{alone / one / cores:.2f}", ""],
        [f"one run, {cores} workers", f"{60 * own:.1f}", f"{own / one / cores:.2f}", f"{own / alone:.2f}"],
    ]
    columns = ["registrations", "scans per minute", f"/ {cores} × one worker", "/ runs at once"]
    body = "\n".join(table(columns, rows, "---:"))
    show(body, given.output, "Registrations on the cores of one machine", "Growth")


if __name__ == "__main__":
    main()
