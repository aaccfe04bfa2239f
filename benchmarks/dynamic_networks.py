"""What dynamic linear layers cost in training, as ratios to conventional ones measured in the same run.

    python benchmarks/dynamic_networks.py
    python benchmarks/dynamic_networks.py --repeats 9 --output docs/benchmarks/dynamic_networks.md

One B-cos convolution against `torch.nn.Conv3d` and against the formulations of B-cos-v2 written for three dimensions;
CoDA networks against a network of convolutions and ReLUs with as many operations. One thread of the CPU; process CPU
time of forward and backward pass, in turn, medians of the ratios. Memory is the kernel's high-water mark of a process
of its own, less what it held before. The bounds of the issue are 1.3 (B-cos) and 3 (CoDA).
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from functools import cache

import torch
import torch._dynamo  # loaded by the first checkpointed pass, which is not to count as its memory
from lrp_measure import forget_peak, peak_resident, resident
from sections import arguments_of, show_page
from timed import in_turns
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from heatlas.pipeline.models.dynamic import dynamic_weights
from heatlas.pipeline.models.families.registry import build_network
from heatlas.studies.bcos.layers import BcosConv3d
from heatlas.studies.coda.network import CodaConv3d
from heatlas.studies.coda.records import CodaConfig, CodaSConfig, CodaSWbConfig

LAYER_GRID = (97, 115, 97)
CHANNELS = (8, 16)
Step = Callable[[], object]


class PooledBcos(nn.Module):
    """B = 2 as B-cos-v2 computes it: unit-norm filters, the norm of patches by average pooling."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(after, before, 3, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight / torch.linalg.vector_norm(self.weight, dim=(1, 2, 3, 4), keepdim=True)
        linear = functional.conv3d(x, weight, padding=1)
        norm = (functional.avg_pool3d((x**2).sum(1, keepdim=True), 3, 1, 1) * 27 + 1e-6).sqrt()
        return linear * (linear.abs() / norm)


class UnfoldedBcos(PooledBcos):
    """The same from explicit patches, one row per voxel."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight / torch.linalg.vector_norm(self.weight, dim=(1, 2, 3, 4), keepdim=True)
        patches = functional.pad(x, [1] * 6)
        for axis in (2, 3, 4):
            patches = patches.unfold(axis, 3, 1)
        rows = patches.permute(0, 2, 3, 4, 1, 5, 6, 7).flatten(4)
        linear = rows @ weight.flatten(1).T
        norm = (rows.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        return (linear * (linear.abs() / norm)).movedim(-1, 1)


def layers() -> dict[str, Callable[[], nn.Module]]:
    before, after = CHANNELS
    return {
        "Conv3d with bias": lambda: nn.Conv3d(before, after, 3, padding=1),
        "B-cos, B = 2": lambda: BcosConv3d(before, after, 3, 1, 1),
        "B-cos, B = 1.5": lambda: BcosConv3d(before, after, 3, 1, 1, b=1.5),
        "B-cos-v2 in 3D, pooled norm": lambda: PooledBcos(before, after),
        "B-cos-v2 in 3D, unfolded patches": lambda: UnfoldedBcos(before, after),
    }


def operations(model: nn.Module, volume: Tensor) -> float:
    """Multiplications and additions of a forward pass, as PyTorch counts those of convolutions."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(volume)
    return float(counter.get_total_flops())


