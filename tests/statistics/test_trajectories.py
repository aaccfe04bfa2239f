"""Change over visits: tests on slopes of participants, planted slopes, networks of unlike scale, what is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from made_up import FAST, of_one_spread
from mci_cohort import applied_to, inputs_of, with_settings
from scipy.stats import ttest_1samp, ttest_ind
from statsmodels.stats.oneway import anova_oneway

from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.statistics.arrays import Resampling
from heatlas.pipeline.statistics.data.members import first_visits, networks_of, years_since_first
from heatlas.pipeline.statistics.progression.trajectories import (
    DIFFERENT_NETWORKS,
    NO_CHANGE,
    change_test,
    participant_slopes,
    trajectory_table,
)

N = 24
ONE = np.zeros(100, np.intp)
"""Everyone explained by one network."""


def balanced(visits: int, groups: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Values, years, group and participant of people who all come at the same times."""
    rng = np.random.default_rng(seed)
    years, person = np.tile(np.arange(float(visits)), N), np.repeat(np.arange(N), visits)
    group = person % groups
    slope = rng.normal(0, 0.6, N) + 0.5 * (np.arange(N) % groups)
    values = rng.normal(0, 1.5, N)[person] + slope[person] * years + rng.normal(0, 0.4, N * visits)
    return values, years, group, person


def own_slopes(values: np.ndarray, years: np.ndarray, person: np.ndarray) -> np.ndarray:
    return np.array([np.polyfit(years[person == i], values[person == i], 1)[0] for i in range(N)])


@pytest.mark.parametrize("groups", [2, 3])
def test_balanced_visits_give_the_tests_on_each_persons_slope(groups: int) -> None:
    values, years, group, person = balanced(4, groups)
    made = change_test(values[:, None], years, person, group, ONE[person], Resampling(1999, np.random.default_rng(0)))
    slopes = own_slopes(values, years, person)
    parts = [slopes[np.arange(N) % groups == g] for g in range(groups)]
    if groups == 3:
        expected = anova_oneway(slopes, np.arange(N) % 3, use_var="unequal")
        np.testing.assert_allclose(made.statistic[0], expected.statistic, rtol=1e-8)
        return
    test = ttest_ind(parts[1], parts[0], equal_var=False)
    np.testing.assert_allclose([made.statistic[0], made.df[0]], [test.statistic, test.df], rtol=1e-8)
    np.testing.assert_allclose(made.estimate[0], parts[1].mean() - parts[0].mean())
    interval = test.confidence_interval(0.95)
    np.testing.assert_allclose([made.low[0], made.high[0]], interval, atol=0.12 * np.ptp(interval))


def test_networks_are_a_factor_of_the_model_of_slopes() -> None:
    """Two networks, one of three times the scale, groups unbalanced: least squares of slopes by statsmodels."""
    values, years, group, person = balanced(4, 2)
    network = (np.arange(N) % 3 == 0).astype(np.intp)
    seen = values * np.where(network[person] == 1, 3.0, 1.0)
    made = change_test(seen[:, None], years, person, group, network[person], Resampling(99, np.random.default_rng(0)))
    lines = participant_slopes(seen[:, None], years, person, group, network[person])
    root = np.sqrt(lines.reliability)
    columns = np.column_stack([lines.group, lines.network, np.ones(len(root))]) * root[:, None]
    fit = sm.OLS(of_one_spread(lines.slopes[:, 0] * root, lines.network), columns).fit()
    np.testing.assert_allclose(made.estimate[0], fit.params[0])


def test_change_that_networks_see_on_unlike_scales_is_no_difference_of_groups() -> None:
    """All decline alike; networks have scales 1 to 3, and more of group 1 in those of large scale."""
    rng = np.random.default_rng(2)
    rejected = []
    for _ in range(25):
        fold = np.arange(60) % 4
        group = (rng.random(60) < np.array([0.15, 0.4, 0.6, 0.85])[fold]).astype(np.intp)
        group[:8], group[8:16] = 1, 0
        person, years = np.repeat(np.arange(60), 3), np.tile(np.arange(3.0), 60)
        slopes = -0.5 + 0.3 * rng.normal(size=(60, 40))
        values = slopes[person] * years[:, None] + 0.5 * rng.normal(size=(180, 40))
        values *= np.array([1.0, 1.5, 2.0, 3.0])[fold][person][:, None]
        rejected.append(
            (change_test(values, years, person, group[person], fold[person], Resampling(199, rng)).p <= 0.05).mean()
        )
    assert 0.03 <= np.mean(rejected) <= 0.07, np.mean(rejected)  # 12 to 26 % where the network is left out


