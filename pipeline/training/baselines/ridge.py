"""Ridge regression, logistic for classes, with the penalty chosen inside the training part; by scikit-learn."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold, StratifiedGroupKFold
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

Floats = NDArray[np.float64]
PENALTIES = 10.0 ** np.arange(-4, 5)
"""Of standardised columns, per scan of the training part; nine, a factor of ten apart."""
INNER_FOLDS = 5


def predicted(train: Floats, target: Floats, people: Sequence[str], test: Floats, is_number: bool, seed: int) -> Floats:
    """Predictions for test scans: the probability of class 1, or the number.

    Columns are standardised, and gaps filled with the mean, by the training part. The penalty is that with the least
    log loss (squared error of a number) in five inner folds of whole people. Classes weigh the same. Where there are
    more columns than scans, they are rotated to as many as scans, which changes no prediction of a ridge.

    Parameters
    ----------
    train : array, shape (scans, columns)
    target : array, shape (scans,)
        0 and 1, or numbers.
    people : sequence of str
        Of the training scans.
    test : array, shape (test scans, columns)
    is_number : bool
    seed : int
        Of the inner folds of classes.
    """
    filled = SimpleImputer(keep_empty_features=True).fit(train)
    scaler = StandardScaler().fit(filled.transform(train))
    x, z = (scaler.transform(filled.transform(one)) for one in (train, test))
    if x.shape[1] > x.shape[0]:
        _, _, basis = np.linalg.svd(x, full_matrices=False)
        x, z = x @ basis.T, z @ basis.T
    folds = min(INNER_FOLDS, _fewest(target, people, is_number))
    scale = len(x) * PENALTIES
    if is_number:
        inner, name, values = GroupKFold(max(folds, 2)), "model__alpha", scale
        model, score = Ridge(), "neg_mean_squared_error"
    else:
        inner = StratifiedGroupKFold(max(folds, 2), shuffle=True, random_state=seed % 2**32)
        name, values = "model__C", 1 / scale
        model, score = LogisticRegression(class_weight="balanced", max_iter=2000), "neg_log_loss"
    search = GridSearchCV(Pipeline([("model", model)]), {name: list(values)}, scoring=score, cv=inner)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of penalties next to 0, which are not chosen
        search.fit(x, target, groups=list(people))
    return np.asarray(search.predict(z) if is_number else search.predict_proba(z)[:, 1], dtype=np.float64)


def _fewest(target: Floats, people: Sequence[str], is_number: bool) -> int:
    """People of the smallest class, or all."""
    names = np.asarray(people)
    if is_number:
        return len(np.unique(names))
    return min(len(np.unique(names[target == one])) for one in np.unique(target))
