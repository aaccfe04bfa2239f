"""Train a fold while some regions hold the same tissue in every scan; only its predictions are kept.

The unit of work stands apart from what decides on units, so that a change of that trains nothing again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heatlas.pipeline.explaining.networks import ReferenceScan
from heatlas.pipeline.models.inputs import read_network_volume, write_tissue
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout, FoldFiles
from heatlas.pipeline.training.stage import FoldTask, train_fold


@dataclass(frozen=True)
class Removal:
    """What is removed from every scan of a fold.

    `numbers`: labels of the regions. `controls`: controls of the training part; their mean tissue takes the place of
    the regions.
    """

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
