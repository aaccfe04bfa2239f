"""Change of relevance, model prediction and hippocampal volume over visits, and differences in change between groups.

All scans of a participant were explained by the same network or networks, so change within one is on one scale. Each
participant with repeated scans has one least-squares slope; tests and intervals are over participants, in groups
defined at the first scan.

- *Mean change of a group*: the signs of the slopes are flipped (`pipeline.statistics.resampling.means`), weighted by
  the inverse of their variance. To exchange visits within participants would test that nobody changes instead (10.8 %
  rejections at 5 % where people change at random about zero).
- *Difference in change between groups*: a linear model of the slopes on group, with the network as a factor, since
  networks differ in scale; participants are permuted within networks. Rows are weighted by the reliability of the
  slope, and each group has a residual variance of its own.

This equals the mixed model with a random slope in balanced data and needs no convergence. statsmodels' MixedLM missed
in 15 of 100 intervals where groups vary unequally, and contradicted the permutation p beside them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from heatlas.pipeline.run.config.statistics import StatisticsConfig
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Floats, Indices, Resampling
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.members import course_of, first_visits, log_odds, networks_of, years_since_first
from heatlas.pipeline.statistics.data.values import joined, participant_means
from heatlas.pipeline.statistics.linear.fold_effect import FOLD, centred_within, model_within_folds
from heatlas.pipeline.statistics.linear.freedman_lane import freedman_lane
from heatlas.pipeline.statistics.linear.permutations import add_false_discovery_rate
from heatlas.pipeline.statistics.resampling.means import FEW_VALUES, VERY_SKEWED, sign_flip_test, skewed_and_few

SAME_TIME = 1e-9
"""Sum of squared deviations of years from their mean below which a participant's visits count as simultaneous."""
ROUNDING = 1e-12
"""Deviation from a participant's mean, relative to the largest value of the column, that counts as zero."""
DIFFERENT_NETWORKS = (
    "the groups were explained by different networks, whose scales cannot be distinguished from a difference in change"
)
NO_CHANGE = "nobody's values change over visits"
SKEWED = f"slopes are skewed (above {VERY_SKEWED:g}) and fewer than {FEW_VALUES}: p is too small"


@dataclass(frozen=True, eq=False)
class ParticipantSlopes:
    """Least-squares lines of the participants with visits at different times.

    Shapes: slopes (participants, columns); squares (participants,), the sum of squared deviations of years from their
    mean: the variance of a slope is that between participants + noise / squares; noise (columns,), pooled residual
    variance, NaN if no one has three visits; group and network (participants,).
    """

    slopes: Floats
    squares: Floats
    noise: Floats
    group: Indices
    network: Indices

    @property
    def weights(self) -> Floats:
        """Inverse variances of the slopes about zero, in arbitrary units, shape (participants, columns).

        The variance between participants is the moment estimate of DerSimonian and Laird (1986) about a mean of zero,
        which depends on squares only, so sign flips do not change it. Equal weights if no one has three visits.
        """
        return self._inverse_variances(self.slopes, len(self.slopes))

    @property
    def reliability(self) -> Floats:
        """Weights of the participants that serve all columns: the median of those about the means of networks."""
        centred = centred_within(self.slopes, self.network)
        weights = self._inverse_variances(centred, len(centred) - len(np.unique(self.network)))
        common: Floats = np.median(weights / weights.mean(axis=0), axis=1)
        return common

    def _inverse_variances(self, deviations: Floats, df: int) -> Floats:
        squares = self.squares[:, None]
        if np.isnan(self.noise).all():
            return np.ones_like(self.slopes)
        excess = (deviations**2 * squares).sum(axis=0) - df * self.noise
        between = np.maximum(excess, 0.0) / self.squares.sum()
        variance = between * squares + self.noise
        weights: Floats = squares / np.where(variance > 0, variance, 1.0)  # 0 only if all slopes are 0
        return weights


