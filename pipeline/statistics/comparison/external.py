"""Two cohorts side by side: the people a run was made with, and others to whom its networks were applied.

The cohorts are independent, so participants are drawn from each on its own. Of the first cohort only out-of-fold
predictions and maps count; on the second every scan is answered by all networks together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from statsmodels.stats.proportion import confint_proportions_2indep

from heatlas.pipeline.regions.effect_size import hedges_g
from heatlas.pipeline.run.columns import described
from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.bundle_layout import open_bundle
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Flags, Floats, Indices
from heatlas.pipeline.statistics.data.image_measures import INTENSITY
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs, inputs_of_run
from heatlas.pipeline.statistics.data.members import CLASSES, TwoGroups
from heatlas.pipeline.statistics.data.values import participant_codes, participant_means
from heatlas.pipeline.statistics.images.adjusted import rank_correlation
from heatlas.pipeline.statistics.performance.calibration import CALIBRATION_COLUMNS, calibration_table
from heatlas.pipeline.statistics.performance.classification import metrics, weighted_auc_within
from heatlas.pipeline.statistics.performance.demographics import TOTAL, demographics, welch
from heatlas.pipeline.statistics.performance.intervals import participants_of
from heatlas.pipeline.statistics.resampling.bootstrap import NO_INTERVAL, ratio
from heatlas.pipeline.statistics.resampling.scaled import (
    AS_IT_IS,
    FISHER,
    INTERVAL_OF_SCALED,
    scaled_intervals,
    strata_of,
)

MEASURES = ("auc", "balanced_accuracy", "sensitivity", "specificity", "brier", "probability_less_share")
AREA_NOTE = "area of the run within folds (a network and its own test people), of the new cohort over all scans"
DRAWS = 999
FEWEST_REGIONS = 5

COLUMNS = {
    "part": "performance, regions, people, images or sites",
    "measure": "auc, balanced_accuracy, sensitivity, specificity, brier, probability_less_share (mean probability less "
    "share of the positive class: calibration in the large); rank_correlation (of Hedges' g of the classes over "
    "regions, by density); share_positive (of participants); variables of demographics; intensity (of registered scans "
    "of the negative class: median over regions of the absolute Hedges' g between the cohorts); known_sites (share of "
    "the new participants)",
    "label": "Class, or all",
    "map": "Map of rank_correlation; n/a for other measures",
    "run": "Value in the cohort of the run that the networks are from, out of fold",
    "new": "Value in this cohort",
    "estimate": "new less run; of regions the rank correlation, of variables with a standard deviation Hedges' g, of "
    "images the median",
    "ci_low": "Lower bound of the interval of estimate, participants of both cohorts drawn apart",
    **described("ci_high"),
    "interval": INTERVAL_OF_SCALED + "; Welch's t; Newcombe; none",
    "by_chance": "Of images: 95 % quantile of the estimate where people change cohorts at random",
    "n_run": "Participants of the run",
    "n_new": "Participants of this cohort",
    "note": "Caveat, or why there is no value",
}
EXTERNAL_TABLE = Table(
    "external_validation", COLUMNS, "measure, class and map",
    "Does it hold in another cohort, and are the cohorts alike?",
    filled=("part", "measure", "n_run", "n_new"),
)  # fmt: skip
EXTERNAL_CALIBRATION_TABLE = Table(
    "external_calibration", {"cohort": "run: that the networks are from, out of fold; new: this one",
                             **CALIBRATION_COLUMNS},
    "cohort and bin of probability", "Do predicted probabilities match frequencies in both cohorts?",
    filled=("cohort", "low", "high", "n_participants"),
)  # fmt: skip


def external_tables(inputs: StatisticsInputs) -> Mapping[str, pd.DataFrame]:
    """Tables ``external_validation`` and ``external_calibration``; none where the networks are the run's own.

    BadInputError where the run that they are from has no tables of people.
    """
    folder = Path(inputs.config.training.networks_of)
    if not inputs.config.training.networks_of:
        return {}
    if open_bundle(folder) is not None:
        raise BadInputError("an exported run holds no predictions of its people. Apply the run itself to compare both.")
    both = Cohorts(inputs_of_run(RunLayout(folder)), inputs)
    rows = [*_performance(both), *_regions(both), *_people(both), *_images(both), _sites(both)]
    confidence = inputs.config.statistics.confidence
    calibration = [calibration_table(one.predictions, confidence).assign(cohort=name) for name, one in both.named]
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

    def intervals(
        self, strata: tuple[Indices, Indices], statistic: Callable[[Floats, Floats], Floats], scales: Sequence[Any],
        name: str,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Estimate with interval of each number of ``statistic(weights of the run, of the new people)``."""
        first, settings = len(strata[0]), self.new.config.statistics
        pooled = np.concatenate([strata[0], strata[1] + strata[0].max() + 1])

        def apart(weights: Floats) -> Floats:
            return statistic(weights[:, :first], weights[:, first:])

        found = scaled_intervals(
            apart, pooled, scales, settings.bootstrap_samples, settings.confidence,
            generator(self.new.seed, "statistics", "external", name),
        )  # fmt: skip
        estimates = apart(np.ones((1, len(pooled))))[0]
        return [{"estimate": float(value), **found.row(place)} for place, value in enumerate(estimates)]


