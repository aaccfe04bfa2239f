"""People whose answers, subgroups and conversions go with nothing: fairness, follow-up, two runs, demographics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from null_data import HORIZON, PEOPLE, SCALES, Cases, Found, Generator, answers, fast
from statsmodels.stats.contingency_tables import mcnemar

from heatlas.pipeline.statistics.groups.fairness import _of_level
from heatlas.pipeline.statistics.groups.summaries import _fisher, welch
from heatlas.pipeline.statistics.progression.cox import (
    MODEL,
    RELEVANCE,
    Conversions,
    _Fitted,
    _tests,
    _with_shared_models,
    predictors,
)
from heatlas.pipeline.statistics.progression.prediction import progression_table

CASES = Cases()
ADJUSTING = "age + sex + mmse"
BOTH_WAYS = (("alone", ""), ("adjusted", ADJUSTING))


@CASES.add("fairness", "fairness", "60 participants, 1 to 4 scans; more patients in the subgroup", 3.0)
def fairness(rng: Generator, effect: float = 0.0) -> Found:
    person = np.repeat(np.arange(PEOPLE), rng.integers(1, 5, PEOPLE))
    positive = np.arange(PEOPLE) < 25
    inside = rng.random(PEOPLE) < np.where(positive, 0.6, 0.3)
    score = rng.normal(size=PEOPLE)[person] + 0.5 * rng.normal(size=len(person)) + 1.5 * positive[person]
    score -= effect * inside[person] * np.where(positive, 1.0, -1.0)[person]
    frame = answers(person, positive[person], score > 0.75).assign(probability=1 / (1 + np.exp(-score)))
    table = _of_level(frame, inside[person], fast(), rng)
    return [(f"{row.metric}, subgroup against rest", np.array([row.p])) for row in table.itertuples()]


def with_mci(rng: Generator, n: int, regions: int, effect: float = 0.0) -> Conversions:
    """People with MCI whose time to AD depends on age and MMSE (and `effect`) only; predictors go with age."""
    age, mmse = rng.normal(74, 6, n), rng.normal(27, 2, n)
    months = np.ceil(rng.exponential(60 * np.exp(-0.05 * (age - 74) + 0.15 * (mmse - 27))) / 6) * 6
    followed = rng.choice([24.0, 36.0, 48.0], n)
    event = months <= followed
    frame = pd.DataFrame({"time": np.where(event, months, followed), "event": event, "age": age, "mmse": mmse})
    frame["sex"], frame["tiv_mm3"], frame["competing"] = rng.choice(["F", "M"], n), 1.0, np.nan
    frame["hippocampus_mm3"] = rng.normal(size=n) - 0.05 * (age - 74)
    frame["probability"] = 1 / (1 + np.exp(-rng.normal(size=n) - 0.05 * (age - 74)))
    frame["progression"] = np.where(event & (months <= HORIZON), "pMCI", np.where(followed >= HORIZON, "sMCI", None))
    values = rng.normal(size=(n, 1, regions)) + (0.05 * (age - 74) - effect * np.log(months))[:, None, None]
    return Conversions(frame, values, ("lrp",), tuple(f"r{i}" for i in range(regions)), {})


@CASES.add("ordering", "progression", "60 people with MCI, half of them censored", 0.05)
def order_of_conversion(rng: Generator, effect: float = 0.0) -> Found:
    cohort = with_mci(rng, PEOPLE, 0)
    free = rng.permutation(PEOPLE)  # nothing goes with conversion
    for name in ("age", "mmse", "hippocampus_mm3", "probability"):
        cohort.frame[name] = cohort.frame[name].to_numpy()[rng.permutation(free)]
        sooner = -effect * cohort.time * (1 + ~cohort.event) * (1 if name in ("age", "probability") else -1)
        cohort.frame[name] = cohort.frame[name] + cohort.frame[name].std() * sooner
    table = progression_table(cohort, fast(), int(rng.integers(2**31)), HORIZON)
    p = table.set_index("measure")["p"]
    return [(f"{name} of conversion", p[[name]].to_numpy(float)) for name in ("concordance", "auc")]


def fitted(cohort: Conversions, name: str, formula: str, of_networks: bool = True) -> _Fitted:
    """The model of the table for some predictors, of relevance or of the networks' output."""
    (family,) = _with_shared_models(
        [one for one in predictors(cohort, of_networks) if one.name == name], formula, cohort.frame
    )
    return family


