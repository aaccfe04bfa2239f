"""ComBat: remove effects of site on the mean and variance of features, keep the effects of covariates.

The model of Johnson et al. (2007) as used for images by Fortin et al. (2018, NeuroImage 167:104):
``y = alpha + X beta + sigma (gamma_site + sqrt(delta_site) e)``,  so harmonised
``y* = alpha + X beta + sigma ((y - alpha - X beta) / sigma - gamma_site) / sqrt(delta_site)``.

`pipeline.statistics.harmonisation.combat_fit.fit` estimates a model from training rows; `ComBatModel.transform` applies
it to any rows without refitting.

Why not a library: neuroCombat 0.2.12 (the oracle of the tests) needs numpy < 1.24, replaces the covariates of new
participants by the training mean and does not accept missing values; neuroHarmonize pins it; combatlearn 2.3 refuses
unseen sites and n/a, and depends on plotly, seaborn and umap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.arrays import Floats

POOL = "pooled"
"""Name of the pooled small sites."""

WhatWithSmall = Literal["refuse", "pooled"]


@dataclass(frozen=True, eq=False)
class ComBatModel:
    """A fitted model; `transform` does not change it.

    Shapes: alpha, sigma (features,); beta (covariates, features); gamma_hat, delta_hat, gamma, delta (sites, features):
    location and variance of each site in units of sigma, as estimated and as used, NaN for features that are not
    adjusted. sigma has n in the denominator, as in neuroCombat. `sites` includes `POOL` if small sites (`members`) were
    pooled; sites `left_out` were too small even when pooled, and count as unseen. `unadjusted` gives features that are
    not changed, with the reason. The `reference` site is not changed either.
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
        """Harmonised values; NaN stays NaN, and a row with NaN in a covariate becomes NaN.

        Shapes: values (rows, features), covariates (rows, covariates) as in `fit`. A site without parameters gets those
        of the pool; without a pool its values are not changed. BadInputError for a refused site, or if the number of
        features or covariates differs from training.
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
