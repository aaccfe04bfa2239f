from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from atlas_grids import oblique, oriented
from label_volumes import label_volumes_mm3

from heatlas.atlases.catalogue import atlas_names, find_atlas
from heatlas.atlases.labels import load_atlas, mean_x_mm, read_labels
from heatlas.atlases.regions import neuromorphometrics
from heatlas.atlases.spaces import Grid, resample_labels, template_grid
from heatlas.atlases.templates import brain_box, load_template
from heatlas.pipeline.run.errors import BadInputError, UsageError

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
