"""What a run shows of its grids: tables, and mean maps instead of examples that someone chose.

The tables hold the shares of every method and stage, what the literature found, the likeness of methods, and
invariance.

AggAtt is the mean map of the best, the usual and the worst grids. Maps of one cell position are sorted by their share,
best first, ties by positive attribution in the cell, and cut into bins of unequal size: the first 2 %, to 5 %, to 50 %,
to 95 %, to 98 %, and the last 2 %. All bins share one scale.

Source: Rao, Böhle & Schiele 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.pipeline.run.declared import Table, described
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.work.jobs import Outcome
from heatlas.studies.grids.directions import DIRECTIONS_TABLE, GRIDS_TABLE
from heatlas.studies.grids.studies import spearman_matrix

ALL_METHODS = "all"
"""Stands for every method where no grid could be made."""
SAME = 0.01
"""Difference of shares up to which a method explains both networks alike."""

AGREEMENT_TABLE = Table(
    "grid_agreement",
    {
        **described("cohort"),
        **{name: GRIDS_TABLE.meanings[name] for name in ("setting", "kind")},
        "method_a": "Method of one map",
        "stage_a": "Its stage",
        "method_b": "Method of the other",
        "stage_b": "Its stage",
        "spearman": "Rank correlation of their shares over grids; n/a where a method has the same share on all",
        "n_grids": GRIDS_TABLE.meanings["n_grids"],
    },
    "setting, kind of grid and two methods at their stages", "Do methods find the same grids easy?",
    stage="evaluation", filled=("cohort", "setting", "method_a", "method_b", "n_grids"),
)  # fmt: skip

INVARIANCE_TABLE = Table(
    "invariance",
    {
        **described("cohort"),
        "method": GRIDS_TABLE.meanings["method"],
        "n_grids": "Grids whose last features were explained",
        "logit_difference": "Largest difference of the logits of the two networks, as share of the largest logit",
        "share_plain": "Mean share of |attribution| on features that the network does not read",
        "share_cancelling": "The same by a network that computes the same with two units that cancel",
        "invariant": f"true: the shares differ by at most {SAME:g}. false: the map depends on how a function is "
        "written",
        "note": "Why there is no share",
    },
    "method", "Does a map stay the same when another network computes the same function?", stage="evaluation",
    filled=("cohort", "method", "n_grids"),
)  # fmt: skip

GRID_TABLES = (GRIDS_TABLE, DIRECTIONS_TABLE, AGREEMENT_TABLE, INVARIANCE_TABLE)


def agreement_table(scores: pd.DataFrame, cohort: str) -> pd.DataFrame:
    """Rank correlations of every two methods and stages, each pair once."""
    made: list[list[object]] = []
    of_grids = scores[scores["grid"].notna()]
    for (setting, kind), of_setting in of_grids.groupby(["setting", "kind"], sort=False):
        matrix = spearman_matrix(scores, str(setting), str(kind))
        values = matrix.to_numpy(float)
        for a, first in enumerate(matrix.index):
            for b in range(a + 1, len(matrix)):
                made.append(
                    [cohort, setting, kind, *first, *matrix.index[b], values[a, b], of_setting["grid"].nunique()]
                )
    return AGREEMENT_TABLE.frame(made).astype({"stage_a": "Int64", "stage_b": "Int64"})


def invariance_table(frames: Sequence[pd.DataFrame], cohort: str) -> pd.DataFrame:
    """Means over grids, a row per method."""
    rows = pd.concat(frames, ignore_index=True)
    made = []
    for method, of_method in rows.groupby("method", sort=False):
        measured, notes = of_method[of_method["share_cancelling"].notna()], of_method["note"].dropna()
        plain, cancelling = measured["share_plain"].mean(), measured["share_cancelling"].mean()
        made.append(
            {
                "cohort": cohort, "method": method, "n_grids": len(measured),
                "logit_difference": of_method["logit_difference"].max(), "share_plain": plain,
                "share_cancelling": cancelling,
                "invariant": None if np.isnan(cancelling) else bool(abs(cancelling - plain) <= SAME),
                "note": notes.iloc[0] if len(notes) else None,
            }
        )  # fmt: skip
    return INVARIANCE_TABLE.frame(made).astype({"invariant": "boolean"})


EDGES = (0, 2, 5, 50, 95, 98, 100)
"""Per cent."""
SHOWN = 99.5
"""Percentile of absolute values at which the scale ends."""


@dataclass(frozen=True, eq=False)
class Bin:
    """Maps between two ranks.

    `members`: maps, best first. `example`: the median of them. `mean`: (D, H, W). `share`: mean share.
    """

    members: tuple[int, ...]
    example: int
    mean: NDArray[np.float64]
    share: float


@dataclass(frozen=True, eq=False)
class Aggregated:
    """All bins of a method, and the scale they share; maps that are undefined are in no bin."""

    bins: tuple[Bin, ...]
    limit: float


def bin_edges(count: int, edges: Sequence[float] = EDGES) -> list[int]:
    """Ranks at which bins begin and end: rounded, at least one map per bin.

    Raises BadInputError for fewer maps than bins.

    Examples
    --------
    >>> bin_edges(100), bin_edges(10)
    ([0, 2, 5, 50, 95, 98, 100], [0, 1, 2, 5, 8, 9, 10])
    """
    bins = len(edges) - 1
    if count < bins:
        raise BadInputError(f"AggAtt: {count} defined maps cannot fill {bins} bins; make at least {bins} grids.")
    ranks = [round(count * edge / 100) for edge in edges]
    for place in range(1, bins):
        ranks[place] = max(ranks[place], ranks[place - 1] + 1)
    for place in range(bins - 1, 0, -1):
        ranks[place] = min(ranks[place], ranks[place + 1] - 1)
    return ranks


def aggregated(
    maps: NDArray[np.floating], shares: NDArray[np.floating], inside: NDArray[np.floating],
    edges: Sequence[float] = EDGES,
) -> Aggregated:  # fmt: skip
    """Bins of maps of one cell position.

    `maps`: (N, D, H, W). `shares`: (N,), NaN for undefined maps. `inside`: (N,), positive attribution in the cell.
    `edges`: per cent.
    """
    defined = np.flatnonzero(np.isfinite(shares))
    order = defined[np.lexsort((-np.asarray(inside)[defined], -np.asarray(shares)[defined]))]
    ranks = bin_edges(len(order), edges)
    bins = []
    for start, stop in pairwise(ranks):
        members = order[start:stop]
        mean = np.mean([np.asarray(maps[place], dtype=np.float64) for place in np.sort(members)], axis=0)
        bins.append(
            Bin(
                tuple(map(int, members)),
                int(members[(len(members) - 1) // 2]),
                mean,
                float(np.asarray(shares, dtype=np.float64)[members].mean()),
            )
        )
    limit = float(np.percentile(np.abs([part.mean for part in bins]), SHOWN))
    return Aggregated(tuple(bins), limit)


FEWEST = len(EDGES) - 1
"""Defined maps below which the bins cannot be filled."""


def write_aggregated(path: Path, scores: pd.DataFrame, outcomes: Sequence[Outcome]) -> None:
    """Write the pictures of all methods with enough grids (NPZ); nothing where none has.

    Arrays: ``names`` (M,), ``settings`` (M,), ``stages`` (M,), ``counts`` (M,), ``means`` and ``examples``
    (M, bins, D, H), ``shares`` (M, bins), ``limits`` (M,).
    """
    pictures: dict[str, list[tuple[int, NDArray[np.float32]]]] = {}
    for outcome in outcomes:
        number = outcome.job.arguments[0].number
        with np.load(outcome.job.outputs["pictures"], allow_pickle=False) as file:
            for name in file.files:
                pictures.setdefault(name, []).append((number, file[name]))
    arrays: dict[str, list[object]] = {
        name: [] for name in ("names", "settings", "stages", "counts", "means", "examples", "shares", "limits")
    }
    for name, numbered in pictures.items():
        setting, method, stage = name.split("|")
        of_stage = scores[
            (scores["setting"] == setting) & (scores["method"] == method) & (scores["stage"] == int(stage))
        ]
        share = of_stage.dropna(subset="grid").set_index("grid")["share"]
        shares = np.array([share[number] for number, _ in numbered], dtype=float)
        if np.isfinite(shares).sum() < FEWEST:
            continue
        maps = np.stack([picture for _, picture in numbered])[..., None]
        half = [side // 2 for side in maps.shape[1:3]]
        inside = maps[:, : half[0], : half[1]].sum(axis=(1, 2, 3))
        bins = aggregated(maps, shares, inside)
        means = [part.mean[..., 0] for part in bins.bins]
        examples = [maps[part.example][..., 0] for part in bins.bins]
        count = int(np.isfinite(shares).sum())
        values = [method, setting, int(stage), count, means, examples, [part.share for part in bins.bins], bins.limit]
        for column, value in zip(arrays, values, strict=True):
            arrays[column].append(value)
    path.unlink(missing_ok=True)
    if arrays["names"]:
        with path.open("wb") as handle:
            np.savez_compressed(handle, **{column: np.array(value) for column, value in arrays.items()})  # type: ignore[arg-type]
