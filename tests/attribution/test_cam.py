"""The CAM family: identities, closed forms, definitions written out, and independent libraries."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from cam_oracle import FROZEN, LAYER, TARGET, TORCHCAM, oracle_network, oracle_volumes, torchcam_map
from cam_toys import HEADS, IDS, METHODS, SHAPE, STAGE, VOXELS, network, view, volumes
from hypothesis import given, settings
from hypothesis import strategies as st
from model_snapshot import snapshot
from torch import Tensor, nn
from torch.nn import functional

from heatlas.pipeline.attribution.cam.masked_volumes import AblationCam, OptiCam, ScoreCam
from heatlas.pipeline.attribution.cam.weighted_maps import (
    Cam,
    FakeCam,
    GradCam,
    GradCamPlusPlus,
    HiResCam,
    LayerCam,
    XGradCam,
    feature_gradient,
    grad_cam_plus_plus_weights,
    xgrad_cam_weights,
)
from heatlas.pipeline.attribution.gradient.gradients import Gradient
from heatlas.pipeline.attribution.methods import attribute, receptive_centres, to_input_grid
from heatlas.pipeline.attribution.network_view import explaining, open_parts
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.founding import FoundingCNN
from heatlas.pipeline.run.errors import UsageError

# CAM family: identities, closed forms, definitions written out; receptive fields and ramps on the way back.

LINEAR_HEADS = ("gap", "average", "conv")
SPACE = (2, 3, 4)


def maps(method: object, head: str, target: int = 1) -> Tensor:
    return attribute(network(head), volumes(), target, method, STAGE, at_input_grid=False).values


def distance(a: Tensor, b: Tensor) -> float:
    a, b = a.detach(), b.detach()
    return float((a - b).abs().max() / torch.maximum(a.abs().max(), b.abs().max()))


def head_row(net: nn.Sequential, target: int) -> tuple[Tensor, float]:
    layer = next(m for m in reversed(net) if hasattr(m, "weight"))
    return layer.weight[target].detach().flatten(), float(layer.bias[target].detach())


@pytest.mark.parametrize("head", LINEAR_HEADS)
@pytest.mark.parametrize("target", [0, 1, 2])
def test_cam_is_the_linear_head_voxel_by_voxel(head: str, target: int) -> None:
    net, row = network(head), head_row(network(head), target)
    features, cam = net[:STAGE](volumes()), maps(Cam(), head, target)
    for i, j, k in itertools.product(range(3), range(4), range(6)):
        torch.testing.assert_close(cam[:, 0, i, j, k], features[:, :, i, j, k] @ row[0], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(cam.mean(SPACE)[:, 0] + row[1], net(volumes())[:, target], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("head", LINEAR_HEADS)
@pytest.mark.parametrize("target", [0, 1, 2])
def test_identities_of_a_linear_head(head: str, target: int) -> None:
    expected = maps(Cam(), head, target).relu() / VOXELS
    assert float(expected.max()) > 1e-4
    for method in (GradCam(), XGradCam(), HiResCam()):
        assert distance(maps(method, head, target), expected) < 1e-12, method.name
    signed = maps(HiResCam(relu=False), head, target)
    assert distance(signed, maps(Cam(), head, target) / VOXELS) < 1e-12
    row, features = head_row(network(head), target)[0], network(head)[:STAGE](volumes())
    positive = torch.einsum("k,bkdhw->bdhw", row.relu(), features)[:, None] / VOXELS
    assert distance(maps(LayerCam(), head, target), positive) < 1e-12


def test_identities_hold_in_float32() -> None:
    net, x = network().float(), volumes().float()
    cam, *others = (attribute(net, x, 1, m, STAGE).values for m in (Cam(), GradCam(), XGradCam(), HiResCam()))
    assert cam.dtype == torch.float32
    low = attribute(net, x, 1, Cam(), STAGE, at_input_grid=False).values
    for method, other in zip((GradCam(), XGradCam(), HiResCam()), others, strict=True):
        at_layer = attribute(net, x, 1, method, STAGE, at_input_grid=False).values
        assert distance(at_layer, low.relu() / VOXELS) < 1e-6
        assert other.shape == (3, 1, *SHAPE)


@pytest.mark.parametrize("head", ["attention", "mlp", "dense"])
def test_identities_fail_where_the_head_looks_at_places(head: str) -> None:
    grad, xgrad, hires = (maps(method, head) for method in (GradCam(), XGradCam(), HiResCam()))
    for one, other in itertools.combinations((grad, xgrad, hires), 2):
        assert distance(one, other) > 0.02


@pytest.mark.parametrize(("head", "named"), [("attention", "AttentionPool"), ("mlp", "ReLU"), ("dense", "Linear")])
def test_cam_refuses_other_heads_by_name(head: str, named: str) -> None:
    with pytest.raises(UsageError, match=f"cam needs global average pooling.*{named}.*grad-cam"):
        maps(Cam(), head)


def test_cam_refuses_a_relu_before_the_pooling_and_a_partial_pooling() -> None:
    with pytest.raises(UsageError, match=r"4 \(ReLU\)"):
        attribute(network(), volumes(), 1, Cam(), STAGE - 1)
    partial = nn.Sequential(*network()[:STAGE], nn.AvgPool3d((3, 4, 3)), nn.Flatten(), nn.Linear(12, 3).double())
    with pytest.raises(UsageError, match="cam needs global average pooling"):
        attribute(partial.eval(), volumes(), 1, Cam(), STAGE)


def test_gradient_of_attention_pooling_is_its_closed_form() -> None:
    """``a_i (w + (s_i - sum_j a_j s_j) q / sqrt(d))`` with ``s_i = w . A_i``."""
    net = network("attention")
    pool, row = net[STAGE], head_row(net, 1)[0]
    with explaining(net, volumes(), 1, STAGE) as opened:
        gradient = feature_gradient(opened).flatten(2)
        A = opened.features
    a, s = pool.attention(A).detach()[:, None], torch.einsum("k,bkn->bn", row, A.flatten(2))[:, None]
    centred = s - (a * s).sum(2, keepdim=True)
    expected = a * (row[None, :, None] + centred * pool.query.detach()[None, :, None] / 6**0.5)
    torch.testing.assert_close(gradient, expected, rtol=1e-11, atol=1e-15)


def test_closed_forms_on_a_linear_model() -> None:
    """A dense layer on the features: the gradient is its row, so every map is arithmetic, here in plain loops."""
    net = network("dense")
    A = net[:STAGE](volumes()).detach()
    g = net[-1].weight[1].detach().view(6, 3, 4, 6)
    for b in range(3):
        grad, xgrad, layer, hires = (torch.zeros(3, 4, 6, dtype=torch.float64) for _ in range(4))
        for k in range(6):
            grad += g[k].mean() * A[b, k]
            xgrad += (A[b, k] * g[k]).sum() / A[b, k].sum() * A[b, k] if A[b, k].sum() > 0 else 0
            layer += g[k].clamp(min=0) * A[b, k]
            hires += g[k] * A[b, k]
        for method, expected in ((GradCam(), grad), (XGradCam(), xgrad), (LayerCam(), layer), (HiResCam(), hires)):
            torch.testing.assert_close(maps(method, "dense")[b, 0], expected.clamp(min=0), rtol=1e-11, atol=1e-14)
        bias = net[-1].bias[1].detach()
        torch.testing.assert_close(hires.sum() + bias, net(volumes())[b, 1].detach(), rtol=1e-12, atol=0)
    assert float(maps(HiResCam(relu=False), "dense").min()) < 0


def test_grad_cam_plus_plus_is_the_published_ratio_of_derivatives() -> None:
    """Second and third derivatives of exp(y) by autograd, one voxel at a time, for a score linear in the features."""
    torch.manual_seed(3)
    A = torch.rand(1, 2, 2, 1, 3, dtype=torch.float64).requires_grad_()
    row = torch.randn_like(A)
    Y = torch.exp((A * row).sum())
    (first,) = torch.autograd.grad(Y, A, create_graph=True)
    expected = torch.zeros(1, 2, dtype=torch.float64)
    for k, i, j in itertools.product(range(2), range(2), range(3)):
        at = (0, k, i, 0, j)
        second = torch.autograd.grad(first[at], A, create_graph=True)[0][at]
        third = torch.autograd.grad(second, A, retain_graph=True)[0][at]
        alpha = second / (2 * second + A[0, k].sum() * third)
        expected[0, k] += (alpha * first[at].relu()).detach()
    gradient = row  # of the score itself
    ours = grad_cam_plus_plus_weights(A.detach(), gradient) * Y.detach()
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=0)


def test_grad_cam_plus_plus_does_not_overflow() -> None:
    """exp(y) of this logit is infinite in float32; so is g^3."""
    features, gradient = torch.ones(1, 1, 1, 1, 2), torch.full((1, 1, 1, 1, 2), 1e15)
    torch.testing.assert_close(grad_cam_plus_plus_weights(features, gradient), torch.tensor([[1.0]]))


def test_xgrad_cam_weight_is_a_mean_of_gradients_where_the_channel_is_active() -> None:
    with view("dense") as opened:
        g = feature_gradient(opened)
        weights = xgrad_cam_weights(opened.features, g)
        active = opened.features > 0
        low = torch.where(active, g, math.inf).amin(SPACE)
        high = torch.where(active, g, -math.inf).amax(SPACE)
    alive = active.any(4).any(3).any(2)
    assert bool(((weights >= low - 1e-15) & (weights <= high + 1e-15))[alive].all())
    assert int(alive.sum()) > 6


def test_planted_place_is_found_voxel_by_voxel_but_spread_by_the_mean() -> None:
    """A head that reads channel 2 in one corner only: Layer-CAM and HiRes-CAM stay there, Grad-CAM does not."""
    net = network("dense")
    with torch.no_grad():
        net[-1].weight.zero_()
        net[-1].weight.view(3, 6, 3, 4, 6)[1, 2, 2, :, :2] = 1
    x = volumes()
    A = net[:STAGE](x).detach()[:, 2]
    outside = torch.ones(3, 4, 6, dtype=torch.bool)
    outside[2, :, :2] = False
    assert float(A[:, ~outside].max()) > 0
    for method in (LayerCam(), HiResCam()):
        found = attribute(net, x, 1, method, STAGE, at_input_grid=False).values[:, 0]
        torch.testing.assert_close(found, A * ~outside, rtol=1e-12, atol=0)
    spread = attribute(net, x, 1, GradCam(), STAGE, at_input_grid=False).values[:, 0]
    torch.testing.assert_close(spread, A * 8 / VOXELS, rtol=1e-12, atol=0)
    assert float(spread[:, outside].sum()) > float(spread[:, ~outside].sum())


@pytest.mark.parametrize("method", METHODS, ids=IDS)
def test_batch_equals_single_volumes(method: object) -> None:
    net, x = network(), volumes()
    batch = attribute(net, x, 1, method, STAGE).values
    singles = torch.cat([attribute(net, x[i : i + 1], 1, method, STAGE).values for i in range(3)])
    assert batch.shape == (3, 1, *SHAPE)
    torch.testing.assert_close(batch, singles, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("method", METHODS, ids=IDS)
@pytest.mark.parametrize("kind", ["dead features", "constant features", "empty volume"])
def test_nothing_to_see_gives_numbers(method: object, kind: str) -> None:
    net, x = network(), volumes()
    if kind == "empty volume":
        x = torch.zeros_like(x)
    else:
        with torch.no_grad():
            net[3].weight.zero_()
            net[3].bias.fill_(-1 if kind == "dead features" else 0.7)
    found = attribute(net, x, 1, method, STAGE).values
    assert bool(torch.isfinite(found).all())
    if kind == "dead features" and not isinstance(method, FakeCam):
        assert float(found.abs().max()) == 0
    if kind == "constant features" and not isinstance(method, FakeCam):
        assert float(found.max() - found.min()) < 1e-12


@pytest.mark.parametrize("method", METHODS, ids=IDS)
def test_model_is_left_as_it_was(method: object) -> None:
    net, x = network(), volumes()
    net[0].weight.requires_grad_(False)
    before, kept = snapshot(net), x.clone()
    attribution = attribute(net, x, 1, method, STAGE)
    assert snapshot(net) == before
    assert torch.equal(x, kept)
    assert not x.requires_grad
    assert not attribution.values.requires_grad
    assert attribution.method == method.name


class Tired(nn.Module):
    """Passes its input on for some calls, then fails."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = [0, 10**9]  # made, allowed

    def forward(self, a: Tensor) -> Tensor:
        self.calls[0] += 1
        if self.calls[0] > self.calls[1]:
            raise RuntimeError("tired")
        return a


