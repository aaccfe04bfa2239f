"""How bilateral groups rank, how far that depends on beta, and the two patients whose maps differ most.

The statistic is a mean over participants, each participant's scans averaged first: someone scanned five times counts
once. The founding study averaged over scans; both averages are in ``region_summary.tsv``. Of LRP maps with different
beta, the overlap of the top ten is given per metric (Böhle et al. 2019).

Fingerprints are made as there: among scans of the positive class with a probability above 0.9, the vectors of relevance
density in the 25 groups with the highest mean are compared, and the pair with the largest cosine distance is shown.
Here small regions are left out, and the pair is of two participants; two scans of one person are not two patients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.plain_text import counted

METRICS = ("sum", "density", "gain")
FEW_VOXELS = 50
SMALL_MM3 = 400.0  # 50 voxels of 2 mm: a cube of 7 mm, a quarter of which leaves its place in a shift by 2 mm


def least_voxels(resolution_mm: float) -> int:
    """Voxels below which a region is small: a slight misregistration moves its relevance into its neighbours.

    >>> least_voxels(1.0), least_voxels(2.0), least_voxels(4.0)
    (400, 50, 50)
    """
    return max(FEW_VOXELS, round(SMALL_MM3 / resolution_mm**3))


def mean_over_participants(table: pd.DataFrame, metric: str) -> pd.Series:
    """Mean of a metric per map and bilateral group, over the means of each participant's known values."""
    per_participant = table.groupby(["participant_id", "map", "group"], sort=False)[metric].mean()
    return per_participant.groupby(level=["map", "group"], sort=False).mean()


def top_groups(means: pd.Series, count: int) -> list[str]:
    """Names of the groups with the largest means, largest first; ties in table order, unknown ones left out.

    >>> top_groups(pd.Series({"a": 1.0, "b": 3.0, "c": float("nan"), "d": 3.0}), 2)
    ['b', 'd']
    """
    ranked = means.dropna().sort_values(ascending=False, kind="stable")
    return [str(name) for name in ranked.index[:count]]


TOP = 10

BETA_OVERLAP_TABLE = declared("beta_overlap", __file__)


def top_overlap(a: Sequence[str], b: Sequence[str]) -> float:
    """Percentage of two equally long lists that is in both.

    >>> top_overlap(["x", "y"], ["y", "z"])
    50.0
    """
    if len(a) != len(b) or not a:
        raise ValueError(f"lists of {len(a)} and {len(b)} names have no overlap in per cent")
    return 100.0 * len(set(a) & set(b)) / len(a)


def overlap_table(table: pd.DataFrame, map_names: Sequence[str]) -> pd.DataFrame:
    """Overlap matrices, one row per metric and ordered pair of LRP maps, which are in the order of beta.

    `table`: a row per scan, map and group, with ``target`` and ``outcome`` of the scan and the three metrics.
    """
    rows = [row for metric in METRICS for row in _matrix(table, metric, map_names)]
    return BETA_OVERLAP_TABLE.frame(rows)


def _matrix(
    table: pd.DataFrame, metric: str, map_names: Sequence[str]
) -> Iterator[tuple[str, str, str, int, float, str | None]]:
    of_whom = table[table["outcome"] == "TP"] if metric == "gain" else table[table["target"] == 1]
    means = mean_over_participants(of_whom, metric)
    lists = {name: top_groups(means.xs(name, level="map"), TOP) if len(means) else [] for name in map_names}
    for a, b in product(map_names, repeat=2):
        fewest = min(len(lists[a]), len(lists[b]))
        if fewest < TOP:
            yield metric, a, b, TOP, float("nan"), f"{metric} is known for only {fewest} groups"
        else:
            yield metric, a, b, TOP, top_overlap(lists[a], lists[b]), None


MIN_PROBABILITY = 0.9
GROUPS = 25

FINGERPRINTS_TABLE = declared("fingerprints", __file__)


def most_different_pair(vectors: NDArray[np.float64], participants: Sequence[str]) -> tuple[int, int, float] | None:
    """Rows of two different participants with the largest cosine distance (the first such pair on a tie), and that.

    `vectors`: (scans, groups); a row of zeros has no direction and is in no pair.
    """
    names = np.asarray(participants)
    has_direction = np.linalg.norm(vectors, axis=1) > 0
    allowed = (names[:, None] != names[None, :]) & has_direction[:, None] & has_direction[None, :]
    if not allowed.any():
        return None
    distances = np.full(allowed.shape, -np.inf)
    distances[allowed] = cdist(vectors, vectors, "cosine")[allowed]
    first, second = np.unravel_index(np.argmax(distances), distances.shape)
    return int(first), int(second), float(distances[first, second])


def fingerprint_table(table: pd.DataFrame, map_names: Sequence[str], least_voxels: int = 0) -> pd.DataFrame:
    """The pair of each map, one row per patient and group; one row with a note where there is no pair.

    `table`: a row per scan, map and group, with ``target`` and ``probability`` of the scan and ``density``.
    `least_voxels`: regions of fewer voxels (``n_voxels``) are left out, unless there is no other: a slight
    misregistration moves their relevance, so that two people would differ in registration.
    """
    rows = [row for name in map_names for row in _pair_rows(table[table["map"] == name], name, least_voxels)]
    return FINGERPRINTS_TABLE.frame(rows)


def _pair_rows(table: pd.DataFrame, map_name: str, least_voxels: int) -> list[dict[str, Any]]:
    positive = table[table["target"] == 1]
    confident = positive[positive["probability"] > MIN_PROBABILITY]
    n_candidates = int(confident["participant_id"].nunique())
    if n_candidates < 2:
        people = counted(n_candidates, "participant")
        note = f"{people} of the positive class with a probability above {MIN_PROBABILITY}; two are needed"
        return [{"map": map_name, "n_candidates": n_candidates, "note": note}]
    means = mean_over_participants(positive, "density").droplevel("map")
    large = means
    if least_voxels:
        large = means[positive.groupby("group")["n_voxels"].max().reindex(means.index) >= least_voxels]
    groups = top_groups(large if len(large) else means, GROUPS)
    densities = confident.pivot_table("density", "scan_id", "group", aggfunc="first")[groups]
    scans = confident.drop_duplicates("scan_id").set_index("scan_id").loc[densities.index]
    pair = most_different_pair(densities.to_numpy(), scans["participant_id"].tolist())
    if pair is None:
        return [{"map": map_name, "n_candidates": n_candidates, "note": "fewer than 2 of them have any relevance"}]
    return [
        {
            "map": map_name,
            "patient": patient,
            "participant_id": scans["participant_id"].iloc[row],
            "session_id": scans["session_id"].iloc[row],
            "scan_id": scans.index[row],
            "probability": scans["probability"].iloc[row],
            "rank": rank,
            "group": group,
            "density": densities[group].iloc[row],
            "cosine_distance": pair[2],
            "n_candidates": n_candidates,
        }
        for patient, row in enumerate(pair[:2], start=1)
        for rank, group in enumerate(groups, start=1)
    ]
