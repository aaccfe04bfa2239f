"""Readings of W(x): grey pictures, inner features, the ledger, differences between classes."""

import pytest
import torch
from torch import Tensor, nn

from pipeline.attribution.inherent.colours import rendered
from pipeline.attribution.inherent.contributions import contrast, contributions, mean_corrected
from pipeline.attribution.inherent.features import feature_weights, ranked, strength, strongest_features
from pipeline.attribution.inherent.ledger import inherent_ledger
from pipeline.models.contract import StagedModel
from pipeline.models.dynamic.encoding import InputEncoding
from pipeline.models.dynamic.linear_map import dynamic_weights
from pipeline.models.dynamic.logits import LogitLayer
from pipeline.models.families.bcos.layers import BcosConv3d
from pipeline.models.families.coda.dau import CodaConv3d
from pipeline.models.families.coda.network import SumPool
from pipeline.run.errors import UsageError


def volumes() -> Tensor:
    torch.manual_seed(4)
    v = torch.rand(2, 1, 4, 5, 3, dtype=torch.float64) * 0.98 + 0.01
    v[:, :, :, :, :1] = 0
    return v


def network() -> StagedModel:
    torch.manual_seed(2)
    layers = [CodaConv3d(2, 5, 3, rank=2, bound="sq"), BcosConv3d(5, 4, 3, 2, 1)]
    last = nn.Sequential(BcosConv3d(4, 3, 1), SumPool(), LogitLayer(2.0, -0.75))
    return StagedModel([InputEncoding(), *layers, last]).double().eval()


def after(model: StagedModel, stage: int) -> nn.Sequential:
    return nn.Sequential(*model.stages[stage:])


def test_weights_along_the_pair_show_the_intensity():
    v = volumes()
    pairs = InputEncoding()(v)
    picture = rendered(0.3 * pairs, pairs, percentile=100)
    for colour in range(3):
        torch.testing.assert_close(picture[:, colour], v[:, 0], rtol=1e-12, atol=1e-15)
    size = pairs.norm(dim=1)
    torch.testing.assert_close(picture[:, 3], size / size.flatten(1).amax(1).view(-1, 1, 1, 1), rtol=1e-12, atol=0)


def test_nothing_is_drawn_where_voxels_do_not_speak_for_the_class():
    v = volumes()
    pairs = InputEncoding()(v)
    weights = torch.randn(pairs.shape, dtype=torch.float64)
    picture = rendered(weights, pairs)
    silent = (weights * pairs).sum(1) <= 0
    assert bool(silent[:, :, :, 1:].any())
    assert float(picture.movedim(1, -1)[silent].abs().max()) == 0
    assert float(picture.min()) == 0
    assert float(picture.max()) <= 1
    assert torch.equal(rendered(8 * weights, pairs)[:, 3], picture[:, 3])


def test_opacity_saturates_at_the_percentile_of_the_whole_brain_of_each_volume():
    v = torch.full((1, 1, 10, 10, 11), 0.5, dtype=torch.float64)
    v[..., 10] = 0
    pairs = InputEncoding()(v)
    weights = torch.arange(1, 1101, dtype=torch.float64).view(1, 1, 10, 10, 11) * torch.ones_like(pairs)
    brain = weights[0, 0, :, :, :10].flatten().sort().values
    opacity = rendered(weights, pairs, percentile=90.0)[0, 3]
    expected = (weights[0, 0] / brain[899]).clamp(max=1)
    expected[:, :, 10] = 0
    torch.testing.assert_close(opacity, expected, rtol=1e-12, atol=0)
    both = rendered(torch.cat([weights, 5 * weights]), torch.cat([pairs, pairs]), percentile=90.0)[:, 3]
    torch.testing.assert_close(both[0], both[1], rtol=1e-12, atol=0)


def test_an_empty_volume_is_drawn_empty_and_other_features_are_refused():
    nothing = torch.zeros(1, 2, 2, 3, 4)
    assert torch.equal(rendered(torch.ones_like(nothing), nothing), torch.zeros(1, 4, 2, 3, 4))
    with pytest.raises(UsageError, match="cannot be drawn"):
        rendered(torch.ones(1, 3, 2, 2, 2), torch.ones(1, 3, 2, 2, 2))
    with pytest.raises(UsageError, match="percentile = 0"):
        rendered(nothing, nothing, percentile=0)


