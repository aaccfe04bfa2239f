"""Seconds and memory of calls; core-seconds of a command with all that it starts (two cores for a minute: two minutes).

python benchmarks/timed.py FILE COMMAND ...       # writes the seconds to FILE, ends as the command does
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
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


def on_cpu(run: Callable[[], Any], repeats: int) -> tuple[dict, Any]:
    """Seconds of the process (all threads) and of the clock by repeat, the peak of memory, and the answer.

    The peak is the kernel's high-water mark of resident memory over all repeats, less what was held before: nothing is
    sampled, so no peak falls between two samples.
    """
    cpu, wall, answer = [], [], None
    gc.collect()
    how = forget_peak()
    held = resident()
    for _ in range(repeats):
        answer = None
        started = time.process_time(), time.perf_counter()
        answer = run()
        cpu.append(time.process_time() - started[0])
        wall.append(time.perf_counter() - started[1])
    return {"time": cpu, "wall": wall, "peak": peak_resident() - held, "memory": how}, answer


def on_gpu(run: Callable[[], Any], repeats: int) -> tuple[dict, Any]:
    """As `on_cpu`, by events around each repeat and the allocator's own peak."""
    import torch

    answer = run()  # not counted: algorithms are chosen for this size
    answer = None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    device, wall = [], []
    for _ in range(repeats):
        answer = None
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        started = time.perf_counter()
        first.record()
        answer = run()
        last.record()
        torch.cuda.synchronize()
        wall.append(time.perf_counter() - started)
        device.append(first.elapsed_time(last) / 1000)
    peak = torch.cuda.max_memory_allocated() - held
    name = torch.cuda.get_device_name()
    return {"time": device, "wall": wall, "peak": peak, "memory": "allocator peak", "gpu": name}, answer


def status(key: str) -> int | None:
    """A figure of this process in bytes, from /proc (Linux)."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    return None


def forget_peak() -> str:
    """Set the high-water mark to what is held now, so that loading does not count; says how memory is measured."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return "ru_maxrss of the process (loading included)"
    return "VmHWM, reset after loading"


def resident() -> int:
    return status("VmRSS") or peak_resident()


def peak_resident() -> int:
    """Highest number of bytes resident since `forget_peak`, or since the start where that is not possible."""
    unit = 1 if platform.system() == "Darwin" else 1024
    return status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def added_peak(call: Callable[[], object]) -> int:
    """Bytes of the highest resident memory during a call beyond what was held before."""
    gc.collect()
    forget_peak()
    held = resident()
    call()
    return peak_resident() - held


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
