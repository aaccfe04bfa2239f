"""Prediction of conversion from MCI by the networks, without fitting, one scan per participant.

Their predictions are out of sample. Measures of the same visit are given for comparison, also unfitted: a network that
predicts conversion no better than MMSE adds little.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from heatlas.pipeline.run.config.statistics import StatisticsConfig
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Flags, Floats, Resampling
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.values import joined
from heatlas.pipeline.statistics.linear.permutations import Exchangeability, two_sided_p
from heatlas.pipeline.statistics.progression import cox
from heatlas.pipeline.statistics.progression.hazards import (
    CHANCE,
    CONSTANT,
    Pairs,
    class_pairs,
    comparable_pairs,
    concordance,
    permuted_concordance,
)
from heatlas.pipeline.statistics.resampling.bootstrap import NO_INTERVAL, bootstrap_intervals, ratio, with_exact_shares

CONVERTER, STABLE = "pMCI", "sMCI"
CONCORDANCE, AUC = "concordance", "auc"
SHARES = ("sensitivity", "specificity", "balanced_accuracy")

PROGRESSION_TABLE = declared("progression", __file__)


@dataclass(frozen=True, eq=False)
class _Question:
    """A predictor, oriented so that higher means sooner, and the pairs it should order."""

    predictor: str
    measure: str
    values: Floats
    pairs: Pairs
    events: Flags
    missing: int


def progression_table(
    cohort: cox.Conversions, settings: StatisticsConfig, seed: int, horizon_months: int
) -> pd.DataFrame:
    rows = [_ordering_row(question, cohort, settings, seed) for question in _questions(cohort)]
    rows += _share_rows(cohort, settings, seed)
    table = PROGRESSION_TABLE.frame(rows).astype({"n_permutations": "Int64"})
    within = f"AD by the visit {horizon_months} months after the scan ({CONVERTER})"
    return table.assign(event=np.where(table["measure"] == CONCORDANCE, cox.AT_ANY_TIME, within))


def _questions(cohort: cox.Conversions) -> Iterator[_Question]:
    course = cohort.frame["progression"]
    decided = course.isin([CONVERTER, STABLE]).to_numpy(bool)
    converts = (course == CONVERTER).to_numpy(bool)
    for name in (cox.MODEL, *cox.COMPARATORS):
        values = cohort.scalar(name) * (-1 if name in cox.SOONER_WHEN_LOWER else 1)
        has_score = ~np.isnan(values)
        pairs = comparable_pairs(cohort.time[has_score], cohort.event[has_score])
        yield _Question(name, CONCORDANCE, values[has_score], pairs, cohort.event[has_score], int((~has_score).sum()))
        has_score &= decided
        yield _Question(
            name, AUC, values[has_score], class_pairs(converts[has_score]), converts[has_score], int((~has_score).sum())
        )


def _ordering_row(
    question: _Question, cohort: cox.Conversions, settings: StatisticsConfig, seed: int
) -> dict[str, Any]:
    values, pairs = question.values, question.pairs
    names = ("statistics", "progression", question.predictor, question.measure)
    result = _blank(question) | {"note": cohort.note}
    if not pairs.any():
        why = "no pair with a known order of conversion" if question.measure == CONCORDANCE else _one_sided(question)
        return result | {"note": joined(why, cohort.note)}
    if np.ptp(values) <= 1e-12 * np.abs(values).max():
        return result | {"note": joined(CONSTANT, cohort.note)}
    strata = question.events.astype(int).tolist() if question.measure == AUC else [0] * len(values)
    draws = Resampling.draws(settings, generator(seed, *names, "bootstrap"))
    intervals = bootstrap_intervals(lambda weights: concordance(values, pairs, weights), strata, draws)
    observed, rng = concordance(values, pairs), generator(seed, *names, "permutation")
    order = Exchangeability.free(len(values)).permutations(settings.permutations, rng)
    p = two_sided_p(observed[0] - CHANCE, permuted_concordance(values, pairs, order.rows) - CHANCE, order.exact)
    return result | {
        "estimate": float(observed[0]),
        **intervals.row(),
        "p": float(p),
        "n_permutations": len(order),
        "exact": order.exact,
        "note": joined(cohort.note, *intervals.notes),
    }


def _one_sided(question: _Question) -> str:
    n = int(question.events.sum())
    return f"{n} {CONVERTER} and {len(question.events) - n} {STABLE}; both are needed"


def _share_rows(cohort: cox.Conversions, settings: StatisticsConfig, seed: int) -> list[dict[str, Any]]:
    """Sensitivity, specificity and balanced accuracy of the model."""
    question = next(asked for asked in _questions(cohort) if asked.predictor == cox.MODEL and asked.measure == AUC)
    called, converts = question.values > 0, question.events

    def statistic(weights: Floats) -> Floats:
        sensitivity = ratio(weights @ (called & converts).astype(float), weights @ converts.astype(float))
        specificity = ratio(weights @ (~called & ~converts).astype(float), weights @ (~converts).astype(float))
        return np.stack([sensitivity, specificity, (sensitivity + specificity) / 2], axis=1)

    base = _blank(question)
    if not len(converts):
        return [base | {"measure": name, "note": _one_sided(question)} for name in SHARES]
    draws = Resampling.draws(settings, generator(seed, "statistics", "progression", "shares"))
    intervals = bootstrap_intervals(statistic, converts.astype(int).tolist(), draws)
    estimates = statistic(np.ones((1, len(converts))))[0]
    of = (int(converts.sum()), int((~converts).sum()))
    shares = {i: (float(estimates[i]), of[i]) for i in range(2)}
    intervals = with_exact_shares(intervals, shares, settings.confidence)
    rows = []
    for i, name in enumerate(SHARES):
        why = _one_sided(question) if np.isnan(estimates[i]) else None
        row = {"measure": name, "estimate": float(estimates[i]), **intervals.row(i)}
        rows.append(base | row | {"note": joined(why, intervals.notes[i], cohort.note)})
    return rows


def _blank(question: _Question) -> dict[str, Any]:
    """The row of a question without an answer."""
    n, row = len(question.events), dict.fromkeys(PROGRESSION_TABLE.meanings) | {"interval": NO_INTERVAL}
    row |= {"predictor": question.predictor, "measure": question.measure, "n_missing": question.missing}
    return row | {"n_participants": n, "n_scans": n, "n_events": int(question.events.sum())}


def progression_tables(inputs: StatisticsInputs) -> Mapping[str, pd.DataFrame]:
    """Conversion from MCI to AD: ``cox`` and ``progression``.

    BadInputError if the networks were not applied to anyone with MCI, or conversion is unknown.
    """
    cohort, settings = cox.conversions(inputs.applied), inputs.config.statistics
    return {
        "cox": cox.cox_table(cohort, settings, inputs.seed),
        "progression": progression_table(cohort, settings, inputs.seed, inputs.config.cohort.mci_horizon_months),
    }
