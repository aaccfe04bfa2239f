"""What a method answers: maps with their start values, the ledger of relevance, and the mean over networks.

**Ledger.** Relevance is propagated from the output of the network to its input. For each layer with weights

relevance_in = relevance_out + absorbed_by_bias + lost_no_contribution + stabiliser + residual

with a residual due to rounding only. All sums are float64.

**Mean.** Networks of different folds, or members of an ensemble, explain one scan together by the mean of their maps.
The start value of the mean map is the mean over networks of what is explained (the logit, or the probability).
Relevance is linear in what it starts from, so the mean of the maps explains the mean of the start values: as if the
networks were one whose last layer averages. (The softmax of the mean logits is another quantity, and is not explained.)
Ledgers are averaged too, so that every account still adds up: mean start value = sum of the mean map + mean losses. Of
maps without sign, such as guided backpropagation, the mean is that of the magnitudes, not the magnitude of the mean
gradient: networks whose gradients have opposite signs are both susceptible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.work.host import on_host

LEDGER_TABLE = declared("ledger", __file__)
LOSSES = ("absorbed_by_bias", "lost_no_contribution", "stabiliser")


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
    def of(cls, layer: str, above: Tensor, below: Tensor, losses: Sequence[Tensor | None]) -> LedgerEntry:
        """Balance of a layer from the relevance at its units, at its inputs, and its `LOSSES`, (B,); None for zero."""
        relevance_in = sum_per_volume(above)
        nothing = torch.zeros_like(relevance_in)
        lost = [nothing if loss is None else loss for loss in losses]
        return cls(layer, relevance_in, sum_per_volume(below), *lost)

    def of_volumes(self, count: int) -> LedgerEntry:
        """The balance per volume, where slices or windows of volumes stood in place of these."""
        parts = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "layer"}
        return LedgerEntry(self.layer, **{name: part.reshape(count, -1).sum(1) for name, part in parts.items()})

    @property
    def residual(self) -> Tensor:
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
    if x.device.type != "cpu" or x.dim() < 3:
        return x.flatten(1).sum(1, dtype=torch.float64)
    # PyTorch makes a copy in float64: of a part that stays in the processor's cache
    parts = torch.split(x, max(1, 2**16 * x.shape[2] // max(1, x.numel())), dim=2)
    return torch.stack([part.sum(tuple(range(1, x.dim())), dtype=torch.float64) for part in parts]).sum(0)


@dataclass(frozen=True)
class Attribution:
    """Maps of a batch of volumes."""

    values: Tensor
    """(B, 1, D, H, W), one value per input voxel, on the grid of the input."""
    method: str
    """Its name in the registry."""
    target: int
    """Explained output unit."""
    start_value: Tensor
    """(B,), the explained value of the target: its logit, its softmax probability or its evidence."""
    parameters: Mapping[str, str | float]
    """Settings of the method."""
    ledger: Ledger | None = None
    """Where relevance went; None for methods that are not conservative."""
    reference_value: Tensor | None = None
    """(B,), the same value of the reference, for methods relative to controls, whose maps add up to ``start_value``
    minus this; None for all others."""
    errors: Tensor | None = None
    """(B, 1, D, H, W), standard errors of regions, shared out over their voxels as `values` are; None for a method that
    draws nothing at random."""
    sampling_error: Tensor | None = None
    """(B,), what the sum of the points that were drawn missed before a control variate made it add up; None for a
    method that draws no points."""
    sign: Tensor | None = None
    """(B,), of relevance: -1 where the map as a whole is turned, so that negative values speak for the target; see
    `pipeline.attribution.lrp.rules`. None where positive values always do, and for the mean of several networks."""
    members: Tensor | None = None
    """(M, B, 1, D, H, W), the maps of the members of an ensemble, of methods relative to controls; None for all
    others."""
    channels: Tensor | None = None
    """(B, C, D, H, W), the map of each channel of the input, of which `values` are the sum; None for an input of one
    channel, and a method that makes one map for all channels."""

    @property
    def speaking_for(self) -> Tensor:
        """The map, positive where it speaks for the target."""
        return self.values if self.sign is None else self.values * self.sign.view(-1, 1, 1, 1, 1)


class RunningMean:
    """Mean of the maps, start values and ledgers of several networks, one at a time; all sums in float64."""

    def __init__(self) -> None:
        self._first: Attribution | None = None
        self._total: Tensor | None = None
        self._channels: Tensor | None = None
        names = ("start_value", "ledger", "reference_value", "errors", "sampling_error", "members")
        self._parts: dict[str, list[Any]] = {name: [] for name in names}

    def add(self, attribution: Attribution) -> None:
        """Add the answer of one more network; of the same volume, method and target."""
        if self._first is None:
            self._first = attribution
        else:
            # One map is kept at a time: the first moves into the sum.
            self._total = self._first.values.double() if self._total is None else self._total
            self._first = replace(self._first, values=self._first.values[:0])
            self._total = self._total + attribution.values.double()
        for name, parts in self._parts.items():
            if getattr(attribution, name) is not None:
                parts.append(getattr(attribution, name))
        if attribution.channels is not None:
            channels = attribution.channels.double()
            self._channels = channels if self._channels is None else self._channels + channels

    def result(self) -> Attribution:
        """In the precision of the maps; of one network its answer."""
        assert self._first is not None
        if self._total is None:
            return self._first
        parts, count, dtype = self._parts, len(self._parts["start_value"]), self._first.values.dtype
        values = (self._total / count).to(dtype)
        return replace(
            self._first,
            values=values,
            start_value=_mean(parts["start_value"]),
            ledger=_mean_ledger(parts["ledger"], values) if parts["ledger"] else None,
            reference_value=_mean(parts["reference_value"]) if parts["reference_value"] else None,
            errors=torch.stack(parts["errors"]).norm(dim=0) / len(parts["errors"]) if parts["errors"] else None,
            sampling_error=_mean(parts["sampling_error"]) if parts["sampling_error"] else None,
            sign=None,
            channels=None if self._channels is None else (self._channels / count).to(dtype),
            members=torch.cat(parts["members"]) if parts["members"] else None,
        )


def _mean_ledger(ledgers: Sequence[Ledger], values: Tensor) -> Ledger:
    numbers = [field.name for field in fields(LedgerEntry) if field.name != "layer"]
    entries = tuple(
        LedgerEntry(layers[0].layer, **{name: _mean([getattr(layer, name) for layer in layers]) for name in numbers})
        for layers in zip(*(ledger.entries for ledger in ledgers), strict=True)
    )
    start_value = _mean([ledger.start_value.double() for ledger in ledgers])
    return Ledger(start_value, sum_per_volume(values), entries)


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([tensor.double() for tensor in tensors]).mean(0).to(tensors[0].dtype)
