"""ComBat: remove what a site adds to and does to the spread of features, keep what covariates explain.

The model of Johnson et al. (2007) as used for images by Fortin et al. (2018, NeuroImage 167:104):

``y = alpha + X beta + sigma (gamma_site + sqrt(delta_site) e)``,  so harmonised
``y* = alpha + X beta + sigma ((y - alpha - X beta) / sigma - gamma_site) / sqrt(delta_site)``.

`fit` makes a frozen model from training rows; `ComBatModel.transform` applies it to any. Nothing about the rows
transformed enters the model.

Own code: neuroCombat 0.2.12 (the oracle of the tests) needs numpy < 1.24, applies a model to new people only by putting
the training mean in place of their covariates, and knows no missing values; neuroHarmonize pins it; combatlearn 2.3
refuses unseen sites and n/a, and brings plotly, seaborn and umap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.run.errors import BadInputError
from pipeline.statistics.harmonisation.empirical_bayes import posterior

Floats = NDArray[np.float64]

POOL = "pooled"
"""Name of the site that small ones are joined to."""
CONSTANT = 1e-12
"""Residual variance, relative to the mean square, below which a feature has no spread."""
COLLINEAR = 1e-9

WhatWithSmall = Literal["refuse", "pooled"]


@dataclass(frozen=True, eq=False)
class ComBatModel:
    """A fitted model; nothing in it is changed by `transform`.

    Parameters
    ----------
    sites : tuple of str
        Sites with parameters; `POOL` among them if small sites were joined.
    counts : mapping of str to int
        Rows of each of them.
    members : tuple of str
        Sites joined in `POOL`.
    left_out : tuple of str
        Small sites that even together were too few: they took no part and count as unseen.
    alpha, sigma : array, shape (features,)
        Grand mean and residual standard deviation within sites (n in the denominator, as neuroCombat).
    beta : array, shape (covariates, features)
    gamma_hat, delta_hat, gamma, delta : array, shape (sites, features)
        Location and variance of each site in units of `sigma`: as estimated, and as used (with empirical Bayes drawn
        towards the site's mean). NaN for features not adjusted.
    unadjusted : mapping of int to str
        Features that are given back unchanged, with the reason.
    reference : str or None
        Site that stays as it is.
    unseen_site : {"refuse", "pooled"}
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
        """The site whose parameters serve for another: itself, the pool, or None for no change.

        Raises
        ------
        BadInputError
            For a site that training did not see, unless unseen sites are pooled.
        """
        if site in self.sites:
            return site
        if site not in self.members and self.unseen_site == "refuse":
            raise BadInputError(
                f"harmonisation: site {site} is not among those the model was fitted on ({', '.join(self.sites)}). Fit "
                'on data of that site too, or set unseen_site = "pooled".'
            )
        return POOL if POOL in self.sites else None

    def transform(self, values: Floats, site: Sequence[str], covariates: Floats | None = None) -> Floats:
        """Harmonised values of any rows.

        A site without parameters is given those of the pool of small sites; if there is none its values stay as they
        are, since nothing is known of it.

        Parameters
        ----------
        values : array, shape (rows, features)
            n/a (NaN) stays n/a.
        site : sequence of str, length rows
        covariates : array, shape (rows, covariates)
            Same columns as in `fit`; a row with NaN becomes n/a.

        Raises
        ------
        BadInputError
            For an unseen site, or another number of features or covariates than in training.
        """
        design = _covariates(covariates, len(values))
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
            own = self.sites.index(serving)
            kept = self.alpha[adjusted] + design[rows] @ self.beta[:, adjusted]
            z = (values[np.ix_(rows, adjusted)] - kept) / sigma
            z = (z - self.gamma[own, adjusted]) / np.sqrt(self.delta[own, adjusted])
            result[np.ix_(rows, adjusted)] = kept + sigma * z
        result[np.isnan(design).any(axis=1)] = np.nan
        return result


@dataclass(frozen=True, eq=False)
class _Standardised:
    """Values without grand mean and covariates, in units of the spread within sites."""

    z: Floats
    alpha: Floats
    sigma: Floats
    beta: Floats


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
    """Fit ComBat on training rows, which should be one per participant.

    Parameters
    ----------
    values : array, shape (rows, features)
        NaN where there is none.
    site : sequence of str, length rows
    covariates : array, shape (rows, covariates), optional
        What they explain is kept. Without NaN, and without intercept.
    training_covariates : array, shape (rows, more), optional
        Accounted for while sites are estimated, and not needed by `transform`: the diagnosis, say, where sites differ
        in how many patients they have.
    empirical_bayes : bool
        Draw a site's parameters towards their mean over features; otherwise each feature stands alone.
    reference : str, optional
        Site that stays as it is; the others become like it.
    min_rows : int
        Rows below which a site is small; at least 2, since one person has no spread.
    small_site, unseen_site : {"refuse", "pooled"}
        Join small sites to one called "pooled"; let unseen sites be treated like it.
    covariate_names : sequence of str
        For messages.

    Raises
    ------
    BadInputError
        Naming the site or covariate: small sites (unless pooled), an unknown reference, covariates that follow from
        others or from the site, fewer than two sites or features, n/a in covariates.
    """
    kept, fitted_only = _covariates(covariates, len(values)), _covariates(training_covariates, len(values))
    names = [*covariate_names, *(f"covariate {i + 1}" for i in range(len(covariate_names), 10**3))]
    fitted_only = fitted_only - fitted_only.mean(axis=0) if len(fitted_only) else fitted_only
    columns = np.column_stack([kept, fitted_only])
    if np.isnan(columns).any():
        raise BadInputError("harmonisation: covariates of training rows hold n/a. Leave those rows out before fitting.")
    serving, members, left_out = _small_sites(site, max(min_rows, 2), small_site)
    used = np.array([name is not None for name in serving], dtype=bool)
    names_used = [name for name in serving if name is not None]
    sites = tuple(sorted(set(names_used)))
    if len(sites) < 2:
        raise BadInputError(
            f"harmonisation: {len(sites)} site to compare ({', '.join(sites)}); two or more are needed."
        )
    if reference is not None and reference not in sites:
        raise BadInputError(
            f"harmonisation: reference site {reference} is not among {', '.join(sites)}. Choose another."
        )
    values, columns = values[used].astype(float), columns[used]
    membership = np.array([[name == one for one in sites] for name in names_used], dtype=float)
    _require_separable(membership, columns, names)
    unadjusted = _without_spread(values, membership, sites)
    base = None if reference is None else sites.index(reference)
    standard = _standardise(values, membership, columns, kept.shape[1], base, unadjusted)
    gamma_hat, delta_hat, counts = _site_estimates(standard.z, membership, sites, unadjusted)
    adjusted = [i for i in range(values.shape[1]) if i not in unadjusted]
    if empirical_bayes and len(adjusted) < 2:
        raise BadInputError(
            "harmonisation: fewer than two features with spread, and empirical Bayes borrows strength between them. "
            "Set empirical_bayes = false."
        )
    gamma, delta = gamma_hat.copy(), delta_hat.copy()
    for i, name in enumerate(sites):
        if name == reference:
            gamma[i, adjusted], delta[i, adjusted] = 0.0, 1.0
        elif empirical_bayes:
            gamma[i, adjusted], delta[i, adjusted] = posterior(
                gamma_hat[i, adjusted], delta_hat[i, adjusted], counts[i, adjusted]
            )
    rows_of = dict(zip(sites, membership.sum(axis=0).astype(int).tolist(), strict=True))
    return ComBatModel(
        sites, rows_of, members, left_out, standard.alpha, standard.sigma, standard.beta,
        gamma_hat, delta_hat, gamma, delta, unadjusted, reference, unseen_site,
    )  # fmt: skip


def _covariates(columns: Floats | None, rows: int) -> Floats:
    return np.zeros((rows, 0)) if columns is None else np.asarray(columns, dtype=float).reshape(rows, -1)


def _small_sites(
    site: Sequence[str], min_rows: int, what: WhatWithSmall
) -> tuple[list[str | None], tuple[str, ...], tuple[str, ...]]:
    """The site each row counts for (None: left out), the sites joined, and those left out."""
    counts = Counter(site)
    small = {name: n for name, n in sorted(counts.items()) if n < min_rows}
    if not small:
        return list(site), (), ()
    if what == "refuse":
        listed = ", ".join(f"{name} ({n})" for name, n in small.items())
        raise BadInputError(
            f"harmonisation: fewer than {min_rows} participants at site {listed}; their spread cannot be told. Leave "
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
                f"harmonisation: {names[i]} follows from the site or from the other covariates, so its effect and "
                "theirs cannot be told apart. Take it out of the covariates."
            )
        basis = np.column_stack([basis, rest / left])
    if basis.shape[1] >= len(membership):
        raise BadInputError(
            f"harmonisation: {len(membership)} participants for {basis.shape[1]} sites and covariates leave no spread. "
            "Take covariates out, or pool sites."
        )


def _without_spread(values: Floats, membership: Floats, sites: Sequence[str]) -> dict[int, str]:
    """Features that cannot be adjusted in every site."""
    reasons: dict[int, str] = {}
    for feature in range(values.shape[1]):
        column = values[:, feature]
        for i, name in enumerate(sites):
            own = column[(membership[:, i] > 0) & ~np.isnan(column)]
            if len(own) < 2:
                reasons[feature] = f"fewer than two values at site {name}"
            elif own.var() <= CONSTANT * (own**2).mean():
                reasons[feature] = f"the same in all participants of site {name}"
            if feature in reasons:
                break
    return reasons


def _standardise(
    values: Floats, membership: Floats, columns: Floats, n_kept: int, reference: int | None, unadjusted: dict[int, str]
) -> _Standardised:
    """Least squares per feature over its known rows; adds features without residual spread to `unadjusted`."""
    n_sites, n_features = membership.shape[1], values.shape[1]
    design = np.column_stack([membership, columns])
    coefficients = np.full((design.shape[1], n_features), np.nan)
    variance = np.full(n_features, np.nan)
    known = ~np.isnan(values)
    patterns, which = np.unique(known, axis=1, return_inverse=True)
    for number in range(patterns.shape[1]):
        rows = patterns[:, number]
        own = np.array([i for i in np.flatnonzero(which.ravel() == number) if i not in unadjusted], dtype=np.intp)
        if not len(own):
            continue
        solution, _, rank, _ = np.linalg.lstsq(design[rows], values[np.ix_(rows, own)], rcond=None)
        if rank < design.shape[1] or rank >= rows.sum():
            unadjusted |= dict.fromkeys(own.tolist(), "too few known values for sites and covariates")
            continue
        coefficients[:, own] = solution
        counted = rows & (membership[:, reference] > 0) if reference is not None else rows
        residuals = values[np.ix_(counted, own)] - design[counted] @ solution
        variance[own] = (residuals**2).mean(axis=0)
        flat = own[variance[own] <= CONSTANT * (values[np.ix_(rows, own)] ** 2).mean(axis=0)]
        unadjusted |= dict.fromkeys(flat.tolist(), "no spread beyond sites and covariates")
    if reference is not None:
        alpha = coefficients[reference]
    else:
        alpha = (membership.sum(axis=0) / len(membership)) @ coefficients[:n_sites]
    sigma = np.sqrt(variance)
    z = (values - alpha - columns @ coefficients[n_sites:]) / np.where(sigma > 0, sigma, np.nan)
    return _Standardised(z, alpha, sigma, coefficients[n_sites : n_sites + n_kept])


def _site_estimates(
    z: Floats, membership: Floats, sites: Sequence[str], unadjusted: Mapping[int, str]
) -> tuple[Floats, Floats, Floats]:
    """Mean, variance (n - 1) and number of values of every site and feature."""
    shape = (len(sites), z.shape[1])
    gamma, delta, counts = np.full(shape, np.nan), np.full(shape, np.nan), np.zeros(shape)
    adjusted = [i for i in range(z.shape[1]) if i not in unadjusted]
    for i in range(len(sites)):
        own = z[membership[:, i] > 0][:, adjusted]
        gamma[i, adjusted] = np.nanmean(own, axis=0)
        delta[i, adjusted] = np.nanvar(own, axis=0, ddof=1)
        counts[i, adjusted] = (~np.isnan(own)).sum(axis=0)
    return gamma, delta, counts
