"""Networks trained with readable gradients for `patients_networks.py`: recipes, and differences of their settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd
from inherent_runs import Recipe, Workplace
from patients_network_probes import Pair

DISTANCES = ("mse", "mae", "intersection")
"""Of readable gradients, beside the cosine."""
WEIGHTS = ("weight 0.001", "weight 0.1", "weight 10")
"""Of readable gradients, beside 1, the usual one."""
ALONE = "guided alone"


def of_gradients(name: str, **settings: object) -> Recipe:
    return Recipe(name, {"objective": {"kind": "readable-gradients", **settings}})


def readable_recipes(_: Workplace, __: int) -> Sequence[Recipe]:
    """Weight 0, the usual weight, others over four decades, and four distances."""
    weights = [of_gradients(f"weight {value:g}", weight=value) for value in (0.0, 1e-3, 0.1, 10.0)]
    distances = [of_gradients(name, distance=name) for name in DISTANCES]
    return (weights[0], of_gradients("cosine"), *distances, *weights[1:])


def weights_pairs(rows: pd.DataFrame) -> Iterator[Pair]:
    """Other weights less the usual one; the cosine less other distances, and less none."""
    for claim, sides in (
        ("R4", [(name, "cosine") for name in WEIGHTS]),
        ("R6", [("cosine", name) for name in (*DISTANCES, "weight 0")]),
    ):
        for first, second in sides:
            for measure in ("AD: grad-cam", "AG: grad-cam", "AI: grad-cam", "correct"):
                if {first, second} <= set(rows["recipe"]):
                    yield claim, first, measure, second, measure


def alone_recipes(_: Workplace, __: int) -> Sequence[Recipe]:
    """The usual training, and one by guided gradients in place of gradients."""
    return of_gradients("weight 0", weight=0.0), of_gradients(ALONE, guided_alone=True)


def alone_pairs(_: pd.DataFrame) -> Iterator[Pair]:
    yield "R8", ALONE, "correct", "weight 0", "correct"


def readable_pairs(rows: pd.DataFrame) -> Iterator[Pair]:
    """Each recipe less weight 0."""
    for name in rows["recipe"].unique():
        if name != "weight 0":
            for measure in rows.loc[rows["recipe"] == name, "measure"].unique():
                yield "R1 to R6", name, measure, "weight 0", measure
