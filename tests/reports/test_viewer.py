"""Charts, lettering, and what viewers and explorers are given."""

from __future__ import annotations

import base64
import itertools
import re
import zlib

import hypothesis.extra.numpy as hnp
import numpy as np
import pandas as pd
import pytest
from component_pages import write_single_regions
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from run_factory import RESOLUTION, SMALL, RunPlan, make_run

from heatlas.atlases.regions import neuromorphometrics
from heatlas.atlases.spaces import Grid, template_grid
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.statistics.groups.summaries import EXPLORER_TABLE, explorer_table
from heatlas.reports.figures.gallery import Gallery, font
from heatlas.reports.figures.regions import draw_regions
from heatlas.reports.frame.tables import Column, footnote, numeric, page_table
from heatlas.reports.questions.views import IntervalChart, chart_of
from heatlas.reports.region_pages.results import side_means
from heatlas.reports.region_pages.viewer import MARGIN_MM, part_of, region_box
from heatlas.reports.vector.charts import BAND, IntervalRow, draw_intervals
from heatlas.reports.vector.drawing import Axis
from heatlas.reports.viewer.component import LEVELS, Coded, block_grid, block_mean, packed, viewing_space

# The explorer's table against means taken by hand.


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    layout = make_run(tmp_path_factory.mktemp("explorer") / "run", SMALL)
    write_single_regions(layout)
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


@pytest.mark.ci
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


# Coding of maps for the page: the stated error holds, blocks keep sums, sides stay sides.


@given(hnp.arrays(np.float32, (3, 4, 5), elements=st.floats(-1e3, 1e3, width=32)))
def test_the_stated_error_is_never_exceeded(values):
    coded = Coded.of(values)
    slack = 1e-12 * coded.top
    assert (np.abs(coded.values - values.astype(float)) <= coded.error + slack).all()


def test_the_stated_error_is_reached_and_no_larger_than_needed():
    """Just below the middle between two levels of the root, the error is that of the bound."""
    top, code = 2.0, 50
    edge = top * ((code + 0.5 - 1e-9) / LEVELS) ** 2
    coded = Coded.of(np.asarray([[[top, edge, -edge]]]))
    assert coded.codes.ravel().tolist() == [LEVELS, code, -code]
    found = np.abs(coded.values - [top, edge, -edge]).ravel()
    assert found[1] == pytest.approx(coded.error.ravel()[1], rel=1e-6)
    assert found[2] == found[1]
    assert found[0] == 0


def test_an_empty_map_is_all_zero():
    coded = Coded.of(np.zeros((2, 3, 4)))
    assert coded.top == 0
    assert not coded.values.any()
    assert not coded.error.any()


@pytest.mark.parametrize("side", [1, 2, 3])
def test_blocks_are_means_of_their_voxels(side):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(5, 7, 4)).astype(np.float32)
    means = block_mean(values, side)
    for place in itertools.product(*map(range, means.shape)):
        block = values[tuple(slice(k * side, (k + 1) * side) for k in place)]
        assert means[place] == pytest.approx(block.astype(float).mean(), rel=1e-6)


def test_blocks_lie_where_their_voxels_lie():
    grid = template_grid(1.0)
    coarse = block_grid(grid, 2)
    corners = np.asarray(list(itertools.product((6, 7), (10, 11), (20, 21))))
    assert np.allclose(coarse.to_world([3, 5, 10]), grid.to_world(corners).mean(axis=0))
    assert coarse.shape == block_mean(np.zeros(grid.shape, np.int8), 2).shape
    assert coarse.voxel_sizes_mm == (2.0, 2.0, 2.0)


def test_packed_bytes_run_along_the_first_axis_and_are_little_endian():
    array = np.arange(24, dtype=">u2").reshape(2, 3, 4)
    found = np.frombuffer(zlib.decompress(base64.b64decode(packed(array))), "<u2")
    assert found.tolist() == array.ravel(order="F").tolist()


def test_a_grid_of_one_voxel_blocks_is_the_grid():
    grid = template_grid(4.0)
    assert block_grid(grid, 1) == Grid(grid.shape, grid.affine)


# The part of the brain on a region's page lies where the whole does; sides and footnotes are the numbers they say.


@pytest.fixture(scope="module")
def space():
    found = viewing_space(RESOLUTION, "neuromorphometrics-cat12")
    assert found is not None
    return found


def test_a_part_shows_what_the_whole_has_at_the_same_place(space):
    box = region_box(space, "Hippocampus")
    part = part_of(space, box)
    for voxel in ([0, 0, 0], [3, 5, 2], [size - 1 for size in part.grid.shape]):
        whole = np.rint(space.grid.to_voxel(part.grid.to_world(voxel))).astype(int)
        assert part.atlas.labels[tuple(voxel)] == space.atlas.labels[tuple(whole)]
        assert part.template.t1w[tuple(voxel)] == space.template.t1w[tuple(whole)]


