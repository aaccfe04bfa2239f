"""Comparison with independent libraries, where they are installed (they are no dependencies)."""

from __future__ import annotations

import pytest
import torch
from lrp_toys import lrp_beta, plain_network, toy_network, toy_volumes
from torch import nn
from zennit_oracle import stub_torchvision, zennit_lrp_beta

from heatlas.pipeline.attribution.gradient.guided_backprop import guided_backprop

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("batch_norm", ["fold", "identity"])
@pytest.mark.parametrize("beta", [0.0, 0.25, 0.5, 1.0])
def test_lrp_beta_equals_zennit(beta: float, batch_norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense volume and no one-signed units: zennit loses the relevance of both kinds of unit."""
    stub_torchvision(monkeypatch)
    pytest.importorskip("zennit")
    torch.manual_seed(7)
    net = plain_network()
    with torch.no_grad():
        net[1].weight[1] *= -1
        net[5].weight[3] *= -1
    volumes = torch.rand(2, 1, 11, 14, 8, dtype=torch.float64)
    ours = lrp_beta(net, volumes, 1, [beta], batch_norm=batch_norm)[beta]
    assert float(ours.ledger.total("lost_no_contribution").abs().max()) == 0
    theirs = zennit_lrp_beta(net, volumes, 1, beta, batch_norm == "fold")
    torch.testing.assert_close(ours.values, theirs, rtol=0, atol=1e-9 * float(theirs.abs().max()))


def test_guided_backprop_equals_captum() -> None:
    captum = pytest.importorskip("captum.attr")
    net, volumes = toy_network(), toy_volumes()
    net[6] = nn.ReLU()
    theirs = captum.GuidedBackprop(net).attribute(volumes.clone().requires_grad_(), target=1).abs().detach()
    torch.testing.assert_close(guided_backprop(net, volumes, 1).values, theirs, rtol=1e-12, atol=0)
