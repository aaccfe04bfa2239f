"""Sites that differ in nothing but what the test holds constant: effects of sites, ComBat, sites told from maps."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import null_data as null
import numpy as np
import pandas as pd
from null_data import CASES, COLUMNS, INTERVALS, SEED, Found, Generator

from heatlas.pipeline.run.config.statistics import HarmonisationConfig, ShortcutsConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.data.features import FoldedScans, RegionFeatures
from heatlas.pipeline.statistics.harmonisation.combat import fit
from heatlas.pipeline.statistics.harmonisation.sites import harmonise, site_effect
from heatlas.pipeline.statistics.shortcuts import (
    Scans,
    _predictions,
    assigned,
    balanced_accuracy,
    held_out_folds,
    within_classes,
)
from heatlas.studies.representations.points import FeatureVectors, points_of
from heatlas.studies.representations.probes import ALL, draws_within, predicted_sites, scored, shares_recognised

SITES = ([20] * 3, [10] * 6, [6] * 10, [3] * 20, [3, 4, 5, 6, 8, 10, 14, 20, 50])
SHIFTED = "covariates age and sex; for scale, sites differ in location by 1 SD"
OF_NETWORKS = "80 people, four networks, sites unbalanced over folds"


def sites(sizes: list[int], noise: str, rng: Generator, effect: float = 0.0) -> Found:
    """Sites that differ in location, for the test of scale; that do not, for the test of location."""
    n = sum(sizes)
    site = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    frame = pd.DataFrame({"age": rng.uniform(60, 85, n), "sex": rng.choice(["F", "M"], n)})
    shift = rng.normal(size=len(sizes))[site][:, None]
    odd, of_age = (site % 2)[:, None], 0.1 * frame[["age"]].to_numpy()
    for tested, level in (("location", of_age), ("scale", of_age + shift)):
        values = rng.normal(size=(n, 10)) if noise == "normal" else rng.standard_t(5, size=(n, 10))
        values = values + effect * odd * (1 if tested == "location" else values) + level
        p = p_of_sites(tested, values, [f"{100 + one}" for one in site], "age + sex", frame, rng)
        yield f"{tested} of {in_words(sizes)} sites, {noise}", p


def p_of_sites(
    tested: str, values: np.ndarray, names: list[str], formula: str, frame: pd.DataFrame, rng: Generator
) -> np.ndarray:
    """p of the test of the table, fold held if there is one; NaN where no two sites have the size it asks for."""
    try:
        return site_effect(tested, values, names, formula, frame, null.orders(rng), "fold" in frame)[0].p
    except BadInputError:
        return np.full(values.shape[1], np.nan)


def in_words(sizes: list[int]) -> str:
    return f"{len(sizes)} x {sizes[0]}" if len(set(sizes)) == 1 else "/".join(map(str, sizes))


for each in SITES:
    for kind in ("normal", "t with 5 df"):
        CASES.add(f"sites {in_words(each)} {kind}", "site_effects", SHIFTED, 2.0)(partial(sites, each, kind))


def of_networks(rng: Generator) -> tuple[np.ndarray, np.ndarray, list[str], np.ndarray]:
    """Fold, site, its name, and values of 80 people; networks differ, and sites are unevenly spread over folds."""
    n = 80
    fold = np.arange(n) % 4
    site = np.where(rng.random(n) < 0.6, fold % 3, rng.integers(0, 3, n))
    return fold, site, [f"s{one}" for one in site], null.seen(rng.normal(size=(n, COLUMNS)), fold)


@CASES.add("networks: sites", "site_effects", OF_NETWORKS, 5.0)
def sites_of_networks(rng: Generator, effect: float = 0.0) -> Found:
    fold, site, names, values = of_networks(rng)
    frame, first = pd.DataFrame({"fold": fold, "age": rng.normal(size=len(fold))}), (site == 0)[:, None]
    for tested, apart in (("location", 2.0), ("scale", values - 2.0 * fold[:, None])):
        p = p_of_sites(tested, values + effect * first * apart, names, "age", frame, rng)
        yield f"{tested} of sites, networks of scale 1 to 3", p


@CASES.add("networks: ComBat", "site_effects", OF_NETWORKS)
def sites_after_combat(rng: Generator) -> Found:
    """The same after ComBat, which is fitted outside each fold."""
    fold, _, names, values = of_networks(rng)
    n = len(fold)
    frame = pd.DataFrame({"participant_id": np.arange(n).astype(str), "fold": fold, "age": rng.normal(70, 5, n)})
    frame = frame.assign(site=names, sex=rng.choice(["F", "M"], n), label=rng.choice(["AD", "CN"], n))
    everyone = np.ones(n, bool)
    scans = FoldedScans(frame, tuple(map(str, fold)), everyone, everyone, ())
    features = RegionFeatures("lrp", tuple(f"r{i}" for i in range(COLUMNS)), values)
    after = harmonise(features, scans, HarmonisationConfig(), True).values
    p = p_of_sites("location", after, names, "age + sex + label", frame, rng)
    yield "location of sites after ComBat, networks of scale 1 to 3", p


@CASES.add("spread: sites", "main_effects, site_effects", "60 people, four networks", 4.0)
def spread_of_sites(rng: Generator, effect: float = 0.0) -> Found:
    """Three sites that differ in size and spread, not in level."""
    site = np.repeat([0, 1, 2], [12, 18, 30])
    frame = pd.DataFrame({"age": rng.normal(74, 6, len(site)), "fold": rng.permutation(len(site)) % 4})
    for named, deviations in (("3:2:1", [3.0, 2.0, 1.0]), ("1:2:3", [1.0, 2.0, 3.0]), ("equal", [1.0, 1.0, 1.0])):
        values = rng.normal(size=(60, 10)) * np.array(deviations)[site, None] + effect * (site == 1)[:, None]
        values = null.seen(values, frame["fold"].to_numpy())
        p = p_of_sites("location", values, site.astype(str).tolist(), "age", frame, rng)
        yield f"F, three sites of 12, 18 and 30, SD {named}", p


@CASES.add("sites: spread of classes", "site_effects", "80 people, four networks, two sites")
def spread_of_classes(rng: Generator) -> Found:
    """Patients vary twice as much, and most are from one site; sites do not differ."""
    n = 80
    patient, fold = np.arange(n) % 2 == 0, rng.permutation(n) % 4
    site = np.where(rng.random(n) < 0.5, patient, rng.random(n) < 0.5)
    values = null.seen(rng.normal(size=(n, 10)) * np.where(patient, 2.0, 1.0)[:, None] + patient[:, None], fold)
    frame = pd.DataFrame({"fold": fold, "age": rng.normal(size=n), "label": np.where(patient, "AD", "CN")})
    names = np.where(site, "a", "b").tolist()
    test = site_effect("scale", values, names, "age + label", frame, null.orders(rng), True)[0]
    yield "scale of sites that go with classes of SD 2:1", test.p
    yield "scale of sites that go with classes of SD 2:1, family-wise over 10", test.p_fwe.min(keepdims=True)


def with_and_without_site(
    values: np.ndarray, less: np.ndarray | float, patient: np.ndarray, names: list[str], rng: Generator
) -> Found:
    """The test of two groups of values `less` something, and of the values with site held."""
    frame = pd.DataFrame({"group": patient.astype(float), "site": names})
    for named, formula, shown in (("", "group", values - less), (", site held", "group + site", values)):
        yield f"two groups{named}", null.term_test(shown, formula, "group", frame, rng, spread="group").p


@CASES.add("sites: groups", "group_comparisons", "60 people, two sites", 3.0)
def confounded_sites(rng: Generator, effect: float = 0.0) -> Found:
    """Most patients come from a site where everyone's relevance varies three times as much."""
    n = 60
    patient = np.arange(n) % 2 == 0
    site = rng.random(n) < np.where(patient, 0.75, 0.25)
    values = rng.normal(size=(n, 10)) * np.where(site, 3.0, 1.0)[:, None] + site[:, None] + effect * patient[:, None]
    for named, p in with_and_without_site(values, site[:, None], patient, np.where(site, "a", "b").tolist(), rng):
        yield f"{named}, sites confounded, SD 3:1", p


