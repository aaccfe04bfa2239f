"""Relevance with no effect beyond covariates and folds: tests of associations, groups, volumes, change and rankings.

People have one to five scans, and groups differ in size and spread. Tests are made by the functions of the tables.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pandas as pd
from null_data import (
    COLUMNS,
    PEOPLE,
    SCALES,
    Cases,
    Found,
    Generator,
    beside_volumes,
    correlation_test,
    fast,
    linear_test,
    orders,
    people,
    planted,
    relevance,
    unbalanced,
)

from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.statistics.associations.volume_association import WITHIN
from heatlas.pipeline.statistics.comparison.rankings import agreement
from heatlas.pipeline.statistics.linear.correlation import matched_test
from heatlas.pipeline.statistics.linear.fold_effect import model_within_folds
from heatlas.pipeline.statistics.linear.freedman_lane import PermutationTest
from heatlas.pipeline.statistics.linear.permutations import Exchangeability
from heatlas.pipeline.statistics.normative.clustering import ward_labels
from heatlas.pipeline.statistics.normative.subtypes import Subtypes, _compared
from heatlas.pipeline.statistics.progression.trajectories import ChangeTest, change_test

CASES = Cases()
REGIONS, MAPS = 136, 6
FOLDS = "60 participants in four folds whose networks differ in level and scale, unbalanced over folds"
CORRELATED = f"{REGIONS} regions x {MAPS} maps of 60 participants, fold held; people, maps and near regions correlated"


@CASES.add(
    "fold held",
    "associations, group_comparisons, interactions, main_effects",
    f"{FOLDS}; covariates age, sex, field strength",
    3.0,
)
def within_folds(rng: Generator, effect: float = 0.0) -> Found:
    frame, covariates = people(rng, levels=8), "age + sex + field_strength"
    groups = frame["label"].tolist()

    def shown(formula: str, term: str, own: pd.DataFrame = frame, spread: float = 1.0) -> np.ndarray:
        model = model_within_folds(formula, term, frame, True, groups if spread > 1 else None)
        return relevance(own, 10, rng, spread) + planted(model, effect)

    formula = f"{covariates} + x"
    for name, method in (("partial Pearson", "pearson"), ("partial Spearman", "spearman")):
        yield name, correlation_test(shown(formula, "x"), formula, frame, rng, method).p
    for name, term in (("two groups, studentised, SD 2:1", "label"), ("class x sex, studentised, SD 2:1", "label:sex")):
        formula = f"{covariates} + {'label' if term == 'label' else 'label + label:sex'}"
        yield name, linear_test(shown(formula, term, spread=2.0), formula, term, frame, rng, groups).p
    formula = "label + age + sex + field_strength + site"
    for term in ("age", "sex", "site"):
        values = shown(formula, term, frame.assign(age=75) if term == "age" else frame)
        named = f"main effect of {term}{' (8 sites, F)' if term == 'site' else ''}"
        yield named, linear_test(values, formula, term, frame, rng).p


@CASES.add("own volume", "associations", f"{FOLDS}; each region and its own volume", 3.0)
def own_volume(rng: Generator, effect: float = 0.0) -> Found:
    frame = people(rng)
    model = model_within_folds("age + sex + x", "x", frame, True)
    order = Exchangeability.free(PEOPLE).in_blocks(frame["fold"].tolist()).permutations(fast().permutations, rng)
    volumes = rng.normal(size=(PEOPLE, 10)) - 0.08 * (frame["age"].to_numpy()[:, None] - 75)
    values, which = relevance(frame, 10, rng) + effect * volumes, np.arange(10)
    test = matched_test(values, volumes, which, model.design.nuisance, order)
    return (("own volume, covariates", test.p), ("own volume, family-wise over 10", test.p_fwe.min(keepdims=True)))


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


@CASES.add("families", "p_fwe of associations, group_comparisons", CORRELATED, 3.0)
def families(rng: Generator, effect: float = 0.0) -> Found:
    """One cohort and ten data sets of 136 regions x 6 maps: people, maps and neighbouring regions go together."""
    frame, covariates = people(rng), "age + sex + field_strength"
    groups = frame["label"].tolist()
    related = model_within_folds(f"{covariates} + x", "x", frame, True)
    compared = model_within_folds(f"{covariates} + label", "label", frame, True, groups)  # age differs between them
    found: dict[str, list[np.ndarray]] = defaultdict(list)
    for _ in range(10):
        values = of_all_maps(frame, rng) + planted(related, effect) + planted(compared, effect)
        test = correlation_test(values, f"{covariates} + x", frame, rng)
        found["partial Pearson"].append(least(test))
        some = values.copy()
        some[:, :80] += 3 * related.design.tested
        others = correlation_test(some, f"{covariates} + x", frame, rng).p_fwe[80:].min(keepdims=True)
        found["partial Pearson, the other 736 where 80 are truly related"].append(others)
        test = linear_test(values, f"{covariates} + label", "label", frame, rng, groups)
        found["two groups, studentised, covariates"].append(least(test))
    for name, p in found.items():
        yield name, np.concatenate(p)


@CASES.add("hippocampi", "volume_association", "30 participants, 1 to 4 scans, three folds of unequal scale", 1.5)
def volumes_of_hippocampi(rng: Generator, effect: float = 0.0) -> Found:
    n_scans = rng.integers(1, 5, 30)
    person = np.repeat(np.arange(30), n_scans)
    fold, volume = person % 3, rng.normal(size=30)[person] + 0.5 * rng.normal(size=len(person)) + 0.3 * (person % 3)

    def sums() -> np.ndarray:
        value = rng.normal(size=30)[person] + 0.5 * rng.normal(size=len(person)) + effect * volume
        return value * (1 + fold) + fold

    table = beside_volumes(person, fold, volume, [sums() for _ in range(10)], rng)
    own = table[table["p"].notna()].groupby(["unit", "estimator"])["p"]
    return [(f"{estimator}, {unit}s", p.to_numpy()) for (unit, estimator), p in own]


@CASES.add(
    "shrinking hippocampi",
    "volume_association",
    "30 participants, 1 to 4 scans; hippocampi shrink, relevance drifts up or down by chance",
    1.5,
)
def shrinking_hippocampi(rng: Generator, effect: float = 0.0) -> Found:
    """All hippocampi shrink; relevance drifts, in each person up or down by chance."""
    person = np.repeat(np.arange(30), rng.integers(1, 5, 30))
    years = 0.7 * (np.arange(len(person)) - np.searchsorted(person, person))
    volume = (6000 + 800 * rng.normal(size=30))[person] - (150 + 50 * rng.normal(size=30))[person] * years
    drift = 0.6 * rng.normal(size=(10, 30))[:, person] * years + 0.5 * rng.normal(size=(10, len(person)))
    table = beside_volumes(person, 0, volume, list(drift - effect * years), rng)
    yield f"pearson, {WITHIN}s", table.loc[(table["unit"] == WITHIN) & table["p"].notna(), "p"].to_numpy()


def visits(rng: Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Participant and years of scans; two to four visits at uneven times."""
    times = rng.integers(2, 5, n)
    return np.repeat(np.arange(n), times), np.concatenate([np.sort(rng.uniform(0, 4, t)) for t in times])