@pytest.mark.parametrize("method", [m for m in METHODS if not isinstance(m, Cam | FakeCam)])
def test_model_is_left_as_it_was_after_an_exception(method: object) -> None:
    tired = Tired()
    net = nn.Sequential(*network()[:STAGE], tired, *network()[STAGE:]).eval()
    before = snapshot(net)
    with explaining(net, volumes(), 1, STAGE) as opened:
        more = 2 if isinstance(method, ScoreCam | AblationCam | OptiCam) else 0
        tired.calls[1] = tired.calls[0] + more
        with pytest.raises(RuntimeError, match="tired"):
            method.maps(opened)
    assert snapshot(net) == before
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("method", METHODS, ids=IDS)
def test_same_map_inside_no_grad_and_with_frozen_weights(method: object) -> None:
    net, x = network("gap"), volumes()
    plain = attribute(net, x, 1, method, STAGE).values
    with torch.no_grad():
        inside = attribute(net.requires_grad_(False), x, 1, method, STAGE).values
    assert torch.equal(plain, inside)


@pytest.mark.parametrize("method", [m for m in METHODS if not isinstance(m, FakeCam)])
def test_another_target_has_another_map(method: object) -> None:
    assert distance(maps(method, "gap", 0), maps(method, "gap", 2)) > 1e-3