@CASES.add("sites: ComBat", "harmonised_relevance", "120 people of three sites that go with class", 2.0)
def after_combat(rng: Generator, effect: float = 0.0) -> Found:
    """Sites differ, and go with the class; classes do not differ. ComBat is fitted on others."""
    n = 120
    patient = np.tile(np.arange(n) % 2 == 0, 2)
    site = rng.integers(0, 3, 2 * n)
    site = np.where(rng.random(2 * n) < 0.5, np.where(patient, 0, 2), site)
    shift = rng.normal(size=(3, COLUMNS))
    values = rng.normal(size=(2 * n, COLUMNS)) + shift[site] + effect * patient[:, None]
    names, train, tested = site.astype(str).tolist(), slice(0, n), slice(n, None)
    for label, extra in (("class among its covariates", patient[train, None].astype(float)), ("no covariates", None)):
        model = fit(values[train], names[train], np.zeros((n, 0)), training_covariates=extra)
        harmonised = model.transform(values[tested], names[tested], np.zeros((n, 0)))
        for named, p in with_and_without_site(harmonised, 0.0, patient[tested], names[tested], rng):
            yield f"{named}, ComBat, {label}", p


def two_sites(n: int) -> tuple[np.ndarray, np.ndarray]:
    """The person of each scan, every third has two, and the site of each person."""
    person = np.repeat(np.arange(n), 1 + (np.arange(n) % 3 == 0)).astype(np.intp)
    return person, (np.arange(n) % 5 < 2).astype(np.intp)


