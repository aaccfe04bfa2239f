"""Whether features tell the site of a participant: groups of a contrastive loss may be scanners instead of diseases.

A linear classifier, trained and tested on different participants. Sites are permuted between participants of one class
with the same number of scans, so that an association of site and class is no evidence. Ridge regression on indicators
of the sites (scikit-learn) is linear in the labels: one fit per fold serves all permutations; a logistic regression
would be fitted for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from heatlas.pipeline.evaluation.representations.points import FeatureVectors, Floats
from heatlas.pipeline.evaluation.scores.accuracy import rank_p
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.work.seeds import derived_seed, generator

FOLDS = 5
FEWEST_OF_SITE = 5
"""Participants below which a site is left out: one for each fold."""
PERMUTATIONS = 999
EQUAL = 9
"""Decimals to which balanced accuracies are compared."""


@dataclass(frozen=True, eq=False)
class SitePrediction:
    """What was found out about sites.

    Parameters
    ----------
    people, sites : tuple of str
        Participants at sites that are large enough, and the site of each.
    right : array, shape (people,)
        Whether the site of each was predicted, 0 or 1.
    null : array, shape (permutations,)
        Balanced accuracy with permuted sites.
    left_out : int
        Participants whose site is unknown or too small.
    """

    people: tuple[str, ...]
    sites: tuple[str, ...]
    right: Floats
    null: Floats
    left_out: int

    @property
    def chance(self) -> float:
        return 1 / len(set(self.sites))

    @property
    def balanced_accuracy(self) -> float:
        """Mean over sites of the share of their participants whose site was predicted."""
        codes = np.unique(self.sites, return_inverse=True)[1]
        return float((np.bincount(codes, self.right) / np.bincount(codes)).mean())

    @property
    def p(self) -> float:
        """One-sided (b + 1) / (m + 1); NaN without permutations."""
        return rank_p(-round(self.balanced_accuracy, EQUAL), -self.null.round(EQUAL))


def predicted_sites(
    points: FeatureVectors,
    site_of: Mapping[str, str],
    class_of: Mapping[str, str] | None = None,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> SitePrediction:
    """Predict the site of each participant from the mean direction of their scans.

    Parameters
    ----------
    points : FeatureVectors
    site_of : mapping of str to str
        Site of participants; those without are left out, as are those of sites with fewer than five.
    class_of : mapping of str to str, optional
        Sites are permuted within classes; people without a class count as one more.
    permutations, seed : int

    Raises
    ------
    BadInputError
        If fewer than two sites have enough participants.
    """
    sizes = Counter(site_of[person] for person in points.people if person in site_of)
    large = sorted(site for site, size in sizes.items() if size >= FEWEST_OF_SITE)
    if len(large) < 2:
        raise BadInputError(
            f"column site: {counted(len(large), 'site')} with {FEWEST_OF_SITE} or more participants; two are needed to "
            "ask whether features tell sites apart. Leave out this measure, or add scans of other sites."
        )
    chosen = [n for n, person in enumerate(points.people) if site_of.get(person) in large]
    people = tuple(points.people[n] for n in chosen)
    site = np.array([large.index(site_of[person]) for person in people])
    scans = np.bincount(points.codes)[chosen]
    alike = [f"{(class_of or {}).get(person, '')} {count}" for person, count in zip(people, scans, strict=True)]
    folds = KFold(FOLDS, shuffle=True, random_state=derived_seed(seed, "site signal", "folds"))
    parts = _answers(points.centres[chosen], list(folds.split(site)))
    orders = within(alike, permutations, generator(seed, "site signal", "orders"))
    found = _right(parts, site, len(large))
    null = np.array([_balanced(_right(parts, site[order], len(large)), site[order]) for order in orders])
    return SitePrediction(people, tuple(large[code] for code in site), found, null, len(points.people) - len(people))


def within(alike: Sequence[str], count: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Random orders of participants, (count, people), that exchange only those with the same text."""
    kinds = np.asarray(alike)
    orders = np.tile(np.arange(len(kinds)), (count, 1))
    for name in np.unique(kinds):
        members = np.flatnonzero(kinds == name)
        orders[:, members] = rng.permuted(np.tile(members, (count, 1)), axis=1)
    return orders


Fold = tuple[NDArray[np.intp], NDArray[np.intp], Floats]


def _answers(features: Floats, folds: Sequence[tuple[NDArray[np.intp], NDArray[np.intp]]]) -> list[Fold]:
    """Rows of each training and test part, and the matrix (tested, trained) from training labels to predictions."""
    parts = []
    for train, test in folds:
        probe = make_pipeline(StandardScaler(), Ridge(alpha=features.shape[1]))
        parts.append((train, test, probe.fit(features[train], np.eye(len(train))).predict(features[test])))
    return parts


def _right(parts: Sequence[Fold], site: NDArray[np.intp], sites: int) -> Floats:
    """Whether the out-of-fold prediction is right, (people,); scores are relative to the share of a site in training.

    Without that, the largest site would be predicted for most.
    """
    right = np.zeros(len(site))
    for train, test, matrix in parts:
        indicator = np.eye(sites)[site[train]]
        share = indicator.mean(axis=0)
        score = matrix @ indicator
        score = np.divide(score, share, out=np.full(score.shape, -np.inf), where=share > 0)
        right[test] = score.argmax(axis=1) == site[test]
    return right


def _balanced(right: Floats, site: NDArray[np.intp]) -> float:
    return float((np.bincount(site, right) / np.bincount(site)).mean())
