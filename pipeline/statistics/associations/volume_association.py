"""Hippocampal volume against hippocampal relevance in true positives (Böhle et al. 2019, figure 8), done on people.

The primary analysis has one point per participant: the mean over their true-positive scans of both variables.
Participants are permuted. Maps of different test folds come from different networks: both variables are taken as
deviations from the means of the participant's fold, and participants change places within folds
(`pipeline.statistics.linear.fold_effect`). With different numbers of scans their means differ in precision, so
exchange is not
exact; the simulation in the tests shows that the error rate holds. The correlation over scans, which the founding study
reported, is given beside it as description; its p exchanges whole participants with equally many scans.

Whether the two change together over the visits of a person is a question of its own: the repeated-measures correlation
(Bakdash & Marusich 2017), of deviations from the participant's own means. Its p flips the sign of a participant's
deviations in relevance, all visits at once: under the null hypothesis relevance is as likely to rise as to fall while
the volume does what it does. To let visits change places would test that nobody changes: of people whose relevance
drifts at random, while hippocampi shrink, it rejects up to 15 % at 5 %. Ranks of a few visits say little: Pearson only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline.cohort.records import Scan
from pipeline.registration.settled import JACOBIAN_SOURCE
from pipeline.run.config.statistics import StatisticsConfig
from pipeline.run.declared import Table
from pipeline.run.work.seeds import generator
from pipeline.statistics.arrays import Floats
from pipeline.statistics.associations.correlation import ESTIMATORS, is_constant, permuted_correlations
from pipeline.statistics.data.inputs import StatisticsInputs
from pipeline.statistics.data.notes import joined, so_many
from pipeline.statistics.data.values import RelevanceValues, participant_codes, participant_means
from pipeline.statistics.linear.exchangeability import Exchangeability, two_sided_p
from pipeline.statistics.linear.fold_effect import centred_within, fold_of_participants
from pipeline.statistics.linear.sign_flip import sign_flip_test
from pipeline.statistics.resampling.bootstrap import NO_INTERVAL, bootstrap_intervals
from pipeline.statistics.resampling.correction_family import add_false_discovery_rate

REGION = "Hippocampus"
VOLUME = "hippocampus_mm3"
ADJUSTED = "hippocampus/tiv"
WITHIN = "within participant"
UNITS = ("participant", "scan", WITHIN)
MIN_PARTICIPANTS = 3

ASSOCIATION_COLUMNS = {
    "map": "Relevance map whose sum over both hippocampi is correlated with their volume, over true-positive scans",
    "volume": "hippocampus_mm3, or hippocampus/tiv: divided by total intracranial volume",
    "unit": "participant: one point per participant, means over scans (primary); scan: one per scan "
    "(descriptive); within participant: visits less the means of their participant, those with several visits only: "
    "whether relevance and volume change together (repeated-measures correlation); time is not taken out",
    "estimator": "pearson or spearman; within participant: pearson",
    "r": "Correlation coefficient; with fold held, of deviations from the means of folds",
    "fold_held": "Whether the test fold, whose maps come from one network, is held",
    "ci_low": "Lower bound of the interval from drawing participants with all their scans",
    "ci_high": "Upper bound of the interval",
    "interval": "BCa or percentile bootstrap interval; none where there is none",
    "p": "Two-sided p from permuting participants (within folds, if held; for scans: among those with equally many); "
    "within participant: from flipping the signs of participants' change in relevance; (b+1)/(m+1), or exact",
    "p_fdr": "p adjusted by Benjamini and Hochberg over the family",
    "family": "Tests adjusted together",
    "n_participants": "Participants with a true-positive scan and a volume; within participant: with several",
    "n_scans": "Their true-positive scans with a volume",
    "n_permutations": "Permutations, or flips of signs, used",
    "exact": "true if these are all there are",
    "note": "Why there is no value, or what to know of it",
}
VOLUME_ASSOCIATION_TABLE = Table(
    "volume_association", ASSOCIATION_COLUMNS, "map, volume, unit and estimator",
    "Does relevance in the hippocampus follow its volume?", filled=("map", "volume", "unit", "estimator", "fold_held",
    "n_participants", "n_scans"),
)  # fmt: skip
POINT_COLUMNS = {
    "participant_id": "BIDS participant, with the prefix sub-",
    "session_id": "BIDS session, with the prefix ses-; n/a where the input has no sessions",
    "scan_id": "Identifier of the image in its source; true-positive scans only",
    "fold": "Test fold, whose maps come from one network",
    "map": "Relevance map",
    "relevance_sum": "Sum of the map over both hippocampi",
    "hippocampus_mm3": "Volume of both hippocampi in mm3",
    "tiv_mm3": "Total intracranial volume in mm3",
    "hippocampus_per_tiv": "hippocampus_mm3 divided by tiv_mm3",
    "hippocampus_source": "Where the hippocampal volume comes from, or why there is none",
}
VOLUME_POINTS_TABLE = Table(
    "volume_points", POINT_COLUMNS, "participant and map", "The points behind volume_association",
    filled=("participant_id", "map", "fold"), finite=True,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Points:
    """Paired values; ``codes`` is the participant of each row, ``fold`` their fold (0 if not held)."""

    volume: Floats
    relevance: Floats
    codes: NDArray[np.intp]
    fold: NDArray[np.intp]

    @property
    def n_participants(self) -> int:
        return len(np.unique(self.codes))

    def per_participant(self) -> Points:
        means = [participant_means(values, self.codes) for values in (self.volume, self.relevance)]
        first = np.unique(self.codes, return_index=True)[1]
        return Points(means[0], means[1], np.arange(len(means[0])), self.fold[first])

    def within_participants(self) -> Points:
        """Deviations from the participant's own means, of those with several rows."""
        exchange = Exchangeability.within_participants(self.codes.tolist())
        deviations = exchange.reduce(np.column_stack([self.volume, self.relevance]))
        repeated = np.bincount(self.codes)[self.codes] > 1
        codes = np.unique(self.codes[repeated], return_inverse=True)[1].astype(np.intp)
        return Points(deviations[:, 0], deviations[:, 1], codes, self.fold[repeated])

    def within_folds(self) -> Points:
        """Deviations from the means of folds; the values as they are where fold is not held."""
        if not self.fold.any():
            return self
        volume, relevance = (centred_within(values, self.fold) for values in (self.volume, self.relevance))
        return Points(volume, relevance, self.codes, self.fold)


