"""Bootstrap interval of participants: draws in which a statistic does not exist."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from heatlas.pipeline.evaluation.scores.accuracy import participant_interval


def mean_of_few(values: np.ndarray, has: np.ndarray) -> float:
    """Mean of those who have a value; NaN of nobody."""
    return float(values[has > 0].mean()) if (has > 0).any() else float("nan")


def test_draws_without_a_value_are_left_out_and_do_not_count_as_0() -> None:
    values, has = np.array([5.0, 6.0, 7.0, 8.0, 9.0, 9.5]), np.array([1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    low, high = participant_interval((values, has), mean_of_few, 2000, 0)
    assert (low, high) == (5.0, 6.0)  # 9 % of the draws have nobody, which as 0 would be the lower bound


def test_no_interval_where_most_draws_have_no_value() -> None:
    values = np.arange(20.0)

    def rarely(drawn: np.ndarray) -> float:
        return float(drawn.mean()) if drawn.max() < 15 else float("nan")

    assert np.isnan(participant_interval((values,), rarely, 500, 0)).all()


def test_without_gaps_it_is_scipys() -> None:
    values = np.random.default_rng(0).normal(size=30)
    wanted = stats.bootstrap((values,), np.mean, n_resamples=500, method="BCa", random_state=np.random.default_rng(3))
    assert participant_interval((values,), np.mean, 500, 3) == pytest.approx(tuple(wanted.confidence_interval))
