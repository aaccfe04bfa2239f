"""Relevance and volumes of regions with no effect beyond covariates and folds, and the tests of tables made on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from heatlas.pipeline.run.config.statistics import ProgressionConfig, StatisticsConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.arrays import Resampling
from heatlas.pipeline.statistics.associations.volume_association import WITHIN, volume_association
from heatlas.pipeline.statistics.harmonisation.sites import site_effect
from heatlas.pipeline.statistics.linear.correlation import matched_test, partial_correlation
from heatlas.pipeline.statistics.linear.fold_effect import FoldModel, model_within_folds
from heatlas.pipeline.statistics.linear.freedman_lane import PermutationTest, freedman_lane
from heatlas.pipeline.statistics.linear.permutations import Exchangeability

M, PEOPLE = 199, 60
REGIONS, MAPS = 136, 6
FAST = replace(StatisticsConfig(), permutations=M, bootstrap_samples=100, progression=ProgressionConfig(2))
Generator = np.random.Generator
Found = dict[str, np.ndarray]
"""p of some data sets, by test."""


@dataclass(frozen=True)
class Case:
    """Tests made on the same made-up data."""

    tables: str  # that make the tests
    data: str  # what they are
    function: Callable[..., Found]
    """The p values of a data set, from a generator of random numbers and the size of a planted effect, 0 for none."""
    effect: float = 0.0  # planted, that nearly every test should find; 0 where nothing can be planted
    caveat: bool = False  # whether the rows of such data say that p may be too small


def people(rng: Generator, folds: int = 4, levels: int = 3) -> pd.DataFrame:
    """60 participants; folds are unbalanced over x, age and group, sites as even as can be."""
    fold = np.arange(PEOPLE) % folds
    patient = rng.random(PEOPLE) < np.array([0.2, 0.3, 0.4, 0.5])[fold % 4]
    patient[:8], patient[8:16] = True, False
    age = rng.normal(74, 6, PEOPLE) + 3 * patient + fold
    frame = pd.DataFrame({"age": age, "fold": fold, "label": patient.astype(float)})
    frame["sex"] = np.where(rng.random(PEOPLE) < 0.5, "M", "F")
    frame["field_strength"] = np.where(rng.random(PEOPLE) < 0.3 + 0.1 * fold, "3", "1.5")
    frame["site"] = np.char.add("s", rng.permutation(np.arange(PEOPLE) % levels).astype(str))
    frame["x"] = 0.08 * (age - 75) + 0.4 * fold - 0.8 * patient + rng.normal(size=PEOPLE)
    return frame


def relevance(frame: pd.DataFrame, columns: int, rng: Generator, spread: float = 1.0) -> np.ndarray:
    """Values of networks that differ in level and scale; they go with age, and patients have `spread` as much SD."""
    values = rng.normal(size=(PEOPLE, columns)) * np.where(frame["label"] == 1, spread, 1.0)[:, None]
    values += 0.08 * (frame["age"].to_numpy()[:, None] - 75)
    fold = frame["fold"].to_numpy()[:, None]
    return values * (1 + 0.5 * fold) + 2.0 * fold


def within_folds(rng: Generator, effect: float = 0.0) -> Found:
    frame, covariates, found = people(rng, levels=8), "age + sex + field_strength", {}
    for name, method in (("partial Pearson", "pearson"), ("partial Spearman", "spearman")):
        model = model_within_folds(f"{covariates} + x", "x", frame, True)
        values = relevance(frame, 10, rng) + planted(model, effect)
        found[name] = partial_correlation(values, model.design, model.exchange, Resampling(M, rng), method).p
    groups = frame["label"].tolist()
    for name, term in (("two groups, studentised, SD 2:1", "label"), ("class x sex, studentised, SD 2:1", "label:sex")):
        formula = f"{covariates} + {'label' if term == 'label' else 'label + label:sex'}"
        model = model_within_folds(formula, term, frame, True, groups)
        values = relevance(frame, 10, rng, 2.0) + planted(model, effect)
        found[name] = freedman_lane(values, model.design, model.exchange, Resampling(M, rng), groups).p
    for term in ("age", "sex", "site"):
        model = model_within_folds("label + age + sex + field_strength + site", term, frame, True)
        values = relevance(frame, 10, rng) if term != "age" else relevance(frame.assign(age=75), 10, rng)
        named = f"main effect of {term}{' (8 sites, F)' if term == 'site' else ''}"
        values = values + planted(model, effect)
        found[named] = freedman_lane(values, model.design, model.exchange, Resampling(M, rng)).p
    return found


def planted(model: FoldModel, effect: float) -> np.ndarray:
    """What to add to values so that they go with the tested term, (people, 1)."""
    tested = model.design.tested
    shift: np.ndarray = effect * (tested / tested.std(axis=0)).sum(axis=1, keepdims=True)
    return shift


def own_volume(rng: Generator, effect: float = 0.0) -> Found:
    frame = people(rng)
    model = model_within_folds("age + sex + x", "x", frame, True)
    order = Exchangeability.free(PEOPLE).in_blocks(frame["fold"].tolist()).permutations(M, rng)
    volumes = rng.normal(size=(PEOPLE, 10)) - 0.08 * (frame["age"].to_numpy()[:, None] - 75)
    values, which = relevance(frame, 10, rng) + effect * volumes, np.arange(10)
    test = matched_test(values, volumes, which, model.design.nuisance, order)
    return {"own volume, covariates": test.p, "own volume, family-wise over 10": test.p_fwe.min(keepdims=True)}


def volumes_of_hippocampi(rng: Generator, effect: float = 0.0) -> Found:
    n_scans = rng.integers(1, 5, 30)
    person, names = np.repeat(np.arange(30), n_scans), [f"map {i}" for i in range(10)]
    fold, volume = person % 3, rng.normal(size=30)[person] + 0.5 * rng.normal(size=len(person)) + 0.3 * (person % 3)
    frame = pd.DataFrame({"participant_id": person.astype(str), "fold": fold, "hippocampus_mm3": volume})
    frame = frame.assign(hippocampus_per_tiv=np.nan, hippocampus_source="made up")
    blocks = []
    for name in names:
        value = rng.normal(size=30)[person] + 0.5 * rng.normal(size=len(person)) + effect * volume
        blocks.append(frame.assign(map=name, relevance_sum=value * (1 + fold) + fold))
    table = volume_association(pd.concat(blocks), names, True, FAST, int(rng.integers(2**31)))
    own = table[table["p"].notna()].groupby(["unit", "estimator"])["p"]
    return {f"{estimator}, {unit}s": p.to_numpy() for (unit, estimator), p in own}


def shrinking_hippocampi(rng: Generator, effect: float = 0.0) -> Found:
    """All hippocampi shrink; relevance drifts, in each person up or down by chance."""
    person = np.repeat(np.arange(30), rng.integers(1, 5, 30))
    years = 0.7 * (np.arange(len(person)) - np.searchsorted(person, person))
    volume = (6000 + 800 * rng.normal(size=30))[person] - (150 + 50 * rng.normal(size=30))[person] * years
    frame = pd.DataFrame({"participant_id": person.astype(str), "fold": 0, "hippocampus_mm3": volume})
    frame = frame.assign(hippocampus_per_tiv=np.nan, hippocampus_source="made up")
    names = [f"map {i}" for i in range(10)]
    drift = 0.6 * rng.normal(size=(10, 30))[:, person] * years + 0.5 * rng.normal(size=(10, len(person)))
    drift -= effect * years
    blocks = [frame.assign(map=name, relevance_sum=own) for name, own in zip(names, drift, strict=True)]
    table = volume_association(pd.concat(blocks), names, True, FAST, int(rng.integers(2**31)))
    return {f"pearson, {WITHIN}s": table.loc[(table["unit"] == WITHIN) & table["p"].notna(), "p"].to_numpy()}


def sites(sizes: list[int], noise: str) -> Callable[..., Found]:
    """Sites that differ in location, for the test of scale; that do not, for the test of location."""

    def function(rng: Generator, effect: float = 0.0) -> Found:
        n, found = sum(sizes), {}
        site = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
        frame = pd.DataFrame({"age": rng.uniform(60, 85, n), "sex": rng.choice(["F", "M"], n)})
        shift = rng.normal(size=len(sizes))[site][:, None]
        odd = (site % 2)[:, None]
        for tested in ("location", "scale"):
            values = rng.normal(size=(n, 10)) if noise == "normal" else rng.standard_t(5, size=(n, 10))
            values = values + effect * odd if tested == "location" else values * (1 + effect * odd)
            values += 0.1 * frame["age"].to_numpy()[:, None] + (shift if tested == "scale" else 0.0)
            names = [f"{100 + one}" for one in site]
            try:
                test = site_effect(tested, values, names, "age + sex", frame, Resampling(M, rng))[0]
                found[f"{tested} of {shown(sizes)} sites, {noise}"] = test.p
            except BadInputError:  # no two sites of the size that the test asks for
                continue
        return found

    return function


def shown(sizes: list[int]) -> str:
    return f"{len(sizes)} x {sizes[0]}" if len(set(sizes)) == 1 else "/".join(map(str, sizes))


def sites_within_folds(rng: Generator, effect: float = 0.0) -> Found:
    frame = people(rng, levels=6)
    values, site, found = relevance(frame, 10, rng), frame["site"].tolist(), {}
    odd, level = frame[["site"]].isin(["s1", "s3", "s5"]).to_numpy(), 2 * frame[["fold"]].to_numpy()
    for tested in ("location", "scale"):
        shown = values + 2 * effect * odd if tested == "location" else values + effect * odd * (values - level)
        test = site_effect(tested, shown, site, "age + sex", frame.drop(columns="site"), Resampling(M, rng), True)[0]
        found[f"{tested} of 6 x 10 sites, fold held"] = test.p
    return found


def families(rng: Generator, effect: float = 0.0) -> Found:
    """One cohort and ten data sets of 136 regions x 6 maps: people, maps and neighbouring regions go together."""
    frame, covariates = people(rng), "age + sex + field_strength"
    groups = frame["label"].tolist()
    related = model_within_folds(f"{covariates} + x", "x", frame, True)
    compared = model_within_folds(f"{covariates} + label", "label", frame, True, groups)  # age differs between them
    found: dict[str, list[np.ndarray]] = {}
    for _ in range(10):
        values = of_all_maps(frame, rng) + planted(related, effect) + planted(compared, effect)
        test = partial_correlation(values, related.design, related.exchange, Resampling(M, rng), "pearson")
        found.setdefault("partial Pearson", []).append(least(test))
        some = values.copy()
        some[:, :80] += 3 * related.design.tested
        test = partial_correlation(some, related.design, related.exchange, Resampling(M, rng), "pearson")
        others = test.p_fwe[80:].min(keepdims=True)
        found.setdefault("partial Pearson, the other 736 where 80 are truly related", []).append(others)
        test = freedman_lane(values, compared.design, compared.exchange, Resampling(M, rng), groups)
        found.setdefault("two groups, studentised, covariates", []).append(least(test))
    return {name: np.concatenate(p) for name, p in found.items()}


def of_all_maps(frame: pd.DataFrame, rng: Generator) -> np.ndarray:
    """Relevance of folds that differ in level and scale, which goes with age."""
    near = rng.normal(size=(PEOPLE, 1, REGIONS + 8))
    near = np.mean([near[..., i : i + REGIONS] for i in range(9)], axis=0) * 3
    values = rng.normal(size=(PEOPLE, 1, 1)) + near + rng.normal(size=(PEOPLE, MAPS, REGIONS))
    values = values.reshape(PEOPLE, -1) + 0.08 * (frame["age"].to_numpy()[:, None] - 75)
    fold = frame[["fold"]].to_numpy()
    scaled: np.ndarray = values * (1 + 0.5 * fold) + fold
    return scaled


def least(test: PermutationTest) -> np.ndarray:
    return np.array([np.nanmin(test.p_fwe)])


SITES = ([20] * 3, [10] * 6, [6] * 10, [3] * 20, [3, 4, 5, 6, 8, 10, 14, 20, 50])
FOLDS = "60 participants in four folds whose networks differ in level and scale, unbalanced over folds"
SHIFTED = "covariates age and sex; for scale, sites differ in location by 1 SD"
CORRELATED = f"{REGIONS} regions x {MAPS} maps of 60 participants, fold held; people, maps and near regions correlated"
CASES = {
    "fold held": Case(
        "associations, group_comparisons, interactions, main_effects",
        f"{FOLDS}; covariates age, sex, field strength",
        within_folds,
        3.0,
    ),
    "own volume": Case("associations", f"{FOLDS}; each region and its own volume", own_volume, 3.0),
    "families": Case("p_fwe of associations, group_comparisons", CORRELATED, families, 3.0),
    "hippocampi": Case(
        "volume_association", "30 participants, 1 to 4 scans, three folds of unequal scale", volumes_of_hippocampi, 1.5
    ),
    "shrinking hippocampi": Case(
        "volume_association",
        "30 participants, 1 to 4 scans; hippocampi shrink, relevance drifts up or down by chance",
        shrinking_hippocampi,
        1.5,
    ),
    **{
        f"sites {shown(sizes)} {noise}": Case("site_effects", SHIFTED, sites(sizes, noise), 2.0)
        for sizes in SITES
        for noise in ("normal", "t with 5 df")
    },
    "sites within folds": Case(
        "site_effects", "60 participants in four folds of unequal scale", sites_within_folds, 4.0
    ),
}
