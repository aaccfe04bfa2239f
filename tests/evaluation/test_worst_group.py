"""The worst group: what chance gives, by brute force; bounds, and how often they hold."""

from __future__ import annotations

import itertools
from math import comb

import numpy as np
import pytest

from heatlas.studies.marker.marker_groups import Chance, GroupAnswers, chance_of_worst, mean_of_classes, worst_interval


def tossed(people: tuple[int, ...], opposite: bool) -> dict[float, float]:
    """Probability of each worst group, over every way in which the coins of all people can fall."""
    found: dict[float, float] = {}
    for falls in itertools.product((0, 1), repeat=sum(people)):
        one = np.array(falls, dtype=float)
        of_class = np.repeat([False, True], people)
        worst = GroupAnswers(one, 1 - one if opposite else one, of_class).worst
        found[worst] = found.get(worst, 0) + 0.5 ** sum(people)
    return found


@pytest.mark.parametrize("people", [(1, 1), (3, 3), (2, 5), (4, 7)])
@pytest.mark.parametrize("opposite", [False, True])
def test_chance_is_that_of_all_ways_in_which_coins_fall(people: tuple[int, int], opposite: bool) -> None:
    wanted = tossed(people, opposite)
    found = chance_of_worst(people, opposite=opposite)
    assert found.expected == pytest.approx(sum(value * share for value, share in wanted.items()), abs=1e-12)
    for bound, level in ((found.low, 0.025), (found.high, 0.975)):
        assert sum(share for value, share in wanted.items() if value <= bound + 1e-12) >= level
        assert sum(share for value, share in wanted.items() if value < bound - 1e-12) < level


def test_chance_of_four_groups_that_are_tossed_apart_is_the_least_of_four_binomials() -> None:
    one = [comb(6, k) / 64 for k in range(7)]
    ways = itertools.product(range(7), repeat=4)
    wanted = sum(np.prod([one[k] for k in falls]) * min(falls) / 6 for falls in ways)
    assert chance_of_worst((6, 6, 6, 6)).expected == pytest.approx(wanted, abs=1e-12)


def test_chance_of_the_mean_of_seeds_is_that_of_every_triple() -> None:
    own = tossed((2, 3), opposite=False)
    means: dict[float, float] = {}
    for falls in itertools.product(own.items(), repeat=3):
        mean = sum(value for value, _ in falls) / 3
        means[mean] = means.get(mean, 0) + float(np.prod([share for _, share in falls]))
    found = chance_of_worst((2, 3), seeds=3)
    assert found.expected == pytest.approx(sum(value * share for value, share in means.items()))
    assert sum(share for value, share in means.items() if value <= found.low + 1e-9) >= 0.025
    assert sum(share for value, share in means.items() if value < found.high - 1e-9) < 0.975


def test_chance_in_the_study_of_fifteen_people_a_group_as_an_auditor_simulated_it() -> None:
    found = chance_of_worst((15, 15), seeds=3)
    assert [round(value, 2) for value in (found.expected, found.low, found.high)] == [0.43, 0.31, 0.56]
    apart = chance_of_worst((15, 15, 15, 15), seeds=3)
    assert [round(value, 2) for value in (apart.expected, apart.low, apart.high)] == [0.37, 0.27, 0.47]
    assert np.isnan([*vars(chance_of_worst((0, 3))).values()]).all()
    assert isinstance(found, Chance)


@pytest.mark.ci
def test_the_interval_of_the_worst_group_holds_it_in_95_of_100_and_the_estimate_always() -> None:
    random = np.random.default_rng(1)
    for shares in ((0.5, 0.5, 0.5, 0.5), (0.97, 0.05, 0.05, 0.97), (0.9, 0.2, 0.3, 0.9), (0.8, 0.7, 0.75, 0.8)):
        right = random.binomial(15, shares, size=(400, 4))
        bounds = [worst_interval(one, (15,) * 4) for one in right.tolist()]
        assert all(low <= one.min() / 15 <= high for (low, high), one in zip(bounds, right, strict=True))
        held = np.mean([low <= min(shares) <= high for low, high in bounds])
        assert held >= 0.93  # 95 % less two standard errors of 400
    assert worst_interval((0, 3), (3, 3))[0] == 0
    assert np.isnan(worst_interval((0, 0), (0, 3))).all()


@pytest.mark.ci
def test_an_interval_of_a_difference_holds_its_estimate_and_the_truth_where_that_of_a_least_value_does_not() -> None:
    """A network that follows the marker against a coin, three seeds, 15 people of each class, people in common."""
    random, held, of_class = np.random.default_rng(2), [], np.repeat([False, True], 15)
    percentile = []
    for _ in range(300):
        control, coin = random.random((3, 2, 30)) < 0.03, random.random((3, 2, 30)) < 0.5
        control[:, 0, ~of_class] = random.random((3, 15)) < 0.97
        control[:, 1, of_class] = random.random((3, 15)) < 0.97
        values = [
            np.mean([GroupAnswers(plain.astype(float), marked.astype(float), of_class).per_person["against_training"]
                     for plain, marked in seeds], axis=0)
            for seeds in (control, coin)
        ]  # fmt: skip
        middle, low, high = mean_of_classes(values[1] - values[0], of_class)
        assert low <= middle <= high
        held.append(low <= 0.47 <= high)
        drawn = np.stack([random.integers(0, 15, (200, 15)), random.integers(15, 30, (200, 15))], 1)
        worst = [seeds[:, :, drawn].mean(-1).min((1, 3)).mean(0) for seeds in (control, coin)]
        ends = np.quantile(worst[1] - worst[0], (0.025, 0.975))
        percentile.append(ends[0] <= 0.47 <= ends[1])
    assert np.mean(held) >= 0.92
    assert np.mean(percentile) < 0.5


def test_nobody_who_differs_gives_no_interval() -> None:
    of_class = np.array([False, False, True, True])
    assert mean_of_classes(np.zeros(4), of_class) == pytest.approx((0, np.nan, np.nan), nan_ok=True)
    assert mean_of_classes(np.array([1.0, 0.0, 1.0]), np.array([False, False, True]))[0] == 0.75
    assert np.isnan(mean_of_classes(np.ones(2), np.array([True, True]))).all()
