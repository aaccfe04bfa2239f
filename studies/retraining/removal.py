"""Regions that are removed from every scan of a fold, and the training without them: the unit of work.

Removed are the first regions of a ranking up to a share of the volume, and random ones of that volume: they hold the
same tissue in every scan, and only the predictions of the network are kept. What decides on units stands apart
(`studies.retraining.stage`), so that a change of that trains nothing again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatlas.pipeline.evaluation.scores.localisation import ranked
from heatlas.pipeline.explaining.networks import ReferenceScan
from heatlas.pipeline.models.inputs import read_network_volume, write_tissue
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout, FoldFiles
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.training.stage import FoldTask, train_fold

SHARES = (0.05, 0.15)
"""Shares of the labelled volume that networks see."""
FULL, LEAST = 0.9, 0.5
"""Part of the volume asked for at which no smaller group from further down is added, and that has to be reached."""


def group_sizes(atlas: PackedAtlas, labels: NDArray[np.int64]) -> dict[str, int]:
    """Voxels of each bilateral group among the labels of what networks see."""
    numbers, counts = np.unique(labels, return_counts=True)
    size = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    return {name: sum(size.get(number, 0) for number in members) for name, members in atlas.regions.groups.items()}


def by_value(groups: Sequence[str], values: NDArray[np.float64]) -> tuple[str, ...]:
    """Groups from the largest value to the smallest; those without a value last; ties in the order of the atlas.

    Examples
    --------
    >>> by_value(["a", "b", "c"], np.array([1.0, np.nan, 2.0]))
    ('c', 'a', 'b')
    """
    return tuple(groups[place] for place in np.argsort(-ranked(values), kind="stable"))


def random_orders(groups: Sequence[str], draws: int, seed: int) -> tuple[tuple[str, ...], ...]:
    return tuple(
        tuple(groups[place] for place in generator(seed, "removed-at-random", draw).permutation(len(groups)))
        for draw in range(draws)
    )


def removed(order: Sequence[str], sizes: Mapping[str, int], share: float) -> tuple[str, ...]:
    """The first groups of an order that fill a share of the volume.

    A group that would exceed the share is passed over, as white matter exceeds 5 %, and the next that fits is taken,
    until `FULL` of the share is filled or nothing more fits. So the sets of any two orders are about equally large.

    Examples
    --------
    >>> removed(["a", "b", "c", "d"], {"a": 6, "b": 50, "c": 4, "d": 40}, 0.1)
    ('a', 'c')
    """
    wanted, filled, taken = share * sum(sizes.values()), 0, []
    for name in order:
        if sizes[name] and filled + sizes[name] <= wanted:
            taken.append(name)
            filled += sizes[name]
        if filled >= FULL * wanted:
            break
    if filled >= LEAST * wanted and taken:
        return tuple(taken)
    raise BadInputError(
        f"remove and retrain: whole regions cannot fill {share:.0%} of the volume: they reach {filled} of {wanted:.0f} "
        "voxels. Take an atlas with smaller regions, or leave out this part (--parts)."
    )


def require_fillable(sizes: Mapping[str, int], shares: Sequence[float]) -> None:
    """Refuse shares that no set of regions fills, before anything is explained or trained."""
    if not any(sizes.values()):
        raise BadInputError("remove and retrain: no region of the atlas lies in what the networks see.")
    for share in shares:
        removed(sorted(sizes, key=lambda name: sizes[name]), sizes, share)


@dataclass(frozen=True)
class Removal:
    """What is removed from every scan of a fold: labels of regions, whose place takes the mean tissue of controls."""

    numbers: tuple[int, ...]
    controls: tuple[ReferenceScan, ...]
    atlas: PackedAtlas


def retrain_fold(outputs: dict[str, Path], task: FoldTask, key: str, removal: Removal) -> Mapping[str, Any]:
    """Train one fold without the regions and predict its test part; the function of a `Job`."""
    folder = outputs["predictions"].parent
    volumes = np.stack([read_network_volume(one.files, task.spec) for one in removal.controls])
    tissue = folder / "tissue.npz"
    labels = removal.atlas.labels_in(task.spec.box)
    write_tissue(tissue, np.isin(labels, removal.numbers), volumes.mean(axis=0, dtype=np.float64))
    assert isinstance(task.layout, EvaluationLayout)
    files = FoldFiles(folder)
    written = {name: getattr(files, name) for name in ("weights", "description", "history", "predictions")}
    layout = dataclasses.replace(task.layout, tissue=tissue)
    return train_fold(written, dataclasses.replace(task, layout=layout), key)
