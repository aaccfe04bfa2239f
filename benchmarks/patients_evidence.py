"""Whether more accurate networks have better evidence: networks of many families and strengths on the same patients.

Every recipe has a network a fold; each person is explained by the one that has not seen him or her: logit, and density
of the evidence in every region. OUT/evidence.tsv has a row a network, OUT/relations.tsv one a measure. `heatlas
evaluate --parts consensus` asks the same of one recipe, its epochs and families with a truth; here recipes differ in
more, and there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from inherent_runs import FOUNDING, PERSON, Ask, Recipe, Workplace, recipes_of, trained_networks
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.preprocessing import StandardScaler

from heatlas.pipeline.evaluation.bench.judging import LEAST_SPREAD, map_jobs, maps_of, participant_densities
from heatlas.pipeline.evaluation.nulls import REAL
from heatlas.pipeline.evaluation.scores.accuracy import HeldOutPeople, auc
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.regions.effect_size import hedges_g
from heatlas.pipeline.run.work.jobs import run_jobs
from heatlas.pipeline.run.work.seeds import derived_seed
from heatlas.pipeline.training.baselines import ridge
from heatlas.pipeline.training.baselines.images import image_features
from heatlas.studies.consensus.agreement import agreement, consensus, places, trend

Floats = NDArray[np.float64]
REGION = "Hippocampus"
METHODS = ("deeplift", "expected-gradients")
"""Of evidence: the first that the family has. DeepLIFT takes a tenth of the time (docs/benchmarks/evaluation.md)."""
DRAWS = 2000
RIDGE = "ridge on regions"
NEAR = 0.3
"""Bound of "no relation": the interval of a rank correlation lies within."""
RECIPES = recipes_of("evidence")


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the networks of a recipe say of everybody, in one order of people."""

    name: str
    family: str
    whole: bool  # trained on all people of a fold to the last epoch
    margin: Floats  # logit of the patients less that of the others, (people,)
    densities: Floats  # (people, regions)


def family_of(recipe: Recipe) -> str:
    return str(recipe.settings.get("model", {}).get("architecture", "founding"))


def is_whole(recipe: Recipe) -> bool:
    """Whether neither people nor epochs were taken away."""
    return not {"participants", "max_epochs"} & set(recipe.settings.get("training", {}))


def units(work: Workplace, seed: int) -> Iterator[tuple[str, Ask]]:
    for recipe in RECIPES:
        yield recipe.name, partial(answers, work, recipe, seed)
    yield RIDGE, partial(by_regions, work, seed)


def answers(work: Workplace, recipe: Recipe, seed: int) -> pd.DataFrame:
    """Logit and densities of every person by the networks of a recipe, which are trained if missing."""
    cohort, found = trained_networks(work, recipe, seed)
    explaining = found.explaining(cohort)
    explanations = replace(recipe, methods=METHODS).explanations(cohort.config)[:1]
    jobs = map_jobs(explaining, explanations, work.digests, "maps")
    outcomes = run_jobs(work.layout, jobs, work.executor, f"{found.name} maps")
    left, rows = maps_of(explaining, explanations, outcomes)
    (name,) = explanations[0].names
    own = rows.scores[(rows.scores["network"] == REAL) & (rows.scores["map"] == name)].set_index("scan_id")["logit"]
    people = {scan.participant_id: float(own[scan.scan_id]) for scan in left.scans}
    table = participant_densities(left, rows, name).rename_axis(PERSON)
    table.insert(0, "logit", [people[person] for person in table.index.get_level_values("person")])
    return table.add_prefix(f"{recipe.name}, ").reset_index()


