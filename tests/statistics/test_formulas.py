"""Model matrices and covariates: what formulas mean, and every row, level and column left out by name."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from numpy.testing import assert_allclose

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.data.features import CovariateColumns, refuse_class
from heatlas.pipeline.statistics.linear.design import design_of


def scans():
    """Twelve people with two scans each."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "participant_id": np.repeat([f"sub-{i:02d}" for i in range(12)], 2),
            "age": rng.normal(75, 6, 24),
            "sex": np.repeat(["F", "M"] * 6, 2),
            "site": np.repeat(list("aaaabbbbcccc"), 2),
            "field_strength": rng.choice([1.5, 3.0], 24),
            "apoe4": np.repeat([0, 1, 2] * 4, 2),
            "hippocampus_mm3": rng.normal(7000, 500, 24),
            "tiv_mm3": rng.normal(1.5e6, 1e5, 24),
        }
    )


@pytest.mark.parametrize(("formula", "term", "statsmodels_formula"), [
    ("hippocampus_mm3/tiv_mm3 + age + sex", "hippocampus_mm3/tiv_mm3", "I(hippocampus_mm3/tiv_mm3) + age + sex"),
    ("relevance ~ hippocampus_mm3 / tiv_mm3 + age", "age", "I(hippocampus_mm3/tiv_mm3) + age"),
    ("age*sex + site", "sex:age", "age*sex + site"),
    ("log(tiv_mm3) + I(age**2) + sex + age", "I(age**2)", "np.log(tiv_mm3) + I(age**2) + sex + age"),
    ("site + field_strength + apoe4", "apoe4", "site + C(field_strength) + apoe4"),
    ("(hippocampus_mm3 + age) * sex", "hippocampus_mm3:sex", "(hippocampus_mm3 + age) * sex"),
])  # fmt: skip
def test_matrix_spans_what_statsmodels_makes_of_the_formula(formula, term, statsmodels_formula):
    frame = scans()
    design = design_of(formula, term, frame)
    oracle = smf.ols(f"y ~ {statsmodels_formula}", frame.assign(y=1.0)).exog
    own = np.column_stack([design.nuisance, design.tested])
    assert own.shape == oracle.shape
    assert np.linalg.matrix_rank(oracle / np.linalg.norm(oracle, axis=0)) == own.shape[1]
    fitted = own @ np.linalg.lstsq(own, oracle, rcond=None)[0]
    assert_allclose(fitted, oracle, rtol=1e-7, atol=1e-7 * np.abs(oracle).max())
    assert design.names[design.tested.shape[1]] == "Intercept"
    assert (design.nuisance[:, 0] == 1).all()
    assert len(design.names) == own.shape[1]
    assert (dict(design.missing), dict(design.dropped), design.note) == ({}, {}, None)


def test_splines_and_polynomials_count_their_columns():
    frame = scans()
    assert design_of("bs(age, df=4) + sex", "bs(age, df=4)", frame).tested.shape == (24, 4)
    assert design_of("poly(age, 2) + sex", "poly(age, 2)", frame).tested.shape == (24, 2)


def test_missing_values_are_listwise_and_counted_per_column():
    frame = scans().astype({"sex": object, "age": object})
    frame.loc[[0, 3], "age"] = ["n/a", None]
    frame.loc[[3, 5], "hippocampus_mm3"] = [np.nan, np.inf]
    frame.loc[7, "tiv_mm3"] = 0.0
    frame.loc[9, "site"] = np.nan
    design = design_of("hippocampus_mm3/tiv_mm3 + age", "age", frame)
    assert design.rows.tolist() == [i for i in range(24) if i not in (0, 3, 5, 7)]
    assert design.missing == {"age": 2, "hippocampus_mm3": 2, "hippocampus_mm3 / tiv_mm3": 1}
    assert design.tested[0, 0] == frame.loc[1, "age"]
    assert "2 rows without age" in design.note


def test_a_participant_with_two_sexes_is_named_and_left_out():
    frame = scans()
    frame.loc[4, "sex"] = "M"  # sub-02 is F in the other scan
    design = design_of("age + sex", "age", frame)
    assert [i for i in range(24) if i not in design.rows] == [4, 5]
    assert design.missing == {"sex": 2}
    assert design.dropped == {"sub-02": "sex is F and M; treated as unknown, so these scans are left out"}
    assert len(design_of("age", "age", frame).rows) == 24


def test_constant_and_collinear_covariates_are_left_out_by_name():
    frame = scans().assign(one=3.7, unknown=None, years=lambda t: t["age"] - 50, months=lambda t: 12 * t["age"])
    frame["who"] = "adult"
    design = design_of("hippocampus_mm3 + one + age + years + months + unknown + who", "hippocampus_mm3", frame)
    assert design.names == ("hippocampus_mm3", "Intercept", "age")
    assert design.dropped == {
        "unknown": "no known value in any row; left out of the model",
        "who": "adult in all rows; left out of the model",
        "one": "constant; left out",
        "years": "collinear with Intercept, age; left out",
        "months": "collinear with Intercept, age; left out",
    }


