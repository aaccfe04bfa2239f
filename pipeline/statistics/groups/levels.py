"""Subgroup of each scan, for any column.

A participant belongs to one subgroup: numbers are averaged over their scans, and of text the most frequent value is
used (the earliest in case of ties). Only ``course``, the diagnosis at the scan with the outcome of MCI, is taken per
scan: participants whose diagnosis changes are in both subgroups, each with the scans concerned.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.pipeline.cohort.cells.values import code_text
from heatlas.pipeline.run.config.statistics import SubgroupsConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.visits import course_of
from heatlas.pipeline.statistics.linear.design import ALWAYS_CATEGORIES

COURSE = "course"
COURSES = ("CN", "sMCI", "pMCI", "rMCI", "uMCI", "MCI", "AD")
MAX_VALUES = 6
"""Numeric variables with more distinct values are cut into tertiles."""
TERTILES = (1 / 3, 2 / 3)
LEVEL_IS = (
    "Subgroup, the same in all tables; n/a if the variable cannot be used. Numeric variables are cut at the bounds "
    "given: those of the settings for mmse, otherwise tertiles of the participants of the contrast (scans averaged "
    "first); variables with few distinct values are not cut"
)
"""Meaning of a column ``level``."""


@dataclass(frozen=True, eq=False)
class Levels:
    """Subgroups of one variable; `names` in natural order.

    `of_scan` is aligned with the frame, None where unknown; `is_number` if a number was cut into bands.
    """

    variable: str
    of_scan: pd.Series
    names: tuple[str, ...]
    is_number: bool

    def members(self, level: str) -> NDArray[np.bool_]:
        return (self.of_scan == level).to_numpy(bool)

    def of_rows(self, rows: NDArray[np.intp]) -> Levels:
        """The same subgroups for some of the scans; BadInputError if none of them has a level."""
        chosen = self.of_scan.iloc[rows].reset_index(drop=True)
        if chosen.isna().all():
            raise BadInputError(f"{self.variable}: no scan has a value.")
        present = set(chosen.dropna())
        return Levels(self.variable, chosen, tuple(name for name in self.names if name in present), self.is_number)

    @property
    def note(self) -> str | None:
        """How many scans have no level; None if all have one."""
        unknown = int(self.of_scan.isna().sum())
        return f"{counted(unknown, 'scan')} without {self.variable} in no subgroup" if unknown else None


def subgroup_levels(inputs: StatisticsInputs, variable: str) -> Levels:
    """Subgroups of all scans with relevance, in the order of `StatisticsInputs.all_scans`.

    Raises like `levels_of`.
    """
    scans = inputs.all_scans
    return levels_of(variable, scans.frame, inputs.config.statistics.subgroups, scans.labelled)


def levels_of(
    variable: str, frame: pd.DataFrame, settings: SubgroupsConfig, cut_over: NDArray[np.bool_] | None = None
) -> Levels:
    """Subgroups by a column of a frame with one row per scan, or by ``course``.

    Tertiles are those of the participants in `cut_over` (rows,), or of all if none of these has a value. BadInputError
    if there is no such column, or it has no value.
    """
    if variable == COURSE:
        return _ordered(variable, course_of(frame), COURSES, False)
    if variable not in frame:
        raise BadInputError(f"{variable}: no such column in scans.tsv or clinical.tsv.")
    if frame[variable].isna().all():
        raise BadInputError(f"{variable}: no scan has a value.")
    values = one_value_per_participant(frame[variable], frame["participant_id"], variable in ALWAYS_CATEGORIES)
    if not pd.api.types.is_numeric_dtype(values):
        return _ordered(variable, values, sorted(values.dropna().unique()), False)
    if variable == "apoe4":
        carrier = values.map(lambda n: "e4 carrier" if n > 0 else "no e4", na_action="ignore")
        return _ordered(variable, carrier.astype(object), ("no e4", "e4 carrier"), False)
    if variable == "mmse":
        return _banded(variable, values, settings.mmse_bands)
    if values.nunique() <= MAX_VALUES:
        text = values.map(code_text, na_action="ignore").astype(object)
        return _ordered(variable, text, [code_text(number) for number in sorted(values.dropna().unique())], False)
    cut = values if cut_over is None or values[cut_over].isna().all() else values[cut_over]
    per_person = cut.groupby(frame["participant_id"].loc[cut.index].to_numpy()).first().dropna()
    return _banded(variable, values, sorted(set(per_person.quantile(list(TERTILES)))))


def one_value_per_participant(column: pd.Series, participants: pd.Series, is_category: bool) -> pd.Series:
    """One value per participant for all their scans: the mean of numbers, the most frequent category."""
    people = participants.to_numpy()
    yes_no = {True: "yes", False: "no"}
    if column.map(
        lambda value: isinstance(value, bool | np.bool_)
    ).any():  # with n/a among them the column is of type object
        column = column.map(lambda value: yes_no[bool(value)] if isinstance(value, bool | np.bool_) else value)
    if pd.api.types.is_numeric_dtype(column) and not is_category:
        return column.astype(float).groupby(people).transform("mean")
    if pd.api.types.is_numeric_dtype(column):
        column = column.map(code_text, na_action="ignore")
    known = column.astype(object).where(column.notna(), None)
    chosen = {
        person: _most_frequent([value for value in of_one if value is not None])
        for person, of_one in known.groupby(people)
    }
    return pd.Series([chosen[person] for person in people], index=column.index, dtype=object)


def _most_frequent(values: Sequence[str]) -> str | None:
    return max(values, key=list(values).count) if values else None


def _ordered(variable: str, of_scan: pd.Series, order: Sequence[str], is_number: bool) -> Levels:
    present = set(of_scan.dropna())
    names = [name for name in order if name in present] + sorted(present - set(order))
    return Levels(variable, of_scan, tuple(names), is_number)


def _banded(variable: str, values: pd.Series, bounds: Sequence[float]) -> Levels:
    """Bands below, between and above the bounds; each band includes its lower bound."""
    if not bounds:
        return _ordered(variable, values.map(lambda _: "any", na_action="ignore").astype(object), ("any",), True)
    shown = _rounded(bounds)
    names = [f"below {shown[0]}"]
    names += [f"{low} to below {high}" for low, high in itertools.pairwise(shown)]
    names += [f"{shown[-1]} and above"]
    place = np.searchsorted(np.asarray(bounds, float), values.to_numpy(float), side="right")
    of_scan = pd.Series([names[i] for i in place], index=values.index, dtype=object)
    return _ordered(variable, of_scan.where(values.notna(), None), names, True)


def _rounded(bounds: Sequence[float]) -> list[str]:
    """Bounds rounded to a hundredth of the order of the smallest step between them.

    Examples
    --------
    >>> _rounded([71.1633, 75.7]), _rounded([1400049.96, 1400100.0])
    (['71.16', '75.7'], ['1400050', '1400100'])
    """
    step = min((high - low for low, high in itertools.pairwise(bounds)), default=abs(bounds[0]) or 1.0)
    decimals = 2 - math.floor(math.log10(step))
    return [f"{round(bound, decimals):.15g}" for bound in bounds]
