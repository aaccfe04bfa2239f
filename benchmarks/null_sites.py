"""Sites that differ in nothing but what the test holds constant: effects of sites, ComBat, sites told from maps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from null_data import COLUMNS, SCALES, Cases, Found, Generator, fast, linear_test, orders, people, relevance

from heatlas.pipeline.run.config.statistics import HarmonisationConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.data.features import FoldedScans, RegionFeatures
from heatlas.pipeline.statistics.harmonisation.combat import fit
from heatlas.pipeline.statistics.harmonisation.sites import harmonise, site_effect
from heatlas.pipeline.statistics.shortcuts import Scans, assigned, balanced_accuracy, held_out_folds, within_classes
from heatlas.studies.representations.points import points_of
from heatlas.studies.representations.probes import predicted_sites

CASES = Cases()
SITES = ([20] * 3, [10] * 6, [6] * 10, [3] * 20, [3, 4, 5, 6, 8, 10, 14, 20, 50])
SHIFTED = "covariates age and sex; for scale, sites differ in location by 1 SD"


def sites(sizes: list[int], noise: str) -> Callable[..., Found]:
    """Sites that differ in location, for the test of scale; that do not, for the test of location."""

    def function(rng: Generator, effect: float = 0.0) -> Found:
        n = sum(sizes)
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
                test = site_effect(tested, values, names, "age + sex", frame, orders(rng))[0]
                yield f"{tested} of {in_words(sizes)} sites, {noise}", test.p
            except BadInputError:  # no two sites of the size that the test asks for
                continue

    return function


def in_words(sizes: list[int]) -> str:
    return f"{len(sizes)} x {sizes[0]}" if len(set(sizes)) == 1 else "/".join(map(str, sizes))


for each in SITES:
    for kind in ("normal", "t with 5 df"):
        CASES.add(f"sites {in_words(each)} {kind}", "site_effects", SHIFTED, 2.0)(sites(each, kind))


@CASES.add("sites within folds", "site_effects", "60 participants in four folds of unequal scale", 4.0)
def sites_within_folds(rng: Generator, effect: float = 0.0) -> Found:
    frame = people(rng, levels=6)
    values, site = relevance(frame, 10, rng), frame["site"].tolist()
    odd, level = frame[["site"]].isin(["s1", "s3", "s5"]).to_numpy(), 2 * frame[["fold"]].to_numpy()
    for tested in ("location", "scale"):
        shown = values + 2 * effect * odd if tested == "location" else values + effect * odd * (values - level)
        test = site_effect(tested, shown, site, "age + sex", frame.drop(columns="site"), orders(rng), True)[0]
        yield f"{tested} of 6 x 10 sites, fold held", test.p


@CASES.add("site prediction", "site_prediction (site, field_strength)", "40 people with 1 or 2 scans, two sites", 2.0)
def where_scanned(rng: Generator, effect: float = 0.0) -> Found:
    n = 40
    person = np.repeat(np.arange(n), 1 + (np.arange(n) % 3 == 0))
    site, positive = (rng.random(n) < 0.35).astype(np.intp), (np.arange(n) % 2).astype(np.intp)
    scans = Scans(person.astype(np.intp), site[person], positive[person])
    folds, order = held_out_folds(scans, int(rng.integers(2**31))), within_classes(scans, fast().permutations, rng)
    assert folds is not None
    rows, accuracy = np.concatenate([np.arange(len(person))[None], order.rows]), []
    shared = (rng.normal(size=(n, 6)) + effect * site[:, None])[person]
    for _ in range(2):
        features = shared + rng.normal(size=(n, 6))[person] + 0.5 * rng.normal(size=(len(person), 6))
        accuracy.append(balanced_accuracy(assigned(features, scans, folds, rows), scans, rows))
    for of, own in (("", accuracy[0]), (", family-wise over 2 maps", np.max(accuracy, axis=0))):
        above = (own[1:] >= own[0] * (1 - 1e-9)).sum()
        yield f"site from relevance{of}", np.array([(1 + above) / len(own)])


@CASES.add(
    "sites told from representations",
    "representations (site)",
    "60 people with 1 to 3 scans, three sites of unequal size, most patients at one",
    1.0,
)
def sites_of_features(rng: Generator, effect: float = 0.0) -> Found:
    """Features tell the class, and sites have different shares of patients and different numbers of scans."""
    patient = rng.random(60) < 0.5
    site = np.where(rng.random(60) < 0.6, np.where(patient, 0, 1), rng.choice(3, 60, p=[0.2, 0.3, 0.5]))
    person = np.repeat(np.arange(60), np.where(site == 0, rng.integers(1, 3, 60), rng.integers(1, 4, 60)))
    features = np.column_stack([2.0 * patient, effect * site, *np.zeros((6, 60))]) + rng.normal(size=(60, 8))
    points = points_of(features[person] + 0.7 * rng.normal(size=(len(person), 8)), [f"sub-{n:02d}" for n in person])
    names = dict(zip(points.people, site.astype(str), strict=True))
    classes = dict(zip(points.people, patient.astype(str), strict=True))
    found = predicted_sites(points, names, classes, fast().permutations, int(rng.integers(2**31)))
    yield "site from features", np.array([found.p])


@CASES.add("sites: groups", "group_comparisons", "60 people, two sites", 3.0)
def confounded_sites(rng: Generator, effect: float = 0.0) -> Found:
    """Most patients come from a site where everyone's relevance varies three times as much."""
    n = 60
    patient = np.arange(n) % 2 == 0
    site = rng.random(n) < np.where(patient, 0.75, 0.25)
    frame = pd.DataFrame({"group": patient.astype(float), "site": np.where(site, "a", "b")})
    values = rng.normal(size=(n, COLUMNS)) * np.where(site, 3.0, 1.0)[:, None] + site[:, None]
    values += effect * patient[:, None]
    for named, formula, shown in (("", "group", values - site[:, None]), (", site held", "group + site", values)):
        test = linear_test(shown, formula, "group", frame, rng, frame["group"].tolist())
        yield f"two groups{named}, sites confounded, SD 3:1", test.p


