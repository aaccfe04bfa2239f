"""People with MCI whose conversion goes with nothing, or as is known, and change over time without a difference."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any

import null_data as null
import numpy as np
import pandas as pd
from null_data import CASES, COLUMNS, INTERVALS, PEOPLE, SCALES, SEED, Found, Generator
from scipy.special import expit

from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.progression.cox import (
    MODEL,
    RELEVANCE,
    SOONER_WHEN_LOWER,
    Conversions,
    _Fitted,
    _tests,
    _with_shared_models,
    predictors,
)
from heatlas.pipeline.statistics.progression.hazards import class_pairs, comparable_pairs, concordance, hazard_per_sd
from heatlas.pipeline.statistics.progression.prediction import progression_table
from heatlas.pipeline.statistics.progression.trajectories import ChangeTest, change_test

HORIZON = 36
"""Months that tell pMCI from sMCI."""
FOLLOWED = [24.0, 36.0, 48.0]
ADJUSTING = "age + sex + mmse"
BOTH_WAYS = (("alone", ""), ("adjusted", ADJUSTING))
STRENGTH = {"age": 0.0, "mmse": 0.5, "hippocampus/tiv": 1.0, "model": 2.0}
"""Weight of the risk in each predictor, beside noise of variance 1."""
SIGN = {name: -1 if name in SOONER_WHEN_LOWER else 1 for name in STRENGTH}


def converting(months: np.ndarray, followed: np.ndarray, values: np.ndarray | None = None, **known: Any) -> Conversions:
    """People with MCI who convert after so many months if they are followed for so long, and what is known of them.

    `values` (people, regions) are the relevance of one map.
    """
    event = months <= followed
    course = np.where(event & (months <= HORIZON), "pMCI", np.where(followed >= HORIZON, "sMCI", None))
    frame = pd.DataFrame({"time": np.where(event, months, followed), "event": event, "progression": course})
    frame = frame.assign(**{"competing": np.nan, "tiv_mm3": 1.0, "hippocampus_mm3": 1.0, "probability": 0.5} | known)
    if values is None:
        return Conversions(frame, np.zeros((len(frame), 0, 0)), (), (), {})
    regions = tuple(f"r{i}" for i in range(values.shape[1]))
    return Conversions(frame, values[:, None], ("lrp",), regions, {})


def at_visits(months: np.ndarray, apart: int = 6) -> np.ndarray:
    """Months of the first visit after an event."""
    return np.ceil(months / apart) * apart


def with_mci(rng: Generator, n: int, regions: int, effect: float = 0.0) -> Conversions:
    """People with MCI whose time to AD depends on age and MMSE (and `effect`) only; predictors go with age."""
    age, mmse = rng.normal(74, 6, n), rng.normal(27, 2, n)
    months = at_visits(rng.exponential(60 * np.exp(-0.05 * (age - 74) + 0.15 * (mmse - 27))))
    followed, sex = rng.choice(FOLLOWED, n), rng.choice(["F", "M"], n)
    volume = rng.normal(size=n) - 0.05 * (age - 74)
    probability = expit(rng.normal(size=n) + 0.05 * (age - 74))
    values = rng.normal(size=(n, regions)) + (0.05 * (age - 74) - effect * np.log(months))[:, None]
    known = {"age": age, "mmse": mmse, "sex": sex, "hippocampus_mm3": volume, "probability": probability}
    return converting(months, followed, values, **known)


def fitted(cohort: Conversions, name: str, formula: str, of_networks: bool = True) -> _Fitted:
    """The model of the table for some predictors, of relevance or of the networks' output."""
    asked = [one for one in predictors(cohort, of_networks) if one.name == name]
    (family,) = _with_shared_models(asked, formula, cohort.frame)
    return family


def cox_tests(cohort: Conversions, family: _Fitted, rng: Generator) -> tuple[dict[str, Sequence[Any]], str | None]:
    return _tests(cohort.time, cohort.event, family, null.fast(), null.seed_of(rng))


