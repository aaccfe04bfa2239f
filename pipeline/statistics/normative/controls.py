"""Controls that a participant is compared with, and the participant's position among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

FEWEST_CONTROLS = 5
"""Smallest number of controls for a comparison."""
CONTROLS_OF_A_FOLD = 10
"""Smallest number of controls in the participant's fold for using only these."""
BAND = (0.05, 0.25, 0.75, 0.95)
"""Quantiles of the controls that a fingerprint shows."""


@dataclass(frozen=True)
class ControlGroup:
    """Participants of the negative class that a participant is compared with.

    `values`: mean share of the map, one row per participant, one column per bilateral group; `who`: description, with
    n.
    """

    values: pd.DataFrame
    who: str

    @cached_property
    def mean(self) -> pd.Series:
        return self.values.mean()

    @cached_property
    def spread(self) -> pd.Series:
        """Standard deviation (n - 1); NaN where the controls are constant."""
        spread = self.values.std(ddof=1)
        return spread.where(spread > 0)

    def scores(self, person: pd.Series) -> pd.Series:
        """Difference from the controls' mean in their standard deviations; NaN where the controls are constant."""
        return (person - self.mean) / self.spread

    @cached_property
    def bands(self) -> Mapping[str, tuple[float, ...]]:
        """Quantiles (`BAND`) of the controls' own scores by bilateral group; none where the controls are constant."""
        scores = ((self.values - self.mean) / self.spread).dropna(axis=1, how="all")
        values = scores.to_numpy(float)
        quantile = np.nanquantile if np.isnan(values).any() else np.quantile  # nanquantile is slower
        quantiles = quantile(values, BAND, axis=0).T if scores.size else np.zeros((0, len(BAND)))
        return {str(name): tuple(row) for name, row in zip(scores.columns, quantiles.tolist(), strict=True)}

    def share_below(self, person: pd.Series) -> pd.Series:
        """Share of the controls with lower values than the participant, by bilateral group; NaN where unknown."""
        known = self.values.notna()
        below = (self.values.lt(person, axis=1) & known).sum()
        return (below / known.sum().where(known.any())).where(person.notna())


def comparable_controls(
    values: pd.DataFrame, fold_of: Mapping[str, object], fold: object, participant: str, label: str
) -> ControlGroup | None:
    """Controls of the participant's fold if they are enough, else all controls; None if these are too few.

    Parameters
    ----------
    values : DataFrame
        All controls, as in `ControlGroup`.
    fold_of : mapping of str to object
        Test fold of each control.
    fold : object
        Fold of the participant; None if in no test fold.
    themselves : str
        The participant, who is excluded from the controls.
    label : str
        Class label of the controls.
    """
    others = values[values.index != participant]
    same = others[[fold_of.get(name) == fold for name in others.index]] if fold is not None else others[:0]
    if len(same) >= CONTROLS_OF_A_FOLD:
        return ControlGroup(same, f"{len(same)} {label} of the same fold")
    return ControlGroup(others, f"{len(others)} {label}") if len(others) >= FEWEST_CONTROLS else None
