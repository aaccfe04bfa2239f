"""Which methods explain which networks of the field: with drawn weights, on one drawn image, as the page says.

``python tests/attribution/test_field_networks.py`` prints the rows of docs/benchmarks/foreign_networks.md.
Maps that add up are checked: a number is what a map misses of the difference of the logits, relative to it. Five of
MONAI's networks need einops (`pip install einops`).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from field_networks import ITEMS, NETWORKS, SHAPE
from torch import Tensor

from heatlas.pipeline.explaining.any_network import explain, prepare
from heatlas.pipeline.explaining.explained_image import Explained
from heatlas.pipeline.run.errors import HeatlasError

METHODS = {"expected-gradients": {"alphas": 2}, "deeplift": {}, "lrp": {}}
METHODS |= {"guided-backpropagation": {}, "input-x-gradient": {}, "grad-cam": {}}
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "foreign_networks.md"
NUMBER = re.compile(r"(?<![\w.])\d[\d.]*(e[+-]?\d+)?(?!\w)")
"""What precision changes."""
ADDS_UP = 1e-4
"""Largest share that a map may miss in double precision, where rounding is none of it."""


def cell(found: Explained) -> str:
    """What a map that adds up misses: of the difference of the logits, or of the logit less what layers absorbed."""
    ledger, explained = found.attribution.ledger, found.value - (found.reference_value or 0.0)
    missing = found.missing if ledger is None else float(ledger.residual)
    return "yes" if missing is None else f"yes ({abs(missing) / max(abs(explained), 1e-12):.0e})"


def drawn(draws: torch.Generator) -> Tensor:
    """Noise on a smooth pattern, so that the logits of two images differ by more than rounding."""
    coarse = torch.rand((1, 1, 4, 8, 4), generator=draws)
    return F.interpolate(coarse, SHAPE, mode="trilinear")[0, 0] + 0.2 * torch.rand(SHAPE, generator=draws)


def row(name: str, precision: torch.dtype) -> list[str]:
    """Cells of a network, by method."""
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
    return cells


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_network_of_the_field_is_explained_as_the_page_says(name) -> None:
    (page,) = [
        line.strip("| ").split(" | ")[1:]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith(f"| {name} | ") and line.count(" | ") == len(METHODS)
    ]
    try:
        cells = row(name, torch.float64)
    except (ImportError, HeatlasError) as error:
        if "einops" not in str(error):
            raise
        pytest.skip("this network of MONAI needs einops")
    known, said = ([NUMBER.sub("N", one) for one in each] for each in (page, cells))
    assert said == known
    shares = [float(one[5:-1]) for one in cells if one.startswith("yes (")]
    assert max(shares) < ADDS_UP


if __name__ == "__main__":
    for name in NETWORKS:
        print("|", name, "|", " | ".join(row(name, torch.float32)), "|", flush=True)
