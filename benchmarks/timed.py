"""Seconds of calls; and core-seconds of a command with all that it starts: on two cores for a minute two minutes.

python benchmarks/timed.py FILE COMMAND ...       # writes the seconds to FILE, ends as the command does
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of Linux: orphans become children of this process."""


def cpu_seconds(call: Callable[[], object]) -> float:
    """CPU time that a call takes, of all threads of this process."""
    before = time.process_time()
    call()
    return time.process_time() - before


def best_of(call: Callable[[], object], turns: int = 3) -> float:
    """The least CPU time of some calls."""
    return min(cpu_seconds(call) for _ in range(turns))


def in_turns(
    arms: Mapping[str, Callable[[], object]], turns: int, clock: Callable[[], float] = time.process_time
) -> dict[str, list[float]]:
    """Seconds of each arm by turn; whatever else a machine does meets all arms alike."""
    spent: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(turns):
        for name, call in arms.items():
            begin = clock()
            call()
            spent[name].append(clock() - begin)
    return spent


def timed(words: Sequence[str], folder: Path) -> tuple[int, float]:
    """Run a command in a folder: its exit code, and seconds of all its processes."""
    with tempfile.TemporaryDirectory() as scratch:
        spent = Path(scratch) / "seconds"
        done = subprocess.run([sys.executable, __file__, str(spent), *words], cwd=folder, check=False)
        return done.returncode, float(spent.read_text(encoding="utf-8")) if spent.is_file() else 0.0


def main() -> int:
    file, *words = sys.argv[1:]
    if sys.platform == "linux":  # the server that workers are forked from outlives the command, and would not count
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    code = subprocess.run(words, check=False).returncode
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    Path(file).write_text(str(used.ru_utime + used.ru_stime), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
