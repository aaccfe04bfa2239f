"""Change of relevance, model prediction and hippocampal volume over visits, and differences in change between groups.

Only repeated scans of a participant are informative; their number is in every row. All scans of a participant were
explained by the same network or networks, so change within a participant is on one scale; differences in level between
networks are fixed effects. Groups are defined at the first scan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pipeline.run.config.statistics import StatisticsConfig
from pipeline.run.declared import Table
from pipeline.run.plain_text import counted
from pipeline.run.work.seeds import generator
from pipeline.statistics.arrays import Floats
from pipeline.statistics.data.inputs import StatisticsInputs
from pipeline.statistics.data.visits import course_of, first_visits, log_odds, networks_of, years_since_first
from pipeline.statistics.linear.fold_effect import FOLD
from pipeline.statistics.progression.mixed_model import Slopes, slopes_by_group
from pipeline.statistics.progression.permuted_change import ChangeTest, change_test
from pipeline.statistics.resampling.correction_family import add_false_discovery_rate

RELEVANCE = "relevance"
GROUP_BY_TIME = "group x time"
PARTIAL_FAMILY = "p_fwe covers only the regions and maps known for the same scans"
FEWEST_OF_A_GROUP = 3
"""Smallest number of participants with repeated scans in a group with a slope."""

TRAJECTORY_COLUMNS = {
    "response": "model: log odds of the positive class; hippocampus/tiv; or relevance: sum of a map over a bilateral "
    "group of regions",
    "map": "Relevance map; n/a for other responses",
    "group": "Bilateral group of regions; n/a for other responses",
    "term": "slope GROUP: change per year in a group; GROUP - OTHER: difference of two slopes; group x time: "
    "equality of all slopes. Groups are defined at the first scan: diagnosis, with MCI divided by outcome",
    "estimate": "Change per year, in standard deviations of the response over all scans; n/a for group x time",
    "ci_low": "Lower bound of the interval from the mixed model, which assumes the same variance of change in all "
    "groups (a 95 % interval misses in 6 % of data sets with 24 participants, but in 15 % for the slope of 8 "
    "participants who vary twice as much as 16 others); n/a if the model did not converge",
    "ci_high": "Upper bound of the interval",
    "statistic": "t of the mixed model (Wald, REML), or F for group x time; not used for p",
    "df": "Denominator degrees of freedom: participants with repeated scans minus groups",
    "p": "Two-sided p from resampling participants, (b+1)/(m+1) or exact: for a slope by flipping the signs of "
    "participants' slopes (against zero mean change); for a difference and group x time by permuting participants, "
    "with all visits, between groups (one variance per group)",
    "p_fwe": "Family-wise p over the regions and maps known for the same scans (max-T); the note says if that is not "
    "all of them; n/a for other responses",
    "p_fdr": "p adjusted for the false discovery rate over the family (Benjamini-Hochberg)",
    "family": "Family of tests that p_fdr is adjusted over",
    "random_effects": "Random effects per participant: intercept and slope, intercept, or none; or not converged",
    "n_participants": "Participants in the model",
    "n_scans": "Scans of these participants",
    "n_repeated": "Participants with two or more scans, which determine change",
    "n_three": "Participants with three or more scans, which determine the variance of change",
    "n_missing": "Scans left out: no value, no date, or a group with too few repeated scans",
    "note": "Why there is no value, or a caveat",
}
TRAJECTORIES_TABLE = Table(
    "trajectories", TRAJECTORY_COLUMNS, "response and term", "How do scores and relevance change over visits?",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Response:
    name: str
    map: str | None
    group: str | None
    values: Floats


def trajectory_table(inputs: StatisticsInputs) -> pd.DataFrame:
    """All responses and terms; columns of `TRAJECTORY_COLUMNS`."""
    settings = inputs.config.statistics
    frame = _visits(inputs)
    rows = []
    responses = list(_responses(inputs, frame))
    permuted = _Permuted(frame, responses, settings.permutations, inputs.seed)
    for response in responses:
        rows += _rows(response, frame, inputs.config.cohort.negative, settings, permuted)
        if rows[0]["n_repeated"] < settings.progression.min_participants and response.name == "model":
            break  # every scan has a prediction, so no other response has more visits; one row is enough
    table = pd.DataFrame(rows)
    kinds = np.where(table["map"].isna(), "responses", "regions")
    table = table.astype({"df": "Int64"}).assign(_kind=kinds, _map=table["map"].fillna(""))
    parts = [
        add_false_discovery_rate(part, ["term", "_map"], str(kind), "p")
        for kind, part in table.groupby("_kind", sort=False)
    ]
    return pd.concat(parts).sort_index()[list(TRAJECTORY_COLUMNS)]


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
    yield _Response("hippocampus/tiv", None, None, (frame["hippocampus_mm3"] / frame["tiv_mm3"]).to_numpy(float))
    values = inputs.all_scans.values
    for map_name in inputs.config.statistics.progression.trajectory_maps or values.maps[:1]:
        for g, group in enumerate(values.groups):
            known = map_name in values.maps
            column = values.sums[:, values.maps.index(map_name), g] if known else np.full(len(frame), np.nan)
            yield _Response(RELEVANCE, map_name, group, column)


class _Permuted:
    """Permutation tests of change, shared by all regions (or other responses) known for the same scans."""

    def __init__(self, frame: pd.DataFrame, responses: list[_Response], m: int, seed: int) -> None:
        self._frame, self._m, self._seed = frame, m, seed
        self._together: dict[tuple[bytes, bool], list[_Response]] = {}
        for one in responses:
            if not np.isnan(one.values).all():
                self._together.setdefault(_family(one), []).append(one)
        self._found: dict[tuple[tuple[bytes, bool], tuple[str, ...]], ChangeTest] = {}

    def p(self, response: _Response, groups: tuple[str, ...]) -> dict[str, float]:
        """P of change in one group, or of its difference between several."""
        key = _family(response), groups
        together = self._together[key[0]]
        if key not in self._found:
            usable = self._frame["_years"].notna() & self._frame["_group"].isin(groups) & ~np.isnan(response.values)
            rows = self._frame[usable].sort_values(["participant_id", "_years", "scan_id"])
            self._found[key] = change_test(
                np.column_stack([one.values[rows.index] for one in together]),
                rows["_years"].to_numpy(float),
                pd.factorize(rows["participant_id"])[0].astype(np.intp),
                np.array([groups.index(name) for name in rows["_group"]], dtype=np.intp),
                self._m,
                generator(self._seed, "statistics", "trajectories", *groups),
            )
        place = together.index(response)
        family = response.name == RELEVANCE
        return {
            "p": float(self._found[key].p[place]),
            "p_fwe": float(self._found[key].p_fwe[place]) if family else np.nan,
        }

    def note(self, response: _Response) -> str | None:
        """A note if the family of a region does not include all regions."""
        several = sum(relevance for _, relevance in self._together) > 1
        return PARTIAL_FAMILY if several and response.name == RELEVANCE else None


def _family(response: _Response) -> tuple[bytes, bool]:
    return np.isnan(response.values).tobytes(), response.name == RELEVANCE


def _rows(
    response: _Response, frame: pd.DataFrame, reference: str, settings: StatisticsConfig, permuted: _Permuted
) -> list[dict[str, Any]]:
    known = frame.assign(_value=response.values)
    known = known[known["_value"].notna() & known["_years"].notna() & known["_group"].notna()]
    repeated = known.groupby("participant_id")["_value"].transform("size") > 1
    of_group = known[repeated].groupby("_group")["participant_id"].nunique()
    groups = [str(name) for name, count in of_group.items() if count >= FEWEST_OF_A_GROUP]
    small = [str(name) for name in pd.unique(known["_group"]) if name not in groups]
    known = known[known["_group"].isin(groups)]
    groups.sort(key=lambda name: (name != reference, name))
    visits = known.groupby("participant_id").size()
    base: dict[str, Any] = dict.fromkeys(TRAJECTORY_COLUMNS) | {
        "response": response.name, "map": response.map, "group": response.group, "estimate": np.nan,
        "p": np.nan, "p_fwe": np.nan, "n_participants": len(visits), "n_scans": len(known),
        "n_repeated": int((visits > 1).sum()), "n_three": int((visits > 2).sum()), "n_missing": len(frame) - len(known),
    }  # fmt: skip
    fewest = settings.progression.min_participants
    notes = [f"left out, fewer than {FEWEST_OF_A_GROUP} with repeated scans: {', '.join(small)}"] if small else []
    if base["n_repeated"] < fewest or not groups:
        people = counted(base["n_repeated"], "participant")
        why = f"{people} with repeated scans; {fewest} are needed to follow change over visits"
        return [base | {"note": "; ".join([why, *notes])}]
    if np.ptp(known["_value"]) <= 1e-12 * np.abs(known["_value"]).max():
        return [base | {"note": "the response is constant"}]
    if base["n_three"] < fewest:
        notes.append(
            f"no random slope: {counted(base['n_three'], 'participant')} with three or more scans; {fewest} are needed"
        )
    slopes = _fitted(known, groups, base["n_three"] >= fewest)
    if isinstance(slopes, str):
        return [base | {"note": "; ".join([slopes, *notes])}]
    base |= {"random_effects": slopes.random, "df": slopes.df}
    base["note"] = "; ".join(filter(None, [slopes.note, *notes, permuted.note(response)])) or None
    return [base | row | permuted.p(response, names) for names, row in _terms(slopes, groups, settings.confidence)]


def _fitted(known: pd.DataFrame, groups: list[str], random_slope: bool) -> Slopes | str:
    value = known["_value"].to_numpy(float)
    value = (value - value.mean()) / value.std(ddof=1)
    group = np.array([groups.index(name) for name in known["_group"]], dtype=np.intp)
    participant = pd.factorize(known["participant_id"])[0].astype(np.intp)
    levels = _network_levels(known["_network"], np.eye(len(groups))[group])
    return slopes_by_group(value, known["_years"].to_numpy(float), group, participant, levels, random_slope)


def _network_levels(network: pd.Series, groups: Floats) -> Floats:
    """Indicator columns of networks, without those collinear with groups and other networks."""
    kept = groups
    for name in sorted(network.unique()):
        wider = np.column_stack([kept, (network == name).to_numpy(float)])
        kept = wider if np.linalg.matrix_rank(wider) > kept.shape[1] else kept
    return kept[:, groups.shape[1] :]


def _terms(
    slopes: Slopes, groups: list[str], confidence: float
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:  # fmt: skip
    """Rows of all terms, each with the groups that it concerns."""
    unit = np.eye(len(groups))
    contrasts: dict[str, tuple[tuple[str, ...], Floats]] = {
        f"slope {name}": ((name,), unit[i]) for i, name in enumerate(groups)
    }
    for i, name in enumerate(groups):
        contrasts |= {f"{name} - {other}": ((name, other), unit[i] - unit[j]) for j, other in enumerate(groups[:i])}
    for term, (compared, weights) in contrasts.items():
        value, low, high, t = slopes.contrast(weights, confidence)
        yield compared, {"term": term, "estimate": value, "ci_low": low, "ci_high": high, "statistic": t}
    if len(groups) > 1:
        yield tuple(groups), {"term": GROUP_BY_TIME, "statistic": slopes.equal_slopes()}
