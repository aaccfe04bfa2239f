"""How far networks agree: formulas, and the tables of the consensus.

First come the formulas: how far rankings of regions agree, and whether a score rises with accuracy. Then the tables:
pairs of sets of networks, the sets themselves, and regions over all sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from heatlas.pipeline.evaluation.bench.judging import class_difference
from heatlas.pipeline.evaluation.scores.accuracy import DRAWS, Floats, participant_interval
from heatlas.pipeline.evaluation.scores.localisation import (
    FIRST,
    LEVEL,
    NO,
    UNKNOWN,
    YES,
    rank_correlation,
    ranked,
    region_scores,
)
from heatlas.pipeline.run.work.seeds import generator
from heatlas.studies.tables import declared

MOST_EXACT = 8
"""Networks up to which every order is tried; 40320."""
ORDERS = 20000
"""Random orders of more networks."""


def places(values: Floats) -> Floats:
    """Place of each region, 1 for the largest value; ties share the mean, regions without a value come last.

    Examples
    --------
    >>> places(np.array([0.0, 5.0, np.nan, 5.0])).tolist()
    [3.0, 1.5, 4.0, 1.5]
    """
    return np.asarray(stats.rankdata(-ranked(values)), dtype=np.float64)


def agreement(first: Floats, second: Floats) -> float:
    """Rank correlation over the regions that have a value in both; NaN with fewer than three, or without order."""
    known = np.isfinite(first) & np.isfinite(second)
    return rank_correlation(first[known], second[known])


def shared_first(first: Floats, second: Floats, count: int = FIRST) -> float:
    """How many regions are among the first of both rankings; a ranking without any value has none.

    Examples
    --------
    >>> shared_first(np.array([3.0, 2.0, 1.0, 0.0]), np.array([3.0, 0.0, 2.0, 1.0]), 2)
    1.0
    """
    return float((in_first(first, count) & in_first(second, count)).sum())


def in_first(values: Floats, count: int = FIRST) -> NDArray[np.bool_]:
    """Which regions are among the first; of regions tied at the end of the list, those that come first in the atlas."""
    known = np.isfinite(values)
    chosen = np.zeros(len(values), bool)
    chosen[np.argsort(-ranked(values), kind="stable")[: min(count, int(known.sum()))]] = True
    return chosen


def consensus(rankings: Sequence[Floats], count: int = FIRST) -> tuple[Floats, Floats]:
    """Mean place of each region over networks, and the share of networks that have it among the first.

    Examples
    --------
    >>> mean, share = consensus([np.array([2.0, 1.0, 0.0]), np.array([2.0, 0.0, 1.0])], 1)
    >>> mean.tolist(), share.tolist()
    ([1.0, 2.5, 2.5], [1.0, 0.0, 0.0])
    """
    return (
        np.mean([places(values) for values in rankings], axis=0),
        np.mean([in_first(values, count) for values in rankings], axis=0),
    )


@dataclass(frozen=True)
class Trend:
    """Rank correlation of a score with accuracy over sets of networks, and its permutation p, two-sided."""

    n: int
    rho: float
    p: float

    @property
    def answer(self) -> str:
        if np.isnan(self.p) or self.p >= LEVEL:
            return UNKNOWN
        return YES if self.rho > 0 else NO


def trend(accuracy: Floats, score: Floats, seed: int) -> Trend:
    """Spearman's rho and its exact p; of more than `MOST_EXACT` networks by random orders.

    Networks without a score are left out. The p is exact if networks are exchangeable; those of a run share people and
    folds, so it says something about these people only.

    Examples
    --------
    >>> trend(np.arange(5.0), np.arange(5.0), 0)  # 2 of 120 orders
    Trend(n=5, rho=1.0, p=0.016666666666666666)
    """
    known = np.isfinite(accuracy) & np.isfinite(score)
    x, y = stats.rankdata(accuracy[known]), stats.rankdata(score[known])
    n = len(x)
    if n < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return Trend(n, float("nan"), float("nan"))
    x, y = x - x.mean(), y - y.mean()
    exact, random = n <= MOST_EXACT, generator(seed, "trend")
    orders = np.array(list(permutations(range(n))) if exact else [random.permutation(n) for _ in range(ORDERS)])
    size = np.sqrt((x @ x) * (y @ y))
    rho = float(x @ y / size)
    extreme = np.abs(y[orders] @ x) / size >= abs(rho) - 1e-12
    return Trend(n, rho, float(extreme.mean() if exact else (extreme.sum() + 1) / (ORDERS + 1)))


OWN, SEED, EPOCHS, FAMILY = "own", "seed", "epochs", "family"
"""Kinds of sets: the run's own networks, and in what the others differ from them."""
FOLDS, SEVERAL = "folds", "several"
CONSENSUS_TABLE = declared("consensus", FIRST=FIRST)
NETWORKS_TABLE = declared("consensus_networks", FIRST=FIRST)
REGIONS_TABLE = declared("consensus_regions", FIRST=FIRST)
CONSENSUS_TABLES = (CONSENSUS_TABLE, NETWORKS_TABLE, REGIONS_TABLE)


