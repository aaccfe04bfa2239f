"""Two cohorts side by side: the people a run was made with, and others to whom its networks were applied.

The cohorts are independent, so participants are drawn from each on its own, and the interval of a difference is
combined from the intervals of both (`square_and_add`). Of the first cohort only out-of-fold predictions and maps count;
on the second every scan is answered by all networks together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from statsmodels.stats.proportion import proportion_confint

from heatlas.pipeline.regions.effect_size import hedges_g
from heatlas.pipeline.run.config.statistics import StatisticsConfig
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.bundle_layout import open_bundle
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Flags, Floats, Indices, Resampling
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs, inputs_of_run
from heatlas.pipeline.statistics.data.members import CLASSES, TwoGroups
from heatlas.pipeline.statistics.data.values import INTENSITY, participant_codes, participant_means
from heatlas.pipeline.statistics.groups.summaries import TOTAL, demographics, welch
from heatlas.pipeline.statistics.images.differences import rank_correlation
from heatlas.pipeline.statistics.performance.classification import (
    FEW,
    FEW_WRONG,
    calibration_table,
    metrics,
    participants_of,
    weighted_auc_within,
)
from heatlas.pipeline.statistics.resampling import bootstrap

MEASURES = ("auc", "balanced_accuracy", "sensitivity", "specificity", "brier", "probability_less_share")
AREA_NOTE = "area of the run within folds (a network and its own test people), of the new cohort over all scans"
DRAWS = 999
FEWEST_REGIONS = 5
NEWCOMBE = "Newcombe"
ATTENUATED = (
    "noise in g draws r and its interval towards 0: where the true sizes correlate .5, r was .35, .31 and .27 on "
    "average with 60, 30 and 20 new people, and the interval missed the truth in 23 to 42 %"
)
"""What a rank correlation of estimated sizes cannot show (docs/benchmarks/statistics.md)."""

EXTERNAL_TABLE = declared("external_validation", __file__)
EXTERNAL_CALIBRATION_TABLE = declared("external_calibration", __file__)


def external_tables(inputs: StatisticsInputs) -> Mapping[str, pd.DataFrame]:
    """Tables ``external_validation`` and ``external_calibration``; none where the networks are the run's own."""
    folder = Path(inputs.config.training.networks_of)
    if not inputs.config.training.networks_of:
        return {}
    if open_bundle(folder) is not None:
        raise BadInputError("an exported run holds no predictions of its people. Apply the run itself to compare both.")
    both = Cohorts(inputs_of_run(RunLayout(folder)), inputs)
    rows = [*_performance(both), *_regions(both), *_people(both), *_images(both), _sites(both)]
    confidence = inputs.config.statistics.confidence
    calibration = [calibration_table(cohort.predictions, confidence).assign(cohort=name) for name, cohort in both.named]
    return {
        "external_validation": EXTERNAL_TABLE.frame(rows),
        "external_calibration": pd.concat(calibration)[list(EXTERNAL_CALIBRATION_TABLE.meanings)],
    }


@dataclass(frozen=True, eq=False)
class Cohorts:
    """The tables of both cohorts; the second has one network, so no folds."""

    run: StatisticsInputs
    new: StatisticsInputs

    @property
    def named(self) -> tuple[tuple[str, StatisticsInputs], tuple[str, StatisticsInputs]]:
        return ("run", self.run), ("new", self.new)


def _row(part: str, measure: str, n: tuple[int, int], **values: Any) -> dict[str, Any]:
    nothing: dict[str, Any] = dict.fromkeys(EXTERNAL_TABLE.meanings) | {"interval": bootstrap.NO_INTERVAL}
    return nothing | {"part": part, "measure": measure, "label": TOTAL, "n_run": n[0], "n_new": n[1]} | values


def square_and_add(new: Sequence[Any], run: Sequence[Any]) -> tuple[Any, Any]:
    """Bounds of ``new - run`` from estimate, lower and upper bound of two independent numbers (Newcombe 1998).

    Stat Med 17:873, method 10; of other numbers than shares Zou & Donner 2008, Stat Med 27:1693.

    >>> low, high = square_and_add((0.8, 0.6913, 0.8775), (0.6, 0.4904, 0.7004))  # 56 of 70 and 48 of 80, by Wilson
    >>> round(float(low), 3), round(float(high), 3)
    (0.052, 0.334)
    """
    (a, a_low, a_high), (b, b_low, b_high) = new, run
    return a - b - np.hypot(a - a_low, b_high - b), a - b + np.hypot(a_high - a, b - b_low)


