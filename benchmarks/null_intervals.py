"""Intervals where the true value is known (0, or measured in many people), made by the functions of their tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cache

import numpy as np
import pandas as pd
from null_data import (
    COLUMNS,
    HORIZON,
    PEOPLE,
    SCALES,
    SEED,
    Cases,
    Found,
    Generator,
    beside_volumes,
    fast,
    linear_test,
    missed,
    misses,
)
from null_people import ADJUSTING, BOTH_WAYS, of_output, of_relevance
from scipy.stats import t as t_distribution

from heatlas.pipeline.run.config.statistics import ShortcutsConfig
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Resampling
from heatlas.pipeline.statistics.data.members import difference_within, welch_within
from heatlas.pipeline.statistics.performance.other_tasks import SCALES as SCALES_OF_NUMBERS
from heatlas.pipeline.statistics.performance.other_tasks import number_metrics
from heatlas.pipeline.statistics.progression.cox import SOONER_WHEN_LOWER, Conversions
from heatlas.pipeline.statistics.progression.hazards import class_pairs, comparable_pairs, concordance, hazard_per_sd
from heatlas.pipeline.statistics.progression.prediction import progression_table
from heatlas.pipeline.statistics.resampling.bootstrap import scaled_intervals
from heatlas.pipeline.statistics.resampling.means import mean_intervals
from heatlas.pipeline.statistics.shortcuts import Scans, _predictions
from heatlas.studies.representations.points import points_of
from heatlas.studies.representations.probes import ALL, draws_within, predicted_sites, scored, shares_recognised

DRAWS, SIMULATED = 1_000, 1_000
INTERVALS = Cases()
STRENGTH = {"age": 0.0, "mmse": 0.5, "hippocampus/tiv": 1.0, "model": 2.0}
"""Weight of the risk in each predictor, beside noise of variance 1."""


SHAPES = (("normal", "normal"), ("lognormal", "lognormal 1"))


def drawn(rng: Generator, kind: str, size: tuple[int, ...]) -> np.ndarray:
    """Values of a kind with mean 0."""
    if kind == "normal":
        return rng.normal(size=size)
    if kind == "85 % zeros":
        return rng.lognormal(size=size) * (rng.random(size) < 0.15) - 0.15 * np.exp(0.5)
    sigma = float(kind.split()[-1])
    return rng.lognormal(0, sigma, size) - np.exp(sigma**2 / 2)


@INTERVALS.add("folds: volumes", "volume_association", "no correlation; folds of three or four", 1.5)
def volumes_in_folds(rng: Generator, effect: float = 0.0) -> Found:
    for n, folds in ((40, 10), (24, 8)):
        fold = np.arange(n) % folds
        volume = rng.normal(size=n) + 0.3 * fold
        sums = [(rng.normal(size=n) + effect * volume) * (1 + 0.2 * fold) + fold for _ in range(4)]
        table = beside_volumes(np.arange(n), fold, volume, sums, rng, 1_000)
        own = table[(table["unit"] == "participant") & table["r"].notna()]
        for estimator, rows in own.groupby("estimator"):
            bounds = rows["ci_low"].to_numpy(float), rows["ci_high"].to_numpy(float)
            yield f"{estimator} of {n} people in {folds} folds", misses(*bounds, 0.0)


@INTERVALS.add("groups: intervals", "group_comparisons", "no difference", 2.5)
def unequal_groups(rng: Generator, effect: float = 0.0) -> Found:
    for first, second in ((12, 48), (15, 45), (42, 78)):
        frame = pd.DataFrame({"group": (np.arange(first + second) < first).astype(float)})
        for name, kind in SHAPES:
            values = drawn(rng, kind, (first + second, COLUMNS)) + effect * frame[["group"]].to_numpy()
            test = linear_test(values, "group", "group", frame, rng, frame["group"].tolist())
            yield f"difference of {first} and {second}, {name}", misses(test.low, test.high, 0.0)


@INTERVALS.add("networks: Cox intervals", "cox", "120 people with MCI, four networks 1.2 SD apart")
def interval_of_output(rng: Generator) -> Found:
    for named, formula in BOTH_WAYS:
        cohort, family = of_output(rng, formula)
        known = family.known(family.members[0])
        one = hazard_per_sd(cohort.time, cohort.event, known, family.columns, 0.95)
        yield f"hazard ratio of the networks' output, {named}, truly 1.00", missed(one.low, one.high, 1.0)


@INTERVALS.add("subgroups: intervals", "subgroups", "no difference", 4.0)
def subgroup_differences(rng: Generator, effect: float = 0.0) -> Found:
    """Welch's interval in a subgroup, in one fold and in four of unequal scale."""
    for first, second, folds in ((5, 5, 1), (12, 48, 1), (15, 45, 4)):
        is_first, fold = np.arange(first + second) < first, np.arange(first + second) % folds
        for name, kind in SHAPES:
            values = drawn(rng, kind, (first + second, COLUMNS)) + effect * is_first[:, None]
            values = values * SCALES[fold][:, None] + fold[:, None]
            error, df = welch_within(values, is_first, fold)
            difference = difference_within(values, is_first, fold, np.ones((1, len(values))))[0]
            reach = t_distribution.isf(0.025, df) * error
            named = f"class difference in a subgroup, {first} and {second} in {folds} fold{'s' * (folds > 1)}, {name}"
            yield named, misses(difference - reach, difference + reach, 0.0)


