"""Networks that symbolic tracing does not follow: their operations come from one pass, by the same rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import heatlas
from heatlas.pipeline.attribution.graph.layers import TransposedConvolution
from heatlas.pipeline.attribution.lrp.relevance import lrp
from heatlas.pipeline.attribution.lrp.rules import Composite, EpsilonRule
from heatlas.pipeline.attribution.reference.deeplift import deeplift
from heatlas.pipeline.models.graph.exporting import exported
from heatlas.pipeline.models.graph.tracing import trace
from heatlas.pipeline.run.errors import UsageError

EXACT = EpsilonRule(0.0, bias=False)
LRP_0 = [Composite("lrp-0", EXACT, EXACT, EXACT, EXACT)]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Net(nn.Module):
    """A convolution, a function of its features, and a linear layer."""

    def __init__(self, function: Callable[[Tensor], Tensor], features: int = 4, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.function, self.conv = function, nn.Conv3d(1, 4, 3, bias=bias)
        self.other, self.norm = nn.Conv3d(4, 4, 1), nn.BatchNorm3d(4)
        self.head = nn.Linear(features, 2, bias=bias)
        self.double().eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(self.conv(x)))


def pooled(x: Tensor) -> Tensor:
    return x.mean((2, 3, 4))


def _shifted(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, 1:3, 2] += x[:, :2, 0]  # in place, in part
    return pooled(F.pad(torch.roll(x, (1, 2), (2, 4)), (1, 0, 2, 1), mode="constant"))


def _tokens(x: Tensor) -> Tensor:
    tokens = x.flatten(2).transpose(1, 2)
    for _ in range(len(tokens.shape) - 2):
        mask = torch.ones(27, 27, dtype=torch.bool).tril()
        tokens = tokens + F.scaled_dot_product_attention(tokens, tokens, F.normalize(tokens, dim=-1), attn_mask=mask)
    return torch.einsum("bnc,cd->bd", tokens, drawn(4, 4))


def _windows(x: Tensor) -> Tensor:
    """Cut into windows, which stand where the batch was."""
    parts = x[..., :2, :2].unfold(2, 2, 1).permute(2, 0, 1, 5, 3, 4).reshape(-1, 4, 2, 2, 2)
    return F.layer_norm(parts, parts.shape[1:]).reshape(2, 1, 4, -1).mean((0, 3))


def _scan(x: Tensor) -> Tensor:
    h, steps = torch.zeros_like(x[:, :, 0]), []
    for a in x.unbind(2):
        h = torch.exp(-a.abs()) * h + a * a.sigmoid()
        steps.append(h)
    return torch.stack(steps, 2).cumsum(2).sum((2, 3, 4))


def _variance(x: Tensor) -> Tensor:
    return pooled((x - x.mean(1, keepdim=True)) / torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-2))


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "in place": lambda x: pooled(F.hardswish(F.relu_(x) - 0.1, inplace=True)),
    "winners": lambda x: torch.maximum(x.amax((2, 3, 4)), x.flatten(2).max(-1)[0] - 1) - x.amin(-1).amin((2, 3)),
    "channel winners": lambda x: pooled(x * torch.sigmoid(x.max(1, keepdim=True)[0]) + x.amax(1, keepdim=True)),
    "shifted": _shifted,
    "tokens": _tokens,
    "windows": _windows,
    "scan": _scan,
    "variance": _variance,
    "padded": lambda x: pooled(F.avg_pool3d(F.pad(F.pad(x, (1,) * 6, "reflect"), (1,) * 6, value=0.5), 2)),
    "upsampled": lambda x: pooled(F.relu(F.interpolate(x, scale_factor=2, mode="trilinear")) ** 2),
    "lines": lambda x: F.max_pool1d(F.conv1d(x.flatten(2), drawn(4, 2, 3), groups=2, padding=1), 3, 2).mean(2),
    "slices": lambda x: F.avg_pool2d(F.conv2d(x[:, :, 1], drawn(4, 4, 2, 2)), 2).amax((2, 3)),
    "transposed": lambda x: pooled(F.relu(F.conv_transpose3d(x, drawn(4, 2, 3, 3, 3), None, 2, 1, 1, 2))),
    "where": lambda x: pooled(torch.where(torch.eye(3, dtype=torch.bool), x, x.clamp(-0.5, 0.5)).masked_fill(
        torch.eye(3, dtype=torch.bool), 0.1)),
}  # fmt: skip


def _all(functions: Iterable[Callable[[Tensor], Tensor]]) -> Callable[[Tensor], Tensor]:
    """The sum of several functions, which one export follows."""
    kept = list(functions)
    return lambda x: torch.stack([function(x.clone()) for function in kept]).sum(0)


def require_exact(network: Net) -> None:
    x, r = drawn(1, 1, 5, 5, 5, seed=1), drawn(1, 1, 5, 5, 5, seed=2)
    torch.testing.assert_close(exported(network, x).graph(x), network(x))
    network.misread = True
    values, explained, of_reference = deeplift(network, x, r, 1, "logit")
    torch.testing.assert_close(explained, network(x)[:, 1])
    torch.testing.assert_close(values.sum(), (explained - of_reference)[0], rtol=1e-6, atol=1e-9)
    (found,) = lrp(network, x, 1, LRP_0)
    assert float(found.values.abs().max()) > 0
    torch.testing.assert_close(found.ledger.residual, torch.zeros(1, dtype=torch.float64), rtol=0, atol=1e-6)


def test_an_exported_program_answers_as_the_network_and_its_maps_add_up() -> None:
    require_exact(Net(_all(FUNCTIONS.values())))


@pytest.mark.ci
@pytest.mark.parametrize("name", FUNCTIONS)
def test_so_does_each_function_alone(name: str) -> None:
    require_exact(Net(FUNCTIONS[name]))


BOTH_WAYS = (
    lambda x: pooled(torch.relu(x)),
    lambda x: torch.cat([pooled(torch.tanh(x)), F.max_pool3d(x, 2)[:, :, 0, 0, 0]], 1)[:, 2:6],
    lambda x: torch.softmax(x.flatten(2).transpose(1, 2) @ x.flatten(2), -1).mean(1)[:, :4],
)


def test_both_ways_to_the_operations_give_the_same_maps() -> None:
    network, x, r = Net(lambda x: x), drawn(1, 1, 5, 5, 5, seed=1), drawn(1, 1, 5, 5, 5, seed=2)
    network.function = lambda x: BOTH_WAYS[0](x) + BOTH_WAYS[1](x) + BOTH_WAYS[2](x)
    wanted = lrp(network, x, 1, LRP_0)[0].values, deeplift(network, x, r, 1)[0]
    network.misread = True
    torch.testing.assert_close((lrp(network, x, 1, LRP_0)[0].values, deeplift(network, x, r, 1)[0]), wanted)


LINEAR = (
    lambda x: pooled(F.conv_transpose3d(x, drawn(4, 2, 3, 3, 3), None, 2, 1, 1, 2)),
    lambda x: pooled(F.interpolate(x, size=(4, 5, 7), mode="trilinear")[..., :3]),
    lambda x: F.pad(x, (2, 1, 0, 1, 1, 1), "reflect").flatten(2).cumsum(2)[..., 5],
    lambda x: torch.einsum("bcdhw,ce->be", x.flip(2)[..., ::2], drawn(4, 4)),
)


def test_relevance_of_linear_operations_is_the_gradient_times_the_input() -> None:
    network, x = Net(_all(LINEAR), bias=False), drawn(1, 1, 5, 5, 5, seed=1).requires_grad_()
    (gradient,) = torch.autograd.grad(network(x)[0, 1], x)
    network.misread = True
    (found,) = lrp(network, x.detach(), 1, LRP_0)
    torch.testing.assert_close(found.values, (x * gradient).detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "settings", [((1, 2, 1), (0, 1, 0), (1, 1, 2), 1, (0, 1, 0)), ((2, 2, 3), (1, 0, 1), (1, 1, 1), 2, (1, 0, 2))]
)
def test_a_transposed_convolution_and_its_transpose_are_those_of_torch(settings) -> None:
    stride, padding, dilation, groups, extra = settings
    layer = nn.ConvTranspose3d(4, 6, (2, 3, 3), stride, padding, extra, groups, False, dilation).double()
    linear, x = TransposedConvolution(*settings), drawn(1, 4, 3, 4, 3).requires_grad_()
    weight = linear.by_output(layer.weight.detach())
    assert weight.shape[:2] == (6, 4 // groups)
    torch.testing.assert_close(linear.apply(x, weight), layer(x))
    y = drawn(*layer(x).shape, seed=1)
    (wanted,) = torch.autograd.grad(layer(x), x, y)
    torch.testing.assert_close(linear.transpose(y, weight, x.shape), wanted)


def test_the_winner_gets_all_relevance_and_a_gate_none() -> None:
    x = drawn(1, 1, 5, 5, 5, seed=1)
    winners = Net(FUNCTIONS["in place"])
    winners.function = lambda a: F.relu_(a).amax((2, 3, 4)) * torch.sigmoid(a.mean((2, 3, 4)))
    winners.conv = nn.Conv3d(1, 4, 1, bias=False).double().requires_grad_(False)
    (found,) = lrp(winners, x, 1, LRP_0)
    features = torch.relu(winners.conv(x)).flatten(2)
    places = {int(place) for place in features.argmax(2)[0] if float(features[0].max()) > 0}
    assert set(torch.nonzero(found.values.flatten()).flatten().tolist()) <= places


def test_layers_keep_their_names_and_weights_are_not_copied() -> None:
    network = Net(lambda x: pooled(F.relu_(x)))
    network.function = lambda x: pooled(F.relu_(network.norm(network.other(x))))
    program = exported(network, drawn(1, 1, 5, 5, 5))
    names = [operation.name for operation in program.operations if isinstance(operation.module, nn.Module)]
    assert names[:3] == ["conv", "other", "norm"]
    assert program.operations[0].module.weight is network.conv.weight
    again = exported(network, drawn(1, 1, 5, 5, 5, seed=4))
    assert again is program
    network.conv.weight.data.mul_(2)
    torch.testing.assert_close(program.graph(drawn(1, 1, 5, 5, 5)), network(drawn(1, 1, 5, 5, 5)))


def _outside(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy()).mean((2, 3, 4))


def require_refused(function: Callable[[Tensor], Tensor], words: str, methods: tuple[str, ...]) -> None:
    network, x = Net(function), drawn(5, 5, 5)
    for method in methods:
        with pytest.raises(UsageError, match=words) as caught:
            heatlas.explain(network, x, method, reference=[x])
        assert len(str(caught.value).splitlines()) == 1
        assert re.search("expected.gradients", str(caught.value))


def test_code_that_decides_by_values_is_refused_by_its_line_and_the_method_that_works_named() -> None:
    words = "decides by values, at test_exported_networks.py, line [0-9]+: "
    require_refused(lambda x: pooled(x) if x.sum() > 0 else pooled(-x), words, ("lrp",))


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: pooled(torch.fft.rfftn(x, dim=(2, 3, 4)).abs()), "fft_r2c"),
        (lambda x: x.flatten(2).sort(-1)[0][..., 0], "sort"),
        (lambda x: pooled((x > 0) * x), r"gt \(gt.Scalar\) has no rule"),
        (_outside, r"cannot be traced \("),
    ],
)
def test_an_operation_without_a_rule_is_named(function, words) -> None:
    require_refused(function, words, ("lrp", "deeplift"))


def test_a_batch_is_explained_one_by_one() -> None:
    network = Net(FUNCTIONS["in place"])
    network.misread = True
    with pytest.raises(UsageError, match="another way through its code"):
        lrp(network, drawn(2, 1, 5, 5, 5), 1, LRP_0)
    with pytest.raises(UsageError):
        trace(network)
