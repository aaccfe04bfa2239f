"""Inherent maps: they add up at every stage, compare with controls, and are refused where none is inherent."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from inherent_toys import bcos, coda, healthy, scans
from torch import Tensor, nn

from heatlas.pipeline.attribution.gradient.gradients import InputTimesGradient
from heatlas.pipeline.attribution.methods import attribute, require_defined
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.dynamic import LogitLayer, calibrate, dynamic_layers, dynamic_weights
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.studies.bcos.layers import BcosConv3d
from heatlas.studies.bcos.networks import Positions
from heatlas.studies.bcos.records import BcosViTConfig
from heatlas.studies.coda.network import CodaConv3d, SumPool
from heatlas.studies.dynamic import InputEncoding
from heatlas.studies.inherent import Inherent, balances, contrast, contributions, inherent_ledger


def sums(values: Tensor) -> Tensor:
    return values.flatten(1).sum(1)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("norm", ["none", "position"])
def test_contributions_add_up_to_the_logit_less_its_bias(stage: int, norm: str) -> None:
    model, x = bcos(norm=norm), scans(2)
    answer = attribute(model, x, 2, Inherent(compare="nothing"), stage, at_input_grid=False)
    (layer,) = (module for module in model.modules() if isinstance(module, LogitLayer))
    torch.testing.assert_close(sums(answer.values), model(x)[:, 2] - layer.bias, rtol=1e-9, atol=0)
    assert answer.reference_value is None
    assert all(module.mode == "off" for _, module in dynamic_layers(model))


@pytest.mark.parametrize("start", ["logit", "evidence"])
@pytest.mark.parametrize("stage", [0, 2])
def test_relative_to_controls_they_add_up_to_the_difference(start: str, stage: int) -> None:
    model, x, reference = bcos(), scans(2), healthy()
    answer = attribute(model, x, 1, Inherent(reference), stage, start, at_input_grid=False)  # type: ignore[arg-type]
    assert answer.reference_value is not None
    torch.testing.assert_close(sums(answer.values), answer.start_value - answer.reference_value, rtol=1e-9, atol=1e-12)
    alone = attribute(model, x, 1, Inherent(compare="nothing"), stage, start, at_input_grid=False)  # type: ignore[arg-type]
    each = [
        attribute(model, one[None], 1, Inherent(compare="nothing"), stage, start, at_input_grid=False).values  # type: ignore[arg-type]
        for one in reference.volumes
    ]
    torch.testing.assert_close(answer.values, alone.values - torch.cat(each).mean(0, keepdim=True), rtol=1e-12, atol=0)


def test_a_control_is_explained_by_nothing_but_its_distance_to_the_others() -> None:
    reference = healthy()
    maps = [attribute(bcos(), one[None], 1, Inherent(reference)).values for one in reference.volumes]
    torch.testing.assert_close(torch.cat(maps).sum(0), torch.zeros_like(maps[0][0]), rtol=0, atol=1e-15)


def test_the_map_is_the_pair_times_its_weights_and_not_input_times_gradient() -> None:
    model, x = bcos(), scans(1)
    pairs, rest = model.stages[0](x), nn.Sequential(*model.stages[1:])
    weights = dynamic_weights(model, lambda a: rest(a)[:, 1], pairs)
    expected = x * weights[:, :1] + (x > 0) * (1 - x) * weights[:, 1:]
    answer = attribute(model, x, 1, Inherent(compare="nothing")).values
    torch.testing.assert_close(answer, expected, rtol=1e-12, atol=0)
    assert torch.equal(answer[:, :, :2], torch.zeros_like(answer[:, :, :2]))
    other = attribute(model, x, 1, InputTimesGradient()).values
    assert not torch.allclose(sums(other), sums(answer), rtol=0.05)


def test_a_regression_has_evidence_too() -> None:
    model, x, reference = bcos(outputs=1), scans(2), healthy()
    answer = attribute(model, x, 0, Inherent(reference), start="evidence")
    difference = model(x)[:, 0] - model(reference.volumes)[:, 0].mean()
    torch.testing.assert_close(sums(answer.values), difference, rtol=1e-9, atol=1e-12)


def test_differences_of_classes_and_maps_less_their_mean() -> None:
    model, x = bcos(), scans(2)
    rest = nn.Sequential(*model.stages[1:])
    pairs, logits = model.stages[0](x), model(x)
    delta = contributions(model, lambda a: contrast(2, 0)(rest(a)), pairs)
    torch.testing.assert_close(sums(delta), logits[:, 2] - logits[:, 0], rtol=1e-9, atol=1e-12)
    each = torch.stack([contributions(model, lambda a, u=u: rest(a)[:, u], pairs) for u in range(3)])
    torch.testing.assert_close(delta, each[2] - each[0], rtol=1e-9, atol=1e-12)
    corrected = each - each.mean(0)
    expected = (logits - logits.mean(1, keepdim=True)).T
    torch.testing.assert_close(corrected.flatten(2).sum(2), expected, rtol=1e-9, atol=1e-12)


def test_what_controls_contribute_is_made_once_per_network() -> None:
    model, reference, passes = bcos(), healthy(), []
    method = Inherent(dataclasses.replace(reference, logits=model(reference.volumes).detach()))
    model.stages[0].register_forward_hook(lambda *_: passes.append(1))
    first = attribute(model, scans(1), 1, method)
    assert len(passes) == 3 + 3  # the answer, map and ledger of the scan, and a map of each control
    again = attribute(model, scans(1), 1, method)
    assert len(passes) == 6 + 3
    assert torch.equal(again.values, first.values)
    with torch.no_grad():
        next(model.parameters()).mul_(-1)
    fresh = Inherent(healthy())
    torch.testing.assert_close(
        attribute(model, scans(1), 1, method).values, attribute(model, scans(1), 1, fresh).values
    )


def test_other_networks_and_probabilities_are_refused() -> None:
    plain = StagedModel([nn.Sequential(nn.Conv3d(1, 2, 3), nn.AdaptiveAvgPool3d(1), nn.Flatten())]).double().eval()
    with pytest.raises(UsageError, match=r"inherent explains networks that are one linear map.*Use expected-gradients"):
        require_defined(plain, (6, 8, 7), Inherent(), 0, "evidence")
    with pytest.raises(UsageError, match="no probability"):
        attribute(bcos(), scans(1), 1, Inherent(healthy()), start="probability")
    with pytest.raises(UsageError, match="was given none"):
        attribute(bcos(), scans(1), 1, Inherent())
    with pytest.raises(UsageError, match="compare = 'air'"):
        Inherent(compare="air")  # type: ignore[arg-type]


def test_volumes_outside_the_unit_interval_are_refused() -> None:
    with pytest.raises(BadInputError, match="intensities from 0 to 1"):
        attribute(bcos(), 2 * scans(1), 1, Inherent(compare="nothing"))


@pytest.mark.parametrize("network", [bcos, coda])
def test_regions_and_what_is_outside_add_up(network: Callable[[], StagedModel]) -> None:
    model, v = network(), scans(2)
    values = attribute(model, v, 1, Inherent(compare="nothing")).values
    labels = torch.randint(0, 4, v.shape[2:], generator=torch.Generator().manual_seed(3))
    (layer,) = (module for module in model.modules() if isinstance(module, LogitLayer))
    total = sum(values[:, 0, labels == region].sum(1) for region in range(4))
    torch.testing.assert_close(total, model(v)[:, 1] - layer.bias, rtol=1e-9, atol=1e-12)


def test_at_b_1_input_times_gradient_of_the_pair_is_the_inherent_map() -> None:
    """A linear unit per place and MaxOut: piece-wise linear, so the gradient is the row of the matrix (S37)."""
    torch.manual_seed(3)
    layers = [BcosConv3d(2, 4, 3, padding=1, b=1.0, max_out=2), BcosConv3d(4, 3, 3, stride=2, b=1.0, max_out=2)]
    rest = nn.Sequential(*layers).double()
    pairs = InputEncoding()(scans(2)).requires_grad_()
    (gradient,) = torch.autograd.grad(rest(pairs)[:, 1].sum(), pairs)
    rows = dynamic_weights(rest, lambda a: rest(a)[:, 1].flatten(1).sum(1), pairs.detach())
    torch.testing.assert_close(rows, gradient, rtol=1e-12, atol=1e-14)
    curved = nn.Sequential(BcosConv3d(2, 4, 3, padding=1, b=2.0), layers[1]).double()
    (gradient,) = torch.autograd.grad(curved(pairs)[:, 1].sum(), pairs)
    rows = dynamic_weights(curved, lambda a: curved(a)[:, 1].flatten(1).sum(1), pairs.detach())
    assert not torch.allclose(rows, gradient, rtol=0.05)


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


def test_the_ledger_of_a_bias_free_network_holds_the_logit_bias_alone():
    model = network()
    pairs, rest = model.stages[0](volumes()), after(model, 1)
    ledger = inherent_ledger(rest, lambda x: rest(x)[:, 1], pairs)
    assert list(ledger.constants) == ["2.2"]
    torch.testing.assert_close(ledger.constants["2.2"], torch.full((2,), -0.75, dtype=torch.float64), rtol=1e-6, atol=0)
    assert float(ledger.residual.abs().max()) < 1e-14
    assert bool((ledger.positive >= 0).all() & (ledger.negative <= 0).all())
    balance = balances(ledger)
    first, *_, last = balance.entries
    assert first.layer == "2.2"
    torch.testing.assert_close(first.relevance_out, ledger.value - ledger.constants["2.2"], rtol=1e-12, atol=0)
    torch.testing.assert_close(last.relevance_out, ledger.contributions, rtol=0, atol=0)
    torch.testing.assert_close(balance.total("absorbed_by_bias"), ledger.constants["2.2"], rtol=1e-12, atol=0)
    assert float(balance.residual.abs().max()) < 1e-14
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
    last = float(model[2].bias[0].detach()) * pairs[0, 0].numel()
    torch.testing.assert_close(ledger.constants["2"], torch.full((2,), last, dtype=torch.float64), rtol=1e-12, atol=0)
    gated = nn.Sequential(model[0], nn.ReLU(), CodaConv3d(3, 2, 3, rank=2, bound="wb").double(), SumPool()).eval()
    mixed = inherent_ledger(gated, lambda x: gated(x)[:, 1], pairs)
    assert list(mixed.constants) == ["0"]
    assert float(mixed.residual.abs().max()) < 1e-12


@pytest.mark.parametrize("shape", [(8, 8, 12), (12, 16, 8)])
def test_positions_of_a_transformer_have_a_row_of_their_own(shape):
    """Also on a larger grid than that of training: they are what is left of the tokens when nothing is in the image."""
    torch.manual_seed(3)
    model = build_network(BcosViTConfig("bcos-vit", patch=4, dim=12, depth=2, heads=2), (8, 8, 8), 3).double()
    v = torch.rand(2, 1, *shape, dtype=torch.float64)
    calibrate(model.train(), v)
    answer = attribute(model.eval(), v, 1, Inherent(compare="nothing"))
    rows = answer.ledger.frame("inherent", 1).set_index("layer")
    (positions,) = [name for name, module in model.named_modules() if isinstance(module, Positions)]
    (bias,) = [name for name, module in model.named_modules() if isinstance(module, LogitLayer)]
    added = rows["absorbed_by_bias"]
    assert set(added.index[added.abs() > 1e-12]) == {positions, bias}
    tokens, rest = model.stages[1], after(model, 2)
    features = tokens(model.stages[0](v)).detach()
    share = dynamic_weights(rest, lambda x: rest(x)[:, 1], features) * tokens[-1](torch.zeros_like(features))
    assert added[positions] == pytest.approx(float(share.flatten(1).sum(1)[1]), rel=1e-9)
    total = float(answer.values.sum((1, 2, 3, 4))[1]) + added.sum()
    assert total == pytest.approx(float(answer.start_value[1]), rel=1e-9)
    assert rows["relevance_out"].iloc[-1] == pytest.approx(float(answer.values.sum((1, 2, 3, 4))[1]), rel=1e-9)


@pytest.mark.parametrize("norm", ["none", "batch", "layer", "instance", "group", "position", "all"])
def test_norms_without_constants_add_nothing_and_those_with_constants_do(norm):
    """Share of the value that layers other than the last add by themselves."""
    shares = {}
    for constants in (False, True):
        model = bcos(norm=norm, norm_bias=constants)
        torch.manual_seed(7)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                nn.init.uniform_(parameter, 0.5, 1)
        pairs, rest = model.stages[0](scans(2)), after(model, 1)
        ledger = inherent_ledger(rest, lambda x, rest=rest: contrast(1, 2)(rest(x)), pairs)
        assert float((ledger.residual / ledger.value).abs().max()) < 1e-9
        shares[constants] = float((sum(ledger.constants.values(), torch.zeros(2)) / ledger.value).abs().min())
    assert shares[False] < 1e-9
    assert shares[True] > 1e-3 or norm == "none"
    assert math.isfinite(shares[True])
