"""The explorer's table against means taken by hand."""

from __future__ import annotations

import numpy as np
import pytest
from run_factory import RunPlan, make_run

from heatlas.atlases.regions import neuromorphometrics
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.statistics.groups.summaries import EXPLORER_TABLE, explorer_table


@pytest.fixture(scope="module")
def tables(made):
    layout = made.layout
    summary, compared = (read_table(layout.statistics(name)) for name in ("region_summary", "group_comparisons"))
    effects = compared[compared["comparison"].str.startswith("AD/") & (compared["metric"] == "density")]
    relevance = read_table(layout.group / "relevance.tsv", text_columns=["group", "hemisphere"])
    bilateral = read_table(layout.group / "relevance_bilateral.tsv")
    return summary, effects.assign(tested="density"), relevance, read_table(layout.group / "predictions.tsv"), bilateral


def build(tables, relevance=True, effects=True):
    summary, tested, single, predictions, bilateral = tables
    labels = ["AD", next(label for label in predictions["label"].unique() if label != "AD")]
    return explorer_table(
        summary, tested if effects else None, bilateral, single if relevance else None, predictions,
        neuromorphometrics(), ["lrpB000", "gb"], labels,
    )  # fmt: skip


def test_single_regions_are_means_over_participants_not_scans(tables):
    table = build(tables)
    _, _, relevance, predictions, _ = tables
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


def test_the_share_of_a_region_is_its_part_of_the_absolute_sums_of_the_map(tables):
    *_, relevance, predictions, bilateral = tables
    table = build(tables)
    rows = bilateral.merge(predictions[["scan_id", "label"]], on="scan_id").query("map == 'gb' and label == 'AD'")
    totals = rows.groupby("scan_id")["sum"].apply(lambda sums: sums.abs().sum())
    numbers = neuromorphometrics().groups["Hippocampus"]
    shown = table[(table["map"] == "gb") & (table["scan_group"] == "AD")]
    for source, found in (
        (rows[rows["group"] == "Hippocampus"], shown[shown["name"] == "Hippocampus"]),
        (relevance.query("map == 'gb' and region == @numbers[0]"), shown[shown["region"] == numbers[0]]),
    ):
        own = source[source["scan_id"].isin(totals.index)].set_index("scan_id")
        shares = own["sum"] / totals[own.index]
        people = shares.groupby(own["participant_id"].to_numpy()).mean()
        assert found["mean_share"].item() == pytest.approx(people.mean(), rel=1e-12)


def test_the_explorer_of_a_run_tests_shares(made):
    table = read_table(made.layout.figures / "region_explorer.tsv", text_columns=["scan_group", "name", "hemisphere"])
    rows = read_table(made.layout.statistics("group_comparisons")).query("metric == 'share' and map == 'lrpB000'")
    rows = rows[rows["comparison"].str.startswith("AD/")].set_index("group")
    bilateral = table[
        (table["hemisphere"] == "bilateral") & (table["map"] == "lrpB000") & (table["scan_group"] == "AD")
    ]
    assert set(bilateral["tested"]) == {"share"}
    for column in ("hedges_g", "p", "p_fwe", "p_fdr"):
        found = bilateral.set_index("name")[column]
        np.testing.assert_array_equal(found.to_numpy(float), rows.loc[found.index, column].to_numpy(float))


def test_nothing_is_lost(tables):
    table = build(tables)
    groups, singles = 68, 4  # three regions of the factory and the rest
    assert (table.groupby(["map", "scan_group"]).size() == groups + singles).all()
    assert list(table.columns) == list(EXPLORER_TABLE.meanings)
    rest = table[table["region"] == 0]
    assert set(rest["hemisphere"]) == {"both"}


def test_without_single_regions_or_tests_the_rest_is_there(tables):
    table = build(tables, relevance=False, effects=False)
    assert set(table["hemisphere"]) == {"bilateral"}
    assert table["p_fwe"].isna().all()
    assert table["mean_density"].notna().any()


def test_a_run_without_statistics_has_no_explorer(tmp_path):
    from heatlas.reports.frame.material import Material
    from heatlas.reports.viewer.explorer import region_explorer

    material = Material.of(make_run(tmp_path / "run", RunPlan(until="training", people=2)))
    assert region_explorer(material) is None
