"""Correlation of participants with several rows, its interval, and sign flips: by hand, and how often they err."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from heatlas.pipeline.statistics.linear.correlation import (
    clustered_t,
    correlation_interval,
    error_of_z,
    fisher_interval,
    is_constant,
    standardised,
)
from heatlas.pipeline.statistics.linear.permutations import Exchangeability, two_sided_p
from heatlas.pipeline.statistics.linear.studentised import critical_values
from heatlas.pipeline.statistics.resampling.means import sign_flip_test, transformed_t


@pytest.mark.parametrize(
    ("estimator", "oracle"), [("pearson", scipy.stats.pearsonr), ("spearman", scipy.stats.spearmanr)]
)
def test_r_is_that_of_scipy_and_t_sums_products_over_participants(estimator, oracle):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=15).round(1), rng.lognormal(size=15)
    codes = np.array([0, 0, 1, 2, 2, 2, 3, 4, 5, 5, 6, 7, 1, 8, 9])
    a, b = (standardised(values, estimator) for values in (x, y))
    rows = np.array([np.arange(15), rng.permutation(15)])
    r, t = clustered_t(a, b, codes, 8, rows)
    assert r[0] == pytest.approx(oracle(x, y).statistic, abs=1e-12)
    for order, found, studentised in zip(rows, r, t, strict=True):
        sums = [sum(a[order][i] * b[i] for i in range(15) if codes[i] == person) for person in range(10)]
        assert found == pytest.approx(sum(sums))
        by_hand = found * np.sqrt(8 / ((1 - found**2) * 10 * np.square(sums).sum()))
        assert studentised == pytest.approx(by_hand)


def test_constant_is_meant_up_to_rounding():
    assert is_constant(np.array([0.1 + 0.2, 0.3, 0.3]))
    assert is_constant(np.zeros(3))
    assert not is_constant(np.array([1.0, 1.0 + 1e-6]))


def test_critical_values_are_what_p_takes():
    sizes = np.arange(1.0, 100.0)[None]  # of 99 permutations p is at most 5 % if 4 or fewer are as large
    assert critical_values(sizes, 0.95, exact=False)[0] == 95  # above it there are 4
    assert critical_values(sizes, 0.95, exact=True)[0] == 95  # 4 of 99
    assert np.isnan(critical_values(sizes[:, :18], 0.95, exact=False)).all()
    assert np.isnan(critical_values(sizes[:, :19], 0.95, exact=True)).all()  # the observed one alone is 1 of 19
    assert critical_values(sizes[:, :20], 0.95, exact=True)[0] == 19
    assert critical_values(sizes[:, :19], 0.95, exact=False)[0] == 19


@pytest.mark.parametrize(("truth", "n", "spread"), [(0.0, 20, 1.0), (0.5, 40, 1.0), (0.8, 60, 1.0), (0.0, 60, 2.0)])
def test_the_interval_of_a_correlation_covers_it_and_agrees_with_p(truth, n, spread):
    """400 data sets; a quarter of the people vary `spread` times as much in both variables."""
    rng = np.random.default_rng(int(100 * truth + n + spread))
    wide = np.where(np.arange(n) < n / 4, spread, 1.0)
    misses = 0
    for _ in range(400):
        x = rng.normal(size=n)
        y = truth * x + np.sqrt(1 - truth**2) * rng.normal(size=n)
        a, b = (standardised(values * wide, "pearson") for values in (x, y))
        codes = np.arange(n)
        (r,), (t,) = clustered_t(a, b, codes, n - 2, codes[None])
        rows = Exchangeability.free(n).permutations(199, rng).rows
        null = clustered_t(a, b, codes, n - 2, rows)[1]
        p = np.array([float(two_sided_p(np.array(t), null, False))])
        critical = critical_values(np.abs(null)[None], 0.95, False)
        _, low, high = correlation_interval(np.array([r]), np.array([t]), critical, p, 0.05)
        assert (low[0] > 0 or high[0] < 0) == (p[0] <= 0.05)
        misses += not low[0] <= truth <= high[0]
    assert 0.025 <= misses / 400 <= 0.08, misses


def test_the_error_of_a_correlation_is_about_that_of_leaving_participants_out():
    """The jackknife of Fisher's z, with participants of one to three rows; and 1 / sqrt(n) for many normal pairs."""
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(40), rng.integers(1, 4, 40))
    x = rng.lognormal(size=len(codes))
    y = x + rng.lognormal(size=len(codes))

    def z(rows):
        return np.arctanh(np.corrcoef(x[rows], y[rows])[0, 1])

    left_out = np.array([z(codes != one) for one in range(40)])
    jackknife = np.sqrt(39 / 40 * ((left_out - left_out.mean()) ** 2).sum())
    found = error_of_z(standardised(x, "pearson"), standardised(y, "pearson"), codes, 39)
    assert found == pytest.approx(jackknife, rel=0.1)
    a = rng.normal(size=20_000)
    b = 0.8 * a + 0.6 * rng.normal(size=20_000)
    many = error_of_z(standardised(a, "pearson"), standardised(b, "pearson"), np.arange(20_000), 20_000)
    assert many == pytest.approx(1 / np.sqrt(20_000), rel=0.05)


