"""What dynamic linear layers cost in training, as ratios to conventional ones measured in the same run.

    python benchmarks/dynamic_networks.py --repeats 9 --output docs/benchmarks/dynamic_networks.md

One B-cos convolution against `torch.nn.Conv3d` and against the formulations of B-cos-v2 written for three dimensions;
CoDA networks against a network of convolutions and ReLUs with as many operations. One thread; process CPU time of
forward and backward pass, in turn, medians of the ratios. Memory is the peak of a process of its own, less what it held
with model and volume loaded. The bounds of the issue are 1.3 (B-cos) and 3 (CoDA).
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

import torch
import torch._dynamo  # loaded by the first checkpointed pass, which is not to count as its memory
from harness import arguments_of, line, show_page, table
from timed import added_peak, in_turns
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
NETWORK_COLUMNS = (
    "network",
    "GFLOP forward",
    "parameters",
    "CPU s per step",
    "/ dense (least to most)",
    "peak GiB",
    "/ dense",
)
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

    makers: dict[str, Callable[[], nn.Module]] = {}
    for name in ("CoDA-S", "CoDA-S-WB"):
        makers[f"dense, as many operations as {name}"] = lambda name=name: like(name)
        makers[name] = lambda name=name: coda(name, grid)
        makers[f"{name}, in chunks"] = lambda name=name: coda(name, grid, chunked=True)
    return makers


def step_of(model: nn.Module, volume: Tensor, target: bool) -> Step:

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
    return int(answer.splitlines()[-1]) / 2**30


def build(kind: str, grid: tuple[int, int, int]) -> tuple[dict[str, Callable[[], nn.Module]], Tensor]:
    torch.manual_seed(1)
    if kind == "layer":
        return layers(), torch.rand(1, CHANNELS[0], *LAYER_GRID)
    return networks(grid), torch.rand(1, 1, *grid)


def peak_in_this_process(kind: str, name: str, grid: tuple[int, int, int]) -> int:
    """Bytes of one step, after one on a small volume."""
    networks, volume = build(kind, grid)
    model = networks[name]()
    step_of(model, torch.rand(1, volume.shape[1], 25, 25, 25), kind == "layer")()
    return added_peak(step_of(model, volume, kind == "layer"))


def times(steps: dict[str, Step], repeats: int) -> dict[str, list[float]]:
    in_turns(steps, 1)
    return in_turns(steps, repeats)


def ratio(values: list[float], base: list[float]) -> str:
    ratios = [a / b for a, b in zip(values, base, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def layer_rows(repeats: int, grid: tuple[int, int, int]) -> list[str]:
    makers, volume = build("layer", grid)
    found = times({name: step_of(make(), volume, True) for name, make in makers.items()}, repeats)
    lines = table(["layer", "CPU s", "/ Conv3d (least to most)", "peak GiB"], rule="---:")
    for name, values in found.items():
        compared, peak = ratio(values, found["Conv3d with bias"]), peak_of("layer", name, grid)
        lines.append(line(name, f"{statistics.median(values):.2f}", f"**{compared}**", f"{peak:.2f}"))
    return lines


def network_rows(repeats: int, grid: tuple[int, int, int]) -> list[str]:
    makers, volume = build("network", grid)
    models = {name: make() for name, make in makers.items()}
    steps = {name: step_of(model, volume, False) for name, model in models.items()}
    for name in ("CoDA-S", "CoDA-S-WB"):
        rest = nn.Sequential(*models[name].stages[1:])
        pairs = models[name].eval().stages[0](volume)
        models[name].train()
        value = lambda x, rest=rest: rest(x)[:, 1]  # noqa: E731
        steps[f"{name}, a row of W(x)"] = partial(dynamic_weights, rest, value, pairs)
    found = times(steps, repeats)
    lines = table(NETWORK_COLUMNS, rule="---:")
    for name, values in found.items():
        base = f"dense, as many operations as {'CoDA-S-WB' if 'CoDA-S-WB' in name else 'CoDA-S'}"
        cells = [f"{statistics.median(values):.2f}", f"**{ratio(values, found[base])}**"]
        if name not in models:
            lines.append(line(name, "", "", *cells, "", ""))
            continue
        peak, other = peak_of("network", name, grid), peak_of("network", base, grid)
        count = sum(weight.numel() for weight in models[name].parameters())
        flops = operations(models[name], volume) / 1e9
        lines.append(line(name, f"{flops:.2f}", f"{count:,}", *cells, f"{peak:.2f}", f"**{peak / other:.2f}**"))
    return lines


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
        "--grid --repeats --output --one",
        grid={"type": int, "nargs": 3, "default": LAYER_GRID, "help": "of the networks"},
        one={"nargs": 2, "help": argparse.SUPPRESS},
        repeats=7,
    )
    grid = (options.grid[0], options.grid[1], options.grid[2])
    torch.set_num_threads(1)
    if options.one:
        print(peak_in_this_process(*options.one, grid))
        return
    lines = [*layer_rows(options.repeats, grid), "", *network_rows(options.repeats, grid)]
    show_page("\n".join(lines), options.output, "Dynamic linear layers against conventional ones, on CPU")
    print(f"Explicit weights would take {explicit_size(grid, CodaSConfig()):.1f} GiB per volume.")


if __name__ == "__main__":
    main()