def by_regions(work: Workplace, seed: int) -> pd.DataFrame:
    """As `answers`, of the baseline: a region gives what its mean and spread add to the logit beside those of controls.

    Folds, people and penalty are those of the baseline `regions` of the run.
    """
    cohort = work.cohort(FOUNDING.config(work.run, seed))
    spec = configured_input(cohort.config)
    scans = {scan.participant_id: scan for scan in cohort.labelled}
    files = [cohort.layout.scan(s.participant_id, s.session_id, spec.resolution_mm) for s in scans.values()]
    images = [image_features(one, spec, cohort.atlas) for one in files]
    columns = np.stack([np.concatenate([one.means, one.spreads]) for one in images])
    people, ill = np.array(list(scans)), np.array([s.label == cohort.config.cohort.positive for s in scans.values()])
    numbers = [number for number in np.unique(cohort.atlas.labels_in(spec.box)) if number]
    groups = cohort.atlas.regions.groups
    members = np.array([[number in own for number in numbers * 2] for own in groups.values()], float)
    rows = []
    for fold in cohort.tested_folds:
        train, test = np.isin(people, [*fold.train, *fold.validation]), np.isin(people, [*fold.test])
        own_seed = derived_seed(seed, "baselines", fold.index)
        logit, parts = ridge_parts(columns[train], ill[train], people[train].tolist(), columns[test], own_seed)
        added = parts @ members.T
        for place, person in enumerate(people[test]):
            rows.append([person, float(ill[test][place]), fold.index, logit[place], *added[place]])
    return pd.DataFrame(rows, columns=[*PERSON, *(f"{RIDGE}, {name}" for name in ("logit", *groups))])


def ridge_parts(
    train: Floats, ill: NDArray[np.bool_], people: Sequence[str], test: Floats, seed: int
) -> tuple[Floats, Floats]:
    """Logits of test scans as `ridge.predicted` has them, and what each column adds beside the mean control."""
    scaler = StandardScaler().fit(train)
    x, z = scaler.transform(train), scaler.transform(test)
    wide = x.shape[1] > x.shape[0]
    turn = x.T @ ridge.rotation(x @ x.T, x.shape[1]) if wide else np.eye(x.shape[1])
    found = ridge.fit(x @ turn, ill.astype(float), people, 2, seed)
    weights = turn @ (found.weights[1] - found.weights[0])
    logit = z @ weights + found.intercepts[1] - found.intercepts[0]
    return logit, (z - x[~ill].mean(0)) * weights


def tissue_of(run: Path, people: Sequence[str], regions: Sequence[str]) -> Floats:
    """Mean intensity of each region in each person, (people, regions)."""
    table = pd.read_csv(run / "group" / "image_regions.tsv", sep="\t")
    return table.pivot_table("intensity", "participant_id", "group").loc[list(people), list(regions)].to_numpy(float)


def other_families(networks: Sequence[Evidence], own: str, g: Mapping[str, Floats]) -> Floats:
    """Mean place of each region over the families but one; each family is the mean of its networks."""
    others = sorted({one.family for one in networks} - {own})
    rest = [sorted(one.name for one in networks if one.family == other) for other in others]
    return np.mean([consensus([g[name] for name in names])[0] for names in rest], axis=0)


def measures_of(
    networks: Sequence[Evidence],
    asked: Sequence[Evidence],
    tissue: Floats,
    people: HeldOutPeople,
    times: Floats,
    region: int,
) -> pd.DataFrame:
    """Area and measures of the evidence, a row for each that is asked.

    Parameters
    ----------
    networks : sequence of Evidence
        Those that make the consensus; each is compared with the others.
    times : array, shape (people,)
        How often each person is drawn.
    region : int
        Place of the one whose rank is wanted.
    """
    drawn = np.repeat(np.arange(len(times)), times.astype(int))
    outcome, fold = people.positive[drawn].astype(float), people.fold[drawn].astype(np.intp)
    g_of = lambda values: hedges_g(values[drawn], outcome, fold, LEAST_SPREAD)  # noqa: E731
    every = {one.name: g_of(one.densities) for one in {*networks, *asked}}
    of_tissue, rows = np.abs(g_of(tissue)), []
    for one in asked:
        g = every[one.name]
        others = consensus([every[other.name] for other in networks if other.name != one.name])[0]
        row = {"name": one.name, "area": float(auc(one.margin, people, times[None])[0])}
        row |= {"place": places(g)[region], "g": g[region], "others": agreement(g, -others)}
        row["families"] = agreement(g, -other_families(networks, one.family, every))
        rows.append(row | {"tissue": agreement(np.abs(g), of_tissue)})
    return pd.DataFrame(rows).set_index("name")


