"""What enters a network, where it computes; the founding network and the vision transformer."""

from __future__ import annotations

import dataclasses
import errno
import warnings
from unittest import mock

import monai.networks.nets as nets
import nibabel as nib
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import heatlas
from heatlas.atlases.spaces import Box, template_grid
from heatlas.atlases.templates import load_template
from heatlas.pipeline.models import kept_volumes
from heatlas.pipeline.models.contract import StagedModel, attention_layers, kept_attention
from heatlas.pipeline.models.device import chosen_device, require_device
from heatlas.pipeline.models.families.founding import FoundingCNN
from heatlas.pipeline.models.families.founding_family import FoundingConfig, output_shape, seen_side, smallest_side
from heatlas.pipeline.models.families.monai import ViTConfig
from heatlas.pipeline.models.families.registry import FAMILIES, build_network
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
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import Config, RegistrationConfig, TrainingConfig
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from tests.models.explicit_matrices import matrix_of, product

# Scans as networks see them: values and channels, and scans kept uncompressed for training.

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


# Where networks run, and what is said where they cannot; no GPU is needed to see it.

OLD_DRIVER = (
    "CUDA initialization: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU "
    "driver by downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
)
"""What PyTorch 2.13 warns of, and then finds no GPU."""


@pytest.mark.parametrize(
    ("setting", "gpu", "expected"),
    [("auto", True, "cuda"), ("auto", False, "cpu"), ("cpu", True, "cpu"), ("cuda", False, "cuda")],
)
def test_device_is_the_one_asked_for_and_auto_takes_a_gpu(monkeypatch, setting, gpu, expected):
    """``cuda`` without a GPU stays ``cuda``: to fail says more than to be a hundred times slower."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert chosen_device(TrainingConfig(device=setting)) == torch.device(expected)


@pytest.mark.parametrize(
    ("built", "warning", "said"),
    [
        (None, "", r"this PyTorch was built without CUDA\. Install requirements-cuda\.lock"),
        (
            "13.0",
            OLD_DRIVER,
            r"The NVIDIA driver on your system is too old \(found version 11040\)\. Update the NVIDIA driver to one "
            r"for CUDA 13\.0",
        ),
        ("13.0", "", r"no usable GPU on this machine\. Set"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_refused_with_the_reason(monkeypatch, built, warning, said):
    def is_available() -> bool:
        if warning:
            warnings.warn(warning, UserWarning, stacklevel=2)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    monkeypatch.setattr(torch.version, "cuda", built)
    with pytest.raises(UsageError, match=rf'^training\.device = "cuda": {said}') as caught:
        require_device(TrainingConfig(device="cuda"))
    assert str(caught.value).endswith('"auto" or "cpu", or give the --executor whose workers have a GPU.')
    assert "\n" not in str(caught.value)
    require_device(TrainingConfig(device="auto"))
    require_device(TrainingConfig(device="cpu"))


def test_a_gpu_that_is_there_is_taken_without_a_word(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require_device(TrainingConfig(device="cuda"))


# The founding network: its two forms, and what the layers of every network keep to.

SHAPE = (23, 26, 24)
POOLS = (2, 1, 2, 1)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    return FoundingCNN(SHAPE, pools=POOLS).eval()


def test_a_network_is_the_composition_of_its_stages(model):
    block = ["Conv3d", "BatchNorm3d", "ReLU", "MaxPool3d"]
    head = ["Flatten", "Dropout", "Linear", "ReLU", "Dropout", "Linear"]
    layers = [layer for stage in model.stages for layer in stage]
    assert [type(layer).__name__ for layer in layers] == block * 4 + head
    x = torch.randn(2, 1, *SHAPE)
    a = x
    for layer in layers:
        a = layer(a)
    assert torch.equal(a, model(x))


def test_shared_and_in_place_modules_are_refused():
    relu = nn.ReLU()
    with pytest.raises(ValueError, match=r"stage 1\.1 \(ReLU\) is used twice"):
        StagedModel([nn.Sequential(nn.Linear(3, 3), relu), nn.Sequential(nn.Linear(3, 2), relu)])
    with pytest.raises(ValueError, match=r"stage 0\.1 \(ReLU\) works in place"):
        StagedModel([nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))])
    with pytest.raises(ValueError, match="at least one stage"):
        StagedModel([])


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def test_published_network():
    model = FoundingCNN((193, 229, 193))
    assert model.features == 5120
    assert parameters(model) == 728_898
    # By hand: conv (27 in + 1) out, batch norm 2 per channel, linear in x out + out.
    convolutions = 28 * 8 + (27 * 8 + 1) * 16 + (27 * 16 + 1) * 32 + (27 * 32 + 1) * 64
    assert parameters(model) == convolutions + 2 * (8 + 16 + 32 + 64) + 5120 * 128 + 128 + 128 * 2 + 2


def test_features_follow_the_brain_box():
    # 2 mm brain box: 78 -> 38 -> 12 -> 5 -> 1, 97 -> 47 -> 15 -> 6 -> 1, 83 -> 40 -> 12 -> 5 -> 1
    model = FoundingCNN((78, 97, 83))
    assert output_shape((78, 97, 83), (2, 3, 2, 3)) == (1, 1, 1)
    assert model.features == 64
    assert model.eval()(torch.zeros(1, 1, 78, 97, 83)).shape == (1, 2)


def test_every_layer_has_the_published_settings():
    model = FoundingCNN((79, 84, 80))
    convolutions = [layer for layer in model.modules() if isinstance(layer, nn.Conv3d)]
    assert [(c.in_channels, c.out_channels) for c in convolutions] == [(1, 8), (8, 16), (16, 32), (32, 64)]
    for c in convolutions:
        assert (c.kernel_size, c.stride, c.padding, c.groups) == ((3, 3, 3), (1, 1, 1), (0, 0, 0), 1)
        assert c.bias is not None
    pools = [layer for layer in model.modules() if isinstance(layer, nn.MaxPool3d)]
    assert [(p.kernel_size, p.stride, p.padding) for p in pools] == [(w, w, 0) for w in (2, 3, 2, 3)]
    assert [layer.p for layer in model.modules() if isinstance(layer, nn.Dropout)] == [0.4, 0.4]
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(64, 128), (128, 2)]


def test_training_has_the_outputs_and_gradients_of_the_published_order():
    # Only ReLU and max-pooling change places, which neither adds nor multiplies: not one bit may differ.
    torch.manual_seed(0)
    network = FoundingCNN((18, 20, 19), (3, 4), (2, 3), hidden_units=5, dropout=0.0).train()
    volumes, found = torch.rand(3, 1, 18, 20, 19), []
    for order in ("that of training", "as published"):
        x = volumes
        for stage in network.stages:
            for layer in stage if order == "that of training" else stage.children():
                x = layer(x)
        network.zero_grad()
        x.square().sum().backward()
        found.append([x, *(weight.grad.clone() for weight in network.parameters())])
    assert [type(layer) for layer in network.stages[0]][-2:] == [nn.MaxPool3d, nn.ReLU]
    assert [type(layer) for layer in network.eval().stages[0]][-2:] == [nn.ReLU, nn.MaxPool3d]
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
    part = network.train().stages[0][:3]  # a slice does not end with both layers
    assert [type(layer) for layer in part] == [type(layer) for layer in part.children()]


@given(
    shape=st.tuples(*[st.integers(9, 30)] * 3),
    pools=st.lists(st.integers(1, 3), min_size=1, max_size=3),
)
def test_output_shape_is_that_of_the_layers(shape, pools):
    if min(shape) < smallest_side(pools):
        with pytest.raises(BadInputError):
            output_shape(shape, pools)
        return
    x = torch.zeros(1, 1, *shape)
    for pool in pools:
        x = nn.functional.max_pool3d(nn.functional.conv3d(x, torch.zeros(1, 1, 3, 3, 3)), pool)
    assert tuple(x.shape[2:]) == output_shape(shape, pools)


def test_a_grid_too_small_is_refused_with_numbers():
    with pytest.raises(BadInputError, match=r"40x50x44 voxels .*block 4 receives 1x2x2 .*at least 78 voxels"):
        FoundingCNN((40, 50, 44))
    FoundingCNN((78, 78, 78))
    with pytest.raises(BadInputError, match="80x77x80"):
        FoundingCNN((80, 77, 80))


def test_unequal_lists_are_refused():
    with pytest.raises(ValueError, match="equally long"):
        FoundingCNN((80, 80, 80), channels=(8, 16), pools=(2, 3, 2))


def test_voxels_beyond_the_seen_shape_change_nothing_and_those_inside_can():
    shape, pools = (25, 31, 27), (2, 3, 1)
    torch.manual_seed(0)
    model = FoundingCNN(shape, (3, 4, 5), pools).eval()
    x = torch.randn(1, 1, *shape, requires_grad=True)
    windows = output_shape(shape, pools)
    a = x
    for layer in (
        one for stage in model.stages for one in stage
    ):  # mean instead of maximum, so that every voxel of a window counts
        if isinstance(layer, nn.Flatten):
            break
        if isinstance(layer, nn.MaxPool3d):
            layer = nn.AvgPool3d(layer.kernel_size)
        if not isinstance(layer, nn.ReLU):
            a = layer(a)
    assert tuple(a.shape[2:]) == windows
    (gradient,) = torch.autograd.grad(a.sum(), x)
    expected = torch.zeros(shape, dtype=torch.bool)
    expected[tuple(slice(seen_side(side, pools)) for side in shape)] = True
    assert torch.equal(gradient[0, 0] != 0, expected)


def test_without_biases_gradient_times_input_is_the_logit():
    """And the gradient is the product of the matrices of the layers; with biases neither holds."""
    shape, pools = (12, 13, 11), (2, 2)
    torch.manual_seed(1)
    model = FoundingCNN(shape, (3, 4), pools, 5, bias=False).double().eval()
    assert not [name for name, _ in model.named_parameters() if name.endswith("bias")]
    assert not [module for module in model.modules() if isinstance(module, nn.BatchNorm3d)]
    assert model.architecture.settings == FoundingConfig(channels=(3, 4), pools=pools, hidden_units=5, bias=False)
    x = torch.rand(1, 1, *shape, dtype=torch.float64, requires_grad=True)
    logits = model(x)
    torch.testing.assert_close(model(3 * x), 3 * logits, rtol=1e-12, atol=0)
    a, matrices = x.detach(), []
    for layer in (one for stage in model.stages for one in stage):
        if isinstance(layer, nn.ReLU):
            gate = (a > 0).double()
            matrices.append(matrix_of(lambda unit, gate=gate: gate * unit, a))
        elif isinstance(layer, nn.MaxPool3d):
            _, places = functional.max_pool3d(a, layer.kernel_size, return_indices=True)
            matrices.append(
                matrix_of(lambda unit, at=places: unit.flatten(2).gather(2, at.flatten(2)).view(at.shape), a)
            )
        elif isinstance(layer, nn.Conv3d | nn.Linear):
            matrices.append(matrix_of(layer, a))
        with torch.no_grad():
            a = layer(a)
    expected = product(matrices)
    for label in (0, 1):
        (gradient,) = torch.autograd.grad(logits[0, label], x, retain_graph=True)
        torch.testing.assert_close(gradient.flatten(), expected[label].detach(), rtol=0, atol=1e-12)
        assert (gradient * x).sum().item() == pytest.approx(logits[0, label].item(), rel=1e-10)
    usual = FoundingCNN(shape, (3, 4), pools, 5).double().eval()
    logit = usual(x)[0, 1]
    (gradient,) = torch.autograd.grad(logit, x)
    assert abs((gradient * x).sum().item() - logit.item()) > 0.01


# The vision transformer: MONAI's own computation, positions on other grids, and attention that can be read.

SETTINGS = ViTConfig(patch=4, dim=12, depth=3, heads=2)
VIT_SHAPE = (8, 12, 17)


class Rearrange(nn.Module):
    """The two patterns that MONAI's attention takes from einops, which is not among the packages here."""

    def __init__(self, pattern, qkv=1, l=1):  # noqa: E741
        super().__init__()
        self.splits, self.parts, self.heads = pattern == "b h (qkv l d) -> qkv b l h d", qkv, l

    def forward(self, x):
        if self.splits:
            return x.unflatten(2, (self.parts, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return x.permute(0, 2, 1, 3).flatten(2)


def of_monai(outputs=3):
    with mock.patch("monai.networks.blocks.selfattention.Rearrange", Rearrange):
        vit = nets.ViT(1, VIT_SHAPE, 4, 12, 48, 3, 2)
    return vit, nn.Linear(12, outputs)


def test_it_computes_what_monai_computes_from_the_same_seed():
    torch.manual_seed(1)
    ours = build_network(SETTINGS, VIT_SHAPE, 3).eval().double()
    torch.manual_seed(1)
    vit, head = of_monai()
    x = torch.rand(2, 1, *VIT_SHAPE, dtype=torch.float64)
    with torch.no_grad():
        expected = head.double()(vit.eval().double()(x)[0].mean(1))
        torch.testing.assert_close(ours(x), expected, rtol=1e-12, atol=1e-14)
        tokens = vit.patch_embedding(x)
        torch.testing.assert_close(ours.stages[0](x).flatten(2).transpose(1, 2), tokens, rtol=1e-12, atol=1e-14)


def test_all_weights_are_trained():
    model = build_network(SETTINGS, VIT_SHAPE, 2)
    model(torch.rand(2, 1, *VIT_SHAPE))[:, 1].sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_attention_is_kept_with_its_graph_and_the_network_stays_as_it_was():
    torch.manual_seed(0)
    model = build_network(SETTINGS, VIT_SHAPE, 2).eval()
    x = torch.rand(2, 1, *VIT_SHAPE)
    before = model(x)
    with kept_attention(model) as kept:
        logits = model(x)
    assert torch.equal(logits, before)
    assert [tuple(weights.shape) for weights in kept] == [(2, 2, 24, 24)] * 3
    for weights in kept:
        torch.testing.assert_close(weights.sum(3), torch.ones(2, 2, 24))
    gradients = torch.autograd.grad(logits[:, 1].sum(), kept)
    assert all(bool((gradient != 0).any()) for gradient in gradients)
    assert not any(layer._forward_pre_hooks for layer in attention_layers(model))


def test_what_fills_no_token_is_unseen_and_the_box_is_a_multiple_of_the_patch():
    family = FAMILIES["vit"]
    assert [family.seen_side(side, SETTINGS) for side in VIT_SHAPE] == [8, 12, 16]
    assert [family.covering_side(side, SETTINGS) for side in (3, 8, 9)] == [8, 8, 12]
    model = build_network(SETTINGS, VIT_SHAPE, 2).eval()
    x = torch.rand(1, 1, *VIT_SHAPE, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x)[0, 1], x)
    assert bool((gradient[..., :16] != 0).all())
    assert not bool(gradient[..., 16:].any())


def test_positions_are_interpolated_on_another_grid():
    model = build_network(SETTINGS, VIT_SHAPE, 2).eval()
    positions = model.stages[0][1]
    with torch.no_grad():
        positions.values.copy_(torch.arange(4.0).expand(1, 12, 2, 3, 4))  # grows along the last axis
        assert torch.equal(positions(torch.zeros(1, 12, 2, 3, 4)), positions.values)
        wide = positions(torch.zeros(1, 12, 2, 3, 8))[0, 0, 0, 0]
    assert wide.tolist() == [0.0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3.0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("dim = 10\nheads = 3", "model.dim must be a multiple of model.heads"),
        ("heads = 0", "model.heads must be 1 or more"),
        ("patch = 1", "model.patch must lie between 2 and 64"),
        ("depth = 0", "model.depth must lie between 1 and 64"),
        ("dropout = 1.0", "model.dropout must lie in"),
    ],
)
def test_settings_that_make_no_network_are_refused(tmp_path, settings, said):
    file = tmp_path / "vit.toml"
    file.write_text(f'[model]\narchitecture = "vit"\n{settings}\n')
    with pytest.raises(UsageError, match=said):
        load_config(file=file)


