"""Maps summed over a person's own segmentation."""

from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import scipy.io

from heatlas.atlases.regions import freesurfer_names
from heatlas.atlases.spaces import template_grid
from heatlas.pipeline.cohort.reading import InputCohort
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.cohort.segmented.images import names_of_regions, segmentation_of, table_beside
from heatlas.pipeline.explaining.own_regions import (
    OWN_REGIONS_TABLE,
    OwnRegions,
    own_rows,
    sum_own_regions,
)
from heatlas.pipeline.registration.ants_transform import Volume, write_no_displacement
from heatlas.pipeline.registration.own_labels import labels_in_template
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.reports.content.run.colophon import methods_markdown
from heatlas.reports.read.run_record import read_run
from heatlas.workflows.command_line import main
from heatlas.workflows.preflight import _own_region_notes
from tests.workflows.template_cohort import write_config, write_template_cohort

GRID = template_grid(4.0)
LABELS = (2, 17, 53, 1006, 2006, 4444)


def test_sums_are_those_of_a_loop_and_add_up() -> None:
    random = np.random.default_rng(2)
    labels = random.choice([0, *LABELS[:5]], size=(7, 5, 6)).astype(np.int32)
    maps = {name: np.asfortranarray(random.normal(size=labels.shape).astype(np.float32)) for name in ("a", "b")}
    rows = own_rows(maps, labels, {number: 3.0 for number in LABELS}, freesurfer_names())
    assert len(rows) == 2 * 7
    for row in rows.itertuples():
        inside = labels == row.region
        expected = maps[row.map][inside].sum(dtype=np.float64)
        assert row.n_voxels == inside.sum()
        assert row.sum == pytest.approx(expected, abs=1e-9)
        assert np.isnan(row.density) if not inside.any() else row.density == pytest.approx(expected / inside.sum())
    for name, values in maps.items():
        assert rows.loc[rows["map"] == name, "sum"].sum() == pytest.approx(values.sum(dtype=np.float64), abs=1e-9)
    named = rows.drop_duplicates("region").set_index("region")
    assert named.loc[1006, ["name", "hemisphere"]].tolist() == ["ctx-lh-entorhinal", "left"]
    assert named.loc[0, "name"] == "unlabelled rest"
    assert named.loc[4444, ["n_voxels", "volume_mm3"]].tolist() == [0, 3.0]
    assert named["name"].isna().tolist() == [number == 4444 for number in named.index]


def test_regions_of_a_dseg_are_named_by_its_own_table(tmp_path) -> None:
    path = tmp_path / "sub-1" / "sub-1_dseg.nii.gz"
    path.parent.mkdir()
    assert names_of_regions(path, table_beside(path, tmp_path)) == {}  # 17 may be anything
    (tmp_path / "dseg.tsv").write_text("index\tname\n17\tThalamus\n53\tLeft Insula\n")
    names = names_of_regions(path, table_beside(path, tmp_path))
    assert names == {17: ("Thalamus", "both"), 53: ("Left Insula", "left")}
    labels = np.array([0, 17, 17, 53], np.int32)
    rows = own_rows({"m": np.array([1, 2, 3, 4], np.float32)}, labels, {17: 2.0, 53: 1.0, 60: 1.0}, names)
    assert rows["name"].tolist()[:3] == ["unlabelled rest", "Thalamus", "Left Insula"]
    assert rows["name"].isna().tolist() == [False, False, False, True]
    assert rows["sum"].tolist() == [1, 5, 4, 0]
    other = tmp_path / "aparc+aseg.mgz"
    assert table_beside(other, tmp_path) is None
    assert names_of_regions(other, None)[17] == ("Left-Hippocampus", "left")


def test_both_sides_have_the_same_names() -> None:
    names = freesurfer_names()
    for number in range(1000, 1036):
        assert names[number + 1000][0] == names[number][0].replace("lh", "rh")
    left = {name.removeprefix("Left-") for name, side in names.values() if side == "left" and "ctx" not in name}
    assert left == {
        name.removeprefix("Right-") for name, side in names.values() if side == "right" and "ctx" not in name
    }
    assert len(names) == 49 + 72