def conversion(rng: Generator, n: int) -> Conversions:
    """People with MCI whose risk is seen by the predictors with `STRENGTH`; half convert, visits every 6 months."""
    risk, followed = rng.normal(size=n), rng.choice([24.0, 36.0, 48.0, 60.0], n)
    months = np.ceil(rng.exponential(60 * np.exp(-0.8 * risk)) / 6) * 6
    event = months <= followed
    score = {name: (weight * risk + rng.normal(size=n)) * direction(name) for name, weight in STRENGTH.items()}
    course = np.where(event & (months <= HORIZON), "pMCI", np.where(followed >= HORIZON, "sMCI", ""))
    frame = pd.DataFrame({"time": np.where(event, months, followed), "event": event, "progression": course})
    frame = frame.assign(age=score["age"], mmse=score["mmse"], hippocampus_mm3=score["hippocampus/tiv"], tiv_mm3=1.0)
    frame = frame.assign(probability=1 / (1 + np.exp(-score["model"])), competing=np.nan)
    return Conversions(frame, np.zeros((n, 0, 0)), (), (), {})


def direction(name: str) -> int:
    return -1 if name in SOONER_WHEN_LOWER else 1


@cache
def true_order() -> dict[tuple[str, str], float]:
    """Concordance and area of each predictor and shares of the model, in 10 cohorts of 2,000 people."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for i in range(10):
        cohort = conversion(generator(SEED, "true order", i), 2_000)
        course = cohort.frame["progression"].to_numpy(str)
        known, converts, called = course != "", course == "pMCI", cohort.scalar("model") > 0
        everyone = comparable_pairs(cohort.time, cohort.event)
        for name in STRENGTH:
            x = cohort.scalar(name) * direction(name)
            found[name, "concordance"].append(concordance(x, everyone)[0])
            found[name, "auc"].append(concordance(x[known], class_pairs(converts[known]))[0])
        right = called[converts].mean(), (~called)[known & ~converts].mean()
        shares = {"sensitivity": right[0], "specificity": right[1], "balanced_accuracy": np.mean(right)}
        for name, share in shares.items():
            found["model", name].append(float(share))
    return {key: float(np.mean(values)) if STRENGTH[key[0]] else 0.5 for key, values in found.items()}


@INTERVALS.add("order: intervals", "progression", "60 people with MCI")
def ordering(rng: Generator) -> Found:
    settings = fast(bootstrap_samples=DRAWS, permutations=1)
    for row in progression_table(conversion(rng, PEOPLE), settings, int(rng.integers(2**31)), HORIZON).itertuples():
        true = true_order()[row.predictor, row.measure]
        named = f"{row.measure.replace('_', ' ')} of conversion, truly {true:.2f}"
        yield named, missed(row.ci_low, row.ci_high, true)


@INTERVALS.add("Cox: intervals", "cox", "60 people with MCI")
def hazards(rng: Generator) -> Found:
    """Log hazard ratio 0 or 0.5 for 1 SD of relevance, and with age; or networks of unequal scale that see nothing."""
    one_network = ((60, 1, 0.0, ADJUSTING), (60, 1, 0.5, ADJUSTING), (120, 1, 0.0, ""), (120, 1, 0.5, ""))
    for rate, networks, slope, formula in (*one_network, (60, 4, 0.0, ADJUSTING), (120, 4, 0.0, "")):
        x, age, network = rng.normal(size=PEOPLE), rng.normal(74, 6, PEOPLE), np.arange(PEOPLE) % networks
        months = np.ceil(rng.exponential(rate * np.exp(-slope * x - 0.05 * (age - 74) * bool(formula))) / 3) * 3
        followed = rng.choice([24.0, 36.0, 48.0], PEOPLE)
        cohort, family = of_relevance(x, network, months, followed, age, formula, rng)
        known = family.known(family.members[0])
        one = hazard_per_sd(cohort.time, cohort.event, known, family.columns, 0.95)
        true = np.exp(slope * known.std(ddof=1))
        adjusted = "adjusted, 30 of 60 convert" if formula else "alone, 17 of 60 convert"
        truly = f"{np.exp(slope):.2f} for 1 SD" if networks == 1 else "1.00, four networks of unequal scale"
        yield f"hazard ratio, {adjusted}, truly {truly}", missed(one.low, one.high, true)


Answer = tuple[float, float, float]
"""Balanced accuracy and its interval."""


def features_of_sites(rng: Generator, person: np.ndarray, site: np.ndarray, shift: float) -> np.ndarray:
    """Features of scans of two sites, one or two scans a person."""
    n = len(site)
    return (rng.normal(size=(n, 6)) + shift * site[:, None])[person] + 0.5 * rng.normal(size=(len(person), 6))


def from_maps(rng: Generator, n: int, shift: float) -> Answer:
    person = np.repeat(np.arange(n), 1 + (np.arange(n) % 3 == 0)).astype(np.intp)
    site, positive = (np.arange(n) % 5 < 2).astype(np.intp), rng.permutation(np.arange(n) % 2).astype(np.intp)
    features = features_of_sites(rng, person, site, shift)
    settings = fast(bootstrap_samples=DRAWS, shortcuts=ShortcutsConfig(1))
    scans = Scans(person, site[person], positive[person])
    (row,) = _predictions("site", {"map": features}, scans, settings, int(rng.integers(2**31)))
    return row["balanced_accuracy"], row["ci_low"], row["ci_high"]


def from_representations(rng: Generator, n: int, shift: float) -> Answer:
    person = np.repeat(np.arange(n), 1 + (np.arange(n) % 3 == 0))
    site = np.arange(n) % 5 < 2
    points = points_of(features_of_sites(rng, person, site, shift), [f"sub-{one:03d}" for one in person])
    names = dict(zip(points.people, site.astype(str), strict=True))
    found = predicted_sites(points, names, None, 0, int(rng.integers(9**9)))
    shares = shares_recognised(found.right, found.sites, {"sites": sorted(set(found.sites))})
    value = scored(shares, draws_within(found.people, found.sites, DRAWS, int(rng.integers(9**9))))[ALL]
    return value.value, *value.interval


@cache
def true_accuracy(tell: Callable[[Generator, int, float], Answer], stream: str, n: int, shift: float) -> float:
    """Mean over `SIMULATED` cohorts: what a classifier trained on so many people achieves in others."""
    if shift == 0:
        return 0.5
    return float(np.mean([tell(generator(SEED, stream, n, i), n, shift)[0] for i in range(SIMULATED)]))


def sites_told(tell: Callable[[Generator, int, float], Answer], stream: str, what: str) -> Callable[[Generator], Found]:
    def function(rng: Generator) -> Found:
        for n, shift in ((40, 0.0), (40, 0.6), (100, 0.0), (100, 0.6)):
            _, low, high = tell(rng, n, shift)
            named = f"{what}, {n} people, sites {f'{shift:g} SD apart' if shift else 'alike'}"
            yield named, missed(low, high, true_accuracy(tell, stream, n, shift))

    return function


TWO_SITES = "40 or 100 people, 1 or 2 scans, two sites"
INTERVALS.add("site prediction: intervals", "site_prediction", TWO_SITES)(
    sites_told(from_maps, "true accuracy", "balanced accuracy")
)
INTERVALS.add("sites told from representations: intervals", "representations (site)", TWO_SITES)(
    sites_told(from_representations, "true share", "site from representations")
)


@INTERVALS.add("means: intervals", "region_summary, subgroups", "6 to 60 people")
def means(rng: Generator) -> Found:
    for n in (6, 12, 30, 60):
        for kind in ("normal", "lognormal 0.6", "lognormal 1", "85 % zeros"):
            one = mean_intervals(drawn(rng, kind, (n, COLUMNS)), 0.95)[0]
            yield f"mean of {n}, {kind}", misses(one.low, one.high, 0.0)


def pairs(rng: Generator, kind: str, n: int, rho: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Two variables and their true correlation; lognormal ones are exponentials of normal ones with correlation rho."""
    x = rng.normal(size=n)
    y = rho * x + np.sqrt(1 - rho**2) * rng.normal(size=n)
    if kind == "normal":
        return x, y, rho
    if kind == "exponential":
        x = rng.exponential(size=n)
        return x, rho * x + np.sqrt(1 - rho**2) * rng.exponential(size=n), rho
    variance = float(kind.split()[-1]) ** 2
    true = (np.exp(rho * variance) - 1) / (np.exp(variance) - 1)
    return np.exp(np.sqrt(variance) * x), np.exp(np.sqrt(variance) * y), true


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
        own = table[(table["unit"] == "participant") & table["r"].notna()].set_index("estimator")
        truly = {"pearson": true, "spearman": 6 / np.pi * np.arcsin(rho / 2)}
        for estimator in ("pearson",) if kind == "exponential" else truly:
            seen = f"{n} people in {folds} fold{'s' * (folds > 1)}, {kind}, truly {truly[estimator]:.2f}"
            bounds = own.loc[estimator, ["ci_low", "ci_high"]]
            yield f"{estimator} of {seen}", missed(*bounds, truly[estimator])


