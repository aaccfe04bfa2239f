"""Networks that differ in level, scale and quality, unbalanced folds, sites and groups, no effect, and the tests.

What the other simulations leave out. The network of a test fold multiplies what it sees by its scale; groups are
unevenly spread over folds, people have 1 to 5 scans, and groups differ in size and spread.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from null_relevance import FAST, Case, Found, Generator, M
from scipy.stats import t as t_distribution

from heatlas.pipeline.run.config.statistics import HarmonisationConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.arrays import Resampling
from heatlas.pipeline.statistics.associations.volume_association import volume_association
from heatlas.pipeline.statistics.data.features import FoldedScans, RegionFeatures
from heatlas.pipeline.statistics.data.members import difference_within, welch_within
from heatlas.pipeline.statistics.groups.fairness import _of_level
from heatlas.pipeline.statistics.harmonisation.combat import fit
from heatlas.pipeline.statistics.harmonisation.sites import harmonise, site_effect
from heatlas.pipeline.statistics.linear.correlation import partial_correlation
from heatlas.pipeline.statistics.linear.fold_effect import model_within_folds
from heatlas.pipeline.statistics.linear.freedman_lane import freedman_lane
from heatlas.pipeline.statistics.progression.cox import (
    MODEL,
    RELEVANCE,
    Conversions,
    _Fitted,
    _tests,
    _with_shared_models,
    predictors,
)
from heatlas.pipeline.statistics.progression.hazards import hazard_per_sd
from heatlas.pipeline.statistics.progression.trajectories import change_test

SCALES = np.array([1.0, 1.5, 2.0, 3.0])
"""Of the networks of four folds."""
COLUMNS = 10
"""Independent sets of values for the same people."""


def unbalanced(rng: Generator, n: int, least: float = 0.15, most: float = 0.85) -> tuple[np.ndarray, np.ndarray]:
    """Fold and group (0, 1) of people; the share of group 1 rises from fold to fold."""
    fold = np.arange(n) % len(SCALES)
    group = rng.random(n) < np.linspace(least, most, len(SCALES))[fold]
    group[:8], group[8:16] = True, False  # each fold has two of either
    return fold, group.astype(np.intp)


def change(rng: Generator, effect: float = 0.0) -> Found:
    """Everyone declines by the same amount in the eyes of one network; networks differ in scale."""
    n = 60
    fold, group = unbalanced(rng, n)
    visits = rng.integers(2, 5, n)
    person = np.repeat(np.arange(n), visits)
    years = np.concatenate([np.sort(rng.uniform(0, 4, t)) for t in visits])
    slopes = -0.5 + 0.3 * rng.normal(size=(n, COLUMNS)) - effect * group[:, None]
    values = rng.normal(size=(n, COLUMNS))[person] + slopes[person] * years[:, None]
    values = (values + 0.5 * rng.normal(size=values.shape)) * SCALES[fold][person][:, None] + fold[person][:, None]
    test = change_test(values, years, person, group[person], fold[person].astype(np.intp), Resampling(M, rng))
    return {"group x time, networks of scale 1 to 3, all decline": test.p,
            "group x time, the same, family-wise over 10": test.p_fwe.min(keepdims=True)}  # fmt: skip


def skewed_change(rng: Generator, effect: float = 0.0) -> Found:
    """Slopes of 15 people are lognormal about a mean of 0; and of 24 in 4 networks."""
    person, years = np.repeat(np.arange(15), 3), np.tile([0.0, 1.0, 2.0], 15)
    slopes = rng.lognormal(size=(15, COLUMNS)) - np.exp(0.5) + effect
    values = rng.normal(size=(15, COLUMNS))[person] + slopes[person] * years[:, None]
    values += 0.1 * rng.normal(size=values.shape)
    nobody = np.zeros(len(person), np.intp)
    return {
        "mean slope of 15 people, lognormal": change_test(values, years, person, nobody, nobody, Resampling(M, rng)).p
    }


def fair(
    rng: Generator, fold: np.ndarray, inside: np.ndarray, scans: np.ndarray, quality: np.ndarray, effect: float,
    noise: float = 0.5,
) -> Found:  # fmt: skip
    """p of the subgroup in each metric; networks differ in `quality`, of the people of both classes alike.

    With an effect, quality in the subgroup is less by so much; `noise` is the SD of scans of a person.
    """
    n = len(fold)
    positive, person = np.arange(n) % 5 < 2, np.repeat(np.arange(n), scans)
    score = ((quality[fold] - effect * inside) * np.where(positive, 1.0, -1.0) + rng.normal(size=n))[person]
    score = score + noise * rng.normal(size=len(person))
    target, called = positive[person].astype(float), score > 0
    outcome = np.where(called == (target == 1), np.where(called, "TP", "TN"), np.where(called, "FP", "FN"))
    frame = pd.DataFrame({"participant_id": person.astype(str), "target": target, "outcome": outcome})
    frame = frame.assign(probability=1 / (1 + np.exp(-score)), fold=fold[person])
    table = _of_level(frame, inside[person], FAST, rng)
    return {str(metric): table.loc[table["metric"] == metric, "p"].to_numpy() for metric in table["metric"]}


def fairness_of_networks(rng: Generator, effect: float = 0.0) -> Found:
    n = 80
    fold = np.arange(n) // 5 % 4
    inside = rng.random(n) < np.array([0.1, 0.2, 0.2, 0.8])[fold]
    found = fair(rng, fold, inside, rng.integers(1, 4, n), np.array([1.4, 1.2, 1.2, 0.3]), effect)
    return {f"{name}, subgroup mostly in the fold of a worse network": p for name, p in found.items()}


def fairness_of_scans(rng: Generator, effect: float = 0.0) -> Found:
    n, found = 60, {}
    fold, inside = np.zeros(n, np.intp), rng.random(n) < 0.35
    for own, rest in ((1, 5), (5, 1)):
        tested = fair(rng, fold, inside, np.where(inside, own, rest), np.array([0.8]), effect)
        found |= {f"{name}, subgroup {own} scan{'s' * (own > 1)}, rest {rest}": p for name, p in tested.items()}
    return found


def spreads(rng: Generator, effect: float = 0.0) -> Found:
    """Relevance and biomarker both vary two or three times as much in the patients, a fifth or a quarter of all."""
    found = {}
    for n, share, times in ((60, 0.2, 3.0), (120, 0.25, 2.0)):
        spread = np.where(np.arange(n) < share * n, times, 1.0)
        frame = pd.DataFrame({"x": rng.normal(size=n) * spread, "age": rng.normal(size=n)})
        values = rng.normal(size=(n, COLUMNS)) * spread[:, None] + 0.3 * frame[["age"]].to_numpy()
        values += effect * frame[["x"]].to_numpy()
        for method in ("pearson", "spearman"):
            for covariates in ("", "age + "):
                shown = values if covariates else values - 0.3 * frame[["age"]].to_numpy()
                model = model_within_folds(f"{covariates}x", "x", frame, True)
                test = partial_correlation(shown, model.design, model.exchange, Resampling(M, rng), method)
                named = f"{'partial ' if covariates else ''}{method}, {n} people, {share:.0%} with {times:g} x the SD"
                found[named] = test.p
    return found


def primary(rng: Generator, effect: float = 0.0) -> Found:
    """Patients have more relevance, smaller volumes and more spread in both; within the classes they are unrelated.

    Networks differ in scale, so that the classes differ more in some folds. Patients have fewer scans.
    """
    found = {}
    for n, times in ((24, 1.0), (60, 1.0), (60, 2.0), (60, 3.0), (120, 2.0)):
        fold, patient = unbalanced(rng, n, *((0.5, 0.5) if n < 60 else (0.15, 0.5)))
        scans = rng.integers(1, np.where(patient, 3, 6))
        spread, person = np.where(patient, times, 1.0), np.repeat(np.arange(n), scans)
        age = rng.normal(74, 6, n)
        volume = rng.normal(size=n) * spread - 1.5 * patient - 0.05 * (age - 74)
        own = rng.normal(size=(n, COLUMNS)) * spread[:, None] + 1.5 * patient[:, None] + 0.05 * (age[:, None] - 74)
        own -= effect * volume[:, None]
        values = own[person] + 0.5 * rng.normal(size=(len(person), COLUMNS))
        values = values * SCALES[fold][person][:, None] + 2.0 * fold[person][:, None]
        frame = pd.DataFrame({"participant_id": person.astype(str), "fold": fold[person], "age": age[person]})
        frame = frame.assign(label=np.where(patient, "AD", "CN")[person], x=volume[person])
        model = model_within_folds("label + age + x", "x", frame, True)
        test = partial_correlation(values, model.design, model.exchange, Resampling(M, rng), "pearson")
        named = f"class and fold held, {n} people" + f", patients with {times:g} x the SD" * (times > 1)
        found[named] = test.p
    return found


def confounded_sites(rng: Generator, effect: float = 0.0) -> Found:
    """Most patients come from a site where everyone's relevance varies three times as much."""
    n = 60
    patient = np.arange(n) % 2 == 0
    site = rng.random(n) < np.where(patient, 0.75, 0.25)
    frame = pd.DataFrame({"group": patient.astype(float), "site": np.where(site, "a", "b")})
    values = rng.normal(size=(n, COLUMNS)) * np.where(site, 3.0, 1.0)[:, None] + site[:, None]
    values += effect * patient[:, None]
    found = {}
    for covariates in ("", " + site"):
        groups = frame["group"].tolist()
        model = model_within_folds(f"group{covariates}", "group", frame, True, groups)
        shown = values if covariates else values - site[:, None]
        test = freedman_lane(shown, model.design, model.exchange, Resampling(M, rng), groups)
        found[f"two groups{', site held' if covariates else ''}, sites confounded, SD 3:1"] = test.p
    return found


