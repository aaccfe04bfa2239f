"""Relevance, people, scans and networks with no effect beyond covariates and folds, and the tests of tables on them.

The network of a test fold multiplies what it sees by its scale; groups are unevenly spread over folds, people have one
to five scans, and groups differ in size and spread. Tests are made by the functions of the tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from statsmodels.stats.contingency_tables import mcnemar

from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.statistics import HarmonisationConfig, ProgressionConfig, StatisticsConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.arrays import Resampling
from heatlas.pipeline.statistics.associations.volume_association import WITHIN, volume_association
from heatlas.pipeline.statistics.comparison.rankings import agreement
from heatlas.pipeline.statistics.data.features import FoldedScans, RegionFeatures
from heatlas.pipeline.statistics.groups.fairness import _of_level
from heatlas.pipeline.statistics.groups.summaries import _fisher, welch
from heatlas.pipeline.statistics.harmonisation.combat import fit
from heatlas.pipeline.statistics.harmonisation.sites import harmonise, site_effect
from heatlas.pipeline.statistics.linear.correlation import matched_test, partial_correlation
from heatlas.pipeline.statistics.linear.fold_effect import FoldModel, model_within_folds
from heatlas.pipeline.statistics.linear.freedman_lane import PermutationTest, freedman_lane
from heatlas.pipeline.statistics.linear.permutations import Exchangeability
from heatlas.pipeline.statistics.normative.clustering import ward_labels
from heatlas.pipeline.statistics.normative.subtypes import Subtypes, _compared
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

M, PEOPLE = 199, 60
REGIONS, MAPS = 136, 6
FAST = replace(StatisticsConfig(), permutations=M, bootstrap_samples=100, progression=ProgressionConfig(2))
Generator = np.random.Generator
Found = dict[str, np.ndarray]
"""p of some data sets, by test."""
SITES = ([20] * 3, [10] * 6, [6] * 10, [3] * 20, [3, 4, 5, 6, 8, 10, 14, 20, 50])
FOLDS = "60 participants in four folds whose networks differ in level and scale, unbalanced over folds"
SHIFTED = "covariates age and sex; for scale, sites differ in location by 1 SD"
CORRELATED = f"{REGIONS} regions x {MAPS} maps of 60 participants, fold held; people, maps and near regions correlated"


@dataclass(frozen=True)
class Case:
    """Tests made on the same made-up data."""

    tables: str  # that make the tests
    data: str  # what they are
    function: Callable[..., Found]
    """The p values of a data set, from a generator of random numbers and the size of a planted effect, 0 for none."""
    effect: float = 0.0  # planted, that nearly every test should find; 0 where nothing can be planted
    caveat: bool = False  # whether the rows of such data say that p may be too small


CASES: dict[str, Case] = {}


def case(cases: dict[str, Case], name: str, tables: str, data: str, effect: float = 0.0) -> Callable[[Any], Any]:
    """Put a function among the cases, which are shown in their order."""

    def put(function: Callable[..., Found]) -> Callable[..., Found]:
        cases[name] = Case(tables, data, function, effect)
        return function

    return put


def people(rng: Generator, folds: int = 4, levels: int = 3) -> pd.DataFrame:
    """60 participants; folds are unbalanced over x, age and group, sites as even as can be."""
    fold = np.arange(PEOPLE) % folds
    patient = rng.random(PEOPLE) < np.array([0.2, 0.3, 0.4, 0.5])[fold % 4]
    patient[:8], patient[8:16] = True, False
    age = rng.normal(74, 6, PEOPLE) + 3 * patient + fold
    frame = pd.DataFrame({"age": age, "fold": fold, "label": patient.astype(float)})
    frame["sex"] = np.where(rng.random(PEOPLE) < 0.5, "M", "F")
    frame["field_strength"] = np.where(rng.random(PEOPLE) < 0.3 + 0.1 * fold, "3", "1.5")
    frame["site"] = np.char.add("s", rng.permutation(np.arange(PEOPLE) % levels).astype(str))
    frame["x"] = 0.08 * (age - 75) + 0.4 * fold - 0.8 * patient + rng.normal(size=PEOPLE)
    return frame


def relevance(frame: pd.DataFrame, columns: int, rng: Generator, spread: float = 1.0) -> np.ndarray:
    """Values of networks that differ in level and scale; they go with age, and patients have `spread` as much SD."""
    values = rng.normal(size=(PEOPLE, columns)) * np.where(frame["label"] == 1, spread, 1.0)[:, None]
    values += 0.08 * (frame["age"].to_numpy()[:, None] - 75)
    fold = frame["fold"].to_numpy()[:, None]
    return values * (1 + 0.5 * fold) + 2.0 * fold


@case(
    CASES,
    "fold held",
    "associations, group_comparisons, interactions, main_effects",
    f"{FOLDS}; covariates age, sex, field strength",
    3.0,
)
def within_folds(rng: Generator, effect: float = 0.0) -> Found:
    frame, covariates, found = people(rng, levels=8), "age + sex + field_strength", {}
    for name, method in (("partial Pearson", "pearson"), ("partial Spearman", "spearman")):
        model = model_within_folds(f"{covariates} + x", "x", frame, True)
        values = relevance(frame, 10, rng) + planted(model, effect)
        found[name] = partial_correlation(values, model.design, model.exchange, Resampling(M, rng), method).p
    groups = frame["label"].tolist()
    for name, term in (("two groups, studentised, SD 2:1", "label"), ("class x sex, studentised, SD 2:1", "label:sex")):
        formula = f"{covariates} + {'label' if term == 'label' else 'label + label:sex'}"
        model = model_within_folds(formula, term, frame, True, groups)
        values = relevance(frame, 10, rng, 2.0) + planted(model, effect)
        found[name] = freedman_lane(values, model.design, model.exchange, Resampling(M, rng), groups).p
    for term in ("age", "sex", "site"):
        model = model_within_folds("label + age + sex + field_strength + site", term, frame, True)
        values = relevance(frame, 10, rng) if term != "age" else relevance(frame.assign(age=75), 10, rng)
        named = f"main effect of {term}{' (8 sites, F)' if term == 'site' else ''}"
        values = values + planted(model, effect)
        found[named] = freedman_lane(values, model.design, model.exchange, Resampling(M, rng)).p
    return found


def planted(model: FoldModel, effect: float) -> np.ndarray:
    """What to add to values so that they go with the tested term, (people, 1)."""
    tested = model.design.tested
    shift: np.ndarray = effect * (tested / tested.std(axis=0)).sum(axis=1, keepdims=True)
    return shift


@case(CASES, "own volume", "associations", f"{FOLDS}; each region and its own volume", 3.0)
def own_volume(rng: Generator, effect: float = 0.0) -> Found:
    frame = people(rng)
    model = model_within_folds("age + sex + x", "x", frame, True)
    order = Exchangeability.free(PEOPLE).in_blocks(frame["fold"].tolist()).permutations(M, rng)
    volumes = rng.normal(size=(PEOPLE, 10)) - 0.08 * (frame["age"].to_numpy()[:, None] - 75)
    values, which = relevance(frame, 10, rng) + effect * volumes, np.arange(10)
    test = matched_test(values, volumes, which, model.design.nuisance, order)
    return {"own volume, covariates": test.p, "own volume, family-wise over 10": test.p_fwe.min(keepdims=True)}


def of_all_maps(frame: pd.DataFrame, rng: Generator) -> np.ndarray:
    """Relevance of folds that differ in level and scale, which goes with age."""
    near = rng.normal(size=(PEOPLE, 1, REGIONS + 8))
    near = np.mean([near[..., i : i + REGIONS] for i in range(9)], axis=0) * 3
    values = rng.normal(size=(PEOPLE, 1, 1)) + near + rng.normal(size=(PEOPLE, MAPS, REGIONS))
    values = values.reshape(PEOPLE, -1) + 0.08 * (frame["age"].to_numpy()[:, None] - 75)
    fold = frame[["fold"]].to_numpy()
    scaled: np.ndarray = values * (1 + 0.5 * fold) + fold
    return scaled


def least(test: PermutationTest) -> np.ndarray:
    return np.array([np.nanmin(test.p_fwe)])


@case(CASES, "families", "p_fwe of associations, group_comparisons", CORRELATED, 3.0)
def families(rng: Generator, effect: float = 0.0) -> Found:
    """One cohort and ten data sets of 136 regions x 6 maps: people, maps and neighbouring regions go together."""
    frame, covariates = people(rng), "age + sex + field_strength"
    groups = frame["label"].tolist()
    related = model_within_folds(f"{covariates} + x", "x", frame, True)
    compared = model_within_folds(f"{covariates} + label", "label", frame, True, groups)  # age differs between them
    found: dict[str, list[np.ndarray]] = {}
    for _ in range(10):
        values = of_all_maps(frame, rng) + planted(related, effect) + planted(compared, effect)
        test = partial_correlation(values, related.design, related.exchange, Resampling(M, rng), "pearson")
        found.setdefault("partial Pearson", []).append(least(test))
        some = values.copy()
        some[:, :80] += 3 * related.design.tested
        test = partial_correlation(some, related.design, related.exchange, Resampling(M, rng), "pearson")
        others = test.p_fwe[80:].min(keepdims=True)
        found.setdefault("partial Pearson, the other 736 where 80 are truly related", []).append(others)
        test = freedman_lane(values, compared.design, compared.exchange, Resampling(M, rng), groups)
        found.setdefault("two groups, studentised, covariates", []).append(least(test))
    return {name: np.concatenate(p) for name, p in found.items()}


@case(CASES, "hippocampi", "volume_association", "30 participants, 1 to 4 scans, three folds of unequal scale", 1.5)
def volumes_of_hippocampi(rng: Generator, effect: float = 0.0) -> Found:
    n_scans = rng.integers(1, 5, 30)
    person, names = np.repeat(np.arange(30), n_scans), [f"map {i}" for i in range(10)]
    fold, volume = person % 3, rng.normal(size=30)[person] + 0.5 * rng.normal(size=len(person)) + 0.3 * (person % 3)
    frame = pd.DataFrame({"participant_id": person.astype(str), "fold": fold, "hippocampus_mm3": volume})
    frame = frame.assign(hippocampus_per_tiv=np.nan, hippocampus_source="made up")
    blocks = []
    for name in names:
        value = rng.normal(size=30)[person] + 0.5 * rng.normal(size=len(person)) + effect * volume
        blocks.append(frame.assign(map=name, relevance_sum=value * (1 + fold) + fold))
    table = volume_association(pd.concat(blocks), names, True, FAST, int(rng.integers(2**31)))
    own = table[table["p"].notna()].groupby(["unit", "estimator"])["p"]
    return {f"{estimator}, {unit}s": p.to_numpy() for (unit, estimator), p in own}


@case(
    CASES,
    "shrinking hippocampi",
    "volume_association",
    "30 participants, 1 to 4 scans; hippocampi shrink, relevance drifts up or down by chance",
    1.5,
)
def shrinking_hippocampi(rng: Generator, effect: float = 0.0) -> Found:
    """All hippocampi shrink; relevance drifts, in each person up or down by chance."""
    person = np.repeat(np.arange(30), rng.integers(1, 5, 30))
    years = 0.7 * (np.arange(len(person)) - np.searchsorted(person, person))
    volume = (6000 + 800 * rng.normal(size=30))[person] - (150 + 50 * rng.normal(size=30))[person] * years
    frame = pd.DataFrame({"participant_id": person.astype(str), "fold": 0, "hippocampus_mm3": volume})
    frame = frame.assign(hippocampus_per_tiv=np.nan, hippocampus_source="made up")
    names = [f"map {i}" for i in range(10)]
    drift = 0.6 * rng.normal(size=(10, 30))[:, person] * years + 0.5 * rng.normal(size=(10, len(person)))
    drift -= effect * years
    blocks = [frame.assign(map=name, relevance_sum=own) for name, own in zip(names, drift, strict=True)]
    table = volume_association(pd.concat(blocks), names, True, FAST, int(rng.integers(2**31)))
    return {f"pearson, {WITHIN}s": table.loc[(table["unit"] == WITHIN) & table["p"].notna(), "p"].to_numpy()}


def sites(sizes: list[int], noise: str) -> Callable[..., Found]:
    """Sites that differ in location, for the test of scale; that do not, for the test of location."""

    def function(rng: Generator, effect: float = 0.0) -> Found:
        n, found = sum(sizes), {}
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
                test = site_effect(tested, values, names, "age + sex", frame, Resampling(M, rng))[0]
                found[f"{tested} of {in_words(sizes)} sites, {noise}"] = test.p
            except BadInputError:  # no two sites of the size that the test asks for
                continue
        return found

    return function


def in_words(sizes: list[int]) -> str:
    return f"{len(sizes)} x {sizes[0]}" if len(set(sizes)) == 1 else "/".join(map(str, sizes))


for each in SITES:
    for kind in ("normal", "t with 5 df"):
        case(CASES, f"sites {in_words(each)} {kind}", "site_effects", SHIFTED, 2.0)(sites(each, kind))


@case(CASES, "sites within folds", "site_effects", "60 participants in four folds of unequal scale", 4.0)
def sites_within_folds(rng: Generator, effect: float = 0.0) -> Found:
    frame = people(rng, levels=6)
    values, site, found = relevance(frame, 10, rng), frame["site"].tolist(), {}
    odd, level = frame[["site"]].isin(["s1", "s3", "s5"]).to_numpy(), 2 * frame[["fold"]].to_numpy()
    for tested in ("location", "scale"):
        shown = values + 2 * effect * odd if tested == "location" else values + effect * odd * (values - level)
        test = site_effect(tested, shown, site, "age + sex", frame.drop(columns="site"), Resampling(M, rng), True)[0]
        found[f"{tested} of 6 x 10 sites, fold held"] = test.p
    return found


HORIZON = 36
"""Months that tell pMCI from sMCI."""


def answers(person: np.ndarray, positive: np.ndarray, called: np.ndarray) -> pd.DataFrame:
    """People of scans with their class, and whether it was found."""
    outcome = np.where(called == positive, np.where(called, "TP", "TN"), np.where(called, "FP", "FN"))
    return pd.DataFrame({"participant_id": person.astype(str), "target": positive.astype(float), "outcome": outcome})


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


def visits(rng: Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Participant and years of scans; two to four visits at uneven times."""
    times = rng.integers(2, 5, n)
    return np.repeat(np.arange(n), times), np.concatenate([np.sort(rng.uniform(0, 4, t)) for t in times])


