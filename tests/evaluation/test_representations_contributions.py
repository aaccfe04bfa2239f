"""What the contrastive loss depends on, how features cover the sphere, and what they say of the site."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.work.seeds import generator
from heatlas.studies.representations.points import (
    CENTRES,
    alignments,
    contributions,
    effective_negatives,
    neighbours_agree,
    peak,
    points_of,
    uniformity,
)
from heatlas.studies.representations.probes import predicted_sites, within

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