def after_combat(rng: Generator, effect: float = 0.0) -> Found:
    """Sites differ, and go with the class; classes do not differ. ComBat is fitted on others."""
    n, found = 120, {}
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
        for covariates in ("", " + site"):
            groups = frame["group"].tolist()
            design = model_within_folds(f"group{covariates}", "group", frame, True, groups)
            test = freedman_lane(harmonised, design.design, design.exchange, Resampling(M, rng), groups)
            found[f"two groups{', site held' * bool(covariates)}, ComBat, {label}"] = test.p
    return found


def sites_of_networks(rng: Generator, effect: float = 0.0) -> Found:
    """No site effect; networks differ, and sites are unevenly spread over folds."""
    n = 80
    fold = np.arange(n) % 4
    site = np.where(rng.random(n) < 0.6, fold % 3, rng.integers(0, 3, n))
    values = rng.normal(size=(n, COLUMNS)) * SCALES[fold][:, None] + 2.0 * fold[:, None]
    frame = pd.DataFrame({"fold": fold, "age": rng.normal(size=n)})
    found = {}
    first, level = (site == 0)[:, None], 2.0 * fold[:, None]
    for tested in ("location", "scale"):
        shown = values + 2 * effect * first if tested == "location" else values + effect * first * (values - level)
        try:
            test = site_effect(tested, shown, [f"s{one}" for one in site], "age", frame, Resampling(M, rng), True)[0]
        except BadInputError:
            continue
        found[f"{tested} of sites, networks of scale 1 to 3"] = test.p
    return found