def missed_hazard(cohort: Conversions, family: _Fitted, slope: float = 0.0) -> np.ndarray:
    """Whether the interval of the first predictor's hazard ratio misses that of a slope per unit."""
    known = family.known(family.members[0])
    one = hazard_per_sd(cohort.time, cohort.event, known, family.columns, 0.95)
    return null.misses(one.low, one.high, np.exp(slope * known.std(ddof=1)))


@CASES.add("ordering", "progression", "60 people with MCI, half of them censored", 0.05)
def order_of_conversion(rng: Generator, effect: float = 0.0) -> Found:
    cohort = with_mci(rng, PEOPLE, 0)
    free = rng.permutation(PEOPLE)  # nothing goes with conversion
    for name in ("age", "mmse", "hippocampus_mm3", "probability"):
        cohort.frame[name] = cohort.frame[name].to_numpy()[rng.permutation(free)]
        sooner = -effect * cohort.time * (1 + ~cohort.event) * (1 if name in ("age", "probability") else -1)
        cohort.frame[name] = cohort.frame[name] + cohort.frame[name].std() * sooner
    p = progression_table(cohort, null.fast(), null.seed_of(rng), HORIZON).set_index("measure")["p"]
    return [(f"{name} of conversion", p[[name]].to_numpy(float)) for name in ("concordance", "auc")]


@CASES.add("Cox", "cox", "60 people with MCI; age and MMSE matter, and relevance goes with age", 1.5)
def cox(rng: Generator, effect: float = 0.0) -> Found:
    """The tests of the table, without the hazard ratios, which take most of its time."""
    cohort = with_mci(rng, PEOPLE, 10, effect)
    tests, refused = cox_tests(cohort, fitted(cohort, RELEVANCE, ADJUSTING, False), rng)
    assert refused is None
    assert tests["n_permutations"] == [null.fast().permutations] * 10
    yield "Cox score, adjusted", np.array(tests["p"])
    yield "Cox score, family-wise over 10", np.array(tests["p_fwe"]).min(keepdims=True)


def of_relevance(
    values: np.ndarray, network: np.ndarray, months: np.ndarray, followed: np.ndarray, age: np.ndarray, formula: str,
    rng: Generator,
) -> tuple[Conversions, _Fitted]:  # fmt: skip
    """People whose relevance is seen by networks of unequal scale, and the model of the table for it."""
    known = {"age": age, "mmse": rng.normal(27, 2, len(age)), "sex": rng.choice(["F", "M"], len(age))}
    cohort = converting(months, followed, null.seen(values[:, None], network), networks=network.astype(str), **known)
    return cohort, fitted(cohort, RELEVANCE, formula)


@CASES.add("follow-up: Cox", "cox", "people with MCI, followed for unequal times", 1.5)
def short_follow_up(rng: Generator, effect: float = 0.0) -> Found:
    """Conversion does not depend on relevance; how long people are followed does, and conversions are few or many."""
    formulas, lengths = ("", ADJUSTING), ("short", "long for extreme values")
    of_networks = [(60, 120, 4, formula, follow) for follow in lengths for formula in formulas]
    for n, rate, networks, formula, follow in [(80, 50, 1, "", "short"), *of_networks]:
        values, age = rng.normal(size=n), rng.normal(74, 6, n)
        risk = np.exp(-effect * values - 0.03 * (age - 74) * (n < 80))
        months = at_visits(rng.exponential(rate, n) * risk)
        months_followed = 42 - 15 * values if follow == "short" else 36 + 20 * np.abs(values)
        followed = at_visits(np.clip(months_followed, 6, 96))
        cohort, family = of_relevance(values, np.arange(n) % networks, months, followed, age, formula, rng)
        tests, refused = cox_tests(cohort, family, rng)
        by = f"{networks} network{'s of unequal scale' * (networks > 1)}, {'adjusted' if formula else 'alone'}"
        named = f"{n} people, {by}, follow-up {follow}{' for high values' * (follow == 'short')}"
        yield f"Cox score, {named}", np.array([np.nan] if refused else tests["p"])


