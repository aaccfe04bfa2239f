"""LRP through attention (AttnLRP), against Jacobians, loops, and a network whose gradient is the relevance."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import heatlas
from heatlas.pipeline.attribution.lrp.propagation import product_relevance, softmax_relevance
from heatlas.pipeline.attribution.lrp.relevance import lrp
from heatlas.pipeline.attribution.lrp.rules import BetaRule, Composite, EpsilonRule
from heatlas.pipeline.models.foreign.adapted import adapted
from heatlas.pipeline.run.errors import UsageError

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
def test_transformer_layers_of_torch_are_opened(options):
    network, volume = OfTorch(**options).eval(), torch.rand(8, 8, 8)
    model = adapted(network, volume[None, None])
    torch.testing.assert_close(model(volume[None, None]), network(volume[None, None]), rtol=1e-4, atol=1e-5)
    if not options:
        with pytest.raises(UsageError, match="mean"):  # over the first axis, which is the batch elsewhere
            heatlas.lrp(network, volume)
        return
    found = heatlas.lrp(network, volume, target=1)
    layers = set(found.ledger["layer"])
    assert {"stages.1.blocks.layers.0.self_attn.out_proj", "stages.1.blocks.layers.1.linear2"} <= layers
    assert float(found.attribution.ledger.residual.abs()) < 1e-5


def test_masked_attention_of_torch_stays_as_it_is_and_is_refused_by_name():
    class Masked(OfTorch):
        def forward(self, x: Tensor) -> Tensor:
            x = self.patches(x).flatten(2).transpose(1, 2)
            return self.head(self.blocks(x, mask=torch.zeros(8, 8)).mean(1))

    with pytest.raises(UsageError, match=r"blocks \(TransformerEncoder\) has no rule"):
        heatlas.lrp(Masked(batch_first=True), torch.rand(8, 8, 8))


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