@CASES.add("site prediction", "site_prediction (site, field_strength)", "40 people with 1 or 2 scans, two sites", 2.0)
def where_scanned(rng: Generator, effect: float = 0.0) -> Found:
    n = 40
    person, site = two_sites(n)[0], (rng.random(n) < 0.35).astype(np.intp)
    scans = Scans(person, site[person], person % 2)
    folds, order = held_out_folds(scans, null.seed_of(rng)), within_classes(scans, null.fast().permutations, rng)
    assert folds is not None
    rows, accuracy = np.concatenate([np.arange(len(person))[None], order.rows]), []
    shared = rng.normal(size=(n, 6)) + effect * site[:, None]
    for _ in range(2):
        features = null.scans_of(rng, shared + rng.normal(size=(n, 6)), person)
        accuracy.append(balanced_accuracy(assigned(features, scans, folds, rows), scans, rows))
    for of, own in (("", accuracy[0]), (", family-wise over 2 maps", np.max(accuracy, axis=0))):
        above = (own[1:] >= own[0] * (1 - 1e-9)).sum()
        yield f"site from relevance{of}", np.array([(1 + above) / len(own)])


def points_at(features: np.ndarray, person: np.ndarray, site: np.ndarray) -> tuple[FeatureVectors, dict[str, str]]:
    """Features of scans, and the site of each person."""
    points = points_of(features, [f"sub-{one:03d}" for one in person])
    return points, dict(zip(points.people, site.astype(str), strict=True))


@CASES.add(
    "sites told from representations",
    "representations (site)",
    "60 people with 1 to 3 scans, three sites of unequal size, most patients at one",
    2.0,
)
def sites_of_features(rng: Generator, effect: float = 0.0) -> Found:
    """Features tell the class, and sites have different shares of patients and different numbers of scans."""
    patient = rng.random(60) < 0.5
    site = np.where(rng.random(60) < 0.6, np.where(patient, 0, 1), rng.choice(3, 60, p=[0.2, 0.3, 0.5]))
    person = np.repeat(np.arange(60), np.where(site == 0, rng.integers(1, 3, 60), rng.integers(1, 4, 60)))
    features = np.column_stack([2.0 * patient, effect * site, *np.zeros((6, 60))]) + rng.normal(size=(60, 8))
    points, names = points_at(null.scans_of(rng, features, person, 0.7), person, site)
    classes = dict(zip(points.people, patient.astype(str), strict=True))
    found = predicted_sites(points, names, classes, null.fast().permutations, null.seed_of(rng))
    yield "site from features", np.array([found.p])


Answer = tuple[float, float, float]
"""Balanced accuracy and its interval."""


def features_at(rng: Generator, person: np.ndarray, site: np.ndarray, shift: float) -> np.ndarray:
    return null.scans_of(rng, rng.normal(size=(len(site), 6)) + shift * site[:, None], person)


def from_maps(rng: Generator, n: int, shift: float) -> Answer:
    person, site = two_sites(n)
    scans = Scans(person, site[person], rng.permutation(np.arange(n) % 2).astype(np.intp)[person])
    maps = {"map": features_at(rng, person, site, shift)}
    settings = null.fast(bootstrap_samples=null.DRAWS, shortcuts=ShortcutsConfig(1))
    (row,) = _predictions("site", maps, scans, settings, null.seed_of(rng))
    return row["balanced_accuracy"], row["ci_low"], row["ci_high"]


def from_representations(rng: Generator, n: int, shift: float) -> Answer:
    person, site = two_sites(n)
    points, names = points_at(features_at(rng, person, site, shift), person, site == 1)
    found = predicted_sites(points, names, None, 0, int(rng.integers(9**9)))
    shares = shares_recognised(found.right, found.sites, {"sites": sorted(set(found.sites))})
    draws = draws_within(found.people, found.sites, null.DRAWS, int(rng.integers(9**9)))
    value = scored(shares, draws)[ALL]
    return value.value, *value.interval


@cache
def true_accuracy(tell: Callable[..., Answer], stream: str, n: int, shift: float) -> float:
    """Mean over cohorts: what a classifier trained on so many people achieves in others."""
    if shift == 0:
        return 0.5
    return float(np.mean([tell(generator(SEED, stream, n, i), n, shift)[0] for i in range(null.SIMULATED)]))


def sites_told(tell: Callable[..., Answer], stream: str, what: str, rng: Generator) -> Found:
    for n, shift in ((40, 0.0), (40, 0.6), (100, 0.0), (100, 0.6)):
        _, low, high = tell(rng, n, shift)
        named = f"{what}, {n} people, sites {f'{shift:g} SD apart' if shift else 'alike'}"
        yield named, null.misses(low, high, true_accuracy(tell, stream, n, shift))


TWO_SITES = "40 or 100 people, 1 or 2 scans, two sites"
INTERVALS.add("site prediction: intervals", "site_prediction", TWO_SITES)(
    partial(sites_told, from_maps, "true accuracy", "balanced accuracy")
)
INTERVALS.add("sites told from representations: intervals", "representations (site)", TWO_SITES)(
    partial(sites_told, from_representations, "true share", "site from representations")
)
