"""Products within networks: LRP through attention, DeepLIFT, and transposed convolutions."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv3d_input

import heatlas
from heatlas.pipeline.attribution.graph.layers import Convolution
from heatlas.pipeline.attribution.lrp.propagation import product_relevance, softmax_relevance
from heatlas.pipeline.attribution.lrp.relevance import Lrp, lrp
from heatlas.pipeline.attribution.lrp.rules import BetaRule, Composite, EpsilonRule
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.reference.deeplift import Multiplied, deeplift, multiplied, normalised, softmax
from heatlas.pipeline.run.errors import UsageError

# LRP through attention (AttnLRP), against Jacobians, loops, and a network whose gradient is the relevance.

EXACT = EpsilonRule(0.0, bias=False)
"""LRP-0 that leaves biases out."""
BY_GRADIENT = Composite("lrp-0", EXACT, EXACT, EXACT, EXACT)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def test_a_softmax_hands_back_its_jacobian_times_its_input():
    x, relevance = drawn(2, 3, 5), drawn(2, 3, 5)
    s = torch.softmax(x, 2)
    found = softmax_relevance(x, s, relevance, 2)
    for row in range(2):
        for head in range(3):
            jacobian = torch.autograd.functional.jacobian(lambda a: torch.softmax(a, 0), x[row, head])
            wanted = x[row, head] * (jacobian.T @ (relevance / s)[row, head])
            torch.testing.assert_close(found[row, head], wanted)


def test_a_masked_score_gets_no_relevance():
    x = torch.tensor([0.5, float("-inf"), 2.0], dtype=torch.float64)
    found = softmax_relevance(x, torch.softmax(x, 0), torch.ones(3, dtype=torch.float64), 0)
    assert found[1] == 0
    assert torch.isfinite(found).all()


def test_a_product_of_matrices_gives_each_factor_half_in_proportion():
    a, v, relevance = drawn(3, 4).requires_grad_(), drawn(4, 2).requires_grad_(), drawn(3, 2)
    product = a @ v
    to_a, to_v = product_relevance(product, (a, v), relevance / product.detach())
    for j in range(3):
        for i in range(4):
            shares = [a[j, i] * v[i, p] * relevance[j, p] / (2 * product[j, p]) for p in range(2)]
            assert float(to_a[j, i].detach()) == pytest.approx(float(sum(shares).detach()))
    assert float(to_a.sum()) == pytest.approx(float(relevance.sum()) / 2)
    assert float(to_v.sum()) == pytest.approx(float(relevance.sum()) / 2)


class Transformer(nn.Module):
    """One block before and one after; written as much code is. With `surrogate`, its gradient times input is AttnLRP.

    Bach et al. 2015 for LRP-0 as gradient times input; each operation whose rule is another is replaced by one of the
    same value, whose gradient is that rule (as Achtibat et al. 2024 do in their appendix).
    """

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm1, self.norm2 = nn.Conv3d(1, 12, 4, 4), nn.LayerNorm(12), nn.LayerNorm(12)
        self.token, self.places = nn.Parameter(torch.empty(1, 1, 12)), nn.Parameter(torch.empty(1, 9, 12))
        self.qkv, self.out = nn.Linear(12, 36), nn.Linear(12, 12)
        self.up, self.down, self.head = nn.Linear(12, 20), nn.Linear(20, 12), nn.Linear(12, 2)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.4)
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.answer(x, surrogate=False)

    def answer(self, x: Tensor, surrogate: bool) -> Tensor:
        passes = _passed if surrogate else lambda function, a: function(a)
        linear = _without_bias if surrogate else lambda layer, a: layer(a)
        product = _halved if surrogate else torch.matmul
        x = (_patched(self.patches, x) if surrogate else self.patches(x)).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1)
        x = passes(lambda a: a + self.places, x)
        q, k, v = linear(self.qkv, passes(self.norm1, x)).chunk(3, dim=-1)
        q, k, v = (one.reshape(one.shape[0], 9, 3, 4).permute(0, 2, 1, 3) for one in (q, k, v))
        weights = torch.softmax(product(q * 0.5, k.transpose(-1, -2)), dim=-1)
        x = x + linear(self.out, product(weights, v).transpose(1, 2).flatten(2))
        x = x + linear(self.down, passes(F.gelu, linear(self.up, passes(self.norm2, x))))
        return linear(self.head, (x[:, 0] + x.mean(1)))


def _passed(function, a: Tensor) -> Tensor:
    """Relevance passes unchanged: ``a (f(a) / a)`` with the quotient held fixed."""
    return a * (function(a) / a).detach()


def _without_bias(layer: nn.Linear, a: Tensor) -> Tensor:
    product = F.linear(a, layer.weight)
    return product * (layer(a) / product).detach()


def _patched(layer: nn.Conv3d, a: Tensor) -> Tensor:
    product = F.conv3d(a, layer.weight, None, layer.stride)
    return product * (layer(a) / product).detach()


def _halved(a: Tensor, b: Tensor) -> Tensor:
    return (a @ b.detach() + a.detach() @ b) / 2


def test_relevance_of_a_transformer_is_the_gradient_of_its_surrogate_times_the_input():
    network, x = Transformer(), drawn(2, 1, 8, 8, 8)
    leaf = x.clone().requires_grad_()
    torch.testing.assert_close(network.answer(leaf, surrogate=True), network(x))
    (gradient,) = torch.autograd.grad(network.answer(leaf, surrogate=True)[:, 1].sum(), leaf)
    (found,) = lrp(network, x, 1, [BY_GRADIENT])
    wanted = x * gradient
    torch.testing.assert_close(found.values, wanted, rtol=0, atol=1e-4 * float(wanted.abs().max()))
    torch.testing.assert_close(found.ledger.residual, torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-8)


@pytest.mark.parametrize("rule", [BetaRule(0.0), BetaRule(0.5), EpsilonRule(0.01)])
def test_what_does_not_reach_the_map_stands_in_the_ledger(rule):
    network, x = Transformer(), drawn(1, 1, 8, 8, 8)
    (found,) = lrp(network, x, 0, [Composite("one", rule, rule, rule, rule)])
    assert float(found.values.abs().max()) > 0
    assert float(found.ledger.residual.abs()) < 1e-8
    assert float(found.ledger.map_sum) == pytest.approx(float(found.values.sum()))
    layers = [entry.layer for entry in found.ledger.entries]
    assert sum(layer.startswith("softmax") for layer in layers) == 1
    assert sum(layer.startswith("cat") for layer in layers) == 1  # the class token, which takes its share


class Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.qkv, self.head = nn.Conv3d(1, 8, 4, 4), nn.Linear(8, 24), nn.Linear(8, 2)

    fused = True

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.patches(x).flatten(2).transpose(1, 2)).chunk(3, -1)
        if self.fused:
            return self.head(F.scaled_dot_product_attention(q, k, v).mean(1))
        return self.head((torch.softmax(q @ k.transpose(-2, -1) / 8**0.5, -1) @ v).mean(1))


class Written(Fused):
    fused = False


def test_fused_attention_is_that_which_is_written_out():
    torch.manual_seed(1)
    fused, written, x = Fused().double().eval(), Written().double().eval(), drawn(1, 1, 8, 8, 8)
    written.load_state_dict(fused.state_dict())
    (found,), (wanted,) = (lrp(one, x, 1, [BY_GRADIENT]) for one in (fused, written))
    torch.testing.assert_close(found.values, wanted.values)


class OfTorch(nn.Module):
    def __init__(self, **options) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.patches = nn.Conv3d(1, 8, 4, 4)
        self.blocks = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 12, **options), 2, nn.LayerNorm(8), enable_nested_tensor=False
        )
        self.head = nn.Linear(8, 2)
        self.first = not options.get("batch_first", False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).permute(2, 0, 1) if self.first else self.patches(x).flatten(2).transpose(1, 2)
        x = self.blocks(x)
        return self.head(x.mean(0) if self.first else x.mean(1))


@pytest.mark.parametrize(
    "options", [{"batch_first": True}, {"batch_first": True, "norm_first": True, "activation": "gelu"}, {}]
)
def test_transformer_layers_of_torch_are_taken_apart(options):
    network, volume = OfTorch(**options).eval(), torch.rand(8, 8, 8)
    found = heatlas.explain(network, volume, "lrp", target=1)
    layers = list(found.ledger["layer"])
    assert {f"stages.1.blocks.layers.{n}.linear2" for n in (0, 1)} <= set(layers)
    assert sum(".self_attn.matmul" in layer for layer in layers) == 2 * 2
    assert float(found.attribution.ledger.residual.abs()) < 1e-5


def test_masked_attention_is_explained_and_that_of_torch_which_compares_its_mask_is_refused_by_the_line():
    class Masked(OfTorch):
        def forward(self, x: Tensor) -> Tensor:
            x = self.patches(x).flatten(2).transpose(1, 2)
            return self.head(self.blocks(x, mask=torch.zeros(8, 8)).mean(1))

    with pytest.raises(
        UsageError, match=r"its code decides by values, at transformer\.py, line \d+: make_causal = bool"
    ):
        heatlas.explain(Masked(batch_first=True), torch.rand(8, 8, 8), "lrp")


def test_the_vision_transformer_of_monai_is_explained():
    pytest.importorskip("einops")
    from monai.networks.nets import ViT

    torch.manual_seed(3)
    options = {"hidden_size": 16, "mlp_dim": 24, "num_layers": 2, "num_heads": 2, "classification": True}
    network, volume = ViT(1, (16, 16, 16), (8, 8, 8), post_activation="", **options), torch.rand(16, 16, 16)
    found = heatlas.lrp(network, volume, target=1, output_item="0")
    assert float(found.attribution.ledger.residual.abs()) < 1e-5
    assert sum("softmax" in layer for layer in found.ledger["layer"]) == 2


@pytest.mark.oracle
def test_the_rules_of_attention_are_those_of_lxt():
    explicit = pytest.importorskip("lxt.explicit.functional")
    a, b, relevance = drawn(2, 3, 4).requires_grad_(), drawn(2, 4, 5).requires_grad_(), drawn(2, 3, 5)
    theirs = torch.autograd.grad(explicit.matmul(a, b, epsilon=1e-12), (a, b), relevance)
    product = a @ b
    ours = product_relevance(product, (a, b), relevance / product.detach())
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-8)
    x = drawn(2, 3, 5).requires_grad_()
    (wanted,) = torch.autograd.grad(explicit.softmax(x, -1), x, relevance)
    torch.testing.assert_close(softmax_relevance(x.detach(), torch.softmax(x.detach(), 2), relevance, 2), wanted)


class Producing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.a, self.b, self.head = nn.Conv3d(1, 4, 3), nn.Conv3d(1, 4, 3), nn.Linear(4, 2)
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.answer(x, surrogate=False)

    def answer(self, x: Tensor, surrogate: bool) -> Tensor:
        convolve = _patched if surrogate else lambda layer, a: layer(a)
        a = convolve(self.a, x)
        b = convolve(self.b, x).mean((2, 3, 4), keepdim=True)
        product = (a * b.detach() + a.detach() * b) / 2 if surrogate else a * b
        pooled = product.mean((2, 3, 4))
        return _without_bias(self.head, pooled) if surrogate else self.head(pooled)


def test_a_product_of_values_gives_each_half_even_where_one_is_the_same_for_all_voxels():
    network, x = Producing(), drawn(1, 1, 5, 5, 5)
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(network.answer(leaf, surrogate=True)[0, 1], leaf)
    (found,) = lrp(network, x, 1, [BY_GRADIENT])
    wanted = x * gradient
    torch.testing.assert_close(found.values, wanted, rtol=0, atol=1e-4 * float(wanted.abs().max()))


# DeepLIFT through products: squeeze and excitation, and normalisations by the spread of the values themselves.


def test_each_factor_of_a_product_gets_its_shapley_value():
    a, b, a_r, b_r = (drawn(2, 3, 4) for _ in range(4))
    a.requires_grad_(), b.requires_grad_()
    Multiplied.apply(a, b, a_r, b_r).sum().backward()
    first, second = a * b_r - a_r * b_r, a * b - a_r * b  # what a adds when it changes first, and second
    torch.testing.assert_close(a.grad * (a - a_r), ((first + second) / 2).detach())
    torch.testing.assert_close((a.grad * (a - a_r) + b.grad * (b - b_r)).detach(), (a * b - a_r * b_r).detach())


def test_a_factor_that_is_broadcast_gets_the_sum():
    a, gate, a_r, gate_r = drawn(1, 3, 2, 2, 2), drawn(1, 3, 1, 1, 1), drawn(1, 3, 2, 2, 2), drawn(1, 3, 1, 1, 1)
    a.requires_grad_(), gate.requires_grad_()
    Multiplied.apply(a, gate, a_r, gate_r).sum().backward()
    assert gate.grad.shape == gate.shape
    total = (a.grad * (a - a_r)).sum() + (gate.grad * (gate - gate_r)).sum()
    torch.testing.assert_close(total, (a * gate - a_r * gate_r).sum())


@pytest.mark.parametrize(
    "module",
    [nn.InstanceNorm3d(4, affine=True), nn.InstanceNorm3d(4), nn.GroupNorm(2, 4), nn.LayerNorm([2, 3, 5]),
     nn.LayerNorm(5, elementwise_affine=False)],
)  # fmt: skip
def test_a_normalisation_computes_what_torch_does_and_adds_up(module):
    module = module.double()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    x, r, weights = drawn(2, 4, 2, 3, 5), drawn(1, 4, 2, 3, 5), drawn(2, 4, 2, 3, 5)
    x.requires_grad_()
    value, of_reference = normalised(module, x, r)
    torch.testing.assert_close(value, module(x))
    torch.testing.assert_close(of_reference, module(r))
    (weights * value).sum().backward()
    torch.testing.assert_close(
        (x.grad * (x - r)).flatten(1).sum(1).detach(), (weights * (value - of_reference)).flatten(1).sum(1).detach()
    )


GROUP_NORM = nn.GroupNorm(2, 4).double()


@pytest.mark.parametrize(
    ("module", "with_reference", "shape", "step", "rtol", "atol"),
    [
        (GROUP_NORM, lambda x, r: normalised(GROUP_NORM, x, r)[0], (1, 4, 2, 3, 5), 1e-6, 1e-4, 1e-5),
        (nn.Softmax(2), lambda x, r: softmax(x, r, 2)[0], (1, 3, 5), 1e-9, 1e-6, 1e-8),
    ],
)
def test_near_the_reference_multipliers_are_gradients(module, with_reference, shape, step, rtol, atol):
    r, weights = drawn(*shape), drawn(*shape)
    x = (r + step * drawn(*shape)).requires_grad_()
    (multiplier,) = torch.autograd.grad((weights * with_reference(x, r)).sum(), x)
    (gradient,) = torch.autograd.grad((weights * module(x)).sum(), x)
    torch.testing.assert_close(multiplier, gradient, rtol=rtol, atol=atol)


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv3d(1, 4, 3), nn.InstanceNorm3d(4, affine=True)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool3d(1), nn.Conv3d(4, 2, 1), nn.ReLU(), nn.Conv3d(2, 4, 1), nn.Sigmoid()
        )
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.leaky_relu(self.norm(self.conv(x)), 0.1)
        x = x * self.gate(x)
        x = x * x.mean(dim=(2, 3, 4), keepdim=True)
        return self.head(nn.functional.silu(x).mean((2, 3, 4)))


def test_a_network_of_products_is_explained_completely():
    torch.manual_seed(2)
    network = SqueezeExcite().double().eval()
    volume, reference = drawn(2, 1, 6, 5, 7), drawn(1, 1, 6, 5, 7)
    found, value, of_reference = deeplift(network, volume, reference, 1)
    torch.testing.assert_close(found.flatten(1).sum(1), value - of_reference)


def test_an_operation_without_a_rule_is_refused_even_in_a_gate():
    class Odd(SqueezeExcite):
        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x)
            return self.head((x * torch.sigmoid(x.sign())).mean((2, 3, 4)))

    with pytest.raises(UsageError, match=r"sign.*has no rule in this method"):
        deeplift(Odd().double().eval(), drawn(1, 1, 6, 5, 7), drawn(1, 1, 6, 5, 7), 1)


@pytest.mark.parametrize("activation", [nn.LeakyReLU(0.1), nn.ELU(), nn.SiLU(), nn.GELU(), nn.InstanceNorm3d(3)])
def test_lrp_passes_activations_and_normalisations_unchanged(activation):
    torch.manual_seed(1)
    network = nn.Sequential(
        nn.ConstantPad3d((1, 2, 0, 1, 1, 0), 0.0), nn.Conv3d(1, 3, 3, bias=False), activation, nn.Flatten(),
        nn.Linear(3 * 6 * 4 * 8, 2, bias=False),
    ).double().eval()  # fmt: skip
    volume = drawn(1, 1, 7, 5, 7).abs()
    assert network(volume).shape == (1, 2)
    found = attribute(network, volume, 1, Lrp(beta=1.0))
    assert found.values.shape == volume.shape
    units = network[2](network[1](network[0](volume))).flatten()  # by hand: relevance of the units, then of the input
    positive, negative = (network[4].weight[1] * units).clamp(min=0), (network[4].weight[1] * units).clamp(max=0)
    of_units = found.start_value * (2 * positive / positive.sum() - negative / negative.sum())
    torch.testing.assert_close(found.values.sum(), of_units.sum(), rtol=1e-6, atol=1e-9)


class _Function(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.conv, self.other, self.head = nn.Conv3d(1, 3, 3), nn.Conv3d(1, 3, 3), nn.Linear(3, 2)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(self.conv(x), self.other(x)).mean((2, 3, 4)))


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda a, _: torch.div(a, 0.5, rounding_mode="floor"), "div.Tensor_mode"),
        (lambda a, _: a // 0.5, "div.Tensor_mode"),
    ],
)
def test_a_division_that_rounds_is_not_linear(function, name):
    network, volume = _Function(function).double().eval(), drawn(1, 1, 5, 5, 5)
    with pytest.raises(UsageError, match=rf"\({name}\) has no rule"):
        deeplift(network, volume, drawn(1, 1, 5, 5, 5), 1)


def test_a_detached_value_is_explained_by_its_value():
    network, volume = _Function(lambda a, b: a * b.data).double().eval(), drawn(1, 1, 5, 5, 5)
    values, explained, of_reference = deeplift(network, volume, drawn(1, 1, 5, 5, 5), 1)
    torch.testing.assert_close(values.flatten(1).sum(1), explained - of_reference)


def test_a_layer_that_a_connection_passes_by_is_refused_by_the_function_too():
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.block, self.head = nn.Conv3d(1, 3, 3), nn.Conv3d(3, 3, 3, padding=1), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.stem(x))
            return self.head((self.block(x) + x).mean((2, 3, 4)))

    network = Residual().double().eval()
    with pytest.raises(UsageError, match=r"a connection passes this layer by.*as add"):
        deeplift(network, drawn(1, 1, 5, 5, 5), drawn(1, 1, 5, 5, 5), 1, stage="block")


def test_a_constant_reference_before_a_normalisation_is_warned_of():
    network = nn.Sequential(nn.InstanceNorm3d(1), nn.Conv3d(1, 2, 3), nn.AdaptiveAvgPool3d(1), nn.Flatten()).eval()
    volume = torch.rand(1, 1, 6, 6, 6)
    with pytest.warns(UserWarning, match=r"constant before layer 0 \(InstanceNorm3d\)"):
        deeplift(network, volume, torch.zeros_like(volume), 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        deeplift(network, volume, torch.rand(1, 1, 6, 6, 6), 1)


def test_a_softmax_computes_what_torch_does_and_adds_up():
    x, r, weights = drawn(2, 3, 5), drawn(1, 3, 5), drawn(2, 3, 5)
    x.requires_grad_()
    value, of_reference = softmax(x, r, 2)
    torch.testing.assert_close(value, torch.softmax(x, 2))
    torch.testing.assert_close(of_reference, torch.softmax(r, 2))
    (weights * value).sum().backward()
    sums = (weights * (value - of_reference)).sum((1, 2)).detach()
    torch.testing.assert_close((x.grad * (x - r)).sum((1, 2)).detach(), sums)


def test_a_masked_score_has_no_multiplier():
    x = torch.tensor([[0.5, float("-inf"), 2.0]], dtype=torch.float64, requires_grad=True)
    r = torch.tensor([[0.1, float("-inf"), -1.0]], dtype=torch.float64)
    value, of_reference = softmax(x, r, 1)
    (multiplier,) = torch.autograd.grad(value[0, 2], x)
    assert multiplier[0, 1] == 0
    total = sum(float(multiplier[0, k] * (x[0, k] - r[0, k]).detach()) for k in (0, 2))
    assert total == pytest.approx(float((value - of_reference)[0, 2].detach()))


def test_two_matrices_get_their_shapley_values():
    a, b, a_r, b_r = drawn(2, 3, 4), drawn(2, 4, 5), drawn(1, 3, 4), drawn(1, 4, 5)
    a.requires_grad_(), b.requires_grad_()
    value = multiplied(torch.matmul, a, b, a_r, b_r)
    torch.testing.assert_close(value, a @ b)
    weights = drawn(2, 3, 5)
    (weights * value).sum().backward()
    first, second = (weights * (a @ b_r - a_r @ b_r)).sum((1, 2)), (weights * (a @ b - a_r @ b)).sum((1, 2))
    torch.testing.assert_close((a.grad * (a - a_r)).sum((1, 2)).detach(), ((first + second) / 2).detach())
    both = (a.grad * (a - a_r)).sum((1, 2)) + (b.grad * (b - b_r)).sum((1, 2))
    torch.testing.assert_close(both.detach(), (weights * (a @ b - a_r @ b_r)).sum((1, 2)).detach())


def test_a_transformer_is_explained_and_adds_up():
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.block, self.head = nn.Conv3d(1, 8, 4, 4), layer, nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.block(self.patches(x).flatten(2).transpose(1, 2)).mean(1))

    network = Tokens().double().eval()
    values, explained, of_reference = deeplift(network, drawn(1, 1, 8, 8, 8), drawn(1, 1, 8, 8, 8), 1)
    torch.testing.assert_close(values.flatten(1).sum(1), explained - of_reference)


@pytest.mark.parametrize("start", ["logit", "evidence"])
def test_operators_in_place_leave_what_is_explained(start):
    class InPlace(_Function):
        def forward(self, x: Tensor) -> Tensor:
            y = torch.relu(self.conv(x))
            y *= 2.0
            y += 0.3
            y -= 0.1
            y /= 4.0
            y *= self.other(x)
            return self.head(y.mean((2, 3, 4)))

    network, volume, reference = InPlace(None).double().eval(), drawn(1, 1, 5, 5, 5), drawn(1, 1, 5, 5, 5)
    values, explained, of_reference = deeplift(network, volume, reference, 1, start)
    torch.testing.assert_close(values.flatten(1).sum(1), explained - of_reference)
    wanted = network(volume)[:, 1] - (network(volume)[:, 0] if start == "evidence" else 0)
    torch.testing.assert_close(explained, wanted.detach())


class Squares(nn.Module):
    """Products of a value with itself, of matrices and of values; a sparse activation of values in another order."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.patches, self.head = nn.Conv3d(1, 8, 4, 4), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.einsum("bnc,bmc->bnm", x, x) + x * x
        return self.head(torch.tanh(x.transpose(1, 2))[:, 0])


