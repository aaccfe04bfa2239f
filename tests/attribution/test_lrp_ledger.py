"""The ledger adds up layer by layer, and the sign says which relevance speaks for the target."""

from __future__ import annotations

import pytest
import torch
from lrp_toys import everywhere, lrp_beta, toy_network, toy_volumes
from torch import Tensor, nn

from heatlas.pipeline.attribution.gradient.gradients import InputTimesGradient
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
