"""Claims about kinds of networks, their probes and their own maps, asked of patients: one cohort, the same folds.

    python benchmarks/patients_networks.py own RUN OUT --seeds 43 44 45 --page PAGE
    python benchmarks/patients_networks.py probes RUN OUT --seeds 43 44 45 --page PAGE

RUN is a registered run of `benchmarks/patients.py`; it is only read.

own        B-cos and CoDA networks beside conventional ones: answers, and their own maps in grids beside post-hoc maps
probes     heads of both losses on frozen networks: answers, grids, sparsity, and what the least important places do
readable   networks trained with readable gradients beside weight 0: answers and masked recognition of CAM methods

OUT/people.tsv keeps a row per recipe, seed, person and measure; the same command continues. Differences are over
people, each by the mean of the seeds, with an interval; the page shows every seed.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from inherent_runs import Recipe, Workplace, networks, trained
from inherent_search import BCE, BEST, FOUNDING, GOOD, bcos
from patients_cams import judged as masked
from probes import BACKBONES, backbone_of, probes
from sections import write_section
from torch import Tensor

from heatlas.pipeline.attribution.entry import RunContext
from heatlas.pipeline.attribution.methods import attribute_all
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.consensus.networks import Networks
from heatlas.pipeline.evaluation.grids.directions import by_participant
from heatlas.pipeline.evaluation.grids.stage import evaluate_grids, read_scores
from heatlas.pipeline.evaluation.scores.intervals import DRAWS, participant_interval
from heatlas.pipeline.evaluation.scores.overlap import entropy, gini
from heatlas.pipeline.evaluation.scores.removal import part_numbers, removal_curve
from heatlas.pipeline.models.inputs import read_network_volume
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.run.work.executors import open_executor

HEADING = "Claims asked of patients"
KEYS = ["recipe", "seed", "person"]
POSTHOC = ("gradient", "input-x-gradient", "integrated-gradients", "grad-cam")
FAITHFUL = ("inherent", "lrp beta=0", "lrp composite gamma=0.25", "integrated-gradients", "input-x-gradient")
CAMS = ("grad-cam", "score-cam")
NEEDLES = {"evaluation": {"grids": {"kinds": ["needle"]}}}
DISTANCES = ("mse", "mae", "intersection")
"""Of readable gradients, beside the cosine."""
TEN_EPOCHS = {"max_epochs": 10, "min_epochs": 10}
STEPS = 20
CHANCE = 0.25
"""Of the share in a grid of four cells."""


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
        From means by (recipe, measure), the differences that the claims are about.
    grids : bool
        Whether maps are asked for in grids.
    whole : int
        First of each fold, by name, whose maps are judged for sparsity and while places are taken away.
    cams : tuple of str
        Methods of masked recognition, asked of everybody.
    curves : int
        First of each fold, with insertion and deletion.
    """

    title: str
    preface: str
    recipes: Callable[[Workplace, int], Sequence[Recipe]]
    pairs: Callable[[pd.DataFrame], Iterator[tuple[str, str, str, str, str]]]
    grids: bool = True
    whole: int = 0
    cams: tuple[str, ...] = ()
    curves: int = 0


def answers(cohort: JudgedCohort, found: Networks, study: Study, recipe: Recipe) -> Iterator[dict[str, object]]:
    """Measures of every test person by the network that has not seen them."""
    explanations = [dataclasses.replace(one, start="logit") for one in recipe.explanations(found.config)]
    for fold in cohort.tested_folds:
        loaded = load_model(found.layout.fold(fold.index))
        context = RunContext(cohort.atlas, loaded.input.box, None)
        own = sorted((scan for scan in cohort.scans if cohort.fold_of(scan) == fold.index), key=lambda s: s.scan_id)
        for place, scan in enumerate(own):
            files = cohort.layout.scan(scan.participant_id, scan.session_id, loaded.input.resolution_mm)
            volume, target = (
                torch.from_numpy(read_network_volume(files, loaded.input))[None, None],
                int(scan in cohort.positive),
            )
            with torch.no_grad():
                logits = loaded.model(volume)[0]
            row = {"correct": 100.0 * (int(logits.argmax()) == target), "logit": float(logits[1] - logits[0])}
            for name in study.cams:
                rest = ("insertion", "deletion") if place < study.curves else ()
                scores, _ = masked(loaded, volume, volume[0, 0] != 0, target, name, rest)
                row |= {f"{score}: {name}": value for score, value in scores.items() if score != "seconds"}
            for asked in explanations if place < study.whole else ():
                method = asked.build(context)
                maps = attribute_all(loaded.model, volume, target, method, asked.stage_in(loaded.model), asked.start)
                for name, one in zip(asked.names, maps, strict=True):
                    row |= {
                        f"{score}: {name}": value
                        for score, value in shape(loaded.model, volume, target, one.values[0, 0]).items()
                    }
            yield {"person": scan.participant_id, **row}


