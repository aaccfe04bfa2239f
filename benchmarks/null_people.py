"""People, scans and runs with no effect beyond covariates, and the tests of tables made on them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from null_relevance import FAST, PEOPLE, Case, Found, Generator, M
from statsmodels.stats.contingency_tables import mcnemar

from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.statistics.arrays import Resampling
from heatlas.pipeline.statistics.comparison.rankings import agreement
from heatlas.pipeline.statistics.groups.fairness import _of_level
from heatlas.pipeline.statistics.groups.summaries import _fisher, welch
from heatlas.pipeline.statistics.normative.clustering import ward_labels
from heatlas.pipeline.statistics.normative.subtypes import Subtypes, _compared
from heatlas.pipeline.statistics.progression.cox import RELEVANCE, Conversions, _tests, _with_shared_models, predictors
from heatlas.pipeline.statistics.progression.prediction import progression_table
from heatlas.pipeline.statistics.progression.trajectories import ChangeTest, change_test
from heatlas.pipeline.statistics.shortcuts import (
    Scans,
    assigned,
    balanced_accuracy,
    held_out_folds,
    within_classes,
)
from heatlas.studies.representations.points import points_of
from heatlas.studies.representations.probes import predicted_sites

HORIZON = 36
"""Months that tell pMCI from sMCI."""


def fairness(rng: Generator, effect: float = 0.0) -> Found:
    person = np.repeat(np.arange(PEOPLE), rng.integers(1, 5, PEOPLE))
    positive = np.arange(PEOPLE) < 25
    inside = rng.random(PEOPLE) < np.where(positive, 0.6, 0.3)
    score = rng.normal(size=PEOPLE)[person] + 0.5 * rng.normal(size=len(person)) + 1.5 * positive[person]
    score -= effect * inside[person] * np.where(positive, 1.0, -1.0)[person]
    target, called = positive[person].astype(float), score > 0.75
    outcome = np.where(called == (target == 1), np.where(called, "TP", "TN"), np.where(called, "FP", "FN"))
    frame = pd.DataFrame({"participant_id": person.astype(str), "target": target, "outcome": outcome})
    frame["probability"] = 1 / (1 + np.exp(-score))
    table = _of_level(frame, inside[person], FAST, rng)
    return {f"{metric}, subgroup against rest": table.loc[table["metric"] == metric, "p"].to_numpy()
            for metric in table["metric"]}  # fmt: skip


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


def ordering(rng: Generator, effect: float = 0.0) -> Found:
    cohort = with_mci(rng, PEOPLE, 0)
    free = rng.permutation(PEOPLE)  # nothing goes with conversion
    for name in ("age", "mmse", "hippocampus_mm3", "probability"):
        cohort.frame[name] = cohort.frame[name].to_numpy()[rng.permutation(free)]
        sooner = -effect * cohort.time * (1 + ~cohort.event) * (1 if name in ("age", "probability") else -1)
        cohort.frame[name] = cohort.frame[name] + cohort.frame[name].std() * sooner
    table = progression_table(cohort, FAST, int(rng.integers(2**31)), HORIZON)
    return {f"{name} of conversion": table.loc[table["measure"] == name, "p"].to_numpy(float)
            for name in ("concordance", "auc")}  # fmt: skip


def cox(rng: Generator, effect: float = 0.0) -> Found:
    """The tests of the table, without the hazard ratios, which take most of its time."""
    cohort = with_mci(rng, PEOPLE, 10, effect)
    regions = [one for one in predictors(cohort) if one.name == RELEVANCE]
    (family,) = _with_shared_models(regions, "age + sex + mmse", cohort.frame)
    tests, refused = _tests(cohort.time, cohort.event, family, FAST, int(rng.integers(2**31)))
    assert refused is None
    assert tests["n_permutations"] == [M] * 10
    return {"Cox score, adjusted": np.array(tests["p"]),
            "Cox score, family-wise over 10": np.array(tests["p_fwe"]).min(keepdims=True)}  # fmt: skip


def visits(rng: Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Participant and years of scans; two to four visits at uneven times."""
    times = rng.integers(2, 5, n)
    return np.repeat(np.arange(n), times), np.concatenate([np.sort(rng.uniform(0, 4, t)) for t in times])


def change(rng: Generator, effect: float = 0.0) -> Found:
    person, years = visits(rng, 36)
    group, n = person % 3, len(person)
    level, noise = rng.normal(size=(36, 10))[person], 0.5 * rng.normal(size=(n, 10))
    level = level + effect * ((1 + group) * years)[:, None]
    slopes = np.where(np.arange(36) % 3 == 2, 0.6, 0.3)[:, None] * rng.normal(size=(36, 10))
    change = slopes[person] * years[:, None]
    uneven = change * np.where(np.bincount(person)[person] == 2, 3.0, 1.0)[:, None]
    skewed = 0.5 * rng.exponential(size=(n, 10))
    one, two = group == 0, group != 0

    def test(values: np.ndarray, rows: np.ndarray) -> ChangeTest:
        return change_test(
            values[rows], years[rows], person[rows], group[rows], np.zeros_like(person[rows]), Resampling(M, rng)
        )

    none, random = test(level + noise, one), test(level + noise + change, one)
    return {
        "mean change of a group, nobody changes": none.p,
        "mean change of a group, people change at random about zero": random.p,
        "mean change of a group, those with two visits three times as much": test(level + noise + uneven, one).p,
        "mean change of a group, skewed errors (exponential)": test(level + skewed, one).p,
        "mean change of a group, family-wise over 10": random.p_fwe.min(keepdims=True),
        "change of two groups, slopes vary 2:1": test(level + noise + change, two).p,
        "change of three groups, slopes vary 2:1:1": test(level + noise + change, group >= 0).p,
    }


