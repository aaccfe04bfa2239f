"""Hippocampal volume against hippocampal relevance in true positives (Böhle et al. 2019, figure 8), by participant.

The primary analysis has one point per participant: means over their true-positive scans, centred within test folds,
participants permuted within folds. Means over different numbers of scans differ in precision, so exchangeability is
approximate; a simulation in the tests shows that the error rate holds. The correlation over scans, as the founding
study reported it, permutes whole participants with the same number of scans. False positives stand among the points.

Whether the two change together within a person is answered by the repeated-measures correlation (Bakdash & Marusich
2017), that of deviations from participants' means. Its p flips the signs of all of a participant's deviations in
relevance together; permuting visits would test that nobody changes, and rejects up to 15 % at 5 % where relevance
drifts at random while hippocampi shrink. Ranks of a few visits carry little information: only Pearson is offered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.registration.settled import JACOBIAN_SOURCE
from heatlas.pipeline.run.config.statistics import StatisticsConfig
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Floats, Indices
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.values import (
    RelevanceValues,
    joined,
    participant_codes,
    participant_means,
    stacked,
)
from heatlas.pipeline.statistics.linear.correlation import (
    ESTIMATORS,
    FISHER,
    clustered_t,
    error_of_z,
    fisher_interval,
    is_constant,
    standardised,
)
from heatlas.pipeline.statistics.linear.fold_effect import centred_within, fold_of_participants
from heatlas.pipeline.statistics.linear.permutations import Exchangeability, add_false_discovery_rate, two_sided_p
from heatlas.pipeline.statistics.linear.studentised import critical_values
from heatlas.pipeline.statistics.resampling.bootstrap import NO_INTERVAL
from heatlas.pipeline.statistics.resampling.means import sign_flips

REGION = "Hippocampus"
VOLUME = "hippocampus_mm3"
ADJUSTED = "hippocampus/tiv"
WITHIN = "within participant"
UNITS = ("participant", "scan", WITHIN)
MIN_PARTICIPANTS = 3
ENOUGH = 60
SKEWED = (
    f"fewer than {ENOUGH} participants: where both variables are as skewed as lognormal values, an interval of 95 % of "
    "Pearson's r misses up to 11 %; that of Spearman's does not"
)

VOLUME_ASSOCIATION_TABLE = declared("volume_association", __file__)
VOLUME_POINTS_TABLE = declared("volume_points", __file__)


@dataclass(frozen=True, eq=False)
class VolumePairs:
    """Paired values; ``codes`` is the participant of each row, ``fold`` their test fold (0 if not adjusted for)."""

    volume: Floats
    relevance: Floats
    codes: Indices
    fold: Indices

    @property
    def n_participants(self) -> int:
        return len(np.unique(self.codes))

    def per_participant(self) -> VolumePairs:
        means = [participant_means(values, self.codes) for values in (self.volume, self.relevance)]
        first = np.unique(self.codes, return_index=True)[1]
        return VolumePairs(means[0], means[1], np.arange(len(means[0])), self.fold[first])

    def within_participants(self) -> VolumePairs:
        repeated = np.bincount(self.codes)[self.codes] > 1
        codes = np.unique(self.codes[repeated], return_inverse=True)[1].astype(np.intp)
        volume, relevance = (centred_within(values[repeated], codes) for values in (self.volume, self.relevance))
        return VolumePairs(volume, relevance, codes, self.fold[repeated])

    def within_folds(self) -> VolumePairs:
        """Values centred within test folds; unchanged if not adjusted for fold."""
        if not self.fold.any():
            return self
        volume, relevance = (centred_within(values, self.fold) for values in (self.volume, self.relevance))
        return VolumePairs(volume, relevance, self.codes, self.fold)


def volume_points(values: RelevanceValues, scans: Sequence[Scan]) -> pd.DataFrame:
    """Relevance and volume of the hippocampi in true- and false-positive scans, one row per scan and map.

    Unknown volumes are NaN; an atlas without the bilateral group `REGION` gives no rows.
    """
    positive = np.flatnonzero(values.scans["outcome"].isin(["TP", "FP"]))
    if REGION not in values.groups or not len(positive):
        return VOLUME_POINTS_TABLE.frame()
    sums = values.sums[positive, :, values.groups.index(REGION)]
    keys = ["participant_id", "session_id", "scan_id", "outcome", "fold"]
    identity = values.scans.iloc[positive][keys].reset_index(drop=True)
    by_id = {scan.scan_id: scan for scan in scans}
    records = [by_id.get(scan_id) for scan_id in identity["scan_id"]]
    for name in ("hippocampus_mm3", "tiv_mm3", "hippocampus_source"):
        identity[name] = [None if scan is None else getattr(scan, name) for scan in records]
    identity = identity.astype({"hippocampus_mm3": float, "tiv_mm3": float})
    tiv = identity["tiv_mm3"].where(identity["tiv_mm3"] > 0)
    identity["hippocampus_per_tiv"] = identity["hippocampus_mm3"] / tiv
    blocks = [identity.assign(map=name, relevance_sum=sums[:, i]) for i, name in enumerate(values.maps)]
    return stacked(VOLUME_POINTS_TABLE, blocks)


def volume_association(
    points: pd.DataFrame, maps: Sequence[str], has_region: bool, settings: StatisticsConfig, seed: int
) -> pd.DataFrame:
    """Correlations for every map, volume, unit and estimator over the true positives of `volume_points`."""
    rows = []
    for volume, column in ((VOLUME, "hippocampus_mm3"), (ADJUSTED, "hippocampus_per_tiv")):
        for unit in UNITS:
            for name in maps:
                rows_of_map = points[points["map"] == name]
                with_both = rows_of_map[rows_of_map[column].notna() & rows_of_map["relevance_sum"].notna()]
                note = _note(rows_of_map, with_both, column, has_region)
                # One random stream per volume and unit: all maps and both estimators share permutations.
                rng = generator(seed, "statistics", "volume_association", volume, unit)
                codes, _ = participant_codes(with_both["participant_id"].tolist())
                fold, why = np.zeros(0, np.intp), None
                if len(with_both):
                    fold, why = fold_of_participants(with_both, settings.fold_effect)
                volume_of, relevance_of = (with_both[name].to_numpy(float) for name in (column, "relevance_sum"))
                pairs = VolumePairs(volume_of, relevance_of, codes, fold[codes])
                rows += [
                    {"map": name, "volume": volume, "unit": unit} | row
                    for row in _rows(pairs, unit, joined(note, why), settings, rng)
                ]
    table = VOLUME_ASSOCIATION_TABLE.without("p_fdr", "family").frame(rows)
    return add_false_discovery_rate(table, ["volume", "unit", "estimator"], "maps")


def volume_association_tables(inputs: StatisticsInputs) -> Mapping[str, pd.DataFrame]:
    values, settings = inputs.values, inputs.config.statistics
    points = volume_points(values, inputs.scans)
    true = points[points["outcome"] == "TP"]
    table = volume_association(true, values.maps, REGION in values.groups, settings, inputs.seed)
    return {"volume_points": inputs.as_named(points), "volume_association": table}


def _note(rows: pd.DataFrame, with_both: pd.DataFrame, column: str, has_region: bool) -> str | None:
    if not has_region:
        return f"the atlas has no bilateral group named {REGION}"
    if not len(rows):
        return "no true-positive scan"
    if not len(with_both):
        missing = "hippocampal volume" if column == "hippocampus_mm3" else "hippocampal and intracranial volume"
        return joined(f"no true-positive scan has a known {missing}", *sorted(set(rows["hippocampus_source"].dropna())))
    notes = []
    if len(with_both) < len(rows):
        notes.append(f"{counted(len(rows) - len(with_both), 'true-positive scan')} without a known volume left out")
    sources = sorted(set(with_both["hippocampus_source"].dropna()))
    if len(sources) > 1:
        notes.append(f"volumes of several sources are mixed: {', '.join(sources)}")
    elif sources and sources[0].startswith(JACOBIAN_SOURCE):
        notes.append(f"volumes: {sources[0]}")
    return "; ".join(notes) or None


def _rows(
    scans: VolumePairs, unit: str, note: str | None, settings: StatisticsConfig, rng: np.random.Generator
) -> list[dict[str, Any]]:
    points = scans
    if len(scans.codes):
        of_unit = scans.per_participant() if unit == "participant" else scans
        points = scans.within_participants() if unit == WITHIN else of_unit.within_folds()  # both centre within folds
    basis = scans if unit == "participant" else points
    counts: dict[str, Any] = {"n_participants": basis.n_participants, "n_scans": len(basis.volume)}
    counts |= {"fold_held": bool(points.fold.any())}
    problem = _problem(points, " with several scans" if unit == WITHIN else "")
    if problem:
        why = note if len(scans.codes) == 0 else joined(problem, note)
        blank = _NO_TEST | counts | {"r": np.nan, "n_permutations": 0, "exact": False, "note": why}
        return [{"estimator": estimator} | blank for estimator in (("pearson",) if unit == WITHIN else ESTIMATORS)]
    tested = _flip_signs(points, settings, rng) if unit == WITHIN else _permute(points, settings, rng)
    return [
        {"estimator": estimator} | counts | row | {"note": joined(row["note"], note)}
        for estimator, row in tested.items()
    ]


_Tests = Mapping[str, dict[str, Any]]
"""By estimator: r with its interval, p, number of permutations, whether exact, and a note if there is no p."""


def _permute(points: VolumePairs, settings: StatisticsConfig, rng: np.random.Generator) -> _Tests:
    """Permute participants with the same number of rows within folds."""
    exchange = Exchangeability.whole_participants(points.codes.tolist()).in_blocks(points.fold.tolist())
    permutations = exchange.permutations(settings.permutations, rng)
    df = max(points.n_participants - len(np.unique(points.fold)) - 1, 1)
    tests = {}
    for estimator in ESTIMATORS:
        x, y = (standardised(values, estimator) for values in (points.volume, points.relevance))
        as_observed = np.arange(len(x), dtype=np.intp)[None]
        (r,), (t,) = clustered_t(x, y, points.codes, df, as_observed)
        null = clustered_t(x, y, points.codes, df, permutations.rows)[1]
        error = error_of_z(x, y, points.codes, df)
        tests[estimator] = _test_row(r, t, (error, df), null, permutations.exact, settings)
        if estimator == "pearson" and points.n_participants < ENOUGH:
            tests[estimator]["note"] = tests[estimator]["note"] or SKEWED
        if len(permutations) == 1:
            tests[estimator] |= _NO_TEST | {
                "note": "no two participants have the same number of scans, so none can be permuted"
            }
    return tests


def _flip_signs(points: VolumePairs, settings: StatisticsConfig, rng: np.random.Generator) -> _Tests:
    """Flip the signs of each participant's deviations in relevance together."""
    x, y = (standardised(values, "pearson") for values in (points.volume, points.relevance))
    products = np.bincount(points.codes, weights=x * y).astype(float)
    signs, exact = sign_flips(len(products), settings.permutations, rng)
    length = np.linalg.norm(products)
    if length <= 1e-12:
        empty = {"r": 0.0, "n_permutations": len(signs), "exact": exact}
        return {"pearson": _NO_TEST | empty | {"note": "relevance and volume do not both change in any participant"}}
    r = np.concatenate([[products.sum()], signs @ products])
    t = r / length / np.sqrt(np.maximum(1 - r**2, 1e-12))
    df = len(products) - 1
    error = error_of_z(x, y, points.codes, df)
    return {"pearson": _test_row(r[0], t[0], (error, df), t[1:], exact, settings)}


