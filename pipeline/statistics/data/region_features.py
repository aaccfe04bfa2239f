"""Numbers per scan and bilateral group that models are fitted on, and who may train what is applied to whom.

A model applied to the participants of a test fold is fitted on people outside it. Scans outside the contrast (MCI) are
given the model of the fold that tests their participant, where one does, and otherwise one fitted on everybody.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline.statistics.arrays import Floats
from pipeline.statistics.data.inputs import StatisticsInputs
from pipeline.statistics.data.values import RelevanceValues
from pipeline.statistics.data.visits import first_visits

Mask = NDArray[np.bool_]

VOLUME = "volume"
"""Name of the volumes where a table names its source; maps go by their own."""
NO_FOLD = "all"
"""Fold of scans that no fold tests: what is applied to them is fitted on everybody with a label."""


@dataclass(frozen=True, eq=False)
class RegionFeatures:
    """One source of features for the scans of a table, in its order.

    Parameters
    ----------
    source : str
        A relevance map (values are densities) or `VOLUME` (values in mm3).
    groups : tuple of str
        Bilateral groups.
    values : array, shape (scans, groups)
        NaN where there is none.
    """

    source: str
    groups: tuple[str, ...]
    values: Floats


@dataclass(frozen=True, eq=False)
class FoldedScans:
    """Scans with a label and scans outside the contrast, with the fold whose model each is given.

    Parameters
    ----------
    frame : pandas.DataFrame
        Facts of each scan.
    fold : tuple of str
        The fold that tests the person of each scan, or `NO_FOLD`.
    labelled : array of bool
    first : array of bool
        The first labelled scan of each person (`pipeline.statistics.data.visits.first_visits`): the rows that models
        are
        fitted on. Repeated scans of one person are no further people, and a mean over scans has less spread than the
        single scans that a model is applied to.
    sources : tuple of RegionFeatures
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
        own = frame[labelled]
        fold_of = {person: str(int(fold)) for person, fold in zip(own["participant_id"], own["fold"], strict=True)}
        fold_of |= {name: str(fold.index) for fold in inputs.split.folds for name in fold.test}
        fold_names = tuple(fold_of.get(person, NO_FOLD) for person in frame["participant_id"])
        first = frame["scan_id"].isin(first_visits(own)["scan_id"]).to_numpy(bool)
        return cls(frame, fold_names, labelled, labelled & first, tuple(region_features(scans.values, inputs.volumes)))

    @property
    def folds(self) -> list[str]:
        return sorted(set(self.fold), key=lambda name: (name == NO_FOLD, len(name), name))

    def tested(self, fold: str) -> Mask:
        """Scans that are given the model of a fold."""
        return np.array([name == fold for name in self.fold], dtype=bool)

    def training(self, fold: str) -> Mask:
        """First labelled scans of the people outside a fold."""
        return self.first & ~self.tested(fold)


def region_features(values: RelevanceValues, volumes: pd.DataFrame) -> list[RegionFeatures]:
    """Densities of every map, and the volumes of the groups where the run measured volumes.

    Parameters
    ----------
    values : RelevanceValues
    volumes : pandas.DataFrame
        ``volumes.tsv``; the volume of a group is the sum over its regions, n/a if one of them is.
    """
    sources = [RegionFeatures(name, values.groups, values.densities[:, i]) for i, name in enumerate(values.maps)]
    own = volumes[volumes["scan_id"].isin(values.scans["scan_id"]) & volumes["group"].notna()]
    if len(own):
        known = own["volume_mm3"].astype(float)
        regions = own.assign(known=known.fillna(0.0), unknown=known.isna())
        table = regions.pivot_table("known", "scan_id", "group", aggfunc="sum")
        lacking = regions.pivot_table("unknown", "scan_id", "group", aggfunc="max").fillna(0) > 0
        table = table.mask(lacking).reindex(list(values.scans["scan_id"]))
        groups = [name for name in values.groups if name in table.columns]
        groups += sorted(set(table.columns) - set(groups))
        sources.append(RegionFeatures(VOLUME, tuple(groups), table[groups].to_numpy(float)))
    return sources
