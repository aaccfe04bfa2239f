"""Where a feature was seen: receptive fields found by changing voxels, ramps brought back as ramps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from heatlas.pipeline.attribution.gradient.gradients import Gradient
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.network_view import explaining, open_parts
from heatlas.pipeline.attribution.upsampling import receptive_centres, to_input_grid
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.founding import FoundingCNN
from heatlas.pipeline.run.errors import UsageError

SIDES = (17, 23, 20)


def positive(layers: list[nn.Module]) -> nn.Sequential:
    """Weights above zero: a feature rises if and only if a voxel of its receptive field rises far enough."""
    net = nn.Sequential(*layers).double().eval()
    with torch.no_grad():
        for weights in net.parameters():
            weights.uniform_(0.5, 1)
    return net


def extents(net: nn.Module, axis: int) -> tuple[Tensor, Tensor]:
    """First and last position along an axis at which lighting a whole plane moves each feature of a central line."""
    planes = torch.zeros(SIDES[axis], 1, *SIDES, dtype=torch.float64)
    for position in range(SIDES[axis]):
        planes[position].select(axis + 1, position).fill_(1)
    with torch.no_grad():
        answers = net(planes).sum(1)
    others = [dim for dim in (1, 2, 3) if dim != axis + 1]
    seen = answers.amax(others) > net(torch.zeros_like(planes[:1])).sum(1).amax(others) + 1e-12
    numbers = torch.arange(SIDES[axis], dtype=torch.float64)[:, None]
    first = numbers.where(seen, torch.tensor(torch.inf, dtype=torch.float64)).amin(0)
    return first, numbers.where(seen, torch.tensor(-torch.inf, dtype=torch.float64)).amax(0)


NETS = {
    "stride": lambda: [nn.Conv3d(1, 2, 3, stride=(2, 3, 1), bias=False)],
    "dilation": lambda: [nn.Conv3d(1, 2, 3, dilation=(1, 2, 3), bias=False), nn.Conv3d(2, 2, (1, 2, 3), bias=False)],
    "padding": lambda: [nn.Conv3d(1, 2, 3, padding=1, bias=False), nn.Conv3d(2, 2, 5, 2, (2, 0, 1), bias=False)],
    "same": lambda: [nn.Conv3d(1, 2, (3, 4, 2), padding="same", dilation=(2, 1, 3), bias=False)],
    "valid": lambda: [nn.Conv3d(1, 2, (3, 4, 2), padding="valid", bias=False), nn.MaxPool3d(2)],
    "max-pooling": lambda: [nn.Conv3d(1, 2, 3, bias=False), nn.ReLU(), nn.MaxPool3d(3, stride=(1, 2, 3))],
    "padded pooling": lambda: [nn.MaxPool3d(3, stride=2, padding=1), nn.Conv3d(1, 1, 2, bias=False)],
    "dilated pooling": lambda: [nn.MaxPool3d(2, stride=1, dilation=3), nn.MaxPool3d((1, 2, 3))],
    "average pooling": lambda: [nn.AvgPool3d((2, 3, 4), (1, 2, 3)), nn.LeakyReLU(), nn.Conv3d(1, 1, 3, bias=False)],
    "blocks": lambda: [
        *(nn.Conv3d(1, 2, 3, bias=False), nn.ReLU(), nn.MaxPool3d(2)),
        *(nn.Conv3d(2, 2, 3, bias=False), nn.Dropout(), nn.Identity(), nn.MaxPool3d((2, 3, 2))),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
def test_centres_by_lighting_planes(name: str) -> None:
    """For features whose receptive field does not reach over the border."""
    net = positive(NETS[name]())
    for axis, (offset, step) in enumerate(receptive_centres(open_parts(net))):
        first, last = extents(net, axis)
        width = float((last - first).max())
        whole = (last - first) == width
        assert int(whole.sum()) >= 2
        place = offset + step * torch.arange(len(first), dtype=torch.float64)
        assert torch.equal(((first + last) / 2)[whole], place[whole])


def test_centres_by_single_voxels() -> None:
    """Every voxel of the volume on its own, each feature its box: nothing hidden by looking along one axis."""
    net = positive([nn.Conv3d(1, 1, (2, 3, 1), bias=False), nn.MaxPool3d(2, stride=(1, 2, 2)), nn.Conv3d(1, 1, 2)])
    sides = (6, 9, 7)
    voxels = torch.eye(6 * 9 * 7, dtype=torch.float64).view(-1, 1, *sides)
    with torch.no_grad():
        moved = (net(voxels) > net(torch.zeros_like(voxels[:1])) + 1e-12)[:, 0]
    centres = receptive_centres(open_parts(net))
    places = torch.cartesian_prod(*[torch.arange(side, dtype=torch.float64) for side in sides])
    for feature in torch.cartesian_prod(*[torch.arange(side) for side in moved.shape[1:]]).tolist():
        box = places[moved[:, feature[0], feature[1], feature[2]]]
        expected = [offset + step * number for (offset, step), number in zip(centres, feature, strict=True)]
        assert ((box.amin(0) + box.amax(0)) / 2).tolist() == expected


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=4),
)
@settings(max_examples=40, deadline=None)
def test_centres_of_any_chain_are_the_mean_of_the_gradient_support(chain: list[tuple[int, int, int]]) -> None:
    """Along the third axis: kernel, stride and dilation of unpadded convolutions."""
    net = nn.Sequential(
        *[
            nn.Conv3d(1, 1, (1, 1, kernel), stride=(1, 1, stride), dilation=(1, 1, dilation), bias=False)
            for kernel, stride, dilation in chain
        ]
    ).double()
    for weights in net.parameters():
        nn.init.constant_(weights, 1)
    side = 1
    for kernel, stride, dilation in reversed(chain):
        side = (side - 1) * stride + dilation * (kernel - 1) + 1
    line = torch.zeros(1, 1, 1, 1, side + 7, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(net(line).flatten()[0], line)
    support = gradient.flatten().nonzero().double()
    assert receptive_centres(open_parts(net))[2][0] == float(support.min() + support.max()) / 2


def staged(layers: list[nn.Module]) -> StagedModel:
    return StagedModel([nn.Sequential(*layers), nn.Sequential(nn.Flatten(), nn.LazyLinear(2))]).double().eval()


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_ramp_of_positions_comes_back(name: str, axis: int) -> None:
    """A map that says where its features are becomes the volume that says where its voxels are."""
    model = staged(NETS[name]())
    model(torch.zeros(1, 1, *SIDES, dtype=torch.float64))
    with explaining(model, torch.zeros(2, 1, *SIDES, dtype=torch.float64), 0, 1) as view:
        grid = view.features.shape[-3:]
        offset, step = receptive_centres(view.before)[axis]
        line = offset + step * torch.arange(grid[axis], dtype=torch.float64)
        ramp = line.view([-1 if dim == axis else 1 for dim in range(3)]).expand(2, 1, *grid)
        answer = to_input_grid(ramp, view)
    expected = torch.arange(SIDES[axis], dtype=torch.float64).clamp(float(line[0]), float(line[-1]))
    assert answer.shape == (2, 1, *SIDES)
    expected = expected.view([-1 if dim == axis else 1 for dim in range(3)]).expand(2, 1, *SIDES)
    torch.testing.assert_close(answer, expected, rtol=1e-13, atol=1e-12)


def test_one_feature_fills_the_volume() -> None:
    model = staged([nn.Conv3d(1, 1, SIDES)])
    model(torch.zeros(1, 1, *SIDES, dtype=torch.float64))
    with explaining(model, torch.ones(1, 1, *SIDES, dtype=torch.float64), 0, 1) as view:
        answer = to_input_grid(torch.full((1, 1, 1, 1, 1), 2.5, dtype=torch.float64), view)
    assert torch.equal(answer, torch.full((1, 1, *SIDES), 2.5, dtype=torch.float64))


def test_stretching_misplaces_the_founding_cnn_by_two_centimetres() -> None:
    """Founding CNN, 193x229x193: the true places of the last block's features, and those of a stretched map."""
    layers = [part for part in open_parts(FoundingCNN((193, 229, 193))) if part[0].split(".")[1] in "0123"]
    centres = receptive_centres(layers)
    assert centres == ((38.5, 36.0),) * 3
    errors = []
    for side, features, (offset, step) in zip((193, 229, 193), (4, 5, 4), centres, strict=True):
        numbers = torch.arange(features, dtype=torch.float64)
        stretched = (numbers + 0.5) * side / features - 0.5
        errors.append(float((stretched - offset - step * numbers).abs().max()))
        place = offset + step * numbers
        ramp = functional.interpolate(place[None, None], size=side, mode="linear", align_corners=False)[0, 0]
        inside = torch.arange(side, dtype=torch.float64).clamp(float(place[0]), float(place[-1]))
        assert float((ramp - inside).abs().max()) > 5
    assert errors == pytest.approx([21.875, 23.1, 21.875], abs=1e-4)


