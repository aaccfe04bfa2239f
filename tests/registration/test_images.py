"""Images as they come, and the brain in them."""

from __future__ import annotations

import gzip
import json
import stat
import sys
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nibabel.eulerangles import euler2mat

from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.registration.ants_transform import Volume, closest_ras
from heatlas.pipeline.registration.images import brain_extraction
from heatlas.pipeline.registration.images.brain_extraction import (
    find_brain,
    is_stripped,
    mask_path,
    nonzero_brain,
    read_mask,
    require_synthstrip,
)
from heatlas.pipeline.registration.images.t1w import T1wImage, load_labels, load_t1w, voxel_to_world
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.errors import BadInputError, MissingDataError, UsageError

SHAPE = (14, 18, 22)


def values(shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return (np.arange(np.prod(shape)) % 251).astype(np.int16).reshape(shape)


def image(
    data: np.ndarray | None = None,
    sizes: tuple[float, float, float] = (8.0, 9.0, 7.0),
    sform_code: int = 1,
    qform_code: int = 1,
) -> Any:
    affine = np.diag([-sizes[0], sizes[1], sizes[2], 1.0])
    affine[:3, 3] = (50, -60, -70)
    result = nib.Nifti1Image(values() if data is None else data, affine)
    result.set_sform(affine, sform_code)
    result.set_qform(affine, qform_code)
    return result


def save(result: Any, folder: Path, name: str = "scan.nii.gz") -> Path:
    path = folder / name
    result.to_filename(path)
    return path


def patch_header(path: Path, change: Any) -> Path:
    """Change raw header fields of an uncompressed file, past the checks of nibabel."""
    raw = bytearray(path.read_bytes())
    header = nib.Nifti1Header(bytes(raw[:348]), check=False)
    change(header)
    raw[:348] = header.binaryblock
    path.write_bytes(bytes(raw))
    return path


def refused(path: Path, *words: str) -> None:
    with pytest.raises(BadInputError) as caught:
        load_t1w(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    for word in words:
        assert word in message


class TestGoodImages:
    def test_values_affine_and_axes_are_those_of_the_file(self, tmp_path: Path) -> None:
        original = image()
        loaded = load_t1w(save(original, tmp_path))
        assert loaded.data.dtype == np.float32
        np.testing.assert_array_equal(loaded.data, values())
        np.testing.assert_allclose(loaded.affine, original.affine)
        assert loaded.orientation == "sform"

    @pytest.mark.parametrize("slope", [0.0, np.nan, np.inf])
    def test_a_slope_that_is_none_leaves_values_as_stored(self, tmp_path: Path, slope: float) -> None:
        path = save(image(), tmp_path, "scan.nii")
        patch_header(path, lambda header: header.__setitem__("scl_slope", slope))
        np.testing.assert_array_equal(load_t1w(path).data, values())

    def test_a_slope_without_an_intercept_is_refused(self, tmp_path: Path) -> None:
        path = save(image(), tmp_path, "scan.nii")

        def change(header: Any) -> None:
            header["scl_slope"], header["scl_inter"] = 2.0, np.nan

        refused(patch_header(path, change), "intercept")

    def test_scaled_values_are_read(self, tmp_path: Path) -> None:
        path = save(image(), tmp_path, "scan.nii")
        patch_header(path, lambda header: header.set_slope_inter(13.5, -2.0))
        np.testing.assert_allclose(load_t1w(path).data, values() * 13.5 - 2)

    def test_a_fourth_axis_of_one_is_dropped(self, tmp_path: Path) -> None:
        loaded = load_t1w(save(image(values()[..., None]), tmp_path))
        np.testing.assert_array_equal(loaded.data, values())

    def test_the_input_is_not_touched(self, tmp_path: Path) -> None:
        path = save(image(qform_code=0), tmp_path)
        path.chmod(0o444)
        before = path.read_bytes(), path.stat().st_mtime_ns
        load_t1w(path)
        assert (path.read_bytes(), path.stat().st_mtime_ns) == before
        assert [entry.name for entry in tmp_path.iterdir()] == ["scan.nii.gz"]


class TestTruthTable:
    """qform and sform as nipreps' ValidateImage weighs them."""

    def test_swapped_axes_are_the_same_image(self, tmp_path: Path) -> None:
        """Stored as (z, x, y) with the affine to match, the image is the same in the world, voxel by voxel."""
        original = image()
        swapped = nib.Nifti1Image(values().transpose(2, 0, 1), original.affine[:, [2, 0, 1, 3]])
        loaded = load_t1w(save(swapped, tmp_path))
        as_ras = [
            closest_ras(Volume(one.data, one.affine)) for one in (loaded, load_t1w(save(original, tmp_path, "o.nii")))
        ]
        np.testing.assert_array_equal(as_ras[0].data, as_ras[1].data)
        np.testing.assert_allclose(as_ras[0].affine, as_ras[1].affine)
        assert as_ras[0].data.shape == SHAPE
        assert as_ras[0].data[0, 3, 5] == values()[-1, 3, 5]

    def test_swapped_axes_in_one_form_only_are_a_conflict(self, tmp_path: Path) -> None:
        stored = image()
        stored.set_qform(stored.affine[:, [1, 0, 2, 3]] @ np.diag([8 / 9, 9 / 8, 1, 1]), 1)
        loaded = load_t1w(save(stored, tmp_path))
        np.testing.assert_allclose(loaded.affine, image().affine)
        assert loaded.orientation.startswith("sform (qform differs by up to 2")

    def test_sform_absent_qform_holds(self, tmp_path: Path) -> None:
        loaded = load_t1w(save(image(sform_code=0), tmp_path))
        np.testing.assert_allclose(loaded.affine, image().affine, atol=1e-4)
        assert loaded.orientation == "qform"

    def test_qform_absent_sform_holds(self, tmp_path: Path) -> None:
        assert load_t1w(save(image(qform_code=0), tmp_path)).orientation == "sform"

    def test_in_conflict_the_sform_holds_and_it_is_said(self, tmp_path: Path) -> None:
        stored = image()
        other = stored.affine.copy()
        other[0, 3] += 25
        stored.set_qform(other, 1)
        loaded = load_t1w(save(stored, tmp_path))
        np.testing.assert_allclose(loaded.affine, image().affine)
        assert "differs by up to 25.0 mm" in loaded.orientation

    def test_a_sheared_sform_yields_to_the_qform(self, tmp_path: Path) -> None:
        path = save(image(), tmp_path, "scan.nii")
        patch_header(path, lambda header: header["srow_x"].__setitem__(1, 2.0))
        loaded = load_t1w(path)
        np.testing.assert_allclose(loaded.affine, image().affine, atol=1e-4)
        assert loaded.orientation == "qform (sform sheared)"

    def test_an_impossible_quaternion_yields_to_the_sform(self, tmp_path: Path) -> None:
        path = save(image(), tmp_path, "scan.nii")
        patch_header(path, lambda header: header.__setitem__("quatern_b", 3.0))
        assert load_t1w(path).orientation == "sform (qform not a rotation)"

    def test_neither_is_refused(self, tmp_path: Path) -> None:
        refused(save(image(sform_code=0, qform_code=0), tmp_path), "no usable orientation", "left and right")

    def test_singular_sform_alone_is_refused(self, tmp_path: Path) -> None:
        path = save(image(qform_code=0), tmp_path, "scan.nii")
        patch_header(path, lambda header: header.__setitem__("srow_z", header["srow_y"]))
        refused(path, "sform singular")

    def test_sform_and_voxel_size_in_conflict_are_refused(self, tmp_path: Path) -> None:
        path = save(image(qform_code=0), tmp_path, "scan.nii")
        patch_header(path, lambda header: header["pixdim"].__setitem__(2, 3.0))
        refused(path, "with another voxel size, 8 x 9 x 7 mm against 8 x 3 x 7 mm")

    @given(
        angles=st.tuples(*[st.floats(-3.1, 3.1)] * 3),
        sizes=st.tuples(*[st.floats(0.5, 4)] * 3),
        flip=st.booleans(),
        form=st.sampled_from(["sform", "qform"]),
    )
    def test_any_rotation_voxel_size_and_side_is_kept(
        self, angles: tuple[float, ...], sizes: tuple[float, ...], flip: bool, form: str
    ) -> None:
        affine = np.eye(4)
        affine[:3, :3] = euler2mat(*angles) @ np.diag([-sizes[0] if flip else sizes[0], *sizes[1:]])
        affine[:3, 3] = (10, -20, 30)
        header = nib.Nifti1Header()
        header.set_data_shape((50, 60, 70))
        header.set_zooms(sizes)
        getattr(header, f"set_{form}")(affine, 1)
        found = voxel_to_world(header, Path("scan.nii"))
        # A quaternion near half a turn leaves little to single precision: its first number is a root of a difference.
        np.testing.assert_allclose(found.affine, affine, atol=1e-4 if form == "sform" else 1e-2)
        assert str(found) == form


class TestBadImages:
    def test_absent(self, tmp_path: Path) -> None:
        refused(tmp_path / "nowhere.nii.gz", "no such image")

    @pytest.mark.parametrize("share", [0.1, 0.5, 0.99, None])
    def test_truncated_and_damaged_gzip(self, tmp_path: Path, share: float | None) -> None:
        noise = np.random.default_rng(3).integers(0, 4000, SHAPE).astype(np.int16)
        path = save(image(noise), tmp_path)
        raw = bytearray(path.read_bytes())
        if share is None:
            raw[len(raw) // 2] ^= 0xFF
        else:
            raw = raw[: int(len(raw) * share)]
        path.write_bytes(bytes(raw))
        refused(path, "scan again")

    def test_truncated_plain_file(self, tmp_path: Path) -> None:
        path = save(image(), tmp_path, "scan.nii")
        path.write_bytes(path.read_bytes()[:-500])
        refused(path, "truncated or damaged")

    def test_plain_bytes_named_gz(self, tmp_path: Path) -> None:
        path = tmp_path / "scan.nii.gz"
        path.write_text("<html>Please log in</html>" * 50)
        refused(path, "not a readable NIfTI image")

    def test_empty_file(self, tmp_path: Path) -> None:
        path = tmp_path / "scan.nii.gz"
        path.write_bytes(b"")
        refused(path, "not a readable NIfTI image")

    def test_wrong_magic(self, tmp_path: Path) -> None:
        path = save(image(), tmp_path)
        raw = bytearray(gzip.decompress(path.read_bytes()))
        raw[344:348] = b"n+9\0"
        path.write_bytes(gzip.compress(bytes(raw)))
        refused(path, "NIfTI")

    def test_another_format(self, tmp_path: Path) -> None:
        path = tmp_path / "scan.img"
        nib.AnalyzeImage(values().astype(np.float32), image().affine).to_filename(path)
        refused(path, "AnalyzeImage, not NIfTI")

    def test_several_volumes(self, tmp_path: Path) -> None:
        refused(save(image(values((*SHAPE, 3))), tmp_path), "14 x 18 x 22 x 3", "single volume")

    def test_a_slice(self, tmp_path: Path) -> None:
        refused(save(image(values((14, 18))), tmp_path), "three axes")
        refused(save(image(values((14, 18, 1))), tmp_path), "cannot be a scan")

    @pytest.mark.parametrize("value", [0, 7])
    def test_constant(self, tmp_path: Path, value: int) -> None:
        refused(save(image(np.full(SHAPE, value, np.int16)), tmp_path), f"every voxel is {value}")

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_not_finite(self, tmp_path: Path, bad: float) -> None:
        data = values().astype(np.float32)
        data[1, 2, 3] = data[4, 5, 6] = bad
        refused(save(image(data), tmp_path), "2 voxels are NaN or infinite")

    def test_scaling_beyond_the_range_of_floats(self, tmp_path: Path) -> None:
        path = save(image(), tmp_path, "scan.nii")
        patch_header(path, lambda header: header.set_slope_inter(3e38, 0))
        refused(path, "NaN or infinite")

    def test_mask_instead_of_a_scan(self, tmp_path: Path) -> None:
        refused(save(image((values() % 3).astype(np.uint8)), tmp_path), "label map or a mask")

    def test_colours(self, tmp_path: Path) -> None:
        rgb = np.zeros(SHAPE, dtype=[("R", "u1"), ("G", "u1"), ("B", "u1")])
        refused(save(image(rgb), tmp_path), "not grey values")

    @pytest.mark.parametrize("size", [0.0, -1.0, np.nan])
    def test_impossible_voxel_size(self, tmp_path: Path, size: float) -> None:
        path = save(image(), tmp_path, "scan.nii")
        patch_header(path, lambda header: header["pixdim"].__setitem__(3, size))
        refused(path, "voxel size", "impossible")

    def test_metres_are_converted_where_the_header_says_so(self, tmp_path: Path) -> None:
        stored = image(sizes=(0.008, 0.009, 0.007))
        stored.set_sform(np.diag([0.001, 0.001, 0.001, 1]) @ image().affine, 1)
        stored.set_qform(stored.get_sform(), 1)
        stored.header.set_xyzt_units("meter")
        loaded = load_t1w(save(stored, tmp_path))
        np.testing.assert_allclose(loaded.affine, image().affine, atol=1e-4)
        assert loaded.orientation == "sform (voxel size converted from metres)"

    def test_millimetres_that_are_called_metres_stay(self, tmp_path: Path) -> None:
        stored = image()
        stored.header.set_xyzt_units("meter")
        loaded = load_t1w(save(stored, tmp_path))
        np.testing.assert_allclose(loaded.affine, image().affine)
        assert loaded.orientation == "sform"

    def test_metres(self, tmp_path: Path) -> None:
        refused(save(image(sizes=(0.008, 0.009, 0.007)), tmp_path), "units other than mm")

    def test_huge_voxels(self, tmp_path: Path) -> None:
        refused(save(image(sizes=(80.0, 90.0, 70.0)), tmp_path), "impossible voxel size: 80 x 90 x 70 mm")

    def test_less_than_a_head(self, tmp_path: Path) -> None:
        refused(save(image(sizes=(1.0, 9.0, 8.0)), tmp_path), "14 x 162 x 176 mm", "whole head")


class TestLabels:
    def test_numbers_and_affine_are_kept(self, tmp_path: Path) -> None:
        labels = (values() % 208).astype(np.int16)
        found, affine = load_labels(save(image(labels), tmp_path))
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, labels)
        np.testing.assert_allclose(affine, image().affine)

    def test_fractions_are_refused(self, tmp_path: Path) -> None:
        path = save(image(values().astype(np.float32) / 2), tmp_path)
        with pytest.raises(BadInputError, match="not whole numbers"):
            load_labels(path)


# Whose brain mask it is: what is stripped, deepbet, given masks, and the SynthStrip of the user.

AFFINE = np.array([[-3.0, 0, 0, 110], [0, 3, 0, -120], [0, 0, 4, -100], [0, 0, 0, 1]])
BRAIN_SHAPE = (76, 88, 61)


def ellipsoid(*radii_mm: float) -> np.ndarray:
    centre = (np.array(BRAIN_SHAPE) - 1) / 2
    indices = np.stack(np.meshgrid(*[np.arange(n) for n in BRAIN_SHAPE], indexing="ij"), -1)
    return np.asarray((((indices - centre) * np.abs(np.diag(AFFINE)[:3]) / radii_mm) ** 2).sum(-1) <= 1)


def scan(data: np.ndarray, folder: Path = Path("/nowhere")) -> T1wImage:
    return T1wImage(folder / "sub-01_T1w.nii.gz", data.astype(np.float32), AFFINE, "sform")


BRAIN = ellipsoid(68, 85, 62)  # 1.5 litres
HEAD = ellipsoid(85, 105, 115)  # 4.3 litres


@pytest.fixture
def no_deepbet(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Any:
        raise AssertionError("deepbet must not be asked")

    monkeypatch.setattr(brain_extraction, "_deepbet", refuse)


def with_deepbet(monkeypatch: pytest.MonkeyPatch, answer: np.ndarray | Exception) -> None:
    class Model:
        def run(self, image: Any) -> tuple[Any, Any, float]:
            if isinstance(answer, Exception):
                raise answer
            return image, nib.Nifti1Image(answer.astype(np.uint8), image.affine), 0.0

    monkeypatch.setattr(brain_extraction, "_deepbet", Model)


class TestIsStripped:
    def test_brain_on_zero(self) -> None:
        assert is_stripped(scan(np.where(BRAIN, 100, 0)))

    def test_head_whose_air_is_zero(self) -> None:
        assert not is_stripped(scan(np.where(HEAD, 100, 0)))

    def test_brain_in_noise(self) -> None:
        noise = np.random.default_rng(1).uniform(1, 5, BRAIN_SHAPE)
        assert not is_stripped(scan(np.where(BRAIN, 100, noise)))

    def test_specks_outside_and_holes_inside_do_not_matter(self) -> None:
        data = np.where(BRAIN, 100, 0)
        data[40, 45, 32] = 0
        data[1, 1, 1] = 50
        assert is_stripped(scan(data))
        mask = nonzero_brain(data)
        np.testing.assert_array_equal(mask, BRAIN)

    @pytest.mark.parametrize("stated", [True, False])
    def test_the_sidecar_decides(self, tmp_path: Path, stated: bool) -> None:
        (tmp_path / "sub-01_T1w.json").write_text(json.dumps({"SkullStripped": stated}))
        for body in (BRAIN, HEAD):
            assert is_stripped(scan(np.where(body, 100, 0), tmp_path)) is stated

    def test_a_sidecar_without_the_field_decides_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "sub-01_T1w.json").write_text('{"MagneticFieldStrength": 3}')
        assert is_stripped(scan(np.where(BRAIN, 100, 0), tmp_path))

    @pytest.mark.parametrize("content", ["{", '{"SkullStripped": "yes"}'])
    def test_a_broken_sidecar_is_named(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "sub-01_T1w.json").write_text(content)
        with pytest.raises(BadInputError, match=r"sub-01_T1w\.json"):
            is_stripped(scan(np.where(BRAIN, 100, 0), tmp_path))


class TestFindBrain:
    @pytest.mark.parametrize("method", ["auto", "none", "template-mask"])
    def test_a_stripped_image_is_left_alone(self, no_deepbet: None, method: str) -> None:
        found = find_brain(scan(np.where(BRAIN, 100, 0)), method)
        np.testing.assert_array_equal(found.mask, BRAIN)
        assert found.source == "stripped"
        assert found.litres == pytest.approx(4 / 3 * np.pi * 0.68 * 0.85 * 0.62, rel=0.02)

    @pytest.mark.parametrize("method", ["auto", "deepbet", "template-mask"])
    def test_a_head_goes_to_deepbet(self, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
        with_deepbet(monkeypatch, BRAIN)
        found = find_brain(scan(np.where(HEAD, 100, 0)), method)
        np.testing.assert_array_equal(found.mask, BRAIN)
        assert found.source == "deepbet"

    def test_none_takes_a_head_for_a_brain(self, no_deepbet: None) -> None:
        assert find_brain(scan(np.where(HEAD, 100, 0)), "none").litres > 4

    @pytest.mark.parametrize("answer", [ellipsoid(20, 20, 20), HEAD, AssertionError("foreground"), ValueError("empty")])
    def test_no_brain(self, monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
        with_deepbet(monkeypatch, answer)
        with pytest.raises(BadInputError, match=r"sub-01_T1w\.nii\.gz: deepbet finds"):
            find_brain(scan(np.where(HEAD, 100, 0)), "auto")


class TestRealData:
    @pytest.mark.ci
    def test_stripped_brains_and_heads_are_told_apart_without_sidecars(self, real_data: Path) -> None:
        for number in (1003, 1005, 1128):
            image = load_t1w(real_data / f"oasis20/sub-{number}/anat/sub-{number}_T1w.nii.gz")
            assert is_stripped(T1wImage(Path("/nowhere.nii"), image.data, image.affine, ""))
        for name in ("chris_t1", "IXI012-HH-1211_T1", "pycortex-S1_raw"):
            assert not is_stripped(load_t1w(real_data / "heads" / f"{name}.nii.gz"))

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["chris_t1", "IXI012-HH-1211_T1", "pycortex-S1_raw"])
    def test_deepbet_finds_the_brain_in_any_orientation(self, real_data: Path, name: str) -> None:
        image = load_t1w(real_data / "heads" / f"{name}.nii.gz")
        before = image.data.copy()
        found = find_brain(image, "auto")
        assert found.source == "deepbet"
        assert 1.2 < found.litres < 1.9
        np.testing.assert_array_equal(image.data, before)
        # The brain lies in the upper part of a head, and is brighter than the rest on average.
        height = np.argwhere(found.mask) @ image.affine[2, :3]
        everything = np.argwhere(image.data > image.data.mean()) @ image.affine[2, :3]
        assert height.mean() > everything.mean()
        assert image.data[found.mask].mean() > 1.5 * image.data[~found.mask].mean()


GIVEN = ellipsoid(62, 80, 60)  # 1.25 litres
GIVEN[:20] = False  # sides differ, so that a swapped axis shows
NOISY_HEAD = np.where(ellipsoid(85, 110, 100), 100.0, 5.0).astype(np.float32)


@pytest.fixture
def head(tmp_path: Path) -> T1wImage:
    return T1wImage(tmp_path / "sub-01_ses-1_T1w.nii.gz", NOISY_HEAD, AFFINE, "sform")


def brain_save(path: Path, values: np.ndarray, affine: np.ndarray = AFFINE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nib.Nifti1Image(values.astype(np.uint8), affine)
    image.set_sform(affine, 1)
    image.to_filename(path)
    return path


SCAN = Scan("sub-01", "ses-1", "I77", "sub-01/ses-1/anat/sub-01_ses-1_T1w.nii.gz")


def test_a_mask_is_found_by_its_bids_name_or_by_a_pattern(tmp_path: Path) -> None:
    expected = tmp_path / "sub-01/ses-1/anat/sub-01_ses-1_desc-brain_mask.nii.gz"
    assert mask_path(tmp_path, SCAN) == expected  # where it should be
    plain = brain_save(expected.with_suffix("").with_suffix(".nii"), GIVEN)
    assert mask_path(tmp_path, SCAN) == plain
    pattern = "derivatives/{participant_id}/{session_id}/{name}_{scan_id}.nii.gz"
    assert mask_path(tmp_path, SCAN, pattern) == tmp_path / "derivatives/sub-01/ses-1/sub-01_ses-1_I77.nii.gz"


@pytest.mark.parametrize("pattern", ["masks/mask.nii.gz", "{subject}.nii", "{name", "{name.folder}.nii"])
def test_a_pattern_that_names_no_scan_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match=r"registration\.mask_pattern"):
        load_config(overrides={"registration": {"mask_pattern": pattern}})


def test_a_mask_in_another_order_of_axes_lies_where_it_should(head: T1wImage, tmp_path: Path) -> None:
    stored = nib.Nifti1Image(GIVEN.astype(np.uint8), AFFINE)
    psr = stored.as_reoriented(
        nib.orientations.ornt_transform(nib.io_orientation(AFFINE), nib.orientations.axcodes2ornt("PSR"))
    )
    path = brain_save(tmp_path / "mask.nii.gz", np.asarray(psr.dataobj), psr.affine)
    assert psr.shape != BRAIN_SHAPE
    np.testing.assert_array_equal(read_mask(path, head), GIVEN)


def test_masks_that_cannot_be_used_are_named(head: T1wImage, tmp_path: Path) -> None:
    empty = brain_save(tmp_path / "empty.nii.gz", np.zeros(BRAIN_SHAPE))
    with pytest.raises(BadInputError, match=r"empty\.nii\.gz: the mask is empty"):
        read_mask(empty, head)
    away = AFFINE.copy()
    away[:3, 3] += 900
    with pytest.raises(BadInputError, match=r"away\.nii\.gz: the mask does not overlap"):
        read_mask(brain_save(tmp_path / "away.nii.gz", GIVEN, away), head)
    tiny = brain_save(tmp_path / "tiny.nii.gz", ellipsoid(20, 20, 20))
    with pytest.raises(BadInputError, match=r"the mask .*tiny\.nii\.gz finds 0\.03 litres"):
        find_brain(head, "given-mask", tiny)


@pytest.mark.parametrize("method", ["auto", "template-mask", "given-mask"])
def test_a_given_mask_comes_before_deepbet(
    head: T1wImage, tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brain_extraction, "_deepbet_mask", lambda image: pytest.fail("deepbet must not be asked"))
    found = find_brain(head, method, brain_save(tmp_path / "mask.nii.gz", GIVEN))
    np.testing.assert_array_equal(found.mask, GIVEN)
    assert found.source == "given"


def test_given_mask_without_a_mask_fails_and_says_where_it_was_looked_for(head: T1wImage, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"sub-01_ses-1_T1w\.nii\.gz: no mask is given at .*nowhere\.nii"):
        find_brain(head, "given-mask", tmp_path / "nowhere.nii")


def test_deepbet_by_name_ignores_a_given_mask(head: T1wImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = ellipsoid(65, 80, 60)
    monkeypatch.setattr(brain_extraction, "_deepbet_mask", lambda image: other)
    assert find_brain(head, "deepbet", brain_save(tmp_path / "mask.nii.gz", GIVEN)).source == "deepbet"


FAKE = """#!{python}
import sys
import nibabel, numpy
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if open(options["--model"]).read() == "broken":
    sys.exit("cannot load the model")
image = nibabel.load(options["-i"])
values = numpy.asarray(image.dataobj)
mask = (values > 50).astype("uint8")
mask[:40] = 0
nibabel.Nifti1Image(mask, image.affine).to_filename(options["-m"])
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for FreeSurfer's command: same options, a threshold for a network. Gives the weights file."""
    program = tmp_path / "bin" / "mri_synthstrip"
    program.parent.mkdir()
    program.write_text(FAKE.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(program.parent))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    weights = tmp_path / "synthstrip.1.pt"
    weights.write_text("weights")
    return weights


def test_synthstrip_is_the_users_own_command(head: T1wImage, command: Path, tmp_path: Path) -> None:
    expected = NOISY_HEAD > 50
    expected[:40] = False
    found = find_brain(head, "synthstrip", synthstrip_model=command)
    np.testing.assert_array_equal(found.mask, expected)
    assert found.source == "synthstrip"
    assert not list((tmp_path / "temporary").iterdir())


def test_synthstrip_that_fails_says_what_it_said(head: T1wImage, command: Path) -> None:
    command.write_text("broken")
    with pytest.raises(BadInputError, match=r"T1w\.nii\.gz: mri_synthstrip ended with code 1 .*cannot load the model"):
        find_brain(head, "synthstrip", synthstrip_model=command)


def test_synthstrip_without_command_or_weights_is_refused_before_work(
    command: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_synthstrip(command)
    with pytest.raises(MissingDataError, match=r"none\.pt: no such file"):
        require_synthstrip(tmp_path / "none.pt")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingDataError, match="mri_synthstrip is not on the PATH"):
        require_synthstrip(command)
    with pytest.raises(UsageError, match="synthstrip_model"):
        load_config(overrides={"registration": {"brain_extraction": "synthstrip"}})
