"""Error rates of the tests that benchmarks/type_one_error.py does not have, as their tables make them.

    OMP_NUM_THREADS=1 python benchmarks/type_one_error_tables.py --output docs/benchmarks/statistics.md
    OMP_NUM_THREADS=1 python benchmarks/type_one_error_tables.py --only "mixed"        # some of them

Nothing is related to what is tested beyond what the model adjusts for, so 5 % of tests should reject at 5 %.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import binom
from sections import write_section
from statsmodels.stats.contingency_tables import mcnemar

from pipeline.run.config_files import load_config
from pipeline.run.errors import BadInputError
from pipeline.run.seeds import generator
from pipeline.run.statistics_config import ProgressionConfig, StatisticsConfig
from pipeline.statistics.associations.matched import matched_test
from pipeline.statistics.comparison.agreement import agreement
from pipeline.statistics.demographics import _fisher, _welch
from pipeline.statistics.fold_effect import model_within_folds
from pipeline.statistics.groups.fairness import _of_level
from pipeline.statistics.harmonisation.site_effect import site_effect
from pipeline.statistics.linear.exchangeability import Exchangeability
from pipeline.statistics.linear.freedman_lane import PermutationTest, freedman_lane
from pipeline.statistics.linear.partial_correlation import partial_correlation
from pipeline.statistics.normative.clustering import ward_labels
from pipeline.statistics.normative.subtypes import Subtypes, _compared
from pipeline.statistics.progression.conversion import Conversions
from pipeline.statistics.progression.cox import RELEVANCE, _alike, _tests, covariate_columns, predictors
from pipeline.statistics.progression.mixed_model import slopes_by_group
from pipeline.statistics.progression.permuted_change import ChangeTest, change_test
from pipeline.statistics.progression.prediction import progression_table
from pipeline.statistics.shortcuts.site_prediction import (
    Scans,
    assigned,
    balanced_accuracy,
    held_out_folds,
    within_classes,
)
from pipeline.statistics.volume_association import volume_association

SEED, LEVEL, M, PEOPLE = 43, 0.05, 199, 60
LIMITS = (0.035, 0.065)
FULL = 1_000
"""Data sets below which a number is too rough to be judged by the limits."""
REGIONS, MAPS = 136, 6
HORIZON = 36
"""Months that tell pMCI from sMCI."""
FAST = replace(StatisticsConfig(), permutations=M, bootstrap_samples=100, progression=ProgressionConfig(2))
Generator = np.random.Generator
Found = dict[str, np.ndarray]
"""p of some data sets, by test."""


@dataclass(frozen=True)
class Case:
    """Tests made on the same made-up data, and what those are."""

    tables: str
    data: str
    function: Callable[[Generator], Found]


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


def within_folds(rng: Generator) -> Found:
    frame, covariates, found = people(rng, levels=8), "age + sex + field_strength", {}
    for name, method in (("partial Pearson", "pearson"), ("partial Spearman", "spearman")):
        model = model_within_folds(f"{covariates} + x", "x", frame, True)
        values = relevance(frame, 10, rng)
        found[name] = partial_correlation(values, model.design, model.exchange, M, rng, method).p
    groups = frame["label"].tolist()
    for name, term in (("two groups, studentised, SD 2:1", "label"), ("class x sex, studentised, SD 2:1", "label:sex")):
        formula = f"{covariates} + {'label' if term == 'label' else 'label + label:sex'}"
        model = model_within_folds(formula, term, frame, True, groups)
        found[name] = freedman_lane(relevance(frame, 10, rng, 2.0), model.design, model.exchange, M, rng, groups).p
    for term in ("age", "sex", "site"):
        model = model_within_folds("label + age + sex + field_strength + site", term, frame, True)
        values = relevance(frame, 10, rng) if term != "age" else relevance(frame.assign(age=75), 10, rng)
        found[f"main effect of {term}{' (8 sites, F)' if term == 'site' else ''}"] = freedman_lane(
            values, model.design, model.exchange, M, rng
        ).p
    return found


def own_volume(rng: Generator) -> Found:
    frame = people(rng)
    model = model_within_folds("age + sex + x", "x", frame, True)
    order = Exchangeability.free(PEOPLE).in_blocks(frame["fold"].tolist()).permutations(M, rng)
    volumes = rng.normal(size=(PEOPLE, 10)) - 0.08 * (frame["age"].to_numpy()[:, None] - 75)
    values, which = relevance(frame, 10, rng), np.arange(10)
    test = matched_test(values, volumes, which, model.design.nuisance, order)
    return {"own volume, covariates": test.p, "own volume, family-wise over 10": test.p_fwe.min(keepdims=True)}


def volumes_of_hippocampi(rng: Generator) -> Found:
    n_scans = rng.integers(1, 5, 30)
    person, names = np.repeat(np.arange(30), n_scans), [f"map {i}" for i in range(10)]
    fold, volume = person % 3, rng.normal(size=30)[person] + 0.5 * rng.normal(size=len(person)) + 0.3 * (person % 3)
    frame = pd.DataFrame({"participant_id": person.astype(str), "fold": fold, "hippocampus_mm3": volume})
    frame = frame.assign(hippocampus_per_tiv=np.nan, hippocampus_source="made up")
    blocks = []
    for name in names:
        value = rng.normal(size=30)[person] + 0.5 * rng.normal(size=len(person))
        blocks.append(frame.assign(map=name, relevance_sum=value * (1 + fold) + fold))
    table = volume_association(pd.concat(blocks), names, True, FAST, int(rng.integers(2**31)))
    own = table[table["p"].notna()].groupby(["unit", "estimator"])["p"]
    return {f"{estimator}, {unit}s": p.to_numpy() for (unit, estimator), p in own}


def fairness(rng: Generator) -> Found:
    person = np.repeat(np.arange(PEOPLE), rng.integers(1, 5, PEOPLE))
    positive = np.arange(PEOPLE) < 25
    inside = rng.random(PEOPLE) < np.where(positive, 0.6, 0.3)
    score = rng.normal(size=PEOPLE)[person] + 0.5 * rng.normal(size=len(person)) + 1.5 * positive[person]
    target, called = positive[person].astype(float), score > 0.75
    outcome = np.where(called == (target == 1), np.where(called, "TP", "TN"), np.where(called, "FP", "FN"))
    frame = pd.DataFrame({"participant_id": person.astype(str), "target": target, "outcome": outcome})
    frame["probability"] = 1 / (1 + np.exp(-score))
    table = _of_level(frame, inside[person], FAST, rng)
    return {f"{metric}, subgroup against rest": table.loc[table["metric"] == metric, "p"].to_numpy()
            for metric in table["metric"]}  # fmt: skip


def with_mci(rng: Generator, n: int, regions: int) -> Conversions:
    """People with MCI whose time to AD depends on age and MMSE only; predictors go with age."""
    age, mmse = rng.normal(74, 6, n), rng.normal(27, 2, n)
    months = np.ceil(rng.exponential(60 * np.exp(-0.05 * (age - 74) + 0.15 * (mmse - 27))) / 6) * 6
    followed = rng.choice([24.0, 36.0, 48.0], n)
    event = months <= followed
    frame = pd.DataFrame({"time": np.where(event, months, followed), "event": event, "age": age, "mmse": mmse})
    frame["sex"], frame["tiv_mm3"], frame["competing"] = rng.choice(["F", "M"], n), 1.0, np.nan
    frame["hippocampus_mm3"] = rng.normal(size=n) - 0.05 * (age - 74)
    frame["probability"] = 1 / (1 + np.exp(-rng.normal(size=n) - 0.05 * (age - 74)))
    frame["progression"] = np.where(event & (months <= HORIZON), "pMCI", np.where(followed >= HORIZON, "sMCI", None))
    values = rng.normal(size=(n, 1, regions)) + 0.05 * (age - 74)[:, None, None]
    return Conversions(frame, values, ("lrp",), tuple(f"r{i}" for i in range(regions)), {})


def ordering(rng: Generator) -> Found:
    cohort = with_mci(rng, PEOPLE, 0)
    free = rng.permutation(PEOPLE)  # nothing goes with conversion
    for name in ("age", "mmse", "hippocampus_mm3", "probability"):
        cohort.frame[name] = cohort.frame[name].to_numpy()[rng.permutation(free)]
    table = progression_table(cohort, FAST, int(rng.integers(2**31)), HORIZON)
    return {f"{name} of conversion": table.loc[table["measure"] == name, "p"].to_numpy(float)
            for name in ("concordance", "auc")}  # fmt: skip


def cox(rng: Generator) -> Found:
    """The tests of the table, without the hazard ratios, which take most of its time."""
    cohort = with_mci(rng, PEOPLE, 10)
    regions = [one for one in predictors(cohort) if one.name == RELEVANCE]
    (family,) = _alike(regions, covariate_columns(cohort.frame))
    tests, refused = _tests(cohort.time, cohort.event, family, FAST, int(rng.integers(2**31)))
    assert refused is None
    assert tests["n_permutations"] == [M] * 10
    return {"Cox score, adjusted": np.array(tests["p"]),
            "Cox score, family-wise over 10": np.array(tests["p_fwe"]).min(keepdims=True)}  # fmt: skip


def visits(rng: Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Participant and years of scans; two to four visits at uneven times."""
    times = rng.integers(2, 5, n)
    return np.repeat(np.arange(n), times), np.concatenate([np.sort(rng.uniform(0, 4, t)) for t in times])


