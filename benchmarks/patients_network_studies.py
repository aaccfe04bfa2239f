"""Recipes and differences of the studies of `patients_networks.py`; what was asked and said before is on the page."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pandas as pd
from inherent_runs import Recipe, Workplace, recipes_of
from patients_measures import LEARNED, RIVALS, Measure, cascade, constants, drawn, known, learned, removal
from probes import BACKBONES, LOSSES, backbone_of, probes

from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.run.config.settings import Config

Pair = tuple[str, str, str, str, str]
"""Claim, recipe and measure of the first side, and of the second: without a recipe a number, or empty for chance."""
SOME = {"evaluation": {"grids": {"kinds": ["needle"], "per_class": 4}}}
"""Two grids for each class and fold, of maps that cost much."""
MANY = {"evaluation": {"grids": {"kinds": ["needle"], "per_class": 8}}}
"""Grids of own maps alone, which cost little."""
SOURCE_LRP = ["lrp:rules=composite", "lrp:gamma=0.25", "lrp:bias=true"]
"""As in the source; grids ask it beside others."""
FEW_SAMPLES = ["lime:segments=40", "lime:samples=200"]
"""Of a grid of four brains."""
TEN_EPOCHS = {"max_epochs": 10, "min_epochs": 10}
CAMS = ("grad-cam", "score-cam")
PLAIN = ("gradient", "guided-backpropagation", "input-x-gradient", "grad-cam")
NORMS = ("batch", "layer", "position", "instance")
ALONE = "guided alone"


@dataclasses.dataclass(frozen=True)
class Study:
    """What is asked of the networks of some recipes, for a section of the page."""

    title: str
    recipes: Callable[[Workplace, int], Iterable[Recipe]]
    """Those of a seed."""
    pairs: Callable[[pd.DataFrame], Iterator[Pair]]
    """From the rows of all people, the differences that the claims are about."""
    grids: bool = True
    """Whether maps are asked for in grids."""
    whole: int = 0
    """First of each fold, by name, whose maps are judged for sparsity and while places are taken away."""
    cams: tuple[str, ...] = ()
    """Methods of masked recognition, asked of everybody."""
    curves: int = 0
    """First of each fold, with insertion and deletion."""
    losses: bool = False
    """Whether the losses of the trainings are shown."""
    measures: Mapping[str, Mapping[Measure, int]] = dataclasses.field(default_factory=dict)
    """By recipe, further measures, and of how many people of each fold, the first by name; 0 for everybody."""
    table: str = "people.tsv"
    """Name of the file of all rows."""
    of_cohort: Callable[[JudgedCohort, Config], Iterator[dict[str, object]]] | None = None
    """Further measures of all people at once, of linear heads by cross-entropy."""


def recorded(study: str) -> Callable[[Workplace, int], Iterable[Recipe]]:
    """The recipes of recipes.toml, of any seed."""
    return lambda _, __: recipes_of(study)


def own_pairs(rows: pd.DataFrame) -> Iterator[Pair]:
    measures = rows.groupby("recipe")["measure"].unique()
    first = {"B-cos, B 1.5": ("B8, B11", "B9, B10"), "CoDA-S": ("K4", "K5")}
    inherent = "share: inherent at 0"
    for name, (same, other) in first.items():
        if name not in measures:
            continue
        for measure in sorted(one for one in measures[name] if one.startswith("share") and one != inherent):
            yield same, name, inherent, name, measure
        for rival in ("founding", "ResNet-10"):
            for measure in sorted(one for one in measures.get(rival, ()) if one.startswith("share")):
                yield other, name, inherent, rival, measure
    for measure in sorted(set(measures.get("B-cos, B 1.5", ())) & set(measures.get("founding", ()))):
        if measure.startswith("share"):
            yield "B12", "B-cos, B 1.5", measure, "founding", measure
    yield "B13", "B-cos, B 1.5", "top: inherent at 0", "B-cos, B 1.5", inherent
    for method in ("gradient", "guided-backpropagation"):
        yield "A13", "ResNet-10", f"share: {method} at 1", "", ""
    ixg = "share: input-x-gradient at"
    yield "A10", "ResNet-10", f"DiPart {ixg} 1", "ResNet-10", f"DiFull {ixg} 1"
    yield "A11", "ResNet-10", f"DiPart {ixg} 1", "ResNet-10", f"DiPart {ixg} 0"
    for b in (1, 2, 2.5):
        yield "B5", f"B-cos, B {b:g}", "correct", "B-cos, B 1.5", "correct"
    yield "B6", "B-cos, B 1.5", "correct", "founding", "correct"
    for rival in ("founding", "ResNet-10"):
        yield "K17", "CoDA-S", "correct", rival, "correct"


def further_pairs(_: pd.DataFrame) -> Iterator[Pair]:
    share, input_maps = "share: inherent at 0", ("gradient", "input-x-gradient", "integrated-gradients")
    for name in ("B-cos, B 2", "B-cos, B 2.5"):
        yield "B6", name, "correct", "founding", "correct"
        yield "B7", name, "correct", "founding, no biases", "correct"
        for method in input_maps:
            yield "B8", name, share, name, f"share: {method} at 0"
        for method in input_maps[1:]:
            yield "B8, smoothed", name, share, name, f"share: smooth-{method} kernel=3 at 0"
        for method in (*input_maps, "guided-backpropagation"):
            yield "B9", name, share, "founding", f"share: {method} at 0"
        for rival in ("grad-cam at 1", "lrp beta=0 at 0", "lrp composite gamma=0.25 at 0", "lrp focus at 0"):
            yield "B10", name, share, "founding", f"share: {rival}"
        yield "B11", name, share, "", ""
        yield "B11", name, share, name, "share: grad-cam at 1"
        for rival in (*(f"{method} at 0" for method in input_maps), "grad-cam at 1"):
            yield "B12", name, f"share: {rival}", "founding", f"share: {rival}"
        yield "B13", name, "top: inherent at 0", name, share


def penalty_pairs(_: pd.DataFrame) -> Iterator[Pair]:
    for measure in ("share: inherent at 0", "top: inherent at 0", "correct"):
        yield "K10", "CoDA-S, penalty", measure, "CoDA-S", measure


def tested_pairs(rows: pd.DataFrame) -> Iterator[Pair]:
    own, share = "CoDA-S", "share: inherent at 0"
    yield "K6", own, "least first: own", own, "before"
    yield "K6", own, "least first: own", own, "random order"
    for rival in ("random order", *(f"most first: {name}" for name in RIVALS)):
        yield "K7", own, "most first: own", own, rival
    for step in ("the trained map: head drawn anew", "the trained map: most of all steps"):
        yield "K13", own, f"like {step}", "", "0.5"
    yield "K13", own, "like the step before: most of all steps", "", "0.9"
    for norm in NORMS:
        measure = "for the second" if norm == "position" else "more than half"
        claim = "B17" if norm == "batch" else "B18" if norm in ("layer", "position") else "B17, too"
        yield claim, f"B-cos, {norm} norm with biases", f"constants: {measure}", "", "50"
    dark, off = "B-cos, dark", "B-cos, dark, off-targets"
    yield "B19", dark, "class: positive outside", "", "25"
    yield "B19", dark, "class: positive outside", dark, "even map: outside"
    yield "B20", dark, "less the mean: positive outside", "", "25"
    yield "B20", dark, "less the mean: positive outside", dark, "class: positive outside"
    yield "B21", off, "class: positive outside", dark, "class: positive outside"
    for larger, smaller in ((2.5, 1), (1.5, 1), (2, 1.5), (2.5, 2)):
        yield "B4", f"B-cos, B {larger:g}", share, f"B-cos, B {smaller:g}", share
    resnet, ixg = "ResNet-10", "share: input-x-gradient at"
    for rival in (*(f"{name} at 0" for name in PLAIN[:-1]), "grad-cam at 1"):
        yield "K5", own, share, resnet, f"share: {rival}"
    yield "A10", resnet, f"DiPart {ixg} 1", resnet, f"DiFull {ixg} 1"
    yield "A11", resnet, f"DiPart {ixg} 1", resnet, f"DiPart {ixg} 0"
    for method in ("gradient", "guided-backpropagation"):
        yield "A13", resnet, f"share: {method} at 1", "", ""
    for warmer, colder in (("CoDA-S, T 10", own), (own, "CoDA-S, T 0.1")):
        yield "K8", warmer, share, colder, share
        yield "K9", warmer, "correct", colder, "correct"


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


def of_both(rows: pd.DataFrame, other: Callable[[str, str, str], str]) -> Iterator[tuple[str, str, str]]:
    """Each probe, the one beside it by body, head and loss, and each measure that both have."""
    measures = rows.groupby("recipe")["measure"].unique()
    for name in measures.index:
        beside = other(*name.split(", "))
        if beside != name and beside in measures:
            yield from ((name, beside, one) for one in sorted(set(measures[name]) & set(measures[beside])))


def probe_pairs(rows: pd.DataFrame) -> Iterator[Pair]:
    """Binary cross-entropy less cross-entropy for each head."""
    for name, other, measure in of_both(rows, lambda body, head, loss: f"{body}, {head}, CE"):
        yield "BCE less CE", name, measure, other, measure


def loss_pairs(rows: pd.DataFrame) -> Iterator[Pair]:
    """Those of probes, and of maps smoothed as widely as in the source's code."""
    yield from probe_pairs(rows)
    bce, ce = (f"founding, linear, {loss}" for loss in ("BCE", "CE"))
    for map_name in ("integrated-gradients kernel=5", "input-x-gradient kernel=29"):
        measure = f"share: smooth-{map_name} at 0"
        yield "BCE less CE", bce, measure, ce, measure
        yield "smooth", ce, measure, "", ""