MEASURES = ("place", "g", "others", "families", "tissue")
"""Place and Hedges' g of the hippocampus, where 1 is the best place; agreement with the mean of the other networks, and
of the other families; and with the difference of the images."""


def better(table: pd.DataFrame, measure: str) -> Floats:
    values = table[measure].to_numpy(float)
    return -values if measure == "place" else values


def correlations(draws: Sequence[pd.DataFrame], names: Sequence[str], measure: str, seed: int) -> tuple[float, float]:
    """95 % interval of Spearman's rho of area and measure: a draw of the people, and one of the networks from it."""
    random, found = np.random.default_rng(seed), []
    for drawn in draws:
        own = drawn.loc[random.choice(list(names), len(names))]
        x, y = own["area"].to_numpy(float), better(own, measure)
        if np.ptp(x) and np.ptp(y):
            found.append(spearmanr(x, y).statistic)
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def answer(low: float, high: float) -> str:
    """What the interval says of "more accurate networks have better evidence".

    Examples
    --------
    >>> answer(0.1, 0.8), answer(-0.2, 0.25), answer(-0.8, -0.1), answer(-0.4, 0.6)
    ('holds', 'does not', 'does not', 'open')
    """
    if low > 0:
        return "holds"
    return "does not" if high < 0 or max(-low, high) <= NEAR else "open"


def tables_of(
    networks: Sequence[Evidence], baseline: Evidence, tissue: Floats, people: HeldOutPeople, region: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A row per network, the most accurate first, and one per measure of all networks and of the whole ones."""
    every = [*networks, baseline]
    found = measures_of(networks, every, tissue, people, np.ones(len(tissue)), region)
    draws = [measures_of(networks, every, tissue, people, one, region) for one in people.weights(DRAWS, 0)]
    low, high = np.quantile([one["area"] for one in draws], [0.025, 0.975], axis=0)
    whole = [one.whole for one in every]
    own = found.assign(whole=whole, area_low=low, area_high=high).sort_values("area", ascending=False).reset_index()
    rows = []
    for measure in MEASURES:
        for title, chosen in (("all", networks), ("whole", [one for one in networks if one.whole])):
            names = [one.name for one in chosen]
            rising = trend(found.loc[names, "area"].to_numpy(float), better(found.loc[names], measure), 0)
            ends = correlations([drawn.loc[names] for drawn in draws], names, measure, 0)
            verdict = "cannot decide" if measure == "g" else answer(*ends)
            rows.append([measure, title, rising.n, rising.rho, *ends, rising.p, verdict])
    return own, pd.DataFrame(rows, columns=["measure", "networks", "n", "rho", "low", "high", "p", "verdict"])


def write_tables(run: Path, out: Path, rows: pd.DataFrame) -> None:
    """Write what all networks of the first seed say together."""
    recipes, parts = {one.name: one for one in RECIPES}, {}
    for name, own in rows[rows["seed"] == rows["seed"].min()].groupby("recipe"):
        table = own.pivot_table("value", PERSON, "measure")
        parts[name] = table.rename(columns=lambda measure, name=name: measure.removeprefix(f"{name}, "))
    order = parts[RIDGE].index.sort_values()  # of people whom all networks explain
    for table in parts.values():
        order = order.intersection(table.index)
    parts = {name: parts[name].loc[order] for name in [*(one for one in recipes if one in parts), RIDGE]}
    regions = set.intersection(*(set(own.columns[own.max() > own.min()]) for own in parts.values())) - {"logit"}
    kept, found = sorted(regions), []
    for name, own in parts.items():
        family, whole = (RIDGE, False) if name == RIDGE else (family_of(recipes[name]), is_whole(recipes[name]))
        found.append(Evidence(name, family, whole, own["logit"].to_numpy(float), own[kept].to_numpy(float)))
    names, outcome, fold = (np.array(order.get_level_values(one)) for one in PERSON)
    people = HeldOutPeople(names, fold, outcome == 1)
    tables = tables_of(found[:-1], found[-1], tissue_of(run, names, kept), people, kept.index(REGION))
    for name, table in zip(("evidence", "relations"), tables, strict=True):
        table.to_csv(out / f"{name}.tsv", sep="\t", index=False, float_format="%.4g")
        print(table.round(3).to_string(index=False))
