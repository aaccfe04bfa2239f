"""Probes of frozen features: nearest neighbours and linear classifiers, by scikit-learn.

Features have norm 1. Votes of a tested participant are means over their scans. Among neighbours, each trained
participant is one point (the mean direction of their scans), so that k neighbours are k people; in linear probes, the
scans of a participant have a weight of 1 together. No one may be trained on and tested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from heatlas.pipeline.cohort.people.long_tail import LongTailedParts
from heatlas.pipeline.evaluation.representations.points import FeatureVectors, Floats
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.plain_text import counted, listed

KNN_1, KNN_10 = "knn_1", "knn_10"
FEW_SHOT, LONG_TAIL = "few_shot_probe", "long_tail_probe"
PROBES = {
    KNN_1: "class of the nearest participant of the long-tailed training part",
    KNN_10: "most frequent class of the 10 nearest",
    FEW_SHOT: "logistic regression on as many training participants of each class as the rarest has",
    LONG_TAIL: "logistic regression on the long-tailed training part",
}
NEAREST = {KNN_1: 1, KNN_10: 10}
NEARER = 1e-6
"""Weight of one rank among neighbours, against 1 for a vote: it decides ties only, which the first class would win."""
STEPS = 2000
"""Most steps of the solver of logistic regression."""


@dataclass(frozen=True, eq=False)
class Parts:
    """Points to train on and to test, and the class of each participant; no one is in both.

    Parameters
    ----------
    training, test : FeatureVectors
    class_of : mapping of str to str
    """

    training: FeatureVectors
    test: FeatureVectors
    class_of: Mapping[str, str]

    def __post_init__(self) -> None:
        both = set(self.training.people) & set(self.test.people)
        if both:
            raise BadInputError(f"{listed(sorted(both))} would be trained on and tested; put all scans into one part.")
        unknown = (set(self.training.people) | set(self.test.people)) - set(self.class_of)
        if unknown:
            raise BadInputError(f"{listed(sorted(unknown))} has no class; add it, or leave the scans out.")
        unseen = {self.class_of[person] for person in self.test.people} - set(self.trained_classes)
        if unseen:
            raise BadInputError(
                f"class {listed(sorted(unseen))} has nobody to train on. Add participants who have it, or leave it out."
            )
        if len(set(self.trained_classes)) < 2:
            raise BadInputError("a probe needs training participants of two classes or more; there is one.")

    @property
    def trained_classes(self) -> list[str]:
        """Class of each participant trained on."""
        return [self.class_of[person] for person in self.training.people]

    def right(self, votes: Floats) -> Floats:
        """Whether the class with most votes, (people tested, classes), is that of the participant; 0 or 1."""
        names = sorted(set(self.trained_classes))
        found = [names[place] for place in votes.argmax(axis=1)]
        return np.array([self.class_of[who] == name for who, name in zip(self.test.people, found, strict=True)], float)


def neighbour_votes(parts: Parts, k: int) -> Floats:
    """Share of the k nearest training participants in each class, (people tested, classes), mean over scans.

    Classes are sorted by name. Where classes have as many votes, the one with the nearer neighbours has slightly more.

    Raises
    ------
    UsageError
        If there are fewer than k participants to train on.
    """
    trained = len(parts.training.people)
    if not 1 <= k <= trained:
        raise UsageError(
            f"{counted(k, 'nearest neighbour')} of {counted(trained, 'training participant')}: choose k between 1 and "
            f"{trained}, or train on more people."
        )
    near = KNeighborsClassifier(k, weights=_by_rank, algorithm="brute")
    near.fit(parts.training.centres, parts.trained_classes)
    return parts.test.mean(near.predict_proba(parts.test.values))


def _by_rank(distances: Floats) -> Floats:
    """Equal weights (scans, k) but for ties; distances are ascending."""
    k = distances.shape[1]
    return np.tile(1 + NEARER * (k - np.arange(k)) / k, (len(distances), 1))


def linear_votes(parts: Parts) -> Floats:
    """Probability of each class by logistic regression, (people tested, classes), mean over scans.

    Features are standardised by the training part; the penalty is scikit-learn's default (C = 1) for all features, so
    that none is chosen by test accuracy. Classes are not weighted.
    """
    class_of_scan = [parts.class_of[person] for person in parts.training.participant]
    weights = parts.training.weights
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=STEPS))
    probe.fit(
        parts.training.values, class_of_scan,
        standardscaler__sample_weight=weights, logisticregression__sample_weight=weights,
    )  # fmt: skip
    return parts.test.mean(probe.predict_proba(parts.test.values))


def probed(
    points: FeatureVectors, drawn: LongTailedParts, measures: Sequence[str] = tuple(PROBES)
) -> dict[str, Floats]:
    """Whether each probe finds the class of each tested participant.

    Parameters
    ----------
    points : FeatureVectors
        Features of all scans; those of people in no part are not used.
    drawn : LongTailedParts
    measures : sequence of str
        Names from `PROBES`.

    Returns
    -------
    dict of str to array, shape (people tested,)
        0 or 1, in the order of ``points.of(test).people``.

    Raises
    ------
    BadInputError
        If someone in a part has no scan.
    UsageError
        See `neighbour_votes`.
    """
    class_of = {person: name for part in (drawn.training, drawn.test) for name, own in part.items() for person in own}
    absent = set(class_of) - set(points.people)
    if absent:
        raise BadInputError(f"{listed(sorted(absent))} has no features; compute them for all people of the parts.")
    test, long, few = (
        points.of({person for own in part.values() for person in own})
        for part in (drawn.test, drawn.training, drawn.few)
    )
    found = {}
    for name in measures:
        parts = Parts(few if name == FEW_SHOT else long, test, class_of)
        found[name] = parts.right(neighbour_votes(parts, NEAREST[name]) if name in NEAREST else linear_votes(parts))
    return found