def segmentation(path: Path, shift: np.ndarray) -> Path:
    """Two structures at known places of the world, moved by `shift`, on FreeSurfer's axes with 1 mm voxels."""
    affine = np.array([[-1.0, 0, 0, 100], [0, 0, 1, -60], [0, -1, 0, 30], [0, 0, 0, 1]])
    first, second, third = np.ogrid[:160, :80, :80]
    x, y, z = 100 - first - shift[0], third - 60 - shift[1], 30 - second - shift[2]
    labels = np.zeros((160, 80, 80), np.int32)
    for side, number in ((-26, 17), (26, 53)):
        labels[(abs(x - side) <= 10) & (abs(y + 20) <= 10) & (abs(z + 12) <= 10)] = number
    nib.save(nib.MGHImage(labels, affine), path)
    return path


def expected_labels() -> np.ndarray:
    world = nib.affines.apply_affine(GRID.affine, np.moveaxis(np.indices(GRID.shape), 0, -1))
    labels = np.zeros(GRID.shape, np.int32)
    labels[np.abs(world - [-26, -20, -12]).max(-1) <= 10] = 17
    labels[np.abs(world - [26, -20, -12]).max(-1) <= 10] = 53
    return labels


@pytest.mark.parametrize("shift", [(0.0, 0.0, 0.0), (5.0, -9.0, 13.0)])
def test_labels_follow_the_transform_of_the_scan(tmp_path, shift) -> None:
    """The scan lies `shift` away from the template, and its transform says so; left stays left."""
    files = RunLayout(tmp_path).scan("sub-1", None, 4.0)
    files.warp.parent.mkdir(parents=True)
    lps = np.array([-shift[0], -shift[1], shift[2]])
    parameters = np.concatenate([np.eye(3).ravel(), lps])[:, None]
    scipy.io.savemat(
        files.affine_transform, {"AffineTransform_double_3_3": parameters, "fixed": np.zeros((3, 1))}, format="4"
    )
    write_no_displacement(files.warp, Volume(np.zeros(GRID.shape, np.float32), GRID.affine))
    labels, volumes = labels_in_template(
        segmentation(tmp_path / "aparc+aseg.mgz", np.array(shift)), files, GRID, placed=False
    )
    np.testing.assert_array_equal(labels, expected_labels())
    assert volumes == {17: 9261.0, 53: 9261.0}  # 21 mm cubed


def test_labels_in_template_space_need_no_transform(tmp_path) -> None:
    files = RunLayout(tmp_path).scan("sub-1", None, 4.0)
    labels, _ = labels_in_template(segmentation(tmp_path / "aparc+aseg.mgz", np.zeros(3)), files, GRID, placed=True)
    np.testing.assert_array_equal(labels, expected_labels())


def test_a_segmentation_in_another_space_is_refused(tmp_path) -> None:
    files = RunLayout(tmp_path).scan("sub-1", None, 4.0)
    brain = np.zeros(GRID.shape, np.float32)
    brain[4:-4, 4:-4, 4:-4] = 1
    files.brain_mask.parent.mkdir(parents=True)
    nib.save(nib.Nifti1Image(brain, GRID.affine), files.brain_mask)
    scan = Scan("sub-1", None, "1", "sub-1/mri/brain.mgz", entry="template")
    task = OwnRegions((), files, scan, segmentation(tmp_path / "aparc+aseg.mgz", np.array([60.0, 0, 0])), "")
    with pytest.raises(BadInputError, match=r"the segmentation of the scan: \d+ % of it lies outside the brain"):
        sum_own_regions({}, task)


