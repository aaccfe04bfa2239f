"""What a GPU gives beside the CPU, how long it takes, and how much memory: the page docs/benchmarks/gpu.md.

    python benchmarks/gpu.py --output docs/benchmarks/gpu.md            # on a GPU, ten minutes at most
    python benchmarks/gpu.py --device cpu --small --output /tmp/gpu.md  # tries the script itself; two minutes

The page is written after each part. The exit code is 1 if maps are further apart than the tolerance.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness import ROOT, arguments_of, machine, table

sys.path.insert(0, str(ROOT))  # for the small networks of the tests

import torch
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


def cost_of(run: Callable[[], Any], device: torch.device, repeats: int) -> tuple[float, int]:
    """Seconds of the best repeat, and bytes beyond what was held."""
    found = (on_gpu if device.type == "cuda" else on_cpu)(run, repeats)[0]
    return min(found["time"]), found["peak"]


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
    """A step of the trainer from registered scans and of a resident batch; memory that was estimated for a worker."""
    size, scans, resolution = (2, 4, 2.0) if options.small else (4, 16, 1.0)
    config = load_config(overrides={"registration": {"resolution_mm": resolution}})
    known = {"resolution": resolution, "batch": size, "estimated_bytes": measured_step(config).memory * size * 1.5}
    with tempfile.TemporaryDirectory() as folder:
        cohort = written(Path(folder), scans, resolution)
        kept, threads = Path(folder, "kept"), os.cpu_count() or 1
        data = load_volumes(cohort.files, cohort.targets, cohort.spec, kept, device, threads)
        known["in_memory"] = isinstance(data.volumes, torch.Tensor)
        rows = []
        for name, arm in {"one resident batch": resident, "Heatlas": by_trainer}.items():
            epoch = arm(cohort, data, size)
            epoch()  # not counted
            seconds, peak = cost_of(epoch, device, 2)
            rows.append({"arm": name, **known, "peak_bytes": peak, "seconds": seconds * size / scans})
    return rows


def maps(device: torch.device, options: argparse.Namespace) -> Rows:
    """Seconds and memory of five-β LRP and of evidence maps, beside one forward and backward pass."""
    volume = brain_volume((78, 80, 79) if options.small else (193, 229, 193))
    model = seeded_network(volume).to(device)
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
    found = {name: cost_of(run, device, 1 if options.small else 3) for name, run in runs.items()}
    first = found["forward and backward"][0]
    return [
        {"map": name, "seconds": seconds, "ratio": seconds / first, "peak_bytes": peak}
        for name, (seconds, peak) in found.items()
    ]


PARTS: dict[str, Callable[[torch.device, argparse.Namespace], Rows]] = {
    f"Maps of both devices (tolerance {TOLERANCE:g} of the largest value)": agreement,
    "A training step": training,
    "Maps against one forward and backward pass": maps,
}
"""By the heading of the page."""


def cell_of(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def page(parts: Mapping[str, Rows], gpu: str) -> str:
    """`gpu`: its name; empty where there was none."""
    made = f"Made by `{' '.join(['python', *sys.argv])}` on {datetime.date.today()}: {gpu or 'no GPU'}; {machine()}."
    lines = ["# On a GPU", "", *([] if gpu else [NOT_YET, ""]), made]
    for title, rows in parts.items():
        cells = (map(cell_of, row.values()) for row in rows)
        lines += ["", f"## {title}", "", *table(list(rows[0]), cells)]
    return "\n".join([*lines, ""])


def main() -> int:
    options = arguments_of(
        __doc__,
        "--device --output",
        device={"default": "cuda", "choices": ("cpu", "cuda")},
        small=(False, "reduced sizes and a few methods, to try the script"),
        output={"required": True, "help": "Markdown page"},
    )
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("No usable GPU here. Try the script with --device cpu --small.")
    device, parts = torch.device(options.device), {}
    gpu = torch.cuda.get_device_name() if device.type == "cuda" else ""
    for title, part in PARTS.items():
        parts[title] = part(device, options)
        options.output.write_text(page(parts, gpu), encoding="utf-8")
    rows = (row for found in parts.values() for row in found if "difference" in row)
    far = [row for row in rows if not row["difference"] <= TOLERANCE]
    for row in far:
        print(f"{row['family']}, {row['method']}: {row['difference']:.1e} apart", file=sys.stderr)
    return 1 if far else 0


if __name__ == "__main__":
    sys.exit(main())