def cox_tests(cohort: Conversions, family: _Fitted, rng: Generator) -> tuple[dict[str, Sequence[Any]], str | None]:
    return _tests(cohort.time, cohort.event, family, fast(), int(rng.integers(2**31)))


@CASES.add("Cox", "cox", "60 people with MCI; age and MMSE matter, and relevance goes with age", 1.5)
def cox(rng: Generator, effect: float = 0.0) -> Found:
    """The tests of the table, without the hazard ratios, which take most of its time."""
    cohort = with_mci(rng, PEOPLE, 10, effect)
    tests, refused = cox_tests(cohort, fitted(cohort, RELEVANCE, ADJUSTING, False), rng)
    assert refused is None
    assert tests["n_permutations"] == [fast().permutations] * 10
    yield "Cox score, adjusted", np.array(tests["p"])
    yield "Cox score, family-wise over 10", np.array(tests["p_fwe"]).min(keepdims=True)


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


def fair(
    rng: Generator,
    fold: np.ndarray,
    inside: np.ndarray,
    scans: np.ndarray,
    quality: np.ndarray,
    effect: float,
    noise: float = 0.5,
) -> Found:
    """p of the subgroup in each metric; networks differ in `quality`, of the people of both classes alike.

    With an effect, quality in the subgroup is less by so much; `noise` is the SD of scans of a person.
    """
    n = len(fold)
    positive, person = np.arange(n) % 5 < 2, np.repeat(np.arange(n), scans)
    score = ((quality[fold] - effect * inside) * np.where(positive, 1.0, -1.0) + rng.normal(size=n))[person]
    score = score + noise * rng.normal(size=len(person))
    frame = answers(person, positive[person], score > 0).assign(probability=1 / (1 + np.exp(-score)))
    table = _of_level(frame.assign(fold=fold[person]), inside[person], fast(), rng)
    return [(str(row.metric), np.array([row.p])) for row in table.itertuples()]


@CASES.add("networks: fairness", "fairness", "80 people, 40 % positive, four networks", 4.0)
def fairness_of_networks(rng: Generator, effect: float = 0.0) -> Found:
    n = 80
    fold = np.arange(n) // 5 % 4
    inside = rng.random(n) < np.array([0.1, 0.2, 0.2, 0.8])[fold]
    found = fair(rng, fold, inside, rng.integers(1, 4, n), np.array([1.4, 1.2, 1.2, 0.3]), effect)
    return [(f"{name}, subgroup mostly in the fold of a worse network", p) for name, p in found]


@CASES.add("scans: fairness", "fairness", "60 people, 40 % positive, one network", 3.0)
def fairness_of_scans(rng: Generator, effect: float = 0.0) -> Found:
    fold, inside = np.zeros(60, np.intp), rng.random(60) < 0.35
    for own, rest in ((1, 5), (5, 1)):
        for name, p in fair(rng, fold, inside, np.where(inside, own, rest), np.array([0.8]), effect):
            yield f"{name}, subgroup {own} scan{'s' * (own > 1)}, rest {rest}", p


def of_relevance(
    values: np.ndarray, network: np.ndarray, months: np.ndarray, followed: np.ndarray, age: np.ndarray, formula: str,
    rng: Generator,
) -> tuple[Conversions, _Fitted]:  # fmt: skip
    """People whose relevance is seen by networks of unequal scale, and the model of the table for it."""
    n, event = len(values), months <= followed
    frame = pd.DataFrame({"time": np.where(event, months, followed), "event": event, "age": age})
    frame = frame.assign(mmse=rng.normal(27, 2, n), sex=rng.choice(["F", "M"], n), networks=network.astype(str))
    frame = frame.assign(tiv_mm3=1.0, competing=np.nan, hippocampus_mm3=1.0, probability=0.5, progression=None)
    seen = values * SCALES[network] + 2.0 * network
    cohort = Conversions(frame, seen[:, None, None], ("lrp",), ("r",), {})
    return cohort, fitted(cohort, RELEVANCE, formula)


