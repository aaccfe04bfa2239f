"""How features lie on the sphere: uniformity, alignment, and whether nearest neighbours have the same class.

Wang & Isola 2020 (ICML): features are uniform if those of different people are far apart, and aligned if those of one
person are close. Everything is over participants: each counts once, whatever the number of their scans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from heatlas.pipeline.evaluation.representations.points import FeatureVectors, Floats
from heatlas.pipeline.run.errors import BadInputError


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
    own = np.eye(len(points.people))[points.codes]
    between = own.T @ squared_distances(points) @ own
    scans = own.sum(axis=0)
    result: Floats = np.divide(np.diag(between), scans * (scans - 1), out=np.full(len(scans), np.nan), where=scans > 1)
    return result


def uniformity(points: FeatureVectors, t: float = 2.0) -> Callable[[Floats], Floats]:
    """Logarithm of the mean of ``exp(-t d²)`` over pairs of different participants, as a function of their weights.

    Lower is better: 0 if all features are equal, and never below -4 t. Pairs of scans of one participant are left out.

    Returns
    -------
    callable
        (draws,) from weights (draws, people); NaN in a draw of one participant only.

    Raises
    ------
    BadInputError
        For fewer than two participants.

    Examples
    --------
    >>> points = FeatureVectors(np.array([[1.0, 0], [-1, 0], [0, 1]]), np.array(["sub-1", "sub-2", "sub-3"]))
    >>> float(uniformity(points)(np.ones((1, 3)))[0]) == float(np.log((np.exp(-8) + 2 * np.exp(-4)) / 3))
    True
    """
    people = len(points.people)
    if people < 2:
        raise BadInputError("uniformity needs scans of two participants or more; there is one.")
    own = np.eye(people)[points.codes] * points.weights[:, None]
    kernel = own.T @ np.exp(-t * squared_distances(points)) @ own
    np.fill_diagonal(kernel, 0)

    def of_weights(weights: Floats) -> Floats:
        pairs = weights.sum(axis=1) ** 2 - (weights**2).sum(axis=1)
        total = ((weights @ kernel) * weights).sum(axis=1)
        result: Floats = np.log(np.divide(total, pairs, out=np.full(len(weights), np.nan), where=pairs > 0))
        return result

    return of_weights


def neighbours_agree(points: FeatureVectors, class_of: Mapping[str, str]) -> Floats:
    """Share of each participant's scans whose most similar scan of anyone else has the same class, (people,).

    The first is taken if several are equally similar.

    Raises
    ------
    BadInputError
        For fewer than two participants.

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
