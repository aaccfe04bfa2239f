"""The ledger: per-layer accounts add up, and its table says what the tensors say."""

from __future__ import annotations

import pytest
import torch
from lrp_toys import lrp_beta, toy_network, toy_volumes

from heatlas.pipeline.attribution.lrp.ledger import LEDGER_TABLE, LOSSES, Ledger, LedgerEntry


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