def test_probability_start_scales_grad_cam_where_one_class_is_left() -> None:
    """With two classes dp1/dA = p1 p0 (dy1/dA - dy0/dA)."""
    net = network("dense")
    net[-1] = nn.Linear(6 * VOXELS, 2).double().eval()
    x = volumes()
    p = torch.softmax(net(x), 1).detach()
    row = (net[-1].weight[1] - net[-1].weight[0]).detach().view(6, 3, 4, 6)
    expected = torch.einsum("k,bkdhw->bdhw", row.mean((1, 2, 3)), net[:STAGE](x).detach()).relu() * p.prod(1).view(
        3, 1, 1, 1
    )
    ours = attribute(net, x, 1, GradCam(), STAGE, start="probability", at_input_grid=False).values
    assert float(expected.max()) > 0
    torch.testing.assert_close(ours[:, 0], expected, rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("method", [Cam(), GradCamPlusPlus()])
def test_formulas_of_the_logit_refuse_the_probability(method: object) -> None:
    with pytest.raises(UsageError, match="logit"):
        attribute(network(), volumes(), 1, method, STAGE, start="probability")


WEIGHT_PER_CHANNEL = [Cam(), GradCam(), GradCamPlusPlus(), XGradCam(), ScoreCam(), AblationCam(), OptiCam()]


@pytest.mark.parametrize("method", WEIGHT_PER_CHANNEL, ids=lambda method: method.name)
def test_a_weight_per_channel_is_refused_at_the_one_channel_input(method: object) -> None:
    with pytest.raises(UsageError, match=re.escape(method.name) + ".* one channel"):
        attribute(network(), volumes(), 1, method, 0)


def test_voxelwise_methods_work_at_the_input() -> None:
    net, x = network(), volumes()
    leaf = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(net(leaf)[:, 1].sum(), leaf)
    torch.testing.assert_close(attribute(net, x, 1, HiResCam(relu=False)).values, g * x, rtol=1e-12, atol=0)
    torch.testing.assert_close(attribute(net, x, 1, LayerCam()).values, g.clamp(min=0) * x, rtol=1e-12, atol=0)


@pytest.mark.parametrize("method", METHODS, ids=IDS)
def test_flattened_features_are_refused(method: object) -> None:
    net = nn.Sequential(*network("dense"), nn.Linear(3, 2).double()).eval()
    with pytest.raises(UsageError, match=r"\(3, 3\) has no voxels"):
        attribute(net, volumes(), 1, method, 7)


@pytest.mark.parametrize("method", [GradCamPlusPlus(), XGradCam(), OptiCam()])
def test_features_below_zero_are_refused_by_layer(method: object) -> None:
    with pytest.raises(UsageError, match="non-negative features, but 3 gives -"):
        attribute(network(), volumes(), 1, method, STAGE - 1)


@pytest.mark.parametrize("head", HEADS)
def test_fake_cam_looks_at_nothing(head: str) -> None:
    expected = torch.ones(3, 1, *SHAPE, dtype=torch.float64)
    expected[:, 0, 0, 0, 0] = 0
    for target in (0, 2):
        assert torch.equal(attribute(network(head), volumes(seed=target), target, FakeCam()).values, expected)


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
}


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


