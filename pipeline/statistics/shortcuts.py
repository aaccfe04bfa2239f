"""Do the networks take shortcuts? Relevance where it should not be, and sites that can be told from it.

``shortcuts.tsv``: whether relevance concentrates where it should not, and differently between classes. An enrichment of
1 is relevance spread evenly, which no network gives; the numbers are to be compared with those of the same type of
network on brain masks alone (``training.control = "binarised"``), and between the classes. The interval of the mean
flips the signs of participants' differences from 1; the difference of the classes holds the test fold.

``site_prediction.tsv``: whether site and field strength can be predicted from relevance, scaled within each test fold,
by a linear classifier with folds over participants, stratified by class but not by site. Site labels are permuted
between participants of one class with the same number of scans, so that an association of site and class does not count
as evidence. Ridge regression on indicators of the sites, each prediction divided by the share of its site in training
so that rare sites can be predicted, is linear in the labels: all permutations are targets of a single fit.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.linear_model import Ridge
from sklearn.model_selection import StratifiedGroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from heatlas.pipeline.regions.audit import RELEVANCE_AUDIT_TABLE
from heatlas.pipeline.run.config.statistics import StatisticsConfig
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.work.seeds import derived_seed, generator
from heatlas.pipeline.statistics.arrays import Flags, Floats, Indices, Resampling
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.values import joined, participant_codes
from heatlas.pipeline.statistics.linear import permutations
from heatlas.pipeline.statistics.linear.fold_effect import FOLD, model_within_folds
from heatlas.pipeline.statistics.linear.freedman_lane import TEST_INTERVAL, freedman_lane
from heatlas.pipeline.statistics.resampling.bootstrap import NO_INTERVAL, bootstrap_intervals
from heatlas.pipeline.statistics.resampling.means import FEW_VALUES, VERY_SKEWED, sign_flip_test, skewed_and_few
from heatlas.pipeline.training.answers import control_of

SIGN_FLIPS = "sign flips"
ALIKE = "no interval: the same in all participants"
SKEWED = (
    f"enrichment is skewed (above {VERY_SKEWED:g}) in fewer than {FEW_VALUES} participants: the interval is too narrow"
)
AUDIT_COLUMNS = ("scan_id", "map", "compartment", "reference", "share", "voxel_share", "enrichment")

SHORTCUTS_TABLE = declared("shortcuts", __file__)


def shortcut_table(inputs: StatisticsInputs) -> pd.DataFrame:
    """Table ``shortcuts``: a row per map and compartment; BadInputError if the audit or a column is missing."""
    audit = RELEVANCE_AUDIT_TABLE.read(inputs.layout, AUDIT_COLUMNS)
    facts = inputs.frame[["scan_id", "participant_id", "target", "fold"]]
    joined_rows = audit[list(AUDIT_COLUMNS)].merge(facts, on="scan_id", validate="many_to_one")
    if joined_rows.empty:
        raise BadInputError(
            f"{RELEVANCE_AUDIT_TABLE.path(inputs.layout)}: no scan of this run. Run the regions stage again."
        )
    settings, rows = inputs.config.statistics, []
    for (map_name, compartment), part in joined_rows.groupby(["map", "compartment"], sort=False):
        rng = generator(inputs.seed, "statistics", "shortcuts", str(map_name), str(compartment))
        rows.append(_row(part, settings, rng) | {"map": map_name, "compartment": compartment})
    counts = dict.fromkeys(("n_permutations", "n_positive", "n_negative"), "Int64")
    table = pd.DataFrame(rows).astype(counts).assign(control=control_of(inputs.config))
    return permutations.add_false_discovery_rate(table, ["map", "control"], "compartments")[
        list(SHORTCUTS_TABLE.meanings)
    ]


def _row(part: pd.DataFrame, settings: StatisticsConfig, rng: np.random.Generator) -> dict[str, Any]:
    usable = part[part["enrichment"].notna()]
    row: dict[str, Any] = dict.fromkeys(SHORTCUTS_TABLE.meanings) | dict.fromkeys(("t", "df", "p"), np.nan)
    row |= {"reference": part["reference"].iloc[0]}
    row |= {"n_scans": len(usable), "n_participants": usable["participant_id"].nunique(), "interval": "none"}
    if usable.empty:
        return row | {"note": "no voxels of this kind, or no relevance"}
    people = permutations.Exchangeability.participant_means(usable["participant_id"].tolist())
    share, voxels, enrichment = people.reduce(usable[["share", "voxel_share", "enrichment"]].to_numpy(float)).T
    # Ties count as positive, as in the split.
    positive = np.asarray(people.reduce(usable[["target"]].to_numpy(float))[:, 0] >= 0.5, dtype=bool)
    mean, note = _mean(enrichment, settings, rng)
    row |= mean | {"share": float(share.mean()), "voxel_share": float(voxels.mean())}
    row |= {"n_positive": int(positive.sum()), "n_negative": int((~positive).sum())}
    lost = len(part) - len(usable)
    left_out = f"{counted(lost, 'scan')} without relevance left out" if lost else None
    fold = people.groups_of_units(usable["fold"].tolist())
    compared = _difference(enrichment, positive, fold, settings, rng)
    return row | compared | {"note": joined(left_out, note, compared.get("note"))}


def _mean(values: Floats, settings: StatisticsConfig, rng: np.random.Generator) -> tuple[dict[str, Any], str | None]:
    """Mean enrichment of participants with its interval, and a caveat."""
    row = {"enrichment": float(values.mean()), "ci_low": np.nan, "ci_high": np.nan, "interval": NO_INTERVAL}
    if np.ptp(values) <= 1e-12 * np.abs(values).max():
        return row, ALIKE
    from_even = (values - 1.0)[:, None]
    test = sign_flip_test(from_even, np.ones_like(from_even), settings.permutations, rng, settings.confidence)
    low, high = 1.0 + float(test.low[0]), 1.0 + float(test.high[0])
    if np.isnan(low) or np.isnan(high):
        return row, f"no interval: {counted(len(values), 'participant', 'is')} too few"
    skewed = skewed_and_few(test.skewness, len(values))[0]
    return row | {"ci_low": low, "ci_high": high, "interval": SIGN_FLIPS}, SKEWED if skewed else None


def _difference(
    values: Floats, positive: Flags, fold: Indices, settings: StatisticsConfig, rng: np.random.Generator
) -> dict[str, Any]:
    """Means of the classes, their difference within folds, and its test, as in `groups.comparisons`."""
    if positive.all() or not positive.any():
        return {"note": "only one class: no difference"}
    frame = pd.DataFrame({"_positive": positive.astype(float), FOLD: fold})
    groups, means = positive.tolist(), (float(values[positive].mean()), float(values[~positive].mean()))
    try:
        model = model_within_folds("_positive", "_positive", frame, settings.fold_effect, groups)
        test = freedman_lane(values, model.design, model.exchange, Resampling.orders(settings, rng), groups)
    except BadInputError as error:  # the classes are collinear with fold, or a class has one participant
        return {"note": str(error).replace("_positive", "class")}
    return {
        "fold_held": model.held,
        "enrichment_positive": means[0],
        "enrichment_negative": means[1],
        "difference": float(test.estimate[0]) if np.isfinite(test.estimate[0]) else means[0] - means[1],
        "difference_low": float(test.low[0]),
        "difference_high": float(test.high[0]),
        "difference_interval": NO_INTERVAL if np.isnan(test.low[0]) else TEST_INTERVAL,
        "t": float(test.statistic[0]),
        "df": float(test.df[0]),
        "p": float(test.p[0]),
        "n_permutations": test.n_permutations,
        "exact": test.exact,
        "note": joined(test.problems[0], model.design.note),
    }


TARGETS = ("site", "field_strength")
FOLDS = 5
TOO_SHORT = (
    "the interval takes the fitted classifiers as given and is too short: 8 to 12 % instead of 5 % miss the accuracy "
    "expected with so many people"
)
TARGETS_AT_ONCE = 5_000
"""Targets per fit; bounds memory (5,000 targets of 1,000 scans: 40 MB)."""

SITE_PREDICTION_TABLE = declared("site_prediction", __file__)


@dataclass(frozen=True, eq=False)
class Scans:
    """Scans whose site is predicted: participant, site 0..S-1 and class of each, shape (scans,)."""

    codes: Indices
    site: Indices
    positive: Indices

    @property
    def weights(self) -> Floats:
        """Weights that add up to one per participant."""
        return np.asarray(1.0 / np.bincount(self.codes)[self.codes])

    @property
    def n_sites(self) -> int:
        return int(self.site.max()) + 1


def site_prediction_table(inputs: StatisticsInputs) -> pd.DataFrame:
    rows = []
    for target in TARGETS:
        rows += _rows(target, inputs)
    table = SITE_PREDICTION_TABLE.frame(rows).astype({"n_permutations": "Int64"})
    return table.assign(control=control_of(inputs.config))


def _rows(target: str, inputs: StatisticsInputs) -> list[dict[str, Any]]:
    frame, settings = inputs.frame, inputs.config.statistics
    at_sites = frame.groupby(target)["participant_id"].nunique()
    large = at_sites.index[at_sites >= settings.shortcuts.min_participants]
    chosen = frame[target].isin(large).to_numpy(bool)
    left_out = int((~chosen).sum())
    base: dict[str, Any] = dict.fromkeys(SITE_PREDICTION_TABLE.meanings)
    base |= {"target": target, "n_left_out": left_out, "interval": "none"}
    rows = frame[chosen]
    n_sites, people = rows[target].nunique(), rows["participant_id"].nunique()
    base |= {"n_sites": n_sites, "n_participants": people, "n_scans": len(rows)}
    if n_sites < 2:
        fewest = settings.shortcuts.min_participants
        levels = counted(n_sites, target.replace("_", " "))
        return [base | {"note": f"{levels} with {fewest} or more participants; two are needed"}]
    if rows.groupby("fold")[target].nunique().max() < 2:
        return [
            base | {"note": f"each test fold has one {target.replace('_', ' ')}, which is not told from its network"}
        ]
    codes, _ = participant_codes(rows["participant_id"].tolist())
    site = np.unique(rows[target].astype(str), return_inverse=True)[1].astype(np.intp)
    scans = Scans(codes, site, rows["target"].to_numpy(int).astype(np.intp))
    features = {
        name: scaled_within(inputs.values.sums[chosen, m], rows["fold"].to_numpy())
        for m, name in enumerate(inputs.values.maps)
    }
    return [base | row for row in _predictions(target, features, scans, settings, inputs.seed)]


def scaled_within(sums: Floats, fold: NDArray[Any]) -> Floats:
    """Scale to mean 0 and variance 1 in each fold; unknown or infinite values, and those constant there, become 0."""
    result = np.zeros_like(sums)
    for number in np.unique(fold):
        values = np.where(np.isfinite(sums[fold == number]), sums[fold == number], 0.0)
        spread = values.std(axis=0)
        flat = spread <= 1e-12 * np.abs(values).max(axis=0)
        result[fold == number] = np.where(flat, 0.0, (values - values.mean(axis=0)) / np.where(flat, 1.0, spread))
    return result


def _predictions(
    target: str, features: dict[str, Floats], scans: Scans, settings: StatisticsConfig, seed: int
) -> list[dict[str, Any]]:
    names = ("statistics", "site prediction", target)
    folds = held_out_folds(scans, derived_seed(seed, *names, "folds"))
    if folds is None:
        return [{"note": "too few participants for out-of-fold prediction"}]
    order = within_classes(scans, settings.shortcuts.permutations, generator(seed, *names))
    if (scans.site[order.rows] == scans.site).all():
        return [{"note": "people of one class are all at one place, so none can change places"}]
    observed, nulls, rows = {}, {}, []
    flat = [{"map": name, "note": "relevance does not vary"} for name, columns in features.items() if not columns.any()]
    features = {name: columns for name, columns in features.items() if columns.any()}
    for name, columns in features.items():
        observed[name] = assigned(columns, scans, folds, np.arange(len(scans.site))[None])
        nulls[name] = balanced_accuracy(assigned(columns, scans, folds, order.rows), scans, order.rows)
    largest = np.max([*nulls.values()], axis=0) if nulls else np.zeros(len(order))
    for name in features:
        rng = generator(seed, *names, name)
        rows.append({"map": name} | _summary(observed[name][0], scans, nulls[name], largest, order, settings, rng))
    return rows + flat


def held_out_folds(scans: Scans, seed: int) -> list[Indices] | None:
    """Rows of each fold: whole participants, stratified by class, not by site; None if there are too few."""
    n_folds = min(FOLDS, int(np.bincount(_classes(scans)[np.unique(scans.codes, return_index=True)[1]]).min()))
    if n_folds < 2:
        return None
    splitter = StratifiedGroupKFold(n_folds, shuffle=True, random_state=seed)
    rows = np.zeros((len(scans.codes), 1))
    return [test.astype(np.intp) for _, test in splitter.split(rows, _classes(scans), scans.codes)]


def _classes(scans: Scans) -> Indices:
    """Class of each scan's participant (positive for those with both), numbered without gaps."""
    of_person = np.zeros(int(scans.codes.max()) + 1, np.intp)
    np.maximum.at(of_person, scans.codes, scans.positive)
    return np.unique(of_person[scans.codes], return_inverse=True)[1].astype(np.intp)


