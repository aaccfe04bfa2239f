"""What changes places: participants with all their scans, how many ways there are, and families of tests."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import statsmodels.formula.api as smf
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.linear.design import design_of
from heatlas.pipeline.statistics.linear.freedman_lane import freedman_lane
from heatlas.pipeline.statistics.linear.permutations import Exchangeability, add_false_discovery_rate, p_value

CODES = st.lists(st.integers(0, 5), min_size=1, max_size=14).map(lambda raw: np.unique(raw, return_inverse=True)[1])


@settings(deadline=None)  # the first call compiles
@given(CODES, st.integers(0, 100))
def test_whole_participants_move_to_participants_with_as_many_scans(codes, seed):
    exchange = Exchangeability.whole_participants(codes)
    own, sizes = exchange.codes, np.bincount(exchange.codes)
    for row in exchange.permutations(20, np.random.default_rng(seed)).rows:
        assert sorted(row) == list(range(len(codes)))
        for code in range(len(sizes)):
            source = row[own == code]
            (origin,) = np.unique(own[source])
            assert sizes[origin] == sizes[code]
            assert (source == np.flatnonzero(own == origin)).all()


@settings(deadline=None)  # the first call compiles
@given(st.lists(st.integers(0, 2), min_size=1, max_size=8), st.integers(0, 10))
def test_orders_of_things_partly_alike_are_complete_and_distinct(labels, seed):
    labels = np.array(labels)
    distinct = math.factorial(len(labels)) // math.prod(math.factorial(n) for n in np.bincount(labels))
    every = Exchangeability.free(len(labels)).permutations(distinct, np.random.default_rng(seed), labels)
    assert every.exact
    assert len({tuple(labels[row]) for row in every.rows}) == len(every) == distinct
    assert any((row == np.arange(len(labels))).all() for row in every.rows)
    assert all(sorted(row) == list(range(len(labels))) for row in every.rows)
    if distinct > 1:
        assert (
            not Exchangeability.free(len(labels)).permutations(distinct - 1, np.random.default_rng(seed), labels).exact
        )


def test_all_exchanges_of_whole_participants_are_used_when_there_are_no_more():
    exchange = Exchangeability.whole_participants([0, 0, 1, 2, 2, 3, 4])  # two pairs, three single scans: 2! x 3!
    some = exchange.permutations(12, np.random.default_rng(0))
    assert some.exact
    assert len({tuple(row) for row in some.rows}) == len(some) == 12
    assert not exchange.permutations(11, np.random.default_rng(0)).exact
    alike = exchange.permutations(12, np.random.default_rng(0), alike=[5, 6, 1, 5, 6, 1, 2])
    assert len(alike) == 3  # the pairs are alike, and two of the single scans


def test_random_permutations_are_uniform():
    rows = Exchangeability.free(4).permutations(20, np.random.default_rng(0)).rows
    assert rows.shape == (20, 4)
    many = Exchangeability.free(5).permutations(119, np.random.default_rng(1))
    assert not many.exact
    drawn = np.concatenate(
        [
            Exchangeability.free(5).permutations(119, np.random.default_rng(s)).rows @ 5 ** np.arange(5)
            for s in range(50)
        ]
    )
    assert scipy.stats.chisquare(np.unique(drawn, return_counts=True)[1]).pvalue > 1e-3
    assert len(np.unique(drawn)) == 120


def test_p_counts_the_observed_order_once():
    assert p_value(np.array([0, 1, 4]), 4, exact=False).tolist() == [1 / 5, 2 / 5, 1]
    assert p_value(np.array([1, 4]), 4, exact=True).tolist() == [1 / 4, 1]


def longitudinal():
    rng = np.random.default_rng(0)
    sizes = [1, 3, 2, 4, 3, 1, 5, 2, 3]
    who = np.repeat([f"sub-{i}" for i in range(len(sizes))], sizes)
    shuffled = rng.permutation(len(who))
    frame = pd.DataFrame({"participant_id": who, "years": rng.uniform(0, 5, len(who))})
    frame["mmse"] = rng.normal(27, 2, len(who))
    frame["sex"] = np.repeat(list("FMFMFMFMF"), sizes)
    y = rng.normal(size=len(who)) + np.repeat(rng.normal(0, 5, len(sizes)), sizes) - 0.3 * frame["years"].to_numpy()
    return frame.iloc[shuffled].reset_index(drop=True), y[shuffled]


def test_participant_means_is_the_model_of_averaged_columns():
    frame, y = longitudinal()
    frame["field_strength"] = np.where(np.arange(len(frame)) % 3 == 0, "1.5", "3")
    design = design_of("mmse + years + field_strength", "mmse", frame)
    exchange = Exchangeability.participant_means(frame["participant_id"])
    test = freedman_lane(y, design, exchange, 99, np.random.default_rng(0), equal_variances=True)
    means = frame.assign(y=y, strong=(frame["field_strength"] == "3").astype(float))
    means = means.groupby("participant_id")[["y", "mmse", "years", "strong"]].mean()
    fit = smf.ols("y ~ mmse + years + strong", means).fit()
    assert_allclose([test.statistic[0], test.estimate[0]], [fit.tvalues["mmse"], fit.params["mmse"]], rtol=1e-9)
    assert (test.n_units, test.df[0]) == (9, fit.df_resid)
    assert exchange.groups_of_units(["a"] * len(frame)).tolist() == [0] * 9


def test_someone_with_scans_in_two_groups_has_the_variance_of_the_group_with_most():
    exchange = Exchangeability.participant_means(["x", "y", "x", "x", "y"])
    assert exchange.groups_of_units(["AD", "CN", "CN", "AD", "CN"]).tolist() == [0, 1]


def test_a_scan_of_nobody_is_refused_by_name():
    with pytest.raises(BadInputError, match="participant_id: row 2 has no value"):
        Exchangeability.participant_means(["sub-01", None, "sub-02"])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("apart", "names"),
    [(["map"], {"2 tests: gb", "1 tests: lrp"}), (["map", "n"], {"2 tests: gb, 1", "1 tests: lrp, 2"})],
)
def test_each_family_is_adjusted_by_itself(apart: list[str], names: set[str]) -> None:
    table = pd.DataFrame({"map": ["gb", "lrp", "gb"], "n": [1, 2, 1], "p": [0.01, 0.02, 0.04]})
    adjusted = add_false_discovery_rate(table, apart, "tests")
    assert adjusted["p_fdr"].tolist() == [0.02, 0.02, 0.04]
    assert set(adjusted["family"]) == names
