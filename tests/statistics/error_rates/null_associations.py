"""Relevance that goes with nothing but covariates and folds: correlations, main effects, volumes, the primary question.

People have one to five scans, and classes differ in size and spread. Tests are made by the functions of the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import null_data as null
import numpy as np
import pandas as pd
from null_data import CASES, INTERVALS, PEOPLE, Found, Generator

from heatlas.pipeline.statistics.associations.associations import SMALL_CLASS, ParticipantValues, rows_of, small_class
from heatlas.pipeline.statistics.associations.volume_association import WITHIN, volume_association
from heatlas.pipeline.statistics.linear.correlation import matched_test
from heatlas.pipeline.statistics.linear.fold_effect import model_within_folds
from heatlas.pipeline.statistics.linear.permutations import Exchangeability
from heatlas.pipeline.statistics.requested import Biomarker

REGIONS, MAPS = 136, 6
FOLDS = "60 participants in four folds whose networks differ in level and scale, unbalanced over folds"
CORRELATED = f"{REGIONS} regions x {MAPS} maps of 60 participants, fold held; people, maps and near regions correlated"
COVARIATES = "age + sex + field_strength"


@CASES.add(
    "fold held",
    "associations, group_comparisons, interactions, main_effects",
    f"{FOLDS}; covariates age, sex, field strength",
    3.0,
)
def within_folds(rng: Generator, effect: float = 0.0) -> Found:
    frame, main = null.people(rng, levels=8), f"label + {COVARIATES} + site"
    for name, formula, term, method, spread in (
        ("partial Pearson", f"{COVARIATES} + x", "x", "pearson", ""),
        ("partial Spearman", f"{COVARIATES} + x", "x", "spearman", ""),
        ("two groups, studentised, SD 2:1", f"{COVARIATES} + label", "label", "linear", "label"),
        ("class x sex, studentised, SD 2:1", f"{COVARIATES} + label + label:sex", "label:sex", "linear", "label"),
        ("main effect of age", main, "age", "linear", ""),
        ("main effect of sex", main, "sex", "linear", ""),
        ("main effect of site (8 sites, F)", main, "site", "linear", ""),
    ):
        own = frame.assign(age=75) if term == "age" else frame
        values = null.relevance(own, 10, rng, 2.0 if spread else 1.0) + null.planted(formula, term, frame, effect)
        yield name, null.term_test(values, formula, term, frame, rng, method, spread).p


@CASES.add("own volume", "associations", f"{FOLDS}; each region and its own volume", 3.0)
def own_volume(rng: Generator, effect: float = 0.0) -> Found:
    frame = null.people(rng)
    model = model_within_folds("age + sex + x", "x", frame, True)
    order = Exchangeability.free(PEOPLE).in_blocks(frame["fold"].tolist()).permutations(null.fast().permutations, rng)
    volumes = rng.normal(size=(PEOPLE, 10)) - 0.08 * (frame["age"].to_numpy()[:, None] - 75)
    values = null.relevance(frame, 10, rng) + effect * volumes
    test = matched_test(values, volumes, np.arange(10), model.design.nuisance, order)
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


@CASES.add("families", "p_fwe of associations, group_comparisons", CORRELATED, 3.0)
def families(rng: Generator, effect: float = 0.0) -> Found:
    """One cohort and ten data sets of 136 regions x 6 maps: people, maps and neighbouring regions go together."""
    frame = null.people(rng)
    with_x, with_class = f"{COVARIATES} + x", f"{COVARIATES} + label"  # age differs between the classes
    related = model_within_folds(with_x, "x", frame, True).design.tested
    shift = null.planted(with_x, "x", frame, effect), null.planted(with_class, "label", frame, effect)
    for _ in range(10):
        values = of_all_maps(frame, rng) + shift[0] + shift[1]
        some = values.copy()
        some[:, :80] += 3 * related
        test = null.term_test(values, with_x, "x", frame, rng, "pearson")
        yield "partial Pearson", test.p_fwe.min(keepdims=True)
        test = null.term_test(some, with_x, "x", frame, rng, "pearson")
        yield "partial Pearson, the other 736 where 80 are truly related", test.p_fwe[80:].min(keepdims=True)
        test = null.term_test(values, with_class, "label", frame, rng, spread="label")
        yield "two groups, studentised, covariates", test.p_fwe.min(keepdims=True)


@CASES.add("primary", "primary", "four networks of scale 1 to 3; classes differ in both, 1 to 5 scans", 1.5)
def primary(rng: Generator, effect: float = 0.0) -> Found:
    """Patients have more relevance, smaller volumes and more spread in both; within the classes they are unrelated.

    Networks differ in scale, so that the classes differ more in some folds. Patients have fewer scans.
    """
    for n, times in ((24, 1.0), (60, 1.0), (60, 2.0), (60, 3.0), (120, 2.0)):
        fold, patient = null.unbalanced(rng, n, *((0.5, 0.5) if n < 60 else (0.15, 0.5)))
        person = np.repeat(np.arange(n), rng.integers(1, np.where(patient, 3, 6)))
        spread, age = np.where(patient, times, 1.0), rng.normal(74, 6, n)
        volume = rng.normal(size=n) * spread - 1.5 * patient - 0.05 * (age - 74)
        own = rng.normal(size=(n, 10)) * spread[:, None] + 1.5 * patient[:, None] + 0.05 * (age[:, None] - 74)
        values = null.seen(null.scans_of(rng, own - effect * volume[:, None], person), fold[person])
        frame = pd.DataFrame({"participant_id": person.astype(str), "fold": fold[person], "age": age[person]})
        frame = frame.assign(label=np.where(patient, "AD", "CN")[person], x=volume[person])
        named = f"class and fold held, {n} people" + f", patients with {times:g} x the SD" * (times > 1)
        yield named, null.term_test(values, "label + age + x", "x", frame, rng, "pearson").p


@CASES.add("spreads: small class", "associations", "a small class that varies more in both", 1.5)
def spreads_of_small_class(rng: Generator, effect: float = 0.0) -> Found:
    """A small class varies three times as much in both variables."""
    for n, few, folds in ((30, 6, 1), (30, 8, 4), (40, 10, 4)):
        spread, fold = np.where(rng.permutation(n) < few, 3.0, 1.0), np.arange(n) % folds
        frame = pd.DataFrame({"x": rng.normal(size=n) * spread, "fold": fold})
        values = rng.normal(size=(n, 10)) * spread[:, None] + effect * frame[["x"]].to_numpy()
        named = f"pearson, {n} people in {folds} fold{'s' * (folds > 1)}, {few} with 3 x the SD"
        yield named, null.term_test(null.seen(values, fold, 0.0), "x", "x", frame, rng, "pearson").p


@CASES.add("cohorts: spreads", "associations", "classes of unequal size and spread, pooled")
def unequal_spread(rng: Generator) -> Found:
    """A small class varies more in relevance and biomarker, or is the biomarker; over all people, five regions."""
    columns = pd.DataFrame({"map": "map", "group": list("abcde"), "metric": "sum"})
    for few, rest, times in ((10, 30, 3.0), (15, 45, 2.0), (30, 90, 3.0)):
        n = few + rest
        is_few = rng.permutation(n) < few
        spread = np.where(is_few, times, 1.0)
        values = rng.normal(size=(n, 5)) * spread[:, None]
        x, age = rng.normal(size=n) * spread, rng.normal(size=n)
        caution = small_class(is_few.astype(np.intp)), SMALL_CLASS
        for kind, biomarker in (("varies as much", x), ("is the class", is_few.astype(float))):
            for estimator in ("pearson", "spearman", "partial"):
                held = np.column_stack([np.ones(n), age] if estimator == "partial" else [np.ones(n)])
                sides = values, biomarker[:, None], held
                points = ParticipantValues(*sides, (), Exchangeability.free(n), n, None, *caution)
                table = rows_of(points, columns, Biomarker("x", biomarker), estimator, null.fast(), rng)
                named = f"{estimator}, {few} of {n} with {times:g} x the SD, biomarker {kind}"
                yield named, table["p"].to_numpy(float)
                yield f"{named}, family-wise over 5", table["p_fwe"].to_numpy(float).min(keepdims=True)


def beside_volumes(
    person: np.ndarray, fold: Any, volume: np.ndarray, sums: Sequence[np.ndarray], rng: Generator, draws: int = 100
) -> pd.DataFrame:
    """The table of hippocampi: their volume in each scan, and sums of relevance in several maps."""
    frame = pd.DataFrame({"participant_id": person.astype(str), "fold": fold, "hippocampus_mm3": volume})
    frame = frame.assign(hippocampus_per_tiv=np.nan, hippocampus_source="made up")
    maps = {f"map {place}": frame.assign(map=f"map {place}", relevance_sum=own) for place, own in enumerate(sums)}
    points, settings = pd.concat(maps.values()), null.fast(bootstrap_samples=draws)
    table = volume_association(points, list(maps), True, settings, null.seed_of(rng))
    return table[table["p"].notna()]


@CASES.add("hippocampi", "volume_association", "30 participants, 1 to 4 scans, three folds of unequal scale", 1.5)
def volumes_of_hippocampi(rng: Generator, effect: float = 0.0) -> Found:
    person = np.repeat(np.arange(30), rng.integers(1, 5, 30))
    fold = person % 3
    volume = null.scans_of(rng, rng.normal(size=30), person) + 0.3 * fold
    sums = [(null.scans_of(rng, rng.normal(size=30), person) + effect * volume) * (1 + fold) + fold for _ in range(10)]
    own = beside_volumes(person, fold, volume, sums, rng).groupby(["unit", "estimator"])["p"]
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
    yield f"pearson, {WITHIN}s", table.loc[table["unit"] == WITHIN, "p"].to_numpy()


@INTERVALS.add("folds: volumes", "volume_association", "no correlation; folds of three or four", 1.5)
def volumes_in_folds(rng: Generator, effect: float = 0.0) -> Found:
    for n, folds in ((40, 10), (24, 8)):
        fold = np.arange(n) % folds
        volume = rng.normal(size=n) + 0.3 * fold
        sums = [(rng.normal(size=n) + effect * volume) * (1 + 0.2 * fold) + fold for _ in range(4)]
        table = beside_volumes(np.arange(n), fold, volume, sums, rng, 1_000)
        for estimator, rows in table[table["unit"] == "participant"].groupby("estimator"):
            bounds = rows["ci_low"].to_numpy(float), rows["ci_high"].to_numpy(float)
            yield f"{estimator} of {n} people in {folds} folds", null.misses(*bounds, 0.0)


def pairs(rng: Generator, kind: str, n: int, rho: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Two variables and their true correlation; lognormal ones are exponentials of normal ones with correlation rho."""
    x = rng.normal(size=n)
    y = rho * x + np.sqrt(1 - rho**2) * rng.normal(size=n)
    if kind == "normal":
        return x, y, rho
    if kind == "exponential":
        x = rng.exponential(size=n)
        return x, rho * x + np.sqrt(1 - rho**2) * rng.exponential(size=n), rho
    sigma = float(kind.split()[-1])
    true = (np.exp(rho * sigma**2) - 1) / (np.exp(sigma**2) - 1)
    return np.exp(sigma * x), np.exp(sigma * y), true


@INTERVALS.add("correlations: intervals", "volume_association", "12 or 30 people")
def correlations(rng: Generator) -> Found:
    for kind, n, folds, rho in (
        ("normal", 12, 1, 0.5),
        ("normal", 12, 1, 0.8),
        ("normal", 30, 5, 0.8),
        ("lognormal 0.6", 30, 1, 0.5),
        ("lognormal 0.6", 30, 5, 0.8),
        ("exponential", 30, 1, 0.5),
        ("lognormal 1", 30, 1, 0.5),
    ):
        x, y, true = pairs(rng, kind, n, rho)
        table = beside_volumes(np.arange(n), np.arange(n) % folds, x, [y], rng)
        own = table[table["unit"] == "participant"].set_index("estimator")
        truly = {"pearson": true, "spearman": 6 / np.pi * np.arcsin(rho / 2)}
        for estimator in ("pearson",) if kind == "exponential" else truly:
            who = f"{n} people in {folds} fold{'s' * (folds > 1)}, {kind}, truly {truly[estimator]:.2f}"
            bounds = own.loc[estimator, ["ci_low", "ci_high"]]
            yield f"{estimator} of {who}", null.misses(*bounds, truly[estimator])