def change(rng: Generator) -> Found:
    person, years = visits(rng, 36)
    group, n = person % 3, len(person)
    level, noise = rng.normal(size=(36, 10))[person], 0.5 * rng.normal(size=(n, 10))
    slopes = np.where(np.arange(36) % 3 == 2, 0.6, 0.3)[:, None] * rng.normal(size=(36, 10))
    change = slopes[person] * years[:, None]
    uneven = change * np.where(np.bincount(person)[person] == 2, 3.0, 1.0)[:, None]
    skewed = 0.5 * rng.exponential(size=(n, 10))
    one, two = group == 0, group != 0

    def test(values: np.ndarray, rows: np.ndarray) -> ChangeTest:
        return change_test(values[rows], years[rows], person[rows], group[rows], M, rng)

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


def mixed(rng: Generator) -> Found:
    person, years = visits(rng, 24)
    values = rng.normal(size=24)[person] + 0.4 * rng.normal(size=24)[person] * years + 0.5 * rng.normal(size=len(years))
    return by_model(values, years, person % 2, person, "24 people in two groups")


def mixed_of_few(rng: Generator) -> Found:
    found: Found = {}
    for shown_as, n, first, spread in (
        ("12 people in two groups", 12, 6, 1.0),
        ("8 people who vary twice as much in change, and 16", 24, 8, 2.0),
    ):
        person, years = visits(rng, n)
        own = 0.4 * rng.normal(size=n) * np.where(np.arange(n) < first, spread, 1.0)
        values = rng.normal(size=n)[person] + own[person] * years + 0.5 * rng.normal(size=len(years))
        found |= by_model(values, years, (person >= first).astype(np.intp), person, shown_as)
    return found


