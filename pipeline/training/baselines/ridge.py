"""Ridge regression, logistic for classes, with the penalty chosen inside the training part; by scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GroupKFold, StratifiedGroupKFold
from sklearn.preprocessing import StandardScaler

Floats = NDArray[np.float64]
PENALTIES = 10.0 ** np.arange(4, -5, -1)
"""Penalties of standardised columns, per scan of the training part; nine, a factor of ten apart, strongest first."""
INNER_FOLDS = 5
NO_RANK = 1e-12
"""Eigenvalues of inner products, as shares of the largest, that are rounding."""


@dataclass(frozen=True, eq=False)
class RidgeFit:
    """A fitted ridge, with outputs `x @ weights.T + intercepts`: logits of classes, or the number.

    `weights`: (outputs, columns); of two classes, those of class 1 are those of class 0 with the other sign, as softmax
    regression has them. `held_out`: (scans, outputs), outputs for the training scans by fits of the same penalty
    without the inner fold of their person.
    """

    weights: Floats
    intercepts: Floats
    penalty: float
    held_out: Floats


def fit(x: Floats, target: Floats, people: Sequence[str], classes: int, seed: int, balanced: bool = True) -> RidgeFit:
    """The ridge with the least log loss (squared error of a number) in five inner folds of whole people.

    `x`: (scans, columns), centred; if wide, rather the `rotation` of it. `target`: (scans,). `classes`: 0 for a number.
    `seed`: of the inner folds of classes. `balanced`: classes weigh the same.
    """
    splits = _inner_folds(x, target, people, classes, seed)
    rows = np.concatenate([test for _, test in splits])
    best, least = None, np.inf
    for penalty in len(x) * PENALTIES:
        held_out = np.full((len(x), classes or 1), np.nan)
        for train, test in splits:
            weights, intercepts = _solved(x[train], target[train], classes, penalty, balanced)
            held_out[test] = x[test] @ weights.T + intercepts
        loss = _loss(held_out[rows], target[rows], classes)
        if best is None or loss < least:
            best, least = (penalty, held_out), loss
    assert best is not None
    return RidgeFit(*_solved(x, target, classes, best[0], balanced), *best)


def _inner_folds(
    x: Floats, target: Floats, people: Sequence[str], classes: int, seed: int
) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    names = np.asarray(people)
    groups = [names[target == one] for one in np.unique(target)] if classes else [names]
    folds = max(min(INNER_FOLDS, *(len(np.unique(group)) for group in groups)), 2)
    if not classes:
        return list(GroupKFold(folds).split(x, target, people))
    inner = StratifiedGroupKFold(folds, shuffle=True, random_state=seed % 2**32)
    found = [(train, test) for train, test in inner.split(x, target, people) if len(set(target[train])) == classes]
    if not found:
        raise ValueError("too few people of a class to choose the penalty of a ridge")
    return found


def _solved(x: Floats, target: Floats, classes: int, penalty: float, balanced: bool) -> tuple[Floats, Floats]:
    if not classes:
        number = Ridge(penalty).fit(x, target)
        return np.atleast_2d(number.coef_), np.atleast_1d(number.intercept_)
    weighting = "balanced" if balanced else None
    model = LogisticRegression(C=1 / penalty, class_weight=weighting, tol=1e-7, max_iter=2000).fit(x, target)
    sides = np.array([[-0.5], [0.5]]) if classes == 2 else np.ones((1, 1))
    return sides * model.coef_, sides[:, 0] * model.intercept_


def _loss(outputs: Floats, target: Floats, classes: int) -> float:
    if not classes:
        return float(((outputs[:, 0] - target) ** 2).mean())
    return -float(log_softmax(outputs, axis=1)[np.arange(len(target)), target.astype(int)].mean())


def rotation(inner: Floats, columns: int) -> Floats:
    """From inner products of scans with more columns than scans to at most as many columns: ``inner @ rotation``.

    Rotated columns give what a ridge on all columns gives. They are divided by the square root of the power of ten next
    to columns / scans, so that the penalties tried suit any number of columns.

    `inner`: (scans, scans), of centred columns. Returns (scans, rotated columns). Weights of the columns x are ``x.T @
    rotation @ weights`` of the rotated ones.
    """
    values, vectors = np.linalg.eigh(inner)
    kept = values > NO_RANK * values[-1]
    found: Floats = vectors[:, kept] / np.sqrt(values[kept] * power_of_ten(columns / len(inner)))
    return found


def power_of_ten(value: float) -> float:
    """The power of ten next to a number.

    Examples
    --------
    >>> power_of_ten(2.7), power_of_ten(784)
    (1.0, 1000.0)
    """
    return float(10.0 ** round(math.log10(value)))


def predicted(
    train: NDArray[np.floating], target: Floats, people: Sequence[str], test: NDArray[np.floating], classes: int,
    seed: int,
) -> Floats:  # fmt: skip
    """Predictions for test scans: probabilities of classes (test scans, classes), or the number (test scans,).

    Columns are standardised, and gaps filled with the mean, by the training part.

    `train`: (scans, columns). `people`: of the training scans. `test`: (test scans, columns). `classes`: 0 for a
    number.
    """
    x, z = (one.astype(np.float64) for one in (train, test))  # copies, changed in place
    for step in (SimpleImputer(keep_empty_features=True, copy=False), StandardScaler(copy=False)):
        x, z = step.fit_transform(x), step.transform(z)
    if x.shape[1] > x.shape[0]:
        inner, between = x @ x.T, z @ x.T
        turn = rotation(inner, x.shape[1])
        x, z = inner @ turn, between @ turn
    found = fit(x, target, people, classes, seed)
    outputs = z @ found.weights.T + found.intercepts
    return np.asarray(softmax(outputs, axis=1) if classes else outputs[:, 0], dtype=np.float64)
