"""SFCN and Conv5-FC3: as published, and explained exactly."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from heatlas.pipeline.attribution.lrp.ledger import LOSSES
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.attribution.registry import METHODS
from heatlas.pipeline.models.families.halving import Conv5FC3Config, SFCNConfig
from heatlas.pipeline.models.families.registry import build_network, parameter_count

SMALL = {
    "sfcn": SFCNConfig(channels=(3, 4, 4, 5)),
    "conv5-fc3": Conv5FC3Config(channels=(3, 4, 4), hidden_units=(6, 5)),
}
SHAPE = (11, 17, 14)


def network(name, plain=False):
    """With statistics of data; `plain` has no constant anywhere, so that its logits are linear along a ray."""
    torch.manual_seed(5)
    model = build_network(SMALL[name], SHAPE, 2).double()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm3d):
            layer.running_mean.normal_(0, 0 if plain else 0.3)
            layer.running_var.uniform_(0.5, 2)
            nn.init.uniform_(layer.weight, 0.5, 2)
            nn.init.normal_(layer.bias, 0, 0 if plain else 0.3)
        elif plain and isinstance(layer, nn.Conv3d | nn.Linear):
            nn.init.zeros_(layer.bias)
    volume = torch.rand(1, 1, *SHAPE, dtype=torch.float64)
    volume[..., :2] = 0
    return model.eval(), volume


def test_published_sizes():
    convolutions = [(27 * a + 1) * b for a, b in ((1, 32), (32, 64), (64, 128), (128, 256), (256, 256))]
    norms = 2 * (32 + 64 + 128 + 256 + 256 + 64)
    # Peng et al. give 3.0 million for 40 age bins on 160x192x160.
    assert parameter_count(SFCNConfig(), (160, 192, 160), 40) == sum(convolutions) + 257 * 64 + norms + 65 * 40
    with torch.device("meta"):
        sfcn = build_network(SFCNConfig(), (160, 192, 160), 40)
        features = nn.Sequential(*sfcn.stages[:-1])(torch.empty(1, 1, 160, 192, 160))
        conv5 = build_network(Conv5FC3Config(), (169, 208, 179), 2)
    assert features.shape == (1, 64, 5, 6, 5)
    # Wen et al.: 128 features on 6x7x6 places for their grid of 169x208x179.
    linear = [(one.in_features, one.out_features) for one in conv5.modules() if isinstance(one, nn.Linear)]
    assert linear == [(128 * 6 * 7 * 6, 1300), (1300, 50), (50, 2)]
    convolutions = [(27 * a + 1) * b + 2 * b for a, b in ((1, 8), (8, 16), (16, 32), (32, 64), (64, 128))]
    expected = sum(convolutions) + 32256 * 1300 + 1300 + 1301 * 50 + 51 * 2
    assert parameter_count(Conv5FC3Config(), (169, 208, 179)) == expected


@pytest.mark.parametrize("name", SMALL)
def test_logits_are_those_of_the_formulas(name):
    model, x = network(name)
    expected, state = x, list(model.modules())
    convolutions, norms, linear = (
        [one for one in state if isinstance(one, kind)] for kind in (nn.Conv3d, nn.BatchNorm3d, nn.Linear)
    )
    for convolution, norm in zip(convolutions, norms, strict=True):
        last = name == "sfcn" and convolution is convolutions[-1]
        expected = F.conv3d(expected, convolution.weight, convolution.bias, padding=0 if last else 1)
        mean, sd = norm.running_mean, (norm.running_var + 1e-5).sqrt()
        scaled = ((expected.movedim(1, -1) - mean) / sd * norm.weight + norm.bias).movedim(-1, 1)
        odd = [side % 2 for side in reversed(scaled.shape[2:])]
        # Pooling commutes with ReLU; what is left of an odd side is pooled alone, so a padding of 0 changes nothing.
        padded = F.pad(scaled.clamp(min=0), [n for side in odd for n in (0, side)])
        expected = scaled.clamp(min=0) if last else F.max_pool3d(padded, 2)
    expected = expected.mean((2, 3, 4)) if name == "sfcn" else expected.flatten(1)
    for layer in linear:
        expected = expected @ layer.weight.T + layer.bias
        expected = expected if layer is linear[-1] else expected.clamp(min=0)
    torch.testing.assert_close(model(x), expected)
    assert [one.p for one in state if isinstance(one, nn.Dropout)] == [0.5]


@pytest.mark.parametrize("name", SMALL)
def test_deeplift_adds_up_to_the_difference_of_the_logits(name):
    model, x = network(name)
    controls = torch.rand(3, 1, *SHAPE, dtype=torch.float64)
    answer = attribute(model, x, 1, METHODS["deeplift"].record(reference=Reference(controls, ("a", "b", "c"))), 0)
    difference = model(x)[0, 1] - model(controls.mean(0, keepdim=True))[0, 1]
    torch.testing.assert_close(answer.values.sum(), difference.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("batch_norm", ["fold", "identity"])
@pytest.mark.parametrize("name", SMALL)
def test_lrp_accounts_for_the_whole_logit(name, batch_norm):
    model, x = network(name)
    logit = model(x)[:, 1].detach()
    answer = attribute(model, x, 1, METHODS["lrp"].record(beta=0.5, batch_norm=batch_norm), 0)
    ledger = answer.ledger
    lost = sum(ledger.total(loss) for loss in LOSSES)
    torch.testing.assert_close(answer.values.flatten(1).sum(1) + lost, logit, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", SMALL)
def test_without_constants_nothing_is_absorbed(name):
    """With no bias in folded layers, input x gradient and LRP (beta = 0) hand the whole logit to the voxels."""
    model, x = network(name, plain=True)
    leaf = x.clone().requires_grad_()
    logit = model(leaf)[0, 1]
    (gradient,) = torch.autograd.grad(logit, leaf)
    torch.testing.assert_close((leaf * gradient).sum(), logit)
    product = attribute(model, x, 1, METHODS["input-x-gradient"].record(), 0)
    torch.testing.assert_close(product.values.sum(), logit.detach())
    lrp = attribute(model, x, 1, METHODS["lrp"].record(beta=0.0), 0)
    lost = lrp.ledger.total("lost_no_contribution")
    torch.testing.assert_close(lrp.values.sum() + lost[0], logit.detach())
