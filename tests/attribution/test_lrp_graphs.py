"""LRP through networks that are no chain: residual sums, concatenation, gates, average pooling, functional calls."""

from __future__ import annotations

from collections.abc import Callable

import monai.networks.nets as nets
import pytest
import torch
import torch.nn.functional as F
from lrp_toys import lrp_beta
from torch import Tensor, nn

from heatlas.pipeline.attribution.gradient.guided_backprop import guided_backprop
from heatlas.pipeline.attribution.lrp.composites import Composite, founding
from heatlas.pipeline.attribution.lrp.relevance import lrp
from heatlas.pipeline.attribution.lrp.rules import EpsilonRule
from heatlas.pipeline.run.errors import UsageError

ZERO = EpsilonRule(0.0)
LRP_0 = Composite("lrp-0", ZERO, ZERO, ZERO, ZERO)
"""In a ReLU network with its biases counted, LRP-0 is input times gradient."""


def shaken(model: nn.Module, seed: int = 0) -> nn.Module:
    """Float64, evaluation mode, and normalisation with statistics of its own (all gamma > 0)."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm3d):
            for tensor, low, high in ((module.running_mean, -0.2, 0.2), (module.running_var, 0.5, 2),
                                      (module.weight.data, 0.5, 1.5), (module.bias.data, -0.2, 0.3)):  # fmt: skip
                tensor.copy_(torch.rand(tensor.shape, generator=generator) * (high - low) + low)
    return model.double().eval()


def volumes(*sides: int) -> Tensor:
    x = torch.rand(2, 1, *sides, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x[:, :, :4] = 0
    return x


def gradient(model: nn.Module, x: Tensor, target: int) -> Tensor:
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(model(leaf)[:, target].sum(), leaf)[0]


class Functional(nn.Module):
    """Residual, dense and pooled by functions; a ReLU module used twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first = nn.Conv3d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm3d(4)
        self.relu = nn.ReLU()
        self.left = nn.Conv3d(4, 4, 3, padding=2, dilation=2, groups=2)
        self.right = nn.Conv3d(4, 3, 1, bias=False)
        self.head = nn.Linear(7 * 2 * 3 * 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        a = self.relu(self.norm(self.first(x)))
        a = F.max_pool3d(a, 2)
        b = F.relu(self.left(a) + a)
        c = torch.cat([b, self.relu(self.right(a))], dim=1)
        c = F.avg_pool3d(c, kernel_size=(2, 1, 3))
        return self.head(torch.flatten(c, 1))


class Gated(nn.Module):
    """Squeeze and excitation with functions; the gate can be held constant for a reference."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.conv = nn.Conv3d(1, 5, 3)
        self.squeeze = nn.Linear(5, 5)
        self.head = nn.Linear(5, 2)
        self.constant_gate = False

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.conv(x))
        gate = torch.sigmoid(self.squeeze(F.adaptive_avg_pool3d(a, 1).flatten(1)))
        if self.constant_gate:
            gate = gate.detach()
        a = a * gate.view(gate.size(0), gate.size(1), 1, 1, 1)
        return self.head(F.adaptive_avg_pool3d(a, 1).reshape(x.shape[0], -1))


NETWORKS = {
    "functional": (lambda: Functional(), (8, 6, 7)),
    "resnet10": (lambda: nets.resnet10(spatial_dims=3, n_input_channels=1, num_classes=3, widen_factor=0.1),
                 (17, 21, 19)),
    "resnet50": (lambda: nets.ResNet("bottleneck", [1, 1, 1, 1], [4, 4, 8, 8], 3, 1, num_classes=3), (17, 21, 19)),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_lrp_0_is_input_times_gradient(name: str) -> None:
    build, sides = NETWORKS[name]
    model, x = shaken(build()), volumes(*sides)
    (answer,) = lrp(model, x, 2, [LRP_0])
    expected = x * gradient(model, x, 2)
    assert float(expected.abs().max()) > 0
    torch.testing.assert_close(answer.values, expected, rtol=1e-9, atol=1e-11 * float(expected.abs().max()))
    assert float(answer.ledger.residual.abs().max()) < 1e-11


def test_a_gate_counts_as_a_constant() -> None:
    model, x = shaken(Gated()), volumes(7, 8, 9)
    (answer,) = lrp(model, x, 1, [LRP_0])
    model.constant_gate = True
    expected = x * gradient(model, x, 1)
    torch.testing.assert_close(answer.values, expected, rtol=1e-9, atol=1e-12)
    model.constant_gate = False
    assert not torch.allclose(answer.values, x * gradient(model, x, 1))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("build", "batch_norm"),
    [
        (lambda: nets.resnet10(spatial_dims=3, n_input_channels=1, num_classes=2, widen_factor=0.1), "fold"),
        (lambda: nets.DenseNet(3, 1, 2, init_features=6, growth_rate=3, block_config=(2, 2)), "identity"),
        (lambda: nets.SENet(3, 1, "se_resnet_bottleneck", [1, 1, 1, 1], 1, 4, None, 1, downsample_kernel_size=1,
                            num_classes=2, inplanes=16), "fold"),
    ],
    ids=["ResNet", "DenseNet", "SEResNet"],
)  # fmt: skip
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_networks_of_monai_are_accounted_for(build: object, batch_norm: str, beta: float) -> None:
    torch.manual_seed(2)
    model, x = shaken(build()), volumes(33, 37, 35)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    answer = lrp_beta(model, x, 1, [beta], batch_norm=batch_norm)[beta]
    assert float(answer.ledger.residual.abs().max()) < 1e-10 * max(1.0, float(answer.values.abs().sum()))
    if beta == 0:
        negative = answer.start_value < 0
        assert bool(((answer.values * torch.where(negative, -1, 1).view(-1, 1, 1, 1, 1)) >= 0).all())
    assert float(answer.values.abs().sum()) > 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(not module._forward_hooks for module in model.modules())


def test_a_normalisation_that_cannot_be_folded_is_refused() -> None:
    model = nets.DenseNet(3, 1, 2, init_features=6, growth_rate=3, block_config=(2, 2)).eval()
    with pytest.raises(UsageError, match=r"denselayer1.*norm1 \(BatchNorm3d\).*identity"):
        lrp(model, torch.rand(1, 1, 33, 33, 33), 0, [founding(0.0)], batch_norm="fold")


class Headed(nn.Module):
    """Four features made of two convolutions by a function, and a linear head."""

    def __init__(self, work: Callable[..., Tensor]) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.first, self.second, self.head = nn.Conv3d(1, 4, 3), nn.Conv3d(1, 4, 3), nn.LazyLinear(2)
        self.work = work

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.work(F.relu(self.first(x)), F.relu(self.second(x))).flatten(1))


@pytest.mark.parametrize(
    "work",
    [
        lambda a, b: torch.cat(tensors=(a, b), dim=1),
        lambda a, b: torch.add(a, b),
        lambda a, b: F.avg_pool3d(a, 2, divisor_override=3),
        lambda a, b: F.avg_pool3d(a, 3, 2, 1, True, False),
        lambda a, b: F.max_pool3d(a, 3, 2, 1, 1, True),
    ],
    ids=["cat by keyword", "torch.add", "divisor of one's own", "options of averages", "options of maxima"],
)
def test_functions_keep_their_options(work: Callable[..., Tensor]) -> None:
    model, x = Headed(work), volumes(7, 8, 9)
    model(x.float())
    model.double().eval()
    (answer,) = lrp(model, x, 1, [LRP_0])
    torch.testing.assert_close(answer.start_value, model(x)[:, 1])
    torch.testing.assert_close(answer.values, x * gradient(model, x, 1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("work", "name"),
    [
        (lambda a, b: a + F.adaptive_avg_pool3d(b, 1), "add"),
        (lambda a, b: F.adaptive_avg_pool3d(a, 1) * torch.sigmoid(b), "mul"),
    ],
)
def test_what_stretches_relevance_is_refused(work: Callable[..., Tensor], name: str) -> None:
    model, x = Headed(work), volumes(7, 8, 9)
    model(x.float())
    with pytest.raises(UsageError, match=rf"layer {name} makes .* broadcasting is not supported"):
        lrp(model.double().eval(), x, 1, [LRP_0])


def test_a_stage_that_leads_to_a_gate_only_has_no_relevance() -> None:
    with pytest.raises(UsageError, match="'squeeze' carries no relevance"):
        lrp(shaken(Gated()), volumes(7, 8, 9), 1, [LRP_0], stage="squeeze")


def test_guided_backpropagation_runs_through_the_same_graph() -> None:
    """Against hooks on a copy of the network in which every ReLU is a module of its own."""
    torch.manual_seed(3)
    model = shaken(nets.resnet10(spatial_dims=3, n_input_channels=1, num_classes=3, widen_factor=0.1))
    x = volumes(17, 21, 19)
    answer = guided_backprop(model, x, 0)
    relus = [module for module in model.modules() if isinstance(module, nn.ReLU)]
    for relu in relus:
        relu.inplace = False
    handles = [relu.register_full_backward_hook(lambda m, gi, go: (gi[0].clamp(min=0),)) for relu in relus]
    expected = gradient(model, x, 0).abs()
    for handle in handles:
        handle.remove()
    assert not torch.allclose(expected, gradient(model, x, 0).abs())
    torch.testing.assert_close(answer.values, expected, rtol=1e-9, atol=1e-12)


def test_relevance_at_a_stage_is_what_the_input_gets_more_finely() -> None:
    model, x = shaken(Functional()), volumes(8, 6, 7)
    (deep,) = lrp(model, x, 1, [founding(0.5)], stage="first")
    (at_input,) = lrp(model, x, 1, [founding(0.5)])
    assert deep.values.shape == (2, 4, 8, 6, 7)
    first = next(entry for entry in at_input.ledger.entries if entry.layer == "first")
    torch.testing.assert_close(deep.values.sum((1, 2, 3, 4)), first.relevance_in)
    assert float(deep.ledger.residual.abs().max()) < 1e-12
    with pytest.raises(UsageError, match="skip connection"):
        lrp(model, x, 1, [founding(0.5)], stage="left")
    with pytest.raises(UsageError, match="no such layer"):
        lrp(model, x, 1, [founding(0.5)], stage="middle")
