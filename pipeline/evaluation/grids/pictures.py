"""The arrays of the AggAtt figure: mean maps of the best, the usual and the worst grids, per method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.pipeline.evaluation.grids.aggregated import EDGES, aggregated
from heatlas.pipeline.run.work.jobs import Outcome

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
    found: dict[str, list[object]] = {
        name: [] for name in ("names", "settings", "stages", "counts", "means", "examples", "shares", "limits")
    }
    for name, numbered in pictures.items():
        setting, method, stage = name.split("|")
        own = scores[(scores["setting"] == setting) & (scores["method"] == method) & (scores["stage"] == int(stage))]
        share = own.dropna(subset="grid").set_index("grid")["share"]
        shares = np.array([share[number] for number, _ in numbered], dtype=float)
        if np.isfinite(shares).sum() < FEWEST:
            continue
        maps = np.stack([one for _, one in numbered])[..., None]
        half = [side // 2 for side in maps.shape[1:3]]
        inside = maps[:, : half[0], : half[1]].sum(axis=(1, 2, 3))
        bins = aggregated(maps, shares, inside)
        means = [one.mean[..., 0] for one in bins.bins]
        examples = [maps[one.example][..., 0] for one in bins.bins]
        count = int(np.isfinite(shares).sum())
        values = [method, setting, int(stage), count, means, examples, [one.share for one in bins.bins], bins.limit]
        for column, value in zip(found, values, strict=True):
            found[column].append(value)
    path.unlink(missing_ok=True)
    if found["names"]:
        with path.open("wb") as handle:
            np.savez_compressed(handle, **{column: np.array(value) for column, value in found.items()})  # type: ignore[arg-type]
