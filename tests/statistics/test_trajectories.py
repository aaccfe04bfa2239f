"""Change over visits, and progression from histories of diagnoses."""

from __future__ import annotations

import dataclasses
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from made_up import FAST, of_one_spread, people, predictions_of
from mci_cohort import applied_to, inputs_of, with_settings
from scipy.stats import norm, ttest_1samp, ttest_ind
from statsmodels.duration.hazard_regression import PHReg
from statsmodels.stats.oneway import anova_oneway

from heatlas.pipeline.cohort.candidates import Candidate
from heatlas.pipeline.cohort.people.diagnosis import OTHER_DEMENTIA, Diagnosis, follow_up, progression
from heatlas.pipeline.cohort.people.inclusion import clinical_table
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table, write_table
from heatlas.pipeline.statistics import stage
from heatlas.pipeline.statistics.arrays import Resampling
from heatlas.pipeline.statistics.data.members import first_visits, networks_of, years_since_first
from heatlas.pipeline.statistics.progression.trajectories import (
    DIFFERENT_NETWORKS,
    NO_CHANGE,
    change_test,
    participant_slopes,
    trajectory_table,
)

# Change over visits: tests on slopes of participants, planted slopes, networks of unlike scale, what is refused.

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


@pytest.mark.ci
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


# Progression end to end: histories of diagnoses and tables of a run in, the statistics stage's tables out.
#
# Eighty people with MCI who are followed, and some who are not. More relevance in one region means sooner AD; no other
# region has anything to do with it. What the tables say is set against statsmodels and against loops over pairs.

CONVERSION_N = 80
MAPS = ("lrpB000", "lrpB100")
GROUPS = ("Amygdala", "Hippocampus", "Cuneus", "Putamen", "Thalamus", "Precuneus")
PLANTED = "Hippocampus"
LOG_HAZARD = 1.1
"""Per standard deviation of the planted region's relevance: a hazard ratio of 3."""
HORIZON = 36
WITHDRAWN, UNSEEN_AGAIN, OTHER = 3, 2, 3
MONTH = 30.4375


@dataclasses.dataclass(frozen=True)
class Cohort:
    """What was planted, and the tables that the stage made of it."""

    people: pd.DataFrame
    relevance: np.ndarray
    tables: dict[str, pd.DataFrame]


def history(*known: tuple[float, str]) -> list[Diagnosis]:
    return [
        Diagnosis(value, date(2010, 1, 1) + timedelta(days=round(MONTH * months)), "", None, "made up")
        for months, value in known
    ]