def sites_after_combat(rng: Generator) -> Found:
    """The same after ComBat, which is fitted outside each fold."""
    n = 80
    fold = np.arange(n) % 4
    site = np.where(rng.random(n) < 0.6, fold % 3, rng.integers(0, 3, n))
    values = rng.normal(size=(n, COLUMNS)) * SCALES[fold][:, None] + 2.0 * fold[:, None]
    names = [f"s{one}" for one in site]
    frame = pd.DataFrame({"participant_id": np.arange(n).astype(str), "fold": fold, "age": rng.normal(70, 5, n)})
    frame = frame.assign(site=names, sex=rng.choice(["F", "M"], n), label=rng.choice(["AD", "CN"], n))
    everyone = np.ones(n, bool)
    scans = FoldedScans(frame, tuple(map(str, fold)), everyone, everyone, ())
    features = RegionFeatures("lrp", tuple(f"r{i}" for i in range(COLUMNS)), values)
    after = harmonise(features, scans, HarmonisationConfig(), True).values
    test = site_effect("location", after, names, "age + sex + label", frame, Resampling(M, rng), True)[0]
    return {"location of sites after ComBat, networks of scale 1 to 3": test.p}


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


def short_follow_up(rng: Generator, effect: float = 0.0) -> Found:
    """Conversion does not depend on relevance; how long people are followed does, and conversions are few or many."""
    found = {}
    for n, rate, networks, formula, follow in (
        (80, 50, 1, "", "short"), (60, 120, 4, "", "short"), (60, 120, 4, "age + sex + mmse", "short"),
        (60, 120, 4, "", "long for extreme values"), (60, 120, 4, "age + sex + mmse", "long for extreme values"),
    ):  # fmt: skip
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


