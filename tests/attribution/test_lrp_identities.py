"""LRP whatever the network: identities, and a ledger that adds up layer by layer."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from lrp_branching_toys import DenseToy, ResidualToy, branching_toy
from lrp_toys import everywhere, lrp_beta, plain_network, staged, toy_network, toy_volumes
from torch import Tensor, nn

from heatlas.pipeline.attribution.gradient.gradients import InputTimesGradient
from heatlas.pipeline.attribution.graph.planner import plan_relevance
from heatlas.pipeline.attribution.graph.tape import record_forward
from heatlas.pipeline.attribution.lrp.propagation import propagate
from heatlas.pipeline.attribution.lrp.relevance import lrp
from heatlas.pipeline.attribution.lrp.rules import (
    BetaRule,
    Composite,
    EpsilonRule,
    GammaRule,
    Rule,
    ZBoxRule,
    ZPlusRule,
    composite,
    focus,
    founding,
)
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.records import LEDGER_TABLE, LOSSES, Ledger, LedgerEntry
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.founding import FoundingCNN
from heatlas.pipeline.run.errors import UsageError

# What LRP must satisfy whatever the network: identities, frozen maps of a library, and start values.

LOW, HIGH = toy_volumes(2).amin(0, keepdim=True), toy_volumes(2).amax(0, keepdim=True)
COMPOSITES = {
    "founding 0": founding(0.0),
    "founding 0.5": founding(0.5),
    "focus": focus(0.25, LOW, HIGH),
    "focus, bias": focus(0.25, LOW, HIGH, bias=True),
    "composite": composite(0.25, 0.25, LOW, HIGH),
    "composite, bias": composite(0.25, 0.25, LOW, HIGH, bias=True),
}
NETWORKS = {
    "chain": toy_network,
    "sums": lambda: branching_toy(ResidualToy),
    "concatenation": lambda: branching_toy(DenseToy),
}


def maps(net: nn.Module, volumes: Tensor, composites: dict[str, Composite], **settings: object) -> dict[str, Tensor]:
    answers = lrp(net, volumes, 1, list(composites.values()), **settings)
    return {name: answer.values for name, answer in zip(composites, answers, strict=True)}


def distance(a: Tensor, b: Tensor) -> float:
    """Largest difference, in units of the largest value."""
    return float((a - b).abs().max() / b.abs().max())


@pytest.mark.parametrize(("network", "degree"), [("chain", 4), ("sums", 4), ("concatenation", 5)])
def test_maps_are_polynomials_in_beta(network: str, degree: int) -> None:
    """The rule is linear in β, so L linear operations in a row give degree L, less those with one-signed units only.

    Of the sums toy that are the second sum and the pooling, whose terms are all >= 0.
    """
    betas = [0.25 * k for k in range(1, degree + 3)]
    answers = lrp_beta(NETWORKS[network](), toy_volumes(1), 1, betas)
    series = torch.stack([answer.values for answer in answers.values()])
    scale = float(series.abs().max())
    assert finite_difference(series, degree + 1) < 1e-12 * scale
    assert finite_difference(series, degree) > 1e-7 * scale


def finite_difference(series: Tensor, order: int) -> float:
    weights = torch.tensor([(-1) ** k * math.comb(order, k) for k in range(order + 1)], dtype=series.dtype)
    return float(torch.einsum("k,k...->...", weights, series[: order + 1]).abs().max())


@pytest.mark.parametrize("network", NETWORKS)
def test_maps_and_losses_are_linear_in_the_start_value(network: str) -> None:
    net, volumes = NETWORKS[network](), toy_volumes(2)
    composites = list(COMPOSITES.values())
    for name, one, other in zip(
        COMPOSITES,
        lrp(net, volumes, 1, composites),
        lrp(net, volumes, 1, composites, start="probability"),
        strict=True,
    ):
        with torch.no_grad():
            torch.testing.assert_close(other.start_value, net(volumes).softmax(1)[:, 1], rtol=1e-12, atol=0)
        ratio = other.start_value / one.start_value
        scaled = one.values * ratio.reshape(-1, 1, 1, 1, 1)
        torch.testing.assert_close(other.values, scaled, rtol=0, atol=1e-13 * float(scaled.abs().max()), msg=name)
        for loss in ("absorbed_by_bias", "stabiliser", "lost_no_contribution"):
            torch.testing.assert_close(
                other.ledger.total(loss), one.ledger.total(loss) * ratio, rtol=1e-10, atol=1e-12, msg=f"{name}: {loss}"
            )


@pytest.mark.parametrize("network", NETWORKS)
def test_a_batch_is_its_volumes_one_by_one(network: str) -> None:
    """One volume of the batch is signed, so the others go through the branch for signed inputs too."""
    net, volumes = NETWORKS[network](), torch.cat([toy_volumes(2), toy_volumes(1, seed=8, signed=True)])
    together = lrp(net, volumes, 1, list(COMPOSITES.values()))
    for index in range(3):
        alone = lrp(net, volumes[index : index + 1], 1, list(COMPOSITES.values()))
        for name, one, of_many in zip(COMPOSITES, alone, together, strict=True):
            assert distance(of_many.values[index], one.values[0]) < 1e-12, name
            lost, lost_of_many = (answer.ledger.total("lost_no_contribution") for answer in (one, of_many))
            assert float(lost[0]) == pytest.approx(float(lost_of_many[index]), rel=1e-10, abs=1e-13), name


def test_a_call_with_many_composites_is_the_calls_one_by_one() -> None:
    net, volumes = toy_network(), toy_volumes(2)
    together = maps(net, volumes, COMPOSITES)
    for name, one in COMPOSITES.items():
        assert distance(together[name], maps(net, volumes, {name: one})[name]) < 1e-13, name


def test_positive_scaling_of_channels_changes_nothing() -> None:
    """A channel scaled up and the weights that read it scaled down: the same function, and the same map.

    Only ε knows the size of a sum: where it sits above the scaled channels it sees them scaled back.
    """
    net, volumes = toy_network(), toy_volumes()
    composites = {**COMPOSITES, "epsilon": everywhere(EpsilonRule(0.25))}
    before = maps(net, volumes, composites)
    scale = torch.tensor([0.1, 3.0, 7.0, 0.5], dtype=torch.float64)
    with torch.no_grad():
        net[1].weight *= scale
        net[1].bias *= scale
        net[4].weight[:3] /= scale[:2].reshape(1, 2, 1, 1, 1)  # group 1 reads channels 0 and 1
        net[4].weight[3:] /= scale[2:].reshape(1, 2, 1, 1, 1)
    after = maps(net, volumes, composites)
    changed = {name: distance(after[name], before[name]) for name in composites}
    assert changed.pop("epsilon") > 0.01
    assert max(changed.values()) < 1e-12, changed


@pytest.mark.parametrize("negative_gamma", [False, True])
def test_folded_normalisation_is_identity_only_where_no_scale_is_negative(negative_gamma: bool) -> None:
    net, volumes = toy_network(negative_gamma=negative_gamma), toy_volumes()
    bias_free = {name: COMPOSITES[name] for name in ("founding 0", "founding 0.5", "focus", "composite")}
    fold, identity = maps(net, volumes, bias_free), maps(net, volumes, bias_free, batch_norm="identity")
    for name in bias_free:
        difference = distance(identity[name], fold[name])
        assert difference > 0.01 if negative_gamma else difference < 1e-12, name


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("network", NETWORKS)
def test_z_plus_is_not_negative_and_is_beta_zero(network: str, signed: bool) -> None:
    composites = {"z+": everywhere(ZPlusRule()), "z+, bias": everywhere(ZPlusRule(bias=True)), "beta": founding(0.0)}
    found = maps(NETWORKS[network](), toy_volumes(signed=signed), composites, start="probability")
    assert float(found["z+"].min()) >= 0 < float(found["z+"].max())
    assert float(found["z+, bias"].min()) >= 0 < float(found["z+, bias"].max())
    assert torch.equal(found["z+"], found["beta"])
    assert distance(found["z+, bias"], found["z+"]) > 0.01


@pytest.mark.parametrize("network", NETWORKS)
def test_gamma_runs_from_lrp_0_to_z_plus(network: str) -> None:
    """With biases in, a unit that is active has a positive sum, so what the rule favours is what z+ keeps."""
    gammas = (0.0, 0.01, 0.25, 10.0, 1e3, 1e6)
    composites = {str(gamma): everywhere(GammaRule(gamma, bias=True)) for gamma in gammas}
    composites |= {"z+": everywhere(ZPlusRule(bias=True)), "LRP-0": everywhere(EpsilonRule(0.0))}
    found = maps(single_signed(NETWORKS[network]()), toy_volumes(), composites, start="probability")
    assert distance(found["0.0"], found["LRP-0"]) < 1e-12
    far = [distance(found[str(gamma)], found["z+"]) for gamma in gammas[1:]]
    assert far == sorted(far, reverse=True)
    assert far[0] > 0.5
    assert far[-1] < 1e-4 < far[-3]
    assert far[-1] == pytest.approx(far[-2] / 1000, rel=0.05), "the distance falls as 1 / γ"
    negative = [float(-values.clamp(max=0).sum() / values.abs().sum()) for values in found.values()][: len(gammas)]
    assert negative[0] > 0.1 > negative[3]
    assert negative[-1] < 1e-6


def single_signed(net: nn.Module) -> nn.Module:
    """A positive logit, and no negative terms of sums and poolings: γ treats negative units as mirrored."""
    head = [module for module in net.modules() if isinstance(module, nn.Linear)][-1]
    with torch.no_grad():
        head.bias += 10 - float(net(toy_volumes()).min())
        if isinstance(net, ResidualToy):
            net.inner_norm.bias += 20
            net.skip.weight.abs_()
        if isinstance(net, DenseToy):
            net.branch.bias += 10
    return net


def test_z_box_is_negative_only_outside_its_bounds() -> None:
    net, volumes = toy_network(), toy_volumes(2)
    rest_of_it = ZPlusRule()
    box = Composite("box", ZBoxRule(LOW, HIGH), rest_of_it, rest_of_it, rest_of_it)
    (within,) = lrp(net, volumes, 1, [box], start="probability")
    assert float(within.values.min()) >= 0 < float(within.values.max())
    background = volumes == 0
    assert float(within.values[background].abs().max()) == 0
    tight = Composite("tight", ZBoxRule(LOW, 0.8 * HIGH), rest_of_it, rest_of_it, rest_of_it)
    (beyond,) = lrp(net, volumes, 1, [tight], start="probability")
    assert float(beyond.values.min()) < -0.01 * float(beyond.values.max())


def test_z_box_with_scalar_bounds_gives_relevance_to_air() -> None:
    """Why bounds are per voxel: between 0 and 1 a background of 0 contributes ``-1 w-``."""
    volumes = toy_volumes(2)
    rest_of_it = ZPlusRule()
    box = Composite("box", ZBoxRule(0.0, 1.0), rest_of_it, rest_of_it, rest_of_it)
    (answer,) = lrp(toy_network(), volumes, 1, [box], start="probability")
    assert float(answer.values.min()) >= 0
    assert float(answer.values[volumes == 0].sum() / answer.values.sum()) > 0.1


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("network", NETWORKS)
def test_lrp_0_is_input_times_gradient(network: str, signed: bool) -> None:
    """Normalisations folded, biases in the sums, sums and average poolings in proportion to their terms."""
    net, volumes = NETWORKS[network](), toy_volumes(signed=signed).requires_grad_()
    (gradient,) = torch.autograd.grad(net(volumes)[:, 1].sum(), volumes)
    (answer,) = lrp(net, volumes.detach(), 1, [everywhere(EpsilonRule(0.0))])
    assert distance(answer.values, (volumes * gradient).detach()) < 1e-10
    assert float(answer.ledger.total("absorbed_by_bias").abs().min()) > 1e-3


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_lrp_0_is_input_times_gradient_at_every_stage(stage: int) -> None:
    net, volumes = staged(toy_network()), toy_volumes()
    before, after = (nn.Sequential(*part) for part in (net.stages[:stage], net.stages[stage:]))
    features = before(volumes).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(after(features)[:, 1].sum(), features)
    (answer,) = lrp(net, volumes, 1, [everywhere(EpsilonRule(0.0))], stage=stage)
    assert distance(answer.values, (features * gradient).detach()) < 1e-10


def test_z_plus_is_not_implementation_invariant() -> None:
    """Thesis A.8: two units of no use, plus and minus the sum of features that are not read, attract z+ relevance.

    The target reads the left half of the volume only. An inserted layer of identities and the two units changes nothing
    in the function, and moves most of the relevance to the right half; input times gradient (LRP-0) stays at 0 there.
    """
    torch.manual_seed(4)
    features = nn.Sequential(nn.Conv3d(1, 3, 2, stride=2), nn.ReLU(), nn.Flatten())
    place = torch.arange(3 * 4 * 3 * 2).reshape(3, 4, 3, 2)
    read, unread = place[:, :2].flatten(), place[:, 2:].flatten()
    count, total = len(read), place.numel()
    head = torch.rand(2, count) * 0.1
    plain, inserted, onward = nn.Linear(total, 2), nn.Linear(total, count + 2), nn.Linear(count + 2, 2)
    with torch.no_grad():
        for layer in (plain, inserted, onward):
            layer.weight.zero_()
            layer.bias.zero_()
        plain.weight[:, read] = head
        inserted.weight[torch.arange(count), read] = 1
        inserted.weight[count, unread], inserted.weight[count + 1, unread] = 1, -1
        onward.weight[:, :count], onward.weight[:, count:] = head, 1
    before = nn.Sequential(*features, plain).double().eval()
    after = nn.Sequential(*features, inserted, onward).double().eval()
    volumes = torch.rand(2, 1, 8, 6, 4, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(after(volumes), before(volumes), rtol=1e-12, atol=1e-12)
    composites = {"z+": everywhere(ZPlusRule()), "LRP-0": everywhere(EpsilonRule(0.0))}
    right = {}
    for name, net in (("before", before), ("after", after)):
        for rule, values in maps(net, volumes, composites).items():
            right[name, rule] = float(values[:, :, 4:].abs().sum() / values.abs().sum())
    assert right["before", "z+"] == right["before", "LRP-0"] == 0
    assert right["after", "z+"] > 0.5
    assert right["after", "LRP-0"] < 1e-12


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


# The ledger adds up layer by layer, and the sign says which relevance speaks for the target.


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_layers_hand_relevance_on_without_a_gap(beta: float) -> None:
    answer = lrp_beta(toy_network(), toy_volumes(3), 1, [beta])[beta]
    ledger = answer.ledger
    torch.testing.assert_close(ledger.entries[0].relevance_in, answer.start_value)
    for above, below in zip(ledger.entries, ledger.entries[1:], strict=False):
        torch.testing.assert_close(below.relevance_in, above.relevance_out, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(ledger.entries[-1].relevance_out, answer.values.sum((1, 2, 3, 4)))
    for entry in ledger.entries:
        assert entry.residual.abs().max() < 1e-12 * entry.relevance_in.abs().max()
    assert (ledger.total("lost_no_contribution").abs() > 1e-4).all()


def test_volume_of_zeros_loses_everything_in_the_first_layer() -> None:
    answer = lrp_beta(toy_network(), torch.zeros_like(toy_volumes(1)), 1, [0.25])[0.25]
    first = answer.ledger.entries[-1]
    assert float(answer.values.abs().max()) == 0
    assert float(first.relevance_in) != 0
    assert float(first.lost_no_contribution) == pytest.approx(float(first.relevance_in), rel=1e-12)
    assert float(answer.ledger.residual) == pytest.approx(0, abs=1e-12)


def test_residual_is_what_the_account_leaves_over() -> None:
    numbers = [torch.tensor([value], dtype=torch.float64) for value in (10.0, 4.0, 1.0, 2.0, 0.5)]
    entry = LedgerEntry("conv", *numbers)
    assert float(entry.residual) == 2.5
    ledger = Ledger(numbers[0], numbers[1], (entry, entry))
    assert [float(ledger.total(loss)) for loss in LOSSES] == [2.0, 4.0, 1.0]
    assert float(ledger.residual) == 10 - 4 - 7


def test_table_has_the_numbers_of_one_volume() -> None:
    ledger = lrp_beta(toy_network(), toy_volumes(2), 1, [0.5])[0.5].ledger
    frame = ledger.frame("lrpB050", 1)
    assert list(frame.columns) == list(LEDGER_TABLE.meanings)
    assert list(frame["layer"]) == ["12", "10", "4", "0"]
    assert set(frame["map"]) == {"lrpB050"}
    for name in ("relevance_in", "relevance_out", *LOSSES, "residual"):
        assert list(frame[name]) == [float(getattr(entry, name)[1]) for entry in ledger.entries]


def network(shift: float = 0.0, seed: int = 0) -> StagedModel:
    """Convolution, batch normalisation, pooling and two linear layers, with biases; `shift` moves the logits."""
    torch.manual_seed(seed)
    model = StagedModel(
        [
            nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2)),
            nn.Sequential(nn.Flatten(), nn.Linear(32, 6), nn.ReLU(), nn.Linear(6, 2)),
        ]
    ).double()
    model.stages[1][3].bias.data += shift  # type: ignore[index]
    return model.eval()


def volumes() -> Tensor:
    return torch.rand((8, 1, 4, 4, 4), dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def logits_of_both_signs() -> tuple[StagedModel, Tensor]:
    """A network whose features make logits of both signs: the last bias is 0."""
    for seed in range(50):
        model = network(seed=seed)
        model.stages[1][3].bias.data.zero_()  # type: ignore[index]
        with torch.no_grad():
            logits = model(volumes())[:, 1]
        if bool((logits > 0.01).any()) and bool((logits < -0.01).any()):
            return model, logits
    raise AssertionError("no network with logits of both signs")


def test_lrp_0_is_input_times_gradient_whatever_the_sign_of_the_logit() -> None:
    model, logits = logits_of_both_signs()
    (answer,) = lrp(model, volumes(), 1, [everywhere(EpsilonRule(0.0))])
    expected = attribute(model, volumes(), 1, InputTimesGradient()).values
    torch.testing.assert_close(answer.values, expected, rtol=1e-9, atol=1e-12)
    assert answer.sign is not None
    assert (answer.sign == 1).all()
    torch.testing.assert_close(answer.start_value, logits)


@pytest.mark.parametrize(
    ("rule", "turns"),
    [(BetaRule(0.0), True), (BetaRule(1.0), True), (ZPlusRule(), True), (ZPlusRule(True), True),
     (ZBoxRule(0.0, 1.0), True), (EpsilonRule(0.25), False), (EpsilonRule(0.0, bias=False), False),
     (GammaRule(0.25), False), (GammaRule(0.0, bias=True), False)],
)  # fmt: skip
def test_rules_of_one_sign_turn_with_the_start_value_and_others_do_not(rule: Rule, turns: bool) -> None:
    """One linear layer from amounts to logits: what speaks for a logit is its positive contributions."""
    layer = nn.Linear(4, 2, bias=False).double()
    layer.weight.data = torch.tensor([[1.0, -2.0, 0.5, 0.2], [-1.0, 2.0, -0.5, -0.2]], dtype=torch.float64)
    model = StagedModel([nn.Sequential(nn.Flatten(), layer)]).eval()
    x = torch.tensor([0.4, 0.9, 0.3, 0.2], dtype=torch.float64).view(1, 1, 4, 1, 1)
    for target in (0, 1):
        (answer,) = lrp(model, x, target, [everywhere(rule)])
        assert answer.sign is not None
        negative = float(answer.start_value) < 0
        assert float(answer.sign) == (-1 if turns and negative else 1)
        if not isinstance(rule, ZBoxRule):  # whose contributions are those of distances to the bounds
            contributions = (x.flatten() * layer.weight[target]).detach()
            made = answer.speaking_for.flatten()
            assert (made[contributions > 0] > 0).all()
            assert (made[contributions < 0] <= 0).all()
    logits = model(x).detach()[0]
    assert logits[0] < 0 < logits[1]


def test_without_biases_in_the_denominators_a_map_turns_where_the_bias_makes_the_sign() -> None:
    x = volumes()
    for shift in (-30.0, 30.0):
        model = network(shift)
        with torch.no_grad():
            features = model(x)[:, 1] - model.stages[1][3].bias[1]  # type: ignore[index]
        within, without = lrp(model, x, 1, [everywhere(EpsilonRule(0.1, bias)) for bias in (True, False)])
        assert within.sign is not None
        assert without.sign is not None
        assert (within.sign == 1).all()
        assert torch.equal(without.sign, torch.sign(features) * torch.sign(torch.tensor(shift)))


@pytest.mark.parametrize("rules", [founding(0.0), founding(0.5), focus(), composite()], ids=lambda one: one.name)
def test_the_sign_is_that_of_the_last_layer_of_a_mixture(rules: Composite) -> None:
    """At the last hidden layer positive relevance goes to units with positive weights, once the sign is applied."""
    model, _ = logits_of_both_signs()
    (answer,) = lrp(model, volumes(), 1, [rules], stage="stages.1.2")
    last = model.stages[1][3]  # type: ignore[index]
    made = answer.speaking_for.flatten(1) if answer.values.dim() == 5 else answer.values * answer.sign[:, None]  # type: ignore[index]
    assert (made[:, last.weight[1] > 0] >= 0).all()
    assert (made[:, last.weight[1] < 0] <= 0).all()
    assert float(made.abs().sum()) > 0


def test_a_one_signed_unit_of_negative_contributions_is_not_turned() -> None:
    """The β-rule hands a negative logit to its negative contributions, which speak against the target."""
    layer = nn.Linear(2, 1, bias=False).double()
    layer.weight.data = torch.tensor([[-1.0, -2.0]], dtype=torch.float64)
    model = StagedModel([nn.Sequential(nn.Flatten(), layer)]).eval()
    (answer,) = lrp(model, torch.ones((1, 1, 2, 1, 1), dtype=torch.float64), 0, [founding(1.0)])
    assert answer.speaking_for.flatten().tolist() == [-1.0, -2.0]


def test_the_sign_of_an_output_that_is_a_maximum_over_places() -> None:
    conv = nn.Conv3d(1, 2, 1, bias=False).double()
    conv.weight.data = torch.tensor([-1.0, 1.0], dtype=torch.float64).view(2, 1, 1, 1, 1)
    model = StagedModel([nn.Sequential(conv, nn.AdaptiveMaxPool3d(1), nn.Flatten())]).eval()
    x = torch.rand((1, 1, 3, 3, 3), dtype=torch.float64) + 0.1
    rules = [everywhere(BetaRule(0.5)), everywhere(EpsilonRule(0.0)), everywhere(ZPlusRule())]
    answers = lrp(model, x, 0, rules)
    assert [float(one.sign) for one in answers[:2]] == [1, 1]  # type: ignore[arg-type]
    assert all(float(one.speaking_for.max()) <= 0 for one in answers[:2])
    assert not answers[2].values.any()