def test_the_strongest_features_are_sorted_and_their_rows_give_their_strength():
    model = network()
    pairs = model.stages[0](volumes())
    middle = nn.Sequential(*model.stages[1:3])
    a = middle(pairs).detach()
    rest = after(model, 3)
    rows = dynamic_weights(model, lambda x: rest(x)[:, 1], a)
    found = strongest_features(rows[0], a[0], 5)
    shares = [one.contribution for one in found]
    assert shares == sorted(shares, reverse=True)
    everything = (rows[0] * a[0]).sum(0)
    assert shares[0] == float(everything.max())
    assert float(everything[found[0].place]) == shares[0]
    total = sum(one.contribution for one in strongest_features(rows[0], a[0], 999))
    assert total == pytest.approx(float(rest(a)[0, 1].detach()) + 0.75, rel=1e-12)
    strengths = strength(a, found[0].direction)
    assert float(strengths[(0, *found[0].place)]) == pytest.approx(float(a[(0, slice(None), *found[0].place)].norm()))
    for place in (None, (1, 2, 0)):
        row = feature_weights(middle, pairs, found[0], place)
        expected = strengths[(slice(None), *(place or found[0].place))]
        torch.testing.assert_close((row * pairs).flatten(1).sum(1), expected, rtol=1e-9, atol=1e-14)


def test_scans_are_ranked_by_where_a_feature_is_strongest():
    strengths = torch.zeros(4, 2, 3, 2)
    strengths[2, 1, 2, 0], strengths[0, 0, 1, 1], strengths[3, 1, 0, 1] = 5.0, 3.0, 4.0
    assert ranked(strengths, 3) == ((2, (1, 2, 0), 5.0), (3, (1, 0, 1), 4.0), (0, (0, 1, 1), 3.0))


def test_differences_and_mean_corrected_maps_add_up_to_those_of_the_logits():
    model = network()
    pairs, rest = model.stages[0](volumes()), after(model, 1)
    of_classes = torch.stack([contributions(rest, lambda x, k=k: rest(x)[:, k], pairs) for k in range(3)])
    logits = rest(pairs).detach()
    sums = mean_corrected(of_classes).flatten(2).sum(2).T
    torch.testing.assert_close(sums, logits - logits.mean(1, keepdim=True), rtol=1e-9, atol=1e-13)
    difference = contributions(rest, lambda x: contrast(2, 0)(rest(x)), pairs)
    torch.testing.assert_close(difference, of_classes[2] - of_classes[0], rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(difference.flatten(1).sum(1), logits[:, 2] - logits[:, 0], rtol=1e-9, atol=1e-13)


def test_the_ledger_of_a_bias_free_network_holds_the_logit_bias_alone():
    model = network()
    pairs, rest = model.stages[0](volumes()), after(model, 1)
    ledger = inherent_ledger(rest, lambda x: rest(x)[:, 1], pairs)
    assert list(ledger.constants) == ["2.2"]
    torch.testing.assert_close(ledger.constants["2.2"], torch.full((2,), -0.75, dtype=torch.float64), rtol=1e-6, atol=0)
    assert float(ledger.residual.abs().max()) < 1e-14
    assert bool((ledger.positive >= 0).all() & (ledger.negative <= 0).all())
    evidence = inherent_ledger(rest, lambda x: contrast(1, 0)(rest(x)), pairs)
    assert float(evidence.constants.get("2.2", torch.zeros(1)).abs().max()) < 1e-16  # biases cancel
    torch.testing.assert_close(evidence.contributions, evidence.value, rtol=1e-9, atol=1e-13)


def test_the_ledger_lists_what_every_layer_adds():
    """A stem with biases and running means: by hand, the constants of a path are what it gives for an empty input."""
    torch.manual_seed(5)
    norm = nn.BatchNorm3d(3).double()
    norm.running_mean.uniform_(-1, 1)
    nn.init.uniform_(norm.bias)
    model = nn.Sequential(nn.Conv3d(2, 3, 3, padding=1), norm, nn.Conv3d(3, 2, 1), SumPool()).double().eval()
    pairs = InputEncoding()(volumes())
    ledger = inherent_ledger(model, lambda x: model(x)[:, 0], pairs)
    assert list(ledger.constants) == ["0", "1", "2"]
    assert float(ledger.residual.abs().max()) < 1e-12
    empty = model(torch.zeros_like(pairs)).detach()[:, 0]
    torch.testing.assert_close(sum(ledger.constants.values()), empty, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ledger.contributions, model(pairs).detach()[:, 0] - empty, rtol=1e-10, atol=1e-12)
    last = float(model[2].bias[0]) * pairs[0, 0].numel()
    torch.testing.assert_close(ledger.constants["2"], torch.full((2,), last, dtype=torch.float64), rtol=1e-12, atol=0)
    gated = nn.Sequential(model[0], nn.ReLU(), CodaConv3d(3, 2, 3, rank=2, bound="wb").double(), SumPool()).eval()
    mixed = inherent_ledger(gated, lambda x: gated(x)[:, 1], pairs)
    assert list(mixed.constants) == ["0"]
    assert float(mixed.residual.abs().max()) < 1e-12
