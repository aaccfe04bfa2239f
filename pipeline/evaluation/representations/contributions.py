"""Which negatives the InfoNCE loss depends on, by similarity and temperature.

The loss of an anchor is ``log(1 + c S)`` with ``S = sum_j exp(s_j / τ)`` over its negatives (up to a factor; van den
Oord et al. 2018). At a small τ, S is made of the few most similar negatives; at a large one, of the many less similar
ones (Kukleva et al. 2023, ICLR). The histogram says where S comes from, the effective number how many negatives make
it up.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr, softmax

from heatlas.pipeline.evaluation.representations.points import Floats
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.plain_text import counted

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
    result: Floats = np.divide(total, whole, out=np.full(total.shape, np.nan), where=whole > 0)
    return result


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
    scores = _negatives(similarities, temperature, excluded)
    result: Floats = np.exp(entr(softmax(scores, axis=1)).sum(axis=1))
    return result


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
