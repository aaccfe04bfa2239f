"""What attribution refuses, by name and before any work; and that it leaves the model alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lrp_toys import lrp_beta, staged, toy_network, toy_volumes
from model_snapshot import snapshot
from torch import nn

from heatlas.pipeline.attribution.gradient.guided_backprop import guided_backprop
from heatlas.pipeline.attribution.graph.planner import plan_relevance
from heatlas.pipeline.attribution.graph.pooling import scatter
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.run.errors import BadInputError, HeatlasError, UsageError


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
)  # fmt: skip
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
