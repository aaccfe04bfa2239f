"""A run in a notebook, against the tables and images in its folder."""

from __future__ import annotations

import shutil

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
from run_factory import EVIDENCE, WITH_EVIDENCE, make_run
from torch import nn

import heatlas
from heatlas.atlases.spaces import Box
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.models.inputs import NetworkInput
from heatlas.pipeline.models.storage import save_model
from heatlas.pipeline.regions.tables import RELEVANCE_TABLE, SPREADS
from heatlas.pipeline.run.config.networks import NETWORKS
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table, write_json, write_table
from heatlas.pipeline.run.work.digests import stamp_of
from heatlas.reports.read.run_files import DECLARED


@pytest.fixture(scope="module")
def layout(tmp_path_factory) -> RunLayout:
    return make_run(tmp_path_factory.mktemp("open") / "run", WITH_EVIDENCE)


@pytest.fixture(scope="module")
def run(layout) -> heatlas.OpenRun:
    return heatlas.open(layout.root)


def test_evidence_is_that_of_the_table_beside_who_it_is(run, layout) -> None:
    found = run.evidence("hippocampus").set_index("scan_id")
    table = read_table(layout.group / "relevance_bilateral.tsv")
    own = table[(table["group"] == "Hippocampus") & (table["map"] == EVIDENCE)].set_index("scan_id")
    assert len(own) == len(found) > 0
    np.testing.assert_array_equal(found["evidence"], own["evidence"].reindex(found.index))
    scans = read_table(layout.root / "scans.tsv").set_index("scan_id")
    assert found["label"].equals(scans["label"].reindex(found.index))
    assert list(found.columns[-1:]) == ["evidence"]


def test_every_map_of_every_region_and_group_is_in_one_frame(run, layout) -> None:
    groups = read_table(layout.group / "relevance_bilateral.tsv")
    sides = groups.iloc[:2].assign(region=[59, 60], name=["Amygdala", "Hippocampus"], hemisphere=["left", "right"])
    sides = sides.assign(standard_error=np.nan)[list(RELEVANCE_TABLE.without(*SPREADS).meanings)]
    path = {table.name: table for table in DECLARED}["relevance"].path(layout)
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
        (lambda run: run.table(["scans"]), UsageError, r"name of a table is text, not \['scans'\] \(list\)"),
        (lambda run: run.evidence(3), UsageError, r"name of a region is text, not 3 \(int\)"),
        (lambda run: run.evidence("Hippocampus", b"gb"), UsageError, "name of a map is text"),
        (lambda run: run.map(None, group=1.5), UsageError, "name of a group is text"),
        (lambda run: run.map("gb", participant=12), UsageError, "name of a participant is text"),
        (lambda run: heatlas.open(None), UsageError, "folder = None: must be a path, as text or Path"),
        (lambda run: heatlas.open(b"demo/run"), UsageError, "folder = b'demo/run': must be a path, as text or Path"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(run, asked, error, message) -> None:
    with pytest.raises(error, match=message):
        asked(run)


def test_a_folder_that_is_no_run_is_refused(tmp_path) -> None:
    with pytest.raises(UsageError, match=str(tmp_path)):
        heatlas.open(tmp_path)


@pytest.fixture
def copied(layout, tmp_path) -> RunLayout:
    """A copy that a test may damage."""
    return RunLayout(shutil.copytree(layout.root, tmp_path / "run"))


def test_the_network_of_a_person_is_that_of_the_fold_that_tested_them(copied) -> None:
    """And the image is scaled and cut as that network saw it, and lies where its box is."""
    run = heatlas.open(copied.root)
    box, folds = Box((3, 4, 5), (40, 44, 38)), sorted(run.predictions["fold"].unique())
    seen = NetworkInput(run.record.resolution_mm, box)
    for fold in folds:
        network = build_network(NETWORKS["founding"](channels=(2,), pools=(8,), hidden_units=3), box.shape, 2)
        network.apply(lambda layer, fold=fold: [nn.init.constant_(own, fold + 1) for own in layer.parameters(False)])
        save_model(copied.fold(fold), network, seen, ("CN", "AD"), {})
    for fold, people in run.predictions.groupby("fold")["participant_id"]:
        person = people.iloc[0]
        weights = {float(one.detach().flatten()[0]) for one in run.network(person).parameters()}
        assert weights == {fold + 1}
        files = run.record.files_of(run.predictions.query("participant_id == @person").iloc[0])
        values = np.random.default_rng(fold).random((2, *seen.template_grid.shape)).astype(np.float32)
        t1w, mask = values[0], (values[1] > 0.3).astype(np.float32)
        for path, one in ((files.t1w, t1w), (files.brain_mask, mask)):
            path.parent.mkdir(parents=True, exist_ok=True)
            nib.save(nib.Nifti1Image(one, seen.template_grid.affine), path)
        inside = t1w[mask > 0.5]
        wanted = np.where(mask > 0.5, (t1w - inside.min()) / (inside.max() - inside.min()), 0)[3:43, 4:48, 5:43]
        image = run.image(person.removeprefix("sub-"))
        assert int(image.header["sform_code"]) == 4, "it is in template space, and says so"
        np.testing.assert_allclose(image.get_fdata(), wanted, atol=1e-6)
        np.testing.assert_allclose(image.affine[:3, 3], (seen.template_grid.affine @ [3, 4, 5, 1])[:3])
    assert len(folds) > 1


def _rewritten(path, change) -> None:
    write_table(path, change(read_table(path)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: pd.concat([table, table]), "repeats an earlier one"),
        (lambda table: table.iloc[:0], "has no rows"),
        (lambda table: table.drop(columns="group"), "has no column group"),
        (lambda table: table.assign(n_voxels="many"), "'many' is not a number"),
        (lambda table: table.assign(map="nothing"), "'nothing' is not a map of this run"),
    ],
    ids=["twice", "empty", "column missing", "text for a number", "unknown map"],
)
def test_relevance_of_a_changed_table_is_refused(copied, change, message) -> None:
    _rewritten(copied.group / "relevance_bilateral.tsv", change)
    with pytest.raises(BadInputError, match=message):
        heatlas.open(copied.root).relevance  # noqa: B018


