"""Probes of features: blobs, chance, brute force, and the participant as the unit."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.studies.long_tail import LongTailedParts, long_tailed_parts
from heatlas.studies.representations.points import FeatureVectors, one_per_person, points_of
from heatlas.studies.representations.probes import (
    PROBES,
    Parts,
    draws_within,
    linear_votes,
    neighbour_votes,
    probed,
    scored,
    shares_recognised,
)

SIZES = {"CN": 44, "MCI": 36, "AD": 28}


def cohort(seed: int, spread: float) -> tuple[FeatureVectors, dict[str, str]]:
    """Blobs of three classes in seven dimensions; every third participant has two scans, every ninth three."""
    rng, names, rows = np.random.default_rng(seed), [], []
    class_of = {f"sub-{name}{n:02d}": name for name, size in SIZES.items() for n in range(size)}
    for n, (person, name) in enumerate(class_of.items()):
        for _ in range(1 + (n % 3 == 0) + (n % 9 == 0)):
            names.append(person)
            rows.append(np.eye(7)[list(SIZES).index(name)] + spread * rng.standard_normal(7))
    return points_of(np.array(rows) * 3.0, names), class_of


def test_separable_blobs_are_recognised_by_all_probes() -> None:
    points, class_of = cohort(0, 0.05)
    right = probed(points, long_tailed_parts(class_of, 2))
    assert list(right) == list(PROBES)
    assert all((found == 1).all() and len(found) == 21 for found in right.values())


def test_each_linear_probe_is_trained_on_its_part() -> None:
    points, class_of = cohort(6, 0.6)
    parts = long_tailed_parts(class_of, 6)
    right = probed(points, parts, ("few_shot_probe", "long_tail_probe"))
    test = points.of({person for own in parts.test.values() for person in own})
    for name, part in (("few_shot_probe", parts.few), ("long_tail_probe", parts.training)):
        own = Parts(points.of({person for people in part.values() for person in people}), test, class_of)
        assert (right[name] == own.right(linear_votes(own))).all()
    assert (right["few_shot_probe"] != right["long_tail_probe"]).any()


def test_shuffled_labels_are_recognised_by_chance() -> None:
    found: dict[str, list[float]] = {name: [] for name in PROBES}
    points, class_of = cohort(1, 0.5)
    for seed in range(12):
        labels = np.random.default_rng(seed).permutation(list(class_of.values()))
        parts = long_tailed_parts(dict(zip(class_of, labels.tolist(), strict=True)), 2, test_share=0.5, seed=seed)
        for name, right in probed(points, parts).items():
            found[name].append(right.mean())  # the test part is balanced
    for name, shares in found.items():
        assert np.mean(shares) == pytest.approx(1 / 3, abs=4 * np.sqrt(2 / 9 / (42 * 12))), name


@pytest.mark.parametrize("k", [1, 4, 10])
def test_neighbours_equal_brute_force(k: int) -> None:
    points, class_of = cohort(2, 0.6)
    people = np.array(points.people)
    training, test = points.of(people[::2]), points.of(people[1::2])
    votes = neighbour_votes(Parts(training, test, class_of), k)
    for place, person in enumerate(test.people):
        own = []
        for scan in test.values[test.participant == person]:
            similarity = {
                other: float(scan @ (mean := training.values[training.participant == other].mean(axis=0)))
                / float(np.linalg.norm(mean))
                for other in training.people
            }
            nearest = Counter(class_of[other] for other in sorted(similarity, key=lambda who: -similarity[who])[:k])
            own.append([nearest[name] / k for name in sorted(SIZES)])
        assert votes[place] == pytest.approx(np.mean(own, axis=0), abs=1e-6)


def test_equal_votes_go_to_the_nearer_class() -> None:
    angles = np.array([0.1, 0.3, 0.2, 0.4])  # of four trained participants from the one tested
    points = points_of(
        [*np.stack([np.cos(angles), np.sin(angles)], axis=1), [1, 0]], ["sub-1", "sub-2", "sub-3", "sub-4", "sub-5"]
    )
    for nearer, farther in (("AD", "CN"), ("CN", "AD")):
        class_of = {"sub-1": nearer, "sub-2": farther, "sub-3": farther, "sub-4": nearer, "sub-5": nearer}
        parts = Parts(points.of({f"sub-{n}" for n in range(1, 5)}), points.of({"sub-5"}), class_of)
        assert parts.right(neighbour_votes(parts, 2)).tolist() == [1]  # one vote each


def test_scans_of_a_person_count_once() -> None:
    """Repeating the scans of some people, trained or tested, changes no probe."""
    points, class_of = cohort(3, 0.8)
    single = points_of(points.centres, points.people)
    rows = np.repeat(np.arange(len(single.people)), np.arange(len(single.people)) % 3 + 1)
    repeated = points_of(single.values[rows], np.array(single.people)[rows].tolist())
    halves = (single.people[::2], single.people[1::2])
    one, several = (Parts(own.of(halves[0]), own.of(halves[1]), class_of) for own in (single, repeated))
    assert np.abs(neighbour_votes(one, 10) - neighbour_votes(several, 10)).max() < 1e-12
    assert np.abs(linear_votes(one) - linear_votes(several)).max() < 1e-3  # up to the solver's tolerance


def test_no_one_is_trained_on_and_tested_and_all_classes_are_trained_on() -> None:
    points, class_of = cohort(4, 0.5)
    with pytest.raises(BadInputError, match="trained on and tested"):
        Parts(points.of(points.people[:60]), points.of(points.people[59:]), class_of)
    with pytest.raises(BadInputError, match="class MCI has nobody to train on"):
        Parts(points.of({p for p in points.people if "MCI" not in p}), points.of({"sub-MCI03"}), class_of)
    with pytest.raises(UsageError, match=r"40 nearest neighbours of 30 training participants"):
        neighbour_votes(Parts(points.of(points.people[20:50]), points.of({"sub-AD03"}), class_of), 40)
    parts = LongTailedParts(("CN", "AD"), {"CN": ("sub-x",), "AD": ("sub-AD01",)}, {}, {"CN": ("sub-CN01",)})
    with pytest.raises(BadInputError, match="sub-x has no features"):
        probed(points, parts)


def test_shares_are_means_over_classes_and_differences_are_paired() -> None:
    classes = ["CN"] * 6 + ["MCI"] * 3 + ["AD"] * 2
    groups = {"head": ("CN",), "tail": ("MCI", "AD")}
    right = np.array([1, 1, 1, 1, 1, 0, 1, 0, 0, 0.5, 1.0])
    shares = shares_recognised(right, classes, groups)
    values = {name: float(value[0]) for name, value in shares(np.ones((1, 11))).items()}
    assert values["all"] == pytest.approx((5 / 6 + 1 / 3 + 3 / 4) / 3)
    assert values["tail"] == pytest.approx((1 / 3 + 3 / 4) / 2)
    weights = draws_within([f"sub-{n:02d}" for n in range(11)], classes, 400, 0)
    assert (weights[:, :6].sum(axis=1) == 6).all()  # drawn within classes
    assert (weights[:, 9:].sum(axis=1) == 2).all()
    first = scored(shares, weights)
    low, high = first["CN"].interval
    assert low < values["CN"] < high <= 1
    same = (first["all"] - scored(shares, weights)["all"]).interval
    assert np.isnan(same).all()  # a difference that is 0 in every draw has no width
    better = scored(shares_recognised(np.maximum(right, [0] * 5 + [1] + [0] * 5), classes, groups), weights)
    assert (better["CN"] - first["CN"]).value == pytest.approx(1 / 6)
    assert (better["CN"] - first["CN"]).draws.min() >= 0  # paired: it is nowhere worse
    assert np.isnan(
        scored(shares_recognised(right[:2], classes[:2], {"head": ("CN",)}), np.ones((9, 2)))["all"].interval
    ).all()


def test_features_and_classes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadInputError, match="one row of features per scan"):
        points_of(np.ones((3, 2)), ["sub-1", "sub-2"])
    with pytest.raises(BadInputError, match="features of sub-1, sub-3 are all 0 or not finite"):
        points_of([[0, 0], [1, 0], [np.nan, 1]], ["sub-1", "sub-2", "sub-3"])
    with pytest.raises(BadInputError, match="scans of sub-2 have different values"):
        one_per_person(["CN", "CN", "AD"], ["sub-1", "sub-2", "sub-2"], "diagnosis")