def _performance(both: Cohorts) -> list[dict[str, Any]]:
    """Differences in performance and calibration."""
    settings = both.new.config.statistics
    sides = [
        _measure(frame, settings, generator(both.new.seed, "statistics", "external", "performance", name))
        for name, frame in (("run", both.run.predictions), ("new", both.new.predictions.assign(fold=0)))
    ]
    (run, of_run, n_run, few_run), (new, of_new, n_new, few_new) = sides
    notes = {"auc": AREA_NOTE, "brier": FEW_WRONG if min(few_run, few_new) < FEW else None}
    low, high = square_and_add((new, of_new.low, of_new.high), (run, of_run.low, of_run.high))
    rows = []
    for i, name in enumerate(MEASURES):
        bounds: dict[str, Any] = {"ci_low": float(low[i]), "ci_high": float(high[i])}
        bounds |= {} if np.isnan(low[i]) else {"interval": NEWCOMBE}
        values = {"run": float(run[i]), "new": float(new[i]), "estimate": float(new[i] - run[i])}
        rows.append(_row("performance", name, (n_run, n_new), **values, **bounds, note=notes.get(name)))
    return rows


def _measure(
    frame: pd.DataFrame, settings: StatisticsConfig, rng: np.random.Generator
) -> tuple[Floats, bootstrap.Intervals, int, int]:
    """`MEASURES` of a cohort, their intervals, its number of people, and that of the smaller class.

    Areas and balanced accuracies of 1 have the exact interval of a share of the people of the smaller class, since
    their variance is at most that of such a share (Birnbaum & Klose 1957, Ann Math Stat 28:933).
    """
    codes, names, strata = participants_of(frame, "target")
    target, probability = frame["target"].to_numpy(float), frame["probability"].to_numpy(float)
    predicted = frame["outcome"].isin(["TP", "FP"]).to_numpy().astype(float)

    def measures(weights: Floats) -> Floats:
        of_scans = weights[:, codes]
        values_of = metrics(target, predicted, probability, of_scans)
        values_of["auc"] = weighted_auc_within(target, probability, frame["fold"].to_numpy(), of_scans)
        values_of["probability_less_share"] = bootstrap.ratio(of_scans @ (probability - target), of_scans.sum(axis=1))
        return np.stack([values_of[name] for name in MEASURES], axis=1)

    values = measures(np.ones((1, len(names))))[0]
    scales = [bootstrap.AS_IT_IS if name == "probability_less_share" else bootstrap.LOGIT for name in MEASURES]
    intervals = bootstrap.scaled_intervals(measures, strata, scales, Resampling.draws(settings, rng))
    people = [len(np.unique(codes[target == side])) for side in (0, 1)]
    intervals = bootstrap.with_exact_shares(
        intervals, {i: (float(values[i]), min(people)) for i in (0, 1)}, settings.confidence
    )
    for i, n in ((2, people[1]), (3, people[0])):
        if n:
            bounds = proportion_confint(values[i] * n, n, 1 - settings.confidence, "wilson")
            intervals.low[i], intervals.high[i] = bounds
    return values, intervals, len(names), min(people)


@dataclass(frozen=True, eq=False)
class _People:
    """Values of people (people, regions) with their class, and the network that made them."""

    values: Floats
    is_first: Flags
    fold: Indices

    @classmethod
    def of(cls, inputs: StatisticsInputs, values: Floats, with_folds: bool) -> _People:
        """Of scans' values, in the order of the inputs; people with scans of both classes count as positive."""
        two = TwoGroups.of(inputs, *CLASSES)
        frame = inputs.frame.iloc[two.rows]
        codes, names = participant_codes(frame["participant_id"].tolist())
        firsts = np.unique(codes, return_index=True)[1]
        fold = pd.factorize(frame["fold"].iloc[firsts])[0] if with_folds else np.zeros(len(names), np.intp)
        return cls(participant_means(values[two.rows], codes), two.is_first[firsts], fold.astype(np.intp))

    @property
    def strata(self) -> Indices:
        return bootstrap.strata_of(self.fold, self.is_first.astype(np.intp))

    def weighted_g(self, weights: Floats) -> Floats:
        return weighted_g(self.values, self.is_first, self.fold, weights)


