"""People whose answers, subgroups and conversions go with nothing: fairness, follow-up, two runs, demographics."""

from __future__ import annotations

import numpy as np
import pandas as pd
from null_data import FAST, HORIZON, PEOPLE, SCALES, Case, Found, Generator, M, answers, case
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

CASES: dict[str, Case] = {}


@case(CASES, "fairness", "fairness", "60 participants, 1 to 4 scans; more patients in the subgroup", 3.0)
def fairness(rng: Generator, effect: float = 0.0) -> Found:
    person = np.repeat(np.arange(PEOPLE), rng.integers(1, 5, PEOPLE))
    positive = np.arange(PEOPLE) < 25
    inside = rng.random(PEOPLE) < np.where(positive, 0.6, 0.3)
    score = rng.normal(size=PEOPLE)[person] + 0.5 * rng.normal(size=len(person)) + 1.5 * positive[person]
    score -= effect * inside[person] * np.where(positive, 1.0, -1.0)[person]
    frame = answers(person, positive[person], score > 0.75).assign(probability=1 / (1 + np.exp(-score)))
    table = _of_level(frame, inside[person], FAST, rng)
    return {f"{row.metric}, subgroup against rest": np.array([row.p]) for row in table.itertuples()}


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


@case(CASES, "ordering", "progression", "60 people with MCI, half of them censored", 0.05)
def order_of_conversion(rng: Generator, effect: float = 0.0) -> Found:
    cohort = with_mci(rng, PEOPLE, 0)
    free = rng.permutation(PEOPLE)  # nothing goes with conversion
    for name in ("age", "mmse", "hippocampus_mm3", "probability"):
        cohort.frame[name] = cohort.frame[name].to_numpy()[rng.permutation(free)]
        sooner = -effect * cohort.time * (1 + ~cohort.event) * (1 if name in ("age", "probability") else -1)
        cohort.frame[name] = cohort.frame[name] + cohort.frame[name].std() * sooner
    table = progression_table(cohort, FAST, int(rng.integers(2**31)), HORIZON)
    p = table.set_index("measure")["p"]
    return {f"{name} of conversion": p[[name]].to_numpy(float) for name in ("concordance", "auc")}


@case(CASES, "Cox", "cox", "60 people with MCI; age and MMSE matter, and relevance goes with age", 1.5)
def cox(rng: Generator, effect: float = 0.0) -> Found:
    """The tests of the table, without the hazard ratios, which take most of its time."""
    cohort = with_mci(rng, PEOPLE, 10, effect)
    regions = [one for one in predictors(cohort) if one.name == RELEVANCE]
    (family,) = _with_shared_models(regions, "age + sex + mmse", cohort.frame)
    tests, refused = _tests(cohort.time, cohort.event, family, FAST, int(rng.integers(2**31)))
    assert refused is None
    assert tests["n_permutations"] == [M] * 10
    least = np.array(tests["p_fwe"]).min(keepdims=True)
    return {"Cox score, adjusted": np.array(tests["p"]), "Cox score, family-wise over 10": least}


@case(CASES, "two runs", "model_comparison", "accuracy 80 %, runs correlated", 1.5)
def two_runs(rng: Generator, effect: float = 0.0) -> Found:
    found = {}
    for n in (60, 344):
        ability = rng.normal(size=n)
        a, b = ability + rng.normal(size=n) > -1.2 + effect, ability + rng.normal(size=n) > -1.2
        table = [[(a & b).sum(), (a & ~b).sum()], [(~a & b).sum(), (~a & ~b).sum()]]
        found[f"exact McNemar, {n} people"] = np.array([mcnemar(table, exact=True).pvalue])
    return found


@case(CASES, "demographics", "demographic_tests", "60 people", 4.0)
def demographic(rng: Generator, effect: float = 0.0) -> Found:
    a, b = pd.Series(2 * rng.normal(size=20) + effect), pd.Series(rng.normal(size=40))
    female = [pd.Series((rng.random(n) < share).astype(float)) for n, share in ((20, 0.5 + 0.1 * effect), (40, 0.5))]
    found = {"Welch's t, 20 and 40, SD 2:1": welch(a, b), "Fisher's exact, 20 and 40": _fisher(*female)}
    return {name: np.array([test["p"]]) for name, test in found.items()}


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
    table = _of_level(frame.assign(fold=fold[person]), inside[person], FAST, rng)
    return {str(row.metric): np.array([row.p]) for row in table.itertuples()}


