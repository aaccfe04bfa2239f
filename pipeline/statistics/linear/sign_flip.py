"""Sign-flipping test of a weighted mean against zero, one value per participant, for many columns at once.

Under the null hypothesis each participant's value is as likely to be as much above zero as below it, whatever its
variance (Fisher 1935; Winkler et al. 2014, NeuroImage 92, for the general linear model). The statistic of the weighted
values u, with t their Student's t, g their skewness and a = g / (3 sqrt(n)), is Hall's (1992, J. R. Stat. Soc. B
54:221)

    H = t + a t^2 + a^2 t^3 / 3 + a / 2 = ((1 + a t)^3 - 1) / (3 a) + a / 2,

which changes sign with the values, so p is exact where they are symmetric, and rejects less where they are skewed: of
40 lognormal values 6.7 % at 5 % (t: 10.5), of 15 11 % (13.5). It rises with t, so its interval is closed. Weights may
depend on anything that flips do not change, such as the sizes of the values.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.linear.exchangeability import two_sided_p
from heatlas.pipeline.statistics.linear.studentised import critical_values


@dataclass(frozen=True, eq=False)
class SignFlipTest:
    """Result for every column; arrays have shape (columns,), NaN where all values are 0 or one is missing.

    Parameters
    ----------
    estimate, low, high : array
        Weighted mean, and its interval: the means that the statistic, with the critical value of the flips, does not
        reject. It excludes 0 exactly where p is at most 1 - confidence.
    statistic, skewness : array
        H and g.
    p, p_fwe : array
        Two-sided p; p against the largest |H| of all columns under the same flips (max-T).
    n_permutations : int
        Flips used.
    exact : bool
        True if these are all distinct ones.
    """

    estimate: Floats
    low: Floats
    high: Floats
    statistic: Floats
    skewness: Floats
    p: Floats
    p_fwe: Floats
    n_permutations: int
    exact: bool


def sign_flip_test(
    values: Floats, weights: Floats, m: int, rng: np.random.Generator, confidence: float = 0.95
) -> SignFlipTest:
    """Test whether participants' values are symmetric about zero.

    `values` (participants, columns). `weights` (participants, columns): positive. `m`: random flips; if there are no
    more distinct ones, 2^(participants - 1) as a flip of all changes nothing in a two-sided test, all of them. Memory:
    8 bytes x m x (participants + columns).
    """
    u = values * weights
    length = np.linalg.norm(u, axis=0)
    usable = np.isfinite(length) & (length > 0)
    u = u[:, usable] / length[usable]
    signs, exact = sign_flips(len(values), m, rng)
    n = len(u)
    observed, skewness = transformed_t(u.sum(axis=0), (u**3).sum(axis=0), n)
    null = np.abs(transformed_t(signs @ u, signs @ u**3, n)[0])
    largest = null.max(axis=1, initial=0.0)[:, None]
    p, p_fwe = two_sided_p(observed, null, exact), two_sided_p(observed, largest, exact)
    bounds = _not_rejected(u, skewness, critical_values(null.T, confidence, exact))
    scale = n * length[usable] / weights[:, usable].sum(axis=0)
    estimate = u.mean(axis=0) * scale
    inside = p > 1 - confidence
    low = np.where(inside, np.minimum(bounds[0] * scale, 0.0), bounds[0] * scale)
    high = np.where(inside, np.maximum(bounds[1] * scale, 0.0), bounds[1] * scale)

    def everywhere(column: Floats) -> Floats:
        full = np.full(values.shape[1], np.nan)
        full[usable] = column
        return full

    estimate, low, high = (everywhere(column) for column in (estimate, low, high))
    statistic, skewness, p, p_fwe = (everywhere(column) for column in (observed, skewness, p, p_fwe))
    return SignFlipTest(estimate, low, high, statistic, skewness, p, p_fwe, len(signs), exact)


def transformed_t(sums: Floats, cubes: Floats, n: int) -> tuple[Floats, Floats]:
    """H and skewness from sums of n values and of their cubes, whose squares add up to 1."""
    mean = sums / n
    variance = np.maximum(1 / n - mean**2, np.finfo(float).eps / n)
    skewness = (cubes / n - 3 * mean / n + 2 * mean**3) / variance**1.5
    t = mean * np.sqrt((n - 1) / variance)
    a = skewness / (3 * np.sqrt(n))
    return t + a * t**2 + a**2 * t**3 / 3 + a / 2, skewness


def _not_rejected(u: Floats, skewness: Floats, critical: Floats) -> tuple[Floats, Floats]:
    """Bounds of the means of u (n, columns) that H does not reject: H is solved for t."""
    n = len(u)
    a = skewness / (3 * np.sqrt(n))
    straight = np.abs(a) < 1e-9
    slope = np.where(straight, 1.0, a)
    error = u.std(axis=0) / np.sqrt(max(n - 1, 1))
    bounds = []
    for side in (critical, -critical):
        t = np.where(straight, side, (np.cbrt(1 + 3 * slope * (side - slope / 2)) - 1) / slope)
        bounds.append(u.mean(axis=0) - error * t)
    return bounds[0], bounds[1]


def sign_flips(n: int, m: int, rng: np.random.Generator) -> tuple[Floats, bool]:
    """Signs of n participants, shape (flips, n), and whether these are all distinct ones, the observed one included."""
    if n <= m.bit_length() and 2 ** (n - 1) <= m:
        every = list(itertools.product((1.0, -1.0), repeat=n - 1))
        return np.column_stack([np.ones(len(every)), np.array(every).reshape(len(every), n - 1)]), True
    signs: Floats = 1.0 - 2.0 * rng.integers(0, 2, (m, n)).astype(float)
    return signs, False