@CASES.add("change", "trajectories", "12 people a group, 2 to 4 visits at uneven times", 1.5)
def change(rng: Generator, effect: float = 0.0) -> Found:
    person, years = visits(rng, 36)
    group, n = person % 3, len(person)
    level, noise = rng.normal(size=(36, 10))[person], 0.5 * rng.normal(size=(n, 10))
    level = level + effect * ((1 + group) * years)[:, None]
    slopes = np.where(np.arange(36) % 3 == 2, 0.6, 0.3)[:, None] * rng.normal(size=(36, 10))
    change = slopes[person] * years[:, None]
    uneven = change * np.where(np.bincount(person)[person] == 2, 3.0, 1.0)[:, None]
    skewed = 0.5 * rng.exponential(size=(n, 10))
    one, two = group == 0, group != 0

    def test(values: np.ndarray, rows: np.ndarray) -> ChangeTest:
        return change_test(
            values[rows], years[rows], person[rows], group[rows], np.zeros_like(person[rows]), orders(rng)
        )

    none, random = test(level + noise, one), test(level + noise + change, one)
    yield "mean change of a group, nobody changes", none.p
    yield "mean change of a group, people change at random about zero", random.p
    yield "mean change of a group, those with two visits three times as much", test(level + noise + uneven, one).p
    yield "mean change of a group, skewed errors (exponential)", test(level + skewed, one).p
    yield "mean change of a group, family-wise over 10", random.p_fwe.min(keepdims=True)
    yield "change of two groups, slopes vary 2:1", test(level + noise + change, two).p
    yield "change of three groups, slopes vary 2:1:1", test(level + noise + change, group >= 0).p