def test_a_grid_of_less_than_two_tokens_per_axis_is_refused():
    with pytest.raises(BadInputError, match=r"8x7x9 voxels is too small for vit.*least 8"):
        build_network(SETTINGS, (8, 7, 9), 2)


def test_a_run_asks_for_no_method_that_the_family_refuses():
    config = load_config(overrides={"model": {"architecture": "vit"}})
    assert not set(config.attribution.methods) & set(FAMILIES["vit"].refused)
    assert set(Config().attribution.methods) & set(FAMILIES["vit"].refused)


class Whole(nn.Module):
    """MONAI's transformer with the mean of its tokens classified."""

    def __init__(self, vit, head):
        super().__init__()
        self.vit, self.head = vit, head

    def forward(self, x):
        return self.head(self.vit(x)[0].mean(1))


@pytest.mark.parametrize("method", ["lrp", "deeplift"])
def test_its_rules_give_the_map_of_monais_own_modules(method):
    torch.manual_seed(1)
    ours = build_network(SETTINGS, VIT_SHAPE, 3).eval()
    torch.manual_seed(1)
    theirs = Whole(*of_monai()).eval()
    volume, controls = torch.rand(VIT_SHAPE), [torch.rand(VIT_SHAPE) for _ in range(2)]
    options = {"target": 1, "reference": controls if method == "deeplift" else ()}
    found, expected = (heatlas.explain(network, volume, method, **options) for network in (ours, theirs))
    ours, theirs = found.map.get_fdata(), expected.map.get_fdata()
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())
    if method == "deeplift":
        assert abs(found.missing) < 1e-5
