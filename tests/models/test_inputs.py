"""Scans as networks see them: values and channels, and scans kept uncompressed for training."""

from __future__ import annotations

import dataclasses
import errno

import nibabel as nib
import numpy as np
import pytest
import torch

from heatlas.atlases.spaces import Box, template_grid
from heatlas.atlases.templates import load_template
from heatlas.pipeline.models import kept_volumes
from heatlas.pipeline.models.families.founding_family import FoundingConfig, seen_side
from heatlas.pipeline.models.inputs import (
    NetworkInput,
    configured_input,
    covering_box,
    from_network,
    read_network_volume,
    scale_in_mask,
    to_network,
)
from heatlas.pipeline.models.kept_volumes import keep_volumes
from heatlas.pipeline.run.config.settings import Config, RegistrationConfig, TrainingConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.scan_files import ScanFiles

COARSE = 4.0
BOX = Box((3, 8, 5), (31, 40, 33))


@pytest.fixture
def scan():
    """A volume on the 4 mm template grid with a mask of odd shape."""
    random = np.random.default_rng(5)
    shape = template_grid(COARSE).shape
    mask = np.zeros(shape, bool)
    mask[6:40, 10:50, 8:41] = random.random((34, 40, 33)) < 0.9
    return random.normal(70, 25, shape).astype(np.float32), mask


def test_scaling_by_hand():
    volume = np.array([[[5.0, -3.0, 9.0, 1.0]]], np.float32)
    mask = np.array([[[True, False, True, True]]])
    # Inside: 5, 9, 1 -> minimum 1, range 8.
    np.testing.assert_array_equal(scale_in_mask(volume, mask), np.array([[[0.5, 0.0, 1.0, 0.0]]], np.float32))


def test_scaling_depends_on_nothing_but_order_of_intensities_inside(scan):
    volume, mask = scan
    scaled = scale_in_mask(volume, mask)
    assert scaled.dtype == np.float32
    assert (scaled[~mask] == 0).all()
    assert scaled[mask].min() == 0
    assert scaled[mask].max() == 1
    elsewhere = np.where(mask, volume * 3 + 40, 1e6)
    np.testing.assert_allclose(scale_in_mask(elsewhere, mask), scaled, atol=1e-6)


def test_percentiles_are_those_inside_the_mask_and_cut_off():
    """Of 0 to 200 and one bright vessel, the percentiles 0.5 and 99.5 are 1.005 and 199.995 (linear, of 202 values)."""
    inside = np.append(np.arange(201.0), 1e6)
    volume = np.append(inside, [-1e9, 1e9]).astype(np.float32).reshape(1, 1, -1)
    mask = np.append(np.ones(202, bool), [False, False]).reshape(1, 1, -1)
    scaled = scale_in_mask(volume, mask, (0.5, 99.5)).ravel()
    low, high = 0.005 * 201, 0.995 * 201
    np.testing.assert_allclose(scaled[:201], np.clip((np.arange(201) - low) / (high - low), 0, 1), atol=1e-6)
    assert scaled[201:].tolist() == [1, 0, 0]
    assert scale_in_mask(volume, mask).ravel()[100] < 1e-3  # what the vessel does to minimum and maximum


def test_configured_intensities():
    config = Config(model=FoundingConfig(intensities="percentiles"))
    assert configured_input(config).normalisation == "percentile-brain"
    assert configured_input(Config()).normalisation == "minmax-brain"
    binarised = TrainingConfig(control="binarised")
    assert configured_input(dataclasses.replace(config, training=binarised)).normalisation == "binary-brain"


def test_integers_do_not_wrap_around():
    volume = np.array([[[-30000, 30000, 0]]], np.int16)
    np.testing.assert_allclose(scale_in_mask(volume, np.ones((1, 1, 3), bool)), [[[0, 1, 0.5]]])


