"""Measure one engine in this process and write what was found; started by `lrp_speed.py`, once per engine.

Each engine first explains a small volume, so that loading of libraries and compiling count neither as time nor as
memory. Time on CPU is process CPU time (all threads) and wall time of each repeat. Memory on CPU is the kernel's
high-water mark of resident memory over all repeats, less what the process held with model and volume loaded; nothing is
sampled, so no peak falls between two samples. On a GPU time comes from events around each repeat, after one run that is
not counted, and memory from the allocator's own peak, less what was allocated before.
"""

from __future__ import annotations

import gc
import json
import platform
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from lrp_engines import ENGINES, WARM_UP_GRID, Answer, Engine, seeded_network
from sections import arguments_of


def main() -> None:
    number = {"type": int, "required": True}
    options = arguments_of(
        __doc__,
        ("engine", {"choices": ENGINES}),
        ("folder", {"type": Path, "help": "holds volume.npy; results go here"}),
        ("--threads", number),
        ("--repeats", number),
        ("--seed", number),
        ("--device", {"required": True}),
        ("--tf32", {"action": "store_true"}),
    )
    torch.set_num_threads(options.threads)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = options.tf32
    volume = torch.from_numpy(np.load(options.folder / "volume.npy"))
    model = seeded_network(volume, options.seed).to(options.device)
    volume = volume.to(options.device)
    engine = ENGINES[options.engine]
    warm_up(engine, options.device)
    measure = on_gpu if volume.is_cuda else on_cpu
    found, answer = measure(lambda: engine.explain(model, volume, engine.betas), options.repeats)
    found["engine"] = options.engine
    if answer is not None:
        found["unexplained"] = max(answer.unexplained.values())
        for beta, values in answer.maps.items():
            np.save(options.folder / f"{options.engine}_{beta:g}.npy", values.cpu().numpy())
    (options.folder / f"{options.engine}.json").write_text(json.dumps(found))


def warm_up(engine: Engine, device: str) -> None:
    volume = torch.rand(1, 1, *WARM_UP_GRID)
    model = seeded_network(volume, seed=0).to(device)
    engine.explain(model, volume.to(device), engine.betas)


def on_cpu(run: Callable[[], Answer | None], repeats: int) -> tuple[dict, Answer | None]:
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


def on_gpu(run: Callable[[], Answer | None], repeats: int) -> tuple[dict, Answer | None]:
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
    with suppress(OSError):
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
    """Bytes resident now."""
    return status("VmRSS") or peak_resident()


def peak_resident() -> int:
    """Highest number of bytes resident since `forget_peak`, or since the start where that is not possible."""
    unit = 1 if platform.system() == "Darwin" else 1024
    return status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    main()
