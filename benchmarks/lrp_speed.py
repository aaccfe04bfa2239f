"""LRP-β of the founding CNN by every engine at hand: time and peak memory as ratios to one gradient of the same run.

    python benchmarks/lrp_speed.py --output docs/benchmarks/lrp_cpu.md
    python benchmarks/lrp_speed.py --device cuda --output docs/benchmarks/lrp_gpu.md

Every engine explains the same volume (the 2009c template brain in [0, 1], zeros outside) with the same network (random
weights of a fixed seed), each in a fresh process, so that no engine inherits another's memory. The gradient ("f+b") is
measured first and last; ratios are to the better of the two, and their difference says how steady the machine was.
Peers: ``pip install --no-deps zennit==0.5.1 captum==0.9.0``; those not installed are listed as absent. 193x229x193
takes about 5 GB of memory and ten minutes; ``--grid 97 115 97`` one minute.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from lrp_engines import BETAS, ENGINES, YARDSTICK, brain_volume
from sections import arguments_of, line, show_page

HERE = Path(__file__).parent
ABSENT = {"Pytorch-LRP (founding study), TorchLRP, iNNvestigate, LXT": "no package, or no 3D convolutions in PyTorch"}


def main() -> None:
    options = arguments_of(
        __doc__,
        ("--grid", {"type": int, "nargs": 3, "default": (193, 229, 193)}),
        ("--threads", {"type": int, "default": 1, "help": "of PyTorch"}),
        "--repeats",
        ("--seed", {"type": int, "default": 0}),
        ("--device", {"default": "cpu", "choices": ("cpu", "cuda")}),
        ("--tf32", {"action": "store_true", "help": "let peers and f+b use TF32 (ours never does)"}),
        ("--engines", {"nargs": "+", "choices": ENGINES, "default": list(ENGINES)}),
        "--output",
    )
    names = [name for name in options.engines if ENGINES[name].installed is not None]
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "volume.npy", brain_volume(tuple(options.grid)).numpy())
        found = {}
        for name in [YARDSTICK, *(name for name in names if name != YARDSTICK)]:
            found[name] = measured(name, Path(folder), options)
        again = measured(YARDSTICK, Path(folder), options)
        text = page(found, again, agreement(Path(folder), names), options)
    show_page(text, options.output)


def measured(name: str, folder: Path, options: argparse.Namespace) -> dict:
    """What one engine took, in a process of its own; ``{"error": ...}`` where it failed."""
    print(f"measuring {name} ...", file=sys.stderr, flush=True)
    command = [
        sys.executable, str(HERE / "lrp_measure.py"), name, str(folder), f"--threads={options.threads}",
        f"--repeats={options.repeats}", f"--seed={options.seed}", f"--device={options.device}",
        *(["--tf32"] if options.tf32 else []),
    ]  # fmt: skip
    threads = {"OMP_NUM_THREADS": str(options.threads), "MKL_NUM_THREADS": str(options.threads)}
    done = subprocess.run(command, env={**os.environ, **threads}, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        if name == YARDSTICK:
            sys.exit(f"{YARDSTICK} failed, so there is nothing to compare with: {last}")
        print(f"{name} failed: {last}", file=sys.stderr)
        return {"error": last}
    return json.loads((folder / f"{name}.json").read_text())


def agreement(folder: Path, names: list[str]) -> list[str]:
    """Rows: how far each peer's map is from ours, per β, as ``max |a - b| / max |b|`` and as correlation."""
    rows = []
    for name in names:
        peer = ENGINES[name]
        for beta in peer.betas if peer.package else ():
            theirs, ours = folder / f"{name}_{beta:g}.npy", folder / f"heatlas-5_{beta:g}.npy"
            if theirs.exists() and ours.exists():
                a, b = (np.load(path).astype(float).ravel() for path in (ours, theirs))
                furthest, alike = np.abs(a - b).max() / np.abs(b).max(), np.corrcoef(a, b)[0, 1]
                sums = f"{a.sum() / b.sum():.4f}"
                rows.append(line(peer.title, f"{beta:g}", f"{furthest:.1e}", f"{alike:.6f}", sums))
    return rows


