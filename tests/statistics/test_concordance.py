"""Harrell's concordance against counting pairs, scikit-learn's ROC area and a perfect order."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from heatlas.pipeline.statistics.progression.hazards import (
    class_pairs,
    comparable_pairs,
    concordance,
    permuted_concordance,
)

ROWS = st.lists(st.tuples(st.integers(1, 5), st.booleans(), st.integers(0, 4)), min_size=2, max_size=12)


def counted(rows: list[tuple[int, bool, int]]) -> float:
    """Pair by pair, in the words of Harrell et al. (1982)."""
    right = total = 0.0
    for (t1, e1, x1), (t2, e2, x2) in itertools.permutations(rows, 2):
        if e1 and (t1 < t2 or (t1 == t2 and not e2)):
            total += 1
            right += 1.0 if x1 > x2 else 0.5 if x1 == x2 else 0.0
    return right / total if total else np.nan


def arrays(rows: list[tuple[int, bool, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    time, event, x = zip(*rows, strict=True)
    return np.array(time, float), np.array(event), np.array(x, float)


@settings(max_examples=150, deadline=None)
@given(ROWS)
def test_concordance_is_what_counting_gives(rows: list[tuple[int, bool, int]]) -> None:
    time, event, x = arrays(rows)
    np.testing.assert_allclose(concordance(x, comparable_pairs(time, event))[0], counted(rows), atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(ROWS, st.data())
def test_a_participant_drawn_twice_counts_as_two_people(rows, data) -> None:
    times = data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
    time, event, x = arrays(rows)
    repeated = [row for row, k in zip(rows, times, strict=True) for _ in range(k)]
    # Two copies of one person are tied in time and event, so they are no comparable pair.
    expected = counted(repeated) if len(repeated) > 1 else np.nan
    weighted = concordance(x, comparable_pairs(time, event), np.array([times], float))[0]
    np.testing.assert_allclose(weighted, expected, atol=1e-12)


def test_class_pairs_give_the_area_under_the_roc_curve() -> None:
    rng = np.random.default_rng(3)
    positive, score = rng.random(40) < 0.4, rng.integers(0, 8, 40).astype(float)
    np.testing.assert_allclose(concordance(score, class_pairs(positive))[0], roc_auc_score(positive, score))


def test_permuting_the_predictor_is_recomputing_it() -> None:
    rng = np.random.default_rng(4)
    time, event, x = rng.integers(1, 9, 15).astype(float), rng.random(15) < 0.6, rng.normal(size=15)
    rows = np.array([rng.permutation(15) for _ in range(20)])
    pairs = comparable_pairs(time, event)
    expected = [concordance(x[order], pairs)[0] for order in rows]
    np.testing.assert_allclose(permuted_concordance(x, pairs, rows), expected)


def test_without_a_comparable_pair_there_is_no_concordance() -> None:
    pairs = comparable_pairs(np.array([1.0, 2.0]), np.array([False, False]))
    assert np.isnan(concordance(np.array([1.0, 2.0]), pairs)).all()
    assert np.isnan(permuted_concordance(np.array([1.0, 2.0]), pairs, np.array([[1, 0]]))).all()