def shape(model: torch.nn.Module, volume: Tensor, target: int, values: Tensor) -> dict[str, float]:
    """Sparsity of a map's positive values in the brain, and the mean probability while the least go first."""
    brain = volume[0, 0] != 0
    if values.shape != brain.shape:
        return {}
    above = np.where(brain.numpy(), values.clamp(min=0).numpy(), 0).astype(float)
    found = {"gini": gini(above[brain.numpy()]), "entropy": entropy(above[brain.numpy()])}
    score = lambda volumes: model(volumes).softmax(1)[:, target]  # noqa: E731
    curve = removal_curve(score, volume[0, 0], torch.zeros_like(volume[0, 0]), part_numbers(brain), -values, STEPS)
    return found | {"least first": 100 * curve.area}


def shares(cohort: JudgedCohort, found: Networks, recipe: Recipe, work: Workplace) -> pd.DataFrame:
    """Mean share of a person's grids, and that of the largest values alone; measures named by map and depth."""
    explaining = found.explaining(cohort)
    asked = tuple(dataclasses.replace(one, start="logit") for one in recipe.explanations(explaining.config))
    evaluate_grids(explaining, asked, True, work.executor, work.digests)
    scores = read_scores(sorted((explaining.layout.evaluation / "grids").glob(f"{explaining.name}_*_scores.tsv")))
    scores = scores[scores["grid"].notna()]
    people = {place: scan.participant_id for place, scan in enumerate(explaining.scans)}
    rows = []
    for (setting, name, depth), own in scores.groupby(["setting", "method", "depth"]):
        for column, word in (("share", "share"), ("top_share", "top")):
            each, where = 100 * by_participant(own, people, column), "" if setting == "GridPG" else f"{setting} "
            measure = f"{where}{word}: {name} at {depth:g}"
            rows.append(pd.DataFrame({"person": each.index, "measure": measure, "value": each.to_numpy()}))
    return pd.concat(rows, ignore_index=True)


def made(work: Workplace, study: Study, recipe: Recipe, seed: int) -> pd.DataFrame:
    """All measures of the networks of a recipe and seed."""
    cohort = work.cohort(recipe.config(work.run, seed))
    found = networks(recipe, cohort, seed)
    trained(work, found, cohort)
    wide = pd.DataFrame(list(answers(cohort, found, study, recipe)))
    rows = wide.melt(id_vars="person", var_name="measure").dropna(subset="value")
    if study.grids and recipe.methods:
        rows = pd.concat([rows, shares(cohort, found, recipe, work)], ignore_index=True)
    return rows.assign(recipe=recipe.name, seed=seed)


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


def own_pairs(means: pd.DataFrame) -> Iterator[tuple[str, str, str, str, str]]:
    """Differences of the claims about networks that explain themselves."""
    measures = means.groupby("recipe")["measure"].unique()
    first = {"B-cos, B 1.5": ("B8, B11", "B9, B10"), "CoDA-S": ("K4", "K5")}
    inherent = "share: inherent at 0"
    for name, (same, other) in first.items():
        if name not in measures:
            continue
        for measure in sorted(
            one for one in measures[name] if one.startswith("share") and "smooth" not in one and one != inherent
        ):
            yield same, name, inherent, name, measure
        for rival in ("founding", "ResNet-10"):
            for measure in sorted(
                one
                for one in measures.get(rival, ())
                if one.startswith("share") and "smooth" not in one and "from=air" not in one
            ):
                yield other, name, inherent, rival, measure
    for measure in sorted(set(measures.get("B-cos, B 1.5", ())) & set(measures.get("founding", ()))):
        if measure.startswith("share") and "smooth" not in measure:
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