def output_and_hazard(rng: Generator, effect: float = 0.0) -> Found:
    found = {}
    for named, formula in (("alone", ""), ("adjusted", "age + sex + mmse")):
        cohort, family = of_output(rng, formula, effect)
        tests, _ = _tests(cohort.time, cohort.event, family, FAST, int(rng.integers(2**31)))
        found[f"Cox score of the networks' output, {named}"] = np.array(tests["p"])
    return found


def interval_of_output(rng: Generator) -> Found:
    found = {}
    for named, formula in (("alone", ""), ("adjusted", "age + sex + mmse")):
        cohort, family = of_output(rng, formula)
        known = family.known(family.members[0])
        one = hazard_per_sd(cohort.time, cohort.event, known, family.columns, 0.95)
        name = f"hazard ratio of the networks' output, {named}, truly 1.00"
        found[name] = misses(np.array([one.low]), np.array([one.high]), 1.0)
    return found


def spread_of_sites(rng: Generator, effect: float = 0.0) -> Found:
    """Three sites that differ in size and spread, not in level."""
    n, found = 60, {}
    site = np.repeat(["a", "b", "c"], [12, 18, 30])
    frame = pd.DataFrame({"age": rng.normal(74, 6, n), "fold": rng.permutation(n) % 4, "site": site})
    for named, deviations in (
        ("SD 3:2:1", (3.0, 2.0, 1.0)),
        ("SD 1:2:3", (1.0, 2.0, 3.0)),
        ("SD equal", (1.0, 1.0, 1.0)),
    ):
        spread = np.array(deviations)[(site == "b") + 2 * (site == "c")]
        values = rng.normal(size=(n, COLUMNS)) * spread[:, None] + effect * (site == "b")[:, None]
        values = values * SCALES[frame["fold"]][:, None] + 2.0 * frame[["fold"]].to_numpy()
        rest = frame.drop(columns="site")
        found[f"F, three sites of 12, 18 and 30, {named}"] = site_effect(
            "location", values, site.tolist(), "age", rest, Resampling(M, rng), True
        )[0].p
    return found


def misses(low: np.ndarray, high: np.ndarray, true: float) -> np.ndarray:
    """0 where an interval misses the true value, 1 where it does not: so misses count as p <= .05; NaN without one."""
    inside = ((low <= true) & (true <= high)).astype(float)
    return np.where(np.isnan(low), np.nan, inside)


def volumes_in_folds(rng: Generator, effect: float = 0.0) -> Found:
    found = {}
    for n, folds in ((40, 10), (24, 8)):
        fold = np.arange(n) % folds
        frame = pd.DataFrame({"participant_id": np.arange(n).astype(str), "fold": fold})
        frame = frame.assign(hippocampus_mm3=rng.normal(size=n) + 0.3 * fold, hippocampus_per_tiv=np.nan)
        frame = frame.assign(hippocampus_source="made up")
        names = [f"map {i}" for i in range(4)]
        planted = effect * frame["hippocampus_mm3"]
        blocks = [
            frame.assign(map=name, relevance_sum=(rng.normal(size=n) + planted) * (1 + 0.2 * fold) + fold)
            for name in names
        ]
        settings = replace(FAST, bootstrap_samples=1_000)
        table = volume_association(pd.concat(blocks), names, True, settings, int(rng.integers(2**31)))
        own = table[(table["unit"] == "participant") & table["r"].notna()]
        for estimator, rows in own.groupby("estimator"):
            bounds = rows["ci_low"].to_numpy(float), rows["ci_high"].to_numpy(float)
            found[f"{estimator} of {n} people in {folds} folds"] = misses(*bounds, 0.0)
    return found