def test_a_part_holds_the_whole_region_with_its_margin_and_no_label_it_lacks(space):
    numbers = space.atlas.regions.groups["Hippocampus"]
    part = part_of(space, region_box(space, "Hippocampus"))
    assert np.isin(part.atlas.labels, numbers).sum() == np.isin(space.atlas.labels, numbers).sum()
    inside = np.argwhere(np.isin(part.atlas.labels, numbers))
    room = np.minimum(inside.min(axis=0), np.asarray(part.grid.shape) - 1 - inside.max(axis=0)) * RESOLUTION
    assert (room >= MARGIN_MM).all()
    assert (room < MARGIN_MM + RESOLUTION).all()
    there = set(np.unique(part.atlas.labels)) - {0}
    assert set(part.atlas.regions.numbers) - set(part.atlas.empty) == there


def test_a_group_without_a_voxel_has_no_box(space):
    assert region_box(space, "no such group") is None


def test_sides_are_means_over_participants_of_means_over_their_scans():
    """Two scans of one person count as one; a region without voxels has no density."""
    rows = [
        ("p1", "s1", "left", 10, 10.0), ("p1", "s2", "left", 10, 30.0), ("p2", "s3", "left", 10, 80.0),
        ("p1", "s1", "right", 0, 0.0), ("p1", "s2", "right", 0, 0.0), ("p2", "s3", "right", 0, 0.0),
        ("p2", "s3", "both", 5, 99.0),
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=["participant_id", "scan_id", "hemisphere", "n_voxels", "sum"])
    table = table.assign(group="g", map="m")
    predictions = pd.DataFrame({"scan_id": ["s1", "s2", "s3"], "label": "AD"})
    (row,) = side_means(table, predictions).to_dict("records")
    assert row["n_participants"] == 2
    assert row["density_left"] == 5.0  # of 2 (mean of 1 and 3) and 8
    assert row["sum_left"] == 50.0
    assert "density_right" not in row or np.isnan(row["density_right"])


def test_notes_stand_once_below_the_table_and_cells_have_their_number():
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "note": ["long", None, "other", "long"]})
    table = page_table(frame, (numeric("x", "X"), Column("note", "Note", footnote)), "Caption.")
    assert table.notes == ("long", "other")
    assert [row[1].text for row in table.rows] == ["1", "", "2", "1"]
    longer = page_table(frame.assign(note=["long", None, "long; twice", "long; other"]), table.columns, "Caption.")
    assert longer.notes == ("long", "twice", "other")
    assert [row[1].text for row in longer.rows] == ["1", "", "1, 2", "1, 3"]
    silent = page_table(frame.assign(note=None), table.columns, "Caption.")
    assert [column.key for column in silent.columns] == ["x"]
    assert silent.notes == ()


def test_the_column_that_stays_in_sight_is_the_region_wherever_it_stands():
    frame = pd.DataFrame({"comparison": ["AD/CN"], "group": ["Hippocampus"], "g": [1.0]})
    columns = (Column("comparison", "Comparison"), Column("group", "Region"), numeric("g", "g"))
    assert page_table(frame, columns, "Caption.").kinds == ("", "names", "num")
    assert page_table(frame, columns[::2], "Caption.").kinds == ("names", "num")
    assert page_table(frame, columns[2:], "Caption.").kinds == ("num names",)


# Charts of regions and axes: one row that reaches far does not flatten the others, and a scale has three ticks.


def region_values(factor: float) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frames = [
        pd.DataFrame(
            dict(scan_id=[f"s{i}" for i in range(10)], group=f"r{k}", label=["AD", "CN"] * 5, outcome="TP")
            | dict(sum=rng.uniform(-1, 1, 10) * (factor if k == 3 else 1.0))
        )
        for k in range(8)
    ]
    return pd.concat(frames)


def test_the_axis_is_logarithmic_where_one_row_reaches_far_and_shows_every_value():
    regions = [f"r{k}" for k in range(8)]
    values = region_values(40)
    figure, said = draw_regions(values, "sum", regions, ("CN", "AD"), "evidence")
    axes = figure.axes[0]
    assert axes.get_xscale() == "symlog"
    low, high = axes.get_xlim()
    assert low <= values["sum"].min()
    assert high >= values["sum"].max()
    assert said == "The axis is linear from −1 to 1, and logarithmic beyond."
    to_pixels = axes.transData.transform
    others = to_pixels([(1.0, 0), (-1.0, 0)])[:, 0]
    assert (others[0] - others[1]) > 0.4 * axes.bbox.width  # the other rows are not crushed


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_rows_of_like_reach_share_the_whole_axis(factor):
    values = region_values(factor)
    figure, _ = draw_regions(values, "sum", [f"r{k}" for k in range(8)], ("CN", "AD"), "evidence")
    assert figure.axes[0].get_xscale() == "linear"
    assert figure.axes[0].get_xlim()[1] >= np.percentile(values["sum"], 99.5)


