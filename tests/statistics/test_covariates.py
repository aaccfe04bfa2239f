"""Covariates learned on training rows: the same columns for others, or the reason why not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.data.features import CovariateColumns, refuse_class

TRAINING = pd.DataFrame(
    {
        "age": [60.0, 70.0, 80.0, 75.0, 66.0], "sex": ["F", "M", "F", "F", "M"], "field_strength": [1.5] * 5,
        "hippocampus_mm3": [5.0, 6.0, 7.0, 8.0, 9.0], "tiv_mm3": [10.0, 11.0, 12.0, 13.0, 9.0], "mmse": [np.nan] * 5,
        "years": [6.0, 7.0, 8.0, 7.5, 6.6], "site": [941, 941, 2, 2, 2],
    }
)  # fmt: skip


def test_columns_of_others_are_coded_as_in_training():
    covariates = CovariateColumns.of("age + sex + hippocampus_mm3/tiv_mm3 + site", TRAINING)
    other = TRAINING.iloc[[1, 2]].assign(age=[50.0, 51.0])
    columns, reasons = covariates.matrix(other)
    assert covariates.names == ("age", "sex[T.M]", "hippocampus_mm3 / tiv_mm3", "site[T.941]")
    np.testing.assert_allclose(columns, [[50, 1, 6 / 11, 1], [51, 0, 7 / 12, 0]])
    assert reasons == [None, None]


def test_centring_is_that_of_training():
    columns, _ = CovariateColumns.of("center(age)", TRAINING).matrix(TRAINING.assign(age=100.0))
    assert columns[:, 0] == pytest.approx([100 - TRAINING["age"].mean()] * 5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sex": "X"}, "sex X was not seen in training"),
        ({"field_strength": 3.0}, "field_strength 3 was not seen in training"),
        ({"age": np.nan}, "age is n/a"),
        ({"age": np.inf}, "age is n/a"),
    ],
)
def test_a_row_that_training_does_not_know_says_so(change, reason):
    covariates = CovariateColumns.of("age + sex + field_strength", TRAINING)
    columns, reasons = covariates.matrix(TRAINING.iloc[[0, 1]].assign(**change))
    assert reasons == [reason, reason]
    assert np.isnan(columns).all()


def test_what_carries_nothing_is_left_out_and_named():
    covariates = CovariateColumns.of("age + field_strength + years + mmse", TRAINING)
    assert covariates.names == ("age",)
    assert covariates.dropped == {
        "mmse": "unknown for all participants", "field_strength": "constant",
        "years": "collinear with the other covariates",
    }  # fmt: skip
    columns, _ = covariates.matrix(TRAINING)
    assert columns[:, 0].tolist() == TRAINING["age"].tolist()


@pytest.mark.parametrize("formula", ["", "1", "mmse"])
def test_no_covariate_is_no_column(formula):
    columns, reasons = CovariateColumns.of(formula, TRAINING).matrix(TRAINING)
    assert columns.shape == (5, 0)
    assert reasons == [None] * 5


@pytest.mark.parametrize(
    ("formula", "said"),
    [
        ("age + smoking", r"formula 'age \+ smoking': .*no column 'smoking'"),
        ("age + open('x')", "formula"),
        ("age +* sex", "formula"),
        ("age + ", r"formula 'age \+ ': cannot be read"),
        ("age -", "cannot be read"),
        ("age:", "cannot be read"),
        ("+", "cannot be read"),
        ("(age", "cannot be read"),
        ("age) + (sex", "cannot be read"),
        ("age sex", "cannot be read"),
        ("age | sex", "several parts"),
        ("relevance ~ age", "left-hand side"),
    ],
)
def test_a_formula_that_cannot_be_used_is_refused(formula, said):
    with pytest.raises(BadInputError, match=said) as caught:
        CovariateColumns.of(formula, TRAINING)
    assert "everything_else" not in str(caught.value)


@pytest.mark.parametrize("column", ["label", "diagnosis", "group"])
def test_the_class_is_refused(column):
    columns = ["age", "label", "diagnosis", "group"]
    with pytest.raises(BadInputError, match=rf"statistics.x = 'age \+ {column}': {column} contains the class"):
        refuse_class(f"age + {column}", "group", columns, "statistics.x")
    refuse_class("age", "group", columns, "statistics.x")
