"""Metrics against sklearn, and intervals that respect participants."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics
from made_up import FAST, people, predictions_of

from pipeline.statistics.performance.classification import metrics, performance_table, roc_table


def test_weighted_metrics_equal_sklearn_with_sample_weights():
    rng = np.random.default_rng(0)
    target = rng.integers(0, 2, 40).astype(float)
    probability = rng.random(40).round(1)  # ties
    predicted = (probability > 0.5).astype(float)
    weights = rng.integers(0, 4, (10, 40)).astype(float)
    got = metrics(target, predicted, probability, weights)
    for i, w in enumerate(weights):
        expected = {
            "balanced_accuracy": sklearn.metrics.balanced_accuracy_score(target, predicted, sample_weight=w),
            "sensitivity": sklearn.metrics.recall_score(target, predicted, sample_weight=w),
            "specificity": sklearn.metrics.recall_score(target, predicted, pos_label=0, sample_weight=w),
            "accuracy": sklearn.metrics.accuracy_score(target, predicted, sample_weight=w),
            "auc": sklearn.metrics.roc_auc_score(target, probability, sample_weight=w),
            "average_precision": sklearn.metrics.average_precision_score(target, probability, sample_weight=w),
            "brier": sklearn.metrics.brier_score_loss(target, probability, sample_weight=w),
        }
        assert {name: values[i] for name, values in got.items()} == pytest.approx(expected, abs=1e-12)


def test_table_has_every_fold_and_metric():
    predictions = predictions_of(people()).assign(fold=[i % 2 for i in range(30)])
    table = performance_table(predictions, FAST.statistics, 3)
    assert table.groupby("fold")["metric"].nunique().to_dict() == {"0": 7, "1": 7, "all": 7}
    whole = table[table["fold"] == "all"].set_index("metric")
    right = predictions["outcome"].isin(["TP", "TN"])
    assert whole.loc["accuracy", "estimate"] == pytest.approx(right.mean())
    assert (whole["n_participants"] == 16).all()
    assert (whole["n_scans"] == len(predictions)).all()
    assert (whole["ci_low"] <= whole["estimate"]).all()
    assert (whole["estimate"] <= whole["ci_high"]).all()


def test_interval_is_wider_when_scans_belong_to_few_participants():
    rng = np.random.default_rng(1)
    right = np.repeat(rng.random(20) < 0.7, 5)
    rows = {"target": 1, "probability": 0.5, "fold": 0, "outcome": np.where(right, "TP", "FN")}
    many = pd.DataFrame(rows | {"participant_id": [f"sub-{i}" for i in range(100)]})
    few = many.assign(participant_id=np.repeat([f"sub-{i}" for i in range(20)], 5))
    width = {}
    for name, frame in (("many", many), ("few", few)):
        row = performance_table(frame, FAST.statistics, 3).set_index(["fold", "metric"]).loc[("all", "sensitivity")]
        width[name] = row["ci_high"] - row["ci_low"]
    assert width["few"] > 1.7 * width["many"]  # sqrt(5) = 2.2 in theory


def test_one_class_only_says_so():
    predictions = predictions_of([scan for scan in people() if scan.label == "CN"])
    table = performance_table(predictions, FAST.statistics, 3).set_index(["fold", "metric"])
    assert np.isnan(table.loc[("all", "auc"), "estimate"])
    assert "no scan" in table.loc[("all", "auc"), "note"]
    assert table.loc[("all", "specificity"), "estimate"] == pytest.approx(0.8, abs=0.1)
    assert len(roc_table(predictions)) == 0


def test_perfect_prediction_has_exact_intervals_over_participants_and_none_where_there_is_no_such():
    table = performance_table(predictions_of(people(), wrong=()), FAST.statistics, 3).set_index(["fold", "metric"])
    for metric, participants in {"accuracy": 16, "sensitivity": 8, "specificity": 8}.items():
        row = table.loc[("all", metric)]
        assert (row["estimate"], row["ci_high"], row["interval"]) == (1, 1, "Clopper-Pearson")
        assert row["ci_low"] == pytest.approx(
            0.025 ** (1 / participants)
        )  # that all are right has this chance of 2.5 %
        assert pd.isna(row["note"])
    for metric in ("balanced_accuracy", "auc", "average_precision"):
        row = table.loc[("all", metric)]
        assert (row["estimate"], row["interval"]) == (1, "none")
        assert np.isnan([row["ci_low"], row["ci_high"]]).all()
        assert "cannot estimate the uncertainty" in row["note"]
    assert table.loc[("all", "brier"), "interval"] == "BCa"
    nobody = predictions_of(people(), wrong=[s.participant_id for s in people()])
    row = performance_table(nobody, FAST.statistics, 3).set_index(["fold", "metric"]).loc[("all", "accuracy")]
    assert (row["ci_low"], row["ci_high"]) == pytest.approx((0, 1 - 0.025 ** (1 / 16)))


def test_roc_encloses_the_auc():
    predictions = predictions_of(people())
    points = roc_table(predictions)
    points = points[points["fold"] == "all"]
    area = np.trapezoid(points["true_positive_rate"], points["false_positive_rate"])
    table = performance_table(predictions, FAST.statistics, 3).set_index(["fold", "metric"])
    assert area == pytest.approx(table.loc[("all", "auc"), "estimate"], abs=1e-12)
