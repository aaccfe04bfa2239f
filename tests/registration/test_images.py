from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nibabel.eulerangles import euler2mat

from heatlas.pipeline.registration.ants_transform import Volume, closest_ras
from heatlas.pipeline.registration.images.t1w import load_labels, load_t1w, voxel_to_world
from heatlas.pipeline.run.errors import BadInputError

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
        refused(save(image((values() % 3).astype(np.uint8)), tmp_path), "mask or label image")

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
