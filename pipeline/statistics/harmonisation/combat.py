"""ComBat: remove effects of site on the mean and variance of features, keep the effects of covariates.

The model of Johnson et al. (2007) as used for images by Fortin et al. (2018, NeuroImage 167:104): ``y = alpha + X beta
+ sigma (gamma_site + sqrt(delta_site) e)``. `fit` estimates it from training rows: least squares per feature, then
empirical Bayes: a site shifts every feature similarly, so estimates are shrunk towards its mean over features, the more
the fewer participants it has (Johnson, Li & Rabinovic 2007, Biostatistics 8:118). `ComBatModel.transform` applies the
model to any rows without refitting.

Why not a library: neuroCombat 0.2.12 (the oracle of the tests) needs numpy < 1.24, replaces the covariates of new
participants by the training mean and does not accept missing values; neuroHarmonize pins it; combatlearn 2.3 refuses
unseen sites and n/a, and depends on plotly, seaborn and umap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.statistics.arrays import Flags, Floats

POOL = "pooled"
"""Name of the pooled small sites."""

WhatWithSmall = Literal["refuse", "pooled"]


@dataclass(frozen=True, eq=False)
class ComBatModel:
    """A fitted model; `transform` does not change it.

    Shapes: alpha, sigma (features,), sigma with n in the denominator; beta (covariates, features); gamma_hat,
    delta_hat, gamma, delta (sites, features): location and variance of each site in units of sigma, as estimated and as
    used, NaN for features that are not adjusted. `sites` includes `POOL` if small sites (`members`) were pooled; sites
    `left_out` were too small even when pooled, and count as unseen. `unadjusted` gives features that are not changed,
    with the reason. The `reference` site is not changed either.
    """

    sites: tuple[str, ...]
    counts: Mapping[str, int]
    members: tuple[str, ...]
    left_out: tuple[str, ...]
    alpha: Floats
    sigma: Floats
    beta: Floats
    gamma_hat: Floats
    delta_hat: Floats
    gamma: Floats
    delta: Floats
    unadjusted: Mapping[int, str]
    reference: str | None
    unseen_site: WhatWithSmall

    def treated_as(self, site: str) -> str | None:
        """The site whose parameters are applied to a site: itself, the pool, or None for no change.

        BadInputError for a site not seen in training, unless unseen sites are pooled.
        """
        if site not in (*self.sites, *self.members) and self.unseen_site == "refuse":
            raise BadInputError(
                f"harmonisation: the model was not fitted on site {site} (fitted: {', '.join(self.sites)}). Fit "
                'on data of that site too, or set unseen_site = "pooled".'
            )
        return self.serving(site)

    def serving(self, site: str) -> str | None:
        """The same, also for a site not seen in training."""
        return site if site in self.sites else POOL if POOL in self.sites else None

    def expected(self, site: Sequence[str], covariates: Floats | None = None) -> Floats:
        """Mean of values of each row's site and covariates (rows, features); NaN for features that are not adjusted."""
        design = as_columns(covariates, len(site))
        mean: Floats = self.alpha + design @ self.beta
        for row, name in enumerate(site):
            serving = self.treated_as(name)
            if serving is not None:
                mean[row] += self.sigma * self.gamma[self.sites.index(serving)]
        return mean

    def transform(self, values: Floats, site: Sequence[str], covariates: Floats | None = None) -> Floats:
        """Harmonised values (rows, features); NaN stays NaN, and a row with NaN in a covariate becomes NaN.

        A site without parameters gets those of the pool; without a pool its values are not changed. BadInputError for a
        refused site, or if the number of features or covariates differs from training.
        """
        design = as_columns(covariates, len(values))
        if values.shape[1] != len(self.alpha) or design.shape[1] != len(self.beta):
            raise BadInputError(
                f"harmonisation: {values.shape[1]} features and {design.shape[1]} covariates, but the model was fitted "
                f"on {len(self.alpha)} and {len(self.beta)}. Give the same columns."
            )
        result = values.astype(float, copy=True)
        adjusted = np.array([i for i in range(values.shape[1]) if i not in self.unadjusted], dtype=np.intp)
        sigma = self.sigma[adjusted]
        for name in sorted(set(site)):
            serving = self.treated_as(name)
            rows = np.flatnonzero(np.asarray(site, dtype=object) == name)
            if serving is None or serving == self.reference:
                continue
            place = self.sites.index(serving)
            kept = self.alpha[adjusted] + design[rows] @ self.beta[:, adjusted]
            z = (values[np.ix_(rows, adjusted)] - kept) / sigma
            z = (z - self.gamma[place, adjusted]) / np.sqrt(self.delta[place, adjusted])
            result[np.ix_(rows, adjusted)] = kept + sigma * z
        result[np.isnan(design).any(axis=1)] = np.nan
        return result