def test_a_group_in_one_network_only_has_no_test_and_says_why() -> None:
    values, years, group, person = balanced(4, 2)
    made = change_test(values[:, None], years, person, group, group, Resampling(99, np.random.default_rng(0)))
    assert np.isnan(made.p).all()
    assert made.notes[0] == DIFFERENT_NETWORKS


@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize("alone", [1, 2, 5])
def test_people_alone_with_their_network_are_left_out_and_named(alone: int, groups: int) -> None:
    values, years, group, person = balanced(2, groups)  # two visits: weights are equal, whoever takes part
    network = np.where(np.arange(N) < alone, 2 + np.arange(N), np.arange(N) // groups % 2)[person]
    network = np.unique(network, return_inverse=True)[1]
    kept = person >= alone
    whole, part = (
        change_test(values[rows][:, None], years[rows], person[rows], group[rows], network[rows],
                    Resampling(99, np.random.default_rng(0)))
        for rows in (np.full(len(person), True), kept)
    )  # fmt: skip
    assert "network=" in str(whole.notes[0])
    assert "left out" in str(whole.notes[0])
    np.testing.assert_allclose(whole.statistic, part.statistic)
    assert whole.p.tolist() == part.p.tolist()


def test_nobody_who_changes_is_no_test_and_the_row_says_so() -> None:
    values, years, _, person = balanced(3, 1)
    still = np.column_stack([values, np.arange(N)[person] / 3.0])
    made = change_test(still, years, person, ONE[person], ONE[person], Resampling(99, np.random.default_rng(0)))
    assert np.isnan(made.p).tolist() == [False, True]
    assert made.notes[0] != made.notes[1] == NO_CHANGE


def test_permuted_difference_in_change_is_welch_s_t_on_own_slopes() -> None:
    values, years, group, person = balanced(4, 2)
    slopes = own_slopes(values, years, person)
    expected = ttest_ind(slopes[0::2], slopes[1::2], equal_var=False).pvalue
    made = np.column_stack([values, values + 0.3 * (group == 0) * years, 0.1 * person**2.0])
    p = change_test(made, years, person, group, ONE[person], Resampling(4999, np.random.default_rng(0))).p
    np.testing.assert_allclose(p[0], expected, atol=0.02)
    closer = ttest_ind(slopes[0::2] + 0.3, slopes[1::2], equal_var=False).pvalue
    np.testing.assert_allclose(p[1], closer, atol=0.03)


def test_change_of_a_group_is_exact_for_few_people() -> None:
    """Three people who all rise: of 8 flips, all up and all down are as extreme. A fourth at one time has no part."""
    years, person = np.array([0.0, 1, 0, 1, 0, 1, 2, 2]), np.repeat(np.arange(4), 2)
    values = np.array([[0, 1, 5, 7, 2, 5.0, 0, 9]]).T
    test = change_test(values, years, person, np.zeros(8, int), ONE[person], Resampling(999, np.random.default_rng(0)))
    np.testing.assert_allclose([test.p[0], test.p_fwe[0]], 2 / 8)


def test_change_of_a_group_is_the_t_test_on_slopes_of_equal_visits() -> None:
    values, years, group, person = balanced(4, 1)
    steps = np.array([0.0, 0.2, -0.3])
    made = values[:, None] + steps * years[:, None]
    p = change_test(made, years, person, group, ONE[person], Resampling(4999, np.random.default_rng(0))).p
    slopes = own_slopes(values, years, person)
    expected = [ttest_1samp(slopes + step, 0).pvalue for step in steps]
    assert max(expected) > 0.1 > min(expected)
    np.testing.assert_allclose(p, expected, atol=0.05)  # skewness of 24 slopes is taken into account


def test_weights_of_slopes_are_inverse_variances() -> None:
    """Slopes 1 and -2 at squared years 2 (three visits) and 0.5 (two): noise 0.5, between people by moments."""
    values, years = np.array([[0, 1.5, 2, 0, -2.0]]).T, np.array([0.0, 1, 2, 0, 1])
    lines = participant_slopes(values, years, np.array([0, 0, 0, 1, 1]), np.zeros(5, int), np.zeros(5, int))
    np.testing.assert_allclose(lines.slopes[:, 0], [1, -2])
    np.testing.assert_allclose(lines.squares, [2, 0.5])
    noise = 0.5**2 * 2 / 3
    np.testing.assert_allclose(lines.noise, noise)
    between = (1 * 2 + 4 * 0.5 - 2 * noise) / 2.5
    np.testing.assert_allclose(lines.weights[:, 0], 1 / (between + noise / lines.squares))
    few = participant_slopes(
        values[[0, 2, 3, 4]], years[[0, 2, 3, 4]], np.array([0, 0, 1, 1]), np.zeros(4, int), np.zeros(4, int)
    )
    np.testing.assert_array_equal(few.weights, 1)


def test_a_short_series_with_much_noise_does_not_hide_change() -> None:
    """19 people followed for four years rise alike; one seen twice in two weeks seems to fall ten times as fast."""
    rng = np.random.default_rng(1)
    person = np.append(np.repeat(np.arange(19), 5), [19, 19])
    years = np.append(np.tile(np.arange(5.0), 19), [0, 0.04])
    values = 0.3 * years + 0.4 * rng.normal(size=len(years))
    values[-2:] = 0, -0.12
    test = change_test(values[:, None], years, person, np.zeros_like(person), ONE[person], Resampling(4999, rng))
    assert test.p[0] <= 2 / 5000
    slopes = participant_slopes(values[:, None], years, person, np.zeros_like(person), np.zeros_like(person)).slopes[
        :, 0
    ]
    assert ttest_1samp(slopes, 0).pvalue > 0.05


def test_tests_of_change_hold_their_level() -> None:
    """8 people who differ much in change against 24 who differ little, at 2 to 4 visits; then one group of 32.

    Nobody of it changes, or people change at random about zero, as much as patients do: a test that lets visits change
    places within participants rejects 14 % of the latter.
    """
    rng = np.random.default_rng(4)
    rejected = []
    for _ in range(6):
        times = rng.integers(2, 5, 32)
        person, columns = np.repeat(np.arange(32), times), 200
        years = np.concatenate([0.5 * np.sort(rng.choice(9, t, replace=False)) for t in times])
        group = (person >= 8).astype(np.intp)
        noise = rng.normal(size=(len(person), columns)) + 2 * rng.normal(size=(32, columns))[person]
        change = rng.normal(size=(32, columns))[person] * years[:, None]
        of_groups = noise + change * np.where(group, 0.1, 0.6)[:, None]
        tests = [change_test(of_groups, years, person, group, ONE[person], Resampling(199, rng))]
        tests += [
            change_test(own, years, person, np.zeros_like(group), ONE[person], Resampling(199, rng))
            for own in (noise, noise + 0.6 * change)
        ]
        rejected.append([(one.p <= 0.05).mean() for one in tests])
    assert (np.mean(rejected, axis=0) >= 0.03).all(), rejected
    assert (np.mean(rejected, axis=0) <= 0.07).all(), rejected


def test_family_wise_p_of_change_holds_over_regions() -> None:
    """300 families of 20 regions that go together, 12 people who change at random; one region changes in truth."""
    rng = np.random.default_rng(7)
    person, years = np.repeat(np.arange(12), 3), np.tile(np.arange(3.0), 12)
    found, false = [], []
    for _ in range(300):
        slopes = rng.normal(size=(12, 1)) + rng.normal(size=(12, 20))
        slopes[:, 0] += 4
        values = slopes[person] * years[:, None] + 0.5 * rng.normal(size=(36, 20))
        p = change_test(values, years, person, np.zeros_like(person), ONE[person], Resampling(199, rng)).p_fwe
        found.append(p[0] <= 0.05)
        false.append(p[1:].min() <= 0.05)
    assert np.mean(found) > 0.9
    assert 0.01 <= np.mean(false) <= 0.085, np.mean(false)


def test_a_region_that_is_the_same_at_all_visits_has_no_test_and_no_part_in_the_family() -> None:
    values, years, group, person = balanced(3, 1)
    made = np.column_stack([values, 0.1 + np.arange(N)[person] / 3.0])
    alone = change_test(made[:, :1], years, person, group, ONE[person], Resampling(499, np.random.default_rng(2)))
    both = change_test(made, years, person, group, ONE[person], Resampling(499, np.random.default_rng(2)))
    assert np.isnan([both.p[1], both.p_fwe[1]]).all()
    assert both.p_fwe[0] == alone.p_fwe[0] == alone.p[0]


KEYS = ["group", "term"]


def visits(n: int = 30, times: int = 3, seed: int = 5) -> tuple[list[Scan], np.ndarray, pd.DataFrame]:
    """Patients decline, controls do not; hippocampal relevance rises with the patients' years."""
    rng = np.random.default_rng(seed)
    scans, values = [], []
    for i in range(n):
        label, level = "AD" if i % 2 else "CN", rng.normal()
        slope = (0.8 if label == "AD" else 0.0) + rng.normal(0, 0.15)
        for visit in range(times):
            scans.append(
                Scan(
                    f"sub-{i:03d}", f"ses-M{12 * visit:03d}", f"I{100 * i + visit}", None, label, label,
                    age=60.0 + i + visit, sex="F", tiv_mm3=1.4e6, hippocampus_mm3=6000.0 + rng.normal(0, 50),
                    hippocampus_source="made up",
                )
            )  # fmt: skip
            values.append(level + slope * visit + rng.normal(0, 0.2))
    clinical = pd.DataFrame(
        {"years_since_first_scan": [(s.age or 0) % 1 + int(str(s.session_id)[5:]) / 12 for s in scans]},
        index=pd.Index([s.scan_id for s in scans], name="scan_id"),
    )
    return scans, np.array(values), clinical


def test_planted_change_is_found_and_the_numbers_of_repeats_are_told(tmp_path) -> None:
    scans, values, clinical = visits()
    table = trajectory_table(inputs_of(tmp_path, scans, values, clinical)).drop_duplicates(KEYS).set_index(KEYS)
    spread = 5 + values
    row = table.loc[("Hippocampus", "AD - CN")]
    np.testing.assert_allclose(row["estimate"] * spread.std(ddof=1), 0.8, atol=0.15)
    assert row["ci_low"] > 0
    assert max(row["p"], row["p_fwe"], row["p_fdr"]) < 0.02
    assert row["p_fwe"] >= row["p"]
    two = table.xs("AD - CN", level="term").loc[["Hippocampus", "Cuneus"], "p"]
    np.testing.assert_allclose(row["p_fdr"], min(2 * two["Hippocampus"], two["Cuneus"]))  # Benjamini and Hochberg
    assert table[table["response"] != "relevance"]["p_fwe"].isna().all()
    assert table.loc[("Cuneus", "AD - CN"), "p"] > 0.01
    assert table.loc[("Hippocampus", "slope AD"), "p"] < 0.02
    assert table.loc[("Hippocampus", "slope CN"), "ci_low"] < 0 < table.loc[("Hippocampus", "slope CN"), "ci_high"]
    assert table.loc[("Hippocampus", "group x time"), "p"] < 0.02
    assert table.loc[("Cuneus", "group x time"), "p"] > 0.01
    assert (row["n_participants"], row["n_scans"], row["n_repeated"], row["n_three"]) == (30, 90, 30, 30)
    assert row["family"] == "2 regions: AD - CN, lrpB000"
    empty = table.xs("Empty", level="group").iloc[0]
    assert empty["note"] == "the response is constant"


def test_levels_of_networks_are_taken_out_and_make_no_change(tmp_path) -> None:
    scans, values, clinical = visits()
    inputs = inputs_of(tmp_path, scans, values, clinical)
    fold = inputs.frame["fold"].to_numpy()
    moved = inputs_of(tmp_path, scans, values + 50 * fold, clinical)
    spreads = [(5 + v).std(ddof=1) for v in (values, values + 50 * fold)]
    rows = [
        trajectory_table(one).drop_duplicates(KEYS).set_index(KEYS).loc[("Hippocampus", "AD - CN")]
        for one in (inputs, moved)
    ]
    np.testing.assert_allclose(rows[0]["estimate"] * spreads[0], rows[1]["estimate"] * spreads[1], rtol=1e-6)
    np.testing.assert_allclose(rows[0]["statistic"], rows[1]["statistic"], rtol=1e-6)


def test_people_with_mci_join_with_their_course_and_a_small_group_is_named(tmp_path) -> None:
    scans, values, clinical = visits()
    mci, more, dates = visits(n=14, seed=6)
    mci = [
        dataclasses.replace(
            s, participant_id=f"sub-M{s.participant_id[4:]}", scan_id=f"J{s.scan_id}", diagnosis="MCI", label=None,
            progression="pMCI" if s.label == "AD" else "sMCI",
        )
        for s in mci
    ]  # fmt: skip
    mci[-3:] = [dataclasses.replace(s, progression="rMCI") for s in mci[-3:]]
    dates.index = pd.Index([s.scan_id for s in mci], name="scan_id")
    everything = pd.concat([clinical, dates])
    applied = applied_to(mci, everything, more, more)
    table = (
        trajectory_table(inputs_of(tmp_path, scans, values, everything, applied)).drop_duplicates(KEYS).set_index(KEYS)
    )
    row = table.loc[("Hippocampus", "sMCI - pMCI")]
    assert row["p"] < 0.05
    assert row["estimate"] < 0
    other = table.loc[("Hippocampus", "pMCI - CN")]  # all networks explain people with MCI, one each of the others
    assert np.isnan(other["p"])
    assert other["note"].startswith(DIFFERENT_NETWORKS)
    assert (row["n_participants"], row["n_missing"]) == (43, 3)
    assert "left out, fewer than 3 with repeated scans: rMCI" in row["note"]


def test_too_few_repeats_give_one_row_that_says_how_many_are_needed(tmp_path) -> None:
    scans, values, clinical = visits(n=8)
    table = trajectory_table(inputs_of(tmp_path, scans, values, clinical))
    assert len(table) == 1
    assert table["note"].iloc[0] == "8 participants with repeated scans; at least 10 are needed"


def test_maps_are_those_of_the_settings(tmp_path) -> None:
    scans, values, clinical = visits()
    config = with_settings(
        progression=dataclasses.replace(FAST.statistics.progression, trajectory_maps=("gb", "lrpB000"))
    )
    table = trajectory_table(inputs_of(tmp_path, scans, values, clinical, config=config))
    assert set(table["map"].dropna()) == {"gb", "lrpB000"}


def test_one_clock_per_person_and_the_first_visit_by_it() -> None:
    frame = dict(participant_id=["a", "a", "b", "b", "c"], session_id=["ses-2", "ses-1", "ses-1", "ses-2", None])
    frame |= dict(scan_id=list("vwxyz"), age=[70.0, 71.5, 80.0, 83.0, np.nan])
    frame = pd.DataFrame(frame | dict(years_since_first_scan=[0.0, 1.4, 0.0, np.nan, np.nan]))
    np.testing.assert_allclose(years_since_first(frame), [0, 1.4, 0, 3, np.nan])
    assert list(first_visits(frame)["scan_id"]) == ["v", "x", "z"]
    assert list(first_visits(frame.assign(age=np.nan, years_since_first_scan=np.nan))["scan_id"]) == ["w", "x", "z"]


@pytest.mark.parametrize("networks", [[1, 0], ["1", "0;1"], [1.0, np.nan], [1.0, 0.0]])
@pytest.mark.parametrize("fold", [[1, 0], [1.0, 0.0], ["1", "0"]])
def test_a_person_s_network_has_one_name_in_both_tables(networks, fold) -> None:
    """Someone with labelled scans of fold 1 who had MCI before: one network, whatever type the tables have."""
    labelled, applied = pd.DataFrame({"fold": fold}), pd.DataFrame({"networks": networks})
    assert networks_of(labelled, "fold")[0] == networks_of(applied)[0] == "1"


def test_the_interval_of_a_difference_covers_it() -> None:
    """Uneven visits, 12 people a group, people who differ in level and slope, no group effect; 800 data sets."""
    rng = np.random.default_rng(11)
    missed = []
    for _ in range(20):
        times = rng.integers(2, 5, N)
        person = np.repeat(np.arange(N), times)
        years = np.concatenate([np.sort(rng.uniform(0, 4, t)) for t in times])
        values = rng.normal(size=(N, 40))[person] + 0.4 * rng.normal(size=(N, 40))[person] * years[:, None]
        values += 0.5 * rng.normal(size=values.shape)
        made = change_test(values, years, person, person % 2, ONE[person], Resampling(199, rng))
        missed.append((made.low > 0) | (made.high < 0))
        np.testing.assert_array_equal(missed[-1], made.p <= 0.05)
    assert 0.025 <= np.mean(missed) <= 0.075, np.mean(missed)