@dataclass(frozen=True, eq=False)
class ChangeTest:
    """Result of every column, each of shape (columns,); NaN where there is none, and why in `notes`.

    `estimate` is a change per year, or a difference of two groups; p_fwe is family-wise over the columns (max-T).
    """

    estimate: Floats
    low: Floats
    high: Floats
    statistic: Floats
    df: Floats
    p: Floats
    p_fwe: Floats
    notes: tuple[str | None, ...]

    @classmethod
    def absent(cls, columns: int, why: str | None) -> ChangeTest:
        nothing = np.full(columns, np.nan)
        return cls(nothing, nothing, nothing, nothing, nothing, nothing, nothing, (why,) * columns)


def change_test(
    values: Floats, years: Floats, participant: Indices, group: Indices, network: Indices, resampling: Resampling
) -> ChangeTest:
    """Test of mean change over years in one group, or of a difference in change between several.

    values (scans, columns); years, participant, group and network (scans,), one group and network per participant.
    With two groups the estimate is that of group 1 less that of group 0 (the larger number less the smaller); with
    more, an F test without an estimate.
    """
    lines = participant_slopes(values, years, participant, group, network)
    if len(lines.slopes) < 2:
        return ChangeTest.absent(values.shape[1], "fewer than two participants with visits at different times")
    if np.ptp(group) == 0:
        flips = sign_flip_test(lines.slopes, lines.weights, resampling.m, resampling.rng, resampling.confidence)
        skewed = skewed_and_few(flips.skewness, len(lines.slopes))
        notes = tuple(
            NO_CHANGE if np.isnan(p) else SKEWED if is_skewed else None
            for p, is_skewed in zip(flips.p, skewed.tolist(), strict=True)
        )
        df = np.full(values.shape[1], float(len(lines.slopes) - 1))
        return ChangeTest(flips.estimate, flips.low, flips.high, flips.statistic, df, flips.p, flips.p_fwe, notes)
    frame = pd.DataFrame({"group": [f"group {number}" for number in lines.group], FOLD: lines.network})
    groups = frame["group"].tolist()
    try:
        model = model_within_folds("group", "group", frame, True, groups)
        root = np.sqrt(lines.reliability)[:, None]
        root_of_rows, design = root[model.design.rows], model.design
        weighted = {"tested": design.tested * root_of_rows, "nuisance": design.nuisance * root_of_rows}
        design = dataclasses.replace(design, **weighted)
        test = freedman_lane(lines.slopes * root, design, model.exchange, resampling, groups)
    except BadInputError as error:  # a group has too few participants for a variance, or one network only
        why = DIFFERENT_NETWORKS if "collinear" in str(error) else str(error).replace(FOLD, "network")
        return ChangeTest.absent(values.shape[1], why)
    of_design = (model.design.note or "").replace(FOLD, "network") or None
    notes = tuple(joined(problem, of_design) for problem in test.problems)
    return ChangeTest(test.estimate, test.low, test.high, test.statistic, test.df, test.p, test.p_fwe, notes)


def participant_slopes(
    values: Floats, years: Floats, participant: Indices, group: Indices, network: Indices
) -> ParticipantSlopes:
    """Fit a line to the visits of each participant; values of shape (scans, columns)."""
    first, codes, visits = np.unique(participant, return_index=True, return_inverse=True, return_counts=True)[1:]
    means = participant_means(np.column_stack([years, values]), codes)[codes]
    time, centred = years - means[:, 0], values - means[:, 1:]
    centred[np.abs(centred) <= ROUNDING * np.abs(values).max(axis=0, initial=0.0)] = 0.0
    squares: Floats = np.bincount(codes, weights=time**2).astype(float)
    products, total = np.zeros((2, len(first), values.shape[1]))
    np.add.at(products, codes, time[:, None] * centred)
    np.add.at(total, codes, centred**2)
    varies = squares > SAME_TIME
    slopes = products[varies] / squares[varies, None]
    left = np.maximum(total[varies] - slopes**2 * squares[varies, None], 0.0)
    degrees = int((visits[varies] - 2).sum())
    noise = left.sum(axis=0) / degrees if degrees else np.full(values.shape[1], np.nan)
    return ParticipantSlopes(slopes, squares[varies], noise, group[first][varies], network[first][varies])


