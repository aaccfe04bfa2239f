"""Where intervals of few people miss: means, correlations away from 0, errors of numbers; and tests like them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
from null_networks import SCALES, fair, misses
from null_relevance import FAST, Case, Found, Generator, M

from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Resampling
from heatlas.pipeline.statistics.associations.volume_association import volume_association
from heatlas.pipeline.statistics.harmonisation.sites import site_effect
from heatlas.pipeline.statistics.linear.correlation import partial_correlation
from heatlas.pipeline.statistics.linear.fold_effect import model_within_folds
from heatlas.pipeline.statistics.performance.other_tasks import SCALES as SCALES_OF_NUMBERS
from heatlas.pipeline.statistics.performance.other_tasks import number_metrics
from heatlas.pipeline.statistics.resampling.bootstrap import scaled_intervals
from heatlas.pipeline.statistics.resampling.means import mean_intervals

SEED, DRAWS, COLUMNS = 43, 1_000, 10


def drawn(rng: Generator, kind: str, size: tuple[int, ...]) -> np.ndarray:
    """Values of a kind with mean 0."""
    if kind == "normal":
        return rng.normal(size=size)
    if kind == "85 % zeros":
        return rng.lognormal(size=size) * (rng.random(size) < 0.15) - 0.15 * np.exp(0.5)
    sigma = float(kind.split()[-1])
    return rng.lognormal(0, sigma, size) - np.exp(sigma**2 / 2)


def means(rng: Generator) -> Found:
    found = {}
    for n in (6, 12, 30, 60):
        for kind in ("normal", "lognormal 0.6", "lognormal 1", "85 % zeros"):
            one = mean_intervals(drawn(rng, kind, (n, COLUMNS)), 0.95)[0]
            found[f"mean of {n}, {kind}"] = misses(one.low, one.high, 0.0)
    return found


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


def correlations(rng: Generator) -> Found:
    found = {}
    for kind, n, folds, rho in (
        ("normal", 12, 1, 0.5), ("normal", 12, 1, 0.8), ("normal", 30, 5, 0.8), ("lognormal 0.6", 30, 1, 0.5),
        ("lognormal 0.6", 30, 5, 0.8), ("exponential", 30, 1, 0.5), ("lognormal 1", 30, 1, 0.5),
    ):  # fmt: skip
        x, y, true = pairs(rng, kind, n, rho)
        frame = pd.DataFrame({"participant_id": np.arange(n).astype(str), "fold": np.arange(n) % folds})
        frame = frame.assign(map="map", relevance_sum=y, hippocampus_mm3=x, hippocampus_per_tiv=np.nan)
        frame = frame.assign(hippocampus_source="made up")
        table = volume_association(frame, ["map"], True, FAST, int(rng.integers(2**31)))
        own = table[(table["unit"] == "participant") & table["r"].notna()].set_index("estimator")
        truly = {"pearson": true, "spearman": 6 / np.pi * np.arcsin(rho / 2)}
        for estimator in ("pearson",) if kind == "exponential" else truly:
            bounds = (own.loc[[estimator], name].to_numpy(float) for name in ("ci_low", "ci_high"))
            named = (
                f"{estimator} of {n} people in {folds} fold{'s' * (folds > 1)}, {kind}, truly {truly[estimator]:.2f}"
            )
            found[named] = misses(*bounds, truly[estimator])
    return found


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


def numbers(rng: Generator) -> Found:
    """Age, or a skewed number, predicted with r = .8 and r2 = .6 in 5 folds."""
    found = {}
    for n, kind in ((30, "normal"), (60, "normal"), (30, "lognormal 0.6"), (120, "lognormal 0.6")):
        target = in_units_of_spread(drawn(rng, kind, (n,)), kind)
        predicted = 0.8 * target + 0.6 * rng.normal(size=n)
        true = {"mae": true_error(kind), "r": 0.8, "r2": 0.6}

        def statistic(weights: np.ndarray, target: np.ndarray = target, own: np.ndarray = predicted) -> np.ndarray:
            made = number_metrics(target, own, np.full(len(own), np.nan), weights)
            return np.stack([made[name] for name in ("mae", "r", "r2")], axis=1)

        scales = [SCALES_OF_NUMBERS[name] for name in true]
        one = scaled_intervals(statistic, np.arange(n) % 5, scales, Resampling(DRAWS, rng))
        for i, (name, value) in enumerate(true.items()):
            named = f"{name} of {n} people, five folds" + (", skewed" if kind != "normal" else "")
            found[named] = misses(one.low[[i]], one.high[[i]], float(value))
    return found


def spread_of_classes(rng: Generator) -> Found:
    """Patients vary twice as much, and most are from one site; sites do not differ."""
    n, found = 80, {}
    patient, fold = np.arange(n) % 2 == 0, rng.permutation(n) % 4
    site = np.where(rng.random(n) < 0.5, patient, rng.random(n) < 0.5)
    values = rng.normal(size=(n, COLUMNS)) * np.where(patient, 2.0, 1.0)[:, None] + patient[:, None]
    values = values * SCALES[fold][:, None] + 2.0 * fold[:, None]
    frame = pd.DataFrame({"fold": fold, "age": rng.normal(size=n), "label": np.where(patient, "AD", "CN")})
    test = site_effect(
        "scale", values, np.where(site, "a", "b").tolist(), "age + label", frame, Resampling(M, rng), True
    )[0]
    found["scale of sites that go with classes of SD 2:1"] = test.p
    found["scale of sites that go with classes of SD 2:1, family-wise over 10"] = test.p_fwe.min(keepdims=True)
    return found


def few_alike(rng: Generator, effect: float = 0.0) -> Found:
    """Scans of a person are alike; those of the subgroup have five each, others one; and the reverse, less alike."""
    n, found = 60, {}
    inside = np.arange(n) % 4 == 0
    for own, rest, noise in ((5, 1, 0.0), (1, 5, 0.5)):
        scans = np.where(inside, own, rest)
        tested = fair(rng, np.zeros(n, np.intp), inside, scans, np.array([0.8]), effect, noise)
        named = f"15 people with {own} scan{'s' * (own > 1)}, 45 with {rest}, noise of a scan {noise:g}"
        found |= {f"{name}, {named}": p for name, p in tested.items()}
    return found


def small_class(rng: Generator, effect: float = 0.0) -> Found:
    """A small class varies three times as much in both variables."""
    found = {}
    for n, few, folds in ((30, 6, 1), (30, 8, 4), (40, 10, 4)):
        spread, fold = np.where(rng.permutation(n) < few, 3.0, 1.0), np.arange(n) % folds
        frame = pd.DataFrame({"x": rng.normal(size=n) * spread, "fold": fold})
        values = rng.normal(size=(n, COLUMNS)) * spread[:, None] + effect * frame[["x"]].to_numpy()
        values = values * SCALES[fold][:, None]
        model = model_within_folds("x", "x", frame, True)
        test = partial_correlation(values, model.design, model.exchange, Resampling(M, rng), "pearson")
        found[f"pearson, {n} people in {folds} fold{'s' * (folds > 1)}, {few} with 3 x the SD"] = test.p
    return found


CASES = {
    "sites: spread of classes": Case("site_effects", "80 people, four networks, two sites", spread_of_classes),
    "scans: few alike": Case("fairness", "60 people, 40 % positive, one network, few in the subgroup", few_alike, 4.0),
    "spreads: small class": Case("associations", "a small class that varies more in both", small_class, 1.5),
}
INTERVALS = {
    "means: intervals": Case("region_summary, subgroups", "6 to 60 people", means),
    "correlations: intervals": Case("volume_association", "12 or 30 people", correlations),
    "number: intervals": Case("performance_number", "30 or 60 people", numbers),
}