def within_classes(scans: Scans, count: int, rng: np.random.Generator) -> permutations.Permutations:
    """Permutations of the labels: whole participants within a class, with the same number of scans."""
    classes = _classes(scans)
    members = [np.flatnonzero(classes == number) for number in np.unique(classes)]
    parts = [
        permutations.Exchangeability.whole_participants(scans.codes[of_class].tolist()).permutations(
            count, rng, alike=scans.site[of_class].tolist()
        )
        for of_class in members
    ]
    exact = all(part.exact for part in parts) and math.prod(map(len, parts)) <= count
    if exact:
        choice = np.array(list(itertools.product(*(range(len(part)) for part in parts))))
    else:
        choice = np.stack([rng.integers(len(p), size=count) if p.exact else np.arange(count) for p in parts], axis=1)
    rows = np.empty((len(choice), len(classes)), np.int32)
    for place, (of_class, part) in enumerate(zip(members, parts, strict=True)):
        rows[:, of_class] = of_class[part.rows[choice[:, place]]]
    return permutations.Permutations(rows, exact)


def assigned(features: Floats, scans: Scans, folds: list[Indices], rows: NDArray[Any]) -> NDArray[np.int16]:
    """Out-of-fold predicted site of each scan from features (scans, regions), shape (m, scans), for permuted labels.

    ``scans.site[rows[i]]`` are the labels of the i-th permutation; rows (m, scans).
    """
    result = np.empty(rows.shape, np.int16)
    weights, at_once = scans.weights, max(1, TARGETS_AT_ONCE // scans.n_sites)
    for start in range(0, len(rows), at_once):
        some = rows[start : start + at_once]
        indicator = np.eye(scans.n_sites)[scans.site[some]]  # (orders, scans, sites)
        for test in folds:
            train = np.setdiff1d(np.arange(rows.shape[1]), test)
            model = make_pipeline(StandardScaler(), Ridge(alpha=features.shape[1]))
            answers = indicator[:, train].transpose(1, 0, 2).reshape(len(train), -1)
            model.fit(features[train], answers, ridge__sample_weight=weights[train])
            share = (weights[train] @ answers) / weights[train].sum()
            score = model.predict(features[test]).reshape(len(test), -1)
            score = np.divide(score, share, out=np.full(score.shape, -np.inf), where=share > 0)
            best = score.reshape(len(test), len(some), scans.n_sites).argmax(axis=2)
            result[start : start + len(some), test] = best.T
    return result


def balanced_accuracy(
    called: NDArray[np.int16], scans: Scans, rows: NDArray[Any], weights: Floats | None = None
) -> Floats:
    """Mean over sites of the weighted share predicted correctly; shape (m,)."""
    counted = scans.weights if weights is None else weights
    labels = scans.site[rows]
    right = (called == labels) * counted
    recalls = []
    for site in range(scans.n_sites):
        of_site = np.broadcast_to(labels == site, right.shape)
        total = (of_site * counted).sum(axis=1)
        recalls.append(
            np.divide((right * of_site).sum(axis=1), total, out=np.full(len(of_site), np.nan), where=total > 0)
        )
    mean: Floats = np.mean(recalls, axis=0)
    return mean


def _summary(
    called: NDArray[np.int16],
    scans: Scans,
    null: Floats,
    largest: Floats,
    order: permutations.Permutations,
    settings: StatisticsConfig,
    rng: np.random.Generator,
) -> dict[str, Any]:
    def statistic(draws: Floats) -> Floats:
        counted = draws[:, scans.codes] * scans.weights
        here = np.arange(len(called))[None]
        return balanced_accuracy(called[None], scans, here, counted)

    people = int(scans.codes.max()) + 1
    intervals = bootstrap_intervals(statistic, [0] * people, Resampling.draws(settings, rng))
    observed = float(statistic(np.ones((1, people)))[0])
    reached = observed * (1 - 1e-9)
    per_site = np.bincount(scans.site, scans.weights)
    return {
        "balanced_accuracy": observed,
        **intervals.row(),
        "chance": 1 / scans.n_sites,
        "null_mean": float(null.mean()),
        "accuracy": float(((called == scans.site) * scans.weights).sum() / people),
        "majority_accuracy": float(per_site.max() / people),
        "p": float(permutations.p_value(np.asarray((null >= reached).sum()), len(null), order.exact)),
        "p_fwe": float(permutations.p_value(np.asarray((largest >= reached).sum()), len(null), order.exact)),
        "n_permutations": len(order),
        "exact": order.exact,
        "note": intervals.notes[0] or (None if np.isnan(intervals.low[0]) else TOO_SHORT),
    }