def visits_until(end: float, last: str = "MCI") -> list[tuple[float, str]]:
    """A visit every six months, with what was found at the last."""
    return [(month, "MCI") for month in range(0, int(end), 6)] + [(end, last)]


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Cohort:
    rng = np.random.default_rng(5)
    total = CONVERSION_N + WITHDRAWN + UNSEEN_AGAIN
    relevance = rng.normal(size=(total, len(MAPS), len(GROUPS)))
    relevance[:, 1] = relevance[:, 0] + 0.3 * rng.normal(size=(total, len(GROUPS)))  # maps of one person are alike
    risk = relevance[:, 0, GROUPS.index(PLANTED)]
    onset = np.ceil(rng.exponential(40 * np.exp(-LOG_HAZARD * risk)) / 6) * 6
    followed = rng.choice([24, 36, 48, 60], size=total)
    other = np.isin(
        np.arange(total),
        [*np.flatnonzero(onset[:CONVERSION_N] > 18)[:OTHER], *np.flatnonzero(onset[:CONVERSION_N] <= 18)[:1]],
    )
    candidates, facts = [], []
    for i in range(total):
        if i >= CONVERSION_N + WITHDRAWN:
            course, kind = [(0.0, "MCI")], "unseen"
        elif i >= CONVERSION_N:
            course, kind = [(0.0, "MCI"), (12.0, "AD"), (24.0, "MCI"), (36.0, "MCI")], "withdrawn"
        elif onset[i] <= followed[i] and not (other[i] and onset[i] > 18):
            after = OTHER_DEMENTIA if other[i] else "AD"
            course, kind = [*visits_until(onset[i], "AD"), (onset[i] + 6, "AD"), (onset[i] + 24, after)], "AD"
        elif other[i]:
            course, kind = [*visits_until(18, OTHER_DEMENTIA), (30.0, OTHER_DEMENTIA)], "other"
        else:
            course, kind = visits_until(followed[i]), "MCI"
        known = history(*course)
        scan = Scan(
            f"sub-M{i:03d}", "ses-M000", f"J{i}", None, "MCI", None, age=float(rng.integers(60, 88)), sex="FM"[i % 2],
            mmse=float(rng.integers(24, 30)), tiv_mm3=1.4e6, hippocampus_mm3=6500.0 + 200 * rng.normal(),
            progression=progression(known, known[0], HORIZON),
        )  # fmt: skip
        candidates.append(Candidate(scan, follow_up=follow_up(known, known[0])))
        months = onset[i] if kind == "AD" else 18 if kind == "other" else followed[i]
        facts.append((scan.scan_id, kind, float(months), scan.progression, scan.age, scan.sex, scan.mmse))
    written = _run(tmp_path_factory.mktemp("run"), candidates, relevance, risk)
    columns = ["scan_id", "kind", "months", "course", "age", "sex", "mmse"]
    return Cohort(pd.DataFrame(facts, columns=columns), relevance, written)


