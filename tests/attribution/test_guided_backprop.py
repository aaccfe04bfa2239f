"""Guided backpropagation: a hand-made reference, its relation to the gradient, and what it shares with LRP."""

from __future__ import annotations

import pytest
import torch
from lrp_toys import lrp_beta, staged, toy_network, toy_volumes
from torch import nn

from heatlas.pipeline.attribution.gradient.guided_backprop import guided_backprop


def gradient(net: nn.Module, volumes: torch.Tensor, target: int) -> torch.Tensor:
    leaf = volumes.clone().requires_grad_()
    return torch.autograd.grad(net(leaf)[:, target].sum(), leaf)[0]


def test_equals_absolute_gradient_without_relu() -> None:
    net = nn.Sequential(*[m for m in toy_network() if not isinstance(m, nn.ReLU)]).eval()
    volumes = toy_volumes(signed=True)
    torch.testing.assert_close(guided_backprop(net, volumes, 1).values, gradient(net, volumes, 1).abs())


def test_two_layers_by_hand() -> None:
    """One voxel, three hidden units: active with positive gradient, active with negative gradient, inactive."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([[2.0], [5.0], [-7.0]]))
        net[1].bias.zero_()
        net[3].weight.copy_(torch.tensor([[0.0, 0.0, 0.0], [-3.0, -1.0, 1.0]]))
        net[3].bias.zero_()
    voxel = torch.ones(1, 1, 1, 1, 1)
    assert float(gradient(net, voxel, 1)) == -11
    assert float(guided_backprop(net, voxel, 1).values) == 0
    with torch.no_grad():
        net[3].weight[1, 0] = 3
    assert float(gradient(net, voxel, 1)) == 1
    assert float(guided_backprop(net, voxel, 1).values) == 6


def test_clamps_at_every_relu() -> None:
    """Against tensor hooks on every ReLU's input: the same rule, written as PyTorch users write it."""
    net, volumes = toy_network(), toy_volumes()
    leaf = volumes.clone().requires_grad_()
    a = leaf
    for module in net:
        if isinstance(module, nn.ReLU):
            a = torch.relu(a)
            a.register_hook(lambda grad: grad.clamp(min=0))
        else:
            a = module(a)
    expected = torch.autograd.grad(a[:, 1].sum(), leaf)[0].abs()
    answer = guided_backprop(net, volumes, 1)
    torch.testing.assert_close(answer.values, expected, rtol=1e-12, atol=0)
    assert float((expected - gradient(net, volumes, 1).abs()).abs().max()) > 1e-3, "clamping must matter here"
    assert float(answer.values.min()) >= 0


def test_batch_equals_single_volumes_and_stages_equal_sequential() -> None:
    net, volumes = toy_network(), toy_volumes(3)
    batch = guided_backprop(net, volumes, 2).values
    singles = torch.cat([guided_backprop(net, volumes[i : i + 1], 2).values for i in range(3)])
    torch.testing.assert_close(batch, singles, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(guided_backprop(staged(net), volumes, 2).values, batch, rtol=0, atol=0)


@pytest.mark.parametrize("start", ["logit", "probability"])
def test_explains_the_same_value_as_lrp(start: str) -> None:
    net, volumes = toy_network(), toy_volumes()
    guided = guided_backprop(net, volumes, 1, start)
    relevance = lrp_beta(net, volumes, 1, [0.0], start)[0.0]
    torch.testing.assert_close(guided.start_value, relevance.start_value, rtol=1e-12, atol=0)
    assert guided.target == relevance.target == 1
    assert not guided.values.requires_grad
    assert not guided.start_value.requires_grad


def test_works_inside_no_grad() -> None:
    net, volumes = toy_network(), toy_volumes()
    with torch.no_grad():
        inside = guided_backprop(net, volumes, 1).values
    assert torch.equal(inside, guided_backprop(net, volumes, 1).values)
