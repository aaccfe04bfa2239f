"""Features of scans as points of norm 1, and whose they are; the participant is the unit of all that follows.

The cosine similarity of two scans is the product of their points; the order of Euclidean distances is that of the
similarities, reversed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import listed

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FeatureVectors:
    """Scans as points of norm 1.

    Parameters
    ----------
    values : array, shape (scans, d)
    participant : array of str, shape (scans,)
    """

    values: Floats
    participant: NDArray[np.str_]

    @cached_property
    def people(self) -> tuple[str, ...]:
        """Participants, sorted; the order of everything with one value per participant."""
        return tuple(np.unique(self.participant).tolist())

    @cached_property
    def codes(self) -> NDArray[np.intp]:
        """Place of each scan's participant in `people`."""
        return np.unique(self.participant, return_inverse=True)[1].astype(np.intp)

    @property
    def weights(self) -> Floats:
        """Weights of scans, (scans,), that add up to 1 for each participant."""
        return np.asarray(1 / np.bincount(self.codes)[self.codes])

    def of(self, people: Collection[str]) -> FeatureVectors:
        """Scans of some participants."""
        there = np.isin(self.participant, list(people))
        return FeatureVectors(self.values[there], self.participant[there])

    def mean(self, values: Floats) -> Floats:
        """Mean over the scans of each participant, (people, ...), of values (scans, ...)."""
        total = np.zeros((len(self.people), *values.shape[1:]))
        np.add.at(total, self.codes, values)
        return total / np.bincount(self.codes).reshape(-1, *[1] * (values.ndim - 1))

    @property
    def centres(self) -> Floats:
        """Mean direction of each participant's scans, (people, d), of norm 1."""
        return _directions(self.mean(self.values))

    @property
    def similarities(self) -> tuple[Floats, NDArray[np.bool_]]:
        """Cosine similarity of all pairs of scans, and which are of one participant; both (scans, scans)."""
        return self.values @ self.values.T, self.codes[:, None] == self.codes[None, :]


def points_of(features: ArrayLike, people: Sequence[str]) -> FeatureVectors:
    """Scale the features of each scan to norm 1.

    Parameters
    ----------
    features : array, shape (scans, d)
    people : sequence of str
        Participant of each scan.

    Raises
    ------
    BadInputError
        If the two do not match, or a scan has no direction: all its features are 0, or one is not finite.

    Examples
    --------
    >>> points_of([[3, 4], [0, 2]], ["sub-1", "sub-2"]).values.tolist()
    [[0.6, 0.8], [0.0, 1.0]]
    """
    values, names = np.asarray(features, np.float64), np.asarray(people, dtype=np.str_)
    if values.ndim != 2 or len(values) != len(names):
        raise BadInputError(
            f"features of shape {values.shape} for the scans of {len(names)} rows: give one row of features per scan."
        )
    faulty = ~np.isfinite(values).all(axis=1) | ~values.any(axis=1)
    if faulty.any():
        raise BadInputError(
            f"features of {listed(np.unique(names[faulty]).tolist())} are all 0 or not finite: the network has not "
            "learned, or its weights overflowed. Train it again with a lower learning rate, or leave the scans out."
        )
    return FeatureVectors(_directions(values), names)


def _directions(values: Floats) -> Floats:
    values = values / np.maximum(np.abs(values).max(axis=1, keepdims=True), np.finfo(float).tiny)
    norm = np.linalg.norm(values, axis=1, keepdims=True)
    result: Floats = np.divide(values, norm, out=np.zeros_like(values), where=norm > 0)
    return result


def one_per_person(values: Sequence[object], people: Sequence[str], column: str) -> dict[str, str]:
    """The class or site of each participant; participants without one are left out.

    Raises
    ------
    BadInputError
        If scans of one participant have different ones.

    Examples
    --------
    >>> one_per_person(["AD", "AD", None], ["sub-2", "sub-2", "sub-1"], "diagnosis")
    {'sub-2': 'AD'}
    """
    if len(values) != len(people):
        raise BadInputError(f"column {column}: {len(values)} values for {len(people)} scans; give one per scan.")
    frame = pd.DataFrame({"who": list(people), "value": pd.Series(list(values), dtype=object)}).dropna()
    frame["value"] = frame["value"].astype(str)
    several = frame.groupby("who")["value"].nunique()
    if (several > 1).any():
        raise BadInputError(
            f"column {column}: scans of {listed(several.index[several > 1].tolist())} have different values, and the "
            "participant is the unit. Give all scans of a participant one value, such as that of the latest visit."
        )
    return dict(sorted(zip(frame["who"], frame["value"], strict=True)))