@pytest.mark.parametrize(
    ("value", "mask", "message"),
    [
        (1.0, np.ones((2, 3, 4), bool), "all intensities inside the brain mask are 1"),
        (np.nan, np.ones((2, 3, 4), bool), "not finite"),
        (1.0, np.zeros((2, 3, 4), bool), "mask is empty"),
        (1.0, np.ones((2, 4, 3), bool), "brain mask"),
    ],
)
def test_unusable_intensities_are_refused(value, mask, message):
    volume = np.full((2, 3, 4), value)
    with pytest.raises(BadInputError, match=message):
        scale_in_mask(volume, mask)


def test_the_box_cuts_after_scaling_and_maps_go_back_to_the_same_voxels(scan):
    volume, mask = scan
    spec = NetworkInput(COARSE, BOX)
    seen = to_network(volume, mask, spec)
    whole = scale_in_mask(volume, mask)
    assert seen.shape == spec.shape == (31, 40, 33)
    np.testing.assert_array_equal(seen, whole[3:34, 8:48, 5:38])
    back = from_network(seen, spec)
    inside = np.zeros(whole.shape, bool)
    inside[3:34, 8:48, 5:38] = True
    np.testing.assert_array_equal(back, np.where(inside, whole, 0))
    np.testing.assert_array_equal(from_network(np.stack([seen, -seen]), spec), np.stack([back, -back]))
    np.testing.assert_array_equal(spec.grid.affine @ [2, 1, 4, 1], template_grid(COARSE).affine @ [5, 9, 9, 1])


def test_without_a_box_the_whole_template_is_seen(scan):
    volume, mask = scan
    spec = NetworkInput(COARSE, None)
    seen = to_network(volume, mask, spec)
    np.testing.assert_array_equal(seen, scale_in_mask(volume, mask))
    np.testing.assert_array_equal(from_network(seen, spec), seen)


def test_wrong_shapes_are_refused(scan):
    volume, mask = scan
    with pytest.raises(BadInputError, match="template grid at 4 mm"):
        to_network(volume[1:], mask[1:], NetworkInput(COARSE, BOX))
    with pytest.raises(ValueError, match="network's input"):
        from_network(np.zeros((31, 40, 34)), NetworkInput(COARSE, BOX))


def test_configured_field_of_view():
    registration = RegistrationConfig(resolution_mm=2.0)
    whole = configured_input(Config(registration=registration, model=FoundingConfig(field_of_view="template")))
    assert whole == NetworkInput(2.0, None)
    assert whole.shape == (97, 115, 97)
    brain = configured_input(Config(registration=registration, model=FoundingConfig(pools=(3, 3, 2, 1))))
    assert brain.shape == (80, 98, 80)


@pytest.mark.parametrize(
    ("resolution", "pools"), [(1.0, (2, 3, 2, 3)), (2.0, (2, 3, 2, 3)), (2.0, (3, 3, 2, 1)), (2.0, (2, 2, 2, 2))]
)
def test_the_network_sees_the_brain(resolution, pools):
    template = load_template(resolution)
    box = covering_box(template, FoundingConfig(pools=pools))
    assert box.shape == tuple(seen_side(side, pools) for side in box.shape)
    assert template.brain_mask[box.slices].sum() >= 0.999 * template.brain_mask.sum()


def test_a_flip_mirrors_at_the_midline_to_half_a_voxel():
    for pools in ((2, 3, 2, 3), (3, 3, 2, 1)):
        box = covering_box(load_template(2.0), FoundingConfig(pools=pools))
        right = template_grid(2.0).shape[0] - box.start[0] - box.shape[0]
        assert abs(box.start[0] - right) <= 1


def write_scan(files, volume, mask, affine):
    for path, data in ((files.t1w, volume), (files.brain_mask, mask.astype(np.uint8))):
        path.parent.mkdir(parents=True, exist_ok=True)
        nib.save(nib.Nifti1Image(data, affine), path)


def test_reading_a_registered_scan(tmp_path, scan):
    volume, mask = scan
    files = ScanFiles(tmp_path, "sub-01", None, COARSE)
    spec = NetworkInput(COARSE, BOX)
    write_scan(files, volume, mask, template_grid(COARSE).affine)
    np.testing.assert_array_equal(read_network_volume(files, spec), to_network(volume, mask, spec))