def volume_points(values: RelevanceValues, scans: Sequence[Scan]) -> pd.DataFrame:
    """True-positive scans with the relevance and the volume of their hippocampi, one row per scan and map.

    Volumes that are not known are NaN; an atlas without a bilateral group `REGION` gives no rows.
    """
    true_positive = np.flatnonzero(values.scans["outcome"] == "TP")
    if REGION not in values.groups or not len(true_positive):
        return pd.DataFrame(columns=list(POINT_COLUMNS))
    sums = values.sums[true_positive, :, values.groups.index(REGION)]
    keys = ["participant_id", "session_id", "scan_id", "fold"]
    identity = values.scans.iloc[true_positive][keys].reset_index(drop=True)
    by_id = {scan.scan_id: scan for scan in scans}
    own = [by_id.get(scan_id) for scan_id in identity["scan_id"]]
    for name in ("hippocampus_mm3", "tiv_mm3", "hippocampus_source"):
        identity[name] = [None if scan is None else getattr(scan, name) for scan in own]
    identity = identity.astype({"hippocampus_mm3": float, "tiv_mm3": float})
    known = identity["tiv_mm3"].where(identity["tiv_mm3"] > 0)
    identity["hippocampus_per_tiv"] = identity["hippocampus_mm3"] / known
    blocks = [identity.assign(map=name, relevance_sum=sums[:, i]) for i, name in enumerate(values.maps)]
    return pd.concat(blocks, ignore_index=True)[list(POINT_COLUMNS)]