# CAM methods against independent libraries: torchcam and captum live, and torchcam's maps frozen in float64.
#
# Grad-CAM++ is not among them: torchcam and MONAI put other sums into eq. 19 (see `test_cam`), and disagree.

OURS: dict[str, Any] = {"GradCAM": GradCam(), "XGradCAM": XGradCam(), "LayerCAM": LayerCam(), "ScoreCAM": ScoreCam()}
GUARDED = ("XGradCAM", "ScoreCAM")
"""Here torchcam adds 1e-8 to what it divides by."""


def close(ours: Tensor, theirs: Tensor, relative: float) -> None:
    assert float(theirs.max()) > 1e-4
    torch.testing.assert_close(ours, theirs, rtol=0, atol=relative * float(theirs.abs().max()))


@pytest.mark.parametrize("method", TORCHCAM)
def test_equals_frozen_torchcam(method: str) -> None:
    with np.load(FROZEN, allow_pickle=False) as frozen:
        arrays = {name: torch.from_numpy(frozen[name]) for name in frozen.files}
    net = oracle_network()
    net.load_state_dict({name: arrays[f"weights_{name}"] for name in net.state_dict()})
    ours = attribute(net, arrays["volumes"], TARGET, OURS[method], LAYER)
    close(ours.values, arrays[method], 1e-7 if method in GUARDED else 1e-12)


