"""Calibration, precision-recall and differences between classes, against scipy and scikit-learn."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import fisher_exact, t, ttest_ind
from sklearn.metrics import average_precision_score

from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.statistics.performance.classification import (
    calibration_table,
    precision_recall_table,
    weighted_average_precision,
)
from heatlas.pipeline.statistics.performance.demographics import demographic_tests


def test_average_precision_is_that_of_sklearn_with_ties_and_weights():
    rng = np.random.default_rng(5)
    target, score = rng.integers(0, 2, 60).astype(float), rng.integers(0, 9, 60) / 8
    weights = rng.integers(0, 4, (20, 60)).astype(float)
    expected = [average_precision_score(target, score, sample_weight=row) for row in weights]
    np.testing.assert_allclose(weighted_average_precision(target, score, weights), expected, atol=1e-12)


def test_average_precision_without_positives_is_not_known():
    assert np.isnan(weighted_average_precision(np.zeros(4), np.arange(4.0), np.ones((1, 4)))).all()


def predictions() -> pd.DataFrame:
    rows = [("a", 0.05, 0), ("a", 0.06, 0), ("b", 0.05, 1), ("c", 0.95, 1), ("c", 1.0, 1), ("d", 0.5, 1), ("e", 0.5, 0)]
    return pd.DataFrame(rows, columns=["participant_id", "probability", "target"])


def test_people_with_many_scans_in_a_bin_count_once():
    table = calibration_table(predictions(), 0.95).set_index("low")
    assert table.loc[0.0, ["n_participants", "n_scans"]].tolist() == [2, 3]
    assert table.loc[0.0, "share_positive"] == 0.5
    assert table.loc[0.0, "mean_probability"] == pytest.approx((0.055 + 0.05) / 2)
    assert table.loc[0.9, "n_participants"] == 1  # 1.0 belongs to the last bin
    assert table.loc[0.5, "n_participants"] == 2  # an edge belongs to the bin above it
    assert set(table.index) == {0.0, 0.5, 0.9}
    assert table.loc[0.9, "ci_high"] == 1.0


def test_precision_recall_ends_at_recall_zero_and_needs_both_classes():
    table = precision_recall_table(predictions())
    assert table["recall"].iloc[-1] == 0
    assert table["precision"].iloc[0] == pytest.approx(4 / 7)
    assert precision_recall_table(predictions().query("target == 1")).empty


def people() -> list[Scan]:
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
    scans = people()
    table = demographic_tests(scans, CohortConfig()).set_index("variable")
    frame = pd.DataFrame({"who": [s.participant_id for s in scans], "label": [s.label for s in scans],
                          "age": [s.age for s in scans]})  # fmt: skip
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
    scans = people()
    both = [Scan("sub-X", f"ses-{label}", f"X{label}", "x", label, label, age=200.0, sex="F") for label in ("AD", "CN")]
    table = demographic_tests([*scans, *both], CohortConfig()).set_index("variable")
    alone = demographic_tests(scans, CohortConfig()).set_index("variable")
    assert table.loc["age", "p"] == alone.loc["age", "p"]
    assert table.loc["age", "note"] == "1 participant with scans of both classes left out"


def test_one_class_alone_is_said_to_have_no_test():
    scans = [scan for scan in people() if scan.label == "AD"]
    table = demographic_tests(scans, CohortConfig())
    assert table["p"].isna().all()
    assert table["note"].notna().all()