def unequal_groups(rng: Generator, effect: float = 0.0) -> Found:
    found = {}
    for first, second in ((12, 48), (15, 45), (42, 78)):
        frame = pd.DataFrame({"group": (np.arange(first + second) < first).astype(float)})
        groups = frame["group"].tolist()
        model = model_within_folds("group", "group", frame, True, groups)
        for name, draw in (("normal", rng.normal), ("lognormal", lambda size: rng.lognormal(size=size) - np.exp(0.5))):
            values = draw(size=(first + second, COLUMNS)) + effect * frame[["group"]].to_numpy()
            test = freedman_lane(values, model.design, model.exchange, Resampling(M, rng), groups)
            found[f"difference of {first} and {second}, {name}"] = misses(test.low, test.high, 0.0)
    return found


def subgroup_differences(rng: Generator, effect: float = 0.0) -> Found:
    """Welch's interval in a subgroup, in one fold and in four of unequal scale."""
    found = {}
    for first, second, folds in ((5, 5, 1), (12, 48, 1), (15, 45, 4)):
        is_first, fold = np.arange(first + second) < first, np.arange(first + second) % folds
        for name, draw in (("normal", rng.normal), ("lognormal", lambda size: rng.lognormal(size=size) - np.exp(0.5))):
            values = draw(size=(first + second, COLUMNS)) + effect * is_first[:, None]
            values = values * SCALES[fold][:, None] + fold[:, None]
            error, df = welch_within(values, is_first, fold)
            difference = difference_within(values, is_first, fold, np.ones((1, len(values))))[0]
            reach = t_distribution.isf(0.025, df) * error
            named = f"class difference in a subgroup, {first} and {second} in {folds} fold{'s' * (folds > 1)}, {name}"
            found[named] = misses(difference - reach, difference + reach, 0.0)
    return found


CASES = {
    "primary": Case("primary", "four networks of scale 1 to 3; classes differ in both, 1 to 5 scans", primary, 1.5),
    "networks: change": Case("trajectories", "60 people, four networks, groups unbalanced over folds", change, 1.5),
    "networks: skewed change": Case("trajectories", "15 people with three visits", skewed_change, 4.0),
    "networks: fairness": Case("fairness", "80 people, 40 % positive, four networks", fairness_of_networks, 4.0),
    "scans: fairness": Case("fairness", "60 people, 40 % positive, one network", fairness_of_scans, 3.0),
    "spreads": Case("associations", "groups that vary unequally in relevance and biomarker", spreads, 1.0),
    "sites: groups": Case("group_comparisons", "60 people, two sites", confounded_sites, 3.0),
    "sites: ComBat": Case("harmonised_relevance", "120 people of three sites that go with class", after_combat, 2.0),
    "networks: sites": Case(
        "site_effects", "80 people, four networks, sites unbalanced over folds", sites_of_networks, 5.0
    ),
    "networks: ComBat": Case(
        "site_effects", "80 people, four networks, sites unbalanced over folds", sites_after_combat
    ),
    "follow-up: Cox": Case("cox", "people with MCI, followed for unequal times", short_follow_up, 1.5),
    "networks: Cox": Case(
        "cox",
        "120 people with MCI, four networks 1.2 SD apart, whose people convert at unequal rates",
        output_and_hazard,
        1.5,
    ),
    "spread: sites": Case("main_effects, site_effects", "60 people, four networks", spread_of_sites, 4.0),
}
INTERVALS = {
    "folds: volumes": Case("volume_association", "no correlation; folds of three or four", volumes_in_folds, 1.5),
    "groups: intervals": Case("group_comparisons", "no difference", unequal_groups, 2.5),
    "networks: Cox intervals": Case("cox", "120 people with MCI, four networks 1.2 SD apart", interval_of_output),
    "subgroups: intervals": Case("subgroups", "no difference", subgroup_differences, 4.0),
}
