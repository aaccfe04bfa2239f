"""Scores of regions, and the dose-response: closed forms, chance, undefined cases, refusals."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from heatlas.pipeline.evaluation.scores.localisation import dose_response, hits_in_first, region_scores
from heatlas.pipeline.run.errors import BadInputError

REGIONS = 67
PLANTED = np.isin(np.arange(REGIONS), [3, 17, 18, 40, 66])


def test_even_values_are_chance_and_the_truth_is_perfect() -> None:
    chance, best = region_scores(np.ones(REGIONS), PLANTED), region_scores(PLANTED * 1.0, PLANTED)
    assert chance["auroc"] == 0.5
    assert chance["auprc"] == pytest.approx(5 / REGIONS)
    assert chance["hits"] == pytest.approx(50 / REGIONS)
    assert best == {"auroc": 1, "auprc": 1, "hits": 5}


def test_a_random_order_has_the_expected_hits_on_average() -> None:
    rng = np.random.default_rng(5)
    hits = [hits_in_first(rng.permutation(REGIONS) + 1.0, PLANTED, 10) for _ in range(800)]
    assert np.mean(hits) == pytest.approx(50 / REGIONS, abs=4 * np.std(hits) / np.sqrt(800))


def test_a_region_without_a_value_comes_last() -> None:
    assert region_scores(np.where(PLANTED, np.nan, 1.0), PLANTED)["auroc"] == 0


@pytest.mark.parametrize("values", [np.zeros(REGIONS), np.full(REGIONS, np.nan), np.full(REGIONS, np.inf)], ids=str)
def test_undefined_rankings_have_no_scores(values: np.ndarray) -> None:
    assert all(math.isnan(value) for value in region_scores(values, PLANTED).values())


@pytest.mark.parametrize(
    ("values", "planted"),
    [(np.ones(3), [False] * 3), (np.ones(3), [True] * 3), (np.ones(3), [True, False]), (np.ones((1, 3)), [True] * 3)],
)
def test_truths_that_cannot_be_scored_are_refused(values: np.ndarray, planted: list[bool]) -> None:
    with pytest.raises(BadInputError):
        region_scores(values, planted)


def test_dose_response_is_a_rank_correlation_with_an_interval() -> None:
    rng = np.random.default_rng(2)
    severity = np.linspace(0, 1, 20)
    evidence = severity + rng.normal(0, 0.3, 20)
    answer = dose_response(severity, evidence)
    assert answer.rho == pytest.approx(pd.Series(severity).corr(pd.Series(evidence), "spearman"))
    assert -1 <= answer.low < answer.rho < answer.high <= 1
    assert dose_response(severity, np.exp(evidence)) == answer == dose_response(severity, evidence)
    assert dose_response(severity, -evidence, draws=0).rho == pytest.approx(-answer.rho)
    silent = dose_response(severity, np.where(severity > 0.9, 0, evidence), draws=0)  # two maps of nothing
    assert silent.rho < answer.rho


@pytest.mark.parametrize(
    ("severity", "evidence"),
    [([0.0, 1.0], [1.0, 2.0]), ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]), ([1.0, 2.0, 3.0], [0.0, 0.0, 0.0]),
     ([1.0, 2.0, 3.0], [1.0, np.nan, 2.0])],
    ids=["two people", "one severity", "no map responds", "a map is missing"],
)  # fmt: skip
def test_without_an_answer_there_is_none(severity: list[float], evidence: list[float]) -> None:
    answer = dose_response(np.array(severity), np.array(evidence))
    assert all(math.isnan(one) for one in (answer.rho, answer.low, answer.high))
