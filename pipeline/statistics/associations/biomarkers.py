"""Biomarkers by name: columns of the scan and clinical tables, quotients of two, volumes of regions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipeline.registration.settled import JACOBIAN_SOURCE, NOT_MEASURED
from pipeline.run.errors import BadInputError
from pipeline.statistics.arrays import Floats
from pipeline.statistics.data.inputs import StatisticsInputs
from pipeline.statistics.data.notes import joined
from pipeline.statistics.data.region_features import VOLUME, region_features

SHORT_NAMES = {"hippocampus": "hippocampus_mm3", "tiv": "tiv_mm3"}
OWN_VOLUME = "own volume"
VOLUME_OF = "volume of "


@dataclass(frozen=True, eq=False)
class Biomarker:
    """A number per scan, or one per scan and bilateral group.

    Parameters
    ----------
    name : str
    values : array, shape (scans,) or (scans, groups)
        In the order of `StatisticsInputs.values`; NaN where not known. With groups: each is compared with the
        relevance of the same group only.
    """

    name: str
    values: Floats

    @property
    def per_group(self) -> bool:
        return self.values.ndim == 2


def biomarker_of(name: str, inputs: StatisticsInputs) -> Biomarker:
    """Find a biomarker.

    Parameters
    ----------
    name : str
        A column, ``a/b``, ``own volume`` or ``volume of GROUP``; ``hippocampus`` and ``tiv`` need no ``_mm3``.
    inputs : StatisticsInputs

    Raises
    ------
    BadInputError
        If a column is not there, holds text, or has no value at all.
    """
    part, divisor = parts_of(name, inputs.frame)
    values = _part(part, inputs)
    if divisor:
        below = column_of(divisor, inputs.frame)
        below = np.where(below > 0, below, np.nan)
        values = values / (below if values.ndim == 1 else below[:, None])
    if np.isnan(values).all():
        raise BadInputError(f"{joined(f'{name}: no scan has a value', own_volume_note(name, inputs.frame))}.")
    return Biomarker(name, values)


def parts_of(name: str, frame: pd.DataFrame) -> tuple[str, str]:
    """What is divided and what it is divided by; the second is empty for a plain name, such as that of a column."""
    part, _, divisor = name.partition("/") if name not in frame else (name, "", "")
    return part.strip(), divisor.strip()


def own_volume_note(name: str, frame: pd.DataFrame) -> str | None:
    """What to know of a hippocampal volume that this run measured itself, or why it did not; None for all else."""
    if SHORT_NAMES["hippocampus"] not in {SHORT_NAMES.get(part.strip(), part.strip()) for part in name.split("/")}:
        return None
    said = sorted(set(frame["hippocampus_source"].dropna())) if "hippocampus_source" in frame else []
    return joined(*[source for source in said if source.startswith((JACOBIAN_SOURCE, NOT_MEASURED))])


def _part(name: str, inputs: StatisticsInputs) -> Floats:
    if name == OWN_VOLUME:
        return group_volumes(inputs)
    if name.startswith(VOLUME_OF):
        group = name.removeprefix(VOLUME_OF)
        if group not in inputs.values.groups:
            raise BadInputError(f"{name}: the atlas has no bilateral group named {group}.")
        own: Floats = group_volumes(inputs)[:, inputs.values.groups.index(group)]
        return own
    return column_of(name, inputs.frame)


def column_of(name: str, frame: pd.DataFrame) -> Floats:
    """A column of numbers; ``hippocampus`` and ``tiv`` need no ``_mm3``.

    Raises
    ------
    BadInputError
        If it is not there, or holds text.
    """
    column = SHORT_NAMES.get(name, name)
    if column not in frame:
        raise BadInputError(f"{name}: no such column in scans.tsv or clinical.tsv.")
    try:
        return frame[column].to_numpy(float, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise BadInputError(
            f"{name}: not a column of numbers, so it has no correlation. Name it as a group."
        ) from error


def group_volumes(inputs: StatisticsInputs) -> Floats:
    """Volume of each bilateral group in each scan in mm³, shape (scans, groups); both sides together.

    Raises
    ------
    BadInputError
        If the run has no volumes: its scans came in template space and were not registered.
    """
    sources = {one.source: one for one in region_features(inputs.values, inputs.volumes)}
    if VOLUME not in sources:
        raise BadInputError("group/volumes.tsv: not there or empty; only scans that this run registered have volumes.")
    measured = pd.DataFrame(sources[VOLUME].values, columns=list(sources[VOLUME].groups))
    return measured.reindex(columns=list(inputs.values.groups)).to_numpy(float)