@INTERVALS.add("Cox: intervals", "cox", "60 people with MCI")
def hazards(rng: Generator) -> Found:
    """Log hazard ratio 0 or 0.5 for 1 SD of relevance, and with age; or networks of unequal scale that see nothing."""
    one_network = ((60, 1, 0.0, ADJUSTING), (60, 1, 0.5, ADJUSTING), (120, 1, 0.0, ""), (120, 1, 0.5, ""))
    for rate, networks, slope, formula in (*one_network, (60, 4, 0.0, ADJUSTING), (120, 4, 0.0, "")):
        x, age, network = rng.normal(size=PEOPLE), rng.normal(74, 6, PEOPLE), np.arange(PEOPLE) % networks
        months = rng.exponential(rate * np.exp(-slope * x - 0.05 * (age - 74) * bool(formula)))
        cohort, family = of_relevance(x, network, at_visits(months, 3), rng.choice(FOLLOWED, PEOPLE), age, formula, rng)
        adjusted = "adjusted, 30 of 60 convert" if formula else "alone, 17 of 60 convert"
        truly = f"{np.exp(slope):.2f} for 1 SD" if networks == 1 else "1.00, four networks of unequal scale"
        yield f"hazard ratio, {adjusted}, truly {truly}", missed_hazard(cohort, family, slope)


def of_output(rng: Generator, formula: str, effect: float = 0.0) -> tuple[Conversions, _Fitted]:
    """120 people with MCI, four networks whose outputs are 1.2 SD apart, and unequal rates of conversion."""
    n = 120
    network, own, age = np.arange(n) % 4, rng.normal(size=n), rng.normal(74, 6, n)
    months = at_visits(rng.exponential(60 / (1 + 0.2 * network)) * np.exp(-effect * own - 0.03 * (age - 74)))
    followed = rng.choice(FOLLOWED, n)
    known = {"age": age, "sex": rng.choice(["F", "M"], n), "mmse": rng.normal(27, 2, n)}
    probability = expit(0.5 * SCALES[network] * (own + 1.2 * network))
    cohort = converting(months, followed, networks=network.astype(str), probability=probability, **known)
    return cohort, fitted(cohort, MODEL, formula)


OF_OUTPUT = "120 people with MCI, four networks 1.2 SD apart"


@CASES.add("networks: Cox", "cox", f"{OF_OUTPUT}, whose people convert at unequal rates", 1.5)
def output_and_hazard(rng: Generator, effect: float = 0.0) -> Found:
    for named, formula in BOTH_WAYS:
        tests, _ = cox_tests(*of_output(rng, formula, effect), rng)
        yield f"Cox score of the networks' output, {named}", np.array(tests["p"])


@INTERVALS.add("networks: Cox intervals", "cox", OF_OUTPUT)
def interval_of_output(rng: Generator) -> Found:
    for named, formula in BOTH_WAYS:
        yield f"hazard ratio of the networks' output, {named}, truly 1.00", missed_hazard(*of_output(rng, formula))


def conversion(rng: Generator, n: int) -> Conversions:
    """People with MCI whose risk is seen by the predictors with `STRENGTH`; half convert, visits every 6 months."""
    risk, followed = rng.normal(size=n), rng.choice([*FOLLOWED, 60.0], n)
    months = at_visits(rng.exponential(60 * np.exp(-0.8 * risk)))
    score = {name: (weight * risk + rng.normal(size=n)) * SIGN[name] for name, weight in STRENGTH.items()}
    known = {"age": score["age"], "mmse": score["mmse"], "hippocampus_mm3": score["hippocampus/tiv"]}
    return converting(months, followed, probability=expit(score["model"]), **known)


