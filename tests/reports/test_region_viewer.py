"""The part of the brain on a region's page lies where the whole does; sides and footnotes are the numbers they say."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from run_factory import RESOLUTION

from heatlas.reports.frame.tables import Column, footnote, numeric, page_table
from heatlas.reports.region_pages.results import side_means
from heatlas.reports.region_pages.viewer import MARGIN_MM, part_of, region_box
from heatlas.reports.viewer.component import viewing_space


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
    silent = page_table(frame.assign(note=None), table.columns, "Caption.")
    assert [column.key for column in silent.columns] == ["x"]
    assert silent.notes == ()


def test_the_column_that_stays_in_sight_is_the_region_wherever_it_stands():
    frame = pd.DataFrame({"comparison": ["AD/CN"], "group": ["Hippocampus"], "g": [1.0]})
    columns = (Column("comparison", "Comparison"), Column("group", "Region"), numeric("g", "g"))
    assert page_table(frame, columns, "Caption.").kinds == ("", "names", "num")
    assert page_table(frame, columns[::2], "Caption.").kinds == ("names", "num")
    assert page_table(frame, columns[2:], "Caption.").kinds == ("num names",)