def as_columns(columns: Floats | None, rows: int) -> Floats:
    """Covariates as an array of shape (rows, covariates), with no columns if there are none."""
    return np.zeros((rows, 0)) if columns is None else np.asarray(columns, dtype=float).reshape(rows, -1)


CONSTANT = 1e-12
"""Residual variance, relative to the mean square, below which a feature counts as constant."""
COLLINEAR = 1e-9


@dataclass(frozen=True, eq=False)
class _TrainingRows:
    """Rows used (rows,), and their membership (used rows, sites); the other fields are as in `ComBatModel`."""

    used: Flags
    membership: Floats
    sites: tuple[str, ...]
    members: tuple[str, ...]
    left_out: tuple[str, ...]

    @classmethod
    def of(cls, site: Sequence[str], min_rows: int, small_site: WhatWithSmall, reference: str | None) -> _TrainingRows:
        """Pool or refuse small sites; BadInputError if fewer than two sites remain, or not the reference."""
        serving, members, left_out = _small_sites(site, min_rows, small_site)
        names = [name for name in serving if name is not None]
        sites = tuple(sorted(set(names)))
        if len(sites) < 2:
            raise BadInputError(
                f"harmonisation: {counted(len(sites), 'site')} to compare ({', '.join(sites)}); two or more are needed."
            )
        if reference is not None and reference not in sites:
            raise BadInputError(
                f"harmonisation: reference site {reference} is not among {', '.join(sites)}. Choose one of these."
            )
        membership = np.array([[name == of_site for of_site in sites] for name in names], dtype=float)
        return cls(np.array([name is not None for name in serving], dtype=bool), membership, sites, members, left_out)


def fit(
    values: Floats,
    site: Sequence[str],
    covariates: Floats | None = None,
    *,
    training_covariates: Floats | None = None,
    empirical_bayes: bool = True,
    reference: str | None = None,
    min_rows: int = 2,
    small_site: WhatWithSmall = "refuse",
    unseen_site: WhatWithSmall = "refuse",
    covariate_names: Sequence[str] = (),
) -> ComBatModel:
    """Fit ComBat on training rows, one per participant; values (rows, features) with NaN for missing.

    Effects of `covariates` (rows, covariates), without NaN or intercept, are preserved. `training_covariates`, such as
    the diagnosis, are in the model while sites are estimated, but `transform` does not need them. Sites with fewer than
    `min_rows` rows (at least 2) are small; `small_site` and `unseen_site` say whether to refuse or pool. BadInputError
    for small sites, an unknown reference, collinear or missing covariates, or fewer than two sites or features.
    """
    kept, fitted_only = as_columns(covariates, len(values)), as_columns(training_covariates, len(values))
    names = [*covariate_names, *(f"covariate {i + 1}" for i in range(len(covariate_names), 10**3))]
    columns = np.column_stack([kept, fitted_only - fitted_only.mean(axis=0) if len(fitted_only) else fitted_only])
    if np.isnan(columns).any():
        raise BadInputError(
            "harmonisation: covariates of training rows contain n/a. Leave those rows out before fitting."
        )
    rows = _TrainingRows.of(site, max(min_rows, 2), small_site, reference)
    values, columns = values[rows.used].astype(float), columns[rows.used]
    _require_separable(rows.membership, columns, names)
    unadjusted = _without_spread(values, rows.membership, rows.sites)
    base = None if reference is None else rows.sites.index(reference)
    z, alpha, sigma, coefficients = _standardise(values, rows.membership, columns, base, unadjusted)
    beta = coefficients[len(rows.sites) :][: kept.shape[1]]
    hat = _site_estimates(z, rows.membership, rows.sites, unadjusted)
    gamma, delta = _as_used(*hat, unadjusted, base, empirical_bayes)
    rows_of = dict(zip(rows.sites, rows.membership.sum(axis=0).astype(int).tolist(), strict=True))
    return ComBatModel(
        rows.sites, rows_of, rows.members, rows.left_out, alpha, sigma, beta, hat[0], hat[1], gamma, delta, unadjusted,
        reference, unseen_site,
    )  # fmt: skip