def weighted_g(values: Floats, is_first: Flags, block: Indices, weights: Floats) -> Floats:
    """Difference of two groups in residual standard deviations, with blocks held, of weighted people; (draws, columns).

    Without weights (draws, people) it is `hedges_g` but for its correction, which leaves ranks as they are. NaN where
    nothing varies.
    """
    x, side = values - values.mean(axis=0), is_first.astype(float)
    total = [np.zeros((len(weights), x.shape[1])) for _ in range(2)]
    spread_of_side = np.zeros((len(weights), 1))
    for fold_number in np.unique(block):
        w, v, s = weights[:, block == fold_number], x[block == fold_number], side[block == fold_number]
        n = np.maximum(w.sum(axis=1, keepdims=True), np.finfo(float).tiny)
        mean, mean_side = w @ v / n, (w @ s)[:, None] / n
        total[0] += w @ v**2 - n * mean**2
        total[1] += w @ (v * s[:, None]) - n * mean * mean_side
        spread_of_side += (w @ s**2)[:, None] - n * mean_side**2
    freedom = weights.sum(axis=1, keepdims=True) - len(np.unique(block)) - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        difference = total[1] / spread_of_side
        left = np.maximum(total[0] - total[1] * difference, 0.0) / freedom
        g: Floats = np.where(left > 0, difference / np.sqrt(left), np.nan)
    return g


def _regions(both: Cohorts) -> list[dict[str, Any]]:
    """Whether the classes differ in the same regions, for each map that both cohorts have."""
    rows = []
    groups = [name for name in both.new.values.groups if name in both.run.values.groups]
    for name in both.new.values.maps:
        if name not in both.run.values.maps:
            continue
        people = []
        for cohort, folds in ((both.run, True), (both.new, False)):
            place = [cohort.values.groups.index(group) for group in groups]
            densities = cohort.values.densities[:, cohort.values.maps.index(name)][:, place]
            people.append(_People.of(cohort, densities, folds))
        g = [cohort.weighted_g(np.ones((1, len(cohort.fold))))[0] for cohort in people]
        there = np.isfinite(g[0]) & np.isfinite(g[1])
        row = _row("regions", "rank_correlation", (len(people[0].fold), len(people[1].fold)), map=name)
        if there.sum() < FEWEST_REGIONS:
            rows.append(row | {"note": f"fewer than {FEWEST_REGIONS} regions that can be compared"})
            continue

        people = [replace(cohort, values=cohort.values[:, there]) for cohort in people]
        rng = generator(both.new.seed, "statistics", "external", name)
        note = f"{counted(int(there.sum()), 'region')}; {ATTENUATED}"
        rows.append(row | agreement_over_regions(people, both.new.config.statistics, rng) | {"note": note})
    return rows


def agreement_over_regions(
    people: Sequence[_People], settings: StatisticsConfig, rng: np.random.Generator
) -> dict[str, Any]:
    """Rank correlation, over regions, of the difference of the classes in both cohorts, with its interval."""
    strata = np.concatenate([people[0].strata, people[1].strata + people[0].strata.max() + 1])

    def agreement(weights: Floats) -> Floats:
        apart = np.split(weights, [len(people[0].fold)], axis=1)
        return rank_correlation(*(cohort.weighted_g(w) for cohort, w in zip(people, apart, strict=True)))[:, None]

    intervals = bootstrap.scaled_intervals(agreement, strata, [bootstrap.FISHER], Resampling.draws(settings, rng))
    return {"estimate": float(agreement(np.ones((1, len(strata))))[0, 0]), **intervals.row()}


