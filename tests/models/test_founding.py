"""The founding network: its two forms, and what the layers of every network keep to."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.founding import FoundingCNN
from heatlas.pipeline.models.families.founding_family import FoundingConfig, output_shape, seen_side, smallest_side
from heatlas.pipeline.run.errors import BadInputError
from tests.models.explicit_matrices import matrix_of, product

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
