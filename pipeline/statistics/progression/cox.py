"""Relevance and the model's answer against the time from MCI to AD: one Cox model per predictor.

Each predictor has two models: alone, and adjusted for age, sex and MMSE. A model with fewer conversions per variable
than the settings ask for is not fitted; between that and twice as many it is, and says so. Hazard ratios are per
standard deviation, so sum and density of a region, which differ by a factor, have the same one. They describe the
participants they were fitted on; what a fitted model would be worth for others is not told here. The concordance is
that of the predictor as it is, which nothing was fitted to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline.run.statistics_config import StatisticsConfig
from pipeline.statistics.correction_family import add_false_discovery_rate
from pipeline.statistics.progression.concordance import comparable_pairs, concordance
from pipeline.statistics.progression.conversion import COMPARATORS, MODEL, Conversions
from pipeline.statistics.progression.hazards import NO_HAZARD, Hazard, hazard_per_sd, null_likelihood

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

RELEVANCE = "relevance"
ALONE, ADJUSTED = "alone", "adjusted"
COVARIATES = ("age", "sex", "mmse")
WELL_POWERED = 2
"""Times the fewest events per variable: 10, the rule of Peduzzi et al. (1995)."""

COX_COLUMNS = {
    "predictor": "model: log odds of the positive class, by networks that never saw the participant; relevance: sum of "
    "a map over a bilateral group; or a measure of the scan's visit, to compare with",
    "map": "Relevance map; n/a for other predictors",
    "group": "Bilateral group of regions; n/a for other predictors",
    "model": "alone; adjusted: for the covariates",
    "covariates": "Covariates in the model; constant ones, and the predictor itself, are left out",
    "hazard_ratio": "Hazard of conversion to AD per standard deviation more of the predictor (Cox model, Efron's "
    "ties); in these participants",
    "ci_low": "Lower bound of its Wald interval",
    "ci_high": "Upper bound",
    "p": "Likelihood ratio test against the covariates alone, chi-squared with 1 degree of freedom",
    "p_fdr": "p adjusted by Benjamini and Hochberg over the family",
    "family": "Tests adjusted together",
    "concordance": "Harrell's concordance of the predictor as it is, nothing fitted: above 0.5 where more of it comes "
    "with earlier conversion, below where less does",
    "n_participants": "Participants with MCI, one scan each: their first",
    "n_scans": "Their scans, one each",
    "n_events": "Conversions to AD among them",
    "n_missing": "Participants left out for a missing predictor or covariate",
    "note": "Why there is no value, or what to know of it",
}


@dataclass(frozen=True, eq=False)
class Predictor:
    """One predictor of all participants; NaN where unknown."""

    name: str
    map: str | None
    group: str | None
    values: Floats


def predictors(cohort: Conversions) -> Iterator[Predictor]:
    """The model, what it is compared with, then every region of every map."""
    for name in (MODEL, *COMPARATORS):
        yield Predictor(name, None, None, cohort.scalar(name))
    for m, map_name in enumerate(cohort.maps):
        for g, group in enumerate(cohort.groups):
            yield Predictor(RELEVANCE, map_name, group, cohort.relevance[:, m, g])


def cox_table(cohort: Conversions, settings: StatisticsConfig) -> pd.DataFrame:
    """All models; columns of `COX_COLUMNS`."""
    covariates = covariate_columns(cohort.frame)
    nulls: dict[bytes, float] = {}
    rows = [
        _row(cohort, one, model, covariates if model == ADJUSTED else {}, settings, nulls)
        for one in predictors(cohort)
        for model in (ALONE, ADJUSTED)
    ]
    table = pd.DataFrame(rows).assign(_map=lambda t: t["map"].fillna(""))
    table["_kind"] = np.where(table["predictor"] == RELEVANCE, "regions", "predictors")
    parts = [
        add_false_discovery_rate(part, ["model", "_map"], str(kind))
        for kind, part in table.groupby("_kind", sort=False)
    ]
    return pd.concat(parts).sort_index()[list(COX_COLUMNS)]


def covariate_columns(frame: pd.DataFrame) -> dict[str, Floats]:
    """Age, MMSE, and 1 for male."""
    sex = frame["sex"].map({"F": 0.0, "M": 1.0})
    return {name: np.asarray(sex if name == "sex" else frame[name], dtype=float) for name in COVARIATES}


def _row(
    cohort: Conversions,
    predictor: Predictor,
    model: str,
    covariates: Mapping[str, Floats],
    settings: StatisticsConfig,
    nulls: dict[bytes, float],
) -> dict[str, Any]:
    own = {name: values for name, values in covariates.items() if name != predictor.name and not np.isnan(values).all()}
    unknown = [name for name in covariates if name != predictor.name and name not in own]
    complete = np.asarray(~np.isnan(np.column_stack([predictor.values, *own.values()])).any(axis=1), dtype=bool)
    used = {name: values[complete] for name, values in own.items()}
    constant = [name for name, values in used.items() if not len(values) or np.ptp(values) == 0]
    used = {name: values for name, values in used.items() if name not in constant}
    time, event, x = cohort.time[complete], cohort.event[complete], predictor.values[complete]
    notes = [cohort.note, f"{', '.join(unknown)}: not known of anyone" if unknown else None]
    notes.append(f"{', '.join(constant)}: the same in all" if constant and complete.any() else None)
    hazard, said = _hazard(time, event, x, used, settings, nulls, complete)
    return {
        "predictor": predictor.name,
        "map": predictor.map,
        "group": predictor.group,
        "model": model,
        "covariates": " + ".join(used) or None,
        "hazard_ratio": hazard.ratio,
        "ci_low": hazard.low,
        "ci_high": hazard.high,
        "p": hazard.p,
        "concordance": float(concordance(x, comparable_pairs(time, event))[0]) if len(x) else np.nan,
        "n_participants": len(x),
        "n_scans": len(x),
        "n_events": int(event.sum()),
        "n_missing": int((~complete).sum()),
        "note": "; ".join(filter(None, [*said, *notes])) or None,
    }


def _hazard(
    time: Floats,
    event: Flags,
    x: Floats,
    covariates: Mapping[str, Floats],
    settings: StatisticsConfig,
    nulls: dict[bytes, float],
    complete: Flags,
) -> tuple[Hazard, list[str | None]]:
    """Fit if there are events enough; the likelihood of the covariates alone is kept per set of rows."""
    variables, fewest = 1 + len(covariates), settings.progression.min_events_per_variable
    needed, events = fewest * variables, int(event.sum())
    if events < needed:
        return NO_HAZARD, [f"{events} conversions; {needed} are needed for {variables} variables"]
    columns = np.column_stack([*covariates.values()]) if covariates else np.zeros((len(x), 0))
    key = complete.tobytes() + ",".join(covariates).encode()
    if key not in nulls:
        try:
            nulls[key] = null_likelihood(time, event, columns)
        except (np.linalg.LinAlgError, ValueError):
            return NO_HAZARD, ["the model could not be fitted: covariates are collinear"]
    hazard = hazard_per_sd(time, event, x, columns, settings.confidence, nulls[key])
    few = events < WELL_POWERED * needed
    return hazard, [hazard.note, f"few events: {events / variables:.3g} per variable" if few else None]
