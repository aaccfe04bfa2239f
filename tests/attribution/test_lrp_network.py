"""LRP through whole networks: an independent library's frozen maps, start values, and where relevance must be nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from lrp_toys import lrp_beta, plain_network, staged, toy_network, toy_volumes
from torch import nn

from heatlas.pipeline.attribution.graph.planner import plan_relevance
from heatlas.pipeline.attribution.graph.tape import record_forward
from heatlas.pipeline.attribution.lrp.composites import Composite, focus, founding
from heatlas.pipeline.attribution.lrp.propagation import propagate
from heatlas.pipeline.attribution.lrp.relevance import lrp
from heatlas.pipeline.models.families.founding import FoundingCNN
from heatlas.pipeline.run.errors import UsageError

BETAS = (0.0, 0.25, 0.5, 0.75, 1.0)
DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize(("batch_norm", "beta"), [("fold", 0.0), ("fold", 0.5), ("identity", 0.5)])
def test_equals_frozen_maps_of_zennit(batch_norm: str, beta: float) -> None:
    """Maps of zennit 0.5.1 in float64 (stabiliser 1e-12, biases zero); network without one-signed units."""
    with np.load(DATA / "zennit_lrp_beta.npz", allow_pickle=False) as frozen:
        arrays = {name: torch.from_numpy(frozen[name]) for name in frozen.files}
    net = plain_network()
    net.load_state_dict({name.removeprefix("weights/"): a for name, a in arrays.items() if "/" in name}, strict=False)
    answer = lrp_beta(net, arrays["volume"], 1, [beta], batch_norm=batch_norm)[beta]
    expected = arrays[f"map_{batch_norm}_{beta:g}"]
    torch.testing.assert_close(answer.values, expected, rtol=0, atol=1e-10 * float(expected.abs().max()))


def test_is_linear_in_the_start_value() -> None:
    plan, volumes = plan_relevance(toy_network(), "fold"), toy_volumes(2)
    seed = torch.tensor([[0.0, 1, 0], [0, 1, 0]], dtype=torch.float64)
    with torch.no_grad():
        tape = record_forward(plan, volumes)
        (one,), *_ = propagate(plan, tape, seed, [founding(0.5)])
        (scaled,), *_ = propagate(plan, tape, seed * torch.tensor([[-3.0], [0.5]]), [founding(0.5)])
    torch.testing.assert_close(scaled[0], -3 * one[0], rtol=1e-12, atol=0)
    torch.testing.assert_close(scaled[1], 0.5 * one[1], rtol=1e-12, atol=0)


@pytest.mark.parametrize("rules", [founding(0.0), founding(0.5), focus(0.25, 0.0, 1.0, bias=True)])
def test_evidence_is_the_logit_of_a_unit_that_is_the_difference_of_the_outputs(rules: Composite) -> None:
    """Exactly, for every rule; an equal change of all outputs has no part in it, though every logit has."""
    net, volumes = toy_network(), toy_volumes()
    (answer,) = lrp(net, volumes, 1, [rules], start="evidence")
    others, both = [0, 2], net[-1]
    unit = nn.Linear(5, 1).double()
    with torch.no_grad():
        unit.weight[0] = both.weight[1] - both.weight[others].mean(0)
        unit.bias[0] = both.bias[1] - both.bias[others].mean()
        wanted = net(volumes)[:, 1] - net(volumes)[:, others].mean(1)
    (same,) = lrp(nn.Sequential(*net[:-1], unit), volumes, 0, [rules])
    torch.testing.assert_close(answer.start_value, wanted)
    torch.testing.assert_close(answer.values, same.values, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(answer.sign, same.sign)
    logit = lrp(net, volumes, 1, [rules])[0].values
    with torch.no_grad():
        both.weight += torch.tensor([0.3, -0.2, 0.5, 0.1, 0.4], dtype=torch.float64)
        both.bias += 2
    (changed,) = lrp(net, volumes, 1, [rules], start="evidence")
    torch.testing.assert_close(changed.values, answer.values, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(lrp(net, volumes, 1, [rules])[0].values, logit, rtol=0.01)


def test_evidence_does_not_level_off_and_needs_a_linear_layer_at_the_end() -> None:
    net, volumes = toy_network(), toy_volumes(1)
    maps = {}
    for scale in (1.0, 8.0):
        with torch.no_grad():
            net[-1].weight *= scale
            net[-1].bias *= scale
        maps[scale] = lrp_beta(net, volumes, 1, [0.25], start="evidence")[0.25].values
    torch.testing.assert_close(maps[8.0], 8 * maps[1.0], rtol=1e-10, atol=1e-14)
    single = nn.Sequential(*net[:-1], nn.Linear(5, 1).double()).eval()
    alone = lrp_beta(single, volumes, 0, [0.25], start="evidence")[0.25].values
    torch.testing.assert_close(alone, lrp_beta(single, volumes, 0, [0.25])[0.25].values, rtol=0, atol=0)
    pooled = nn.Sequential(*net[:4], nn.Conv3d(4, 2, 1).double(), nn.AdaptiveAvgPool3d(1), nn.Flatten()).eval()
    with pytest.raises(UsageError, match="logits are those of a linear layer"):
        lrp_beta(pooled, volumes, 1, [0.25], start="evidence")
    for activation in (nn.ReLU(), nn.Tanh(), nn.LeakyReLU()):
        with pytest.raises(UsageError, match="with nothing after it"):
            lrp_beta(nn.Sequential(*net, activation).eval(), volumes, 1, [0.25], start="evidence")


def test_negative_logit_gives_a_negated_map() -> None:
    net, volumes = toy_network(), toy_volumes(1)
    with torch.no_grad():
        net[-1].bias[1] += -10 - net(volumes)[0, 1]
    answer = lrp_beta(net, volumes, 1, [0.0])[0.0]
    assert float(answer.start_value) == pytest.approx(-10)
    assert float(answer.values.max()) <= 0
    assert float(answer.values.sum()) < -1


@pytest.mark.parametrize("signed", [False, True])
def test_background_gets_exactly_nothing_and_beta_zero_is_not_negative(signed: bool) -> None:
    volumes = toy_volumes(signed=signed)
    for beta, answer in lrp_beta(toy_network(), volumes, 1, BETAS, start="probability").items():
        assert torch.equal(answer.values[volumes == 0], torch.zeros(int((volumes == 0).sum()), dtype=torch.float64))
        assert (float(answer.values.min()) >= 0) == (beta == 0)


def test_float32_conserves_to_1e_6_on_the_founding_network() -> None:
    """A skull-stripped volume through the founding CNN: map + losses = start, in every layer and overall."""
    torch.manual_seed(2)
    shape = (78, 97, 83)
    net = FoundingCNN(shape)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm3d):
            module.running_mean.normal_(std=0.05)
            module.running_var.uniform_(0.05, 0.2)
            module.bias.data.normal_(std=0.2)
    axes = torch.meshgrid(*(torch.linspace(-1, 1, side) for side in shape), indexing="ij")
    volume = torch.rand(1, 1, *shape) * (sum(axis**2 for axis in axes) < 0.8)
    for answer in lrp_beta(net.eval(), volume, 1, [0.0, 0.5]).values():
        ledger = answer.ledger
        assert answer.values.dtype == torch.float32
        assert abs(float(ledger.residual / ledger.start_value)) < 1e-6
        assert abs(float(ledger.total("lost_no_contribution") / ledger.start_value)) > 1e-4
        for entry in ledger.entries:
            assert abs(float(entry.residual / entry.relevance_in)) < 1e-6, entry.layer


def test_staged_model_gives_the_same_maps_and_names_its_layers() -> None:
    net, volumes = toy_network(), toy_volumes()
    plain, stages = lrp_beta(net, volumes, 1, [0.25])[0.25], lrp_beta(staged(net), volumes, 1, [0.25])[0.25]
    assert torch.equal(plain.values, stages.values)
    assert [entry.layer for entry in stages.ledger.entries] == ["stages.2.4", "stages.2.2", "stages.1.0", "stages.0.0"]
    assert [entry.layer for entry in plain.ledger.entries] == ["12", "10", "4", "0"]
