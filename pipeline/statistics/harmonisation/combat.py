"""ComBat: remove what a site adds to and does to the spread of features, keep what covariates explain.

The model of Johnson et al. (2007) as used for images by Fortin et al. (2018, NeuroImage 167:104):

``y = alpha + X beta + sigma (gamma_site + sqrt(delta_site) e)``,  so harmonised
``y* = alpha + X beta + sigma ((y - alpha - X beta) / sigma - gamma_site) / sqrt(delta_site)``.

`pipeline.statistics.harmonisation.combat_fit.fit` makes a frozen model from training rows; `ComBatModel.transform`
applies it to any. Nothing about the rows transformed enters the model.

Own code: neuroCombat 0.2.12 (the oracle of the tests) needs numpy < 1.24, applies a model to new people only by putting
the training mean in place of their covariates, and knows no missing values; neuroHarmonize pins it; combatlearn 2.3
refuses unseen sites and n/a, and brings plotly, seaborn and umap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipeline.run.errors import BadInputError
from pipeline.statistics.arrays import Floats

POOL = "pooled"
"""Name of the site that small ones are joined to."""

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
            own = self.sites.index(serving)
            kept = self.alpha[adjusted] + design[rows] @ self.beta[:, adjusted]
            z = (values[np.ix_(rows, adjusted)] - kept) / sigma
            z = (z - self.gamma[own, adjusted]) / np.sqrt(self.delta[own, adjusted])
            result[np.ix_(rows, adjusted)] = kept + sigma * z
        result[np.isnan(design).any(axis=1)] = np.nan
        return result


def as_columns(columns: Floats | None, rows: int) -> Floats:
    """Covariates as an array of shape (rows, covariates), without columns if there are none."""
    return np.zeros((rows, 0)) if columns is None else np.asarray(columns, dtype=float).reshape(rows, -1)
