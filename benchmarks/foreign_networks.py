"""Which methods explain which networks of the field, with drawn weights, on one drawn volume; and at what cost.

``python benchmarks/foreign_networks.py`` prints the tables of docs/benchmarks/foreign_networks.md. Maps that add up are
checked: a number is what a map misses of the difference of the logits, relative to it. MONAI's ViT needs einops.
``--speed`` makes the table of times alone, ``--double`` shows what is rounding, names of networks their rows alone.
"""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from statistics import median

import torch
import torch.nn.functional as F
from field_networks import ITEMS, NETWORKS, SHAPE
from harness import arguments_of, line, table
from timed import in_turns
from torch import Tensor

from heatlas.pipeline.attribution.entry import RunContext
from heatlas.pipeline.attribution.method_settings import typed_settings
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.attribution.registry import find_method
from heatlas.pipeline.explaining.any_network import explain, prepare
from heatlas.pipeline.explaining.explained_image import Explained
from heatlas.pipeline.run.errors import HeatlasError

TIMED = {"lrp": {}, "deeplift": {}, "expected-gradients": {"alphas": 2}, "expected-gradients, 16 points": {"alphas": 8}}
METHODS = {name: TIMED[name] for name in ("expected-gradients", "deeplift", "lrp")}
METHODS |= {"guided-backpropagation": {}, "input-x-gradient": {}, "grad-cam": {}}


def cell(found: Explained) -> str:
    """What a map that adds up misses: of the difference of the logits, or of the logit less what layers absorbed."""
    ledger, explained = found.attribution.ledger, found.value - (found.reference_value or 0.0)
    missing = found.missing if ledger is None else float(ledger.residual)
    return "yes" if missing is None else f"yes ({abs(missing) / max(abs(explained), 1e-12):.0e})"


def drawn(draws: torch.Generator) -> Tensor:
    """Noise on a smooth pattern, so that the logits of two images differ by more than rounding."""
    coarse = torch.rand((1, 1, 4, 8, 4), generator=draws)
    return F.interpolate(coarse, SHAPE, mode="trilinear")[0, 0] + 0.2 * torch.rand(SHAPE, generator=draws)


def row(name: str, precision: torch.dtype = torch.float32) -> str:
    torch.manual_seed(7)
    network, draws = NETWORKS[name]().to(precision), torch.Generator().manual_seed(8)
    volume, *controls = (drawn(draws).to(precision) for _ in range(3))
    bins = tuple(42.5 + k for k in range(40)) if name.startswith("SFCN") else ()
    model, cells = prepare(network, volume, bins=bins, output_item=ITEMS.get(name, "")), []
    for method, settings in METHODS.items():
        try:
            cells.append(cell(explain(model, volume, method, reference=controls, settings=settings)))
        except HeatlasError as error:
            cells.append("no: " + re.split(r"; | has no rule|, and this method", str(error))[0].replace("|", "/"))
    return line(name, *cells)


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


def speed() -> None:
    """Times of `explain` beside those of the engine alone, and of a fresh process; one thread, medians of five.

    Seconds are those of the processor, so that they are the same where others use the machine too.
    """
    torch.set_num_threads(1)
    torch.manual_seed(7)
    network, draws = NETWORKS["VGG-like, batch norm"]().eval(), torch.Generator().manual_seed(8)
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


def main() -> None:
    options = arguments_of(
        __doc__,
        "networks",
        networks={"nargs": "*", "help": "rows of these alone"},
        speed=(False, "the table of times alone"),
        double=(False, "networks and images in double precision"),
    )
    if not options.speed:
        print(*table(["network", *METHODS]), sep="\n")
        for name in options.networks or NETWORKS:
            print(row(name, torch.float64 if options.double else torch.float32), flush=True)
        print()
    if not options.networks:
        speed()


if __name__ == "__main__":
    main()
