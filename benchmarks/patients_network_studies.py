"""Recipes, differences and words of the studies of `patients_networks.py`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import pandas as pd
from inherent_runs import Recipe, Workplace
from inherent_search import BCE, BEST, FOUNDING, GOOD, bcos
from probes import BACKBONES, LOSSES, backbone_of, probes

Pair = tuple[str, str, str, str, str]
"""Claim, recipe and measure of the first side, and of the second: empty for chance."""
POSTHOC = ("gradient", "input-x-gradient", "integrated-gradients", "grad-cam")
CAMS = ("grad-cam", "score-cam")
NEEDLES = {"evaluation": {"grids": {"kinds": ["needle"]}}}
DISTANCES = ("mse", "mae", "intersection")
"""Of readable gradients, beside the cosine."""
WEIGHTS = ("weight 0.001", "weight 0.1", "weight 10")
"""Of readable gradients, beside 1, the usual one."""
ALONE = "guided alone"
TEN_EPOCHS = {"max_epochs": 10, "min_epochs": 10}


@dataclasses.dataclass(frozen=True)
class Study:
    """What is asked of the networks of some recipes.

    Parameters
    ----------
    title, preface : str
        Of the section.
    recipes : callable
        Those of a seed.
    pairs : callable
        From the rows of all people, the differences that the claims are about.
    grids : bool
        Whether maps are asked for in grids.
    whole : int
        First of each fold, by name, whose maps are judged for sparsity and while places are taken away.
    cams : tuple of str
        Methods of masked recognition, asked of everybody.
    curves : int
        First of each fold, with insertion and deletion.
    losses : bool
        Whether the losses of the trainings are shown.
    """

    title: str
    preface: str
    recipes: Callable[[Workplace, int], Sequence[Recipe]]
    pairs: Callable[[pd.DataFrame], Iterator[Pair]]
    grids: bool = True
    whole: int = 0
    cams: tuple[str, ...] = ()
    curves: int = 0
    losses: bool = False


def own_recipes(_: Workplace, __: int) -> Sequence[Recipe]:
    """B-cos over B, a CoDA network, and conventional networks with and without global pooling and biases."""
    maps = {"attribution": {"settings": ["inherent:compare=nothing"]}, **NEEDLES}
    both = {"evaluation": {"grids": {"kinds": ["needle", "corner"]}}}
    best = dataclasses.replace(
        BEST, name="B-cos, B 1.5", settings={**BEST.settings, **maps}, methods=("inherent", *POSTHOC)
    )
    plain = ("guided-backpropagation", *POSTHOC)
    return (
        best,
        dataclasses.replace(FOUNDING, settings=NEEDLES, methods=(*plain, "lrp")),
        Recipe("CoDA-S", {"model": {"architecture": "coda-s"}, **maps}, ("inherent", *POSTHOC)),
        Recipe("ResNet-10", {"model": {"architecture": "resnet10", "width": 0.25}, **both}, plain),
        *(bcos(f"B-cos, B {b:g}", BCE, b=b, **GOOD) for b in (1.0, 2.0, 2.5)),
        Recipe(
            "founding, no biases",
            {"model": {"bias": False}, "training": {"learning_rate": 1e-3, "max_epochs": 40, "min_epochs": 30}},
        ),
    )


def own_pairs(rows: pd.DataFrame) -> Iterator[Pair]:
    """Differences of the claims about networks that explain themselves."""
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
    yield "B7", "B-cos, B 1.5", "correct", "founding, no biases", "correct"
    for rival in ("founding", "ResNet-10"):
        yield "K17", "CoDA-S", "correct", rival, "correct"


def probe_recipes(
    work: Workplace, seed: int, bodies: Sequence[str] = tuple(BACKBONES), losses: Sequence[str] = tuple(LOSSES)
) -> Sequence[Recipe]:
    """Heads and losses on the frozen networks of the founding family, then on B-cos networks."""
    found = [one for name in bodies for one in probes(backbone_of(work, BACKBONES[name], seed), name)]
    return [
        dataclasses.replace(one, settings={**one.settings, "training": {**one.settings["training"], **TEN_EPOCHS}})
        for one in found
        if one.name.endswith(tuple(f", {loss}" for loss in losses))
    ]


def depth_recipes(work: Workplace, seed: int) -> Sequence[Recipe]:
    """Heads by binary cross-entropy, with which the source varies depth, on networks of the founding family."""
    return probe_recipes(work, seed, ("founding",), ("BCE",))


def probe_pairs(rows: pd.DataFrame) -> Iterator[Pair]:
    """Binary cross-entropy less cross-entropy for each head."""
    measures = rows.groupby("recipe")["measure"].unique()
    for name in measures.index:
        body, head, loss = name.split(", ")
        other = f"{body}, {head}, CE"
        if loss == "BCE" and other in measures:
            for one in sorted(set(measures[name]) & set(measures[other])):
                yield "BCE less CE", name, one, other, one


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
                grad_cam = "P12" if "grad-cam" in one else "P11" if head == "mlp-3" else "P10"
                yield grad_cam, name, one, linear, one


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


GRIDS = """\
Grids: 2 × 2 × 1 test scans of a fold side by side, the most confident of those recognised, one grid for each class and
fold; share of positive attribution in the cell of the class, from the logit, in per cent; chance is 25. `at 0` is the
input, `at 1` the last stage; `top`: the largest 2.5 % of the values alone. Networks are confident about different
people, so two of them are compared on the people whom both explain. `correct`: people classified correctly, in per
cent; chance is 50, and ridge regression on regions has an area of .79 ([patients.md](../patients.md))."""
OWN = f"""\
The people and folds of the first section at 4 mm, by `python benchmarks/patients_networks.py own`, one network a fold.
B-cos: `bcos-simple` (B 1 to 2.5) by binary cross-entropy; founding and CoDA-S (`coda-s`) by the recipe `patients`.
CoDA-S was trained for the first two folds of each seed only. Unlike the sources: two classes, small networks.
{GRIDS}
B-cos and founding networks of seed 43 were seen in grids before the rest had run."""
PROBES = f"""\
On each fold's frozen network, trained from the labels as in the first section (founding) or as `bcos-simple`, by
`python benchmarks/patients_networks.py probes`: heads of one layer (linear) and, if asked, three (MLP, B-cos), ten
epochs of cross-entropy (CE) or binary cross-entropy (BCE), as in the source. Unlike the source: backbones that know
the labels, two classes; the first two of five folds of each seed.
{GRIDS}
For the first four people of each fold by name, inside the brain: Gini index and entropy (bits) of the positive values
of the map of the true class, and the mean probability of that class while voxels are removed, the least important
first, in per cent.
Linear probes by CE of seed 43 were seen before the rest had run."""
DEPTH = f"""\
As the section "Probes", by `python benchmarks/patients_networks.py depth`: heads of three layers less linear ones, by
binary cross-entropy, with which the source varies depth, on the same frozen founding networks. Layers are 1 × 1 × 1
convolutions before the average over places, with normalisation between them, as in the source; MLP: with ReLU, B-cos:
B of 2.
{GRIDS}
Said before anything of deeper heads was seen: a number rises (falls) where the interval over people and every seed lie
above (below) 0. Integrated gradients of the input were at chance with linear heads, so their maps of the last stage
decide; of LRP (γ .25) it is those of the input. P10 holds if accuracy and GridPG of integrated gradients both rise
with a B-cos head, and does not hold if one of them falls. P11 holds if GridPG of LRP or of integrated gradients falls
with an MLP, and does not hold if both rise. P12 holds if Grad-CAM rises with one head and falls with the other, and
does not hold if it rises or falls with both. All took 8.7 minutes of a core that others used too."""
READABLE = """\
Founding networks of the first fold of each seed, by `python benchmarks/patients_networks.py readable`: trained as in
the first section, with input gradients drawn towards guided ones. As in the source: distances, and weights over
four decades; unlike it: two classes, 4 mm. In per cent: masked recognition of the true class as in "CAM methods", and
insertion and deletion of the first eight by name. Weight 0 is the usual training."""
OF_WEIGHTS = """\
As the section "Readable gradients", by `python benchmarks/patients_networks.py weights`: other weights less the usual
one (1), all with the cosine, and the cosine less other distances and less weight 0, all with the usual weight;
Grad-CAM. As in the source: weights over four decades, distances. Said before anything was seen: lower and higher where
the interval over people and every seed lie on one side of 0; two weights are alike where the intervals of the average
drop (AD) and of the people classified correctly lie within 5 points. R4 holds if every weight is like the usual one,
and does not hold if the AD or the accuracy of one is lower or higher by more than 5 points, by the interval and in
every seed. R6 holds if the AD of the cosine is lower than that of each other distance, and does not hold if that of
one is lower."""
OF_ALONE = """\
Founding networks of the first fold of each seed, by `python benchmarks/patients_networks.py alone`: trained as in the
first section, with guided gradients in place of gradients (guided alone), beside weight 0, the usual training. Unlike
the source: two classes, 4 mm, and Adam, whose steps hardly depend on the size of gradients. Said before anything was
seen: the training is unstable if in every seed its loss stops being finite, or is no lower in the last epoch than in
the first; it is stable if in every seed the loss is finite and lower. `correct` as above; chance is 50, and a network
that knows nothing has a loss of .693. All took 2.7 minutes of a core that others used too."""
STUDIES = {
    "own": Study("Networks that explain themselves", OWN, own_recipes, own_pairs),
    "probes": Study("Probes", PROBES, probe_recipes, probe_pairs, whole=4),
    "depth": Study("Probes, depth", DEPTH, depth_recipes, depth_pairs),
    "readable": Study("Readable gradients", READABLE, readable_recipes, readable_pairs, False, cams=CAMS, curves=8),
    "weights": Study(
        "Readable gradients, weights and distances", OF_WEIGHTS, readable_recipes, weights_pairs, False, cams=CAMS[:1]
    ),
    "alone": Study("Guided gradients alone", OF_ALONE, alone_recipes, alone_pairs, False, losses=True),
}