_NO_TEST = {"p": np.nan, "ci_low": np.nan, "ci_high": np.nan, "interval": NO_INTERVAL}


def _test_row(
    r: float, t: float, of_z: tuple[float, int], null: Floats, exact: bool, settings: StatisticsConfig
) -> dict[str, Any]:
    """Row of a correlation with its t, error and degrees of freedom of its Fisher's z, and permuted t (m,)."""
    p = np.asarray([two_sided_p(np.asarray(t), null, exact)], float)
    (critical,) = critical_values(np.abs(null)[None], settings.confidence, exact)
    on_a_line, low, high = abs(r) >= 1 - 1e-12, np.nan, np.nan
    if not on_a_line:
        low, high = fisher_interval(r, t, *of_z, float(critical), float(p[0]), settings.confidence)
    row = {"r": float(r), "ci_low": low, "ci_high": high, "interval": NO_INTERVAL if np.isnan(low) else FISHER}
    note = "no interval: all points lie on one line" if on_a_line else None
    return row | {"p": float(p[0]), "n_permutations": len(null), "exact": exact, "note": note}


def _problem(points: VolumePairs, which: str) -> str | None:
    if points.n_participants < MIN_PARTICIPANTS:
        return f"{counted(points.n_participants, 'participant')}{which}; at least {MIN_PARTICIPANTS} are needed"
    if is_constant(points.volume):
        return "the volume is constant"
    if is_constant(points.relevance):
        return "the relevance is constant"
    return None
