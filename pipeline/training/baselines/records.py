"""The baselines: what each sees. A new one is one record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.training.baselines.images import ImageFeatures

Floats = NDArray[np.float64]
SEXES = {"F": 0.0, "M": 1.0}
UNTRAINED = "untrained"


@dataclass(frozen=True, eq=False)
class Seen:
    """All that is known of the scans of a run, in one order.

    `clinical`: ``clinical.tsv`` by scan_id; empty if the run has none. `predicted`: column that is to be predicted,
    which no baseline sees.
    """

    scans: Sequence[Scan]
    clinical: pd.DataFrame
    images: Sequence[ImageFeatures]
    predicted: str

    def column(self, name: str) -> Floats:
        """A number of each scan; NaN where it is not known, or is what is to be predicted."""
        if name == self.predicted.lower():  # sources write ``nWBV``
            return np.full(len(self.scans), np.nan)
        if name in self.clinical:
            return self.clinical[name].reindex([scan.scan_id for scan in self.scans]).to_numpy(float)
        values = [getattr(scan, name, None) for scan in self.scans]
        return np.array([np.nan if value is None else SEXES.get(str(value), value) for value in values], dtype=float)


@dataclass(frozen=True)
class Baseline:
    """A predictor to compare the network with.

    `sees`: what it knows of a scan, for readers. `columns`: from `Seen` to an array (scans, columns); columns that
    nobody has are left out by the caller.
    """

    name: str
    sees: str
    columns: Callable[[Seen], Floats]


def _demographic(seen: Seen) -> Floats:
    return np.column_stack([seen.column("age"), seen.column("sex")])


def _volumes(seen: Seen) -> Floats:
    head = seen.column("tiv_mm3")
    own = [seen.column("hippocampus_mm3"), seen.column("hippocampus_mm3") / head, seen.column("nwbv"), head]
    return np.column_stack(own) if any(np.isfinite(one).any() for one in own[:3]) else np.empty((len(head), 0))


def _regions(seen: Seen) -> Floats:
    return np.stack([np.concatenate([one.means, one.spreads]) for one in seen.images])


def _voxels(seen: Seen) -> Floats:
    return np.stack([one.smoothed for one in seen.images]).astype(np.float64)


def _untrained(seen: Seen) -> Floats:
    return np.stack([one.untrained for one in seen.images]).astype(np.float64)


def _with_demographic(columns: Callable[[Seen], Floats]) -> Callable[[Seen], Floats]:
    def both(seen: Seen) -> Floats:
        own = columns(seen)
        return np.column_stack([own, _demographic(seen)]) if own.shape[1] else own

    return both


BASELINES = (
    Baseline("demographics", "age and sex", _demographic),
    Baseline("volumes", "hippocampal and brain volume, age and sex", _with_demographic(_volumes)),
    Baseline("regions", "mean and spread of intensity in each region of the atlas", _regions),
    Baseline("voxels", "the image, smoothed to 8 mm", _voxels),
    Baseline(UNTRAINED, "what an untrained network makes of the image", _untrained),
)
"""All baselines."""
