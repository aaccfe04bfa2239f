"""Controls that a person is compared with: their selection, and the position of the person among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

FEWEST_CONTROLS = 5
"""With fewer controls no comparison is made."""
CONTROLS_OF_A_FOLD = 10
"""With at least this many controls in the person's fold, only these are used."""
BAND = (0.05, 0.25, 0.75, 0.95)
"""Quantiles of the controls that a fingerprint shows."""


@dataclass(frozen=True)
class Controls:
    """Participants of the negative class whom a person is compared with.

    Parameters
    ----------
    values : DataFrame
        Mean share of the map, one row per participant, one column per bilateral group.
    who : str
        In words, with n.
    """

    values: pd.DataFrame
    who: str

    @cached_property
    def mean(self) -> pd.Series:
        return self.values.mean()

    @cached_property
    def spread(self) -> pd.Series:
        """Standard deviation (n - 1); NaN where the controls do not vary."""
        spread = self.values.std(ddof=1)
        return spread.where(spread > 0)

    def scores(self, person: pd.Series) -> pd.Series:
        """Standard deviations of the controls between a person and their mean; NaN where they do not vary."""
        return (person - self.mean) / self.spread

    @cached_property
    def bands(self) -> Mapping[str, tuple[float, ...]]:
        """Quantiles (`BAND`) of the controls' own scores, by bilateral group; none where they do not vary."""
        own = ((self.values - self.mean) / self.spread).dropna(axis=1, how="all")
        values = own.to_numpy(float)
        quantile = np.nanquantile if np.isnan(values).any() else np.quantile  # the former goes column by column
        quantiles = quantile(values, BAND, axis=0).T if own.size else np.zeros((0, len(BAND)))
        return {str(name): tuple(row) for name, row in zip(own.columns, quantiles.tolist(), strict=True)}

    def share_below(self, person: pd.Series) -> pd.Series:
        """Share of the controls with less than the person, by bilateral group; NaN where nothing is known."""
        known = self.values.notna()
        below = (self.values.lt(person, axis=1) & known).sum()
        return (below / known.sum().where(known.any())).where(person.notna())


def comparable_controls(
    values: pd.DataFrame, fold_of: Mapping[str, object], fold: object, themselves: str, label: str
) -> Controls | None:
    """Controls of the person's own fold where they are enough, else all; None where even these are too few.

    Parameters
    ----------
    values : DataFrame
        Of all controls, as `Controls` has them.
    fold_of : mapping of str to object
        Test fold of each control.
    fold : object
        Of the person; None where no fold tests them.
    themselves : str
        The person, excluded from the controls.
    label : str
        Name of the class of the controls.
    """
    others = values[values.index != themselves]
    same = others[[fold_of.get(name) == fold for name in others.index]] if fold is not None else others[:0]
    if len(same) >= CONTROLS_OF_A_FOLD:
        return Controls(same, f"{len(same)} {label} of the same fold")
    return Controls(others, f"{len(others)} {label}") if len(others) >= FEWEST_CONTROLS else None