def _small_sites(
    site: Sequence[str], min_rows: int, what: WhatWithSmall
) -> tuple[list[str | None], tuple[str, ...], tuple[str, ...]]:
    """The site that each row counts for (None: left out), the sites pooled, and those left out."""
    counts = Counter(site)
    small = {name: n for name, n in sorted(counts.items()) if n < min_rows}
    if not small:
        return list(site), (), ()
    if what == "refuse":
        listed = ", ".join(f"{name} ({n})" for name, n in small.items())
        raise BadInputError(
            f"harmonisation: fewer than {min_rows} participants at site {listed}, too few for a variance. Leave "
            'them out, or set small_site = "pooled".'
        )
    if sum(small.values()) < min_rows:
        return [None if name in small else name for name in site], (), tuple(small)
    return [POOL if name in small else name for name in site], tuple(small), ()


def _require_separable(membership: Floats, columns: Floats, names: Sequence[str]) -> None:
    basis = np.linalg.qr(membership)[0]
    for i in range(columns.shape[1]):
        column = columns[:, i] - columns[:, i].mean()
        length = float(np.linalg.norm(column))
        rest = column / length if length > 0 else column
        for _ in range(2):
            rest = rest - basis @ (basis.T @ rest)
        left = float(np.linalg.norm(rest))
        if left <= COLLINEAR:
            raise BadInputError(
                f"harmonisation: {names[i]} is collinear with the site or the other covariates, so their effects "
                "cannot be separated. Remove it from the covariates."
            )
        basis = np.column_stack([basis, rest / left])
    if basis.shape[1] >= len(membership):
        raise BadInputError(
            f"harmonisation: {counted(len(membership), 'participant')} for {basis.shape[1]} sites and covariates leave "
            "no residual variance. Remove covariates, or pool sites."
        )


def _without_spread(values: Floats, membership: Floats, sites: Sequence[str]) -> dict[int, str]:
    """Features that cannot be adjusted in every site, with the reason."""
    reasons: dict[int, str] = {}
    for feature in range(values.shape[1]):
        column = values[:, feature]
        for i, name in enumerate(sites):
            values_of_site = column[(membership[:, i] > 0) & ~np.isnan(column)]
            if len(values_of_site) < 2:
                reasons[feature] = f"fewer than two values at site {name}"
            elif values_of_site.var() <= CONSTANT * (values_of_site**2).mean():
                reasons[feature] = f"constant at site {name}"
            if feature in reasons:
                break
    return reasons