@case(CASES, "change", "trajectories", "12 people a group, 2 to 4 visits at uneven times", 1.5)
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


@case(CASES, "site prediction", "site_prediction (site, field_strength)", "40 people with 1 or 2 scans, two sites", 2.0)
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


@case(
    CASES,
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
    return {"site from features": np.array([predicted_sites(points, names, classes, M, int(rng.integers(2**31))).p])}


@case(CASES, "rankings", "ranking_agreement, run_agreement", "68 regions", 0.1)
def rankings(rng: Generator, effect: float = 0.0) -> Found:
    found = {}
    for k in (2, 5):
        own = agreement(rng.normal(size=(k, 68)) + effect * np.arange(68), 10, M, rng)
        found[f"Kendall's W of {k} rankings"] = np.array([own.p])
        found[f"top 10 of {k} rankings"] = np.array([own.overlap_p])
    return found


@case(CASES, "two runs", "model_comparison", "accuracy 80 %, runs correlated", 1.5)
def two_runs(rng: Generator, effect: float = 0.0) -> Found:
    found = {}
    for n in (60, 344):
        ability = rng.normal(size=n)
        a, b = ability + rng.normal(size=n) > -1.2 + effect, ability + rng.normal(size=n) > -1.2
        table = [[(a & b).sum(), (a & ~b).sum()], [(~a & b).sum(), (~a & ~b).sum()]]
        found[f"exact McNemar, {n} people"] = np.array([mcnemar(table, exact=True).pvalue])
    return found


@case(CASES, "subtypes", "subtype_comparison", "40 patients, three groups by Ward's method", 1.5)
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


@case(CASES, "demographics", "demographic_tests", "60 people", 4.0)
def demographic(rng: Generator, effect: float = 0.0) -> Found:
    a, b = pd.Series(2 * rng.normal(size=20) + effect), pd.Series(rng.normal(size=40))
    female = [pd.Series((rng.random(n) < share).astype(float)) for n, share in ((20, 0.5 + 0.1 * effect), (40, 0.5))]
    found = {"Welch's t, 20 and 40, SD 2:1": welch(a, b), "Fisher's exact, 20 and 40": _fisher(*female)}
    return {name: np.array([test["p"]]) for name, test in found.items()}


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


@case(CASES, "primary", "primary", "four networks of scale 1 to 3; classes differ in both, 1 to 5 scans", 1.5)
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


@case(CASES, "networks: change", "trajectories", "60 people, four networks, groups unbalanced over folds", 1.5)
def change_in_networks(rng: Generator, effect: float = 0.0) -> Found:
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
    least = test.p_fwe.min(keepdims=True)
    return {
        "group x time, networks of scale 1 to 3, all decline": test.p,
        "group x time, the same, family-wise over 10": least,
    }


@case(CASES, "networks: skewed change", "trajectories", "15 people with three visits", 4.0)
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


@case(CASES, "spreads", "associations", "groups that vary unequally in relevance and biomarker", 1.0)
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


@case(CASES, "sites: groups", "group_comparisons", "60 people, two sites", 3.0)
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


@case(CASES, "sites: ComBat", "harmonised_relevance", "120 people of three sites that go with class", 2.0)
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


@case(CASES, "networks: sites", "site_effects", "80 people, four networks, sites unbalanced over folds", 5.0)
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


@case(CASES, "networks: ComBat", "site_effects", "80 people, four networks, sites unbalanced over folds")
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


@case(CASES, "spread: sites", "main_effects, site_effects", "60 people, four networks", 4.0)
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


def missed(low: float, high: float, true: float) -> np.ndarray:
    """As `misses`, of one interval."""
    return misses(np.array([low], float), np.array([high], float), true)


@case(CASES, "sites: spread of classes", "site_effects", "80 people, four networks, two sites")
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


@case(CASES, "spreads: small class", "associations", "a small class that varies more in both", 1.5)
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