@CASES.add("follow-up: Cox", "cox", "people with MCI, followed for unequal times", 1.5)
def short_follow_up(rng: Generator, effect: float = 0.0) -> Found:
    """Conversion does not depend on relevance; how long people are followed does, and conversions are few or many."""
    formulas, lengths = ("", ADJUSTING), ("short", "long for extreme values")
    of_networks = [(60, 120, 4, formula, follow) for follow in lengths for formula in formulas]
    for n, rate, networks, formula, follow in [(80, 50, 1, "", "short"), *of_networks]:
        values, age = rng.normal(size=n), rng.normal(74, 6, n)
        months = np.ceil(rng.exponential(rate, n) * np.exp(-effect * values - 0.03 * (age - 74) * (n < 80)) / 6) * 6
        months_followed = 42 - 15 * values if follow == "short" else 36 + 20 * np.abs(values)
        network = np.arange(n) % networks
        followed = np.ceil(np.clip(months_followed, 6, 96) / 6) * 6
        cohort, family = of_relevance(values, network, months, followed, age, formula, rng)
        tests, refused = cox_tests(cohort, family, rng)
        if refused:
            continue
        seen = f"{networks} network{'s of unequal scale' * (networks > 1)}, {'adjusted' if formula else 'alone'}"
        named = f"{n} people, {seen}, follow-up {follow}{' for high values' * (follow == 'short')}"
        yield f"Cox score, {named}", np.array(tests["p"])


def of_output(rng: Generator, formula: str, effect: float = 0.0) -> tuple[Conversions, _Fitted]:
    """120 people with MCI, four networks whose outputs are 1.2 SD apart, and unequal rates of conversion."""
    n = 120
    network, own, age = np.arange(n) % 4, rng.normal(size=n), rng.normal(74, 6, n)
    months = np.ceil(rng.exponential(60 / (1 + 0.2 * network)) * np.exp(-effect * own - 0.03 * (age - 74)) / 6) * 6
    followed = rng.choice([24.0, 36.0, 48.0], n)
    event = months <= followed
    seen = 0.5 * SCALES[network] * (own + 1.2 * network)
    frame = pd.DataFrame({"time": np.where(event, months, followed), "event": event, "age": age})
    frame = frame.assign(probability=1 / (1 + np.exp(-seen)), networks=network.astype(str), competing=np.nan)
    frame = frame.assign(sex=rng.choice(["F", "M"], n), mmse=rng.normal(27, 2, n), tiv_mm3=1.0, hippocampus_mm3=1.0)
    cohort = Conversions(frame, np.zeros((n, 0, 0)), (), (), {})
    return cohort, fitted(cohort, MODEL, formula)


@CASES.add(
    "networks: Cox",
    "cox",
    "120 people with MCI, four networks 1.2 SD apart, whose people convert at unequal rates",
    1.5,
)
def output_and_hazard(rng: Generator, effect: float = 0.0) -> Found:
    for named, formula in BOTH_WAYS:
        tests, _ = cox_tests(*of_output(rng, formula, effect), rng)
        yield f"Cox score of the networks' output, {named}", np.array(tests["p"])


@CASES.add("scans: few alike", "fairness", "60 people, 40 % positive, one network, few in the subgroup", 4.0, True)
def few_alike(rng: Generator, effect: float = 0.0) -> Found:
    """Scans of a person are alike; those of the subgroup have five each, others one; and the reverse, less alike."""
    n = 60
    inside = np.arange(n) % 4 == 0
    for own, rest, noise in ((5, 1, 0.0), (1, 5, 0.5)):
        scans = np.where(inside, own, rest)
        named = f"15 people with {own} scan{'s' * (own > 1)}, 45 with {rest}, noise of a scan {noise:g}"
        for name, p in fair(rng, np.zeros(n, np.intp), inside, scans, np.array([0.8]), effect, noise):
            yield f"{name}, {named}", p
