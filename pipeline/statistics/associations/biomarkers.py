"""Biomarkers by name: columns of the scan and clinical tables, ratios of two columns, and regional volumes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from heatlas.pipeline.registration.settled import JACOBIAN_SOURCE, NOT_MEASURED
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.data.features import VOLUME, region_features
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.values import joined

SHORT_NAMES = {"hippocampus": "hippocampus_mm3", "tiv": "tiv_mm3"}
OWN_VOLUME = "own volume"
VOLUME_OF = "volume of "


@dataclass(frozen=True, eq=False)
class Biomarker:
    """One number per scan (scans,), or per scan and bilateral group (scans, groups); NaN where unknown.

    In the second case relevance of a group is compared with the biomarker of the same group.
    """

    name: str
    values: Floats

    @property
    def per_group(self) -> bool:
        return self.values.ndim == 2


def biomarker_of(name: str, inputs: StatisticsInputs) -> Biomarker:
    """Look up a biomarker: a column, ``a/b``, ``own volume`` or ``volume of GROUP``.

    BadInputError if a column is missing, holds text or has no values.
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
    """Numerator and denominator; the denominator is empty for a plain name."""
    part, _, divisor = name.partition("/") if name not in frame else (name, "", "")
    return part.strip(), divisor.strip()


def own_volume_note(name: str, frame: pd.DataFrame) -> str | None:
    """Source of a hippocampal volume measured by this run, or why it is missing; None for other biomarkers."""
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
        of_group: Floats = group_volumes(inputs)[:, inputs.values.groups.index(group)]
        return of_group
    return column_of(name, inputs.frame)


def column_of(name: str, frame: pd.DataFrame) -> Floats:
    """A numeric column; ``hippocampus`` and ``tiv`` need no ``_mm3``.

    BadInputError if the column is missing or holds text.
    """
    column = SHORT_NAMES.get(name, name)
    if column not in frame:
        raise BadInputError(f"{name}: no such column in scans.tsv or clinical.tsv.")
    try:
        return frame[column].to_numpy(float, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise BadInputError(
            f"{name}: not a numeric column, so no correlation can be computed. Use it as a subgroup variable."
        ) from error


def group_volumes(inputs: StatisticsInputs) -> Floats:
    """Volume of each bilateral group (both sides) in mm³, shape (scans, groups).

    BadInputError if the run has no volumes, as when the input was already in template space.
    """
    sources = {one.source: one for one in region_features(inputs.values, inputs.volumes)}
    if VOLUME not in sources:
        raise BadInputError(
            "group/volumes.tsv: missing or empty. Volumes are measured only in scans that the run registered."
        )
    measured = pd.DataFrame(sources[VOLUME].values, columns=list(sources[VOLUME].groups))
    return measured.reindex(columns=list(inputs.values.groups)).to_numpy(float)
