"""Correlations under exchange of participants: p values against scipy, error rate for repeated scans."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from pipeline.statistics.associations.correlation import permuted_correlations
from pipeline.statistics.linear.exchangeability import Exchangeability, two_sided_p


def test_exact_p_of_a_correlation_equals_scipy_and_brute_force():
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=6), rng.normal(size=6)
    permutations = Exchangeability.free(6).permutations(1000, rng)
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
            rows = Exchangeability("whole", codes).permutations(199, rng).rows
            null = permuted_correlations(a, b, rows, "pearson")
            rejected[name] += two_sided_p(np.corrcoef(a, b)[0, 1], null, exact=False) <= 0.05
    rates = {name: count / n_data for name, count in rejected.items()}
    print(f"ICC {icc}: {rates}")
    assert 0.035 <= rates["participants"] <= 0.065
    assert 0.03 <= rates["blocks of scans"] <= 0.07
    assert rates["scans"] >= 0.10
