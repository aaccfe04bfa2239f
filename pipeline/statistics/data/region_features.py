"""Features per scan and bilateral group for models fitted within cross-validation folds.

A model applied to the participants of a test fold is fitted on participants outside it. Scans outside the contrast
(MCI) get the model of the fold that tests their participant, or else one fitted on all participants with a label.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.pipeline.run.columns import described
from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.members import first_visits
from heatlas.pipeline.statistics.data.values import RelevanceValues

Mask = NDArray[np.bool_]

VOLUME = "volume"
"""Source name of the volumes; other sources are named by their map."""
NO_FOLD = "all"
"""Fold of scans outside all test folds; their model is fitted on all participants with a label."""
SCAN_COLUMNS = {**described("participant_id", "session_id", "scan_id")}
"""Columns that identify a scan."""


@dataclass(frozen=True, eq=False)
class RegionFeatures:
    """One source of features, with a row per scan.

    Parameters
    ----------
    source : str
        A relevance map (values are densities) or `VOLUME` (values in mm3).
    groups : tuple of str
        Bilateral groups.
    values : array, shape (scans, groups)
        NaN where missing.
    """

    source: str
    groups: tuple[str, ...]
    values: Floats


@dataclass(frozen=True, eq=False)
class FoldedScans:
    """Scans with a label and scans outside the contrast, each with the fold whose model is applied to it.

    Parameters
    ----------
    frame : pandas.DataFrame
        Facts of each scan.
    fold : tuple of str
        The fold that tests the participant of each scan, or `NO_FOLD`.
    first : array of bool
        The first labelled scan of each participant (`pipeline.statistics.data.members.first_visits`), which models
        are fitted on. Repeated scans are not independent, and a mean over scans varies less than the single scans that
        a model is applied to.
    """

    frame: pd.DataFrame
    fold: tuple[str, ...]
    labelled: Mask
    first: Mask
    sources: tuple[RegionFeatures, ...]

    @classmethod
    def of(cls, inputs: StatisticsInputs) -> FoldedScans:
        """All scans of a run that have relevance."""
        scans = inputs.all_scans
        frame, labelled = scans.frame, scans.labelled
        labelled_frame = frame[labelled]
        fold_of = {
            person: str(int(fold))
            for person, fold in zip(labelled_frame["participant_id"], labelled_frame["fold"], strict=True)
        }
        fold_of |= {name: str(fold.index) for fold in inputs.split.folds for name in fold.test}
        fold_names = tuple(fold_of.get(person, NO_FOLD) for person in frame["participant_id"])
        first = frame["scan_id"].isin(first_visits(labelled_frame)["scan_id"]).to_numpy(bool)
        return cls(frame, fold_names, labelled, labelled & first, tuple(region_features(scans.values, inputs.volumes)))

    @property
    def folds(self) -> list[str]:
        return sorted(set(self.fold), key=lambda name: (name == NO_FOLD, len(name), name))

    def tested(self, fold: str) -> Mask:
        """Scans to which the model of a fold is applied."""
        return np.array([name == fold for name in self.fold], dtype=bool)

    def training(self, fold: str) -> Mask:
        """First labelled scans of the participants outside a fold."""
        return self.first & ~self.tested(fold)


def region_features(values: RelevanceValues, volumes: pd.DataFrame) -> list[RegionFeatures]:
    """Densities of every map, and volumes if the run measured them.

    `volumes`: ``volumes.tsv``; the volume of a group is the sum over its regions, n/a if one of them is.
    """
    sources = [RegionFeatures(name, values.groups, values.densities[:, i]) for i, name in enumerate(values.maps)]
    of_scans = volumes[volumes["scan_id"].isin(values.scans["scan_id"]) & volumes["group"].notna()]
    if len(of_scans):
        known = of_scans["volume_mm3"].astype(float)
        regions = of_scans.assign(known=known.fillna(0.0), unknown=known.isna())
        table = regions.pivot_table("known", "scan_id", "group", aggfunc="sum")
        lacking = regions.pivot_table("unknown", "scan_id", "group", aggfunc="max").fillna(0) > 0
        table = table.mask(lacking).reindex(list(values.scans["scan_id"]))
        groups = [name for name in values.groups if name in table.columns]
        groups += sorted(set(table.columns) - set(groups))
        sources.append(RegionFeatures(VOLUME, tuple(groups), table[groups].to_numpy(float)))
    return sources