def test_every_axis_has_three_ticks():
    rng = np.random.default_rng(1)
    for low, size, about in zip(rng.normal(size=300), rng.lognormal(0, 4, 300), rng.integers(1, 6, 300), strict=True):
        axis = Axis(low, low + size, 0, 100)
        ticks = axis.ticks(int(about))
        assert 3 <= len(ticks) <= 12
        assert low - 1e-6 * size <= ticks[0] < ticks[-1] <= low + size * (1 + 1e-6)


def test_small_charts_of_matplotlib_have_three_ticks(tmp_path):
    figure = Figure(figsize=(1.2, 1.0))
    axes = figure.subplots()
    axes.plot([0.02, 0.98], [11, 29])
    Gallery(tmp_path).add(figure, "small", "", "")
    for ticks, (low, high) in ((axes.get_xticks(), axes.get_xlim()), (axes.get_yticks(), axes.get_ylim())):
        assert sum(low <= tick <= high for tick in ticks) >= 3


# Charts of intervals: what their names, captions and figures say, and that they fit the page.

SPEC = IntervalChart(("group", "scan_group", "map"), "r", "low", "high", "correlation")
ROWS = dict(group=["Hippocampus", "Amygdala"], scan_group="AD", map=["LRP β=0", "Guided backpropagation"])
ROWS = pd.DataFrame(ROWS | dict(r=[0.5, -0.0224], low=[0.25, -0.0551], high=[0.75, 0.0103], n_participants=[15, 14]))


def test_what_all_rows_share_stands_in_the_caption_only():
    chart, caption = chart_of(ROWS, SPEC, "Within a class.", 0.9)
    assert caption == "Within a class. All rows: AD. Lines are 90 % intervals; the upright one marks 0."
    assert "Hippocampus · LRP β=0<" in chart
    assert " AD" not in chart


def test_one_row_keeps_its_whole_name():
    chart, caption = chart_of(ROWS.head(1), SPEC, "Within a class.", 0.95)
    assert "All rows" not in caption
    assert "Hippocampus · AD · LRP β=0<" in chart


def test_small_estimates_keep_two_digits():
    chart, _ = chart_of(ROWS, SPEC, "", 0.95)
    assert "−0.022 [−0.055, 0.010]" in chart
    assert "0.50 [0.25, 0.75]" in chart


def test_long_names_and_figures_leave_the_chart_as_wide_as_the_page():
    rows = [IntervalRow("A region with a long name · " * 4, "n = 15 and 15", -4.0e-4, -5.5e-4, -2.2e-4)]
    width = re.search(r'viewBox="0 0 (\d+)', draw_intervals(rows, "difference", "alt", 0.0))
    assert width is not None
    assert int(width[1]) <= 916


def test_the_band_of_chance_lies_around_0_and_is_cut_at_neither_end():
    """Its left end was cut where no estimate was below 0: what is as wide on both sides looked one-sided."""
    rows = [
        IntervalRow("Hippocampus", "", 3.0, 2.0, 4.3, by_chance=1.4),
        IntervalRow("Amygdala", "", 0.9, 0.2, 1.8, by_chance=1.4),
    ]
    chart = draw_intervals(rows, "g", "alt", 0.0)
    bands = re.findall(rf'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"[^>]*fill="{BAND}"', chart)
    zeros = [float(x) for x in re.findall(r'd="M([\d.]+) [\d.]+L\1 [\d.]+" stroke="#4a5766"', chart)]
    assert (len(bands), len(zeros)) == (4, 2)  # on a screen and on a phone
    for (left, width), zero in zip(bands, [zeros[0]] * 2 + [zeros[1]] * 2, strict=True):
        assert float(left) + float(width) / 2 == pytest.approx(zero, abs=0.2)


def test_the_points_of_an_estimate_are_drawn_at_their_values_and_widen_the_scale():
    rows = [
        IntervalRow("Hippocampus", "", 3.0, 2.0, 4.0, points=(1.0, 9.0)),
        IntervalRow("Amygdala", "", 1.0, 0.0, 2.0),
    ]
    chart = str(draw_intervals(rows, "g", "alt", 0.0)).partition("</svg>")[0]
    points = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', chart)]
    low, high = (float(x) for x in re.findall(r'd="M([\d.]+) [\d.]+L([\d.]+) [\d.]+" stroke="#0072B2"', chart, re.I)[0])
    assert points[1] - points[0] == pytest.approx(4 * (high - low), abs=0.3)  # 1 to 9 beside 2 to 4


# Lettering on pictures of brains.


def test_names_of_maps_are_written_with_letters_and_not_with_boxes():
    """A letter that a font lacks is drawn as the same box as any other it lacks."""
    letters = font(11)
    box = bytes(letters.getmask("\uffff"))
    for letter in "β²ö=":
        assert bytes(letters.getmask(letter)) != box