def volume_association(
    points: pd.DataFrame, maps: Sequence[str], has_region: bool, settings: StatisticsConfig, seed: int
) -> pd.DataFrame:
    """Correlations for every map, both volumes, all units and their estimators.

    Parameters
    ----------
    points : pandas.DataFrame
        From `volume_points`.
    maps : sequence of str
    has_region : bool
        Whether the atlas has the bilateral group `REGION`.
    settings : StatisticsConfig
    seed : int

    Returns
    -------
    pandas.DataFrame
        Columns of `ASSOCIATION_COLUMNS`; a row that could not be computed says why.
    """
    rows = []
    for volume, column in ((VOLUME, "hippocampus_mm3"), (ADJUSTED, "hippocampus_per_tiv")):
        for unit in UNITS:
            for name in maps:
                own = points[points["map"] == name]
                known = own[own[column].notna() & own["relevance_sum"].notna()]
                note = _note(own, known, column, has_region)
                # One stream per volume and unit: all maps and both estimators see the same permutations.
                rng = generator(seed, "statistics", "volume_association", volume, unit)
                paired, why = _points(known, column, settings.fold_effect)
                rows += [
                    {"map": name, "volume": volume, "unit": unit} | row
                    for row in _rows(paired, unit, joined(note, why), settings, rng)
                ]
    table = pd.DataFrame(rows, columns=[name for name in ASSOCIATION_COLUMNS if name not in ("p_fdr", "family")])
    return add_false_discovery_rate(table, ["volume", "unit", "estimator"], "maps")


def volume_association_tables(inputs: StatisticsInputs) -> Mapping[str, pd.DataFrame]:
    """Tables ``volume_points`` and ``volume_association``."""
    values, settings = inputs.values, inputs.config.statistics
    points = volume_points(values, inputs.scans)
    table = volume_association(points, values.maps, REGION in values.groups, settings, inputs.seed)
    return {"volume_points": inputs.as_named(points), "volume_association": table}


def _points(known: pd.DataFrame, column: str, hold: bool) -> tuple[Points, str | None]:
    """The points, and why fold is not held if it should be."""
    codes, _ = participant_codes(known["participant_id"].tolist())
    fold, why = fold_of_participants(known, hold, 2) if len(known) else (np.zeros(0, np.intp), None)
    return Points(known[column].to_numpy(float), known["relevance_sum"].to_numpy(float), codes, fold[codes]), why


def _note(own: pd.DataFrame, known: pd.DataFrame, column: str, has_region: bool) -> str | None:
    if not has_region:
        return f"the atlas has no bilateral group named {REGION}"
    if not len(own):
        return "no true-positive scan"
    if not len(known):
        missing = "hippocampal volume" if column == "hippocampus_mm3" else "hippocampal and intracranial volume"
        return joined(f"no true-positive scan has a known {missing}", *sorted(set(own["hippocampus_source"].dropna())))
    said = []
    if len(known) < len(own):
        said.append(f"{so_many(len(own) - len(known), 'true-positive scan')} without a known volume left out")
    sources = sorted(set(known["hippocampus_source"].dropna()))
    if len(sources) > 1:
        said.append(f"volumes of several sources are mixed: {', '.join(sources)}")
    elif sources and sources[0].startswith(JACOBIAN_SOURCE):
        said.append(f"volumes: {sources[0]}")
    return "; ".join(said) or None


