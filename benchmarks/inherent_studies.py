"""Studies of networks that explain themselves, on a registered run whose truth is known; one command each.

    python benchmarks/inherent_studies.py implicit RUN OUT --seeds 43 44 45
    python benchmarks/inherent_studies.py search RUN OUT --only founding "BCE, B 1.5" --seeds 43 44

implicit   where contributions lie that are no anatomy: outside the brain, on faces of the volume, at the brain's rim
explicit   which share of the margin between the classes is owed to trained biases and running means
trade-off  accuracy, localisation and alignment of W(x) with the scan over B and temperature
removal    probability of the disease while voxels are taken away, in the order of several maps
cascade    whether maps change as layers are drawn anew, from the head down
angle      one unit: how far its best direction depends on what it must not answer to, over B
templates  one dynamic alignment unit: whether it learns the principal components of its data
search     whether a B-cos network finds planted disease as well as the founding network does, over its settings; an
           hour or more for a seed; with --planted in copies of the controls of any run (`heatlas evaluate --plant`)

RUN, the demo or another registered run whose truth is known, is only read. The seed draws folds and weights. Networks
are trained where they are missing. Tables go to OUT.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pandas as pd
import torch
from harness import arguments_of
from inherent_runs import (
    BEST,
    FOUNDING,
    Recipe,
    Workplace,
    collected,
    recipes_of,
    scored,
    scored_on_copies,
    trained_networks,
)
from torch import Tensor
from torch.nn import functional

from heatlas.pipeline.attribution.entry import RunContext
from heatlas.pipeline.attribution.methods import attribute_all
from heatlas.pipeline.evaluation.bench.judging import Extent, Judge, gathered, map_jobs
from heatlas.pipeline.evaluation.bench.scan_job import ScanToJudge
from heatlas.pipeline.evaluation.bench.table import evaluation_table
from heatlas.pipeline.evaluation.scores.map_scores import ScanMasks
from heatlas.pipeline.evaluation.scores.masking import part_numbers, removal_curve
from heatlas.pipeline.models.dynamic import dynamic_weights
from heatlas.pipeline.models.inputs import from_network, read_network_volume
from heatlas.pipeline.models.storage import LoadedModel, load_model
from heatlas.pipeline.run.work.executors import open_executor
from heatlas.pipeline.run.work.jobs import run_jobs
from heatlas.studies.coda.network import CodaConv3d
from heatlas.studies.inherent import contrast, contributions

Recipes = tuple[Recipe, ...]
FACE = 2
"""Voxels from a face of the volume that count as on it."""
REMOVED_SHARE = 0.25
"""Of the brain, taken away at most: beyond, nothing is left that a network was trained on."""
SCORES = ["balanced_accuracy", "auroc_difference", "hits_difference", "auroc_mean", "hits_mean"]
COLUMNS = ["recipe", "map", *SCORES, "train_loss", "train_balanced_accuracy", "validation_loss", "minutes"]
"""That the search prints."""


@dataclasses.dataclass(frozen=True)
class Explained:
    """One test scan and the network that has not seen it."""

    scan_id: str
    positive: bool
    volume: Tensor
    loaded: LoadedModel
    fold: int


def scans_and_networks(work: Workplace, recipe: Recipe, seed: int, positive_only: bool = False) -> Iterator[Explained]:
    """Test scans of all folds, one per participant, with the recipe's networks; these are trained if missing."""
    cohort, found = trained_networks(work, recipe, seed)
    models = {fold.index: load_model(found.layout.fold(fold.index)) for fold in cohort.tested_folds}
    for scan in cohort.positive if positive_only else cohort.scans:
        loaded = models[cohort.fold_of(scan)]
        files = work.layout.scan(scan.participant_id, scan.session_id, cohort.config.registration.resolution_mm)
        volume = torch.from_numpy(read_network_volume(files, loaded.input))[None, None]
        yield Explained(scan.scan_id, scan in cohort.positive, volume, loaded, cohort.fold_of(scan))