def test_site_that_says_the_field_strength_is_dropped_column_by_column():
    frame = scans()
    frame["field_strength"] = np.where(frame["site"] == "a", 1.5, 3.0)
    design = design_of("age + field_strength + site", "age", frame)
    assert list(design.dropped) == ["site[T.c]"]
    assert design.nuisance.shape[1] == 3


@pytest.mark.parametrize(("change", "said"), [
    ({"age": 70.0}, "term age: cannot be tested: age is constant"),
    ({"age": None}, "column age: no known value, so age cannot be tested"),
    ({"tiv_mm3": None, "age": None}, "column age: no known value"),
])  # fmt: skip
def test_tested_column_without_variation_is_refused(change, said):
    with pytest.raises(BadInputError, match=said):
        design_of("age + tiv_mm3", "age", scans().assign(**change))


def test_tested_column_that_follows_from_the_covariates_is_refused():
    frame = scans().assign(label=lambda t: np.where(t["site"] == "a", "AD", "CN"))
    with pytest.raises(BadInputError, match=r"term label: .*label\[T.CN\] is collinear with Intercept, site"):
        design_of("site + label", "label", frame)
    with pytest.raises(BadInputError, match="term label: cannot be tested: one level only"):
        design_of("age + label", "label", frame.assign(label="AD"))


def test_levels_with_one_participant():
    frame = scans()
    frame["site"] = np.repeat(list("aaaabbbbbbxy"), 2)
    design = design_of("age + site", "age", frame)
    assert design.dropped == {"site=x, y": "one participant each; merged into one level"}
    assert len(design.rows) == 24
    assert design.nuisance.sum(axis=0).tolist() in ([24, 8, 12], [24, 12, 8], [24, 12, 4], [24, 8, 4])
    frame["site"] = np.repeat(list("aaaabbbbbbbx"), 2)
    design = design_of("age + site", "age", frame)
    assert design.dropped == {"site=x": "one participant only; 2 rows left out"}
    assert design.rows.tolist() == list(range(22))
    frame["site"] = frame["participant_id"]
    design = design_of("age + site", "age", frame)
    assert design.names == ("age", "Intercept")
    assert "each level has one participant" in design.dropped["site"]
    assert (
        design_of("site + age", "site", frame.drop(columns="participant_id")).tested.shape[1] == 11
    )  # rows count then


def test_numbers_that_are_names_are_levels():
    frame = scans()
    frame["site"] = np.repeat([2, 2, 2, 2, 9, 9, 9, 9, 14, 14, 14, 14], 2)
    assert design_of("age + site", "site", frame).tested.shape[1] == 2
    assert design_of("age + apoe4", "apoe4", frame).tested.shape[1] == 1


@pytest.mark.parametrize(("formula", "term", "said"), [
    ("age + weight", "age", "no column 'weight'"),
    ("age + sex", "mmse", "no column 'mmse'"),
    ("age + sex", "site", "has no term 'site'; its terms are age, sex"),
    ("age +", "age", "cannot be read"),
    ("0 + age", "age", "without an intercept"),
    ("age * sex", "age", "age cannot be tested with age:sex"),
    ("age + I(__import__('os').getcwd())", "age", "not arithmetic"),
    ("age + {tiv_mm3.__class__}", "age", "not arithmetic"),
    ("age + {[x for x in sex]}", "age", "not arithmetic"),
    ("age + eval('1')", "age", "not arithmetic"),
    ("age + log(sex)", "age", "cannot be evaluated"),
])  # fmt: skip
def test_formulas_that_cannot_be_used_say_why(formula, term, said):
    with pytest.raises(BadInputError, match=said):
        design_of(formula, term, scans())


def test_no_complete_row_names_the_columns():
    frame = scans()
    frame.loc[:11, "age"] = np.nan
    frame.loc[12:, "tiv_mm3"] = np.nan
    with pytest.raises(BadInputError, match=r"no row has all values; missing in age \(12\), tiv_mm3 \(12\)"):
        design_of("age + tiv_mm3", "age", frame)
    with pytest.raises(BadInputError):
        design_of("age", "age", frame.iloc[:0])


TRAINING = dict(age=[60.0, 70.0, 80.0, 75.0, 66.0], sex=["F", "M", "F", "F", "M"], field_strength=[1.5] * 5)
TRAINING |= dict(hippocampus_mm3=[5.0, 6.0, 7.0, 8.0, 9.0], tiv_mm3=[10.0, 11.0, 12.0, 13.0, 9.0], mmse=[np.nan] * 5)
TRAINING = pd.DataFrame(TRAINING | dict(years=[6.0, 7.0, 8.0, 7.5, 6.6], site=[941, 941, 2, 2, 2]))


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
        "mmse": "unknown for all participants",
        "field_strength": "constant",
        "years": "collinear with the other covariates",
    }
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