def _rows(
    scans: Points, unit: str, note: str | None, settings: StatisticsConfig, rng: np.random.Generator
) -> list[dict[str, Any]]:
    points = _of_unit(scans, unit)
    counted = scans if unit == "participant" else points
    counts: dict[str, Any] = {"n_participants": counted.n_participants, "n_scans": len(counted.volume)}
    counts |= {"fold_held": bool(points.fold.any())}
    problem = _problem(points, "participants with several scans" if unit == WITHIN else "participants")
    empty = {"r": np.nan, "ci_low": np.nan, "ci_high": np.nan, "interval": NO_INTERVAL, "p": np.nan}
    if problem:
        said = note if len(scans.codes) == 0 else "; ".join(part for part in (problem, note) if part)
        blank = empty | counts | {"n_permutations": 0, "exact": False, "note": said}
        return [{"estimator": estimator} | blank for estimator in _estimators(unit)]
    tested = _flipped(points, settings.permutations, rng) if unit == WITHIN else _permuted(points, settings, rng)
    rows = []
    for estimator, test in tested.items():

        def statistic(weights: Floats, correlation: Any = ESTIMATORS[estimator]) -> Floats:
            result: Floats = correlation(points.volume, points.relevance, weights[:, points.codes])
            return result

        r = float(statistic(np.ones((1, points.n_participants)))[0])
        strata = [0] * points.n_participants
        interval = bootstrap_intervals(statistic, strata, settings.bootstrap_samples, settings.confidence, rng)
        row = {"r": r, "ci_low": interval.low[0], "ci_high": interval.high[0], "interval": interval.method[0], **counts}
        row |= test | {"note": joined(test["note"], note, *interval.notes)}
        rows.append({"estimator": estimator} | row)
    return rows


def _estimators(unit: str) -> Sequence[str]:
    return ("pearson",) if unit == WITHIN else tuple(ESTIMATORS)


def _of_unit(scans: Points, unit: str) -> Points:
    """What is correlated."""
    if not len(scans.codes):
        return scans
    if unit == WITHIN:
        return scans.within_participants()  # deviations from a person's own mean are deviations within the fold too
    return (scans.per_participant() if unit == "participant" else scans).within_folds()


_Tests = Mapping[str, dict[str, Any]]
"""By estimator: p, what it rests on, and a note where there is none."""


def _permuted(points: Points, settings: StatisticsConfig, rng: np.random.Generator) -> _Tests:
    """Participants change places within their fold, those with equally many rows."""
    exchange = Exchangeability.whole_participants(points.codes.tolist()).in_blocks(points.fold.tolist())
    permutations = exchange.permutations(settings.permutations, rng)
    test: dict[str, Any] = {"p": np.nan, "n_permutations": len(permutations), "exact": permutations.exact, "note": None}
    if len(permutations) == 1:
        test["note"] = "no two participants have equally many scans, so none can be exchanged"
        return dict.fromkeys(ESTIMATORS, test)
    found = {}
    for estimator, correlation in ESTIMATORS.items():
        r = correlation(points.volume, points.relevance, np.ones((1, len(points.codes))))[0]
        null = permuted_correlations(points.volume, points.relevance, permutations.rows, estimator)
        found[estimator] = test | {"p": float(two_sided_p(r, null, permutations.exact))}
    return found


def _flipped(points: Points, m: int, rng: np.random.Generator) -> _Tests:
    """A participant's deviations in relevance change signs together; r changes as the sum of products does."""
    products = np.bincount(points.codes, weights=points.volume * points.relevance).astype(float)[:, None]
    test = sign_flip_test(products, np.ones_like(products), m, rng)
    note = "relevance and volume change together in nobody" if np.isnan(test.p[0]) else None
    found = {"p": float(test.p[0]), "n_permutations": test.n_permutations, "exact": test.exact, "note": note}
    return {"pearson": found}


def _problem(points: Points, people: str) -> str | None:
    if points.n_participants < MIN_PARTICIPANTS:
        return f"{points.n_participants} {people}; at least {MIN_PARTICIPANTS} are needed"
    if is_constant(points.volume):
        return "the volume is constant"
    if is_constant(points.relevance):
        return "the relevance is constant"
    return None