def page(found: dict[str, dict], again: dict, agreed: list[str], options: argparse.Namespace) -> str:
    """The Markdown page."""
    first = found[YARDSTICK]
    yard = {key: min(min(first[key]), min(again[key])) for key in ("time", "wall")}
    yard["median"] = min(statistics.median(first["time"]), statistics.median(again["time"]))
    yard["peak"] = min(first["peak"], again["peak"])
    drift = min(again["time"]) / min(first["time"]) - 1
    head = "| engine | β | time s | / f+b | median / f+b | wall s | peak GiB | / f+b | unexplained |"
    rows = [row(name, result, yard) for name, result in found.items()]
    return "\n".join(
        [
            f"# LRP-β of the founding CNN at {'x'.join(map(str, options.grid))} on {options.device.upper()}",
            "",
            f"Made by `{shlex.join(['python', *sys.argv])}` on {datetime.date.today()}.",
            "",
            *(f"- {line}" for line in setting(first, drift, options)),
            "",
            head,
            "|---|---|---:|---:|---:|---:|---:|---:|---:|",
            *rows,
            "",
            *absent(),
            *(agreement_page(agreed) if agreed else []),
        ]
    )


def setting(first: dict, drift: float, options: argparse.Namespace) -> list[str]:
    """What a reader needs to judge or repeat the numbers."""
    time_kind = "GPU events" if "gpu" in first else "process CPU time"
    peers = {engine.package: engine.installed for engine in ENGINES.values() if engine.package and engine.installed}
    versions = ", ".join([f"PyTorch {torch.__version__}", *(f"{name} {number}" for name, number in peers.items())])
    machine = f"{first.get('gpu', cpu_model())}, {options.threads} of {os.cpu_count()} CPU threads"
    return [
        f"Machine: {machine}; {platform.system()}, Python {platform.python_version()}, {versions}.",
        f"Time: {time_kind}, best of {options.repeats} after a warm-up; every engine in its own process. "
        f"f+b was measured first and last, {drift:+.0%} apart.",
        f"Memory: peak above the loaded model and volume ({first['memory']}), the maps of the answer included.",
        f"Float32, TF32 {'on for peers and f+b, off for Heatlas' if options.tf32 else 'off'}"
        f"{'' if options.device == 'cuda' else ' (CPU has none)'}; one volume; one β is 0.5, five are "
        f"{', '.join(f'{beta:g}' for beta in BETAS)}. Biases zero, batch normalisation with positive scales.",
        "Unexplained: share of the logit neither in the map nor, where there is one, in the ledger; the largest of the "
        "run's maps. Peers have no ledger, so what units without contribution lose (zero background) counts here.",
    ]


def row(name: str, result: dict, yard: dict[str, float]) -> str:
    engine = ENGINES[name]
    title = engine.title + (f" ({engine.note})" if engine.note else "")
    betas = str(len(engine.betas)) if engine.betas else ""
    if "error" in result:
        return f"| {title} | {betas} | failed: {result['error']} | | | | | | |"
    time, middle, peak = min(result["time"]), statistics.median(result["time"]), result["peak"]
    unexplained = f"{result['unexplained']:.1e}" if "unexplained" in result else ""
    return (
        f"| {title} | {betas} | {time:.2f} | **{time / yard['time']:.2f}** | {middle / yard['median']:.2f} "
        f"| {min(result['wall']):.2f} | {peak / 2**30:.2f} | **{peak / yard['peak']:.2f}** | {unexplained} |"
    )


def absent() -> list[str]:
    missing = {engine.package: "not installed" for engine in ENGINES.values() if engine.installed is None}
    return [*(f"Absent: {name} ({why})." for name, why in {**missing, **ABSENT}.items()), ""]


def agreement_page(rows: list[str]) -> list[str]:
    return [
        "## Agreement of the maps (Heatlas, five β, against each peer)",
        "",
        "For β > 0 peers give units whose contributions have one sign only 1 + β or -β of their relevance, where the "
        "founding study and Heatlas give all of it. That is the whole difference: `make test-oracle` takes it away and "
        "finds agreement to 1e-9 in float64.",
        "",
        "| peer | β | largest difference / largest value | correlation | sum of map, ours / theirs |",
        "|---|---:|---:|---:|---:|",
        *rows,
        "",
    ]


def cpu_model() -> str:
    """Name of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
