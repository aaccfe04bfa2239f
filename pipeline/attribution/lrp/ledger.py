"""The conservation ledger: where relevance went, layer by layer.

Relevance is propagated from the output of the network to its input. For each layer with weights

relevance_in = relevance_out + absorbed_by_bias + lost_no_contribution + stabiliser + residual

with a residual due to rounding only. All sums are float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from heatlas.pipeline.attribution.lrp.rules import Messages
from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.run.work.host import on_host

LEDGER_TABLE = Table(
    "ledger",
    {
        "map": "Relevance map, named as in the file names",
        "layer": "Layer with weights, named as in the model, output first",
        "relevance_in": "Relevance that arrived at the layer's units",
        "relevance_out": "Relevance passed on to the layer's inputs",
        "absorbed_by_bias": "Relevance absorbed by biases (0 for the beta-rule, which ignores biases); of inherent "
        "maps what constants of the layer add to the evidence of the scan, whose voxels add the rest (before that of "
        "controls is taken away)",
        "lost_no_contribution": "Relevance of units without a contribution that the rule can pass it to",
        "stabiliser": "Relevance absorbed by the stabiliser of the denominator (0 for rules without one)",
        "residual": "relevance_in minus relevance_out and all losses: rounding error",
    },
    "map and layer with weights", "Where did relevance go, layer by layer?", stage="attribution",
    file="sub-*/relevance/*_desc-lrp_ledger.tsv",
)  # fmt: skip
LOSSES = ("absorbed_by_bias", "lost_no_contribution", "stabiliser")


@dataclass(frozen=True)
class Losses:
    """Relevance that a layer did not pass on, float64 of shape (B,); None for zero."""

    bias: Tensor | None = None
    lost: Tensor | None = None
    stabiliser: Tensor | None = None

    @classmethod
    def of(cls, message: Messages) -> Losses:
        """Losses of a message, summed over units."""
        parts = (message.bias, message.lost, message.stabiliser)
        return cls(*(None if part is None else sum_per_volume(part) for part in parts))


@dataclass(frozen=True)
class LedgerEntry:
    """Balance of one layer; every value is float64 of shape (B,), one number per volume."""

    layer: str
    relevance_in: Tensor
    relevance_out: Tensor
    absorbed_by_bias: Tensor
    lost_no_contribution: Tensor
    stabiliser: Tensor

    @classmethod
    def of(cls, layer: str, above: Tensor, below: Tensor, losses: Losses) -> LedgerEntry:
        """Balance of a layer from the relevance at its units and at its inputs."""
        relevance_in = sum_per_volume(above)
        nothing = torch.zeros_like(relevance_in)
        lost = [nothing if loss is None else loss for loss in (losses.bias, losses.lost, losses.stabiliser)]
        return cls(layer, relevance_in, sum_per_volume(below), *lost)

    @property
    def residual(self) -> Tensor:
        """relevance_in minus relevance_out and all losses."""
        lost = self.absorbed_by_bias + self.lost_no_contribution + self.stabiliser
        return self.relevance_in - self.relevance_out - lost


def constant_entry(layer: str, relevance: Tensor) -> LedgerEntry:
    """Relevance of a constant that a layer joins to its values (a class token, another input): absorbed like a bias."""
    arrived = sum_per_volume(relevance)
    nothing = torch.zeros_like(arrived)
    return LedgerEntry(layer, arrived, nothing, arrived, nothing, nothing)


@dataclass(frozen=True)
class Ledger:
    """Balances of all layers with weights, from output to input, and of the whole network.

    `start_value`: (B,), value that relevance started from. `map_sum`: (B,), float64 sum of the finished map.
    """

    start_value: Tensor
    map_sum: Tensor
    entries: tuple[LedgerEntry, ...]

    def total(self, loss: str) -> Tensor:
        """One of `LOSSES`, or ``residual``, summed over layers; (B,)."""
        if not self.entries:
            return torch.zeros_like(self.map_sum)
        return torch.stack([getattr(entry, loss) for entry in self.entries]).sum(0)

    @property
    def residual(self) -> Tensor:
        """Start value minus map and losses, (B,): rounding, including that between layers."""
        losses = torch.stack([self.total(loss) for loss in LOSSES]).sum(0)
        return self.start_value.double() - self.map_sum - losses

    def frame(self, map_name: str, index: int) -> pd.DataFrame:
        """Balances of volume number `index` as rows of `LEDGER_TABLE`."""
        values = [name for name in LEDGER_TABLE.meanings if name not in ("map", "layer")]
        rows = [
            [map_name, entry.layer, *(float(on_host(getattr(entry, name)[index])) for name in values)]
            for entry in self.entries
        ]
        return pd.DataFrame(rows, columns=["map", "layer", *values])


def sum_per_volume(x: Tensor) -> Tensor:
    """Sum over everything but the batch axis, in float64; (B,)."""
    return x.flatten(1).sum(1, dtype=torch.float64)
