"""Change of relevance, model prediction and hippocampal volume over visits, and differences in change between groups.

Only repeated scans of a participant are informative; their number is in every row. All scans of a participant were
explained by the same network or networks, so change within a participant is on one scale; networks are a factor where
groups are compared (`pipeline.statistics.progression.permuted_change`). Groups are defined at the first scan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from heatlas.pipeline.run.columns import described
from heatlas.pipeline.run.config.statistics import StatisticsConfig
from heatlas.pipeline.run.declared import Inference, Table
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.members import course_of, first_visits, log_odds, networks_of, years_since_first
from heatlas.pipeline.statistics.data.notes import joined
from heatlas.pipeline.statistics.linear.fold_effect import EVEN, FOLD
from heatlas.pipeline.statistics.progression.permuted_change import ChangeTest, change_test
from heatlas.pipeline.statistics.resampling.correction_family import add_false_discovery_rate

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
    "estimate": "Change per year, in standard deviations of the response over all scans; a difference of groups in "
    f"relevance {EVEN}; n/a for group x time",
    "ci_low": "Lower bound of its interval, which excludes 0 exactly where p is at most 1 - confidence",
    **described("ci_high"),
    "statistic": "Of the slopes of participants: Hall's t for a slope, t for a difference (network held, one "
    "residual variance per group), F for group x time",
    "df": "Its degrees of freedom (Welch-Satterthwaite for differences)",
    "p": "Two-sided p over participants, (b+1)/(m+1) or exact: for a slope by flipping the signs of participants' "
    "slopes; for a difference and group x time by permuting participants, with all visits, between groups within "
    "networks",
    "p_fwe": "Family-wise p over the regions and maps known for the same scans (max-T); the note says if that is not "
    "all of them; n/a for other responses",
    **described("p_fdr", "family"),
    "n_participants": "Participants in the model",
    **described("n_scans"),
    "n_repeated": "Participants with two or more scans, which determine change",
    "n_three": "Participants with three or more scans, which determine the variance of change",
    "n_missing": "Scans left out: no value, no date, or a group with too few repeated scans",
    **described("note"),
}
TRAJECTORIES_TABLE = Table(
    "trajectories", TRAJECTORY_COLUMNS, "response and term", "How do scores and relevance change over visits?",
    inference=Inference(
        "exploratory", "all regions of one term and map (family-wise: of all maps), or the other responses"
    ),
)  # fmt: skip


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
    """All responses and terms; columns of `TRAJECTORY_COLUMNS`."""
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
    yield _Response("hippocampus/tiv", None, None, (frame["hippocampus_mm3"] / frame["tiv_mm3"]).to_numpy(float), False)
    values = inputs.all_scans.values
    for map_name in inputs.config.statistics.progression.trajectory_maps or values.maps[:1]:
        for g, group in enumerate(values.groups):
            known = map_name in values.maps
            column = values.sums[:, values.maps.index(map_name), g] if known else np.full(len(frame), np.nan)
            yield _Response(RELEVANCE, map_name, group, column)


class _Tests:
    """Tests of change, made once for all regions (or other responses) known of the same scans."""

    def __init__(self, frame: pd.DataFrame, responses: list[_Response], settings: StatisticsConfig, seed: int) -> None:
        self._frame, self._settings, self._seed = frame, settings, seed
        self._together: dict[tuple[bytes, str], list[_Response]] = {}
        for one in responses:
            if not np.isnan(one.values).all():
                self._together.setdefault(_family(one), []).append(one)
        self._found: dict[tuple[tuple[bytes, str], tuple[str, ...]], ChangeTest] = {}

    def row(self, response: _Response, groups: tuple[str, ...]) -> dict[str, Any]:
        """Test of change in one group, or of its difference between several."""
        key = _family(response), groups
        together = self._together[key[0]]
        if key not in self._found:
            self._found[key] = self._tested(together, groups)
        test, place = self._found[key], together.index(response)
        numbers = {"estimate": test.estimate, "ci_low": test.low, "ci_high": test.high, "statistic": test.statistic,
                   "df": test.df, "p": test.p, "p_fwe": test.p_fwe}  # fmt: skip
        found = {name: float(column[place]) for name, column in numbers.items()}
        if response.name != RELEVANCE:
            found["p_fwe"] = np.nan
        return found | {"note": test.notes[place]}

    def _tested(self, together: list[_Response], groups: tuple[str, ...]) -> ChangeTest:
        values = np.column_stack([one.values / one.spread for one in together])
        usable = self._frame["_years"].notna() & self._frame["_group"].isin(groups) & ~np.isnan(values[:, 0])
        rows = self._frame[usable].sort_values(["participant_id", "_years", "scan_id"])
        networks = rows["_network"] if together[0].of_network else pd.Series("", rows.index)
        codes = [pd.factorize(column)[0].astype(np.intp) for column in (rows["participant_id"], networks)]
        return change_test(
            values[rows.index],
            rows["_years"].to_numpy(float),
            codes[0],
            np.array([groups.index(name) for name in rows["_group"]], dtype=np.intp),
            codes[1],
            self._settings.permutations,
            generator(self._seed, "statistics", "trajectories", *groups),
            self._settings.confidence,
        )

    def note(self, response: _Response) -> str | None:
        """That the family of a region is not all of them."""
        several = sum(name == RELEVANCE for _, name in self._together) > 1
        return PARTIAL_FAMILY if several and response.name == RELEVANCE else None


def _family(response: _Response) -> tuple[bytes, str]:
    return np.isnan(response.values).tobytes(), response.name


def _rows(
    response: _Response, frame: pd.DataFrame, reference: str, settings: StatisticsConfig, tests: _Tests
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
    few = f"left out, fewer than {FEWEST_OF_A_GROUP} with repeated scans: {', '.join(small)}" if small else None
    if base["n_repeated"] < fewest or not groups:
        people = counted(base["n_repeated"], "participant")
        return [base | {"note": joined(f"{people} with repeated scans; at least {fewest} are needed", few)}]
    if np.ptp(known["_value"]) <= 1e-12 * np.abs(known["_value"]).max():
        return [base | {"note": "the response is constant"}]
    rows = []
    for term, of_term in _terms(groups):
        row = tests.row(response, of_term)
        if term == GROUP_BY_TIME:
            row |= {"estimate": np.nan, "ci_low": np.nan, "ci_high": np.nan}
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
