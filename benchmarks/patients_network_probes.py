"""Heads on frozen networks for `patients_networks.py`: recipes, and differences of losses and of depths."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import pandas as pd
from inherent_runs import Recipe, Workplace
from patients_backbones import LEARNED, learned
from probes import BACKBONES, LOSSES, backbone_of, probes

Pair = tuple[str, str, str, str, str]
"""Claim, recipe and measure of the first side, and of the second: without a recipe a number, or empty for chance."""
SOME = {"evaluation": {"grids": {"kinds": ["needle"], "per_class": 4}}}
FURTHER = {"evaluation": {"grids": {"kinds": ["needle"], "per_class": 6}}}
"""Two and three grids for each class and fold, of maps that cost much."""
MANY = {"evaluation": {"grids": {"kinds": ["needle"], "per_class": 8}}}
"""Grids of own maps alone, which cost little."""
SOURCE_LRP = ["lrp:rules=composite", "lrp:gamma=0.25", "lrp:bias=true"]
"""As in the source; grids ask it beside others."""
FEW_SAMPLES = ["lime:segments=40", "lime:samples=200"]
"""Of a grid of four brains."""
TEN_EPOCHS = {"max_epochs": 10, "min_epochs": 10}


def probe_recipes(
    work: Workplace, seed: int, bodies: Sequence[str] = tuple(BACKBONES), losses: Sequence[str] = tuple(LOSSES)
) -> Sequence[Recipe]:
    """Heads and losses on the frozen networks of the founding family, then on B-cos networks."""
    found = [one for name in bodies for one in probes(backbone_of(work, BACKBONES[name], seed), name)]
    return [one for one in of_ten_epochs(found) if one.name.endswith(tuple(f", {loss}" for loss in losses))]


def of_ten_epochs(found: Sequence[Recipe]) -> Sequence[Recipe]:
    """The same recipes with ten epochs; the source has 100."""
    return [
        dataclasses.replace(one, settings={**one.settings, "training": {**one.settings["training"], **TEN_EPOCHS}})
        for one in found
    ]


def loss_recipes(work: Workplace, seed: int) -> Sequence[Recipe]:
    """Linear heads, with which the source varies the loss, and what it asks of them; LIME, which is slow, by itself."""
    found: list[Recipe] = []
    for one in probe_recipes(work, seed):
        body, head, _ = one.name.split(", ")
        if head != "linear":
            continue
        if body != "founding":
            found.append(
                dataclasses.replace(one, settings={**one.settings, **MANY}, methods=(*one.methods, "score-cam"))
            )
            continue
        settings = {**one.settings, **SOME}
        more = (*one.methods, "guided-backpropagation", "score-cam")
        for name, methods, own in ((one.name, more, SOURCE_LRP), (f"LIME of {one.name}", ("lime",), FEW_SAMPLES)):
            found.append(Recipe(name, {**settings, "attribution": {"settings": own}}, methods))
    return found


def depth_recipes(work: Workplace, seed: int) -> Sequence[Recipe]:
    """Heads by binary cross-entropy, with which the source varies depth, on networks of the founding family."""
    found = probe_recipes(work, seed, ("founding",), ("BCE",))
    return [dataclasses.replace(one, settings={**one.settings, **SOME}) for one in found]


def pretrained_recipes(work: Workplace, seed: int) -> Iterator[Recipe]:
    """Linear heads on networks that learned without labels, of both losses on one of them.

    A backbone learns when its first head is asked for.
    """
    for name in LEARNED:
        for one in of_ten_epochs(probes(learned(work, name, seed), name, "founding")):
            _, head, loss = one.name.split(", ")
            if head == "linear" and (name == "SimCLR" or loss == "CE"):
                settings = {**one.settings, "attribution": {"settings": SOURCE_LRP}}
                yield dataclasses.replace(one, settings=settings, methods=one.methods if name == "SimCLR" else ())


def pretrained_pairs(rows: pd.DataFrame) -> Iterator[Pair]:
    """The schedule less a fixed temperature, what was learned less none, and the losses."""
    for measure in ("nearest 1", "nearest 10", "few-shot probe", "correct"):
        yield "T1", "SimCLR, linear, CE", measure, "SimCLR fixed, linear, CE", measure
    for name in LEARNED:
        for measure in ("few-shot probe", "nearest 10"):
            yield "learned", f"{name}, linear, CE", measure, f"{name}, linear, CE", f"{measure} of an untrained network"
        for measure in ("few-shot probe", "correct"):
            yield "learned", f"{name}, linear, CE", measure, "", "50"
    yield from probe_pairs(rows)


def probe_pairs(rows: pd.DataFrame) -> Iterator[Pair]:
    """Binary cross-entropy less cross-entropy for each head."""
    measures = rows.groupby("recipe")["measure"].unique()
    for name in measures.index:
        body, head, loss = name.split(", ")
        other = f"{body}, {head}, CE"
        if loss == "BCE" and other in measures:
            for one in sorted(set(measures[name]) & set(measures[other])):
                yield "BCE less CE", name, one, other, one


def loss_pairs(rows: pd.DataFrame) -> Iterator[Pair]:
    """Those of probes, and of maps smoothed as widely as in the source's code."""
    yield from probe_pairs(rows)
    bce, ce = (f"founding, linear, {loss}" for loss in ("BCE", "CE"))
    for map_name in ("integrated-gradients kernel=5", "input-x-gradient kernel=29"):
        measure = f"share: smooth-{map_name} at 0"
        yield "BCE less CE", bce, measure, ce, measure
        yield "smooth", ce, measure, "", ""


def depth_pairs(rows: pd.DataFrame) -> Iterator[Pair]:
    """Deeper heads less linear ones, of the same loss on the same networks."""
    measures = rows.groupby("recipe")["measure"].unique()
    for name in measures.index:
        body, head, loss = name.split(", ")
        linear = f"{body}, linear, {loss}"
        if head == "linear" or linear not in measures:
            continue
        for one in sorted(set(measures[name]) & set(measures[linear])):
            if one.startswith(("share", "correct")):
                claim = "P12" if "grad-cam" in one else "P11" if head == "mlp-3" else "P10"
                yield claim, name, one, linear, one
