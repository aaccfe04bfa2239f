"""Share of participants recognised: per class, per group of classes, over all classes; with draws of the bootstrap.

Each participant counts once. Shares of a group and of all are means over classes, so that the sizes of classes have no
influence: over all classes it is the balanced accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from heatlas.pipeline.evaluation.representations.points import Floats
from heatlas.pipeline.evaluation.scores.accuracy import HeldOutPeople, Scored
from heatlas.pipeline.evaluation.scores.intervals import FEWEST

ALL = "all"
"""Over all classes, or over all participants where classes play no part."""
Statistic = Callable[[Floats], Mapping[str, Floats]]
"""Numbers by name, (draws,) each, from weights of participants (draws, people)."""


def draws_within(people: Sequence[str], strata: Sequence[str], draws: int, seed: int) -> Floats:
    """How often each participant is drawn, (draws, people); within strata, so that their sizes do not change."""
    codes = np.unique(np.asarray(strata, dtype=np.str_), return_inverse=True)[1].astype(np.intp)
    return HeldOutPeople(np.asarray(people, dtype=np.str_), codes, np.ones(len(codes), bool)).weights(draws, seed)


def shares_recognised(
    right: Floats, classes_of: Sequence[str], groups: Mapping[str, Sequence[str]]
) -> Callable[[Floats], dict[str, Floats]]:
    """Shares of participants recognised, as a function of their weights.

    Parameters
    ----------
    right : array, shape (people,)
        Whether, or in what share of their scans, a participant's class is found.
    classes_of : sequence of str
        Class of each.
    groups : mapping of str to sequence of str
        Classes of each group.

    Returns
    -------
    callable
        The result has `ALL`, the groups, and each class by its name; (draws,) each.

    Examples
    --------
    >>> shares = shares_recognised(np.array([1.0, 0, 1]), ["CN", "CN", "AD"], {"head": ["CN"], "tail": ["AD"]})
    >>> {name: value.tolist() for name, value in shares(np.ones((1, 3))).items()}
    {'all': [0.75], 'head': [0.5], 'tail': [1.0], 'CN': [0.5], 'AD': [1.0]}
    """
    names = list(dict.fromkeys(name for members in groups.values() for name in members))
    members = np.array([[own == name for own in classes_of] for name in names], dtype=float)

    def shares(weights: Floats) -> dict[str, Floats]:
        total = weights @ members.T
        part = (weights * right) @ members.T
        single = np.divide(part, total, out=np.full(total.shape, np.nan), where=total > 0)
        chosen = {group: [names.index(name) for name in own] for group, own in groups.items()}
        means = {group: single[:, places].mean(axis=1) for group, places in chosen.items()}
        return {ALL: single.mean(axis=1)} | means | {name: single[:, n] for n, name in enumerate(names)}

    return shares


def scored(statistic: Statistic, weights: Floats) -> dict[str, Scored]:
    """Each number and what it is in the draws; no draws for fewer than three participants.

    Numbers of two sets of features are subtracted with the same weights (draws, people): paired differences.
    """
    once = statistic(np.ones((1, weights.shape[1])))
    draws = statistic(weights) if weights.shape[1] >= FEWEST else {name: np.full(1, np.nan) for name in once}
    return {name: Scored(float(value[0]), draws[name]) for name, value in once.items()}