def test_frozen_methods_are_different_maps() -> None:
    with np.load(FROZEN, allow_pickle=False) as frozen:
        maps = [frozen[method] / frozen[method].max() for method in TORCHCAM]
    assert min(np.abs(a - b).max() for i, a in enumerate(maps) for b in maps[:i]) > 0.05


@pytest.mark.oracle
@pytest.mark.parametrize("method", TORCHCAM)
@pytest.mark.parametrize("target", [0, 1])
def test_equals_torchcam(method: str, target: int) -> None:
    pytest.importorskip("torchcam", reason="pip install --no-deps torchcam==0.5.0")
    net, x = oracle_network(), oracle_volumes()
    ours = attribute(net, x, target, OURS[method], LAYER).values
    close(ours, torchcam_map(method, net, x, target), 1e-7 if method in GUARDED else 1e-12)


@pytest.mark.oracle
@pytest.mark.parametrize("head", ["gap", "mlp", "attention", "dense"])
@pytest.mark.parametrize("target", [0, 1, 2])
def test_grad_cam_equals_captum_for_every_head(head: str, target: int) -> None:
    captum = pytest.importorskip("captum.attr", reason="pip install --no-deps captum")
    net, x = network(head), volumes()
    theirs = captum.LayerGradCam(net, net[STAGE - 1]).attribute(x, target, relu_attributions=True).detach()
    ours = attribute(net, x, target, GradCam(), STAGE, at_input_grid=False).values
    close(ours, theirs, 1e-12)
