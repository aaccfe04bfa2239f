"""Representations: features of the same people, probes, contributions, and long tails."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.work.seeds import generator
from heatlas.studies.long_tail import LongTailedParts, groups_of, long_tailed_counts, long_tailed_parts
from heatlas.studies.representations.points import (
    CENTRES,
    FeatureVectors,
    alignments,
    contributions,
    effective_negatives,
    neighbours_agree,
    one_per_person,
    peak,
    points_of,
    uniformity,
)
from heatlas.studies.representations.probes import (
    PROBES,
    Parts,
    draws_within,
    linear_votes,
    neighbour_votes,
    predicted_sites,
    probed,
    scored,
    shares_recognised,
    within,
)
from heatlas.studies.representations.table import MEASURES, REPRESENTATIONS_TABLE, judged

# ``representations.tsv``: one table for several sets of features on the same people.

CLASSES = ("CN", "MCI", "AD")


def cohort() -> tuple[dict[str, np.ndarray], list[str], list[str], list[str], LongTailedParts]:
    """120 people, every fourth with two scans; good features tell the class, poor ones the site."""
    rng = np.random.default_rng(0)
    kinds = {f"sub-{n:03d}": (CLASSES[n % 3], "site-" + "AB"[n // 3 % 2]) for n in range(120)}
    people = [person for n, person in enumerate(kinds) for _ in range(1 + (n % 4 == 0))]
    labels, sites = [kinds[person][0] for person in people], [kinds[person][1] for person in people]
    noise = lambda: rng.standard_normal((len(people), 8))  # noqa: E731
    good = noise() * 0.1 + [np.eye(8)[CLASSES.index(name)] for name in labels]
    poor = noise() * 0.3 + [np.eye(8)[5 if site == "site-A" else 6] for site in sites]
    parts = long_tailed_parts({person: name for person, (name, _) in kinds.items()}, 3, classes=CLASSES)
    return {"poor": poor, "good": good[:, :6]}, people, labels, sites, parts


def test_the_table_says_which_features_are_better_where() -> None:
    features, people, labels, sites, parts = cohort()
    table = judged(features, people, labels, parts, sites, draws=200, permutations=49)
    assert list(table.columns) == list(REPRESENTATIONS_TABLE.meanings) == list(REPRESENTATIONS_TABLE.columns)
    assert set(table["measure"]) == set(MEASURES)
    assert not table.duplicated(["features", "measure", "classes", "temperature"]).any()
    assert table[list(REPRESENTATIONS_TABLE.filled)].notna().all(axis=None)
    keys = ["features", "measure", "classes"]  # of pandas before 3, a repeated key makes every answer a table
    cell = table.drop_duplicates(keys).set_index(keys).sort_index()
    for measure in ("knn_1", "knn_10", "few_shot_probe", "long_tail_probe", "neighbour_agreement"):
        assert (cell.loc[("good", measure), "estimate"] == 1).all()
        assert {*cell.loc[("good", measure)].index} == {"all", "head", "mid", "tail", *CLASSES}
        better, worse = cell.loc[("good", measure, "all")], cell.loc[("poor", measure, "all")]
        assert better["difference"] == pytest.approx(1 - worse["estimate"])
        assert better["chance"] == pytest.approx(1 / 3)
        assert 0 < better["difference_low"] <= better["difference"] <= better["difference_high"]
        assert worse["ci_low"] < worse["estimate"] < worse["ci_high"]
        assert worse["estimate"] == pytest.approx(
            np.mean([cell.loc[("poor", measure, name), "estimate"] for name in CLASSES])
        )
        assert pd.isna(worse["difference"])
        assert pd.isna(better["ci_low"])
        assert "no interval" in better["note"]
    assert cell.loc[("good", "few_shot_probe", "all"), "n_training"] == 3 * parts.shots
    assert cell.loc[("good", "knn_1", "all"), "n_training"] == sum(map(len, parts.training.values()))
    assert cell.loc[("good", "knn_1", "all"), "n_participants"] == 30
    assert cell.loc[("good", "knn_1", "tail"), "n_participants"] == 10
    assert cell.loc[("poor", "site", "all"), "estimate"] > 0.95
    assert cell.loc[("poor", "site", "all"), "p"] == pytest.approx(1 / 50)
    assert cell.loc[("good", "site", "all"), "p"] > 0.05
    assert cell.loc[("good", "site", "all"), "n_participants"] == 120


def test_properties_of_the_loss_are_means_over_tested_people() -> None:
    features, people, labels, _, parts = cohort()
    table = judged(features, people, labels, parts, temperatures=(0.1, 1.0), draws=100)
    assert "site" not in set(table["measure"])
    test = points_of(features["good"], people).of({person for own in parts.test.values() for person in own})
    similar, same = test.similarities
    own = table[(table["features"] == "good") & (table["measure"] == "effective_negatives")]
    expected = [test.mean(effective_negatives(similar, one, same)).mean() for one in (0.1, 1.0)]
    assert own["estimate"].tolist() == pytest.approx(expected)
    assert (own["ci_low"] < own["estimate"]).all()
    peaks = table[(table["features"] == "good") & (table["measure"] == "contribution_peak")]["estimate"].tolist()
    assert peaks[0] >= peaks[1]
    assert judged(features, people, labels, parts, draws=100).equals(table)  # repeatable


def test_an_anchor_of_many_scans_counts_as_one_person() -> None:
    """With 60 scans of one person, the peak is still that of the histogram with a weight of 1 for each person."""
    features, people, labels, _, parts = cohort()
    rows = [*range(len(people)), *[people.index(parts.test["CN"][0])] * 59]
    values = features["good"][rows] + 0.02 * np.random.default_rng(1).standard_normal((len(rows), 6))
    names, temperatures = [people[row] for row in rows], np.geomspace(0.02, 5, 30).tolist()
    table = judged({"good": values}, names, [labels[row] for row in rows], parts, temperatures=temperatures, draws=20)
    found = table[table["measure"] == "contribution_peak"]["estimate"].tolist()
    test = points_of(values, names).of({person for own in parts.test.values() for person in own})
    similar, same = test.similarities
    weighted, plain = (
        [float(peak(contributions(similar, one, same, weights))) for one in temperatures]
        for weights in (1 / np.array([(test.participant == who).sum() for who in test.participant]), None)
    )
    assert found == pytest.approx(weighted)
    assert found != pytest.approx(plain)


def test_what_cannot_be_computed_has_a_note() -> None:
    features, people, labels, _, parts = cohort()
    small = LongTailedParts(parts.classes, {name: own[:2] for name, own in parts.few.items()}, parts.few, parts.test)
    small = LongTailedParts(parts.classes, small.training, small.training, parts.test)
    first = dict(zip(people, range(len(people)), strict=True)).values()  # one scan each
    own = {name: values[list(first)] for name, values in features.items()}
    names, classes = [people[row] for row in first], [labels[row] for row in first]
    table = judged(own, names, classes, small, ["A"] * len(names), draws=50)
    table = table.drop_duplicates(["features", "measure", "classes"]).set_index(["features", "measure", "classes"])
    assert table.loc[("good", "knn_10", "all"), "note"] == "only 6 people to train on"
    assert pd.isna(table.loc[("good", "knn_10", "all"), "estimate"])
    assert table.loc[("good", "knn_1", "all"), "estimate"] == 1
    assert "no one in the test part has two scans" in table.loc[("good", "alignment", "all"), "note"]
    assert "1 site with" in table.loc[("poor", "site", "all"), "note"]


def test_tables_that_cannot_be_made_are_refused() -> None:
    features, people, labels, _, parts = cohort()
    with pytest.raises(UsageError, match="no features"):
        judged({}, people, labels, parts)
    with pytest.raises(BadInputError, match="another class"):
        judged(features, people, ["AD" if name == "CN" else name for name in labels], parts)
    with pytest.raises(UsageError, match="temperature"):
        judged(features, people, labels, parts, temperatures=(0.0,), draws=20)


# Probes of features: blobs, chance, brute force, and the participant as the unit.

SIZES = {"CN": 44, "MCI": 36, "AD": 28}


def probes_cohort(seed: int, spread: float) -> tuple[FeatureVectors, dict[str, str]]:
    """Blobs of three classes in seven dimensions; every third participant has two scans, every ninth three."""
    rng, names, rows = np.random.default_rng(seed), [], []
    class_of = {f"sub-{name}{n:02d}": name for name, size in SIZES.items() for n in range(size)}
    for n, (person, name) in enumerate(class_of.items()):
        for _ in range(1 + (n % 3 == 0) + (n % 9 == 0)):
            names.append(person)
            rows.append(np.eye(7)[list(SIZES).index(name)] + spread * rng.standard_normal(7))
    return points_of(np.array(rows) * 3.0, names), class_of


def test_separable_blobs_are_recognised_by_all_probes() -> None:
    points, class_of = probes_cohort(0, 0.05)
    right = probed(points, long_tailed_parts(class_of, 2))
    assert list(right) == list(PROBES)
    assert all((found == 1).all() and len(found) == 21 for found in right.values())


def test_each_linear_probe_is_trained_on_its_part() -> None:
    points, class_of = probes_cohort(6, 0.6)
    parts = long_tailed_parts(class_of, 6)
    right = probed(points, parts, ("few_shot_probe", "long_tail_probe"))
    test = points.of({person for own in parts.test.values() for person in own})
    for name, part in (("few_shot_probe", parts.few), ("long_tail_probe", parts.training)):
        own = Parts(points.of({person for people in part.values() for person in people}), test, class_of)
        assert (right[name] == own.right(linear_votes(own))).all()
    assert (right["few_shot_probe"] != right["long_tail_probe"]).any()


def test_shuffled_labels_are_recognised_by_chance() -> None:
    found: dict[str, list[float]] = {name: [] for name in PROBES}
    points, class_of = probes_cohort(1, 0.5)
    for seed in range(12):
        labels = np.random.default_rng(seed).permutation(list(class_of.values()))
        parts = long_tailed_parts(dict(zip(class_of, labels.tolist(), strict=True)), 2, test_share=0.5, seed=seed)
        for name, right in probed(points, parts).items():
            found[name].append(right.mean())  # the test part is balanced
    for name, shares in found.items():
        assert np.mean(shares) == pytest.approx(1 / 3, abs=4 * np.sqrt(2 / 9 / (42 * 12))), name


@pytest.mark.parametrize("k", [1, 4, 10])
def test_neighbours_equal_brute_force(k: int) -> None:
    points, class_of = probes_cohort(2, 0.6)
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
    points, class_of = probes_cohort(3, 0.8)
    single = points_of(points.centres, points.people)
    rows = np.repeat(np.arange(len(single.people)), np.arange(len(single.people)) % 3 + 1)
    repeated = points_of(single.values[rows], np.array(single.people)[rows].tolist())
    halves = (single.people[::2], single.people[1::2])
    one, several = (Parts(own.of(halves[0]), own.of(halves[1]), class_of) for own in (single, repeated))
    assert np.abs(neighbour_votes(one, 10) - neighbour_votes(several, 10)).max() < 1e-12
    assert np.abs(linear_votes(one) - linear_votes(several)).max() < 1e-3  # up to the solver's tolerance


def test_no_one_is_trained_on_and_tested_and_all_classes_are_trained_on() -> None:
    points, class_of = probes_cohort(4, 0.5)
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


# What the contrastive loss depends on, how features cover the sphere, and what they say of the site.

TEMPERATURES = (0.03, 0.07, 0.1, 0.2, 0.5, 1.0, 5.0)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), anchors=st.integers(1, 9), negatives=st.integers(1, 40))
def test_the_peak_falls_and_the_number_of_negatives_rises_with_temperature(
    seed: int, anchors: int, negatives: int
) -> None:
    similarities = np.random.default_rng(seed).uniform(-1, 1, (anchors, negatives))
    shares = [contributions(similarities, one) for one in TEMPERATURES]
    assert [float(share.sum()) for share in shares] == pytest.approx([1.0] * len(shares))
    assert (np.diff([float(peak(share)) for share in shares]) <= 0).all()
    numbers = np.array([effective_negatives(similarities, one) for one in TEMPERATURES])
    assert (np.diff(numbers, axis=0) >= -1e-9 * negatives).all()
    assert (numbers >= 1 - 1e-9).all()
    assert (numbers <= negatives + 1e-9).all()


@pytest.mark.parametrize(("mean", "spread", "temperature"), [(-0.1, 0.1, 0.05), (0.2, 0.07, 0.02), (0.0, 0.2, 0.5)])
def test_the_peak_of_gaussian_similarities(mean: float, spread: float, temperature: float) -> None:
    """The product of a Gaussian density and exp(s / τ) is a Gaussian around μ + σ² / τ."""
    similarities = mean + spread * ndtri((np.arange(400_000) + 0.5) / 400_000)
    found = peak(contributions(similarities.clip(-1, 1)[None], temperature))
    assert float(found) == pytest.approx(mean + spread**2 / temperature, abs=0.02)


def test_at_a_large_temperature_the_histogram_is_that_of_negatives() -> None:
    similarities = np.random.default_rng(0).uniform(-0.9, 0.9, (3, 500))
    counts, _ = np.histogram(similarities, bins=100, range=(-1, 1))
    assert contributions(similarities, 1e6) == pytest.approx(counts / 1500, abs=1e-6)
    assert effective_negatives(similarities, 1e6) == pytest.approx(500)
    assert effective_negatives(np.full((2, 7), 0.3), 0.07) == pytest.approx(7)  # equal similarities, any temperature


def test_contributions_by_hand_with_excluded_pairs_and_weights() -> None:
    similarities = np.array([[1.0, 0.5, -0.5, 0.7], [0.5, 1.0, 0.3, -1.0]])
    excluded = np.array([[1, 0, 0, 1], [0, 1, 0, 0]], dtype=bool)
    expected = np.zeros(100)
    for row, weight in ((0, 2.0), (1, 1.0)):
        for score, left in zip(similarities[row], excluded[row], strict=True):
            if not left:
                expected[np.abs(CENTRES - score - 1e-9).argmin()] += weight * np.exp(score / 0.5)
    found = contributions(similarities, 0.5, excluded, np.array([2.0, 1.0]))
    assert found == pytest.approx(expected / expected.sum())
    shares = np.exp(np.array([0.5, -0.5]) / 0.5) / np.exp(np.array([0.5, -0.5]) / 0.5).sum()
    assert effective_negatives(similarities, 0.5, excluded)[0] == pytest.approx(
        np.exp(-(shares * np.log(shares)).sum())
    )


def test_shares_are_those_of_the_gradient_of_the_loss() -> None:
    """For one anchor, the gradient by a negative's similarity is its share of the negatives times the same factor."""
    similarities = torch.linspace(-0.95, 0.93, 20, dtype=torch.float64, requires_grad=True)
    loss = torch.logaddexp(torch.tensor(0.8 / 0.2), torch.logsumexp(similarities / 0.2, 0)) - 0.8 / 0.2
    (gradient,) = torch.autograd.grad(loss, similarities)
    share = contributions(similarities.detach().numpy()[None], 0.2)
    assert share[share > 0] == pytest.approx((gradient / gradient.sum()).numpy())


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: contributions(np.zeros((1, 2)), 0), UsageError, "temperature = 0"),
        (lambda: effective_negatives(np.zeros((1, 2)), float("nan")), UsageError, "above 0"),
        (lambda: contributions(np.full((1, 2), 3.0), 1), BadInputError, "between -1 and 1"),
        (
            lambda: effective_negatives(np.zeros((2, 2)), 1, np.array([[True, True], [False, True]])),
            BadInputError,
            "1 anchor has no negatives",
        ),
        (lambda: uniformity(points_of([[1, 0]], ["sub-1"])), BadInputError, "two participants"),
        (lambda: neighbours_agree(points_of([[1, 0]], ["sub-1"]), {}), BadInputError, "two participants"),
    ],
)
def test_what_cannot_be_measured_is_refused(call: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()  # type: ignore[operator]


def test_coverage_equals_brute_force_over_pairs() -> None:
    rng = np.random.default_rng(5)
    names = [f"sub-{n}" for n in (0, 0, 0, 1, 2, 2, 3, 4)]
    points = points_of(rng.standard_normal((8, 3)), names)
    distance = ((points.values[:, None] - points.values[None]) ** 2).sum(axis=2)
    people = list(points.people)
    kernel, own = np.zeros((5, 5)), np.full(5, np.nan)
    for one, first in enumerate(people):
        for two, second in enumerate(people):
            pairs = [
                distance[i, j]
                for i in range(8)
                for j in range(8)
                if names[i] == first and names[j] == second and i != j
            ]
            if one != two:
                kernel[one, two] = np.mean(np.exp(-2 * np.array(pairs)))
            elif pairs:
                own[one] = np.mean(pairs)
    weights = np.array([[1.0, 1, 1, 1, 1], [2, 0, 1, 0, 2]])
    drawn = [0, 0, 2, 4, 4]
    pairs = [kernel[i, j] for i in drawn for j in drawn if i != j]
    assert uniformity(points)(weights) == pytest.approx([np.log(kernel.sum() / 20), np.log(np.mean(pairs))])
    assert alignments(points) == pytest.approx(own, nan_ok=True)
    classes = dict(zip(people, ["CN", "CN", "AD", "AD", "CN"], strict=True))
    agree = []
    for person in people:
        rows = [i for i in range(8) if names[i] == person]
        near = [min((j for j in range(8) if names[j] != person), key=lambda j, i=i: distance[i, j]) for i in rows]
        agree.append(np.mean([classes[names[j]] == classes[person] for j in near]))
    assert neighbours_agree(points, classes) == pytest.approx(agree)


def test_uniformity_has_its_bounds_and_equal_features_are_aligned() -> None:
    equal = points_of(np.ones((4, 3)), ["sub-1", "sub-1", "sub-2", "sub-3"])
    assert uniformity(equal)(np.ones((1, 3)))[0] == pytest.approx(0)
    assert alignments(equal)[0] == pytest.approx(0)
    poles = points_of([[1.0, 0], [-1, 0]], ["sub-1", "sub-2"])
    assert uniformity(poles)(np.ones((1, 2)))[0] == pytest.approx(-8)


def sites(seed: int, shift: float, people: int = 60) -> tuple[np.ndarray, list[str], dict[str, str]]:
    rng = np.random.default_rng(seed)
    names = [f"sub-{n:03d}" for n in range(people)]
    site_of = {name: "AABC"[n % 4] for n, name in enumerate(names)}
    rows = rng.standard_normal((people, 6)) + shift * np.array(
        [np.eye(6)["ABC".index(site_of[name])] for name in names]
    )
    return rows, names, site_of


@pytest.mark.ci
def test_a_planted_site_is_found_and_random_sites_are_at_chance() -> None:
    rows, names, site_of = sites(0, 9.0)
    found = predicted_sites(points_of(rows, names), site_of, permutations=99)
    assert found.balanced_accuracy == 1.0
    assert found.p == 1 / 100
    assert found.chance == pytest.approx(1 / 3)
    random = [predicted_sites(points_of(*sites(seed, 0.0)[:2]), site_of, permutations=19) for seed in range(40)]
    assert np.mean([one.balanced_accuracy for one in random]) == pytest.approx(1 / 3, abs=0.05)
    p = np.array([one.p for one in random])
    assert ((p * 20) % 1 < 1e-9).all() or np.allclose(p * 20, np.rint(p * 20))
    assert 0.4 < p.mean() < 0.65  # uniform: 0.525 expected


@pytest.mark.ci
def test_a_site_that_only_follows_the_class_is_no_evidence() -> None:
    """Features tell the class, and sites have different shares of patients: permuted within classes, p is not small."""
    p, plain = [], []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        names = [f"sub-{n:03d}" for n in range(80)]
        class_of = {name: "AD" if n % 2 else "CN" for n, name in enumerate(names)}
        site_of = {name: "A" if (rng.random() < 0.8) == (class_of[name] == "AD") else "B" for name in names}
        rows = rng.standard_normal((80, 5)) + [[4.0 * (class_of[name] == "AD"), 0, 0, 0, 0] for name in names]
        points = points_of(rows, names)
        p.append(predicted_sites(points, site_of, class_of, 99, seed).p)
        plain.append(predicted_sites(points, site_of, None, 99, seed).p)
    assert np.median(plain) == 0.01  # without classes it would be taken for evidence
    assert np.mean(p) > 0.25


def test_orders_stay_within_classes_and_people_stay_together() -> None:
    orders = within(["CN", "AD", "CN", "CN", "AD"], 50, np.random.default_rng(0))
    kinds = np.array(["CN", "AD", "CN", "CN", "AD"])
    assert (kinds[orders] == kinds).all()
    assert (np.sort(orders, axis=1) == np.arange(5)).all()
    assert len(np.unique(orders, axis=0)) > 6
    rows, names, site_of = sites(1, 1.0)
    repeated = predicted_sites(points_of(np.repeat(rows, 3, axis=0), np.repeat(names, 3).tolist()), site_of, None, 19)
    once = predicted_sites(points_of(rows, names), site_of, None, 19)
    assert repeated.people == tuple(names)
    assert (repeated.right == once.right).all()


def test_the_null_is_the_prediction_of_permuted_sites() -> None:
    rows, names, site_of = sites(3, 1.0, 40)
    points, seed = points_of(rows, names), 5
    found = predicted_sites(points, site_of, None, 4, seed)
    orders = within([" 1"] * 40, 4, generator(seed, "site signal", "orders"))
    for value, order in zip(found.null, orders, strict=True):
        permuted = {names[n]: site_of[names[other]] for n, other in enumerate(order)}
        assert value == predicted_sites(points, permuted, None, 0, seed).balanced_accuracy


def test_one_site_is_refused_and_small_ones_are_counted() -> None:
    rows, names, site_of = sites(2, 1.0, 20)
    few = {**site_of, names[0]: "D"}
    assert predicted_sites(points_of(rows, names), few, None, 5).left_out == 1
    with pytest.raises(BadInputError, match="1 site with 5 or more participants"):
        predicted_sites(points_of(rows, names), dict.fromkeys(names, "A"), None, 5)


# Long-tailed cohorts: counts, parts without common participants, refusals.


def people(**sizes: int) -> dict[str, str]:
    return {f"sub-{name}{n}": name for name, size in sizes.items() for n in range(size)}


@pytest.mark.parametrize("ratio", [10, 50, 100, 150])
def test_counts_of_the_long_tailed_cifar(ratio: int) -> None:
    """Of ten classes with 5,000 images, as in the literature: exponential, first over last is the ratio."""
    counts = np.array(long_tailed_counts([5000] * 10, ratio))
    assert counts[0] == 5000
    assert counts[-1] == round(5000 / ratio)
    assert np.diff(np.log(counts)) == pytest.approx(np.full(9, -np.log(ratio) / 9), abs=0.03)


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 400), min_size=2, max_size=7), ratio=st.floats(1, 100))
def test_counts_hold_the_ratio_up_to_rounding_and_use_all_there_are(sizes: list[int], ratio: float) -> None:
    shares = ratio ** (-np.arange(len(sizes)) / (len(sizes) - 1))
    if (sizes / shares).min() < ratio:  # the last class would have less than one
        with pytest.raises(UsageError, match="at most"):
            long_tailed_counts(sizes, ratio)
        return
    counts = long_tailed_counts(sizes, ratio)
    assert all(1 <= count <= size for count, size in zip(counts, sizes, strict=True))
    assert sorted(counts, reverse=True) == list(counts)
    assert (counts[0] - 0.5) / (counts[-1] + 0.5) <= ratio * (1 + 1e-9)
    assert (counts[0] + 0.5) / (counts[-1] - 0.5) >= ratio * (1 - 1e-9)
    assert any(count == size for count, size in zip(counts, sizes, strict=True))  # no more were possible


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(8, 60), min_size=2, max_size=4),
    ratio=st.floats(1, 5),
    share=st.floats(0.1, 0.6),
    seed=st.integers(0, 99),
)
def test_parts_share_no_one_and_are_balanced_where_they_should_be(
    sizes: list[int], ratio: float, share: float, seed: int
) -> None:
    class_of = people(**{name: size for name, size in zip("abcd", sizes, strict=False)})
    try:
        parts = long_tailed_parts(class_of, ratio, share, seed=seed)
    except UsageError:
        return  # too few people for the ratio
    training = {person for own in parts.training.values() for person in own}
    test = {person for own in parts.test.values() for person in own}
    assert not training & test
    assert {len(own) for own in parts.few.values()} == {parts.shots} == {min(map(len, parts.training.values()))}
    assert len({len(own) for own in parts.test.values()}) == 1
    for name in parts.classes:
        assert set(parts.few[name]) <= set(parts.training[name])
        assert {class_of[person] for part in (parts.training, parts.test) for person in part[name]} == {name}
        assert len(set(parts.training[name])) == len(parts.training[name])
    sizes_of_training = [len(parts.training[name]) for name in parts.classes]
    assert sizes_of_training == sorted(sizes_of_training, reverse=True)


