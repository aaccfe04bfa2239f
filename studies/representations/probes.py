"""What frozen features know: probes by scikit-learn, the share of people recognised, and whether they tell the site.

*Probes* are nearest neighbours and linear classifiers of features of norm 1. Votes of a tested participant are means
over their scans; each trained participant is one point among neighbours, and has a weight of 1 in linear probes.

*Shares of participants recognised* are per class, per group of classes and over all classes, with draws of the
bootstrap. Shares of a group and of all are means over classes: over all it is the balanced accuracy.

*Site*: groups of a contrastive loss may be scanners instead of diseases. Sites are permuted between participants of one
class with the same number of scans, so that an association of site and class is no evidence. Ridge regression on
indicators of the sites is linear in the labels: one fit per fold serves all permutations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from heatlas.pipeline.evaluation.scores.accuracy import FEWEST, HeldOutPeople, Scored, rank_p
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.plain_text import counted, listed
from heatlas.pipeline.run.work.seeds import derived_seed, generator
from heatlas.studies.long_tail import LongTailedParts
from heatlas.studies.representations.points import FeatureVectors, Floats

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
    """Points to train on and to test, and the class of each participant; no one is in both."""

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
        return [self.class_of[person] for person in self.training.people]

    def right(self, votes: Floats) -> Floats:
        """Whether the class with most votes, (people tested, classes), is that of the participant; 0 or 1."""
        names = sorted(set(self.trained_classes))
        found = [names[place] for place in votes.argmax(axis=1)]
        return np.array([self.class_of[who] == name for who, name in zip(self.test.people, found, strict=True)], float)


def neighbour_votes(parts: Parts, k: int) -> Floats:
    """Share of the k nearest training participants in each class, (people tested, classes), mean over scans.

    Classes are sorted by name. Where classes have as many votes, the one with the nearer neighbours has slightly more.

    Raises UsageError if there are fewer than k participants to train on.
    """
    trained = len(parts.training.people)
    if not 1 <= k <= trained:
        raise UsageError(
            f"{counted(k, 'nearest neighbour')} of {counted(trained, 'training participant')}: choose k between 1 and "
            f"{trained}, or train on more people."
        )
    by_rank = 1 + NEARER * (k - np.arange(k)) / k  # equal but for ties; distances are ascending
    near = KNeighborsClassifier(k, weights=lambda distances: np.tile(by_rank, (len(distances), 1)), algorithm="brute")
    near.fit(parts.training.centres, parts.trained_classes)
    return parts.test.mean(near.predict_proba(parts.test.values))


def linear_votes(parts: Parts) -> Floats:
    """Probability of each class by logistic regression, (people tested, classes), mean over scans.

    Features are standardised by the training part; the penalty is scikit-learn's default (C = 1) for all features, so
    that none is chosen by test accuracy. Classes are not weighted.
    """
    class_of_scan = [parts.class_of[person] for person in parts.training.participant]
    weights = parts.training.weights
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=STEPS))
    given = {f"{step}__sample_weight": weights for step in ("standardscaler", "logisticregression")}
    probe.fit(parts.training.values, class_of_scan, **given)
    return parts.test.mean(probe.predict_proba(parts.test.values))


def probed(
    points: FeatureVectors, drawn: LongTailedParts, measures: Sequence[str] = tuple(PROBES)
) -> dict[str, Floats]:
    """Whether each probe finds the class of each tested participant, (people tested,), in the order of their names.

    `points`: features of all scans; those of people in no part are not used. `measures`: names from `PROBES`.
    """
    both = (drawn.training, drawn.test)
    class_of = {person: name for part in both for name, members in part.items() for person in members}
    absent = set(class_of) - set(points.people)
    if absent:
        raise BadInputError(f"{listed(sorted(absent))} has no features; compute them for all people of the parts.")
    test, long, few = (
        points.of({person for members in part.values() for person in members})
        for part in (drawn.test, drawn.training, drawn.few)
    )
    found = {}
    for name in measures:
        parts = Parts(few if name == FEW_SHOT else long, test, class_of)
        found[name] = parts.right(neighbour_votes(parts, NEAREST[name]) if name in NEAREST else linear_votes(parts))
    return found


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
    """Shares of participants recognised, as a function of their weights: `ALL`, the groups, and each class, (draws,).

    `right`: (people,), whether, or in what share of their scans, a participant's class is found. `classes_of`: class of
    each. `groups`: classes of each group.

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


FOLDS = 5
FEWEST_OF_SITE = 5
"""Participants below which a site is left out: one for each fold."""
PERMUTATIONS = 999
EQUAL = 9
"""Decimals to which balanced accuracies are compared."""


@dataclass(frozen=True, eq=False)
class SitePrediction:
    """What was found out about sites.

    `people`, `sites`: participants at sites that are large enough, and the site of each. `right`: (people,), whether it
    was predicted. `null`: (permutations,), balanced accuracy with permuted sites. `left_out`: participants whose site
    is unknown or too small.
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

    `site_of`: participants without a site are left out, as are those of sites with fewer than five. `class_of`: sites
    are permuted within classes; people without a class count as one more.
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
