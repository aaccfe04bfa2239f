"""The ledger of inherent maps, and which scans show a feature of an inner layer most."""

import math

import pytest
import torch
from inherent_toys import bcos, scans
from torch import Tensor, nn

from heatlas.pipeline.attribution.inherent.contributions import Inherent, contrast
from heatlas.pipeline.attribution.inherent.ledger import balances, inherent_ledger
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.dynamic.calibration import calibrate
from heatlas.pipeline.models.dynamic.encoding import InputEncoding
from heatlas.pipeline.models.dynamic.linear_map import dynamic_weights
from heatlas.pipeline.models.dynamic.logits import LogitLayer
from heatlas.pipeline.models.families.bcos.layers import BcosConv3d
from heatlas.pipeline.models.families.bcos.records import BcosViTConfig
from heatlas.pipeline.models.families.bcos.vit import Positions
from heatlas.pipeline.models.families.coda.dau import CodaConv3d
from heatlas.pipeline.models.families.coda.network import SumPool
from heatlas.pipeline.models.families.registry import build_network


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