@cache
def true_order() -> dict[tuple[str, str], float]:
    """Concordance and area of each predictor and shares of the model, in 10 cohorts of 2,000 people."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for i in range(10):
        cohort = conversion(generator(SEED, "true order", i), 2_000)
        course, called = cohort.frame["progression"], cohort.scalar("model") > 0
        known, converts = course.notna().to_numpy(), (course == "pMCI").to_numpy()
        everyone = comparable_pairs(cohort.time, cohort.event)
        for name in STRENGTH:
            x = cohort.scalar(name) * SIGN[name]
            found[name, "concordance"].append(concordance(x, everyone)[0])
            found[name, "auc"].append(concordance(x[known], class_pairs(converts[known]))[0])
        found["model", "sensitivity"].append(called[converts].mean())
        found["model", "specificity"].append((~called)[known & ~converts].mean())
    found["model", "balanced_accuracy"] = found["model", "sensitivity"] + found["model", "specificity"]
    return {key: float(np.mean(values)) if STRENGTH[key[0]] else 0.5 for key, values in found.items()}


@INTERVALS.add("order: intervals", "progression", "60 people with MCI")
def ordering(rng: Generator) -> Found:
    settings, cohort = null.fast(bootstrap_samples=null.DRAWS, permutations=1), conversion(rng, PEOPLE)
    for row in progression_table(cohort, settings, null.seed_of(rng), HORIZON).itertuples():
        true = true_order()[row.predictor, row.measure]
        named = f"{row.measure.replace('_', ' ')} of conversion, truly {true:.2f}"
        yield named, null.misses(row.ci_low, row.ci_high, true)


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

    def test(values: np.ndarray, groups: int = 1) -> ChangeTest:
        own = {1: group == 0, 2: group != 0, 3: group >= 0}[groups]
        who, nobody = person[own], np.zeros_like(person[own])
        return change_test(values[own], years[own], who, group[own], nobody, null.orders(rng))

    none, random = test(level + noise), test(level + noise + change)
    yield "mean change of a group, nobody changes", none.p
    yield "mean change of a group, people change at random about zero", random.p
    yield "mean change of a group, those with two visits three times as much", test(level + noise + uneven).p
    yield "mean change of a group, skewed errors (exponential)", test(level + skewed).p
    yield "mean change of a group, family-wise over 10", random.p_fwe.min(keepdims=True)
    yield "change of two groups, slopes vary 2:1", test(level + noise + change, 2).p
    yield "change of three groups, slopes vary 2:1:1", test(level + noise + change, 3).p


@CASES.add("networks: change", "trajectories", "60 people, four networks, groups unbalanced over folds", 1.5)
def change_in_networks(rng: Generator, effect: float = 0.0) -> Found:
    """Everyone declines by the same amount in the eyes of one network; networks differ in scale."""
    n = 60
    fold, group = null.unbalanced(rng, n)
    person, years = visits(rng, n)
    slopes = -0.5 + 0.3 * rng.normal(size=(n, COLUMNS)) - effect * group[:, None]
    values = rng.normal(size=(n, COLUMNS))[person] + slopes[person] * years[:, None]
    values = null.seen(values + 0.5 * rng.normal(size=values.shape), fold[person], 1.0)
    test = change_test(values, years, person, group[person], fold[person].astype(np.intp), null.orders(rng))
    yield "group x time, networks of scale 1 to 3, all decline", test.p
    yield "group x time, the same, family-wise over 10", test.p_fwe.min(keepdims=True)


@CASES.add("networks: skewed change", "trajectories", "15 people with three visits", 4.0)
def skewed_change(rng: Generator, effect: float = 0.0) -> Found:
    """Slopes of 15 people are lognormal about a mean of 0."""
    person, years = np.repeat(np.arange(15), 3), np.tile([0.0, 1.0, 2.0], 15)
    slopes = null.drawn(rng, "lognormal 1", (15, COLUMNS)) + effect
    values = rng.normal(size=(15, COLUMNS))[person] + slopes[person] * years[:, None]
    values += 0.1 * rng.normal(size=values.shape)
    nobody = np.zeros(len(person), np.intp)
    yield "mean slope of 15 people, lognormal", change_test(values, years, person, nobody, nobody, null.orders(rng)).p