def probe_recipes(work: Workplace, seed: int) -> Sequence[Recipe]:
    """Heads and losses on the frozen networks of the founding family, then on B-cos networks."""
    found = [one for name in BACKBONES for one in probes(backbone_of(work, BACKBONES[name], seed), name)]
    return [
        dataclasses.replace(one, settings={**one.settings, "training": {**one.settings["training"], **TEN_EPOCHS}})
        for one in found
    ]


def probe_pairs(means: pd.DataFrame) -> Iterator[tuple[str, str, str, str, str]]:
    """Binary cross-entropy less cross-entropy for each head; deeper heads less linear ones for each loss."""
    measures = means.groupby("recipe")["measure"].unique()
    kept = lambda one: "smooth" not in one and "bias=false" not in one and one != "logit"  # noqa: E731
    for name in measures.index:
        body, head, loss = name.split(", ")
        other = f"{body}, {head}, CE"
        if loss == "BCE" and other in measures:
            for one in sorted(filter(kept, set(measures[name]) & set(measures[other]))):
                yield "BCE less CE", name, one, other, one
        linear = f"{body}, linear, {loss}"
        if head != "linear" and linear in measures:
            for one in sorted(filter(kept, set(measures[name]) & set(measures[linear]))):
                if one.startswith(("share", "correct")):
                    yield "P10, P11, P12", name, one, linear, one


def readable_recipes(_: Workplace, __: int) -> Sequence[Recipe]:
    """Weight 0, the usual weight, others over four decades, and four distances."""

    def recipe(name: str, **settings: object) -> Recipe:
        return Recipe(name, {"objective": {"kind": "readable-gradients", **settings}})

    weights = [recipe(f"weight {value:g}", weight=value) for value in (0.0, 1e-3, 1.0, 10.0)]
    return (weights[0], recipe("cosine"), *(recipe(name, distance=name) for name in DISTANCES), *weights[1:])


def readable_pairs(means: pd.DataFrame) -> Iterator[tuple[str, str, str, str, str]]:
    """Each recipe less weight 0."""
    for name in means["recipe"].unique():
        if name != "weight 0":
            for measure in means.loc[means["recipe"] == name, "measure"].unique():
                if measure != "logit":
                    yield "R", name, measure, "weight 0", measure


MINUTES = "Times are in docs/claims.md."
GRIDS = """\
Grids: 2 × 2 × 1 test scans of a fold side by side, the most confident of those recognised, one grid for each class and
fold; share of positive attribution in the cell of the class, from the logit, in per cent; chance is 25. `at 0` is the
input, `at 1` the last stage; `top`: the largest 2.5 % of the values alone. Each network is confident of other people,
so two networks are compared over those whom both have in a cell. `correct`: per cent of people whom the answer is right
of, chance 50."""
OWN = f"""\
The people and folds of the first section at 4 mm, by `python benchmarks/patients_networks.py own`, one network a fold.
B-cos: `bcos-simple` by binary cross-entropy; founding, CoDA-S (`coda-s`) and ResNet-10 (`resnet10`, width .25) by the
recipe `patients`; "no biases": the founding network without biases and normalisation, 40 epochs. ResNet-10 and CoDA-S
were trained for the first two folds of each seed only. Unlike the sources: two classes, small networks.
{GRIDS}
B-cos and founding networks of seed 43 were seen in grids before the rest had run. {{minutes}}"""
PROBES = f"""\
On each fold's frozen network, trained from the labels as in the first section (founding) or as `bcos-simple`, by
`python benchmarks/patients_networks.py probes`: heads of one layer (linear) and three (MLP, B-cos), ten epochs of
cross-entropy (CE) or binary cross-entropy (BCE), as in the source. Unlike the source: backbones that know the
labels, two classes. {GRIDS} Of the first four of each fold by name, in the brain: Gini index and entropy (bits) of the
positive values of a map of the true class, and the mean probability of that class while voxels go, the least important
first, in per cent. {{minutes}}"""
READABLE = """\
Founding networks of the first fold of each seed, by `python benchmarks/patients_networks.py readable`: trained as in
the first section, with input gradients that are to be like guided ones. As in the source: distances, and weights over
four decades; unlike it: two classes, 4 mm. In per cent: masked recognition of the true class as in "CAM methods", and
insertion and deletion of the first eight by name. Weight 0 is the usual training. {minutes}"""
STUDIES = {
    "own": Study("Networks that explain themselves", OWN, own_recipes, own_pairs),
    "probes": Study("Probes", PROBES, probe_recipes, probe_pairs, whole=4),
    "readable": Study("Readable gradients", READABLE, readable_recipes, readable_pairs, False, cams=CAMS, curves=8),
}