@dataclass(frozen=True, eq=False)
class Evidence:
    """One map by one set of networks, and how accurate these are.

    `networks`, `kind`: as of `studies.consensus.stage.Networks`. `densities`: per participant and class. `paired`:
    whether everyone has a copy of either class.
    """

    networks: str
    kind: str
    densities: pd.DataFrame
    paired: bool
    accuracy: Mapping[str, float]
    n_undefined: int = 0

    @property
    def difference(self) -> Floats:
        return class_difference(self.densities, self.paired)

    @property
    def of_folds(self) -> dict[int, Floats]:
        """The difference between the classes in each fold."""
        folds = self.densities.index.get_level_values("fold")
        return {fold: class_difference(self.densities[folds == fold], self.paired) for fold in sorted(set(folds))}


def pair_rows(found: Sequence[Evidence], seed: int) -> list[dict[str, object]]:
    """Rows of ``consensus.tsv`` of one map: folds of the run's own networks, then all pairs of sets."""
    rows: list[dict[str, object]] = []
    # none where the method is not defined for the run's family
    for of_run in (one for one in found if one.kind == OWN):
        for (first, values), (second, others) in combinations(of_run.of_folds.items(), 2):
            names = {"differ_in": FOLDS, "first_networks": f"fold-{first}", "second_networks": f"fold-{second}"}
            rows.append(names | _ranking_agreement(values, others))
    for one, other in combinations(found, 2):
        kinds = {one.kind, other.kind} - {OWN}
        row: dict[str, object] = {"differ_in": kinds.pop() if len(kinds) == 1 else SEVERAL}
        row |= {"first_networks": one.networks, "second_networks": other.networks}
        both = one.densities.index.intersection(other.densities.index, sort=False)
        pairs = zip(one.densities.loc[both].to_numpy(float), other.densities.loc[both].to_numpy(float), strict=True)
        alike = pd.Series([agreement(a, b) for a, b in pairs], index=both.get_level_values("participant_id"))
        of_people = np.asarray(alike.groupby(level=0, sort=False).mean().dropna(), dtype=np.float64)
        low, high = participant_interval((of_people,), np.mean, DRAWS, seed)
        row |= _ranking_agreement(one.difference, other.difference)
        row |= {"map_spearman": float(of_people.mean()) if len(of_people) else np.nan, "map_spearman_low": low}
        rows.append(row | {"map_spearman_high": high, "n_participants": len(of_people)})
    return rows


def _ranking_agreement(first: Floats, second: Floats) -> dict[str, object]:
    length = min(FIRST, len(first))
    return {
        "region_spearman": agreement(first, second),
        "shared_first": shared_first(first, second),
        "shared_first_expected": length * length / len(first),
        "n_groups": len(first),
    }


def network_rows(found: Sequence[Evidence], planted: Sequence[str]) -> list[dict[str, object]]:
    differences = [one.difference for one in found]
    rows = []
    for place, (one, values) in enumerate(zip(found, differences, strict=True)):
        others = [agreement(values, other) for number, other in enumerate(differences) if number != place]
        known = [value for value in others if np.isfinite(value)]
        groups = np.array(one.densities.columns)
        ordered = groups[np.argsort(places(values), kind="stable")]
        row: dict[str, object] = {"networks": one.networks, "kind": one.kind, **one.accuracy}
        row["n_participants"] = one.densities.index.get_level_values("participant_id").nunique()
        row |= {"n_undefined": one.n_undefined, "agreement": float(np.mean(known)) if known else np.nan}
        row["in_consensus"] = one.kind != EPOCHS
        row["first_groups"] = "; ".join(ordered[: int(in_first(values).sum())]) or None
        if len(planted):
            truth = np.isin(groups, planted)
            scores = region_scores(values, truth.tolist())
            row |= {"auroc_difference": scores["auroc"], "hits_difference": scores["hits"], "n_planted": truth.sum()}
        rows.append(row)
    return rows


def region_rows(found: Sequence[Evidence], planted: Sequence[str]) -> list[dict[str, object]]:
    """Rows of ``consensus_regions.tsv`` of one map, best first; none if no set that counts has a ranking."""
    counted = [values for one in found if one.kind != EPOCHS and np.isfinite(values := one.difference).any()]
    if not counted:
        return []
    groups = list(found[0].densities.columns)
    mean, share = consensus(counted)
    place = places(-mean)
    return [
        {
            "group": groups[number], "place": place[number], "mean_place": mean[number], "first_share": share[number],
            "n_networks": len(counted), "is_planted": groups[number] in planted if len(planted) else None,
        }
        for number in np.argsort(place, kind="stable")
    ]  # fmt: skip


def better_line(name: str, rows: pd.DataFrame, seed: int) -> str:
    """Whether better classifiers give better evidence by one map, as printed; `rows`: of ``consensus_networks.tsv``."""
    of = {"AUROC of planted regions": "auroc_difference", "agreement with other networks": "agreement"}
    accuracy = rows["balanced_accuracy"].to_numpy(float)
    trends = {title: trend(accuracy, rows[column].to_numpy(float), seed) for title, column in of.items()}
    known = [(title, one) for title, one in trends.items() if np.isfinite(one.p)]
    answer = known[0][1].answer if known else "not known"
    numbers = "; ".join(f"{title}: rho {one.rho:.2f}, p = {one.p:.2g}" for title, one in known)
    balanced = rows["balanced_accuracy"]
    range_of = f"balanced accuracy {balanced.min():.2f} to {balanced.max():.2f}"
    return f"  {name}: {answer} ({len(rows)} sets of networks, {range_of}{'; ' + numbers if numbers else ''})"
