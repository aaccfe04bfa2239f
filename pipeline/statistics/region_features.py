"""Numbers per scan and bilateral group that models are fitted on: relevance density of each map, and volumes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline.cohort.persons import same_person
from pipeline.statistics.inputs import StatisticsInputs
from pipeline.statistics.values import RelevanceValues

Floats = NDArray[np.float64]

VOLUME = "volume"
"""Name of the volumes where a table names its source; maps go by their own."""


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
        summed = own.groupby(["scan_id", "group"], sort=False)["volume_mm3"].agg(lambda column: column.sum(skipna=False))
        table = summed.unstack("group").reindex(list(values.scans["scan_id"]))
        groups = [name for name in values.groups if name in table.columns]
        groups += sorted(set(table.columns) - set(groups))
        sources.append(RegionFeatures(VOLUME, tuple(groups), table[groups].to_numpy(float)))
    return sources


def first_scans(frame: pd.DataFrame) -> NDArray[np.bool_]:
    """Which rows are a person's first scan: models are fitted on one row per person.

    Repeated scans of one person are no further people; and a mean over scans has less spread than the single scans that
    a model is applied to. Someone with two names (`pipeline.cohort.persons`) is one person.

    Parameters
    ----------
    frame : pandas.DataFrame
        With participant_id, session_id, scan_id and age.
    """
    person = person_of(frame["participant_id"].tolist())
    order = frame.assign(person=person).sort_values(["age", "session_id", "scan_id"], na_position="last", kind="stable")
    first = order.index[~order.duplicated("person")]
    return frame.index.isin(first)


def person_of(participants: Sequence[str]) -> list[str]:
    """The name that stands for the person of each participant."""
    name_of = {name: first for first, names in same_person(participants).items() for name in names}
    return [name_of[name] for name in participants]


def tested_folds(inputs: StatisticsInputs) -> list[int | None]:
    """The fold that tests the person of each scan of `inputs.frame`; its model never saw them."""
    frame = inputs.frame
    fold_of = {name: fold.index for fold in inputs.split.folds for name in fold.test}
    by_person: dict[str, int] = {}
    names = person_of(frame["participant_id"].tolist())
    for person, participant, fold in zip(names, frame["participant_id"], frame["fold"], strict=True):
        by_person.setdefault(person, fold_of.get(participant, int(fold)))
    return [by_person[person] for person in names]