RELEVANCE = "relevance"
GROUP_BY_TIME = "group x time"
PARTIAL_FAMILY = "p_fwe covers only the regions and maps known for the same scans"
FEWEST_OF_A_GROUP = 3
"""Smallest number of participants with repeated scans in a group with a slope."""

TRAJECTORIES_TABLE = declared("trajectories", __file__)


@dataclass(frozen=True, eq=False)
class _Response:
    name: str
    map: str | None
    group: str | None
    values: Floats
    of_network: bool = True

    @property
    def spread(self) -> float:
        """Standard deviation over all scans; 1 if there is none."""
        spread = float(np.nanstd(self.values, ddof=1))
        return spread if spread > 0 else 1.0


def trajectory_table(inputs: StatisticsInputs) -> pd.DataFrame:
    settings = inputs.config.statistics
    frame = _visits(inputs)
    rows = []
    responses = list(_responses(inputs, frame))
    tests = _Tests(frame, responses, settings, inputs.seed)
    for response in responses:
        rows += _rows(response, frame, inputs.config.cohort.negative, settings, tests)
        if rows[0]["n_repeated"] < settings.progression.min_participants and response.name == "model":
            break  # every scan has a prediction, so no other response has more visits; one row is enough
    table = pd.DataFrame(rows)
    kinds = np.where(table["map"].isna(), "responses", "regions")
    table = table.assign(_kind=kinds, _map=table["map"].fillna(""))
    parts = [
        add_false_discovery_rate(part, ["term", "_map"], str(kind), "p")
        for kind, part in table.groupby("_kind", sort=False)
    ]
    return pd.concat(parts).sort_index()[list(TRAJECTORIES_TABLE.meanings)]


def _visits(inputs: StatisticsInputs) -> pd.DataFrame:
    """All scans, those of the contrast first, with years, group at the first scan, and network."""
    scans = inputs.all_scans
    frame, labelled = scans.frame, scans.labelled
    network = pd.concat([networks_of(frame[labelled], FOLD), networks_of(frame[~labelled])])
    frame = frame.assign(_network=network, _years=years_since_first(frame))
    first = first_visits(frame).set_index("participant_id")
    return frame.assign(_group=frame["participant_id"].map(course_of(first)))


def _responses(inputs: StatisticsInputs, frame: pd.DataFrame) -> Iterator[_Response]:
    yield _Response("model", None, None, log_odds(frame))
    yield _Response("hippocampus/tiv", None, None, (frame["hippocampus_mm3"] / frame["tiv_mm3"]).to_numpy(float), False)
    values = inputs.all_scans.values
    for map_name in inputs.config.statistics.progression.trajectory_maps or values.maps[:1]:
        for g, group in enumerate(values.groups):
            has_map = map_name in values.maps
            column = values.sums[:, values.maps.index(map_name), g] if has_map else np.full(len(frame), np.nan)
            yield _Response(RELEVANCE, map_name, group, column)


_OF_TEST = ("estimate", "statistic", "df", "p", "p_fwe")


