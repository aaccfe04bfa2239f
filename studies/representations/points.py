"""Features of scans as points of norm 1: whose they are, how they lie, and what a contrastive loss sees of them.

The participant is the unit: each counts once, whatever the number of their scans. The cosine similarity of two scans is
the product of their points; the order of Euclidean distances is that of the similarities, reversed.

*How features lie on the sphere* (Wang & Isola 2020, ICML): they are uniform if those of different people are far apart,
and aligned if those of one person are close; also, whether nearest neighbours have the same class.

*Which negatives the InfoNCE loss depends on*: the loss of an anchor is ``log(1 + c S)`` with ``S = sum_j exp(s_j / τ)``
over its negatives (up to a factor; van den Oord et al. 2018). At a small τ, S is made of the few most similar
negatives; at a large one, of the many less similar ones (Kukleva et al. 2023, ICLR). The histogram says where S comes
from, the effective number how many negatives make it up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import entr, softmax

from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.plain_text import counted, listed

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FeatureVectors:
    """Scans (scans, d) as points of norm 1."""

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
    """Scale the features (scans, d) of each scan to norm 1; refuses a scan without a direction: all 0, or not finite.

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
    return np.asarray(np.divide(values, norm, out=np.zeros_like(values), where=norm > 0))


def one_per_person(values: Sequence[object], people: Sequence[str], column: str) -> dict[str, str]:
    """The class or site of each participant, in all scans the same; participants without one are left out.

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


def squared_distances(points: FeatureVectors) -> Floats:
    """Squared Euclidean distance of all pairs of scans, (scans, scans), between 0 and 4."""
    return np.clip(2 - 2 * points.similarities[0], 0, 4)


def alignments(points: FeatureVectors) -> Floats:
    """Mean squared distance of two scans of each participant, (people,); NaN for those with one scan.

    Lower is better; 0 if all scans of a person have the same features.

    Examples
    --------
    >>> alignments(FeatureVectors(np.array([[1.0, 0], [0, 1], [0, 1]]), np.array(["sub-1", "sub-1", "sub-2"]))).tolist()
    [2.0, nan]
    """
    of_person = np.eye(len(points.people))[points.codes]
    between = of_person.T @ squared_distances(points) @ of_person
    scans = of_person.sum(axis=0)
    nothing = np.full(len(scans), np.nan)
    return np.asarray(np.divide(np.diag(between), scans * (scans - 1), out=nothing, where=scans > 1))


def uniformity(points: FeatureVectors, t: float = 2.0) -> Callable[[Floats], Floats]:
    """Logarithm of the mean of ``exp(-t d²)`` over pairs of different participants, as a function of their weights.

    Lower is better: 0 if all features are equal, and never below -4 t. Pairs of scans of one participant are left out.
    Returns (draws,) from weights (draws, people); NaN in a draw of one participant only.

    Returns (draws,) from weights (draws, people); NaN in a draw of one participant only. Raises BadInputError for fewer
    than two participants.

    Examples
    --------
    >>> points = FeatureVectors(np.array([[1.0, 0], [-1, 0], [0, 1]]), np.array(["sub-1", "sub-2", "sub-3"]))
    >>> float(uniformity(points)(np.ones((1, 3)))[0]) == float(np.log((np.exp(-8) + 2 * np.exp(-4)) / 3))
    True
    """
    people = len(points.people)
    if people < 2:
        raise BadInputError("uniformity needs scans of two participants or more; there is one.")
    of_person = np.eye(people)[points.codes] * points.weights[:, None]
    kernel = of_person.T @ np.exp(-t * squared_distances(points)) @ of_person
    np.fill_diagonal(kernel, 0)

    def of_weights(weights: Floats) -> Floats:
        pairs = weights.sum(axis=1) ** 2 - (weights**2).sum(axis=1)
        total = ((weights @ kernel) * weights).sum(axis=1)
        return np.asarray(np.log(np.divide(total, pairs, out=np.full(len(weights), np.nan), where=pairs > 0)))

    return of_weights


def neighbours_agree(points: FeatureVectors, class_of: Mapping[str, str]) -> Floats:
    """Share of each participant's scans whose most similar scan of anyone else has the same class, (people,).

    The first is taken if several are equally similar.

    Examples
    --------
    >>> points = FeatureVectors(np.array([[1.0, 0], [0.8, 0.6], [0, 1]]), np.array(["sub-1", "sub-2", "sub-3"]))
    >>> neighbours_agree(points, {"sub-1": "CN", "sub-2": "CN", "sub-3": "AD"}).tolist()
    [1.0, 1.0, 0.0]
    """
    if len(points.people) < 2:
        raise BadInputError("nearest neighbours need scans of two participants or more; there is one.")
    similarity, same = points.similarities
    nearest = np.where(same, -np.inf, similarity).argmax(axis=1)
    classes = np.array([class_of[person] for person in points.participant])
    return points.mean((classes == classes[nearest]).astype(float))


BINS = 100
"""Bins of width 0.02, between similarities of -1 and 1."""
CENTRES = (np.arange(BINS) + 0.5) * 2 / BINS - 1


def contributions(
    similarities: Floats, temperature: float, excluded: NDArray[np.bool_] | None = None, weights: Floats | None = None
) -> Floats:
    """Share of ``sum exp(s / τ)`` over all anchors and negatives that each bin of similarity holds.

    Parameters
    ----------
    similarities : array, shape (anchors, candidates)
        Cosine similarities, between -1 and 1.
    temperature : float
        τ, a number above 0.
    excluded : array of bool, shape (anchors, candidates), optional
        Which are no negatives: the anchor, its positive, other scans of the same participant.
    weights : array, shape (..., anchors), optional
        Weights of the anchors; 1 each by default.

    Returns
    -------
    array, shape (..., 100)
        Adds up to 1. Anchors with similar negatives count for more: they have the larger sums.

    Raises
    ------
    UsageError
        If τ is not a number above 0.
    BadInputError
        If a similarity is not between -1 and 1, or an anchor has no negatives.

    Examples
    --------
    >>> shares = contributions(np.array([[0.01, 0.01, 0.51]]), temperature=0.5 / np.log(4))
    >>> {round(float(CENTRES[n]), 2): round(float(shares[n]), 3) for n in np.flatnonzero(shares)}
    {0.01: 0.333, 0.51: 0.667}
    """
    scores = _negatives(similarities, temperature, excluded)
    there = np.isfinite(scores)
    bins = np.clip(((similarities + 1) * BINS / 2).astype(np.intp), 0, BINS - 1)
    terms = np.where(there, np.exp(scores - scores.max()), 0.0)
    place = np.arange(len(bins))[:, None] * BINS + bins
    of_anchor = np.bincount(place.ravel(), terms.ravel(), len(bins) * BINS).reshape(len(bins), BINS)
    total = (np.ones(len(bins)) if weights is None else weights) @ of_anchor
    whole = total.sum(axis=-1, keepdims=True)
    return np.asarray(np.divide(total, whole, out=np.full(total.shape, np.nan), where=whole > 0))


def peak(shares: Floats) -> Floats:
    """Similarity whose bin contributes most, shape (...), of shares (..., 100); the lowest if several do.

    It never rises with τ, and is at ``μ + σ² / τ`` for many negatives with Gaussian similarities.
    """
    return np.where(np.isnan(shares).any(axis=-1), np.nan, CENTRES[np.argmax(shares, axis=-1)])


def effective_negatives(similarities: Floats, temperature: float, excluded: NDArray[np.bool_] | None = None) -> Floats:
    """Number of equally similar negatives with the same entropy: ``exp(H(softmax(s / τ)))``, (anchors,).

    Rises with τ, from the number of most similar negatives to that of all (Hill 1973, Ecology 54:427-432).

    Parameters
    ----------
    similarities, temperature, excluded
        As of `contributions`.

    Raises
    ------
    UsageError, BadInputError
        As `contributions`.

    Examples
    --------
    >>> effective_negatives(np.array([[0.2, 0.2, 0.2], [0.9, 0.9, -1.0]]), 0.01).round(6).tolist()
    [3.0, 2.0]
    """
    return np.asarray(np.exp(entr(softmax(_negatives(similarities, temperature, excluded), axis=1)).sum(axis=1)))


def _negatives(similarities: Floats, temperature: float, excluded: NDArray[np.bool_] | None) -> Floats:
    """Return s / τ; minus infinity for what is excluded."""
    if not (np.isfinite(temperature) and temperature > 0):
        raise UsageError(f"temperature = {temperature}: give a number above 0, such as 0.1.")
    if not (np.abs(similarities) <= 1 + 1e-6).all():
        raise BadInputError("similarities must be between -1 and 1: scale features to norm 1 before they are compared.")
    none = np.zeros(similarities.shape, bool) if excluded is None else excluded
    lonely = int(none.all(axis=1).sum())
    if lonely or not similarities.size:
        raise BadInputError(
            f"{counted(lonely, 'anchor', 'has')} no negatives. Scans of other participants are needed to compare with."
        )
    return np.where(none, -np.inf, similarities / temperature)
