"""Scores of regions, and the dose-response: closed forms, chance, undefined cases, refusals."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from pipeline.evaluation.scores.dose_response import COLUMNS, dose_response
from pipeline.evaluation.scores.hits import hits_in_first
from pipeline.evaluation.scores.region_scores import REGION_SCORES, region_scores
from pipeline.run.errors import BadInputError

REGIONS = 67
PLANTED = np.isin(np.arange(REGIONS), [3, 17, 18, 40, 66])


def test_even_values_are_chance_and_the_truth_is_perfect() -> None:
    chance, best = region_scores(np.ones(REGIONS), PLANTED), region_scores(PLANTED * 1.0, PLANTED)
    assert chance["region_auroc"] == 0.5
    assert chance["region_auprc"] == pytest.approx(5 / REGIONS)
    assert chance["region_hits"] == pytest.approx(chance["region_hits_expected"]) == pytest.approx(50 / REGIONS)
    assert chance["region_rank"] == (REGIONS + 1) / 2
    assert (best["region_auroc"], best["region_auprc"], best["region_hits"], best["region_rank"]) == (1, 1, 5, 3)
    assert tuple(best) == tuple(REGION_SCORES)


def test_a_random_order_has_the_expected_hits_on_average() -> None:
    rng = np.random.default_rng(5)
    hits = [hits_in_first(rng.permutation(REGIONS) + 1.0, PLANTED, 10) for _ in range(800)]
    assert np.mean(hits) == pytest.approx(50 / REGIONS, abs=4 * np.std(hits) / np.sqrt(800))


def test_a_region_without_a_value_comes_last() -> None:
    values = np.arange(REGIONS, dtype=float)
    values[66] = np.nan
    assert region_scores(values, PLANTED)["region_rank"] == np.mean([66 - 3, 66 - 17, 66 - 18, 66 - 40, 67])
    assert region_scores(np.where(PLANTED, np.nan, 1.0), PLANTED)["region_auroc"] == 0


@pytest.mark.parametrize("values", [np.zeros(REGIONS), np.full(REGIONS, np.nan), np.full(REGIONS, np.inf)], ids=str)
def test_undefined_rankings_are_counted(values: np.ndarray) -> None:
    scores = region_scores(values, PLANTED)
    assert scores.pop("undefined") == 1
    assert all(math.isnan(value) for value in scores.values())


@pytest.mark.parametrize(
    ("values", "planted"),
    [(np.ones(3), [False] * 3), (np.ones(3), [True] * 3), (np.ones(3), [True, False]), (np.ones((1, 3)), [True] * 3)],
)
def test_truths_that_cannot_be_scored_are_refused(values: np.ndarray, planted: list[bool]) -> None:
    with pytest.raises(BadInputError):
        region_scores(values, planted)


def doses(gains: dict[str, float], severities: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3)) -> pd.DataFrame:
    rows = [(who, dose, dose * gain + 1) for who, gain in gains.items() for dose in severities]
    return pd.DataFrame(rows, columns=COLUMNS)


def test_one_correlation_per_participant_and_their_mean() -> None:
    answer = dose_response(doses({"a": 1, "b": 4, "c": 0.5, "d": -1}))
    assert answer.within
    assert answer.per_participant == {"a": 1, "b": 1, "c": 1, "d": -1}
    assert answer.rho == 0.5
    assert -1 <= answer.ci_low < 0.5 < answer.ci_high <= 1


def test_all_alike_have_no_interval_and_seeds_repeat() -> None:
    answer = dose_response(doses({"a": 1, "b": 2, "c": 3}))
    assert answer.rho == 1
    assert math.isnan(answer.ci_low)
    assert math.isnan(answer.ci_high)
    table = doses({"a": 1, "b": 4, "c": 0.5, "d": -1, "e": -2, "f": 1})
    assert dose_response(table, seed=3) == dose_response(table, seed=3)


@pytest.mark.parametrize("broken", ["flat", "missing", "infinite"])
def test_a_participant_whose_map_does_not_respond_counts_as_no_response(broken: str) -> None:
    table = doses({"a": 1, "b": 2, "c": 3, "d": 4})
    mine = table["participant_id"] == "d"
    table.loc[mine, "evidence"] = {"flat": 2.0, "missing": np.nan, "infinite": np.inf}[broken]
    answer = dose_response(table)
    assert (answer.rho, answer.n_undefined, answer.n_participants) == (0.75, 1, 4)
    assert math.isnan(answer.per_participant["d"])


def test_one_severity_each_is_a_correlation_over_participants() -> None:
    rng = np.random.default_rng(2)
    severity = np.linspace(0, 1, 20)
    table = pd.DataFrame(
        {
            "participant_id": [f"p{n}" for n in range(20)],
            "severity": severity,
            "evidence": severity + rng.normal(0, 0.3, 20),
        }
    )
    answer = dose_response(table, draws=500)
    assert not answer.within
    assert answer.rho == pytest.approx(table[["severity", "evidence"]].corr("spearman").iloc[0, 1])
    assert answer.ci_low < answer.rho < answer.ci_high
    twice = pd.concat([table, table])
    assert dose_response(twice, draws=500) == answer  # repeated scans of a person are no further persons
    table.loc[19, "evidence"] = np.nan
    missing = dose_response(table, draws=500)
    assert missing.n_undefined == 1
    assert missing.rho < answer.rho


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (doses({"a": 1}).drop(columns="severity"), "no column severity"),
        (doses({"a": 1}).iloc[:0], "no row"),
        (doses({"a": 1, "b": 1}, (0.5,)), "same severity"),
        (doses({"a": 1}).assign(severity=["0.1", "much", "0.2", "0.3"]), "row 1, severity 'much'"),
    ],
)
def test_tables_without_an_answer_are_refused(table: pd.DataFrame, words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        dose_response(table)