@cache
def true_error(kind: str) -> float:
    """Mean absolute error of `numbers` in 400,000 people."""
    rng = generator(SEED, "true error", kind)
    gap = -0.2 * in_units_of_spread(drawn(rng, kind, (400_000,)), kind) + 0.6 * rng.normal(size=400_000)
    return float(np.abs(gap).mean())


def in_units_of_spread(values: np.ndarray, kind: str) -> np.ndarray:
    if kind == "normal":
        return values
    variance = float(kind.split()[-1]) ** 2
    return values / np.sqrt((np.exp(variance) - 1) * np.exp(variance))


@INTERVALS.add("number: intervals", "performance_number", "30 or 60 people")
def numbers(rng: Generator) -> Found:
    """Age, or a skewed number, predicted with r = .8 and r2 = .6 in 5 folds."""
    for n, kind in ((30, "normal"), (60, "normal"), (30, "lognormal 0.6"), (120, "lognormal 0.6")):
        target = in_units_of_spread(drawn(rng, kind, (n,)), kind)
        predicted = 0.8 * target + 0.6 * rng.normal(size=n)
        true = {"mae": true_error(kind), "r": 0.8, "r2": 0.6}

        def statistic(weights: np.ndarray, target: np.ndarray = target, own: np.ndarray = predicted) -> np.ndarray:
            values = number_metrics(target, own, np.full(len(own), np.nan), weights)
            return np.stack([values[name] for name in ("mae", "r", "r2")], axis=1)

        scales = [SCALES_OF_NUMBERS[name] for name in true]
        one = scaled_intervals(statistic, np.arange(n) % 5, scales, Resampling(DRAWS, rng))
        for i, (name, value) in enumerate(true.items()):
            named = f"{name} of {n} people, five folds" + (", skewed" if kind != "normal" else "")
            yield named, misses(one.low[[i]], one.high[[i]], float(value))