def by_model(values: np.ndarray, years: np.ndarray, group: np.ndarray, person: np.ndarray, shown_as: str) -> Found:
    fit = slopes_by_group(values, years, group, person, np.zeros((len(years), 0)), True)
    if isinstance(fit, str):
        return {}
    return {f"MixedLM, slope of a group: {shown_as}": np.array([fit.contrast(np.array([1.0, 0.0]), 0.95)[4]]),
            f"MixedLM, group x time: {shown_as}": np.array([fit.equal_slopes()[1]])}  # fmt: skip


def where_scanned(rng: Generator) -> Found:
    n = 40
    person = np.repeat(np.arange(n), 1 + (np.arange(n) % 3 == 0))
    site, positive = (rng.random(n) < 0.35).astype(np.intp), (np.arange(n) % 2).astype(np.intp)
    scans = Scans(person.astype(np.intp), site[person], positive[person])
    folds, order = held_out_folds(scans, int(rng.integers(2**31))), within_classes(scans, M, rng)
    assert folds is not None
    rows, accuracy = np.concatenate([np.arange(len(person))[None], order.rows]), []
    shared = rng.normal(size=(n, 6))[person]
    for _ in range(2):
        features = shared + rng.normal(size=(n, 6))[person] + 0.5 * rng.normal(size=(len(person), 6))
        accuracy.append(balanced_accuracy(assigned(features, scans, folds, rows), scans, rows))
    p = [(1 + (own[1:] >= own[0] * (1 - 1e-9)).sum()) / (M + 1) for own in (accuracy[0], np.max(accuracy, axis=0))]
    return {"site from relevance": np.array(p[:1]), "site from relevance, family-wise over 2 maps": np.array(p[1:])}