def depth_pairs(rows: pd.DataFrame) -> Iterator[Pair]:
    for name, linear, measure in of_both(rows, lambda body, _, loss: f"{body}, linear, {loss}"):
        if measure.startswith(("share", "correct")):
            claim = "P12" if "grad-cam" in measure else "P11" if ", mlp-3, " in name else "P10"
            yield claim, name, measure, linear, measure


def alone_pairs(_: pd.DataFrame) -> Iterator[Pair]:
    yield "R8", ALONE, "correct", "weight 0", "correct"


def readable_pairs(rows: pd.DataFrame) -> Iterator[Pair]:
    for name in rows["recipe"].unique():
        if name != "weight 0":
            for measure in rows.loc[rows["recipe"] == name, "measure"].unique():
                yield "R1 to R6", name, measure, "weight 0", measure


TESTS: Mapping[str, Mapping[Measure, int]] = {
    "CoDA-S": {removal: 6, cascade: 4},
    **{f"B-cos, {name} norm with biases": {constants: 0} for name in NORMS},
    **{name: {drawn: 0} for name in ("B-cos, dark", "B-cos, dark, off-targets")},
    "B-cos, B 1.5": {constants: 0, drawn: 0},
}
STUDIES = {
    "own": Study("Networks that explain themselves", recorded("own"), own_pairs),
    "own-further": Study(
        "Networks that explain themselves, larger B", recorded("own-further"), further_pairs, table="further.tsv"
    ),
    "tests": Study("Tests of own maps", recorded("tests"), tested_pairs, measures=TESTS, table="tests.tsv"),
    "penalty": Study("CoDA networks with a penalty", recorded("penalty"), penalty_pairs, table="penalty.tsv"),
    "probes": Study("Probes", probe_recipes, probe_pairs, whole=4),
    "losses": Study("Probes, losses", loss_recipes, loss_pairs, whole=6, table="losses.tsv"),
    "depth": Study("Probes, depth", depth_recipes, depth_pairs, table="depth.tsv"),
    "pretrained": Study(
        "Probes, pre-training", pretrained_recipes, pretrained_pairs, table="pretrained.tsv", of_cohort=known
    ),
    "readable": Study("Readable gradients", recorded("readable"), readable_pairs, False, cams=CAMS, curves=8),
    "alone": Study("Guided gradients alone", recorded("alone"), alone_pairs, False, losses=True),
}