def dense(settings: CodaConfig, width: float) -> nn.Sequential:
    """Convolutions with batch normalisation and ReLU on the grids of a CoDA network, with wider layers."""
    stack: list[nn.Module] = []
    before = 1
    for units, kernel, stride in zip(settings.units, settings.kernels, settings.strides, strict=False):
        after = max(1, round(units * width))
        stack += [nn.Conv3d(before, after, kernel, stride, kernel // 2), nn.BatchNorm3d(after), nn.ReLU()]
        before = after
    return nn.Sequential(*stack, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(before, 2))


def dense_like(settings: CodaConfig, wanted: float, grid: Sequence[int]) -> nn.Sequential:
    """The dense network with that many operations, which grow with its width: by bisection."""
    narrow, wide = 1.0, 10.0
    with torch.device("meta"):
        volume = torch.empty(1, 1, *grid)
        for _ in range(7):
            middle = (narrow + wide) / 2
            more = operations(dense(settings, middle), volume) > wanted
            narrow, wide = (narrow, middle) if more else (middle, wide)
    return dense(settings, narrow)


def coda(name: str, grid: tuple[int, int, int], chunked: bool = False) -> nn.Module:
    settings: CodaConfig = CodaSWbConfig() if name.startswith("CoDA-S-WB") else CodaSConfig()
    model = build_network(replace(settings, temperature=1.0), grid, 2)
    for layer in model.modules():
        if isinstance(layer, CodaConv3d) and chunked:
            layer.values_at_once = 2**20
    return model


def networks(grid: tuple[int, int, int]) -> dict[str, Callable[[], nn.Module]]:
    """CoDA networks, each after the dense network it is compared with."""

    def like(name: str) -> nn.Module:
        settings: CodaConfig = CodaSWbConfig() if name == "CoDA-S-WB" else CodaSConfig()
        with torch.device("meta"):
            wanted = operations(coda(name, grid), torch.empty(1, 1, *grid))
        return dense_like(settings, wanted, grid)

    made: dict[str, Callable[[], nn.Module]] = {}
    for name in ("CoDA-S", "CoDA-S-WB"):
        made[f"dense, as many operations as {name}"] = lambda name=name: like(name)
        made[name] = lambda name=name: coda(name, grid)
        made[f"{name}, in chunks"] = lambda name=name: coda(name, grid, chunked=True)
    return made


def step_of(model: nn.Module, volume: Tensor, target: bool) -> Step:
    """Forward and backward pass; of a layer to its input too."""

    def step() -> None:
        leaf = volume.detach().requires_grad_(target)
        answer = model(leaf)
        (answer if target else answer[:, 1] - answer[:, 0]).sum().backward()
        model.zero_grad()

    return step


@cache
def peak_of(kind: str, name: str, grid: tuple[int, int, int]) -> float:
    """Peak of one step in GiB, measured by a process of its own."""
    command = [sys.executable, __file__, "--grid", *map(str, grid), "--one", kind, name]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(answer.splitlines()[-1])) / 2**30


def build(kind: str, grid: tuple[int, int, int]) -> tuple[dict[str, Callable[[], nn.Module]], Tensor]:
    torch.manual_seed(1)
    if kind == "layer":
        return layers(), torch.rand(1, CHANNELS[0], *LAYER_GRID)
    return networks(grid), torch.rand(1, 1, *grid)


def one(kind: str, name: str, grid: tuple[int, int, int]) -> None:
    made, volume = build(kind, grid)
    model = made[name]()
    step = step_of(model, volume, kind == "layer")
    small = torch.rand(1, volume.shape[1], 25, 25, 25)
    step_of(model, small, kind == "layer")()
    gc.collect()
    forget_peak()
    held = resident()
    step()
    print(json.dumps(peak_resident() - held))


def times(steps: dict[str, Step], repeats: int) -> dict[str, list[float]]:
    """Seconds of each step by turn, after one that is not counted."""
    in_turns(steps, 1)
    return in_turns(steps, repeats)


def ratio(values: list[float], base: list[float]) -> str:
    ratios = [a / b for a, b in zip(values, base, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def layer_rows(repeats: int, grid: tuple[int, int, int]) -> list[str]:
    made, volume = build("layer", grid)
    found = times({name: step_of(make(), volume, True) for name, make in made.items()}, repeats)
    base = found["Conv3d with bias"]
    rows = ["| layer | CPU s | / Conv3d (least to most) | peak GiB |", "|---|---:|---:|---:|"]
    for name, values in found.items():
        peak = peak_of("layer", name, grid)
        rows.append(f"| {name} | {statistics.median(values):.2f} | **{ratio(values, base)}** | {peak:.2f} |")
    return rows


def network_rows(repeats: int, grid: tuple[int, int, int]) -> list[str]:
    made, volume = build("network", grid)
    models = {name: make() for name, make in made.items()}
    steps = {name: step_of(model, volume, False) for name, model in models.items()}
    for name in ("CoDA-S", "CoDA-S-WB"):
        rest = nn.Sequential(*models[name].stages[1:])
        pairs = models[name].eval().stages[0](volume)
        models[name].train()
        value = lambda x, rest=rest: rest(x)[:, 1]  # noqa: E731
        steps[f"{name}, a row of W(x)"] = lambda rest=rest, value=value, pairs=pairs: dynamic_weights(
            rest, value, pairs
        )
    found = times(steps, repeats)
    rows = [
        "| network | GFLOP forward | parameters | CPU s per step | / dense (least to most) | peak GiB | / dense |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, values in found.items():
        family = "CoDA-S-WB" if "CoDA-S-WB" in name else "CoDA-S"
        base = f"dense, as many operations as {family}"
        compared = ratio(values, found[base])
        if name not in models:
            rows.append(f"| {name} | | | {statistics.median(values):.2f} | **{compared}** | | |")
            continue
        peak, other = peak_of("network", name, grid), peak_of("network", base, grid)
        count = sum(weight.numel() for weight in models[name].parameters())
        flops = operations(models[name], volume) / 1e9
        rows.append(
            f"| {name} | {flops:.2f} | {count:,} | {statistics.median(values):.2f} | **{compared}** "
            f"| {peak:.2f} | **{peak / other:.2f}** |"
        )
    return rows


def explicit_size(grid: Sequence[int], settings: CodaConfig) -> float:
    """GiB of the weights w(x) of all units and voxels in float32, which are never made."""
    total, before, sides = 0, 2, list(grid)
    for units, kernel, stride in zip((*settings.units, 2), settings.kernels, settings.strides, strict=True):
        sides = [-(-side // stride) for side in sides]
        total += units * before * kernel**3 * math.prod(sides)
        before = units
    return 4 * total / 2**30


def main() -> None:
    options = arguments_of(
        __doc__,
        ("--grid", {"type": int, "nargs": 3, "default": LAYER_GRID, "help": "of the networks"}),
        "--repeats",
        "--output",
        ("--one", {"nargs": 2, "help": argparse.SUPPRESS}),
        repeats=7,
    )
    grid = (options.grid[0], options.grid[1], options.grid[2])
    torch.set_num_threads(1)
    if options.one:
        one(*options.one, grid)
        return
    before = os.getloadavg()[0]
    tables = layer_rows(options.repeats, grid), network_rows(options.repeats, grid)
    size = "×".join(map(str, grid))
    page = [
        "# Dynamic linear layers against conventional ones, on CPU",
        "",
        f"Made by `python benchmarks/dynamic_networks.py --repeats {options.repeats}` on {date.today()}.",
        "",
        f"- Machine: {platform.machine()}, one thread of {os.cpu_count()}; Python {platform.python_version()}, PyTorch "
        f"{torch.__version__}. Load over a minute was {before:.1f} before and {os.getloadavg()[0]:.1f} after.",
        "- Time: process CPU time of forward and backward pass, in turn, after one that is not counted; medians.",
        "- Memory: peak of one step in a process of its own, above what it held with model and volume loaded.",
        "",
        f"## One convolution, {CHANNELS[0]} to {CHANNELS[1]} channels, kernel 3, "
        f"{'×'.join(map(str, LAYER_GRID))} voxels",
        "",
        "To weights and input. The bound for B-cos is 1.3.",
        "",
        *tables[0],
        "",
        f"## CoDA networks with their default layers, {size} voxels, one volume",
        "",
        "Dense: convolutions with batch normalisation and ReLU on the same grids, wider, with as many operations. The "
        "bound for CoDA is 3. In chunks: volumes are computed in slabs, each again in the backward pass, as larger "
        "grids and batches do. Explicit weights, which are never made, would take "
        f"{explicit_size(grid, CodaSConfig()):.1f} GiB per volume, and as much again for their gradients.",
        "",
        *tables[1],
        "",
    ]
    show_page("\n".join(page), options.output)


if __name__ == "__main__":
    main()
