"""Intervals where the true value is known: of scores that order conversion, of hazard ratios, of site prediction."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
from null_networks import misses, of_relevance
from null_people import HORIZON
from null_relevance import FAST, Case, Found, Generator

from heatlas.pipeline.run.config.statistics import ShortcutsConfig
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.progression.cox import SOONER_WHEN_LOWER, Conversions
from heatlas.pipeline.statistics.progression.hazards import class_pairs, comparable_pairs, concordance, hazard_per_sd
from heatlas.pipeline.statistics.progression.prediction import progression_table
from heatlas.pipeline.statistics.shortcuts import Scans, _predictions
from heatlas.studies.representations.points import points_of
from heatlas.studies.representations.probes import (
    ALL,
    draws_within,
    predicted_sites,
    scored,
    shares_recognised,
)

SEED, PEOPLE, DRAWS, SIMULATED = 43, 60, 1_000, 1_000
STRENGTH = {"age": 0.0, "mmse": 0.5, "hippocampus/tiv": 1.0, "model": 2.0}
"""Weight of the risk in each predictor, beside noise of variance 1."""


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
    found: dict[tuple[str, str], list[float]] = {}
    for i in range(10):
        cohort = conversion(generator(SEED, "true order", i), 2_000)
        course = cohort.frame["progression"].to_numpy(str)
        known, converts, called = course != "", course == "pMCI", cohort.scalar("model") > 0
        everyone = comparable_pairs(cohort.time, cohort.event)
        for name in STRENGTH:
            x = cohort.scalar(name) * direction(name)
            found.setdefault((name, "concordance"), []).append(concordance(x, everyone)[0])
            found.setdefault((name, "auc"), []).append(concordance(x[known], class_pairs(converts[known]))[0])
        right = called[converts].mean(), (~called)[known & ~converts].mean()
        for name, share in zip(
            ("sensitivity", "specificity", "balanced_accuracy"), (*right, np.mean(right)), strict=True
        ):
            found.setdefault(("model", name), []).append(float(share))
    return {key: float(np.mean(values)) if STRENGTH[key[0]] else 0.5 for key, values in found.items()}


def ordering(rng: Generator) -> Found:
    settings = replace(FAST, bootstrap_samples=DRAWS, permutations=1)
    found = {}
    for row in progression_table(conversion(rng, PEOPLE), settings, int(rng.integers(2**31)), HORIZON).itertuples():
        true, bounds = true_order()[row.predictor, row.measure], np.array([[row.ci_low], [row.ci_high]], float)
        found[f"{row.measure.replace('_', ' ')} of conversion, truly {true:.2f}"] = misses(*bounds, true)
    return found


def hazards(rng: Generator) -> Found:
    """Log hazard ratio 0 or 0.5 for 1 SD of relevance, and with age; or networks of unequal scale that see nothing."""
    found = {}
    for rate, networks, slope, formula in (
        (60, 1, 0.0, "age + sex + mmse"), (60, 1, 0.5, "age + sex + mmse"), (120, 1, 0.0, ""), (120, 1, 0.5, ""),
        (60, 4, 0.0, "age + sex + mmse"), (120, 4, 0.0, ""),
    ):  # fmt: skip
        x, age, network = rng.normal(size=PEOPLE), rng.normal(74, 6, PEOPLE), np.arange(PEOPLE) % networks
        months = np.ceil(rng.exponential(rate * np.exp(-slope * x - 0.05 * (age - 74) * bool(formula))) / 3) * 3
        followed = rng.choice([24.0, 36.0, 48.0], PEOPLE)
        cohort, family = of_relevance(x, network, months, followed, age, formula, rng)
        known = family.known(family.members[0])
        one = hazard_per_sd(cohort.time, cohort.event, known, family.columns, 0.95)
        true = np.exp(slope * known.std(ddof=1))
        adjusted = "adjusted, 30 of 60 convert" if formula else "alone, 17 of 60 convert"
        truly = f"{np.exp(slope):.2f} for 1 SD" if networks == 1 else "1.00, four networks of unequal scale"
        found[f"hazard ratio, {adjusted}, truly {truly}"] = misses(np.array([one.low]), np.array([one.high]), true)
    return found


def predicted(rng: Generator, n: int, shift: float) -> tuple[float, float, float]:
    """Balanced accuracy of two sites and its interval; people have one or two scans."""
    person = np.repeat(np.arange(n), 1 + (np.arange(n) % 3 == 0)).astype(np.intp)
    site, positive = (np.arange(n) % 5 < 2).astype(np.intp), rng.permutation(np.arange(n) % 2).astype(np.intp)
    features = (rng.normal(size=(n, 6)) + shift * site[:, None])[person] + 0.5 * rng.normal(size=(len(person), 6))
    settings = replace(FAST, bootstrap_samples=DRAWS, shortcuts=ShortcutsConfig(1))
    scans = Scans(person, site[person], positive[person])
    (row,) = _predictions("site", {"map": features}, scans, settings, int(rng.integers(2**31)))
    return row["balanced_accuracy"], row["ci_low"], row["ci_high"]


@cache
def true_accuracy(n: int, shift: float) -> float:
    """Mean over `SIMULATED` cohorts: what a classifier trained on so many people achieves in others."""
    if shift == 0:
        return 0.5
    return float(np.mean([predicted(generator(SEED, "true accuracy", n, i), n, shift)[0] for i in range(SIMULATED)]))


def site_accuracy(rng: Generator) -> Found:
    found = {}
    for n, shift in ((40, 0.0), (40, 0.6), (100, 0.0), (100, 0.6)):
        _, low, high = predicted(rng, n, shift)
        true = true_accuracy(n, shift)
        named = f"balanced accuracy, {n} people, sites {f'{shift:g} SD apart' if shift else 'alike'}"
        found[named] = misses(np.array([low], float), np.array([high], float), true)
    return found


def from_features(rng: Generator, n: int, shift: float) -> tuple[float, float, float]:
    """Balanced accuracy of two sites told from representations and its interval; people have one or two scans."""
    person = np.repeat(np.arange(n), 1 + (np.arange(n) % 3 == 0))
    site = np.arange(n) % 5 < 2
    features = (rng.normal(size=(n, 6)) + shift * site[:, None])[person] + 0.5 * rng.normal(size=(len(person), 6))
    points = points_of(features, [f"sub-{one:03d}" for one in person])
    found = predicted_sites(
        points, dict(zip(points.people, site.astype(str), strict=True)), None, 0, int(rng.integers(9**9))
    )
    shares = shares_recognised(found.right, found.sites, {"sites": sorted(set(found.sites))})
    value = scored(shares, draws_within(found.people, found.sites, DRAWS, int(rng.integers(9**9))))[ALL]
    return value.value, *value.interval


def site_of_features(rng: Generator) -> Found:
    found = {}
    for n, shift in ((40, 0.0), (40, 0.6), (100, 0.0), (100, 0.6)):
        _, low, high = from_features(rng, n, shift)
        named = f"site from representations, {n} people, sites {f'{shift:g} SD apart' if shift else 'alike'}"
        found[named] = misses(np.array([low]), np.array([high]), true_share(n, shift))
    return found


@cache
def true_share(n: int, shift: float) -> float:
    """As `true_accuracy`, from representations."""
    if shift == 0:
        return 0.5
    return float(np.mean([from_features(generator(SEED, "true share", n, i), n, shift)[0] for i in range(SIMULATED)]))


INTERVALS = {
    "order: intervals": Case("progression", "60 people with MCI", ordering),
    "Cox: intervals": Case("cox", "60 people with MCI", hazards),
    "site prediction: intervals": Case("site_prediction", "40 or 100 people, 1 or 2 scans, two sites", site_accuracy),
    "sites told from representations: intervals": Case(
        "representations (site)", "40 or 100 people, 1 or 2 scans, two sites", site_of_features
    ),
}