def test_another_ratio_draws_from_the_same_people() -> None:
    class_of = people(CN=80, MCI=60, AD=40)
    mild, steep = long_tailed_parts(class_of, 2, seed=3), long_tailed_parts(class_of, 10, seed=3)
    assert mild.test == steep.test
    assert [len(mild.training[name]) for name in mild.classes] == [60, 42, 30]
    assert [len(steep.training[name]) for name in steep.classes] == [70, 22, 7]
    assert set(steep.training["AD"]) < set(mild.training["AD"])
    assert steep == long_tailed_parts(dict(reversed(class_of.items())), 10, seed=3)  # whatever the order of rows
    assert steep.test != long_tailed_parts(class_of, 10, seed=4).test
    assert long_tailed_parts(class_of, 4, classes=("AD", "CN", "MCI")).classes == ("AD", "CN", "MCI")


def test_groups_of_the_literature() -> None:
    sizes = lambda count: [len(own) for own in groups_of([f"{n}" for n in range(count)]).values()]  # noqa: E731
    assert sizes(10) == [4, 3, 3]
    assert sizes(100) == [34, 33, 33]
    assert groups_of(["CN", "MCI", "AD"]) == {"head": ("CN",), "mid": ("MCI",), "tail": ("AD",)}


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: long_tailed_parts(people(CN=9), 2, classes=("CN", "AD")),
            BadInputError,
            "class AD has no participant",
        ),
        (lambda: long_tailed_parts(people(CN=9, AD=1), 2), BadInputError, "class AD has 1 participant"),
        (lambda: long_tailed_parts(people(CN=9, AD=9), 50), UsageError, "ratio of at most 7"),
        (lambda: long_tailed_parts(people(CN=9, AD=9), 0.5), UsageError, "1 or more"),
        (lambda: long_tailed_parts(people(CN=9), 2), UsageError, "at least two"),
        (lambda: long_tailed_parts(people(CN=9, AD=9), 2, classes=("CN",)), UsageError, "AD is missing"),
        (lambda: long_tailed_parts(people(CN=9, AD=9), 2, test_share=1.0), UsageError, "test_share"),
    ],
)
def test_cohorts_that_cannot_be_drawn_are_refused(call: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()  # type: ignore[operator]