@CASES.add("rankings", "ranking_agreement, run_agreement", "68 regions", 0.1)
def rankings(rng: Generator, effect: float = 0.0) -> Found:
    for k in (2, 5):
        own = agreement(rng.normal(size=(k, 68)) + effect * np.arange(68), 10, fast().permutations, rng)
        yield f"Kendall's W of {k} rankings", np.array([own.p])
        yield f"top 10 of {k} rankings", np.array([own.overlap_p])


@CASES.add("subtypes", "subtype_comparison", "40 patients, three groups by Ward's method", 1.5)
def subtypes(rng: Generator, effect: float = 0.0) -> Found:
    points = rng.normal(size=(40, 6))
    labels, config = (
        ward_labels(points, [3])[:, 0],
        load_config(overrides={"statistics": {"permutations": fast().permutations}}),
    )
    one = Subtypes("lrp", tuple(map(str, range(40))), points, labels, np.ones(40), pd.DataFrame())
    config = replace(config, seed=int(rng.integers(2**31)))
    values = pd.DataFrame(np.column_stack([rng.normal(size=(40, 5)), rng.exponential(size=(40, 5))]))
    values += effect * labels[:, None]
    fold_of = dict.fromkeys(one.participants, "0")
    p = np.array([_compared(one, f"v{i}", values[i], fold_of, config).get("p", np.nan) for i in values])
    return (("three subtypes, F, normal values", p[:5]), ("three subtypes, F, exponential values", p[5:]))


@CASES.add("primary", "primary", "four networks of scale 1 to 3; classes differ in both, 1 to 5 scans", 1.5)
def primary(rng: Generator, effect: float = 0.0) -> Found:
    """Patients have more relevance, smaller volumes and more spread in both; within the classes they are unrelated.

    Networks differ in scale, so that the classes differ more in some folds. Patients have fewer scans.
    """
    for n, times in ((24, 1.0), (60, 1.0), (60, 2.0), (60, 3.0), (120, 2.0)):
        fold, patient = unbalanced(rng, n, *((0.5, 0.5) if n < 60 else (0.15, 0.5)))
        scans = rng.integers(1, np.where(patient, 3, 6))
        spread, person = np.where(patient, times, 1.0), np.repeat(np.arange(n), scans)
        age = rng.normal(74, 6, n)
        volume = rng.normal(size=n) * spread - 1.5 * patient - 0.05 * (age - 74)
        own = rng.normal(size=(n, COLUMNS)) * spread[:, None] + 1.5 * patient[:, None] + 0.05 * (age[:, None] - 74)
        own -= effect * volume[:, None]
        values = own[person] + 0.5 * rng.normal(size=(len(person), COLUMNS))
        values = values * SCALES[fold][person][:, None] + 2.0 * fold[person][:, None]
        frame = pd.DataFrame({"participant_id": person.astype(str), "fold": fold[person], "age": age[person]})
        frame = frame.assign(label=np.where(patient, "AD", "CN")[person], x=volume[person])
        named = f"class and fold held, {n} people" + f", patients with {times:g} x the SD" * (times > 1)
        yield named, correlation_test(values, "label + age + x", frame, rng).p


