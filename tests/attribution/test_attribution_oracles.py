"""Comparison with independent libraries, where they are installed (they are no dependencies)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradient_toys import network, volumes
from lrp_toys import lrp_beta, plain_network, toy_network, toy_volumes
from reference_toys import branches, controls
from torch import Tensor, nn
from zennit_oracle import stub_torchvision, zennit_lrp_beta

from heatlas.pipeline.attribution.gradient.guided_backprop import guided_backprop
from heatlas.pipeline.attribution.gradient.paths import (
    ExpectedGradients,
    IntegratedGradientsFromMean,
    stratified_alphas,
)
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.network_view import start_values
from heatlas.pipeline.attribution.reference.deeplift import DeepLift

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("batch_norm", ["fold", "identity"])
@pytest.mark.parametrize("beta", [0.0, 0.25, 0.5, 1.0])
def test_lrp_beta_equals_zennit(beta: float, batch_norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense volume and no one-signed units: zennit loses the relevance of both kinds of unit."""
    stub_torchvision(monkeypatch)
    pytest.importorskip("zennit")
    torch.manual_seed(7)
    net = plain_network()
    with torch.no_grad():
        net[1].weight[1] *= -1
        net[5].weight[3] *= -1
    volumes = torch.rand(2, 1, 11, 14, 8, dtype=torch.float64)
    ours = lrp_beta(net, volumes, 1, [beta], batch_norm=batch_norm)[beta]
    assert float(ours.ledger.total("lost_no_contribution").abs().max()) == 0
    theirs = zennit_lrp_beta(net, volumes, 1, beta, batch_norm == "fold")
    torch.testing.assert_close(ours.values, theirs, rtol=0, atol=1e-9 * float(theirs.abs().max()))


def autolrp_map(net: nn.Module, volume: Tensor, beta: float) -> Tensor:
    """Map of LRP-beta from the logit by autoLRP, which follows the autograd graph and begins with 1."""
    autolrp = pytest.importorskip("autolrp")
    rule = ("alpha_beta", {"alpha": 1 + beta, "beta": beta})
    of_layers = dict.fromkeys(("ConvolutionBackward", "AddmmBackward", "MmBackward"), rule)
    given = autolrp.tensor(volume[None].clone())
    logit = net(given)[0, 1]
    logit.lrp(config=autolrp.LRPConfig(rule={**autolrp.BASE, **of_layers}, eps=1e-14))
    return torch.as_tensor(given.relevance.detach())[0] * float(logit.detach())


def convolutions(bias: bool, seed: int = 3) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = (nn.Conv3d(1, 4, 3, bias=bias), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(4, 6, 3, bias=bias), nn.ReLU(),
              nn.Flatten(), nn.Linear(6 * 2 * 4 * 1, 2, bias=bias))  # fmt: skip
    return nn.Sequential(*layers).double().eval()


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_lrp_beta_equals_autolrp_where_no_layer_has_a_bias(beta: float) -> None:
    net, volumes = convolutions(bias=False), torch.rand(2, 1, 11, 14, 8, dtype=torch.float64)
    found = lrp_beta(net, volumes, 1, [beta])[beta]
    theirs = torch.stack([autolrp_map(net, volume, beta) for volume in volumes])
    torch.testing.assert_close(found.values, theirs, rtol=0, atol=1e-9 * float(theirs.abs().max()))


def test_biases_keep_relevance_in_autolrp_and_none_here() -> None:
    """Of five such networks autoLRP's maps have 0.19, 0.22, 0.39, 0.28 and 0.61 of the logit."""
    net, (volume,) = convolutions(bias=True), torch.rand(1, 1, 11, 14, 8, dtype=torch.float64)
    logit = float(net(volume[None])[0, 1].detach())
    found = lrp_beta(net, volume[None], 1, [0.0])[0.0]
    assert float(found.values.sum()) == pytest.approx(logit)
    assert abs(float(autolrp_map(net, volume, 0.0).sum())) < 0.9 * abs(logit)


def test_guided_backprop_equals_captum() -> None:
    captum = pytest.importorskip("captum.attr")
    net, volumes = toy_network(), toy_volumes()
    net[6] = nn.ReLU()
    theirs = captum.GuidedBackprop(net).attribute(volumes.clone().requires_grad_(), target=1).abs().detach()
    torch.testing.assert_close(guided_backprop(net, volumes, 1).values, theirs, rtol=1e-12, atol=0)


TARGET = 1


def averaging(model: nn.Module) -> nn.Module:
    """With average pooling: over max-pooling captum's contributions miss their sum, which its own delta shows."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.MaxPool3d):
                setattr(module, name, nn.AvgPool3d(2))
            if isinstance(child, nn.AdaptiveMaxPool3d):
                setattr(module, name, nn.AdaptiveAvgPool3d(child.output_size))
    return model.eval()


both = pytest.mark.parametrize(
    "build",
    [lambda: averaging(network()), lambda: averaging(branches()), lambda: averaging(branches(nn.ELU))],
    ids=["stages", "relu", "elu"],
)


class Evidence(nn.Module):
    """The evidence as the one output of a network, which is what captum explains."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return start_values(self.model(x), TARGET, "evidence")[:, None]


def ours(model: nn.Module, method: Any) -> Tensor:
    return attribute(model, volumes(), TARGET, method, start="evidence").values


@both
def test_deeplift_equals_captum(build: Any) -> None:
    attr = pytest.importorskip("captum.attr")
    reference = controls()
    theirs = attr.DeepLift(Evidence(build())).attribute(volumes(), reference.mean.expand_as(volumes()), target=0)
    torch.testing.assert_close(ours(build(), DeepLift(reference)), theirs.detach(), rtol=1e-6, atol=1e-9)


@both
def test_deeplift_over_controls_equals_deeplift_shap(build: Any) -> None:
    attr = pytest.importorskip("captum.attr")
    reference = controls()
    theirs = attr.DeepLiftShap(Evidence(build())).attribute(volumes(), reference.volumes, target=0)
    torch.testing.assert_close(ours(build(), DeepLift(reference, "each")), theirs.detach(), rtol=1e-6, atol=1e-9)


@both
def test_integrated_gradients_from_the_mean_equal_captum(build: Any) -> None:
    attr = pytest.importorskip("captum.attr")
    reference = controls()
    theirs = attr.IntegratedGradients(Evidence(build())).attribute(
        volumes(), reference.mean, target=0, n_steps=16, method="riemann_middle"
    )
    found = ours(build(), IntegratedGradientsFromMean(reference, steps=16))
    torch.testing.assert_close(found, theirs.detach(), rtol=1e-6, atol=1e-9)


@both
def test_expected_gradients_equal_gradient_shap_at_the_same_points(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """captum draws baselines and points by numpy; here it gets ours, one control and its point after the other."""
    pytest.importorskip("captum.attr")
    import numpy as np
    from captum import attr

    reference, points = controls(), stratified_alphas(3, 1, seed=0)[:, 0]
    maps = []
    for volume in volumes():
        total = torch.zeros_like(volume)
        for control, alpha in zip(reference.volumes, points, strict=True):
            monkeypatch.setattr(np.random, "uniform", lambda *_, alpha=alpha, **__: np.array([float(alpha)]))
            shap = attr.GradientShap(Evidence(build()))
            total += shap.attribute(volume[None], control[None], n_samples=1, stdevs=0.0, target=0)[0] / 3
        maps.append(total)
    monkeypatch.undo()
    torch.testing.assert_close(
        ours(build(), ExpectedGradients(reference)), torch.stack(maps).detach(), rtol=1e-5, atol=1e-7
    )