def rankings(rng: Generator) -> Found:
    found = {}
    for k in (2, 5):
        own = agreement(rng.normal(size=(k, 68)), 10, M, rng)
        found[f"Kendall's W of {k} rankings"] = np.array([own.w_p])
        found[f"top 10 of {k} rankings"] = np.array([own.overlap_p])
    return found


def two_runs(rng: Generator) -> Found:
    found = {}
    for n in (60, 344):
        ability = rng.normal(size=n)
        a, b = ability + rng.normal(size=n) > -1.2, ability + rng.normal(size=n) > -1.2
        table = [[(a & b).sum(), (a & ~b).sum()], [(~a & b).sum(), (~a & ~b).sum()]]
        found[f"exact McNemar, {n} people"] = np.array([mcnemar(table, exact=True).pvalue])
    return found


def subtypes(rng: Generator) -> Found:
    points = rng.normal(size=(40, 6))
    labels, config = ward_labels(points, [3])[:, 0], load_config(overrides={"statistics": {"permutations": M}})
    one = Subtypes("lrp", tuple(map(str, range(40))), points, labels, np.ones(40), pd.DataFrame())
    config = replace(config, seed=int(rng.integers(2**31)))
    values = pd.DataFrame(np.column_stack([rng.normal(size=(40, 5)), rng.exponential(size=(40, 5))]))
    p = np.array([_compared(one, f"v{i}", values[i], config)["p"] for i in values])
    return {"three subtypes, F, normal values": p[:5], "three subtypes, F, exponential values": p[5:]}


def sites(sizes: list[int], noise: str) -> Callable[[Generator], Found]:
    """Sites that differ in location, for the test of scale; that do not, for the test of location."""

    def function(rng: Generator) -> Found:
        n, found = sum(sizes), {}
        site = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
        frame = pd.DataFrame({"age": rng.uniform(60, 85, n), "sex": rng.choice(["F", "M"], n)})
        shift = rng.normal(size=len(sizes))[site][:, None]
        for effect in ("location", "scale"):
            values = rng.normal(size=(n, 10)) if noise == "normal" else rng.standard_t(5, size=(n, 10))
            values += 0.1 * frame["age"].to_numpy()[:, None] + (shift if effect == "scale" else 0.0)
            names = [f"{100 + one}" for one in site]
            try:
                test = site_effect(effect, values, names, "age + sex", frame, M, rng)[0]
                found[f"{effect} of {shown(sizes)} sites, {noise}"] = test.p
            except BadInputError:  # no two sites of the size that the test asks for
                continue
        return found

    return function


def shown(sizes: list[int]) -> str:
    return f"{len(sizes)} x {sizes[0]}" if len(set(sizes)) == 1 else "/".join(map(str, sizes))


def sites_within_folds(rng: Generator) -> Found:
    frame = people(rng, levels=6)
    values, site = relevance(frame, 10, rng), frame["site"].tolist()
    return {f"{effect} of 6 x 10 sites, fold held": site_effect(
        effect, values, site, "age + sex", frame.drop(columns="site"), M, rng, True)[0].p
        for effect in ("location", "scale")}  # fmt: skip