def _row(part: str, measure: str, n: tuple[int, int], **values: Any) -> dict[str, Any]:
    nothing: dict[str, Any] = dict.fromkeys(COLUMNS) | {"interval": NO_INTERVAL}
    return nothing | {"part": part, "measure": measure, "label": TOTAL, "n_run": n[0], "n_new": n[1]} | values


def _performance(both: Cohorts) -> list[dict[str, Any]]:
    """Differences in performance and calibration."""
    run, new = both.run.predictions, both.new.predictions.assign(fold=0)
    sides = [participants_of(frame, "target") for frame in (run, new)]

    def measured(frame: pd.DataFrame, weights: Floats) -> Floats:
        target, probability = frame["target"].to_numpy(float), frame["probability"].to_numpy(float)
        predicted = frame["outcome"].isin(["TP", "FP"]).to_numpy().astype(float)
        found = metrics(target, predicted, probability, weights)
        found["auc"] = weighted_auc_within(target, probability, frame["fold"].to_numpy(), weights)
        found["probability_less_share"] = ratio(weights @ (probability - target), weights.sum(axis=1))
        return np.stack([found[name] for name in MEASURES], axis=1)

    def difference(of_run: Floats, of_new: Floats) -> Floats:
        return measured(new, of_new[:, sides[1][0]]) - measured(run, of_run[:, sides[0][0]])

    strata = (sides[0][2], sides[1][2])
    found = both.intervals(strata, difference, [AS_IT_IS] * len(MEASURES), "performance")
    values = [measured(frame, np.ones((1, len(frame))))[0] for frame in (run, new)]
    n = (len(sides[0][1]), len(sides[1][1]))
    return [
        _row("performance", name, n, run=float(values[0][i]), new=float(values[1][i]),
             note=AREA_NOTE if name == "auc" else None) | found[i]
        for i, name in enumerate(MEASURES)
    ]  # fmt: skip


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
        return strata_of(self.fold, self.is_first.astype(np.intp))


def weighted_g(values: Floats, is_first: Flags, block: Indices, weights: Floats) -> Floats:
    """Difference of two groups in residual standard deviations, with blocks held, of weighted people.

    Without weights `hedges_g` but for its correction, which is the same in all columns and leaves ranks as they are.

    Parameters
    ----------
    values : array, shape (people, columns)
    is_first : array of bool, shape (people,)
    block : array of int, shape (people,)
    weights : array, shape (draws, people)

    Returns
    -------
    array, shape (draws, columns)
        NaN where nothing varies.
    """
    x, side = values - values.mean(axis=0), is_first.astype(float)
    total = [np.zeros((len(weights), x.shape[1])) for _ in range(2)]
    spread_of_side = np.zeros((len(weights), 1))
    for one in np.unique(block):
        w, v, s = weights[:, block == one], x[block == one], side[block == one]
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
        for one, folds in ((both.run, True), (both.new, False)):
            place = [one.values.groups.index(group) for group in groups]
            people.append(_People.of(one, one.values.densities[:, one.values.maps.index(name)][:, place], folds))
        g = [weighted_g(one.values, one.is_first, one.fold, np.ones((1, len(one.fold))))[0] for one in people]
        there = np.isfinite(g[0]) & np.isfinite(g[1])
        row = _row("regions", "rank_correlation", (len(people[0].fold), len(people[1].fold)), map=name)
        if there.sum() < FEWEST_REGIONS:
            rows.append(row | {"note": f"fewer than {FEWEST_REGIONS} regions that can be compared"})
            continue

        def agreement(*weights: Floats, people: Any = tuple(people), there: Flags = there) -> Floats:
            drawn = [weighted_g(one.values[:, there], one.is_first, one.fold, w)
                     for one, w in zip(people, weights, strict=True)]  # fmt: skip
            return rank_correlation(*drawn)[:, None]

        (found,) = both.intervals((people[0].strata, people[1].strata), agreement, [FISHER], name)
        rows.append(row | found | {"note": f"{counted(int(there.sum()), 'region')}"})
    return rows