def test_planted_lesion_is_brought_back_to_its_place_and_stretched_away_from_it() -> None:
    """Centre of mass of the second block's features of one bright box, positive weights; one step is 6 voxels."""
    model = FoundingCNN((40, 47, 44), channels=(2, 2), pools=(2, 3), hidden_units=4).double().eval()
    with torch.no_grad():
        for stage in model.stages[:2]:
            stage[0].weight.fill_(1)
            stage[0].bias.zero_()
    lesion = (33, 15, 36)
    volume = torch.zeros(1, 1, 40, 47, 44, dtype=torch.float64)
    volume[0, 0, 31:36, 13:18, 34:39] = 1
    with explaining(model, volume, 0, 2) as view:
        answer = to_input_grid(view.features.sum(1, keepdim=True), view)[0, 0]
        at_layer = view.features.sum(1, keepdim=True)
    stretched = functional.interpolate(at_layer, size=volume.shape[-3:], mode="trilinear")[0, 0]

    def distance(values: Tensor) -> float:
        weights = values / values.sum()
        places = torch.cartesian_prod(*[torch.arange(side, dtype=torch.float64) for side in values.shape])
        centre = (weights.flatten()[:, None] * places).sum(0)
        return float((centre - torch.tensor(lesion, dtype=torch.float64)).norm())

    assert distance(answer) < 1.5
    assert distance(stretched) > 2 * distance(answer)


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (nn.AdaptiveAvgPool3d((3, 4, 2)), r"stages\.0\.1 \(AdaptiveAvgPool3d\)"),
        (nn.ConvTranspose3d(2, 2, 2), r"stages\.0\.1 \(ConvTranspose3d\)"),
        (nn.Upsample(scale_factor=2), r"stages\.0\.1 \(Upsample\)"),
    ],
)
def test_layer_of_unknown_geometry_is_refused_by_name(layer: nn.Module, name: str) -> None:
    """At its own grid the map remains available."""
    model = staged([nn.Conv3d(1, 2, 3), layer])
    x = torch.rand(1, 1, 8, 9, 7, dtype=torch.float64)
    model(x)
    with pytest.raises(UsageError, match=name):
        attribute(model, x, 0, Gradient(), 1)
    assert attribute(model, x, 0, Gradient(), 1, at_input_grid=False).values.shape[-3:] == model.stages[0](x).shape[-3:]