def demographic(rng: Generator) -> Found:
    a, b = pd.Series(2 * rng.normal(size=20)), pd.Series(rng.normal(size=40))
    female = [pd.Series((rng.random(n) < 0.5).astype(float)) for n in (20, 40)]
    return {"Welch's t, 20 and 40, SD 2:1": np.array([_welch(a, b)["p"]]),
            "Fisher's exact, 20 and 40": np.array([_fisher(*female)["p"]])}  # fmt: skip


def families(rng: Generator) -> Found:
    """One cohort and ten data sets of 136 regions x 6 maps: people, maps and neighbouring regions go together."""
    frame, covariates = people(rng), "age + sex + field_strength"
    groups = frame["label"].tolist()
    related = model_within_folds(f"{covariates} + x", "x", frame, True)
    compared = model_within_folds(f"{covariates} + label", "label", frame, True, groups)  # age differs between them
    found: dict[str, list[np.ndarray]] = {}
    for _ in range(10):
        values = of_all_maps(frame, rng)
        test = partial_correlation(values, related.design, related.exchange, M, rng, "pearson")
        found.setdefault("partial Pearson", []).append(least(test))
        planted = values.copy()
        planted[:, :80] += 3 * related.design.tested
        test = partial_correlation(planted, related.design, related.exchange, M, rng, "pearson")
        others = test.p_fwe[80:].min(keepdims=True)
        found.setdefault("partial Pearson, the other 736 where 80 are truly related", []).append(others)
        test = freedman_lane(values, compared.design, compared.exchange, M, rng, groups)
        found.setdefault("two groups, studentised, covariates", []).append(least(test))
    return {name: np.concatenate(p) for name, p in found.items()}


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


