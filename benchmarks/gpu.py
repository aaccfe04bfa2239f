"""What a GPU gives beside the CPU, how long it takes, and how much memory: the page docs/benchmarks/gpu.md.

    python benchmarks/gpu.py --output docs/benchmarks/gpu.md            # on a GPU, ten minutes at most
    python benchmarks/gpu.py --device cpu --small --output /tmp/gpu.md  # tries the script itself; two minutes

Parts are those of `TITLES`; the last one, from scans to report, needs ``HEATLAS_TEST_DATA``, the folder of test data.
Beside the page, a JSON of the same name holds all numbers. The exit code is 1 if maps are further apart than the
tolerance. Parts that would begin after ``--seconds`` are left out, and the page says so.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the small networks of the tests

import torch
from harness import arguments_of, table
from lrp_speed import ENGINES, YARDSTICK, brain_volume, seeded_network
from timed import on_cpu, on_gpu
from training_rate import CPU, resident, written
from training_rate import heatlas as by_trainer

from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.attribution.registry import METHODS
from heatlas.pipeline.models.families.registry import BUILT, FAMILIES
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.training.volumes import load_volumes
from heatlas.workflows.estimates import measured_step
from tests.attribution.every_method import built, example_for, trained

TOLERANCE = 1e-3
"""Largest difference of a map, relative to its largest value: float32 without TF32, sums in another order."""
EVIDENCE = ("expected-gradients", "integrated-gradients-from-mean", "deeplift")
Rows = list[dict[str, Any]]
NOT_YET = (
    "**Not yet run on a GPU: there are no CUDA figures.** What follows tried the script on a CPU against itself, at a "
    "reduced size, and says nothing about a GPU."
)


def waited(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def seconds_of(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Seconds of the clock, the best of several after a first one."""
    spent = []
    for _ in range(repeats + 1):
        waited(device)
        begin = time.perf_counter()
        run()
        waited(device)
        spent.append(time.perf_counter() - begin)
    return min(spent[1:])


def apart(family: str, method: str, device: torch.device) -> dict[str, Any]:
    """Largest difference of the maps of both devices, relative to the largest value."""
    model, volume = trained(family)
    stage = METHODS[method].stage_of(model)
    there = copy.deepcopy(model).to(device)
    here = attribute(model, volume, 1, built(method, family, volume, CPU), stage).values
    found = attribute(there, volume.to(device), 1, built(method, family, volume, device), stage).values.cpu()
    return {"family": family, "method": method, "difference": float((found - here).abs().max() / here.abs().max())}


def agreement(device: torch.device, options: argparse.Namespace) -> Rows:
    pairs = [(family, "lrp" if "lrp" not in FAMILIES[family].refused else "gradient") for family in BUILT]
    pairs += [(example_for(method), method) for method in METHODS]
    return [apart(family, method, device) for family, method in dict.fromkeys(pairs[:: 12 if options.small else 1])]


def training(device: torch.device, options: argparse.Namespace) -> Rows:
    """Seconds of a step, of the trainer from registered scans and of a resident batch."""
    size, scans, resolution = (2, 4, 2.0) if options.small else (4, 16, 1.0)
    with tempfile.TemporaryDirectory() as folder:
        cohort = written(Path(folder), scans, resolution)
        data = load_volumes(
            cohort.files, cohort.targets, cohort.spec, Path(folder, "kept"), device, os.cpu_count() or 1
        )
        arms = {"one resident batch": resident(cohort, data, size), "Heatlas": by_trainer(cohort, data, size)}
        steps = scans // size
        held = isinstance(data.volumes, torch.Tensor)
        known = {"resolution": resolution, "batch": size, "in_memory": held}
        return [{"arm": name, **known, "seconds": seconds_of(epoch, device, 2) / steps} for name, epoch in arms.items()]


def maps(device: torch.device, options: argparse.Namespace) -> Rows:
    """Seconds and memory of five-β LRP and of evidence maps, beside one forward and backward pass."""
    volume = brain_volume((78, 80, 79) if options.small else (193, 229, 193))
    model = seeded_network(volume, 0).to(device)
    volume = volume.to(device)
    controls = Reference(torch.cat([volume * share for share in (0.9, 0.95, 1.05)]), ("sub-1", "sub-2", "sub-3"))
    runs: dict[str, Callable[[], Any]] = {
        "forward and backward": lambda: ENGINES[YARDSTICK].explain(model, volume, ()),
        "LRP, five β": lambda: ENGINES["heatlas-5"].explain(model, volume, ENGINES["heatlas-5"].betas),
    }
    for name in EVIDENCE[2 if options.small else 0 :]:
        loose = {} if name == "deeplift" else {"tolerance": 1e9}  # weights at random; time is what counts
        record = METHODS[name].record(reference=controls, **loose)
        runs[name] = lambda record=record: attribute(model, volume, 1, record, start="evidence") and None
    measure = on_gpu if device.type == "cuda" else on_cpu
    found = {name: measure(run, 1 if options.small else 3)[0] for name, run in runs.items()}
    first = min(found["forward and backward"]["time"])
    return [
        {"map": name, "seconds": min(one["time"]), "ratio": min(one["time"]) / first, "peak_bytes": one["peak"]}
        for name, one in found.items()
    ]


