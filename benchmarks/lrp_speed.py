"""LRP-β of the founding CNN by every engine at hand: time and peak memory as ratios to one gradient of the same run.

    python benchmarks/lrp_speed.py --output docs/benchmarks/lrp_cpu.md

Every engine explains the same volume (the 2009c template brain in [0, 1], zeros outside) with the same network (random
weights of a fixed seed), one thread, each in a fresh process, so that no engine inherits another's memory. It first
explains a small volume, so that loading and compiling do not count. The gradient ("f+b") is measured first and last;
ratios are to the better of the two, and their difference says how steady the machine was. Peers: ``pip install
--no-deps zennit==0.5.1 captum==0.9.0``; those not installed are left out. 193x229x193 takes about 5 GB of memory and
ten minutes; ``--grid 97 115 97`` one minute. What oneDNN would do on older processors is in a table of its own. A peer
is a function with the signature of `Engine.explain` and a line in `ENGINES`. On a GPU: `gpu.py`.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from harness import ROOT, arguments_of, show_page, table
from timed import on_cpu
from torch import Tensor, nn

from heatlas.atlases.templates import load_template
from heatlas.pipeline.attribution.lrp.relevance import lrp
from heatlas.pipeline.attribution.lrp.rules import founding
from heatlas.pipeline.models.families.founding import FoundingCNN

COLUMNS = ("engine", "β", "time s", "/ f+b", "median / f+b", "wall s", "peak GiB", "/ f+b", "unexplained")
OLDER = ("ONEDNN_MAX_CPU_ISA", "f+b s", "Heatlas, one β / f+b", "Heatlas, five β / f+b")
AGREEMENT = ("peer", "β", "largest difference / largest value", "correlation", "sum of map, ours / theirs")
TARGET = 1
BETAS = (0.0, 0.25, 0.5, 0.75, 1.0)
Maps = dict[float, tuple[Tensor, float | None]]
"""By β: the map, and the share of the logit that no account explains; None of an engine without accounts."""


@dataclass(frozen=True)
class Engine:
    """One row of the table."""

    title: str
    explain: Callable[[nn.Module, Tensor, tuple[float, ...]], Maps]
    betas: tuple[float, ...] = ()  # β of the maps that one run makes
    package: str = ""  # that must be installed


def seeded_network(volume: Tensor) -> FoundingCNN:
    """The founding CNN in evaluation mode, weights at random, normalisation as training would leave it.

    Running statistics are those of `volume` itself, scales in 0.5..1.5 and shifts around 0, so that about half of the
    units are active, as in a trained network. All scales are positive: then the β-rule gives one map whether batch
    normalisation is merged or passed, and peers that can do only one of the two are comparable.
    """
    torch.manual_seed(0)
    net = FoundingCNN(tuple(volume.shape[2:]), dropout=0.0)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm3d):
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.normal_(std=0.2)
            module.momentum = 1.0
    with torch.no_grad():
        net.train()(volume)
    return net.eval().requires_grad_(False)


def brain_volume(grid: tuple[int, int, int]) -> Tensor:
    """The 2009c template brain in [0, 1] with zeros outside, resampled to any grid; (1, 1, D, H, W)."""
    volume = torch.from_numpy(np.array(load_template(1.0).t1w))[None, None]
    if tuple(volume.shape[2:]) != grid:
        volume = nn.functional.interpolate(volume, grid, mode="trilinear", align_corners=False)
    return (volume - volume.min()) / (volume.max() - volume.min())


def forward(model: nn.Module, volume: Tensor, betas: tuple[float, ...]) -> Maps:
    with torch.no_grad():
        model(volume)
    return {}


def forward_backward(model: nn.Module, volume: Tensor, betas: tuple[float, ...]) -> Maps:
    """The yardstick: one gradient of the logit with respect to the volume."""
    volume = volume.detach().requires_grad_()
    torch.autograd.grad(model(volume)[0, TARGET], volume)
    return {}


def heatlas(model: nn.Module, volume: Tensor, betas: tuple[float, ...]) -> Maps:
    found = zip(betas, lrp(model, volume, TARGET, [founding(beta) for beta in betas]), strict=True)
    return {beta: (one.values, float((one.ledger.residual / one.start_value).abs().max())) for beta, one in found}


def zennit(model: nn.Module, volume: Tensor, betas: tuple[float, ...]) -> Maps:
    """One pass per β; biases zero, batch normalisation passed."""
    sys.path.insert(0, str(ROOT))
    from tests.attribution.zennit_oracle import TINY, stub_torchvision, zennit_map

    if "torchvision" not in sys.modules:
        import pytest

        stub_torchvision(pytest.MonkeyPatch())
    from zennit.composites import LayerMapComposite, layer_map_base
    from zennit.rules import AlphaBeta, ZPlus
    from zennit.types import Convolution, Linear

    maps = {}
    for beta in betas:
        settings = {"stabilizer": TINY, "zero_params": "bias"}
        rule = AlphaBeta(1 + beta, beta, **settings) if beta else ZPlus(**settings)
        composite = LayerMapComposite([*layer_map_base(TINY), (Linear, rule), (Convolution, rule)])
        maps[beta] = zennit_map(model, volume.detach(), composite), None
    return maps


def captum(model: nn.Module, volume: Tensor, betas: tuple[float, ...]) -> Maps:
    """α = 1, β = 0 is the only one it has; it knows no rule for Conv3d and BatchNorm3d until told, before each call."""
    from captum.attr import LRP
    from captum.attr._utils.lrp_rules import Alpha1_Beta0_Rule, EpsilonRule, IdentityRule

    for module in model.modules():
        if isinstance(module, nn.Conv3d | nn.Linear):
            module.rule = Alpha1_Beta0_Rule(set_bias_to_zero=True)
        elif isinstance(module, nn.BatchNorm3d):
            module.rule = IdentityRule()
        elif isinstance(module, nn.Flatten):
            module.rule = EpsilonRule()
    relevance = LRP(model).attribute(volume.detach().requires_grad_(), target=TARGET).detach()
    return {0.0: (relevance, None)}


YARDSTICK, OURS = "f+b", ("heatlas-1", "heatlas-5")
WARM_UP_GRID = (78, 78, 78)  # the smallest the network takes

ENGINES = {
    YARDSTICK: Engine("forward + backward to input (f+b)", forward_backward),
    "forward": Engine("forward", forward),
    "heatlas-0": Engine("Heatlas, β = 0", heatlas, (0.0,)),
    "heatlas-1": Engine("Heatlas, one β", heatlas, (0.5,)),
    "heatlas-5": Engine("Heatlas, five β", heatlas, BETAS),
    "zennit-0": Engine("zennit ZPlus, β = 0", zennit, (0.0,), "zennit"),
    "zennit-1": Engine("zennit AlphaBeta, one β", zennit, (0.5,), "zennit"),
    "zennit-5": Engine("zennit AlphaBeta, five β (one pass per β)", zennit, BETAS, "zennit"),
    "captum-0": Engine("captum Alpha1_Beta0, β = 0 (rules set by hand)", captum, (0.0,), "captum"),
}


def measure(name: str, brain: np.ndarray, repeats: int) -> dict[str, Any]:
    """What one engine takes in this process, and its maps."""
    torch.set_num_threads(1)
    engine, volume, small = ENGINES[name], torch.from_numpy(brain), torch.rand(1, 1, *WARM_UP_GRID)
    model = seeded_network(volume)
    engine.explain(seeded_network(small), small, engine.betas)
    found, maps = on_cpu(lambda: engine.explain(model, volume, engine.betas), repeats)
    logit, left = float(model(volume)[0, TARGET]), []
    for values, share in maps.values():  # without accounts, what is not in the map is unexplained
        left.append(abs(1 - float(values.sum(dtype=torch.float64)) / logit) if share is None else share)
    return found | {"unexplained": max(left, default=None), "maps": {b: one.numpy() for b, (one, _) in maps.items()}}


def measured(name: str, volume: np.ndarray, repeats: int, **settings: str) -> dict[str, Any]:
    """As `measure`, in a process of its own, with settings in its environment."""
    print(f"measuring {name} ...", file=sys.stderr, flush=True)
    settings |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with patch.dict(os.environ, settings), ProcessPoolExecutor(1, get_context("spawn")) as fresh:
        return fresh.submit(measure, name, volume, repeats).result()


def main() -> None:
    options = arguments_of(__doc__, "--repeats --output", grid=[193, 229, 193])
    volume = brain_volume(tuple(options.grid)).numpy()
    names = [name for name, one in ENGINES.items() if not one.package or importlib.util.find_spec(one.package)]
    found = {name: measured(name, volume, options.repeats) for name in names}
    again = measured(YARDSTICK, volume, options.repeats)
    print(f"f+b first and last: {min(again['time']) / min(found[YARDSTICK]['time']) - 1:+.0%} apart.")
    older = []
    for isa in ("SSE41", "AVX2"):
        asked = (measured(name, volume, options.repeats, ONEDNN_MAX_CPU_ISA=isa) for name in (YARDSTICK, *OURS))
        yard, *ours = (min(one["time"]) for one in asked)
        older.append([isa, f"{yard:.2f}", *(f"**{time / yard:.2f}**" for time in ours)])
    text, agreed = [*table(COLUMNS, rows_of(found, again)), "", *table(OLDER, older)], agreement(found)
    text += ["", *table(AGREEMENT, agreed)] if agreed else []
    heading = f"LRP-β of the founding CNN at {'x'.join(map(str, options.grid))} on CPU"
    show_page("\n".join(text), options.output, heading)


def rows_of(found: Mapping[str, dict[str, Any]], again: Mapping[str, Any]) -> list[list[str]]:
    """A row an engine, beside the better of two measurements of the yardstick."""
    yards = (found[YARDSTICK], again)
    yard, middle = (min(how(one["time"]) for one in yards) for how in (min, statistics.median))
    least, rows = min(one["peak"] for one in yards), []
    for name, one in found.items():
        time, peak, left = min(one["time"]), one["peak"], one["unexplained"]
        cells = [ENGINES[name].title, str(len(ENGINES[name].betas) or ""), f"{time:.2f}", f"**{time / yard:.2f}**"]
        cells += [f"{statistics.median(one['time']) / middle:.2f}", f"{min(one['wall']):.2f}"]
        cells += [f"{peak / 2**30:.2f}", f"**{peak / least:.2f}**", "" if left is None else f"{left:.1e}"]
        rows.append(cells)
    return rows


def agreement(found: Mapping[str, dict[str, Any]]) -> list[list[str]]:
    """Rows: how far each peer's map is from ours, per β, as ``max |a - b| / max |b|`` and as correlation."""
    rows = []
    for name in (name for name in found if ENGINES[name].package):
        for beta, theirs in found[name]["maps"].items():
            a, b = (one.astype(float).ravel() for one in (found["heatlas-5"]["maps"][beta], theirs))
            furthest, alike = np.abs(a - b).max() / np.abs(b).max(), np.corrcoef(a, b)[0, 1]
            sums = f"{a.sum() / b.sum():.4f}"
            rows.append([ENGINES[name].title, f"{beta:g}", f"{furthest:.1e}", f"{alike:.6f}", sums])
    return rows


if __name__ == "__main__":
    main()
