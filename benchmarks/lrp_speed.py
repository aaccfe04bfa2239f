"""LRP-β of the founding CNN by every engine at hand: time and peak memory as ratios to one gradient of the same run.

    python benchmarks/lrp_speed.py --output docs/benchmarks/lrp_cpu.md
    python benchmarks/lrp_speed.py --device cuda --output docs/benchmarks/lrp_gpu.md

Every engine explains the same volume (the 2009c template brain in [0, 1], zeros outside) with the same network (random
weights of a fixed seed), each in a fresh process, so that no engine inherits another's memory. It first explains a
small volume, so that loading and compiling do not count. The gradient ("f+b") is measured first and last; ratios are to
the better of the two, and their difference says how steady the machine was. Peers: ``pip install --no-deps
zennit==0.5.1 captum==0.9.0``; those not installed are listed as absent. 193x229x193 takes about 5 GB of memory and ten
minutes; ``--grid 97 115 97`` one minute. What oneDNN would do on older processors is in a table of its own (``--isa``,
none with ``--isa`` alone). A peer is a function with the signature of `Engine.explain` and a line in
`ENGINES`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch
from harness import arguments_of, show_page, table
from timed import on_cpu, on_gpu
from torch import Tensor, nn

from heatlas.pipeline.models.families.founding import FoundingCNN

ABSENT = {"Pytorch-LRP (founding study), TorchLRP, iNNvestigate, LXT": "no package, or no 3D convolutions in PyTorch"}
COLUMNS = ("engine", "β", "time s", "/ f+b", "median / f+b", "wall s", "peak GiB", "/ f+b", "unexplained")
OLDER = ("ONEDNN_MAX_CPU_ISA", "f+b s", "Heatlas, one β / f+b", "Heatlas, five β / f+b")
AGREEMENT = ("peer", "β", "largest difference / largest value", "correlation", "sum of map, ours / theirs")
TARGET = 1
BETAS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Answer:
    """Maps by β, and per map the share of the logit that no account explains."""

    maps: dict[float, Tensor]
    unexplained: dict[float, float]


@dataclass(frozen=True)
class Engine:
    """One row of the table."""

    title: str
    betas: tuple[float, ...]  # β of the maps that one run makes; empty for runs that make none
    package: str | None  # distribution that must be installed
    explain: Callable[[nn.Module, Tensor, tuple[float, ...]], Answer | None]  # None where the run makes no map
    note: str = ""

    @property
    def installed(self) -> str | None:
        """Version of the peer; ``""`` for what needs none, None where it is absent."""
        if self.package is None:
            return ""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return None


def seeded_network(volume: Tensor, seed: int) -> FoundingCNN:
    """The founding CNN in evaluation mode, weights at random, normalisation as training would leave it.

    Running statistics are those of `volume` itself, scales in 0.5..1.5 and shifts around 0, so that about half of the
    units are active, as in a trained network. All scales are positive: then the β-rule gives one map whether batch
    normalisation is merged or passed, and peers that can do only one of the two are comparable.
    """
    torch.manual_seed(seed)
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
    from heatlas.atlases.templates import load_template

    brain = np.array(load_template(1.0).t1w)
    volume = torch.from_numpy(brain)[None, None]
    if tuple(volume.shape[2:]) != grid:
        volume = nn.functional.interpolate(volume, grid, mode="trilinear", align_corners=False)
    return (volume - volume.min()) / (volume.max() - volume.min())


def forward(model: nn.Module, volume: Tensor, betas: tuple[float, ...]) -> None:
    with torch.no_grad():
        model(volume)


def forward_backward(model: nn.Module, volume: Tensor, betas: tuple[float, ...]) -> None:
    """The yardstick: one gradient of the logit with respect to the volume."""
    volume = volume.detach().requires_grad_()
    torch.autograd.grad(model(volume)[0, TARGET], volume)


def heatlas(model: nn.Module, volume: Tensor, betas: tuple[float, ...]) -> Answer:
    from heatlas.pipeline.attribution.lrp.relevance import lrp
    from heatlas.pipeline.attribution.lrp.rules import founding

    answers = dict(zip(betas, lrp(model, volume, TARGET, [founding(beta) for beta in betas]), strict=True))
    unexplained = {b: float((a.ledger.residual / a.start_value).abs().max()) for b, a in answers.items()}
    return Answer({b: a.values for b, a in answers.items()}, unexplained)


def zennit(model: nn.Module, volume: Tensor, betas: tuple[float, ...]) -> Answer:
    """One pass per β; biases zero, batch normalisation passed."""
    stub_torchvision()
    from zennit.attribution import Gradient
    from zennit.composites import LayerMapComposite, layer_map_base
    from zennit.rules import AlphaBeta, ZPlus
    from zennit.types import Convolution, Linear

    maps, unexplained = {}, {}
    for beta in betas:
        settings = {"stabilizer": 1e-12, "zero_params": "bias"}
        rule = AlphaBeta(1 + beta, beta, **settings) if beta else ZPlus(**settings)
        composite = LayerMapComposite([*layer_map_base(1e-12), (Linear, rule), (Convolution, rule)])
        with Gradient(model=model, composite=composite) as attributor:
            logits, relevance = attributor(volume.detach().requires_grad_(), only_target)
        maps[beta] = relevance.detach()
        unexplained[beta] = missing_share(logits, relevance)
    return Answer(maps, unexplained)


def captum(model: nn.Module, volume: Tensor, betas: tuple[float, ...]) -> Answer:
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
    return Answer({0.0: relevance}, {0.0: missing_share(model(volume), relevance)})


def only_target(logits: Tensor) -> Tensor:
    mask = torch.zeros_like(logits)
    mask[:, TARGET] = 1
    return logits * mask


def missing_share(logits: Tensor, relevance: Tensor) -> float:
    """Share of the logit that is not in the map (an engine without ledger cannot say where it went)."""
    start = float(logits[0, TARGET].detach())
    return abs(1 - float(relevance.detach().sum(dtype=torch.float64)) / start)


def stub_torchvision() -> None:
    """Zennit imports torchvision for a few classes not used here; give it empty ones where it is not installed."""
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is not None:
        return
    wanted = {
        "torchvision": (),
        "torchvision.models": (),
        "torchvision.models.resnet": ("Bottleneck", "BasicBlock", "ResNet"),
        "torchvision.models.vgg": ("VGG",),
        "torchvision.ops": (),
        "torchvision.ops.misc": ("FrozenBatchNorm2d",),
    }
    for name, classes in wanted.items():
        sys.modules[name] = types.ModuleType(name)
        for kind in classes:
            setattr(sys.modules[name], kind, type(kind, (nn.Module,), {}))


YARDSTICK = "f+b"
WARM_UP_GRID = (78, 78, 78)  # the smallest the network takes

ENGINES = {
    YARDSTICK: Engine("forward + backward to input (f+b)", (), None, forward_backward),
    "forward": Engine("forward", (), None, forward),
    "heatlas-0": Engine("Heatlas, β = 0", (0.0,), None, heatlas),
    "heatlas-1": Engine("Heatlas, one β", (0.5,), None, heatlas),
    "heatlas-5": Engine("Heatlas, five β", BETAS, None, heatlas),
    "zennit-0": Engine("zennit ZPlus, β = 0", (0.0,), "zennit", zennit),
    "zennit-1": Engine("zennit AlphaBeta, one β", (0.5,), "zennit", zennit),
    "zennit-5": Engine("zennit AlphaBeta, five β", BETAS, "zennit", zennit, "one pass per β"),
    "captum-0": Engine("captum Alpha1_Beta0, β = 0", (0.0,), "captum", captum, "rules set by hand"),
}


def main() -> None:
    options = arguments_of(
        __doc__,
        "--repeats --device --output --engines --one",
        grid=[193, 229, 193],
        threads=(1, "of PyTorch"),
        seed=0,
        device={"default": "cpu", "choices": ("cpu", "cuda")},
        tf32=(False, "let peers and f+b use TF32 (ours never does)"),
        isa={"nargs": "*", "default": ["SSE41", "AVX2"], "help": "values of ONEDNN_MAX_CPU_ISA, for CPUs"},
        engines={"nargs": "+", "choices": ENGINES, "default": list(ENGINES)},
        one={"nargs": 2, "help": argparse.SUPPRESS},
    )
    if options.one:
        measure(ENGINES[options.one[0]], options.one[0], Path(options.one[1]), options)
        return
    names = [name for name in options.engines if ENGINES[name].installed is not None]
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "volume.npy", brain_volume(tuple(options.grid)).numpy())
        found = {}
        for name in [YARDSTICK, *(name for name in names if name != YARDSTICK)]:
            found[name] = measured(name, Path(folder), options.threads)
        again = measured(YARDSTICK, Path(folder), options.threads)
        text = tables(found, again, agreement(Path(folder), names))
        if options.device == "cpu" and options.isa:
            rows = [older(isa, Path(folder), options.threads) for isa in options.isa]
            text += "\n".join(["", *table(OLDER, rows), ""])
    heading = f"LRP-β of the founding CNN at {'x'.join(map(str, options.grid))} on {options.device.upper()}"
    show_page(text, options.output, heading)


def measure(engine: Engine, name: str, folder: Path, options: argparse.Namespace) -> None:
    """Measure one engine in this process, and write what was found beside its maps."""
    torch.set_num_threads(options.threads)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = options.tf32
    volume = torch.from_numpy(np.load(folder / "volume.npy"))
    model = seeded_network(volume, options.seed).to(options.device)
    volume, small = volume.to(options.device), torch.rand(1, 1, *WARM_UP_GRID)
    engine.explain(seeded_network(small, seed=0).to(options.device), small.to(options.device), engine.betas)
    how = on_gpu if volume.is_cuda else on_cpu
    found, answer = how(lambda: engine.explain(model, volume, engine.betas), options.repeats)
    if answer is not None:
        found["unexplained"] = max(answer.unexplained.values())
        for beta, values in answer.maps.items():
            np.save(folder / f"{name}_{beta:g}.npy", values.cpu().numpy())
    (folder / f"{name}.json").write_text(json.dumps(found))


def older(isa: str, folder: Path, threads: int) -> list[str]:
    """One row: the same with what oneDNN has for an older processor."""
    engines = (YARDSTICK, "heatlas-1", "heatlas-5")
    yard, *ours = (min(measured(name, folder, threads, ONEDNN_MAX_CPU_ISA=isa)["time"]) for name in engines)
    return [isa, f"{yard:.2f}", *(f"**{time / yard:.2f}**" for time in ours)]


def measured(name: str, folder: Path, threads: int, **settings: str) -> dict:
    """What one engine took, in a process of its own; ``{"error": ...}`` where it failed."""
    print(f"measuring {name} ...", file=sys.stderr, flush=True)
    command = [sys.executable, __file__, *sys.argv[1:], "--one", name, str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), **settings}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        if name == YARDSTICK:
            sys.exit(f"{YARDSTICK} failed, so there is nothing to compare with: {last}")
        print(f"{name} failed: {last}", file=sys.stderr)
        return {"error": last}
    return json.loads((folder / f"{name}.json").read_text())


def agreement(folder: Path, names: list[str]) -> list[list[str]]:
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
                rows.append([peer.title, f"{beta:g}", f"{furthest:.1e}", f"{alike:.6f}", sums])
    return rows


def tables(found: dict[str, dict], again: dict, agreed: list[list[str]]) -> str:
    first = found[YARDSTICK]
    yard = {key: min(min(first[key]), min(again[key])) for key in ("time", "wall")}
    yard["median"] = min(statistics.median(first["time"]), statistics.median(again["time"]))
    yard["peak"] = min(first["peak"], again["peak"])
    missing = {engine.package: "not installed" for engine in ENGINES.values() if engine.installed is None}
    print(
        f"f+b first and last: {min(again['time']) / min(first['time']) - 1:+.0%} apart. Memory: {first['memory']}.",
        *(f"Absent: {name} ({why})." for name, why in {**missing, **ABSENT}.items()),
        sep="\n",
    )
    rows = [row(name, result, yard) for name, result in found.items()]
    return "\n".join([*table(COLUMNS, rows), "", *(table(AGREEMENT, agreed) if agreed else [])])


def row(name: str, result: dict, yard: dict[str, float]) -> list[str]:
    engine = ENGINES[name]
    cells = [engine.title + (f" ({engine.note})" if engine.note else ""), str(len(engine.betas) or "")]
    if "error" in result:
        return [*cells, f"failed: {result['error']}", *[""] * 6]
    time, middle, peak = min(result["time"]), statistics.median(result["time"]), result["peak"]
    cells += [f"{time:.2f}", f"**{time / yard['time']:.2f}**", f"{middle / yard['median']:.2f}"]
    cells += [f"{min(result['wall']):.2f}", f"{peak / 2**30:.2f}", f"**{peak / yard['peak']:.2f}**"]
    return [*cells, f"{result['unexplained']:.1e}" if "unexplained" in result else ""]


if __name__ == "__main__":
    main()