def memory(device: torch.device, options: argparse.Namespace) -> Rows:
    """Most memory of the steps above, and what the estimate says of a worker, less what a process has anyway."""
    resolution, batch = (2.0, 2) if options.small else (1.0, 4)
    config = load_config(overrides={"registration": {"resolution_mm": resolution}, "training": {"batch_size": batch}})
    estimate = measured_step(config).memory * batch * 1.5
    if device.type != "cuda":
        return [{"estimated_bytes": estimate, "measured_bytes": None}]
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    training(device, options)
    return [{"estimated_bytes": estimate, "measured_bytes": torch.cuda.max_memory_allocated()}]


def chain(device: torch.device, options: argparse.Namespace) -> Rows:
    """Seconds from scans to report; none without the data."""
    data = Path(os.environ.get("HEATLAS_TEST_DATA", "")) / "oasis1" / "older"
    if "HEATLAS_TEST_DATA" not in os.environ or not data.is_dir() or options.small:
        return []
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder, "device.toml")
        settings.write_text(f'[training]\ndevice = "{device.type}"\nmax_epochs = 20\nmin_epochs = 1\npatience = 10\n')
        command = [sys.executable, "-m", "heatlas", "run", str(data), str(Path(folder, "run"))]
        command += ["--preset", "patients", "--config", str(settings), "--n-procs", str(min(8, os.cpu_count() or 1))]
        begin = time.perf_counter()
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=options.seconds)
        except subprocess.TimeoutExpired:
            return [{"exit_code": None, "seconds": options.seconds, "last_line": "stopped: out of time"}]
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return [{"exit_code": done.returncode, "seconds": time.perf_counter() - begin, "last_line": last}]


PARTS: dict[str, Callable[[torch.device, argparse.Namespace], Rows]]
PARTS = {"agreement": agreement, "training": training, "maps": maps, "memory": memory, "chain": chain}
TITLES = {
    "agreement": f"Maps of both devices (tolerance {TOLERANCE:g} of the largest value)",
    "training": "A training step",
    "maps": "Maps against one forward and backward pass",
    "memory": "Memory of training",
    "chain": "133 patients of OASIS-1 from scans to report, 4 mm, at most 20 epochs",
}


def cell_of(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "n/a" if value is None else str(value)


def page(found: dict[str, Any]) -> str:
    is_gpu = found["device"] == "cuda"
    made = f"Made by `{found['command']}` on {found['date']}: {found['machine']}, PyTorch {found['torch']}."
    lines = ["# On a GPU", "", "" if is_gpu else NOT_YET, "", made, ""]
    for name, title in TITLES.items():
        rows = found["parts"].get(name)
        lines += [f"## {title}", ""]
        if not rows:
            lines += ["Not run: out of time." if rows is None else "Not run: no test data, or a reduced size.", ""]
            continue
        columns = list(rows[0])
        lines += [*table(columns, ([cell_of(row[column]) for column in columns] for row in rows)), ""]
    return "\n".join(lines)


def main() -> int:
    options = arguments_of(
        __doc__,
        "--device --output",
        device={"default": "cuda", "choices": ("cpu", "cuda")},
        small=(False, "reduced sizes and a few methods, to try the script"),
        seconds=(540.0, "no part begins later (default 540)"),
        output={"required": True, "help": "Markdown page; the JSON is put beside it"},
    )
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("No usable GPU here. Try the script with --device cpu --small.")
    device, begin = torch.device(options.device), time.monotonic()
    found: dict[str, Any] = {
        "device": device.type,
        "date": str(datetime.date.today()),
        "torch": torch.__version__,
        "command": " ".join(["python", *sys.argv]),
        "machine": torch.cuda.get_device_name() if device.type == "cuda" else f"{platform.machine()}, no GPU",
        "parts": {},
    }
    for name, part in PARTS.items():
        if time.monotonic() - begin > options.seconds:
            print(f"{name}: left out, out of time", file=sys.stderr)
            continue
        found["parts"][name] = part(device, options)
        print(f"{name}: done after {time.monotonic() - begin:.0f} s", file=sys.stderr)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(page(found), encoding="utf-8")
    options.output.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    far = [row for row in found["parts"].get("agreement", []) if not row["difference"] <= TOLERANCE]
    for row in far:
        print(f"{row['family']}, {row['method']}: {row['difference']:.1e} apart", file=sys.stderr)
    return 1 if far else 0


if __name__ == "__main__":
    sys.exit(main())