@pytest.mark.parametrize(("kind", "truth"), [("normal", 0.8), ("ranks", 0.8), ("lognormal", 0.5)])
def test_intervals_away_from_zero_miss_about_as_often_as_they_say(kind, truth):
    """600 data sets of 30 people; with the error of t 12 % (ranks) and 9 % (lognormal, sigma .6) missed."""
    rng, estimator = np.random.default_rng(9), "spearman" if kind == "ranks" else "pearson"
    true = {"normal": truth, "ranks": 6 / np.pi * np.arcsin(truth / 2),
            "lognormal": np.expm1(truth * 0.36) / np.expm1(0.36)}[kind]  # fmt: skip
    misses, codes = 0, np.arange(30)
    for _ in range(600):
        x = rng.normal(size=30)
        y = truth * x + np.sqrt(1 - truth**2) * rng.normal(size=30)
        x, y = (np.exp(0.6 * x), np.exp(0.6 * y)) if kind == "lognormal" else (x, y)
        a, b = standardised(x, estimator), standardised(y, estimator)
        (r,), (t,) = clustered_t(a, b, codes, 28, codes[None])
        p, critical = 2 * scipy.stats.t.sf(abs(t), 28), scipy.stats.t.isf(0.025, 28)
        low, high = fisher_interval(r, t, error_of_z(a, b, codes, 28), 28, critical, p, 0.95)
        misses += not low <= true <= high
    assert 0.02 <= misses / 600 <= 0.08, misses


def test_the_interval_of_a_correlation_agrees_with_its_p():
    for sign in (1, -1):  # t reaches its critical value: the bound near 0 gives way, the other does not
        near, far = np.arctanh(np.abs(fisher_interval(sign * 0.4, sign * 2.5, 0.3, 20, 2.1, 0.02, 0.95)[::sign]))
        assert near == pytest.approx(np.arctanh(0.4) * (1 - 2.1 / 2.5))
        assert far == pytest.approx(np.arctanh(0.4) + scipy.stats.t.isf(0.025, 20) * 0.3)
    low, high = fisher_interval(0.4, 2.0, 0.1, 20, 2.1, 0.06, 0.95)
    assert low == 0  # z excludes 0, p does not
    assert high == pytest.approx(np.tanh(np.arctanh(0.4) + scipy.stats.t.isf(0.025, 20) * 0.1))
    assert np.isnan(fisher_interval(0.4, 2.0, 0.1, 20, np.nan, 0.25, 0.95)).all()


def hall(t, g, n):
    return t + g * t**2 / (3 * np.sqrt(n)) + g**2 * t**3 / (27 * n) + g / (6 * np.sqrt(n))


def test_hall_s_t_by_hand_and_its_interval_solves_it():
    rng = np.random.default_rng(3)
    values = rng.exponential(size=(12, 1)) - 0.4
    u = values / np.linalg.norm(values)
    found, skewness = transformed_t(u.sum(axis=0), (u**3).sum(axis=0), 12)
    t, g = scipy.stats.ttest_1samp(values[:, 0], 0).statistic, scipy.stats.skew(values[:, 0])
    assert skewness[0] == pytest.approx(g)
    assert found[0] == pytest.approx(hall(t, g, 12))
    weights = rng.uniform(0.5, 2, size=(12, 1))
    test = sign_flip_test(values, weights, 999, rng)
    assert test.estimate[0] == pytest.approx(np.average(values[:, 0], weights=weights[:, 0]))
    weighted = values[:, 0] * weights[:, 0]
    sizes = []
    for bound in (test.low[0], test.high[0]):
        t = (weighted.mean() - bound * weights.mean()) / (weighted.std(ddof=1) / np.sqrt(12))
        sizes.append(abs(hall(t, scipy.stats.skew(weighted), 12)))
    assert sizes[0] == pytest.approx(sizes[1], rel=1e-6)  # both are the critical value


def test_sign_flips_are_exact_for_symmetric_values_and_near_it_for_skewed_ones():
    rng = np.random.default_rng(6)
    normal = sign_flip_test(rng.normal(size=(9, 2000)), np.ones((9, 2000)), 199, rng)
    assert 0.035 <= (normal.p <= 0.05).mean() <= 0.065
    outside = (normal.low > 0) | (normal.high < 0)
    assert (outside <= (normal.p <= 0.05)).all()
    skewed = rng.lognormal(size=(40, 2000)) - np.exp(0.5)
    plain = scipy.stats.ttest_1samp(skewed, 0).pvalue
    assert (plain <= 0.05).mean() > 0.085
    assert (sign_flip_test(skewed, np.ones((40, 2000)), 199, rng).p <= 0.05).mean() <= 0.08