def test_where_segmentations_are_looked_for(tmp_path) -> None:
    (tmp_path / "bert" / "mri").mkdir(parents=True)
    scan = Scan("sub-bert", "ses-1", "bert", "bert/mri/brain.mgz")
    assert segmentation_of(tmp_path, scan, "") is None
    for name in ("aparc.DKTatlas+aseg.deep.mgz", "aparc+aseg.mgz"):
        (tmp_path / "bert" / "mri" / name).touch()
        assert segmentation_of(tmp_path, scan, "") == tmp_path / "bert" / "mri" / name
    given = tmp_path / "labels" / "sub-bert_ses-1.nii.gz"
    given.parent.mkdir()
    given.touch()
    assert segmentation_of(tmp_path, Scan("sub-bert", "ses-1", "x", "x.nii"), "labels/{name}.nii.gz") == given
    assert segmentation_of(tmp_path, Scan("sub-bert", "ses-1", "x", "x.nii"), "") is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"regions": {"own_labels": "one.mgz"}}, "regions.own_labels may hold only {participant_id}"),
        (
            {"regions": {"own_labels": "{scan_id}.mgz"}, "attribution": {"keep_maps": "none"}},
            "set attribution.keep_maps",
        ),
    ],
)
def test_settings_that_make_no_sense(settings, said) -> None:
    with pytest.raises(UsageError, match=said):
        load_config("default", None, settings)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run on a folder of subjects whose brains lie in template space; one subject has no segmentation."""
    folder = tmp_path_factory.mktemp("own")
    table = write_template_cohort(folder / "bids", participants=12)
    subjects = folder / "subjects"
    for name in table["participant_id"]:
        image = nib.load(folder / "bids" / name / "anat" / f"{name}_T1w.nii.gz")
        (subjects / name / "mri").mkdir(parents=True)
        nib.save(
            nib.MGHImage(np.asarray(image.dataobj, np.float32), image.affine), subjects / name / "mri" / "brain.mgz"
        )
        if name != "sub-02":
            segmentation(subjects / name / "mri" / "aparc+aseg.mgz", np.zeros(3))
    table.to_csv(subjects / "participants.tsv", sep="\t", index=False)
    command = ["run", str(subjects), str(folder / "run"), "--config", str(write_config(folder / "config.toml"))]
    assert main([*command, "--n-procs", "1", "--stop-after", "regions"]) == 0
    return folder / "run"


def test_one_segmentation_for_several_scans_is_refused_before_work(tmp_path) -> None:
    (tmp_path / "seg").mkdir()
    (tmp_path / "seg" / "sub-1.nii.gz").touch()
    visits = ScanTable(tuple(Scan("sub-1", session, session, f"{session}.nii") for session in ("ses-1", "ses-2")))
    cohort = InputCohort(tmp_path, "table", visits, ())
    config = load_config(overrides={"regions": {"own_labels": "seg/{participant_id}.nii.gz"}})
    with pytest.raises(BadInputError, match="several scans would have the same segmentation"):
        _own_region_notes(config, cohort)


@pytest.mark.slow
def test_a_pattern_that_finds_nothing_is_refused_before_work(run, capsys) -> None:
    settings = run.parent / "lost.toml"
    settings.write_text((run.parent / "config.toml").read_text() + '[regions]\nown_labels = "x/{name}.mgz"\n')
    check = ["check", str(run.parent / "subjects"), "--config"]
    assert main([*check, str(settings)]) == 65
    assert "regions.own_labels = 'x/{name}.mgz': no scan has a segmentation there" in capsys.readouterr().err
    assert main([*check, str(run.parent / "config.toml")]) == 0
    assert "maps of 11 of 12 scans are also summed over people's own segmentations" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_sums_its_maps_over_both_kinds_of_regions(run) -> None:
    layout = RunLayout(run)
    own = OWN_REGIONS_TABLE.read(layout)
    atlas = read_table(run / "group" / "relevance.tsv").query("scan_id != 'sub-02'")
    totals = atlas.groupby(["scan_id", "map"])["sum"].sum()
    labelled = own[own["scan_id"].isin(atlas["scan_id"])]
    assert labelled["scan_id"].nunique() == 7  # of 8 with a label
    np.testing.assert_allclose(labelled.groupby(["scan_id", "map"])["sum"].sum(), totals, rtol=1e-6, atol=1e-9)
    assert set(own["scan_id"]) - set(labelled["scan_id"])  # people outside the contrast too
    name, chosen = labelled["scan_id"].iloc[0], labelled["map"].iloc[0]
    values = np.asarray(nib.load(layout.scan(name, None, 4.0).relevance_map(chosen)).dataobj, np.float64)
    inside = values[expected_labels() == 53].sum()
    row = own.query("scan_id == @name and map == @chosen and region == 53").iloc[0]
    assert (row["name"], row["hemisphere"], row["volume_mm3"]) == ("Right-Hippocampus", "right", 9261.0)
    assert row["sum"] == pytest.approx(inside, rel=1e-5, abs=1e-9)
    assert row["sum"] != 0


@pytest.mark.slow
def test_the_methods_text_names_the_table(run) -> None:
    said = methods_markdown(read_run(RunLayout(run)))
    assert "group/relevance_own_regions.tsv has their sums over a segmentation of each person" in said
    assert "found in a folder of FreeSurfer subjects" in said
