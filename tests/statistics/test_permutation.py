"""Exchange of participants: what moves, how many ways there are, and p values against scipy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from pipeline.statistics.correlation import permuted_correlations
from pipeline.statistics.permutation import block_permutations, regroupings, two_sided_p


@given(st.lists(st.integers(0, 5), min_size=1, max_size=14), st.integers(0, 100))
def test_whole_participants_move_to_participants_with_as_many_scans(raw, seed):
    codes = np.unique(raw, return_inverse=True)[1]
    rows = block_permutations(codes, 20, np.random.default_rng(seed)).rows
    sizes = np.bincount(codes)
    for row in rows:
        assert sorted(row) == list(range(len(codes)))
        for code in range(len(sizes)):
            source = row[codes == code]
            (origin,) = np.unique(codes[source])
            assert sizes[origin] == sizes[code]
            assert (source == np.flatnonzero(codes == origin)).all()


def test_all_permutations_are_used_when_there_are_no_more():
    codes = np.array([0, 0, 1, 2, 2, 3, 4])  # two pairs and three single scans: 2! x 3!
    some = block_permutations(codes, 12, np.random.default_rng(0))
    assert some.exact
    assert len({tuple(row) for row in some.rows}) == len(some) == 12
    assert tuple(range(7)) in {tuple(row) for row in some.rows}
    assert not block_permutations(codes, 11, np.random.default_rng(0)).exact


def test_exact_p_of_a_correlation_equals_scipy_and_brute_force():
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=6), rng.normal(size=6)
    permutations = block_permutations(np.arange(6), 1000, rng)
    assert permutations.exact
    assert len(permutations) == math.factorial(6)
    for name, function in (("pearson", scipy.stats.pearsonr), ("spearman", scipy.stats.spearmanr)):
        observed = function(x, y).statistic
        null = permuted_correlations(x, y, permutations.rows, name)
        brute = [function(np.array(order), y).statistic for order in itertools.permutations(x)]
        assert sorted(null) == pytest.approx(sorted(brute), abs=1e-12)
        expected = np.mean(np.abs(brute) >= abs(observed) - 1e-12)
        assert float(two_sided_p(np.array(observed), null, exact=True)) == expected
    oracle = scipy.stats.permutation_test(
        (x,), lambda z: abs(scipy.stats.pearsonr(z, y).statistic), permutation_type="pairings",
        alternative="greater", n_resamples=np.inf,
    )  # fmt: skip
    null = permuted_correlations(x, y, permutations.rows, "pearson")
    own = two_sided_p(np.array(scipy.stats.pearsonr(x, y).statistic), null, exact=True)
    assert float(own) == pytest.approx(oracle.pvalue, abs=1e-12)


def test_random_p_counts_the_observed_order_once():
    null = np.array([0.1, -0.5, 0.4, 0.2])
    assert float(two_sided_p(np.array(0.45), null, exact=False)) == 2 / 5
    assert float(two_sided_p(np.array(-0.9), null, exact=False)) == 1 / 5
    assert np.isnan(two_sided_p(np.array(np.nan), null, exact=False))


def test_regroupings_keep_class_sizes_and_are_complete_when_few():
    members = np.array([True, True, False, False, False])
    every = regroupings(members, 10, np.random.default_rng(0))
    assert every.exact
    assert len({tuple(row) for row in every.first}) == 10
    some = regroupings(members, 9, np.random.default_rng(0))
    assert not some.exact
    assert (some.first.sum(axis=1) == 2).all()
    assert len(some) == 9


def random_intercepts(rng, participant, icc):
    """Repeated measures whose intraclass correlation is `icc`."""
    shared = rng.normal(size=participant.max() + 1)[participant]
    return np.sqrt(icc) * shared + np.sqrt(1 - icc) * rng.normal(size=len(participant))


@pytest.mark.parametrize("icc", [0.5, 0.9])
def test_error_rate_without_an_effect(icc):
    """28 participants with 67 scans as in the founding study: 5 % for participants, far more for shuffled scans.

    Volume has an intraclass correlation of .95, relevance of `icc`; no effect; 1,000 data sets.
    """
    rng = np.random.default_rng(int(icc * 100))
    participant = np.repeat(np.arange(28), [3] * 15 + [2] * 9 + [1] * 4)
    assert len(participant) == 67
    sizes = np.bincount(participant)
    rejected = dict.fromkeys(("participants", "blocks of scans", "scans"), 0)
    n_data = 1000
    for _ in range(n_data):
        x, y = random_intercepts(rng, participant, 0.95), random_intercepts(rng, participant, icc)
        means = [np.bincount(participant, values) / sizes for values in (x, y)]
        for name, a, b, codes in (
            ("participants", *means, np.arange(28)),
            ("blocks of scans", x, y, participant),
            ("scans", x, y, np.arange(67)),
        ):
            rows = block_permutations(codes, 199, rng).rows
            null = permuted_correlations(a, b, rows, "pearson")
            rejected[name] += two_sided_p(np.corrcoef(a, b)[0, 1], null, exact=False) <= 0.05
    rates = {name: count / n_data for name, count in rejected.items()}
    print(f"ICC {icc}: {rates}")
    assert 0.035 <= rates["participants"] <= 0.065
    assert 0.03 <= rates["blocks of scans"] <= 0.07
    assert rates["scans"] >= 0.10