@case(CASES, "networks: fairness", "fairness", "80 people, 40 % positive, four networks", 4.0)
def fairness_of_networks(rng: Generator, effect: float = 0.0) -> Found:
    n = 80
    fold = np.arange(n) // 5 % 4
    inside = rng.random(n) < np.array([0.1, 0.2, 0.2, 0.8])[fold]
    found = fair(rng, fold, inside, rng.integers(1, 4, n), np.array([1.4, 1.2, 1.2, 0.3]), effect)
    return {f"{name}, subgroup mostly in the fold of a worse network": p for name, p in found.items()}


@case(CASES, "scans: fairness", "fairness", "60 people, 40 % positive, one network", 3.0)
def fairness_of_scans(rng: Generator, effect: float = 0.0) -> Found:
    n, found = 60, {}
    fold, inside = np.zeros(n, np.intp), rng.random(n) < 0.35
    for own, rest in ((1, 5), (5, 1)):
        tested = fair(rng, fold, inside, np.where(inside, own, rest), np.array([0.8]), effect)
        found |= {f"{name}, subgroup {own} scan{'s' * (own > 1)}, rest {rest}": p for name, p in tested.items()}
    return found


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
    regions = [one for one in predictors(cohort, True) if one.name == RELEVANCE]
    (family,) = _with_shared_models(regions, formula, frame)
    return cohort, family


@case(CASES, "follow-up: Cox", "cox", "people with MCI, followed for unequal times", 1.5)
def short_follow_up(rng: Generator, effect: float = 0.0) -> Found:
    """Conversion does not depend on relevance; how long people are followed does, and conversions are few or many."""
    found = {}
    formulas, lengths = ("", "age + sex + mmse"), ("short", "long for extreme values")
    of_networks = [(60, 120, 4, formula, follow) for follow in lengths for formula in formulas]
    for n, rate, networks, formula, follow in [(80, 50, 1, "", "short"), *of_networks]:
        values, age = rng.normal(size=n), rng.normal(74, 6, n)
        months = np.ceil(rng.exponential(rate, n) * np.exp(-effect * values - 0.03 * (age - 74) * (n < 80)) / 6) * 6
        months_followed = 42 - 15 * values if follow == "short" else 36 + 20 * np.abs(values)
        network = np.arange(n) % networks
        followed = np.ceil(np.clip(months_followed, 6, 96) / 6) * 6
        cohort, family = of_relevance(values, network, months, followed, age, formula, rng)
        tests, refused = _tests(cohort.time, cohort.event, family, FAST, int(rng.integers(2**31)))
        if refused:
            continue
        seen = f"{networks} network{'s of unequal scale' * (networks > 1)}, {'adjusted' if formula else 'alone'}"
        named = f"{n} people, {seen}, follow-up {follow}{' for high values' * (follow == 'short')}"
        found[f"Cox score, {named}"] = np.array(tests["p"])
    return found


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
    (family,) = _with_shared_models([one for one in predictors(cohort, True) if one.name == MODEL], formula, frame)
    return cohort, family


@case(
    CASES,
    "networks: Cox",
    "cox",
    "120 people with MCI, four networks 1.2 SD apart, whose people convert at unequal rates",
    1.5,
)
def output_and_hazard(rng: Generator, effect: float = 0.0) -> Found:
    found = {}
    for named, formula in (("alone", ""), ("adjusted", "age + sex + mmse")):
        cohort, family = of_output(rng, formula, effect)
        tests, _ = _tests(cohort.time, cohort.event, family, FAST, int(rng.integers(2**31)))
        found[f"Cox score of the networks' output, {named}"] = np.array(tests["p"])
    return found


@case(CASES, "scans: few alike", "fairness", "60 people, 40 % positive, one network, few in the subgroup", 4.0)
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
