"""Empirical Bayes for location and scale of a site, as in ComBat (Johnson, Li & Rabinovic 2007, Biostatistics 8:118).

A site shifts and scales every feature differently but similarly, so the estimates of single features are shrunk towards
the site's mean over features, the more the fewer participants were scanned there.
"""

from __future__ import annotations

import numpy as np

from heatlas.pipeline.statistics.arrays import Floats

TOLERANCE = 1e-12
"""Change per step, in units of the feature's spread, at which the iteration has converged."""
MAX_STEPS = 10_000
FLAT_PRIOR = 1e-24
"""Variance of the variances over features, relative to their mean squared, below which they count as equal."""


def inverse_gamma_prior(delta_hat: Floats) -> tuple[float, float]:
    """Shape and rate of the inverse gamma distribution with the moments of variances (features,); infinite if equal.

    Examples
    --------
    >>> inverse_gamma_prior(np.array([1.0, 2.0, 3.0]))  # mean 2, variance 1
    (6.0, 10.0)
    """
    mean, variance = float(delta_hat.mean()), float(delta_hat.var(ddof=1))
    if variance <= FLAT_PRIOR * mean**2:
        return np.inf, np.inf
    return (2 * variance + mean**2) / variance, (mean * variance + mean**3) / variance


def posterior(gamma_hat: Floats, delta_hat: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Location and scale (features,) of one site, shrunk towards its mean over features.

    Arguments are mean, variance (n - 1) and number of the site's standardised values, each (features,). The conditional
    posterior means (Johnson et al. 2007, equation 3.1) are iterated to convergence; published implementations stop at a
    change of 1e-4.
    """
    centre, spread = float(gamma_hat.mean()), float(gamma_hat.var(ddof=1))
    a, b = inverse_gamma_prior(delta_hat)
    gamma = gamma_hat.copy()
    delta = np.full_like(delta_hat, delta_hat.mean()) if np.isinf(a) else delta_hat.copy()
    for _ in range(MAX_STEPS):
        new_gamma = (spread * counts * gamma_hat + delta * centre) / (spread * counts + delta)
        new_delta = delta
        if not np.isinf(a):
            squares = (counts - 1) * delta_hat + counts * (gamma_hat - new_gamma) ** 2
            new_delta = (squares / 2 + b) / (counts / 2 + a - 1)
        change = max(
            float((np.abs(new_gamma - gamma) / np.sqrt(delta)).max()), float((np.abs(new_delta - delta) / delta).max())
        )
        gamma, delta = new_gamma, new_delta
        if change <= TOLERANCE:
            break
    return gamma, delta