def encoded(loaded: LoadedModel, volume: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The pairs of a scan, and the logits as a function of them."""
    encoding, *rest = loaded.model.stages
    with torch.no_grad():
        return encoding(volume), torch.nn.Sequential(*rest)


def of_each_class(loaded: LoadedModel, volume: Tensor) -> Tensor:
    """Contributions (2, D, H, W) of a scan to both logits."""
    pairs, logits = encoded(loaded, volume)
    return torch.cat([contributions(loaded.model, lambda x, of=of: logits(x)[:, of], pairs).sum(1) for of in (0, 1)])


def implicit(work: Workplace, seed: int, recipes: Recipes) -> pd.DataFrame:
    """Shares of |contribution| outside the brain and on faces, and at the rim over its share of voxels."""
    rows = []
    for recipe in recipes:
        for one in scans_and_networks(work, recipe, seed, positive_only=True):
            both, places = of_each_class(one.loaded, one.volume), parts_of(one.loaded, one.volume)
            of_each = {"AD logit": both[1], "AD less mean of the classes": both[1] - both.mean(0)}
            for name, values in of_each.items():
                rows.append({"recipe": recipe.name, "map": name, **misplaced(values.numpy(), places)})
    return pd.DataFrame(rows).groupby(["recipe", "map"], sort=False).mean().reset_index()


def parts_of(loaded: LoadedModel, volume: Tensor) -> ScanMasks:
    """The brain of a scan, where it is above 0, and its rim."""
    brain = volume[0, 0].numpy() > 0
    return ScanMasks.of(brain, np.zeros(brain.shape, np.int64), (), loaded.input.resolution_mm)


def misplaced(values: np.ndarray, places: ScanMasks) -> dict[str, float]:
    """Shares of |values| and of positive values where no anatomy is."""
    size, faces = np.abs(values), np.ones(values.shape, bool)
    faces[(slice(FACE, -FACE),) * 3] = False
    around = places.brain | places.rim
    found = {"outside": float(size[~places.brain].sum() / size.sum()), "faces": float(size[faces].sum() / size.sum())}
    above = np.clip(values, 0, None)
    found["positive outside"] = float(above[~places.brain].sum() / max(above.sum(), 1e-30))
    rim = size[places.rim].sum() / size[around].sum()
    return found | {"rim": float(rim / (places.rim.sum() / around.sum()))}


def explicit(work: Workplace, seed: int, recipes: Recipes) -> pd.DataFrame:
    """Part of logit AD - logit CN that constants of the network add, not voxels (Böhle 2024, section 6.3.4)."""
    rows = []
    for recipe in recipes:
        for one in scans_and_networks(work, recipe, seed):
            owed, margin = owed_and_margin(one.loaded, one.volume)
            rows.append({"recipe": recipe.name, "owed": owed, "margin": margin})
    table = pd.DataFrame(rows).assign(
        ratio=lambda t: t["owed"] / t["margin"], size=lambda t: t["owed"].abs(), of=lambda t: t["margin"].abs()
    )
    found = table.groupby("recipe", sort=False).agg(
        median_ratio=("ratio", "median"), mean_constant=("size", "mean"), mean_margin=("of", "mean")
    )
    return found.assign(constant_over_margin=found["mean_constant"] / found["mean_margin"]).reset_index()


def owed_and_margin(loaded: LoadedModel, volume: Tensor) -> tuple[float, float]:
    """What constants of the network add to logit AD - logit CN of a scan, and the difference itself."""
    pairs, logits = encoded(loaded, volume)
    margin = lambda x: contrast(1, 0)(logits(x))  # noqa: E731
    from_voxels = contributions(loaded.model, margin, pairs)
    with torch.no_grad():
        whole = float(margin(pairs))
    return whole - float(from_voxels.sum()), whole


def trade_off(work: Workplace, seed: int, recipes: Recipes) -> pd.DataFrame:
    """A row per B and temperature: scores of the bench, and the cosine of W(x) with the scan inside the brain."""
    rows = []
    for recipe in recipes:
        table = scored(work, recipe, work.cohort(recipe.config(work.run, seed)), seed)
        kept = table.iloc[0][SCORES]
        cosines = [alignment(one) for one in scans_and_networks(work, recipe, seed)]
        rows.append({"recipe": recipe.name, **kept, "cosine": float(np.mean(cosines))})
    return pd.DataFrame(rows)


def alignment(one: Explained) -> float:
    """Cosine of the row of W(x) for the predicted class with the encoded scan; 1 would be a copy of the scan."""
    pairs, logits = encoded(one.loaded, one.volume)
    with torch.no_grad():
        said = int(logits(pairs).argmax())
    weights = dynamic_weights(one.loaded.model, lambda x: logits(x)[:, said], pairs)
    weights = weights * (pairs.sum(1, keepdim=True) > 0)
    return float(functional.cosine_similarity(weights.flatten(), pairs.flatten(), dim=0))


def removal(work: Workplace, seed: int, _: Recipes) -> pd.DataFrame:
    """Probability of the disease while up to a quarter of the brain is taken away; mean over patients."""
    of_founding = founding_maps(work, seed)
    rows = []
    for one in scans_and_networks(work, BEST, seed, positive_only=True):
        pairs, logits = encoded(one.loaded, one.volume)
        own = contributions(one.loaded.model, lambda x, f=logits: contrast(1, 0)(f(x)), pairs).sum(1)[0]
        brain, volume = one.volume[0, 0] > 0, one.volume[0, 0]
        other = one.loaded.input.box.crop(of_founding[one.scan_id])
        draw = torch.Generator().manual_seed(seed)
        orders = {
            "inherent, most first": own,
            "inherent, least first": -own,
            "DeepLIFT of the founding network, most first": torch.from_numpy(np.ascontiguousarray(other)),
            "random": torch.rand(volume.shape, generator=draw),
        }
        parts, empty = part_numbers(brain), torch.zeros_like(volume)
        for name, values in orders.items():
            score = lambda volumes, model=one.loaded.model: torch.softmax(model(volumes), 1)[:, 1]  # noqa: E731
            curve = removal_curve(score, volume, empty, parts, values, steps=20, seed=seed)
            early = curve.fractions <= REMOVED_SHARE + 1e-3
            row = {"order": name, "before": curve.scores[0], "after 5 %": curve.scores[1]}
            rows.append(row | {"after 25 %": curve.scores[early][-1], "mean up to 25 %": curve.scores[early].mean()})
    return pd.DataFrame(rows).groupby("order", sort=False).mean().reset_index()


def founding_maps(work: Workplace, seed: int) -> dict[str, np.ndarray]:
    """DeepLIFT of the patients by the founding network, on the template grid, by scan id."""
    cohort, found = trained_networks(work, FOUNDING, seed)
    asked, maps = FOUNDING.explanations(cohort.config)[0], {}
    for job in map_jobs(found.explaining(cohort), (asked,), work.digests, "maps"):
        task: ScanToJudge = job.arguments[0]
        if task.scan in cohort.positive:
            network = task.networks[0].network
            loaded, reference = network.load(torch.device("cpu")), network.reference(torch.device("cpu"))
            volume = torch.from_numpy(read_network_volume(task.files, loaded.input))[None, None]
            method = asked.build(RunContext(task.atlas, loaded.input.box, reference))
            (answer,) = attribute_all(loaded.model, volume, 1, method, asked.stage_in(loaded.model), asked.start)
            maps[task.scan.scan_id] = from_network(answer.values[0, 0].numpy(), loaded.input)
    return maps


def cascade(work: Workplace, seed: int, _: Recipes) -> pd.DataFrame:
    """Likeness to the true map, voxel by voxel in the brain, as more layers are drawn anew; scans of the bench."""
    cohort, found = trained_networks(work, BEST, seed)
    own, explanations = found.explaining(cohort), BEST.explanations(cohort.config)
    untold = dataclasses.replace(own, truth=None)
    jobs = Judge(untold, explanations, Extent(nulls=True), work.digests).jobs()
    jobs = [dataclasses.replace(job, stage="cascade") for job in jobs if len(job.arguments[0].networks) > 1]
    outcomes = run_jobs(work.layout, jobs, work.executor, "cascade")
    rows = gathered(own, [one for one in outcomes if one.ok], explanations)
    table = evaluation_table(dataclasses.replace(own, name="run"), rows)
    return table.loc[table["map"] == "inherent", ["network", "n_scans", "spearman_real", "ssim_real"]]


def angle() -> pd.DataFrame:
    """Best direction of one unit that must answer at 60 degrees, for distractors at 20 and at 100 degrees."""
    angles = torch.linspace(-math.pi, math.pi, 7201, dtype=torch.float64)
    rows = []
    for b in (1, 1.5, 2, 2.5, 4, 8, 16, 64):
        best = []
        for elsewhere in (20.0, 100.0):
            cosines = [torch.cos(angles - math.radians(place)) for place in (60.0, elsewhere)]
            wanted, unwanted = (c.sign() * c.abs() ** b for c in cosines)
            loss = functional.softplus(-wanted) + 0.5 * functional.softplus(unwanted)
            best.append(float(torch.rad2deg(angles[loss.argmin()])))
        gap = abs(best[0] - best[1])
        rows.append({"B": b, "distractors at 20": best[0], "distractors at 100": best[1], "gap": gap})
    return pd.DataFrame(rows)


def templates(seed: int) -> pd.DataFrame:
    """Smallest principal cosine between what a unit of rank 3 learns and three templates, or their three components."""
    rows = []
    draw = torch.Generator().manual_seed(seed)
    truth = functional.normalize(torch.randn(3, 125, generator=draw), dim=1) * math.sqrt(125) / 2
    x = truth[torch.randint(3, (3072,), generator=draw)] + 0.5 * torch.randn(3072, 125, generator=draw)
    principal = torch.linalg.svd(x, full_matrices=False).Vh[:3].T
    for bound in ("l2", "sq", "wb"):
        torch.manual_seed(seed)
        one = CodaConv3d(125, 1, 1, rank=3, bound=bound, vote=False)
        optimiser = torch.optim.Adam(one.parameters(), 0.01)
        for _step in range(400):
            optimiser.zero_grad()
            (-one(x.view(-1, 125, 1, 1, 1)).mean()).backward()
            optimiser.step()
        span = torch.linalg.qr(one.expand_weight.flatten(1).T.detach()).Q
        row = {"bound": bound}
        for name, basis in (("templates", truth.T), ("principal components", principal)):
            row[name] = float(torch.linalg.svdvals(span.T @ torch.linalg.qr(basis).Q).min())
        rows.append(row)
    return pd.DataFrame(rows)


def search(work: Workplace, seed: int, recipes: Recipes, planted: bool = False) -> pd.DataFrame:
    """Scores of `heatlas evaluate` by recipe, which are kept in OUT/search.tsv as they come."""
    tables = []
    for recipe in recipes:
        if planted:
            table = scored_on_copies(work, recipe, seed)
        else:
            table = scored(work, recipe, work.cohort(recipe.config(work.run, seed)), seed)
        collected([table], work.out / "search.tsv")
        tables.append(table.reindex(columns=COLUMNS))
        print(f"{recipe.name}, seed {seed}", flush=True)
    return pd.concat(tables)


Study = Callable[[Workplace, int, Recipes], pd.DataFrame]
STUDIES: dict[str, Study] = {
    "implicit": implicit,
    "explicit": explicit,
    "trade-off": trade_off,
    "removal": removal,
    "cascade": cascade,
    "angle": lambda *_: angle(),
    "templates": lambda _, seed, __: templates(seed),
    "search": search,
}


def main() -> None:
    arguments = arguments_of(
        __doc__,
        "study run out --seeds --only --folds --n-procs",
        study={"choices": STUDIES},
        seeds=[43],
        planted=(False, "of search: plant loss in copies of the controls"),
    )
    torch.set_num_threads(1)
    study = partial(search, planted=True) if arguments.planted else STUDIES[arguments.study]
    recipes = tuple(one for one in recipes_of(arguments.study) if not arguments.only or one.name in arguments.only)
    tables: list[pd.DataFrame] = []
    with open_executor(arguments.n_procs) as executor:
        work = Workplace(arguments.run, arguments.out, executor, arguments.folds)
        for seed in arguments.seeds:
            tables.append(study(work, seed, recipes).assign(seed=seed))
            table = pd.concat(tables, ignore_index=True)
            if arguments.study != "search":  # which keeps more
                table.to_csv(arguments.out / f"{arguments.study}.tsv", sep="\t", index=False)
            print(tables[-1].round(3).to_string(index=False), flush=True)
    keys = [name for name in table.columns if table[name].dtype == object]
    if len(tables) > 1 and keys:
        print("mean over seeds")
        print(table.drop(columns="seed").groupby(keys, sort=False).mean().round(3).to_string())


if __name__ == "__main__":
    main()