def test_regions_without_their_names_are_no_groups(copied) -> None:
    """They once took the names of their groups, and a group had three rows for a scan."""
    groups = read_table(copied.group / "relevance_bilateral.tsv")
    regions = groups.assign(region=47, name="Right Hippocampus", hemisphere="right", standard_error=np.nan)
    write_table(copied.group / "relevance.tsv", regions.drop(columns="name"))
    with pytest.raises(BadInputError, match=r"relevance.tsv has no column name"):
        heatlas.open(copied.root).evidence("Hippocampus")


def test_a_column_that_appears_twice_is_named(copied) -> None:
    path = copied.group / "relevance_bilateral.tsv"
    lines = [f"{line}\t{line.split(chr(9))[-1]}" for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(BadInputError, match="column evidence appears twice"):
        heatlas.open(copied.root).table("relevance_bilateral")


@pytest.mark.parametrize("table", ["group/predictions", "scans"])
def test_a_damaged_table_is_not_a_run_that_stopped(copied, table) -> None:
    path = copied.root / f"{table}.tsv"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BadInputError, match=rf"{table}.tsv: .*cut short"):
        heatlas.open(copied.root).predictions  # noqa: B018
    with pytest.raises(BadInputError, match=rf"{table}.tsv: .*cut short"):
        heatlas.open(copied.root).evidence("Hippocampus")


def _damaged(path, damage) -> None:
    image = nib.load(path)
    values = image.get_fdata(dtype=np.float32)
    if damage == "cut short":
        path.write_bytes(path.read_bytes()[:-500])
    elif damage == "another grid":
        nib.save(nib.Nifti1Image(values[1:], image.affine), path)
    elif damage == "four axes":
        nib.save(nib.Nifti1Image(np.stack([values, values], -1), image.affine), path)
    else:
        nib.save(nib.Nifti1Image(np.full_like(values, np.nan), image.affine), path)


@pytest.mark.parametrize("damage", ["cut short", "another grid", "four axes", "NaN"])
def test_a_map_that_the_run_cannot_have_written_is_refused(copied, damage) -> None:
    path = copied.group_map("CN", "gb")
    _damaged(path, damage)
    with pytest.raises(BadInputError, match="group-CN"):
        heatlas.open(copied.root).map("gb", group="CN")


def test_the_map_of_another_person_is_refused(copied) -> None:
    opened = heatlas.open(copied.root)
    first, second = opened.record.explained.drop_duplicates("participant_id").iloc[:2].to_dict("records")
    mine, theirs = (opened.record.files_of(one).relevance_map(EVIDENCE) for one in (first, second))
    name = mine.relative_to(copied.root).as_posix()
    unit = opened.record.files_of(first).name
    write_json(copied.receipt("attribution", unit), {"key": "k", "outputs": {name: stamp_of(mine)}})
    before = opened.map(EVIDENCE, participant=first["participant_id"]).get_fdata()
    np.testing.assert_array_equal(before, nib.load(mine).get_fdata())
    image = nib.load(theirs)
    nib.save(nib.Nifti1Image(image.get_fdata(dtype=np.float32) * 2 + 1, image.affine), mine)
    with pytest.raises(BadInputError, match=rf"{name}: not the map that the run wrote there"):
        opened.map(EVIDENCE, participant=first["participant_id"])


@pytest.mark.parametrize("kept", [0, 3], ids=["a header alone", "half of it"])
@pytest.mark.parametrize("table", ["group/predictions", "scans"])
def test_a_table_that_has_lost_people_is_named_with_the_scans_it_lacks(copied, table, kept) -> None:
    path = copied.root / f"{table}.tsv"
    whole = read_table(path)
    write_table(path, whole.iloc[:kept])
    opened = heatlas.open(copied.root)
    later = {"scans": "registration", "group/predictions": "relevance_bilateral"}[table]
    lacking = set(read_table(copied.group / f"{later}.tsv")["scan_id"]) - set(whole["scan_id"].iloc[:kept])
    message = rf"{table}.tsv: lacks {len(lacking)} scans? that group/{later}.tsv has"
    for read in (lambda: opened.predictions, lambda: opened.evidence("Hippocampus"), lambda: opened.table(path.stem)):
        with pytest.raises(BadInputError, match=message):
            read()


def test_relevance_that_has_lost_an_explained_scan_is_named(copied) -> None:
    opened = heatlas.open(copied.root)
    path = copied.group / "relevance_bilateral.tsv"
    scan = opened.record.explained.iloc[0]
    _rewritten(path, lambda table: table[table["scan_id"] != scan["scan_id"]])
    assert "relevance_bilateral" not in heatlas.open(copied.root).record.unreadable  # perhaps it was not explained
    write_json(copied.receipt("attribution", opened.record.files_of(scan).name), {"key": "k", "outputs": {}})
    opened = heatlas.open(copied.root)
    for read in (lambda: opened.relevance, lambda: opened.table("relevance_bilateral")):
        with pytest.raises(
            BadInputError, match=r"relevance_bilateral.tsv: lacks 1 scan that group/predictions.tsv has"
        ):
            read()