@CASES.add("networks: change", "trajectories", "60 people, four networks, groups unbalanced over folds", 1.5)
def change_in_networks(rng: Generator, effect: float = 0.0) -> Found:
    """Everyone declines by the same amount in the eyes of one network; networks differ in scale."""
    n = 60
    fold, group = unbalanced(rng, n)
    person, years = visits(rng, n)
    slopes = -0.5 + 0.3 * rng.normal(size=(n, COLUMNS)) - effect * group[:, None]
    values = rng.normal(size=(n, COLUMNS))[person] + slopes[person] * years[:, None]
    values = (values + 0.5 * rng.normal(size=values.shape)) * SCALES[fold][person][:, None] + fold[person][:, None]
    test = change_test(values, years, person, group[person], fold[person].astype(np.intp), orders(rng))
    yield "group x time, networks of scale 1 to 3, all decline", test.p
    yield "group x time, the same, family-wise over 10", test.p_fwe.min(keepdims=True)


@CASES.add("networks: skewed change", "trajectories", "15 people with three visits", 4.0)
def skewed_change(rng: Generator, effect: float = 0.0) -> Found:
    """Slopes of 15 people are lognormal about a mean of 0; and of 24 in 4 networks."""
    person, years = np.repeat(np.arange(15), 3), np.tile([0.0, 1.0, 2.0], 15)
    slopes = rng.lognormal(size=(15, COLUMNS)) - np.exp(0.5) + effect
    values = rng.normal(size=(15, COLUMNS))[person] + slopes[person] * years[:, None]
    values += 0.1 * rng.normal(size=values.shape)
    nobody = np.zeros(len(person), np.intp)
    yield "mean slope of 15 people, lognormal", change_test(values, years, person, nobody, nobody, orders(rng)).p


@CASES.add("spreads", "associations", "groups that vary unequally in relevance and biomarker", 1.0)
def spreads(rng: Generator, effect: float = 0.0) -> Found:
    """Relevance and biomarker both vary two or three times as much in the patients, a fifth or a quarter of all."""
    for n, share, times in ((60, 0.2, 3.0), (120, 0.25, 2.0)):
        spread = np.where(np.arange(n) < share * n, times, 1.0)
        frame = pd.DataFrame({"x": rng.normal(size=n) * spread, "age": rng.normal(size=n)})
        values = rng.normal(size=(n, COLUMNS)) * spread[:, None] + 0.3 * frame[["age"]].to_numpy()
        values += effect * frame[["x"]].to_numpy()
        for method in ("pearson", "spearman"):
            for covariates in ("", "age + "):
                shown = values if covariates else values - 0.3 * frame[["age"]].to_numpy()
                named = f"{'partial ' if covariates else ''}{method}, {n} people, {share:.0%} with {times:g} x the SD"
                yield named, correlation_test(shown, f"{covariates}x", frame, rng, method).p


@CASES.add("spreads: small class", "associations", "a small class that varies more in both", 1.5)
def small_class(rng: Generator, effect: float = 0.0) -> Found:
    """A small class varies three times as much in both variables."""
    for n, few, folds in ((30, 6, 1), (30, 8, 4), (40, 10, 4)):
        spread, fold = np.where(rng.permutation(n) < few, 3.0, 1.0), np.arange(n) % folds
        frame = pd.DataFrame({"x": rng.normal(size=n) * spread, "fold": fold})
        values = rng.normal(size=(n, COLUMNS)) * spread[:, None] + effect * frame[["x"]].to_numpy()
        values = values * SCALES[fold][:, None]
        named = f"pearson, {n} people in {folds} fold{'s' * (folds > 1)}, {few} with 3 x the SD"
        yield named, correlation_test(values, "x", frame, rng).p
