"""A run in a notebook, against the tables and images in its folder."""

from __future__ import annotations

import nibabel as nib
import numpy as np
import pytest
from run_factory import EVIDENCE, RunPlan, make_run

import heatlas
from pipeline.run.errors import BadInputError, UsageError
from pipeline.run.layout.run_layout import RunLayout
from pipeline.run.tables import read_table, write_table
from reports.read.written_tables import DECLARED


@pytest.fixture(scope="module")
def layout(tmp_path_factory) -> RunLayout:
    return make_run(tmp_path_factory.mktemp("open") / "run", RunPlan(betas=(0.0,), people=3, evidence=True))


@pytest.fixture(scope="module")
def run(layout) -> heatlas.OpenRun:
    return heatlas.open(layout.root)


def test_evidence_is_that_of_the_table_beside_who_it_is(run, layout) -> None:
    found = run.evidence("hippocampus").set_index("scan_id")
    table = read_table(layout.relevance_bilateral)
    own = table[(table["group"] == "Hippocampus") & (table["map"] == EVIDENCE)].set_index("scan_id")
    assert len(own) == len(found) > 0
    np.testing.assert_array_equal(found["evidence"], own["evidence"].reindex(found.index))
    scans = read_table(layout.scans).set_index("scan_id")
    assert found["label"].equals(scans["label"].reindex(found.index))
    assert list(found.columns[-1:]) == ["evidence"]


def test_every_map_of_every_region_and_group_is_in_one_frame(run, layout) -> None:
    groups = read_table(layout.relevance_bilateral)
    sides = groups[["participant_id", "session_id", "scan_id", "map", "group", "sum"]].iloc[:2]
    sides = sides.assign(region=[59, 60], name=["Amygdala", "Hippocampus"], hemisphere=["left", "right"])
    path = {table.name: table for table in DECLARED}["relevance_regions"].path(layout)
    write_table(path, sides)
    try:
        found = heatlas.open(layout.root).relevance
    finally:
        path.unlink()
    assert len(found) == len(groups) + 2
    assert found[found["hemisphere"] == "both"]["sum"].sum() == pytest.approx(groups["sum"].sum())
    assert found["name"].tolist()[:2] == ["Amygdala", "Hippocampus"]
    assert found["label"].notna().all()


def test_maps_are_those_of_the_folder(run, layout) -> None:
    assert run.maps[0] == EVIDENCE
    for name in run.maps:
        wanted = nib.load(layout.group_map("CN", name))
        found = run.map(name, group="CN")
        np.testing.assert_array_equal(found.get_fdata(), wanted.get_fdata())
        np.testing.assert_array_equal(found.affine, wanted.affine)
    person = run.predictions["participant_id"].iloc[0]
    bare, full = (run.map("gb", participant=name) for name in (person.removeprefix("sub-"), person))
    np.testing.assert_array_equal(bare.get_fdata(), full.get_fdata())


def test_a_picture_shows_the_map_on_the_template(run, tmp_path) -> None:
    run.plot(group="CN", display_mode="z", cut_coords=[0], output_file=tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        (lambda run: run.evidence("hipocampus"), UsageError, "hipocampus: no such region. Similar: .*Hippocampus"),
        (lambda run: run.evidence("Hippocampus", "gb"), UsageError, "gb is no evidence map of this run; those are"),
        (lambda run: run.map("nothing"), UsageError, "no such map; it has"),
        (lambda run: run.map("gb", "CN", "sub-1"), UsageError, "not both"),
        (lambda run: run.map("gb", participant="nobody"), UsageError, "sub-nobody: no explained scan"),
        (lambda run: run.map("gb", "no such class"), BadInputError, "this run has no such map. Finish it"),
        (lambda run: run.table("scan"), UsageError, "scan: this run has no such table. Similar: scans"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(run, asked, error, message) -> None:
    with pytest.raises(error, match=message):
        asked(run)


def test_a_folder_that_is_no_run_is_refused(tmp_path) -> None:
    with pytest.raises(UsageError, match=str(tmp_path)):
        heatlas.open(tmp_path)