SITES = ([20] * 3, [10] * 6, [6] * 10, [3] * 20, [3, 4, 5, 6, 8, 10, 14, 20, 50])
FOLDS = "60 participants in four folds whose networks differ in level and scale, unbalanced over folds"
SHIFTED = "covariates age and sex; for scale, sites differ in location by 1 SD"
CORRELATED = f"{REGIONS} regions x {MAPS} maps of 60 participants, fold held; people, maps and near regions correlated"
CASES = {
    "fold held": Case(
        "associations, group_comparisons, region_effects, interactions, main_effects",
        f"{FOLDS}; covariates age, sex, field strength",
        within_folds,
    ),
    "own volume": Case("associations", f"{FOLDS}; each region and its own volume", own_volume),
    "hippocampi": Case(
        "volume_association", "30 participants, 1 to 4 scans, three folds of unequal scale", volumes_of_hippocampi
    ),
    "fairness": Case("fairness", "60 participants, 1 to 4 scans; more patients in the subgroup", fairness),
    "ordering": Case("progression", "60 people with MCI, half of them censored", ordering),
    "Cox": Case("cox", "60 people with MCI; age and MMSE matter, and relevance goes with age", cox),
    "change": Case("trajectories (p_permutation, p_fwe)", "12 people a group, 2 to 4 visits at uneven times", change),
    "mixed": Case("trajectories (p, by the model)", "2 to 4 visits, random intercept and slope", mixed),
    "few, mixed": Case(
        "trajectories (p, by the model)", "2 to 4 visits, random intercept and slope; groups differ", mixed_of_few
    ),
    "site prediction": Case(
        "site_prediction (site, field_strength)", "40 people with 1 or 2 scans, two sites", where_scanned
    ),
    "rankings": Case("ranking_agreement, run_agreement", "68 regions", rankings),
    "two runs": Case("model_comparison", "accuracy 80 %, runs correlated", two_runs),
    "subtypes": Case("subtype_comparison", "40 patients, three groups by Ward's method", subtypes),
    **{
        f"sites {shown(sizes)} {noise}": Case("site_effects", SHIFTED, sites(sizes, noise))
        for sizes in SITES
        for noise in ("normal", "t with 5 df")
    },
    "sites within folds": Case("site_effects", "60 participants in four folds of unequal scale", sites_within_folds),
    "demographics": Case("demographic_tests", "60 people", demographic),
    "families": Case("p_fwe of associations, group_comparisons, region_effects", CORRELATED, families),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-sets", type=int, default=2_000)
    parser.add_argument("--only", default="", help="cases whose name begins so")
    parser.add_argument("--seconds", type=float, default=np.inf, help="stop a case after so long, with fewer data sets")
    parser.add_argument("--output", type=Path, help="Markdown page to write the section to")
    parser.add_argument(
        "--rates", type=Path, help="JSON file that keeps what was found, so that cases can be run apart"
    )
    options = parser.parse_args()
    kept = json.loads(options.rates.read_text()) if options.rates and options.rates.is_file() else {}
    for name, case in CASES.items():
        if name.startswith(options.only) and name not in kept:
            started = time.process_time()
            kept[name] = rates(name, case, options.data_sets, options.seconds)
            print(name, kept[name], f"{time.process_time() - started:.0f} s", flush=True, file=sys.stderr)
            if options.rates:
                options.rates.write_text(json.dumps(kept))
    text = section(kept)
    print(text)
    if options.output:
        write_section(options.output, "Error rates of the other tables", text, "Statistics: speed, error rates, power")


def rates(name: str, case: Case, data_sets: int, seconds: float) -> dict[str, tuple[float, int]]:
    """Share of data sets in which each test rejects, and data sets; those without p are left out of count."""
    made: dict[str, list[np.ndarray]] = {}
    started = time.monotonic()
    for i in range(data_sets):
        found = case.function(generator(SEED, "type-one-error", name, i))
        for test, p in found.items():
            made.setdefault(test, []).append(np.asarray(p, float))
        if not made or time.monotonic() - started > seconds:
            break
        if min(sum(len(p) for p in own) for own in made.values()) >= data_sets:
            break
    p_of = {test: np.concatenate(own) for test, own in made.items()}
    known = {test: own[np.isfinite(own)] for test, own in p_of.items()}
    return {test: (float((own <= LEVEL).mean()), len(own)) for test, own in known.items()}


def section(kept: dict[str, dict[str, tuple[float, int]]]) -> str:
    lines = [
        f"`python benchmarks/type_one_error_tables.py`: {M} permutations, nominal 5 %, made by the functions of the "
        "tables. A test that holds its level is between 4.0 and 6.0 % in 95 of 100 cases of 2,000 data sets, and "
        "between 3.1 and 7.0 % of 500. *Cautious*: few values of the statistic are possible, so p is above 5 % more "
        "often than it needs to be.",
        "",
        "| table | test | data | data sets | rejected | within 3.5-6.5 % |",
        "|---|---|---|---|---|---|",
    ]
    for name, case in CASES.items():
        for test, (rate, count) in kept.get(name, {}).items():
            chance = [binom.ppf(q, count, LEVEL) / count for q in (0.025, 0.975)]
            good = "yes" if LIMITS[0] <= rate <= LIMITS[1] else "cautious" if rate < LIMITS[0] else "**no**"
            if count < FULL:
                good = "open: few data sets, within chance" if chance[0] <= rate <= chance[1] else "**no**"
            lines.append(f"| {case.tables} | {test} | {case.data} | {count:,} | {rate:.1%} | {good} |")
    lines += [
        "",
        "`p` of `trajectories` is approximate, and its dictionary says so: the mixed model takes people of all groups "
        "to differ equally in change, and rejects too often where those of a small group differ more. "
        "`p_permutation`, and `p_fwe` and `p_fdr` which rest on it, do not.",
        "",
        "Not simulated: `p_fdr` and `p_holm`, which are computed from these p (checked against statsmodels); tables "
        "without p (performance, calibration, subgroups, w-scores). Every other p of a table is in this section or in "
        "*Error rates* and *Shortcuts*.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
