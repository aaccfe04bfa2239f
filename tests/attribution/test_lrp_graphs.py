"""LRP through networks that are no chain, and what attribution refuses, by name and before any work."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import monai.networks.nets as nets
import pytest
import torch
import torch.nn.functional as F
from lrp_toys import lrp_beta, staged, toy_network, toy_volumes
from model_snapshot import snapshot
from torch import Tensor, nn

from heatlas.pipeline.attribution.gradient.guided_backprop import guided_backprop
from heatlas.pipeline.attribution.graph.layers import scatter
from heatlas.pipeline.attribution.graph.planner import plan_relevance
from heatlas.pipeline.attribution.lrp.relevance import lrp
from heatlas.pipeline.attribution.lrp.rules import Composite, EpsilonRule, founding
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.run.errors import BadInputError, HeatlasError, UsageError

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


def with_layer(index: int, module: nn.Module) -> nn.Sequential:
    net = toy_network()
    net[index] = module.double().eval()
    return net


class TwiceReLU(nn.ReLU):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * torch.relu(x)


class Squared(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) ** 2


class ByValue(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if x.sum() > 0 else x


class ReadTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu = nn.Conv3d(1, 2, 3, padding=1), nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.conv(x)
        return self.relu(a) + a


class Block(nn.Module):
    """A convolution, and what a function makes of its output."""

    def __init__(self, work: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.conv, self.drop, self.relu = nn.Conv3d(1, 2, 3, padding=1), nn.Dropout(), nn.ReLU(inplace=True)
        self.norm, self.work = nn.BatchNorm1d(2), work

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.work(self, self.conv(x))


def train_norm(block: Block) -> Block:
    block.eval().norm.train()
    return block


class OwnForward(StagedModel):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -super().forward(x)


class Free(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


REFUSED: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
    "unknown layer": (lambda: with_layer(11, nn.Softmin(1)), ["layer 11", "Softmin", "ReLU"]),
    "nested unknown layer": (
        lambda: StagedModel([nn.Sequential(nn.Conv3d(1, 2, 3), nn.Sequential(nn.Softsign()))]).eval(),
        ["layer stages.0.1.0", "Softsign"],
    ),
    "local response normalisation": (
        lambda: with_layer(1, nn.LocalResponseNorm(3)),
        ["layer 1", "LocalResponseNorm", "expected-gradients"],
    ),
    "layer of one's own": (lambda: with_layer(2, TwiceReLU()), ["layer 2", "TwiceReLU"]),
    "block of one's own": (
        lambda: nn.Sequential(Squared(nn.ReLU()), *toy_network()).eval(),
        ["layer 0.pow_1 (pow)", "has no rule in this method"],
    ),
    "model of one's own": (lambda: OwnForward([staged(toy_network())]).eval(), ["layer neg (neg)"]),
    "a hook that changes what a layer gives": (lambda: hooked(toy_network()), ["layer 2 (ReLU)", "forward hook"]),
    "control flow": (lambda: ByValue(*toy_network()).eval(), ["model (ByValue)", "control flow"]),
    "in place on what others read": (
        lambda: nn.Sequential(ReadTwice(), *toy_network()).eval(),
        ["layer 0.relu (ReLU)", "in place", "inplace=False"],
    ),
    "in place as a statement": (  # the sum is a value of its own that nobody reads
        lambda: nn.Sequential(Block(lambda block, a: (a.add_(1), block.relu(a))[1]), *toy_network()).eval(),
        ["layer 0.add_ (add_)", "in place"],
    ),
    "in place on memory that others read": (  # in evaluation mode, dropout hands on what it was given
        lambda: nn.Sequential(Block(lambda block, a: block.relu(block.drop(a)) + a), *toy_network()).eval(),
        ["layer 0.relu (ReLU)", "in place", "inplace=False"],
    ),
    "window as large as the volume": (
        lambda: nn.Sequential(Block(lambda _, a: F.avg_pool3d(a, a.shape[2:])), nn.Flatten(), nn.Linear(2, 2)).eval(),
        ["layer 0.avg_pool3d (avg_pool3d)", "has no rule in this method"],
    ),
    "gate in training mode": (
        lambda: nn.Sequential(
            train_norm(Block(lambda block, a: a * torch.sigmoid(block.norm(a.mean((2, 3, 4)))).view(-1, 2, 1, 1, 1))),
            nn.Flatten().eval(),
        ),
        ["layer 0.norm (BatchNorm1d)", "training mode"],
    ),
    "no order of layers": (lambda: Free().eval(), ["model (Free)"]),
    "training mode": (lambda: toy_network().train(), ["layer 1 (BatchNorm3d)", "training mode", "eval()"]),
    "one layer in training mode": (lambda: train_dropout(toy_network()), ["layer 9 (Dropout)", "training mode"]),
    "circular padding": (
        lambda: with_layer(4, nn.Conv3d(4, 6, 3, padding=1, padding_mode="circular")),
        ["layer 4 (Conv3d)", "circular", "zeros"],
    ),
    "even kernel, padding same": (
        lambda: with_layer(4, nn.Conv3d(4, 6, 2, padding="same")),
        ["layer 4 (Conv3d)", "same", "odd kernel"],
    ),
    "normalising by the batch": (
        lambda: with_layer(1, nn.BatchNorm3d(4, track_running_stats=False)),
        ["layer 1 (BatchNorm3d)", "running statistics"],
    ),
    "pooling with indices": (
        lambda: with_layer(7, nn.MaxPool3d(2, return_indices=True)),
        ["layer 7", "return_indices"],
    ),
    "partial flattening": (lambda: with_layer(8, nn.Flatten(2)), ["layer 8 (Flatten)", "start_dim=1"]),
}


def hooked(net: nn.Sequential) -> nn.Sequential:
    net[2].register_forward_hook(lambda module, inputs, output: 2 * output)
    return net


def train_dropout(net: nn.Sequential) -> nn.Sequential:
    net[9].train()
    return net


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_models_by_name(name: str) -> None:
    build, words = REFUSED[name]
    model = build()
    for explain in (lambda: lrp_beta(model, toy_volumes(), 1, [0.0]), lambda: guided_backprop(model, toy_volumes(), 1)):
        with pytest.raises(UsageError) as caught:
            explain()
        for word in words:
            assert word in str(caught.value)


def test_refuses_to_fold_a_normalisation_that_follows_no_convolution() -> None:
    net = toy_network()
    late = nn.Sequential(net[0], net[2], net[1], *net[3:]).eval()
    with pytest.raises(UsageError, match=r"layer 2 \(BatchNorm3d\).*identity"):
        plan_relevance(late, "fold")
    answer = lrp_beta(late, toy_volumes(), 1, [0.5], batch_norm="identity")[0.5]
    assert float(answer.ledger.residual.abs().max()) < 1e-13


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"volumes": toy_volumes()[:, 0]}, BadInputError, "(batch, channel, D, H, W)"),
        ({"volumes": toy_volumes(0)}, BadInputError, "(batch, channel, D, H, W)"),
        ({"volumes": toy_volumes().expand(2, 2, 9, 13, 11)}, BadInputError, "layer 0 (Conv3d) takes (batch, 1,"),
        ({"volumes": toy_volumes()[..., :9]}, BadInputError, "layer 10 (Linear) takes 72 features but gets 48"),
        ({"volumes": toy_volumes()[:, :, :2]}, BadInputError, "layer 0 (Conv3d) needs at least (3, 3, 3) voxels"),
        ({"volumes": toy_volumes()[:, :, :4]}, BadInputError, "max-pooling after layer 0 needs at least (3, 3, 3)"),
        ({"volumes": toy_volumes().float()}, BadInputError, "0.weight is torch.float64"),
        ({"volumes": toy_volumes().half()}, BadInputError, "float16"),
        ({"volumes": torch.full((2, 1, 9, 13, 11), torch.nan).double()}, BadInputError, "volume 0 of the batch"),
        ({"target": 3}, UsageError, "target 3 does not exist: the model has outputs 0 to 2"),
        ({"target": -1}, UsageError, "target -1"),
        ({"start": "softmax"}, UsageError, "'logit', 'probability' and 'evidence'"),
        ({"betas": []}, UsageError, "at least one"),
        ({"betas": [0.5, float("inf")]}, UsageError, "finite"),
        ({"batch_norm": "merge"}, UsageError, "'fold' and 'identity'"),
    ],
)
def test_refuses_inputs_by_name(change: dict[str, Any], kind: type[HeatlasError], words: str) -> None:
    arguments: dict[str, Any] = {
        "volumes": toy_volumes(),
        "target": 1,
        "betas": [0.5],
        "start": "logit",
        "batch_norm": "fold",
    }
    with pytest.raises(kind) as caught:
        lrp_beta(toy_network(), **{**arguments, **change})
    assert words in str(caught.value)


def test_names_the_volume_that_is_not_finite() -> None:
    volumes = toy_volumes(3)
    volumes[1, 0, 4, 6, 5] = float("inf")
    with pytest.raises(BadInputError, match="volume 1 of the batch"):
        guided_backprop(toy_network(), volumes, 1)


def test_a_model_without_classes_is_refused() -> None:
    with pytest.raises(UsageError, match=r"\(batch, classes\)"):
        lrp_beta(nn.Sequential(nn.Conv3d(1, 2, 3)).double().eval(), toy_volumes(), 1, [0.0])


@pytest.mark.parametrize("fails", [False, True], ids=["after success", "after failure"])
def test_model_and_settings_are_left_as_they_were(fails: bool) -> None:
    """Parameters, buffers, gradients, modes, hooks, attributes, input, precision settings, the random state."""
    net, volumes = toy_network(), toy_volumes()
    net[0].weight.grad = torch.ones_like(net[0].weight)
    net[4].weight.requires_grad_(False)
    kept = volumes.clone()
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        before = snapshot(net)
        for explain in (
            lambda: lrp_beta(net, volumes, 9 if fails else 1, [0.0, 0.5]),
            lambda: guided_backprop(net, volumes, 9 if fails else 1),
        ):
            try:
                explain()
                assert not fails
            except UsageError:
                assert fails
            assert snapshot(net) == before
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    assert torch.equal(volumes, kept)
    assert not volumes.requires_grad


def test_works_in_float32_under_autocast() -> None:
    net, volumes = toy_network().float(), toy_volumes().float()
    plain = lrp_beta(net, volumes, 1, [0.5])[0.5].values
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = lrp_beta(net, volumes, 1, [0.5])[0.5].values
        guided = guided_backprop(net, volumes, 1).values
    assert torch.equal(inside, plain)
    assert torch.equal(guided, guided_backprop(net, volumes, 1).values)


def test_padding_same_and_valid_equal_their_numbers() -> None:
    volumes = toy_volumes()
    torch.manual_seed(4)
    head = nn.Linear(3 * 9 * 13 * 11, 2)
    same = nn.Sequential(nn.Conv3d(1, 3, (3, 1, 5), padding="same"), nn.Flatten(), head).double().eval()
    number = copy.deepcopy(same)
    number[0].padding = (1, 0, 2)
    for beta in (0.0, 0.5):
        assert torch.equal(
            lrp_beta(same, volumes, 1, [beta])[beta].values, lrp_beta(number, volumes, 1, [beta])[beta].values
        )
    valid = toy_network()
    valid[0].padding = "valid"
    assert torch.equal(
        lrp_beta(valid, volumes, 1, [0.5])[0.5].values, lrp_beta(toy_network(), volumes, 1, [0.5])[0.5].values
    )


def test_a_shared_relu_is_two_places() -> None:
    net, shared = toy_network(), toy_network()
    shared[6] = shared[11] = shared[2]
    for beta, answer in lrp_beta(shared, toy_volumes(), 1, [0.0, 0.5]).items():
        assert torch.equal(answer.values, lrp_beta(net, toy_volumes(), 1, [beta])[beta].values)


def test_overlapping_windows_add_up_at_a_common_winner() -> None:
    x = torch.zeros(1, 2, 3, 4, 5, dtype=torch.float64)
    x[0, 0, 1, 1, 2], x[0, 1, 2, 3, 4] = 5, 7
    pooled, winners = torch.nn.functional.max_pool3d(x, 2, 1, return_indices=True)
    back = scatter(torch.ones_like(pooled), winners, x.shape)
    assert float(back[0, 0, 1, 1, 2]) == 8  # an inner voxel lies in eight windows of 2x2x2
    assert float(back[0, 1, 2, 3, 4]) == 1  # a corner in one
    assert float(back.sum()) == pooled.numel()


class Viewed(nn.Module):
    """Expects its values as PyTorch lays them out in memory."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.first, self.second, self.head = nn.Conv3d(1, 4, 3), nn.Conv3d(4, 4, 3), nn.Linear(4 * 3 * 4 * 5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool3d(F.relu(self.first(x)), 2)
        return self.head(F.relu(self.second(x)).view(x.size(0), -1))


@pytest.mark.parametrize("count", [1, 2])
def test_maps_in_float32_of_a_network_that_views_its_values(count: int) -> None:
    net, x = Viewed().eval(), volumes(12, 14, 16)[:count]
    (answer,) = lrp(net, x.float(), 1, [founding(0.5)])
    (exact,) = lrp(net.double(), x, 1, [founding(0.5)])
    assert (answer.values - exact.values).abs().max() < 1e-4 * exact.values.abs().max()