def _people(both: Cohorts) -> list[dict[str, Any]]:
    """Who is in the cohorts: share of the positive class, and each variable of the demographics."""
    tables = [demographics(one.scans, one.config.cohort).set_index(["label", "variable"]) for _, one in both.named]
    positive = both.new.config.cohort.positive
    everyone, patients = ([len({scan.participant_id for scan in one.scans if label in (TOTAL, scan.label)})
                           for _, one in both.named] for label in (TOTAL, positive))  # fmt: skip
    shares = [own / max(n, 1) for own, n in zip(patients, everyone, strict=True)]
    n = everyone[0], everyone[1]
    confidence = both.new.config.statistics.confidence
    rows = [_row("people", "share_positive", n, run=shares[0], new=shares[1])
            | _of_shares(patients[1], n[1], patients[0], n[0], confidence)]  # fmt: skip
    for label, variable in tables[1].index.tolist():
        if variable == "scans":
            continue
        cells = [table.loc[(label, variable)].to_dict() for table in tables]
        known, means = [int(one["n_known"]) for one in cells], [float(one["mean"]) for one in cells]
        row = _row("people", variable, (known[0], known[1]), label=label, run=means[0], new=means[1])
        if variable == "female":
            women = [round(mean * count) if count else 0 for mean, count in zip(means, known, strict=True)]
            row |= _of_shares(women[1], known[1], women[0], known[0], confidence)
        else:
            values = [_values(one, label, variable) for _, one in both.named]
            found = welch(values[1], values[0], confidence)
            row |= {"estimate": found["hedges_g"], "ci_low": found["hedges_g_low"], "ci_high": found["hedges_g_high"],
                    "interval": NO_INTERVAL if np.isnan(found["hedges_g_low"]) else "Welch's t",
                    "note": found["note"]}  # fmt: skip
        rows.append(row)
    return rows


def _of_shares(new: int, n_new: int, run: int, n_run: int, confidence: float) -> dict[str, Any]:
    """Difference of two shares with Newcombe's interval; nothing without people."""
    if not min(n_new, n_run):
        return {"note": "known of nobody in a cohort"}
    low, high = confint_proportions_2indep(new, n_new, run, n_run, method="newcomb", alpha=1 - confidence)
    return {"estimate": new / n_new - run / n_run, "ci_low": low, "ci_high": high, "interval": "Newcombe"}


def _values(inputs: StatisticsInputs, label: str, variable: str) -> pd.Series:
    """A variable of each participant with a value, mean over their scans of a class."""
    scans = [one for one in inputs.scans if label in (TOTAL, one.label) and getattr(one, variable) is not None]
    values = pd.Series([float(getattr(one, variable)) for one in scans], dtype=float)
    return values.groupby([one.participant_id for one in scans]).mean()


def _images(both: Cohorts) -> list[dict[str, Any]]:
    """How far intensities of registered scans of the negative class lie apart, against cohorts at random."""
    label, wide = both.new.config.cohort.negative, []
    for _, one in both.named:
        people = {scan.scan_id: scan.participant_id for scan in one.scans if scan.label == label}
        table = one.image_regions
        table = table[table["scan_id"].isin(people)] if len(table) else table
        wide.append(
            table.assign(who=table["scan_id"].map(people)).pivot_table(INTENSITY, "who", "group")
            if len(table) else pd.DataFrame()
        )  # fmt: skip
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
    sites = [{scan.participant_id: scan.site for scan in one.scans if scan.site is not None} for _, one in both.named]
    n, known = (len(sites[0]), len(sites[1])), set(sites[0].values())
    row = _row("sites", "known_sites", n)
    if not min(n):
        return row | {"note": "the site of nobody is known in a cohort"}
    share = np.mean([site in known for site in sites[1].values()])
    return row | {"run": float(len(known)), "new": float(len(set(sites[1].values()))), "estimate": float(share),
                  "note": "run and new are numbers of sites"}  # fmt: skip
