"""Seconds and memory of calls; core-seconds of a command with all that it starts (two cores for a minute: two minutes).

python benchmarks/timed.py FILE COMMAND ...       # writes the seconds to FILE, ends as the command does
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of Linux: orphans become children of this process."""


def in_turns(arms: Mapping[str, Callable[[], object]], turns: int) -> dict[str, list[float]]:
    """Seconds of the process of each arm by turn; whatever else a machine does meets all arms alike."""
    spent: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(turns):
        for name, call in arms.items():
            begin = time.process_time()
            call()
            spent[name].append(time.process_time() - begin)
    return spent


def on_cpu(run: Callable[[], Any], repeats: int) -> tuple[dict[str, Any], Any]:
    """Seconds of the process (all threads) and of the clock by repeat, the peak of memory, and the answer.

    The peak is the kernel's high-water mark of resident memory over all repeats, less what was held before: nothing is
    sampled, so no peak falls between two samples. Linux alone has it.
    """
    cpu, wall, answer = [], [], None
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the mark is what is held now, so that loading does not count
    held = _resident("VmRSS")
    for _ in range(repeats):
        answer = None
        started = time.process_time(), time.perf_counter()
        answer = run()
        cpu.append(time.process_time() - started[0])
        wall.append(time.perf_counter() - started[1])
    return {"time": cpu, "wall": wall, "peak": _resident("VmHWM") - held}, answer


def on_gpu(run: Callable[[], Any], repeats: int) -> tuple[dict[str, Any], Any]:
    """As `on_cpu`, by events around each repeat and the allocator's own peak."""
    import torch

    run()  # not counted: algorithms are chosen for this size
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held, device, answer = torch.cuda.memory_allocated(), [], None
    for _ in range(repeats):
        answer = None
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        answer = run()
        last.record()
        torch.cuda.synchronize()
        device.append(first.elapsed_time(last) / 1000)
    return {"time": device, "peak": torch.cuda.max_memory_allocated() - held}, answer


def _resident(key: str) -> int:
    """Bytes of this process, from /proc."""
    return 1024 * int(re.findall(rf"{key}:\s*(\d+)", Path("/proc/self/status").read_text())[0])


def added_peak(call: Callable[[], object]) -> int:
    """Bytes of the highest resident memory during a call beyond what was held before."""
    return on_cpu(call, 1)[0]["peak"]


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