class _Tests:
    """Tests of change, made once for all regions (or other responses) known of the same scans."""

    def __init__(self, frame: pd.DataFrame, responses: list[_Response], settings: StatisticsConfig, seed: int) -> None:
        self._frame, self._settings, self._seed = frame, settings, seed
        self._together: dict[tuple[bytes, str], list[_Response]] = {}
        for response in responses:
            if not np.isnan(response.values).all():
                self._together.setdefault(_family(response), []).append(response)
        self._found: dict[tuple[tuple[bytes, str], tuple[str, ...]], ChangeTest] = {}

    def row(self, response: _Response, groups: tuple[str, ...]) -> dict[str, Any]:
        """Test of change in one group, or of its difference between several."""
        key = _family(response), groups
        together = self._together[key[0]]
        if key not in self._found:
            self._found[key] = self._tested(together, groups)
        test, place = self._found[key], together.index(response)
        names = {"ci_low": "low", "ci_high": "high"} | {name: name for name in _OF_TEST}
        cells = {column: float(getattr(test, name)[place]) for column, name in names.items()}
        if response.name != RELEVANCE:
            cells["p_fwe"] = np.nan
        return cells | {"note": test.notes[place]}

    def _tested(self, together: list[_Response], groups: tuple[str, ...]) -> ChangeTest:
        values = np.column_stack([response.values / response.spread for response in together])
        usable = self._frame["_years"].notna() & self._frame["_group"].isin(groups) & ~np.isnan(values[:, 0])
        rows = self._frame[usable].sort_values(["participant_id", "_years", "scan_id"])
        networks = rows["_network"] if together[0].of_network else pd.Series("", rows.index)
        codes = [pd.factorize(column)[0].astype(np.intp) for column in (rows["participant_id"], networks)]
        group = np.array([groups.index(name) for name in rows["_group"]], dtype=np.intp)
        resampling = Resampling.orders(self._settings, generator(self._seed, "statistics", "trajectories", *groups))
        years = rows["_years"].to_numpy(float)
        return change_test(values[rows.index], years, codes[0], group, codes[1], resampling)

    def note(self, response: _Response) -> str | None:
        """That the family of a region is not all of them."""
        several = sum(name == RELEVANCE for _, name in self._together) > 1
        return PARTIAL_FAMILY if several and response.name == RELEVANCE else None


def _family(response: _Response) -> tuple[bytes, str]:
    return np.isnan(response.values).tobytes(), response.name


def _rows(
    response: _Response, frame: pd.DataFrame, reference: str, settings: StatisticsConfig, tests: _Tests
) -> list[dict[str, Any]]:
    scans = frame.assign(_value=response.values)
    scans = scans[scans["_value"].notna() & scans["_years"].notna() & scans["_group"].notna()]
    repeated = scans.groupby("participant_id")["_value"].transform("size") > 1
    of_group = scans[repeated].groupby("_group")["participant_id"].nunique()
    groups = [str(name) for name, count in of_group.items() if count >= FEWEST_OF_A_GROUP]
    small = [str(name) for name in pd.unique(scans["_group"]) if name not in groups]
    scans = scans[scans["_group"].isin(groups)]
    groups.sort(key=lambda name: (name != reference, name))
    visits = scans.groupby("participant_id").size()
    base: dict[str, Any] = dict.fromkeys(TRAJECTORIES_TABLE.meanings)
    base |= {"response": response.name, "map": response.map, "group": response.group}
    base |= dict.fromkeys(("estimate", "p", "p_fwe"), np.nan)
    base |= {"n_participants": len(visits), "n_scans": len(scans), "n_missing": len(frame) - len(scans)}
    base |= {"n_repeated": int((visits > 1).sum()), "n_three": int((visits > 2).sum())}
    fewest = settings.progression.min_participants
    few = f"left out, fewer than {FEWEST_OF_A_GROUP} with repeated scans: {', '.join(small)}" if small else None
    if base["n_repeated"] < fewest or not groups:
        people = counted(base["n_repeated"], "participant")
        return [base | {"note": joined(f"{people} with repeated scans; at least {fewest} are needed", few)}]
    if np.ptp(scans["_value"]) <= 1e-12 * np.abs(scans["_value"]).max():
        return [base | {"note": "the response is constant"}]
    rows = []
    for term, of_term in _terms(groups):
        row = tests.row(response, of_term)
        if term == GROUP_BY_TIME:
            row |= dict.fromkeys(("estimate", "ci_low", "ci_high"), np.nan)
            row["statistic"] = row["statistic"] ** 2 if len(groups) == 2 else row["statistic"]
        rows.append(base | row | {"term": term, "note": joined(row["note"], few, tests.note(response))})
    return rows


def _terms(groups: list[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """All terms, each with the groups it is about; of a difference, the one that is subtracted first."""
    yield from ((f"slope {name}", (name,)) for name in groups)
    for i, name in enumerate(groups):
        yield from ((f"{name} - {other}", (other, name)) for other in groups[:i])
    if len(groups) > 1:
        yield GROUP_BY_TIME, tuple(groups)
