"""Performance, calibration and precision-recall against scikit-learn; intervals over participants."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics
from made_up import FAST, people, predictions_of
from scipy.stats import fisher_exact, t, ttest_ind
from sklearn.metrics import average_precision_score

from heatlas.pipeline.cohort.people.tasks import Task, task_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.statistics.groups.summaries import demographic_tests
from heatlas.pipeline.statistics.performance.classification import (
    FEW_WRONG,
    LEAVES_OUT_RETRAINING,
    calibration_table,
    metrics,
    performance_table,
    precision_recall_table,
    roc_table,
    weighted_auc_within,
    weighted_average_precision,
)
from heatlas.pipeline.statistics.performance.other_tasks import CORRECTED, corrected_interval, repeats_table


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
    assert table.groupby("fold")["metric"].nunique().to_dict() == {"0": 7, "1": 7, "all": 8}
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
        assert row["note"] == LEAVES_OUT_RETRAINING
    for metric in ("balanced_accuracy", "auc", "average_precision"):
        row = table.loc[("all", metric)]
        assert (row["estimate"], row["interval"]) == (1, "none")
        assert np.isnan([row["ci_low"], row["ci_high"]]).all()
        assert "cannot estimate the uncertainty" in row["note"]
    assert table.loc[("all", "brier"), "interval"] == "logit"
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


def test_area_within_folds_counts_pairs_of_one_network_only():
    rng = np.random.default_rng(0)
    fold, target = np.repeat([0, 1, 2], [10, 30, 20]), rng.integers(0, 2, 60).astype(float)
    score = (rng.normal(size=60) + target).round(1) + 5 * fold
    weights = rng.integers(0, 3, (4, 60)).astype(float)
    for w, found in zip(weights, weighted_auc_within(target, score, fold, weights), strict=True):
        wins = pairs = 0.0
        for i in np.flatnonzero(target == 1):
            for j in np.flatnonzero((target == 0) & (fold == fold[i])):
                pairs += w[i] * w[j]
                wins += w[i] * w[j] * ((score[i] > score[j]) + (score[i] == score[j]) / 2)
        assert found == pytest.approx(wins / pairs, abs=1e-12)
    assert np.isnan(weighted_auc_within(fold > 0, score, fold, np.ones((1, 60))))  # no fold has both classes


def test_networks_of_other_levels_cost_the_pooled_area_and_not_the_area_within_folds():
    scans = people(20, (1,))
    predictions = predictions_of(scans, wrong=[])
    fold = predictions.groupby("target").cumcount() % 2
    shifted = predictions.assign(fold=fold, probability=0.5 * predictions["probability"] + 0.5 * fold)
    table = performance_table(shifted, FAST.statistics, 3).set_index(["fold", "metric"])["estimate"]
    assert table["all", "auc"] < 0.9
    assert table["all", "auc_within_folds"] == table["0", "auc"] == table["1", "auc"] == 1


def of_repeats(folds: int, seed: int = 0) -> pd.DataFrame:
    """Two trainings of networks, 60 participants."""
    rng = np.random.default_rng(seed)
    target = np.tile([0, 1], 30)
    blocks = []
    for repeat in (1, 2):
        score = 1 / (1 + np.exp(-rng.normal(size=60) - 1.5 * (target - 0.5)))
        label = np.where(target == 1, "AD", "CN")
        blocks.append(pd.DataFrame({
            "repeat": repeat, "participant_id": [f"sub-{i}" for i in range(60)], "fold": np.arange(60) // 2 % folds,
            "target": target, "label": label, "probability": score, "predicted": np.where(score > 0.5, "AD", "CN"),
        }))  # fmt: skip
    return pd.concat(blocks, ignore_index=True)


def two_classes() -> Task:
    return task_of(CohortConfig())


def test_interval_with_retraining_is_that_of_nadeau_and_bengio_over_folds():
    predictions = of_repeats(5)
    table = repeats_table(predictions, two_classes(), 0.95).set_index(["repeat", "metric"])
    of_folds = []
    for _, frame in predictions.groupby("fold"):
        areas = [sklearn.metrics.roc_auc_score(one["target"], one["probability"]) for _, one in frame.groupby("repeat")]
        of_folds.append(np.mean(areas))
    row = table.loc[("mean of folds", "auc")]
    assert row["estimate"] == pytest.approx(np.mean(of_folds))
    error = np.sqrt((1 / 5 + 12 / 48) * np.var(of_folds, ddof=1))
    reach = 2.7764451 * error  # t with 4 degrees of freedom
    assert row["interval"] == CORRECTED
    assert row["ci_low"] == pytest.approx(np.mean(of_folds) - reach, abs=1e-6)
    assert row["ci_high"] == pytest.approx(min(np.mean(of_folds) + reach, 1), abs=1e-6)
    pooled = predictions[predictions["repeat"] == 2]
    area = sklearn.metrics.roc_auc_score(pooled["target"], pooled["probability"])
    assert table.loc[("2", "auc"), "estimate"] == pytest.approx(area)
    assert (table.loc["mean", "interval"] == "none").all()


def test_two_names_of_one_person_count_once_in_every_repeat():
    predictions = of_repeats(5)
    number = predictions["participant_id"].str[4:].astype(int)
    site = (number // 10 % 2).map({0: "002", 1: "131"})
    person = number % 10 + 10 * (number // 20)
    named = predictions.assign(participant_id=[f"sub-ADNI{s}S{p:04d}" for s, p in zip(site, person, strict=True)])
    table = repeats_table(named, two_classes(), 0.95)
    assert (table["n_participants"] == 30).all()
    assert table["n_scans"].tolist() == repeats_table(predictions, two_classes(), 0.95)["n_scans"].tolist()


@pytest.mark.parametrize(("case", "said"), [("one fold", "one test fold"), ("one class", "not defined in fold 1"),
                                            ("alike", "folds do not differ")])  # fmt: skip
def test_where_folds_cannot_tell_the_row_says_why_there_is_no_interval(case: str, said: str):
    predictions = of_repeats(1 if case == "one fold" else 3)
    if case == "one class":
        predictions.loc[predictions["fold"] == 1, ["target", "label"]] = 1, "AD"
    if case == "alike":
        predictions = predictions.assign(probability=predictions["target"], predicted=predictions["label"])
    table = repeats_table(predictions, two_classes(), 0.95).set_index(["repeat", "metric"])
    row = table.loc[("mean of folds", "auc")]
    assert said in row["note"]
    assert np.isnan([row["ci_low"], row["ci_high"]]).all()
    assert row["interval"] == "none"


def test_rows_say_that_their_intervals_leave_out_retraining_and_where_one_has_it():
    predictions = predictions_of(people()).assign(fold=[i % 2 for i in range(30)])
    once, twice = (performance_table(predictions, FAST.statistics, 3, repeats) for repeats in (1, 2))
    together = once["fold"] == "all"
    assert once.loc[together, "note"].str.endswith(LEAVES_OUT_RETRAINING).all()
    few = once["note"].str.contains(FEW_WRONG, na=False)  # 15 people of a class
    assert few.equals(once["metric"] == "brier")
    assert not once.loc[~together, "note"].str.contains(LEAVES_OUT_RETRAINING, na=False).any()
    assert twice.loc[together, "note"].str.endswith("performance_repeats has one that includes it").all()
    assert corrected_interval(np.array([0.6, 0.8]), 1.0, 0.5) == pytest.approx((0.7 - 0.03**0.5, 0.7 + 0.03**0.5))


def test_average_precision_is_that_of_sklearn_with_ties_and_weights():
    rng = np.random.default_rng(5)
    target, score = rng.integers(0, 2, 60).astype(float), rng.integers(0, 9, 60) / 8
    weights = rng.integers(0, 4, (20, 60)).astype(float)
    expected = [average_precision_score(target, score, sample_weight=row) for row in weights]
    np.testing.assert_allclose(weighted_average_precision(target, score, weights), expected, atol=1e-12)


def test_average_precision_without_positives_is_not_known():
    assert np.isnan(weighted_average_precision(np.zeros(4), np.arange(4.0), np.ones((1, 4)))).all()


def seven_scans() -> pd.DataFrame:
    rows = [("a", 0.05, 0), ("a", 0.06, 0), ("b", 0.05, 1), ("c", 0.95, 1), ("c", 1.0, 1), ("d", 0.5, 1), ("e", 0.5, 0)]
    return pd.DataFrame(rows, columns=["participant_id", "probability", "target"])


def test_people_with_many_scans_in_a_bin_count_once():
    table = calibration_table(seven_scans(), 0.95).set_index("low")
    assert table.loc[0.0, ["n_participants", "n_scans"]].tolist() == [2, 3]
    assert table.loc[0.0, "share_positive"] == 0.5
    assert table.loc[0.0, "mean_probability"] == pytest.approx((0.055 + 0.05) / 2)
    assert table.loc[0.9, "n_participants"] == 1  # 1.0 belongs to the last bin
    assert table.loc[0.5, "n_participants"] == 2  # an edge belongs to the bin above it
    assert set(table.index) == {0.0, 0.5, 0.9}
    assert table.loc[0.9, "ci_high"] == 1.0


def test_precision_recall_ends_at_recall_zero_and_needs_both_classes():
    table = precision_recall_table(seven_scans())
    assert table["recall"].iloc[-1] == 0
    assert table["precision"].iloc[0] == pytest.approx(4 / 7)
    assert precision_recall_table(seven_scans().query("target == 1")).empty


def both_classes() -> list[Scan]:
    rng, scans = np.random.default_rng(0), []
    for label, mean in (("AD", 76.0), ("CN", 72.0)):
        for person in range(12):
            for visit in range(1 + person % 2):
                scans.append(
                    Scan(f"sub-{label}{person}", f"ses-{visit}", f"{label}{person}{visit}", "x", label, label,
                         age=float(mean + 4 * rng.normal()), sex="F" if person < (3 if label == "AD" else 9) else "M")
                )  # fmt: skip
    return scans


def test_differences_between_classes_are_over_participants():
    scans = both_classes()
    table = demographic_tests(scans, CohortConfig()).set_index("variable")
    frame = pd.DataFrame(
        {"who": [s.participant_id for s in scans], "label": [s.label for s in scans], "age": [s.age for s in scans]}
    )
    means = frame.groupby(["label", "who"])["age"].mean()
    expected = ttest_ind(means["AD"], means["CN"], equal_var=False)
    assert table.loc["age", "p"] == pytest.approx(expected.pvalue)
    assert table.loc["age", ["n_positive", "n_negative"]].tolist() == [12, 12]
    g, low, high = table.loc["age", ["hedges_g", "hedges_g_low", "hedges_g_high"]].astype(float)
    inner, outer = (np.arcsinh(x / np.sqrt(2 * 22)) for x in (expected.statistic, t.isf(0.025, expected.df)))
    unit = np.sqrt(2 * 22) * g / expected.statistic
    assert [low, high] == pytest.approx([unit * np.sinh(inner - outer), unit * np.sinh(inner + outer)])
    assert (low > 0) == (expected.pvalue < 0.05)
    narrow = demographic_tests(scans, CohortConfig(), 0.5).set_index("variable").loc["age"]
    assert low < narrow["hedges_g_low"] < g < narrow["hedges_g_high"] < high
    assert table.loc["female", "p"] == pytest.approx(fisher_exact([[3, 9], [9, 3]])[1])
    assert "fewer than two values" in table.loc["mmse", "note"]


def test_someone_of_both_classes_is_in_neither():
    scans = both_classes()
    both = [Scan("sub-X", f"ses-{label}", f"X{label}", "x", label, label, age=200.0, sex="F") for label in ("AD", "CN")]
    table = demographic_tests([*scans, *both], CohortConfig()).set_index("variable")
    alone = demographic_tests(scans, CohortConfig()).set_index("variable")
    assert table.loc["age", "p"] == alone.loc["age", "p"]
    assert table.loc["age", "note"] == "1 participant with scans of both classes left out"


def test_one_class_alone_is_said_to_have_no_test():
    scans = [scan for scan in both_classes() if scan.label == "AD"]
    table = demographic_tests(scans, CohortConfig())
    assert table["p"].isna().all()
    assert table["note"].notna().all()
