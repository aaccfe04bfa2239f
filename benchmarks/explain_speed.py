"""Times of `heatlas.explain` beside those of the engine alone, and of the first map in a fresh process.

``python benchmarks/explain_speed.py`` prints the times of docs/benchmarks/foreign_networks.md.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from itertools import pairwise
from statistics import median

import torch
from harness import line, table
from timed import in_turns
from torch import nn

from heatlas.pipeline.attribution.entry import RunContext
from heatlas.pipeline.attribution.method_settings import typed_settings
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.attribution.registry import find_method
from heatlas.pipeline.explaining.any_network import explain, prepare

TIMED = {"lrp": {}, "deeplift": {}, "expected-gradients": {"alphas": 2}, "expected-gradients, 16 points": {"alphas": 8}}
FINE = (97, 115, 97)
"""The template at 2 mm."""
FIRST = """
import time
start = time.process_time()
import heatlas
imported = time.process_time() - start
import torch
from torch import nn
torch.set_num_threads(1)
start = time.process_time()
network = nn.Sequential(nn.Conv3d(1, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(8, 2))
heatlas.explain(network, torch.rand(97, 115, 97), "deeplift", reference=[torch.rand(97, 115, 97)])
print(imported, time.process_time() - start + imported)
"""


def like_vgg() -> nn.Module:
    """Four blocks of convolution, batch normalisation, ReLU and max-pooling."""
    layers: list[nn.Module] = []
    for a, b in pairwise((1, 8, 16, 32, 32)):
        layers += [nn.Conv3d(a, b, 3, padding=1), nn.BatchNorm3d(b), nn.ReLU(inplace=True), nn.MaxPool3d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(32, 2))


def main() -> None:
    """Print medians of five, with one thread.

    Seconds are those of the processor, so that they are the same where others use the machine too.
    """
    torch.set_num_threads(1)
    torch.manual_seed(7)
    network, draws = like_vgg().eval(), torch.Generator().manual_seed(8)
    volume, *controls = (torch.rand((1, 1, *FINE), generator=draws) for _ in range(3))
    model = prepare(network, volume)
    takers = {"whole": network, "prepared": model}
    columns = ["method", "engine alone, s", "`explain`, s (times as long)", "of a prepared network, s"]
    print(*table(columns), sep="\n")
    for name, settings in TIMED.items():
        entry = find_method(name.split(",")[0], "method")
        context = RunContext(None, None, Reference(torch.cat(controls), ("a", "b")))  # type: ignore[arg-type]
        method = entry.build(typed_settings(entry.name, entry.record, settings, ""), context)
        start = "evidence" if entry.usual_start == "evidence" else "logit"
        given = {"target": 1, "reference": controls, "settings": settings}
        arms = {"alone": partial(attribute, model, volume, 1, method, 0, start)}
        arms |= {arm: partial(explain, taken, volume, entry.name, **given) for arm, taken in takers.items()}
        own, first, later = (median(seconds) for seconds in in_turns(arms, 5).values())
        beside = (f"{seconds:.2f} ({seconds / own:.2f})" for seconds in (first, later))
        print(line(name, f"{own:.2f}", *beside), flush=True)
    runs = [subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=True) for _ in range(5)]
    imports, firsts = zip(*(map(float, run.stdout.split()) for run in runs), strict=True)
    print(f"\n`import heatlas`: {median(imports):.2f} s. First map in a fresh process: {median(firsts):.1f} s.")


if __name__ == "__main__":
    main()
