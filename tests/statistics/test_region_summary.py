"""Averages by hand, over participants and over scans."""

from __future__ import annotations

import numpy as np
import pytest
from made_up import FAST, GROUPS, MAPS, people, predictions_of, relevance_of

from heatlas.pipeline.statistics.data.values import RelevanceValues, participant_means
from heatlas.pipeline.statistics.groups.region_summary import region_summary
from heatlas.pipeline.statistics.resampling.means import FEW, HALL


@pytest.fixture
def data():
    scans = people()
    return relevance_of(scans), predictions_of(scans)


def summary(relevance, predictions):
    values = RelevanceValues.of(relevance, predictions)
    return region_summary(values, FAST.cohort, FAST.statistics.confidence, 0).set_index(["map", "group", "scan_group"])


def test_means_over_participants_and_over_scans(data):
    relevance, predictions = data
    table = summary(*data)
    assert len(table) == len(MAPS) * len(GROUPS) * 6
    merged = relevance.merge(predictions[["scan_id", "label", "outcome"]], on="scan_id")
    own = merged[(merged["map"] == "gb") & (merged["group"] == "Hippocampus")]
    for scan_group, column in (("AD", "label"), ("CN", "label"), ("TP", "outcome"), ("FN", "outcome")):
        rows = own[own[column] == scan_group]
        people_means = rows.groupby("participant_id")[["sum", "density", "gain"]].mean()
        row = table.loc[("gb", "Hippocampus", scan_group)]
        assert row["n_scans"] == len(rows)
        assert row["n_participants"] == len(people_means)
        assert row["mean_sum"] == pytest.approx(people_means["sum"].mean())
        assert row["mean_gain"] == pytest.approx(people_means["gain"].mean())
        assert row["mean_density"] == pytest.approx(people_means["density"].mean())
        assert row["scan_mean_density"] == pytest.approx(rows["density"].mean())
        if len(people_means) > 1:
            assert row["sd_density"] == pytest.approx(people_means["density"].std())
        if len(people_means) > 2:
            assert row["ci_low"] < row["mean_density"] < row["ci_high"]
            assert (row["interval"], row["note"]) == (HALL, FEW)
        ratio = rows["sum"].mean() / own[own["label"] == "CN"]["sum"].mean()
        assert row["ratio_of_means"] == pytest.approx(ratio)
    assert table.loc[("gb", "Hippocampus", "AD"), "mean_density"] != pytest.approx(
        table.loc[("gb", "Hippocampus", "AD"), "scan_mean_density"], rel=1e-6
    )


def test_groups_without_scans_have_rows(data):
    relevance, predictions = data
    table = summary(relevance, predictions.replace({"outcome": {"FP": "TN", "FN": "TP"}}))
    row = table.loc[("gb", "Amygdala", "FP")]
    assert row["n_scans"] == row["n_participants"] == 0
    assert np.isnan(row["mean_density"])
    assert row["note"] == "no scan in this group"


def test_ratio_needs_a_positive_denominator_and_empty_groups_say_so(data):
    relevance, predictions = data
    relevance.loc[relevance["group"] == "Amygdala", "sum"] *= -1
    relevance.loc[relevance["group"] == "Third ventricle", "density"] = np.nan
    table = summary(relevance, predictions)
    assert np.isnan(table.loc[("gb", "Amygdala", "AD"), "ratio_of_means"])
    assert "no voxel" in table.loc[("gb", "Third ventricle", "AD"), "note"]


def test_participant_means_leave_out_what_is_not_known():
    values = np.array([[1.0, np.nan], [3.0, 4.0], [np.nan, np.nan]])
    means = participant_means(values, np.array([0, 0, 1]))
    assert np.array_equal(means, [[2.0, 4.0], [np.nan, np.nan]], equal_nan=True)


def test_densest_regions_have_places_in_the_positive_class(data):
    table = summary(*data)
    rows = table.xs("AD", level="scan_group")
    others = table[table.index.get_level_values("scan_group") != "AD"]
    assert others[["place_low", "place_high"]].isna().all(axis=None)
    for name in MAPS:
        own = rows.loc[name]
        place = own["mean_density"].rank(ascending=False)
        assert ((own["place_low"] <= place) & (place <= own["place_high"])).all()
        assert own["place_low"].min() == 1
