"""Sign-flipping test of a weighted mean against zero, one value per participant, for many columns at once.

Under the null hypothesis each participant's value is distributed symmetrically about zero; participants may differ in
variance (Fisher 1935; Winkler et al. 2014, NeuroImage 92, for the general linear model). The statistic is

    z = sum(w b) / sqrt(sum(w^2 b^2)),

whose denominator does not change with the signs, so it is comparable between columns. With equal weights it is an
increasing function of Student's t. p is exact for any weights that do not depend on the signs, such as functions of
|b|.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from pipeline.statistics.arrays import Floats
from pipeline.statistics.linear.exchangeability import two_sided_p


@dataclass(frozen=True, eq=False)
class SignFlipTest:
    """Result for every column; arrays have shape (columns,), NaN if all values are 0 or one is missing.

    Parameters
    ----------
    statistic, p, p_fwe : array
        z; two-sided p; p against the largest |z| of all columns under the same flips (max-T).
    n_permutations : int
        Number of flips.
    exact : bool
        True if all distinct flips were used.
    """

    statistic: Floats
    p: Floats
    p_fwe: Floats
    n_permutations: int
    exact: bool


def sign_flip_test(values: Floats, weights: Floats, m: int, rng: np.random.Generator) -> SignFlipTest:
    """Test whether participants' values are symmetric about zero.

    Parameters
    ----------
    values : array, shape (participants, columns)
    weights : array, shape (participants, columns)
        Positive.
    m : int
        Random flips; all 2^(participants - 1) distinct ones (a flip of all signs is equivalent in a two-sided test) if
        there are no more. Memory: 8 bytes x m x (participants + columns).
    rng : numpy.random.Generator
    """
    weighted = values * weights
    length = np.linalg.norm(weighted, axis=0)
    usable = np.isfinite(length) & (length > 0)
    scaled = weighted[:, usable] / length[usable]
    signs, exact = _signs(len(values), m, rng)
    observed, null = scaled.sum(axis=0), signs @ scaled
    largest = np.abs(null).max(axis=1, initial=0.0)[:, None]
    full = np.full((3, values.shape[1]), np.nan)
    full[:, usable] = observed, two_sided_p(observed, null, exact), two_sided_p(observed, largest, exact)
    return SignFlipTest(full[0], full[1], full[2], len(signs), exact)


def _signs(n: int, m: int, rng: np.random.Generator) -> tuple[Floats, bool]:
    """Signs of participants, shape (flips, n); and whether these are all, including the observed ones."""
    if n <= m.bit_length() and 2 ** (n - 1) <= m:
        every = list(itertools.product((1.0, -1.0), repeat=n - 1))
        return np.column_stack([np.ones(len(every)), np.array(every).reshape(len(every), n - 1)]), True
    signs: Floats = 1.0 - 2.0 * rng.integers(0, 2, (m, n)).astype(float)
    return signs, False