def _standardise(
    values: Floats, membership: Floats, columns: Floats, reference: int | None, unadjusted: dict[int, str]
) -> tuple[Floats, Floats, Floats, Floats]:
    """Values without grand mean and covariates, in units of sigma; alpha, sigma and coefficients per feature.

    Least squares over its known rows; features without residual variance join `unadjusted`.
    """
    n_sites, n_features = membership.shape[1], values.shape[1]
    design = np.column_stack([membership, columns])
    coefficients = np.full((design.shape[1], n_features), np.nan)
    variance = np.full(n_features, np.nan)
    present = ~np.isnan(values)
    patterns, which = np.unique(present, axis=1, return_inverse=True)
    for number in range(patterns.shape[1]):
        rows = patterns[:, number]
        same_rows = np.array([i for i in np.flatnonzero(which.ravel() == number) if i not in unadjusted], dtype=np.intp)
        if not len(same_rows):
            continue
        solution, _, rank, _ = np.linalg.lstsq(design[rows], values[np.ix_(rows, same_rows)], rcond=None)
        if rank < design.shape[1] or rank >= rows.sum():
            unadjusted |= dict.fromkeys(same_rows.tolist(), "too few known values for sites and covariates")
            continue
        coefficients[:, same_rows] = solution
        counted = rows & (membership[:, reference] > 0) if reference is not None else rows
        residuals = values[np.ix_(counted, same_rows)] - design[counted] @ solution
        variance[same_rows] = (residuals**2).mean(axis=0)
        flat = same_rows[variance[same_rows] <= CONSTANT * (values[np.ix_(rows, same_rows)] ** 2).mean(axis=0)]
        unadjusted |= dict.fromkeys(flat.tolist(), "no variance beyond sites and covariates")
    if reference is not None:
        alpha = coefficients[reference]
    else:
        alpha = (membership.sum(axis=0) / len(membership)) @ coefficients[:n_sites]
    sigma = np.sqrt(variance)
    z = (values - alpha - columns @ coefficients[n_sites:]) / np.where(sigma > 0, sigma, np.nan)
    return z, alpha, sigma, coefficients


def _site_estimates(
    z: Floats, membership: Floats, sites: Sequence[str], unadjusted: Mapping[int, str]
) -> tuple[Floats, Floats, Floats]:
    """Mean, variance (n - 1) and number of values of every site and feature."""
    shape = (len(sites), z.shape[1])
    gamma, delta, counts = np.full(shape, np.nan), np.full(shape, np.nan), np.zeros(shape)
    adjusted = [i for i in range(z.shape[1]) if i not in unadjusted]
    for i in range(len(sites)):
        of_site = z[membership[:, i] > 0][:, adjusted]
        gamma[i, adjusted] = np.nanmean(of_site, axis=0)
        delta[i, adjusted] = np.nanvar(of_site, axis=0, ddof=1)
        counts[i, adjusted] = (~np.isnan(of_site)).sum(axis=0)
    return gamma, delta, counts


def _as_used(
    gamma_hat: Floats, delta_hat: Floats, counts: Floats, unadjusted: Mapping[int, str], reference: int | None,
    empirical_bayes: bool,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Location and variance of every site as used by `ComBatModel.transform`."""
    adjusted = [i for i in range(gamma_hat.shape[1]) if i not in unadjusted]
    if empirical_bayes and len(adjusted) < 2:
        raise BadInputError(
            "harmonisation: fewer than two features with variance, but empirical Bayes pools over features. "
            "Set empirical_bayes = false."
        )
    gamma, delta = gamma_hat.copy(), delta_hat.copy()
    for i in range(len(gamma)):
        if i == reference:
            gamma[i, adjusted], delta[i, adjusted] = 0.0, 1.0
        elif empirical_bayes:
            gamma[i, adjusted], delta[i, adjusted] = posterior(
                gamma_hat[i, adjusted], delta_hat[i, adjusted], counts[i, adjusted]
            )
    return gamma, delta


TOLERANCE = 1e-12
"""Change per step, in units of the feature's spread, at which the iteration has converged."""
MAX_STEPS = 10_000
FLAT_PRIOR = 1e-24
"""Variance of the variances over features, relative to their mean squared, below which they count as equal."""


def inverse_gamma_prior(delta_hat: Floats) -> tuple[float, float]:
    """Shape and rate of the inverse gamma distribution with the moments of variances (features,); infinite if equal.

    >>> inverse_gamma_prior(np.array([1.0, 2.0, 3.0]))  # mean 2, variance 1
    (6.0, 10.0)
    """
    mean, variance = float(delta_hat.mean()), float(delta_hat.var(ddof=1))
    if variance <= FLAT_PRIOR * mean**2:
        return np.inf, np.inf
    return (2 * variance + mean**2) / variance, (mean * variance + mean**3) / variance


def posterior(gamma_hat: Floats, delta_hat: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Location and scale (features,) of one site, shrunk towards its mean over features.

    Arguments are mean, variance (n - 1) and number of the site's standardised values. The conditional posterior means
    (Johnson et al. 2007, equation 3.1) are iterated to convergence; published implementations stop at a change of 1e-4.
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
