"""Networks beside simple predictors, another cohort or the images; small classes; people whose scans agree unequally.

Each test and interval is made by the function of its table, so that what is measured is what is written.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from types import SimpleNamespace

import numpy as np
import pandas as pd
from null_data import SEED, Cases, Found, Generator, answers, fast, missed
from scipy.special import expit
from scipy.stats import norm

from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.associations.associations import SMALL_CLASS, ParticipantValues, rows_of, small_class
from heatlas.pipeline.statistics.comparison.external import Cohorts, _People, _performance, agreement_over_regions
from heatlas.pipeline.statistics.groups.fairness import _of_level
from heatlas.pipeline.statistics.images.differences import _agreement, rank_correlation
from heatlas.pipeline.statistics.linear.permutations import Exchangeability
from heatlas.pipeline.statistics.performance.baselines import AUC, BALANCED, _Compared
from heatlas.pipeline.statistics.performance.baselines import _rows as rows_of_baseline
from heatlas.pipeline.statistics.performance.classification import (
    ALL_FOLDS,
    measured_rows,
    metrics,
    weighted_auc_within,
)
from heatlas.pipeline.statistics.requested import Biomarker

DRAWS, REGIONS = 500, 30
CASES, INTERVALS = Cases(), Cases()
QUALITY, LEVEL = np.array([0.5, 0.75, 1.0, 1.25, 1.5]), np.array([-0.4, -0.2, 0.0, 0.2, 0.4])
"""Of the networks of five folds."""
SCALE = np.array([0.5, 1.0, 1.5, 2.0, 3.0])
MEASURED = ("balanced_accuracy", "sensitivity", "specificity", "auc_within_folds", "average_precision", "brier")


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
    score = score[person] + 0.45 * rng.normal(size=len(person))
    frame = answers(person, target[person] == 1, score > 0)
    return frame.assign(target=target[person], fold=fold[person], probability=expit(2 * score))


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
    settings = fast(bootstrap_samples=DRAWS)
    few = ((15, 15, 0.8), (15, 15, 1.5), (8, 22, 0.8), (8, 22, 1.5), (10, 20, 2.0))
    for positive, negative, quality in (*few, (20, 60, 1.5), (60, 60, 0.8)):
        frame = cohort(rng, positive, negative, 5, quality)
        table = pd.DataFrame(measured_rows(ALL_FOLDS, frame, settings, int(rng.integers(2**31)))).set_index("metric")
        truth = true_performance(positive, negative, quality)
        for name in MEASURED:
            named = f"{name} of {positive} and {negative} people, five folds, truly {truth[name]:.2f}"
            yield named, missed(*table.loc[name, ["ci_low", "ci_high"]], truth[name])


@INTERVALS.add("cohorts: baselines", "baselines", "two predictors that are equally good")
def predictors(rng: Generator) -> Found:
    """Network and baseline are equally good and see in part the same."""
    for positive, negative, folds, quality in ((15, 15, 5, 0.8), (8, 22, 5, 0.8), (30, 30, 10, 0.8), (44, 89, 5, 0.8)):
        n = positive + negative
        of = cohort(rng, positive, negative, folds, 0.0)  # its people, classes and folds
        person = of["participant_id"].astype(int).to_numpy()
        shared = quality * (2 * of["target"].to_numpy() - 1) + 0.6 * rng.normal(size=n)[person]
        scores = []
        for _ in range(2):
            seen = shared + 0.6 * rng.normal(size=n)[person] + 0.3 * rng.normal(size=len(of))
            scores.append(expit(2 * seen))
        compared = _Compared(of["target"].to_numpy(float), (1,), *(one[:, None] for one in scores))
        rows = rows_of_baseline("regions", of.assign(**{"class": of["target"]}), compared, DRAWS, rng)
        for row in rows:
            named = f"{row['metric']} of {positive} and {negative} people, {folds} folds"
            yield f"network less baseline, {named}", missed(row["difference_low"], row["difference_high"], 0.0)
            true = true_of_predictor(quality)[row["metric"]]
            yield f"baseline, {named}", missed(row["ci_low"], row["ci_high"], true)


@cache
def true_of_predictor(quality: float) -> dict[str, float]:
    """Normal scores of SD .9 within the classes, 2 x quality apart."""
    z = quality / 0.9
    return {AUC: float(norm.cdf(np.sqrt(2) * z)), BALANCED: float(norm.cdf(z))}


@INTERVALS.add("cohorts: new people", "external_validation", "the same network in both cohorts")
def new_cohorts(rng: Generator) -> Found:
    """The same network answers the people of a run and others who do not differ."""
    config = load_config(overrides={"statistics": {"bootstrap_samples": DRAWS}})
    large = (60, 60)
    sizes = ((large, (30, 30), 0.75), (large, (8, 22), 0.75), ((30, 30), (10, 10), 1.5), (large, (8, 22), 1.4))
    for run, new, quality in sizes:
        sides = []
        for people, folds in ((run, 5), (new, 1)):
            predictions = cohort(rng, *people, folds, quality, False)
            sides.append(SimpleNamespace(predictions=predictions, config=config, seed=int(rng.integers(2**31))))
        for row in _performance(Cohorts(*sides)):
            if row["measure"] == "probability_less_share" and run[0] * new[1] != run[1] * new[0]:
                continue  # it depends on the share of the positive class
            who = f"{new[0]} and {new[1]} new people less that of {sum(run)}, separation {quality}"
            yield f"{row['measure']} of {who}", missed(row["ci_low"], row["ci_high"], 0.0)


@INTERVALS.add("cohorts: regions", "external_validation", "120 people and new ones")
def same_regions(rng: Generator) -> Found:
    """Sizes of the difference of the classes over regions that are unrelated, or correlate .5."""
    settings = fast(bootstrap_samples=DRAWS)
    for related in (0.0, 0.5):
        for n in (60, 30, 20):
            z = rng.normal(size=(2, REGIONS))
            sizes = 0.4 * np.stack([z[0], related * z[0] + np.sqrt(1 - related**2) * z[1]])
            people = []
            for size, count, folds in zip(sizes, (120, n), (5, 1), strict=True):
                first, fold = np.arange(count) % 2 == 0, np.arange(count) // 2 % folds
                people.append(_People(rng.normal(size=(count, REGIONS)) + size * first[:, None], first, fold))
            row = agreement_over_regions(people, settings, rng)
            truly = float(rank_correlation(*sizes[:, None])[0])  # people are drawn, regions are not
            named = f"{REGIONS} regions with {n} new people, sizes correlated {related}"
            yield f"rank correlation over {named}", missed(row["ci_low"], row["ci_high"], truly)


@CASES.add("cohorts: images", "image_agreement", "30 regions, five networks of scale 0.5 to 3")
def images_and_maps(rng: Generator) -> Found:
    """Images do not differ; the map is the image in the eyes of five networks, or is unrelated; most vary unequally."""
    for few, many, spread, same in ((30, 90, 2.0, True), (8, 22, 2.0, True), (30, 90, 1.0, True), (30, 90, 2.0, False)):
        n = few + many
        first, fold = np.arange(n) < few, rng.permutation(n) % 5
        wide = np.where(first, spread, 1.0)[:, None]
        images = rng.normal(size=(n, REGIONS)) * wide
        seen = images if same else rng.normal(size=(n, REGIONS)) * wide
        seen = seen * SCALE[fold][:, None] + fold[:, None]
        frame = pd.DataFrame({"participant_id": np.arange(n).astype(str), "target": first.astype(int), "fold": fold})
        config = SimpleNamespace(statistics=fast(covariates="", bootstrap_samples=20))
        values = SimpleNamespace(maps=["map"], densities=seen[:, None])
        inputs = SimpleNamespace(frame=frame, config=config, seed=int(rng.integers(2**31)), values=values)
        row = _agreement(inputs, np.arange(n), images, "map")
        named = f"images and {'a map of them' if same else 'another map'}, {few} and {many} people, SD {spread:g}:1"
        yield named, np.array([row["p"]])


@CASES.add("cohorts: steady scans", "fairness", "40 % positive, one network; ICC 0.95 beside 0.3")
def steady_scans(rng: Generator) -> Found:
    """Few people whose scans agree (ICC .95) beside many whose scans do not (ICC .3) and who have more of them."""
    small = ((60, 0.25, (1, 1), (5, 5)), (60, 0.35, (1, 2), (3, 5)))
    for n, share, few, many in (*small, (120, 0.25, (1, 2), (3, 4)), (200, 0.4, (1, 1), (4, 4))):
        inside = rng.permutation(n) < share * n
        positive = np.arange(n) < 0.4 * n
        scans = np.where(inside, rng.integers(few[0], few[1] + 1, n), rng.integers(many[0], many[1] + 1, n))
        person, icc = np.repeat(np.arange(n), scans), np.where(inside, 0.95, 0.3)
        score = (np.sqrt(icc) * rng.normal(size=n) + 0.8 * np.where(positive, 1.0, -1.0))[person]
        score = score + np.sqrt(1 - icc[person]) * rng.normal(size=len(person))
        frame = answers(person, positive[person], score > 0).assign(probability=expit(score), fold=0)
        table = _of_level(frame, inside[person], fast(bootstrap_samples=20), rng)
        sizes, beside = (" to ".join(map(str, dict.fromkeys(ends))) for ends in (few, many))
        for row in table.itertuples():
            named = f"{row.metric}, {round(share * n)} of {n} people with {sizes} steady scans, others {beside} noisy"
            yield named, np.array([row.p])


@CASES.add("cohorts: spreads", "associations", "classes of unequal size and spread, pooled")
def unequal_spread(rng: Generator) -> Found:
    """A small class varies more in relevance and biomarker, or is the biomarker; over all people, five regions."""
    for few, many, times in ((10, 30, 3.0), (15, 45, 2.0), (30, 90, 3.0)):
        n = few + many
        is_few = rng.permutation(n) < few
        spread = np.where(is_few, times, 1.0)
        values = rng.normal(size=(n, 5)) * spread[:, None]
        x, age = rng.normal(size=n) * spread, rng.normal(size=n)
        columns = pd.DataFrame({"map": "map", "group": list("abcde"), "metric": "sum"})
        for kind, biomarker in (("varies as much", x), ("is the class", is_few.astype(float))):
            for estimator in ("pearson", "spearman", "partial"):
                held = [np.ones(n), age] if estimator == "partial" else [np.ones(n)]
                sides = values, biomarker[:, None], np.column_stack(held)
                caution = small_class(is_few.astype(np.intp)), SMALL_CLASS
                points = ParticipantValues(*sides, (), Exchangeability.free(n), n, None, *caution)
                table = rows_of(points, columns, Biomarker("x", biomarker), estimator, fast(), rng)
                named = f"{estimator}, {few} of {n} with {times:g} x the SD, biomarker {kind}"
                yield named, table["p"].to_numpy(float)
                yield f"{named}, family-wise over 5", table["p_fwe"].to_numpy(float).min(keepdims=True)