def where_scanned(rng: Generator, effect: float = 0.0) -> Found:
    n = 40
    person = np.repeat(np.arange(n), 1 + (np.arange(n) % 3 == 0))
    site, positive = (rng.random(n) < 0.35).astype(np.intp), (np.arange(n) % 2).astype(np.intp)
    scans = Scans(person.astype(np.intp), site[person], positive[person])
    folds, order = held_out_folds(scans, int(rng.integers(2**31))), within_classes(scans, M, rng)
    assert folds is not None
    rows, accuracy = np.concatenate([np.arange(len(person))[None], order.rows]), []
    shared = (rng.normal(size=(n, 6)) + effect * site[:, None])[person]
    for _ in range(2):
        features = shared + rng.normal(size=(n, 6))[person] + 0.5 * rng.normal(size=(len(person), 6))
        accuracy.append(balanced_accuracy(assigned(features, scans, folds, rows), scans, rows))
    p = [(1 + (own[1:] >= own[0] * (1 - 1e-9)).sum()) / (M + 1) for own in (accuracy[0], np.max(accuracy, axis=0))]
    return {"site from relevance": np.array(p[:1]), "site from relevance, family-wise over 2 maps": np.array(p[1:])}


def rankings(rng: Generator, effect: float = 0.0) -> Found:
    found = {}
    for k in (2, 5):
        own = agreement(rng.normal(size=(k, 68)) + effect * np.arange(68), 10, M, rng)
        found[f"Kendall's W of {k} rankings"] = np.array([own.p])
        found[f"top 10 of {k} rankings"] = np.array([own.overlap_p])
    return found


def two_runs(rng: Generator, effect: float = 0.0) -> Found:
    found = {}
    for n in (60, 344):
        ability = rng.normal(size=n)
        a, b = ability + rng.normal(size=n) > -1.2 + effect, ability + rng.normal(size=n) > -1.2
        table = [[(a & b).sum(), (a & ~b).sum()], [(~a & b).sum(), (~a & ~b).sum()]]
        found[f"exact McNemar, {n} people"] = np.array([mcnemar(table, exact=True).pvalue])
    return found


def subtypes(rng: Generator, effect: float = 0.0) -> Found:
    points = rng.normal(size=(40, 6))
    labels, config = ward_labels(points, [3])[:, 0], load_config(overrides={"statistics": {"permutations": M}})
    one = Subtypes("lrp", tuple(map(str, range(40))), points, labels, np.ones(40), pd.DataFrame())
    config = replace(config, seed=int(rng.integers(2**31)))
    values = pd.DataFrame(np.column_stack([rng.normal(size=(40, 5)), rng.exponential(size=(40, 5))]))
    values += effect * labels[:, None]
    fold_of = dict.fromkeys(one.participants, "0")
    p = np.array([_compared(one, f"v{i}", values[i], fold_of, config).get("p", np.nan) for i in values])
    return {"three subtypes, F, normal values": p[:5], "three subtypes, F, exponential values": p[5:]}


def demographic(rng: Generator, effect: float = 0.0) -> Found:
    a, b = pd.Series(2 * rng.normal(size=20) + effect), pd.Series(rng.normal(size=40))
    female = [pd.Series((rng.random(n) < share).astype(float)) for n, share in ((20, 0.5 + 0.1 * effect), (40, 0.5))]
    return {"Welch's t, 20 and 40, SD 2:1": np.array([welch(a, b)["p"]]),
            "Fisher's exact, 20 and 40": np.array([_fisher(*female)["p"]])}  # fmt: skip


def sites_of_features(rng: Generator, effect: float = 0.0) -> Found:
    """Features tell the class, and sites have different shares of patients and different numbers of scans."""
    patient = rng.random(60) < 0.5
    site = np.where(rng.random(60) < 0.6, np.where(patient, 0, 1), rng.choice(3, 60, p=[0.2, 0.3, 0.5]))
    person = np.repeat(np.arange(60), np.where(site == 0, rng.integers(1, 3, 60), rng.integers(1, 4, 60)))
    features = np.column_stack([2.0 * patient, effect * site, *np.zeros((6, 60))]) + rng.normal(size=(60, 8))
    points = points_of(features[person] + 0.7 * rng.normal(size=(len(person), 8)), [f"sub-{n:02d}" for n in person])
    names = dict(zip(points.people, site.astype(str), strict=True))
    classes = dict(zip(points.people, patient.astype(str), strict=True))
    return {"site from features": np.array([predicted_sites(points, names, classes, M, int(rng.integers(2**31))).p])}


CASES = {
    "fairness": Case("fairness", "60 participants, 1 to 4 scans; more patients in the subgroup", fairness, 3.0),
    "ordering": Case("progression", "60 people with MCI, half of them censored", ordering, 0.05),
    "Cox": Case("cox", "60 people with MCI; age and MMSE matter, and relevance goes with age", cox, 1.5),
    "change": Case("trajectories", "12 people a group, 2 to 4 visits at uneven times", change, 1.5),
    "site prediction": Case(
        "site_prediction (site, field_strength)", "40 people with 1 or 2 scans, two sites", where_scanned, 2.0
    ),
    "sites told from representations": Case(
        "representations (site)",
        "60 people with 1 to 3 scans, three sites of unequal size, most patients at one",
        sites_of_features,
        1.0,
    ),
    "rankings": Case("ranking_agreement, run_agreement", "68 regions", rankings, 0.1),
    "two runs": Case("model_comparison", "accuracy 80 %, runs correlated", two_runs, 1.5),
    "subtypes": Case("subtype_comparison", "40 patients, three groups by Ward's method", subtypes, 1.5),
    "demographics": Case("demographic_tests", "60 people", demographic, 4.0),
}
