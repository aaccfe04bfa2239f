"""The explorer's table against means taken by hand."""

from __future__ import annotations

import numpy as np
import pytest
from run_factory import RunPlan, make_run

from atlases.regions import neuromorphometrics
from pipeline.run.tables import read_table
from reports.explorer.table import EXPLORER_COLUMNS, explorer_table


@pytest.fixture(scope="module")
def tables(made):
    layout = made.layout
    summary, effects = read_table(layout.statistics("region_summary")), read_table(layout.statistics("region_effects"))
    relevance = read_table(layout.relevance, text_columns=["group", "hemisphere"])
    return summary, effects, relevance, read_table(layout.predictions)


def build(tables, relevance=True, effects=True):
    summary, tested, single, predictions = tables
    labels = ["AD", next(label for label in predictions["label"].unique() if label != "AD")]
    return explorer_table(
        summary, tested if effects else None, single if relevance else None, predictions, neuromorphometrics(),
        ["lrpB000", "gb"], labels,
    )  # fmt: skip


def test_single_regions_are_means_over_participants_not_scans(tables):
    table = build(tables)
    _, _, relevance, predictions = tables
    rows = relevance.merge(predictions[["scan_id", "label", "outcome"]], on="scan_id")
    hippocampus = neuromorphometrics().groups["Hippocampus"][0]
    for scan_group, column in (("AD", "label"), ("TP", "outcome")):
        own = rows[(rows["map"] == "gb") & (rows["region"] == hippocampus) & (rows[column] == scan_group)]
        people = [own.loc[own["participant_id"] == person, "sum"].mean() for person in own["participant_id"].unique()]
        found = table[(table["map"] == "gb") & (table["region"] == hippocampus) & (table["scan_group"] == scan_group)]
        assert found["mean_sum"].item() == pytest.approx(np.mean(people), rel=1e-12)
        assert found["mean_density"].item() == pytest.approx(np.mean(people) / 10, rel=1e-12)
        assert (found["n_participants"].item(), found["n_scans"].item()) == (len(people), len(own))
        assert len(people) < len(own)


def test_bilateral_rows_repeat_the_statistics(tables):
    summary, effects, *_ = tables
    table = build(tables)
    rows = table[(table["hemisphere"] == "bilateral") & (table["map"] == "lrpB000") & (table["scan_group"] == "AD")]
    source = summary[(summary["map"] == "lrpB000") & (summary["scan_group"] == "AD")].set_index("group")
    tested = effects[effects["map"] == "lrpB000"].set_index("group")
    assert set(rows["group"]) == set(source.index)
    rows = rows.set_index("group")
    for column in ("mean_density", "mean_sum", "mean_gain", "n_participants"):
        np.testing.assert_array_equal(rows[column].to_numpy(float), source.loc[rows.index, column].to_numpy(float))
    for column in ("hedges_g", "p", "p_fwe", "p_fdr"):
        np.testing.assert_array_equal(rows[column].to_numpy(float), tested.loc[rows.index, column].to_numpy(float))
    assert rows.loc["Hippocampus", "lobe"] == "limbic"


def test_nothing_is_lost(tables):
    table = build(tables)
    groups, singles = 68, 4  # three regions of the factory and the rest
    assert (table.groupby(["map", "scan_group"]).size() == groups + singles).all()
    assert list(table.columns) == list(EXPLORER_COLUMNS)
    rest = table[table["region"] == 0]
    assert set(rest["hemisphere"]) == {"both"}


def test_without_single_regions_or_tests_the_rest_is_there(tables):
    table = build(tables, relevance=False, effects=False)
    assert set(table["hemisphere"]) == {"bilateral"}
    assert table["p_fwe"].isna().all()
    assert table["mean_density"].notna().any()


def test_a_run_without_statistics_has_no_explorer(tmp_path):
    from reports.explorer.of_run import region_explorer
    from reports.material import Material

    material = Material.of(make_run(tmp_path / "run", RunPlan(until="training", people=2)))
    assert region_explorer(material) is None
