"""People whose answers go with nothing but their class: subgroups, predictors, runs, other cohorts, small classes.

Each test and interval is made by the function of its table, so that what is measured is what is written.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from types import SimpleNamespace
from typing import Any

import null_data as null
import numpy as np
import pandas as pd
from null_data import CASES, INTERVALS, SEED, Found, Generator
from scipy.special import expit
from scipy.stats import norm
from statsmodels.stats.contingency_tables import mcnemar

from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Resampling
from heatlas.pipeline.statistics.comparison.external import Cohorts, _performance
from heatlas.pipeline.statistics.groups.fairness import _of_level
from heatlas.pipeline.statistics.groups.summaries import _fisher, welch
from heatlas.pipeline.statistics.performance.baselines import AUC, BALANCED, _Compared
from heatlas.pipeline.statistics.performance.baselines import _rows as rows_of_baseline
from heatlas.pipeline.statistics.performance.classification import (
    ALL_FOLDS,
    measured_rows,
    metrics,
    weighted_auc_within,
)
from heatlas.pipeline.statistics.performance.other_tasks import SCALES as SCALES_OF_NUMBERS
from heatlas.pipeline.statistics.performance.other_tasks import number_metrics
from heatlas.pipeline.statistics.resampling.bootstrap import scaled_intervals

QUALITY, LEVEL = np.array([0.5, 0.75, 1.0, 1.25, 1.5]), np.array([-0.4, -0.2, 0.0, 0.2, 0.4])
"""Of the networks of five folds."""
MEASURED = ("balanced_accuracy", "sensitivity", "specificity", "auc_within_folds", "average_precision", "brier")


def answers(person: np.ndarray, positive: np.ndarray, score: np.ndarray, fold: np.ndarray) -> pd.DataFrame:
    """Scans of people with their class and fold, the probability of a score, and whether the class was found."""
    target, called = positive[person], score > 0
    outcome = np.where(called == target, np.where(called, "TP", "TN"), np.where(called, "FP", "FN"))
    frame = pd.DataFrame({"participant_id": person.astype(str), "target": target.astype(float), "outcome": outcome})
    return frame.assign(fold=fold[person], probability=expit(score))


def fair(
    rng: Generator, positive: np.ndarray, inside: np.ndarray, scans: np.ndarray, named: str, quality: Any,
    effect: float = 0.0, fold: np.ndarray | None = None, spread: Any = 1.0, noise: Any = 0.5, draws: int = 100,
) -> Found:  # fmt: skip
    """p of the subgroup in each metric; networks differ in `quality`, of the people of both classes alike.

    With an effect, quality in the subgroup is less by so much; `spread` and `noise`: SD of people, and of their scans.
    """
    n = len(inside)
    person, fold = np.repeat(np.arange(n), scans), np.zeros(n, np.intp) if fold is None else fold
    score = (quality - effect * inside) * np.where(positive, 1.0, -1.0) + spread * rng.normal(size=n)
    score = null.scans_of(rng, score, person, np.broadcast_to(noise, n)[person])
    settings = null.fast(bootstrap_samples=draws)
    table = _of_level(answers(person, positive, score, fold), inside[person], settings, rng)
    return [(f"{row.metric}, {named}", np.array([row.p])) for row in table.itertuples()]


@CASES.add("fairness", "fairness", "60 participants, 1 to 4 scans; more patients in the subgroup", 3.0)
def fairness(rng: Generator, effect: float = 0.0) -> Found:
    scans, positive = rng.integers(1, 5, 60), np.arange(60) < 25
    inside = rng.random(60) < np.where(positive, 0.6, 0.3)
    return fair(rng, positive, inside, scans, "subgroup against rest", 0.75, effect)


@CASES.add("networks: fairness", "fairness", "80 people, 40 % positive, four networks", 4.0)
def fairness_of_networks(rng: Generator, effect: float = 0.0) -> Found:
    n = 80
    fold, positive, named = (
        np.arange(n) // 5 % 4,
        np.arange(n) % 5 < 2,
        "subgroup mostly in the fold of a worse network",
    )
    inside = rng.random(n) < np.array([0.1, 0.2, 0.2, 0.8])[fold]
    quality = np.array([1.4, 1.2, 1.2, 0.3])[fold]
    return fair(rng, positive, inside, rng.integers(1, 4, n), named, quality, effect, fold)


@CASES.add("scans: fairness", "fairness", "60 people, 40 % positive, one network", 3.0)
def fairness_of_scans(rng: Generator, effect: float = 0.0) -> Found:
    positive, inside = np.arange(60) % 5 < 2, rng.random(60) < 0.35
    for own, rest in ((1, 5), (5, 1)):
        named = f"subgroup {own} scan{'s' * (own > 1)}, rest {rest}"
        yield from fair(rng, positive, inside, np.where(inside, own, rest), named, 0.8, effect)


@CASES.add("scans: few alike", "fairness", "60 people, 40 % positive, one network, few in the subgroup", 4.0, True)
def few_alike(rng: Generator, effect: float = 0.0) -> Found:
    """Scans of a person are alike; those of the subgroup have five each, others one; and the reverse, less alike."""
    positive, inside = np.arange(60) % 5 < 2, np.arange(60) % 4 == 0
    for own, rest, noise in ((5, 1, 0.0), (1, 5, 0.5)):
        named = f"15 people with {own} scan{'s' * (own > 1)}, 45 with {rest}, noise of a scan {noise:g}"
        yield from fair(rng, positive, inside, np.where(inside, own, rest), named, 0.8, effect, noise=noise)


@CASES.add("cohorts: steady scans", "fairness", "40 % positive, one network; ICC 0.95 beside 0.3")
def steady_scans(rng: Generator) -> Found:
    """Few people whose scans agree (ICC .95) beside many whose scans do not (ICC .3) and who have more of them."""
    small = ((60, 0.25, (1, 1), (5, 5)), (60, 0.35, (1, 2), (3, 5)))
    for n, share, few, rest in (*small, (120, 0.25, (1, 2), (3, 4)), (200, 0.4, (1, 1), (4, 4))):
        inside, positive = rng.permutation(n) < share * n, np.arange(n) < 0.4 * n
        scans = np.where(inside, rng.integers(few[0], few[1] + 1, n), rng.integers(rest[0], rest[1] + 1, n))
        sizes, beside = (" to ".join(map(str, dict.fromkeys(ends))) for ends in (few, rest))
        named = f"{round(share * n)} of {n} people with {sizes} steady scans, others {beside} noisy"
        icc = np.where(inside, 0.95, 0.3)
        spread, noise = np.sqrt(icc), np.sqrt(1 - icc)
        yield from fair(rng, positive, inside, scans, named, 0.8, spread=spread, noise=noise, draws=20)


@CASES.add("two runs", "model_comparison", "accuracy 80 %, runs correlated", 1.5)
def two_runs(rng: Generator, effect: float = 0.0) -> Found:
    for n in (60, 344):
        ability = rng.normal(size=n)
        a, b = ability + rng.normal(size=n) > -1.2 + effect, ability + rng.normal(size=n) > -1.2
        table = [[(a & b).sum(), (a & ~b).sum()], [(~a & b).sum(), (~a & ~b).sum()]]
        yield f"exact McNemar, {n} people", np.array([mcnemar(table, exact=True).pvalue])


@CASES.add("demographics", "demographic_tests", "60 people", 4.0)
def demographic(rng: Generator, effect: float = 0.0) -> Found:
    a, b = pd.Series(2 * rng.normal(size=20) + effect), pd.Series(rng.normal(size=40))
    female = [pd.Series((rng.random(n) < share).astype(float)) for n, share in ((20, 0.5 + 0.1 * effect), (40, 0.5))]
    yield "Welch's t, 20 and 40, SD 2:1", np.array([welch(a, b)["p"]])
    yield "Fisher's exact, 20 and 40", np.array([_fisher(*female)["p"]])


def cohort(
    rng: Generator, positive: int, negative: int, folds: int, quality: float, differ: bool = True
) -> pd.DataFrame:
    """Scans of people, one or two each, with the answers of a network per fold, or of one for all."""
    n = positive + negative
    target = (np.arange(n) < positive).astype(int)
    fold = np.empty(n, np.intp)
    for side in (0, 1):
        fold[target == side] = (rng.permutation(np.count_nonzero(target == side)) + 2 * side) % folds
    person = np.repeat(np.arange(n), rng.integers(1, 3, n))
    network = fold % len(QUALITY) if differ else np.full(n, 2)
    score = quality * QUALITY[network] * (2 * target - 1) + LEVEL[network] + 0.9 * rng.normal(size=n)
    score = null.scans_of(rng, score, person, 0.45)
    return answers(person, target == 1, score, fold).assign(target=target[person], probability=expit(2 * score))


@cache
def true_performance(positive: int, negative: int, quality: float) -> dict[str, float]:
    """In 60,000 people or so of the same networks and classes in the same proportion."""
    found: dict[str, list[float]] = defaultdict(list)
    times = 3_000 // (positive + negative)
    for i in range(20):
        rng = generator(SEED, "true performance of cohorts", positive, negative, str(quality), i)
        frame = cohort(rng, positive * times, negative * times, 5, quality)
        target, probability = (frame[name].to_numpy(float) for name in ("target", "probability"))
        everyone = np.ones((1, len(frame)))
        values = metrics(target, (probability > 0.5).astype(float), probability, everyone)
        values["auc_within_folds"] = weighted_auc_within(target, probability, frame["fold"].to_numpy(), everyone)
        for name in MEASURED:
            found[name].append(float(values[name][0]))
    return {name: float(np.mean(values)) for name, values in found.items()}


@INTERVALS.add("cohorts: small classes", "performance", "five networks, one or two scans")
def small_classes(rng: Generator) -> Found:
    few = ((15, 15, 0.8), (15, 15, 1.5), (8, 22, 0.8), (8, 22, 1.5), (10, 20, 2.0))
    for positive, negative, quality in (*few, (20, 60, 1.5), (60, 60, 0.8)):
        frame = cohort(rng, positive, negative, 5, quality)
        rows = measured_rows(ALL_FOLDS, frame, null.fast(bootstrap_samples=null.FEWER_DRAWS), null.seed_of(rng))
        table, truth = pd.DataFrame(rows).set_index("metric"), true_performance(positive, negative, quality)
        for name in MEASURED:
            named = f"{name} of {positive} and {negative} people, five folds, truly {truth[name]:.2f}"
            yield named, null.misses(*table.loc[name, ["ci_low", "ci_high"]], truth[name])


EQUALLY = 0.8
TRUE_OF_EQUAL = {AUC: norm.cdf(np.sqrt(2) * EQUALLY / 0.9), BALANCED: norm.cdf(EQUALLY / 0.9)}
"""Of predictors with normal scores of SD .9 within the classes, twice `EQUALLY` apart."""


@INTERVALS.add("cohorts: baselines", "baselines", "two predictors that are equally good")
def predictors(rng: Generator) -> Found:
    """Network and baseline are equally good and see in part the same."""
    for positive, negative, folds in ((15, 15, 5), (8, 22, 5), (30, 30, 10), (44, 89, 5)):
        n = positive + negative
        of = cohort(rng, positive, negative, folds, 0.0)  # its people, classes and folds
        person = of["participant_id"].astype(int).to_numpy()
        shared = EQUALLY * (2 * of["target"].to_numpy() - 1) + 0.6 * rng.normal(size=n)[person]
        own = [shared + 0.6 * rng.normal(size=n)[person] + 0.3 * rng.normal(size=len(of)) for _ in range(2)]
        compared = _Compared(of["target"].to_numpy(float), (1,), *(expit(2 * one)[:, None] for one in own))
        for row in rows_of_baseline("regions", of.assign(**{"class": of["target"]}), compared, null.FEWER_DRAWS, rng):
            named = f"{row['metric']} of {positive} and {negative} people, {folds} folds"
            yield f"network less baseline, {named}", null.misses(row["difference_low"], row["difference_high"], 0.0)
            yield f"baseline, {named}", null.misses(row["ci_low"], row["ci_high"], TRUE_OF_EQUAL[row["metric"]])


@INTERVALS.add("cohorts: new people", "external_validation", "the same network in both cohorts")
def new_cohorts(rng: Generator) -> Found:
    """The same network answers the people of a run and others who do not differ."""
    config = load_config(overrides={"statistics": {"bootstrap_samples": null.FEWER_DRAWS}})
    large = (60, 60)
    sizes = ((large, (30, 30), 0.75), (large, (8, 22), 0.75), ((30, 30), (10, 10), 1.5), (large, (8, 22), 1.4))
    for run, new, quality in sizes:
        sides = []
        for people, folds in ((run, 5), (new, 1)):
            predictions = cohort(rng, *people, folds, quality, False)
            sides.append(SimpleNamespace(predictions=predictions, config=config, seed=null.seed_of(rng)))
        for row in _performance(Cohorts(*sides)):
            if row["measure"] == "probability_less_share" and run[0] * new[1] != run[1] * new[0]:
                continue  # it depends on the share of the positive class
            who = f"{new[0]} and {new[1]} new people less that of {sum(run)}, separation {quality}"
            yield f"{row['measure']} of {who}", null.misses(row["ci_low"], row["ci_high"], 0.0)


@cache
def true_error(kind: str) -> float:
    """Mean absolute error of `numbers` in 400,000 people."""
    rng = generator(SEED, "true error", kind)
    gap = -0.2 * null.drawn(rng, kind, (400_000,), True) + 0.6 * rng.normal(size=400_000)
    return float(np.abs(gap).mean())


@INTERVALS.add("number: intervals", "performance_number", "30 or 60 people")
def numbers(rng: Generator) -> Found:
    """Age, or a skewed number, predicted with r = .8 and r2 = .6 in 5 folds."""
    for n, kind in ((30, "normal"), (60, "normal"), (30, "lognormal 0.6"), (120, "lognormal 0.6")):
        target = null.drawn(rng, kind, (n,), True)
        predicted = 0.8 * target + 0.6 * rng.normal(size=n)
        true = {"mae": true_error(kind), "r": 0.8, "r2": 0.6}

        def statistic(weights: np.ndarray, target: np.ndarray = target, own: np.ndarray = predicted) -> np.ndarray:
            values = number_metrics(target, own, np.full(len(own), np.nan), weights)
            return np.stack([values[name] for name in ("mae", "r", "r2")], axis=1)

        scales = [SCALES_OF_NUMBERS[name] for name in true]
        one = scaled_intervals(statistic, np.arange(n) % 5, scales, Resampling(null.DRAWS, rng))
        for i, (name, value) in enumerate(true.items()):
            named = f"{name} of {n} people, five folds" + (", skewed" if kind != "normal" else "")
            yield named, null.misses(one.low[[i]], one.high[[i]], float(value))