def difference(rows: pd.DataFrame, pair: tuple[str, str, str, str, str]) -> str | None:
    """A row of the page: by seed, and over people with an interval; None where one side was not asked."""
    claim, *sides = pair
    found = []
    for recipe, measure in (sides[:2], sides[2:]):
        own = rows[(rows["recipe"] == recipe) & (rows["measure"] == measure)]
        found.append(own.set_index(["seed", "person"])["value"])
    change = (found[0] - (found[1] if sides[2] else 100 * CHANCE)).dropna()
    if change.empty:
        return None
    seeds = ", ".join(f"{one:+.2f}" for one in change.groupby("seed").mean())
    each = change.groupby("person").mean().to_numpy()
    low, high = participant_interval((each,), np.mean, DRAWS, 0)
    against = f"{sides[2]}, {sides[3]}" if sides[2] else "chance"
    mean = f"{each.mean():+.2f} ({low:+.2f} to {high:+.2f})"
    return f"| {claim} | {sides[0]}, {sides[1]} less {against} | {len(each)} | {seeds} | {mean} |"


def section(rows: pd.DataFrame, study: Study) -> str:
    """Means by recipe and measure and seed, then the differences."""
    lines = [
        study.preface.format(minutes=MINUTES),
        "",
        "| recipe | measure | people | mean by seed |",
        "|---|---|---|---|",
    ]
    for (recipe, measure), own in rows.groupby(["recipe", "measure"], sort=False):
        if "smooth" in measure or measure == "logit":
            continue
        seeds = ", ".join(f"{one:.2f}" for one in own.groupby("seed")["value"].mean())
        lines.append(f"| {recipe} | {measure} | {own['person'].nunique()} | {seeds} |")
    lines += ["", "| claim | difference | people | seeds | mean (95 %) |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *filter(None, (difference(rows, pair) for pair in study.pairs(rows)))])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[43, 44, 45])
    parser.add_argument("--only", nargs="+", help="recipes, by name")
    parser.add_argument("--folds", type=int, default=0, help="the first ones only; 0 for all")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--n-procs", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    study, kept = STUDIES[options.study], options.out / "people.tsv"
    options.out.mkdir(parents=True, exist_ok=True)
    rows = pd.read_csv(kept, sep="\t") if kept.is_file() else pd.DataFrame(columns=[*KEYS, "measure", "value"])
    with open_executor(options.n_procs) as executor:
        work = Workplace(options.run, options.out, executor, options.folds)
        for seed in options.seeds:
            for recipe in study.recipes(work, seed):
                done = ((rows["recipe"] == recipe.name) & (rows["seed"] == seed)).any()
                if done or (options.only and not any(re.fullmatch(one, recipe.name) for one in options.only)):
                    continue
                rows = pd.concat([rows, made(work, study, recipe, seed)], ignore_index=True)
                rows.to_csv(kept, sep="\t", index=False)
                print(f"{recipe.name}, seed {seed}", flush=True)
    text = section(rows, study)
    print(text)
    if options.page:
        write_section(options.page, study.title, text, HEADING)
    return 0


if __name__ == "__main__":
    sys.exit(main())