def test_unreadable_scans_are_refused_by_name(tmp_path, scan):
    volume, mask = scan
    files = ScanFiles(tmp_path, "sub-01", "ses-1", COARSE)
    spec = NetworkInput(COARSE, BOX)
    with pytest.raises(BadInputError, match=files.t1w.name):
        read_network_volume(files, spec)
    write_scan(files, volume, mask, template_grid(COARSE).affine)
    files.t1w.write_bytes(files.t1w.read_bytes()[:5000])
    with pytest.raises(BadInputError, match=files.t1w.name):
        read_network_volume(files, spec)
    mirrored = template_grid(COARSE).affine @ np.diag([-1, 1, 1, 1])
    write_scan(files, volume, mask, mirrored)
    with pytest.raises(BadInputError, match=files.t1w.name):
        read_network_volume(files, spec)
    write_scan(files, np.zeros_like(volume), mask, template_grid(COARSE).affine)
    with pytest.raises(BadInputError, match=rf"{files.t1w.name}: all intensities"):
        read_network_volume(files, spec)


CPU = torch.device("cpu")
SPEC = NetworkInput(8.0, Box((2, 3, 1), (7, 9, 8)))


def register(root, names=("sub-1", "sub-2", "sub-3")):
    """Random scans at 8 mm, each with its own range of intensities."""
    grid, files = template_grid(8.0), [ScanFiles(root, name, None, 8.0) for name in names]
    for number, one in enumerate(files):
        values = np.random.default_rng(number).normal(100 * (number + 1), 10, grid.shape)
        one.t1w.parent.mkdir(parents=True)
        nib.Nifti1Image(values.astype(np.float32), grid.affine).to_filename(one.t1w)
        nib.Nifti1Image(np.ones(grid.shape, np.uint8), grid.affine).to_filename(one.brain_mask)
    return files


def test_a_batch_holds_what_the_network_sees_of_each_scan(tmp_path):
    files = register(tmp_path)
    volumes = keep_volumes(files, SPEC, tmp_path / "kept", CPU, threads=2)
    wanted = torch.from_numpy(np.stack([read_network_volume(one, SPEC)[None] for one in files])).half()
    assert volumes.shape == wanted.shape == (3, 1, 7, 9, 8)
    for chosen in (slice(1, 3), torch.tensor([2, 0, 0]), torch.tensor([True, False, True])):
        assert torch.equal(volumes[chosen], wanted[chosen])


def test_a_scan_is_read_once_until_it_changes(tmp_path, monkeypatch):
    files, read = register(tmp_path), []
    reads = kept_volumes.read_channels

    def counted(one, spec):
        read.append(one.participant_id)
        return reads(one, spec)

    monkeypatch.setattr(kept_volumes, "read_channels", counted)
    keep_volumes(files, SPEC, tmp_path / "kept", CPU, threads=1)
    keep_volumes(files[::-1], SPEC, tmp_path / "kept", CPU, threads=1)
    assert read == ["sub-1", "sub-2", "sub-3"]
    image = nib.Nifti1Image.from_filename(files[1].t1w)
    nib.Nifti1Image(1000 - image.get_fdata(dtype=np.float32), image.affine).to_filename(files[1].t1w)
    again = keep_volumes(files, SPEC, tmp_path / "kept", CPU, threads=1)
    assert read[3:] == ["sub-2"]
    assert torch.equal(again[1:2][0], torch.from_numpy(reads(files[1], SPEC)).half())
    binary = dataclasses.replace(SPEC, normalisation="binary-brain")
    assert keep_volumes(files, binary, tmp_path / "kept", CPU, threads=1)[:].min() == 1


def test_a_full_disk_leaves_no_part_of_a_file(tmp_path, monkeypatch):
    files = register(tmp_path)

    def full(path, content):
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(kept_volumes.Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        keep_volumes(files, SPEC, tmp_path / "kept", CPU, threads=2)
    assert not list((tmp_path / "kept").iterdir())
    monkeypatch.undo()
    keep_volumes(files, SPEC, tmp_path / "kept", CPU, threads=2)
    assert len(list((tmp_path / "kept").iterdir())) == 3