@CASES.add("sites: ComBat", "harmonised_relevance", "120 people of three sites that go with class", 2.0)
def after_combat(rng: Generator, effect: float = 0.0) -> Found:
    """Sites differ, and go with the class; classes do not differ. ComBat is fitted on others."""
    n = 120
    patient = np.tile(np.arange(n) % 2 == 0, 2)
    site = rng.integers(0, 3, 2 * n)
    site = np.where(rng.random(2 * n) < 0.5, np.where(patient, 0, 2), site)
    shift = rng.normal(size=(3, COLUMNS))
    values = rng.normal(size=(2 * n, COLUMNS)) + shift[site] + effect * patient[:, None]
    names, train, tested = [str(one) for one in site], slice(0, n), slice(n, None)
    for label, extra in (("class among its covariates", patient[train, None].astype(float)), ("no covariates", None)):
        model = fit(values[train], names[train], np.zeros((n, 0)), training_covariates=extra)
        harmonised = model.transform(values[tested], names[tested], np.zeros((n, 0)))
        frame = pd.DataFrame({"group": patient[tested].astype(float), "site": names[tested]})
        for named, formula in (("", "group"), (", site held", "group + site")):
            test = linear_test(harmonised, formula, "group", frame, rng, frame["group"].tolist())
            yield f"two groups{named}, ComBat, {label}", test.p