def _people(both: Cohorts) -> list[dict[str, Any]]:
    """Who is in the cohorts: share of the positive class, and each variable of the demographics."""
    tables = [
        demographics(inputs.scans, inputs.config.cohort).set_index(["label", "variable"]) for _, inputs in both.named
    ]
    positive = both.new.config.cohort.positive

    def people_of(label: str) -> tuple[int, int]:
        run, new = (
            len({scan.participant_id for scan in inputs.scans if label in (TOTAL, scan.label)})
            for _, inputs in both.named
        )
        return run, new

    n, patients = people_of(TOTAL), people_of(positive)
    shares = [people / max(everyone, 1) for people, everyone in zip(patients, n, strict=True)]
    confidence = both.new.config.statistics.confidence
    row = _row("people", "share_positive", n, run=shares[0], new=shares[1])
    rows = [row | _of_shares(patients[1], n[1], patients[0], n[0], confidence)]
    for label, variable in tables[1].index.tolist():
        if variable == "scans":
            continue
        cells = [table.loc[(label, variable)].to_dict() for table in tables]
        counts, means = [int(cell["n_known"]) for cell in cells], [float(cell["mean"]) for cell in cells]
        row = _row("people", variable, (counts[0], counts[1]), label=label, run=means[0], new=means[1])
        if variable == "female":
            women = [round(mean * count) if count else 0 for mean, count in zip(means, counts, strict=True)]
            row |= _of_shares(women[1], counts[1], women[0], counts[0], confidence)
        else:
            values = [_values(inputs, label, variable) for _, inputs in both.named]
            test = welch(values[1], values[0], confidence)
            row |= {"estimate": test["hedges_g"], "ci_low": test["hedges_g_low"], "ci_high": test["hedges_g_high"]}
            row |= {"note": test["note"]} | ({} if np.isnan(test["hedges_g_low"]) else {"interval": "Welch's t"})
        rows.append(row)
    return rows


def _of_shares(new: int, n_new: int, run: int, n_run: int, confidence: float) -> dict[str, Any]:
    """Difference of two shares with Newcombe's interval; nothing without people."""
    if not min(n_new, n_run):
        return {"note": "known of nobody in a cohort"}
    by_cohort = ((new, n_new), (run, n_run))
    bounds = [(k / n, *proportion_confint(k, n, 1 - confidence, "wilson")) for k, n in by_cohort]
    low, high = square_and_add(*bounds)
    return {"estimate": new / n_new - run / n_run, "ci_low": low, "ci_high": high, "interval": NEWCOMBE}


def _values(inputs: StatisticsInputs, label: str, variable: str) -> pd.Series:
    """A variable of each participant with a value, mean over their scans of a class."""
    scans = [scan for scan in inputs.scans if label in (TOTAL, scan.label) and getattr(scan, variable) is not None]
    values = pd.Series([float(getattr(scan, variable)) for scan in scans], dtype=float)
    return values.groupby([scan.participant_id for scan in scans]).mean()


def _images(both: Cohorts) -> list[dict[str, Any]]:
    """How far intensities of registered scans of the negative class lie apart, against cohorts at random."""
    label, wide = both.new.config.cohort.negative, []
    for _, inputs in both.named:
        people = {scan.scan_id: scan.participant_id for scan in inputs.scans if scan.label == label}
        table = inputs.image_regions
        if len(table):
            table = table[table["scan_id"].isin(people)]
            table = table.assign(who=table["scan_id"].map(people))
        wide.append(table.pivot_table(INTENSITY, "who", "group") if len(table) else pd.DataFrame())
    n = (len(wide[0]), len(wide[1]))
    row = _row("images", INTENSITY, n, label=label)
    groups = [name for name in wide[1].columns if name in wide[0].columns]
    if min(n) < 2 or len(groups) < FEWEST_REGIONS:
        return [row | {"note": "fewer than two scans of a cohort were measured"}]
    values = pd.concat([table[groups] for table in wide]).to_numpy(float)
    values, is_new = values[:, np.isfinite(values).all(axis=0)], np.arange(sum(n)) >= n[0]

    def apart(is_new: Flags) -> float:
        return float(np.nanmedian(np.abs(hedges_g(values, is_new))))

    rng = generator(both.new.seed, "statistics", "external", "images")
    chance = np.quantile([apart(rng.permutation(is_new)) for _ in range(DRAWS)], 0.95)
    return [row | {"estimate": apart(is_new), "by_chance": float(chance)}]


def _sites(both: Cohorts) -> dict[str, Any]:
    """How many sites there are, and how many of the new people come from one that the run has."""
    sites = [
        {scan.participant_id: scan.site for scan in inputs.scans if scan.site is not None} for _, inputs in both.named
    ]
    n, sites_of_run = (len(sites[0]), len(sites[1])), set(sites[0].values())
    row = _row("sites", "known_sites", n)
    if not min(n):
        return row | {"note": "the site of nobody is known in a cohort"}
    share = float(np.mean([site in sites_of_run for site in sites[1].values()]))
    numbers = {"run": float(len(sites_of_run)), "new": float(len(set(sites[1].values()))), "estimate": share}
    return row | numbers | {"note": "run and new are numbers of sites"}