def test_a_value_times_itself_and_values_in_another_order_add_up():
    network, volume, reference = Squares().double().eval(), drawn(2, 1, 8, 8, 8), drawn(1, 1, 8, 8, 8)
    values, explained, of_reference = deeplift(network, volume, reference, 1)
    torch.testing.assert_close(values.flatten(1).sum(1), explained - of_reference)
    answer = attribute(network, volume, 1, Lrp(beta=0.5))
    scale = 1 + answer.values.abs().flatten(1).sum(1)
    assert bool((answer.ledger.residual.abs() < 1e-7 * scale).all())


@pytest.mark.parametrize("dilation", [(1, 1, 1), (2, 1, 3)])
@pytest.mark.parametrize("padding", [(0, 0, 0), (1, 0, 2), (3, 3, 3)])
def test_the_transpose_to_one_channel_is_that_of_pytorch(dilation, padding):
    shape, kernel = (2, 1, 11, 12, 13), (3, 2, 3)
    reach = zip(shape[2:], padding, dilation, kernel, strict=True)
    weight = torch.randn(5, 1, *kernel, dtype=torch.float64)
    y = torch.randn(2, 5, *(n + 2 * p - d * (k - 1) for n, p, d, k in reach), dtype=torch.float64)
    expected = conv3d_input(torch.Size(shape), weight, y, 1, padding, dilation)
    found = Convolution((1, 1, 1), padding, dilation).transpose(y, weight, shape)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)  # sums of 90 products of size 1