def of_networks(rng: Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fold, site and values of 80 people; networks differ, and sites are unevenly spread over folds."""
    n = 80
    fold = np.arange(n) % 4
    site = np.where(rng.random(n) < 0.6, fold % 3, rng.integers(0, 3, n))
    return fold, site, rng.normal(size=(n, COLUMNS)) * SCALES[fold][:, None] + 2.0 * fold[:, None]


@CASES.add("networks: sites", "site_effects", "80 people, four networks, sites unbalanced over folds", 5.0)
def sites_of_networks(rng: Generator, effect: float = 0.0) -> Found:
    fold, site, values = of_networks(rng)
    frame = pd.DataFrame({"fold": fold, "age": rng.normal(size=len(fold))})
    first, level = (site == 0)[:, None], 2.0 * fold[:, None]
    for tested in ("location", "scale"):
        shown = values + 2 * effect * first if tested == "location" else values + effect * first * (values - level)
        try:
            test = site_effect(tested, shown, [f"s{one}" for one in site], "age", frame, orders(rng), True)[0]
        except BadInputError:
            continue
        yield f"{tested} of sites, networks of scale 1 to 3", test.p


@CASES.add("networks: ComBat", "site_effects", "80 people, four networks, sites unbalanced over folds")
def sites_after_combat(rng: Generator) -> Found:
    """The same after ComBat, which is fitted outside each fold."""
    fold, site, values = of_networks(rng)
    n, names = len(fold), [f"s{one}" for one in site]
    frame = pd.DataFrame({"participant_id": np.arange(n).astype(str), "fold": fold, "age": rng.normal(70, 5, n)})
    frame = frame.assign(site=names, sex=rng.choice(["F", "M"], n), label=rng.choice(["AD", "CN"], n))
    everyone = np.ones(n, bool)
    scans = FoldedScans(frame, tuple(map(str, fold)), everyone, everyone, ())
    features = RegionFeatures("lrp", tuple(f"r{i}" for i in range(COLUMNS)), values)
    after = harmonise(features, scans, HarmonisationConfig(), True).values
    test = site_effect("location", after, names, "age + sex + label", frame, orders(rng), True)[0]
    yield "location of sites after ComBat, networks of scale 1 to 3", test.p


@CASES.add("spread: sites", "main_effects, site_effects", "60 people, four networks", 4.0)
def spread_of_sites(rng: Generator, effect: float = 0.0) -> Found:
    """Three sites that differ in size and spread, not in level."""
    n = 60
    site = np.repeat(["a", "b", "c"], [12, 18, 30])
    frame = pd.DataFrame({"age": rng.normal(74, 6, n), "fold": rng.permutation(n) % 4, "site": site})
    for named, deviations in (("3:2:1", (3.0, 2.0, 1.0)), ("1:2:3", (1.0, 2.0, 3.0)), ("equal", (1.0, 1.0, 1.0))):
        spread = np.array(deviations)[(site == "b") + 2 * (site == "c")]
        values = rng.normal(size=(n, COLUMNS)) * spread[:, None] + effect * (site == "b")[:, None]
        values = values * SCALES[frame["fold"]][:, None] + 2.0 * frame[["fold"]].to_numpy()
        rest = frame.drop(columns="site")
        test = site_effect("location", values, site.tolist(), "age", rest, orders(rng), True)[0]
        yield f"F, three sites of 12, 18 and 30, SD {named}", test.p


@CASES.add("sites: spread of classes", "site_effects", "80 people, four networks, two sites")
def spread_of_classes(rng: Generator) -> Found:
    """Patients vary twice as much, and most are from one site; sites do not differ."""
    n = 80
    patient, fold = np.arange(n) % 2 == 0, rng.permutation(n) % 4
    site = np.where(rng.random(n) < 0.5, patient, rng.random(n) < 0.5)
    values = rng.normal(size=(n, COLUMNS)) * np.where(patient, 2.0, 1.0)[:, None] + patient[:, None]
    values = values * SCALES[fold][:, None] + 2.0 * fold[:, None]
    frame = pd.DataFrame({"fold": fold, "age": rng.normal(size=n), "label": np.where(patient, "AD", "CN")})
    names = np.where(site, "a", "b").tolist()
    test = site_effect("scale", values, names, "age + label", frame, orders(rng), True)[0]
    yield "scale of sites that go with classes of SD 2:1", test.p
    yield "scale of sites that go with classes of SD 2:1, family-wise over 10", test.p_fwe.min(keepdims=True)