def _run(
    folder: Path, candidates: list[Candidate], relevance: np.ndarray, logit: np.ndarray
) -> dict[str, pd.DataFrame]:
    """Write what a run has before statistics, and run the real stage for the analyses of progression."""
    layout, labelled = RunLayout(folder), people(6)
    mci = [candidate.scan for candidate in candidates]
    ScanTable((*labelled, *mci)).write(layout.root / "scans.tsv")
    clinical, _ = clinical_table(candidates)
    write_table(layout.root / "clinical.tsv", clinical.frame)
    write_table(
        layout.group / "relevance_bilateral.tsv", _rows(labelled, np.ones((len(labelled), len(MAPS), len(GROUPS))))
    )
    write_table(layout.group / "relevance_applied_bilateral.tsv", _rows(mci, 5 + relevance))
    probability = 1 / (1 + np.exp(-logit))
    keys = [[s.participant_id, s.session_id, s.scan_id] for s in mci]
    applied = pd.DataFrame(keys, columns=["participant_id", "session_id", "scan_id"])
    write_table(layout.group / "predictions_applied.tsv", applied.assign(probability=probability, networks="0;1"))
    config = load_config(
        overrides={
            "seed": 3,
            "cohort": {"mci_horizon_months": HORIZON},
            "statistics": {"permutations": 999, "bootstrap_samples": 200},
        }
    )
    of_progression = tuple(one for one in stage.ANALYSES if one.name in ("progression", "trajectories"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "ANALYSES", of_progression)
        stage.analyse(layout, labelled, predictions_of(labelled), config)
    return {
        name: read_table(layout.statistics(name))
        for one in of_progression
        for name in (*(table.name for table in one.tables), "notes")
    }


def _rows(scans: list[Scan], values: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(
        [
            (scan.scan_id, name, group, values[i, m, g], values[i, m, g] / 10, np.nan)
            for i, scan in enumerate(scans) for m, name in enumerate(MAPS) for g, group in enumerate(GROUPS)
        ],
        columns=["scan_id", "map", "group", "sum", "density", "gain"],
    )  # fmt: skip


def followed_people(cohort: Cohort) -> tuple[pd.DataFrame, np.ndarray]:
    """Those whom the models are about, and their relevance."""
    return cohort.people.iloc[:CONVERSION_N], cohort.relevance[:CONVERSION_N]


def regions(table: pd.DataFrame, model: str) -> pd.DataFrame:
    return table[(table["predictor"] == "relevance") & (table["model"] == model)].set_index(["map", "group"])


@pytest.mark.parametrize("model", ["alone", "adjusted"])
def test_ratios_and_intervals_are_those_of_statsmodels(cohort: Cohort, model: str) -> None:
    known, relevance = followed_people(cohort)
    table = regions(cohort.tables["cox"], model)
    male = (known["sex"] == "M").to_numpy(float)
    covariates = [known["age"].to_numpy(float), male, known["mmse"].to_numpy(float)] if model == "adjusted" else []
    for m, name in enumerate(MAPS):
        for g, group in enumerate(GROUPS):
            x = relevance[:, m, g]
            columns = np.column_stack([(x - x.mean()) / x.std(ddof=1), *[(c - c.mean()) / c.std() for c in covariates]])
            time, event = np.round(np.round(known["months"] * MONTH) / MONTH, 2), known["kind"] == "AD"
            fit = PHReg(time.to_numpy(), columns, status=event.to_numpy(int), ties="efron").fit(disp=0)
            reach = norm.ppf(0.975) * fit.bse[0]
            row = table.loc[(name, group)]
            np.testing.assert_allclose(
                np.log(row[["hazard_ratio", "ci_low", "ci_high"]].to_numpy(float)),
                fit.params[0] + np.array([0, -reach, reach]),
                atol=1e-6,
            )
    planted = table.loc[(MAPS[0], PLANTED)]
    assert planted["ci_low"] > 1
    assert planted["ci_low"] < np.exp(LOG_HAZARD) < planted["ci_high"]


@pytest.mark.parametrize("model", ["alone", "adjusted"])
def test_the_planted_region_is_found_in_both_maps_and_no_other(cohort: Cohort, model: str) -> None:
    table = regions(cohort.tables["cox"], model)
    planted = table.index.get_level_values("group") == PLANTED
    assert table.loc[planted, ["p", "p_fwe", "p_fdr"]].to_numpy().max() < 0.01
    assert table.loc[~planted, ["p_fwe", "p_fdr"]].to_numpy().min() > 0.05
    assert (table["p"] >= 1 / 1000).all()
    assert (table["p_fwe"] >= table["p"]).all()


def test_events_censored_and_competing_people_are_counted_and_the_others_named(cohort: Cohort) -> None:
    known, _ = followed_people(cohort)
    kinds = known["kind"].value_counts()
    assert kinds["other"] == OTHER  # a fourth had AD before it
    table = cohort.tables["cox"]
    for _, row in table.iterrows():
        assert (row["n_participants"], row["n_missing"]) == (CONVERSION_N, 0)
        assert row["n_events"] == kinds["AD"]
        assert row["n_censored"] == CONVERSION_N - kinds["AD"]
        assert row["n_competing"] == kinds["other"]
        assert row["event"] == "AD at any visit after the scan"
        assert f"{WITHDRAWN} participants left out: neither conversion nor follow-up known" in row["note"]
        assert f"{UNSEEN_AGAIN} participants left out: no time between scan and last visit" in row["note"]
    assert not cohort.tables["notes"]["analysis"].eq("progression").any()


def test_a_dementia_of_another_cause_censors_at_its_diagnosis(cohort: Cohort) -> None:
    """Counting it as AD, or following those people on, would give other ratios than the table's."""
    known, relevance = followed_people(cohort)
    x = relevance[:, 0, GROUPS.index(PLANTED)]
    z = ((x - x.mean()) / x.std(ddof=1))[:, None]
    row = regions(cohort.tables["cox"], "alone").loc[(MAPS[0], PLANTED)]
    event, other = (known["kind"] == "AD").to_numpy(), (known["kind"] == "other").to_numpy()
    months = known["months"].to_numpy()
    ratios = {}
    for name, time, status in (
        ("cause-specific", months, event), ("as AD", months, event | other), ("on", np.where(other, 60, months), event)
    ):  # fmt: skip
        fit = PHReg(time, z, status=status.astype(int), ties="efron").fit(disp=0)
        ratios[name] = float(np.exp(fit.params[0]))
    assert row["hazard_ratio"] == pytest.approx(ratios["cause-specific"], rel=1e-6)
    assert abs(ratios["as AD"] / ratios["cause-specific"] - 1) > 1e-3
    assert abs(ratios["on"] / ratios["cause-specific"] - 1) > 1e-3


def by_pairs(time: np.ndarray, event: np.ndarray, x: np.ndarray) -> float:
    """Harrell's concordance, pair by pair."""
    right = total = 0.0
    for i in range(len(x)):
        for j in range(len(x)):
            if event[i] and (time[i] < time[j] or (time[i] == time[j] and not event[j])):
                total += 1
                right += float(x[i] > x[j]) + 0.5 * float(x[i] == x[j])
    return right / total


def test_concordance_is_that_of_all_pairs(cohort: Cohort) -> None:
    known, relevance = followed_people(cohort)
    time, event = known["months"].to_numpy(float), (known["kind"] == "AD").to_numpy()
    table = regions(cohort.tables["cox"], "alone")
    for m, name in enumerate(MAPS):
        for g, group in enumerate(GROUPS):
            wanted = by_pairs(time, event, relevance[:, m, g])
            assert table.loc[(name, group), "concordance"] == pytest.approx(wanted, abs=1e-12)
    progress = cohort.tables["progression"].set_index(["predictor", "measure"])
    logit = relevance[:, 0, GROUPS.index(PLANTED)]  # the made-up network says what the region does
    for predictor, x in {"model": logit, "mmse": -known["mmse"].to_numpy(), "age": known["age"].to_numpy()}.items():
        assert progress.loc[(predictor, "concordance"), "estimate"] == pytest.approx(
            by_pairs(time, event, x), abs=1e-12
        )


def test_the_horizon_splits_who_converts_late_from_who_does_early(cohort: Cohort) -> None:
    known, relevance = followed_people(cohort)
    late = (known["kind"] == "AD") & (known["months"] > HORIZON + 6)
    assert late.sum() > 2
    assert (known.loc[late, "course"] == "sMCI").all()
    everybody = cohort.people["course"]  # someone whose AD was withdrawn is neither
    converter, stable = (everybody == "pMCI")[:CONVERSION_N], (everybody == "sMCI")[:CONVERSION_N]
    progress = cohort.tables["progression"].set_index(["predictor", "measure"])
    auc, concordance = progress.loc[("model", "auc")], progress.loc[("model", "concordance")]
    assert (auc["n_events"], auc["n_participants"]) == (converter.sum(), (converter | stable).sum())
    assert auc["n_missing"] == CONVERSION_N - (converter | stable).sum()
    assert concordance["n_events"] == (known["kind"] == "AD").sum() > auc["n_events"]
    assert auc["event"] == "AD by the visit 36 months after the scan (pMCI)"
    assert concordance["event"] == "AD at any visit after the scan"
    x = relevance[:, 0, GROUPS.index(PLANTED)]
    pairs = [float(a > b) for a in x[converter] for b in x[stable]]
    assert auc["estimate"] == pytest.approx(np.mean(pairs), abs=1e-12)
    assert auc["p"] <= 0.002
    assert progress.loc[("model", "sensitivity"), "estimate"] == pytest.approx((x[converter] > 0).mean())
    assert progress.loc[("model", "specificity"), "estimate"] == pytest.approx((x[stable] <= 0).mean())


def test_one_scan_each_is_no_trajectory_and_the_row_says_so(cohort: Cohort) -> None:
    (row,) = cohort.tables["trajectories"].to_dict("records")
    assert "participants with repeated scans; at least 10 are needed" in row["note"]
    courses = row["note"].partition("left out, fewer than 3 with repeated scans: ")[2]
    assert set(courses.split(", ")) == {"pMCI", "sMCI", "uMCI"}
    assert row["n_missing"] == CONVERSION_N + WITHDRAWN + UNSEEN_AGAIN
    assert np.isnan(row["p"])
