"""The mean of the maps of several networks that explain one scan: of different folds, or members of an ensemble.

The start value of the mean map is the mean over networks of what is explained (the logit, or the probability).
Relevance is linear in what it starts from, so the mean of the maps explains the mean of the start values: as if the
networks were one whose last layer averages. (The softmax of the mean logits is another quantity, and is not explained.)
Ledgers are averaged too, so that every account still adds up: mean start value = sum of the mean map + mean losses.

Of maps without sign, such as guided backpropagation, the mean is that of the magnitudes, not the magnitude of the mean
gradient: networks whose gradients have opposite signs are both susceptible.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import fields

import torch

from heatlas.pipeline.attribution.lrp.ledger import Ledger, LedgerEntry, sum_per_volume
from heatlas.pipeline.attribution.records import Attribution


class RunningMean:
    """Mean of the maps, start values and ledgers of several networks, one at a time; all sums in float64."""

    def __init__(self) -> None:
        self._first: Attribution | None = None
        self._total: torch.Tensor | None = None
        self._start_values: list[torch.Tensor] = []
        self._ledgers: list[Ledger] = []
        self._references: list[torch.Tensor] = []
        self._errors: list[torch.Tensor] = []
        self._sampling: list[torch.Tensor] = []
        self._members: list[torch.Tensor] = []
        self._channels: torch.Tensor | None = None

    def add(self, attribution: Attribution) -> None:
        """Add the answer of one more network; of the same volume, method and target."""
        if self._first is None:
            self._first = attribution
        else:
            # One map is kept at a time: the first moves into the sum.
            self._total = self._first.values.double() if self._total is None else self._total
            self._first = dataclasses.replace(self._first, values=self._first.values[:0])
            self._total = self._total + attribution.values.double()
        self._start_values.append(attribution.start_value)
        if attribution.ledger is not None:
            self._ledgers.append(attribution.ledger)
        if attribution.reference_value is not None:
            self._references.append(attribution.reference_value)
        if attribution.errors is not None:
            self._errors.append(attribution.errors)
        if attribution.sampling_error is not None:
            self._sampling.append(attribution.sampling_error)
        if attribution.members is not None:
            self._members.append(attribution.members)
        if attribution.channels is not None:
            own = attribution.channels.double()
            self._channels = own if self._channels is None else self._channels + own

    def result(self) -> Attribution:
        """The mean, in the precision of the maps; of one network its own answer."""
        assert self._first is not None
        if self._total is None:
            return self._first
        values = (self._total / len(self._start_values)).to(self._first.values.dtype)
        ledger = _mean_ledger(self._ledgers, values) if self._ledgers else None
        reference = _mean(self._references) if self._references else None
        errors = torch.stack(self._errors).norm(dim=0) / len(self._errors) if self._errors else None
        sampling = _mean(self._sampling) if self._sampling else None
        return dataclasses.replace(
            self._first, values=values, start_value=_mean(self._start_values), ledger=ledger, reference_value=reference,
            errors=errors, sampling_error=sampling, sign=None,
            channels=None if self._channels is None else (self._channels / len(self._start_values)).to(values.dtype),
            members=torch.cat(self._members) if self._members else None,
        )  # fmt: skip


def _mean_ledger(ledgers: Sequence[Ledger], values: torch.Tensor) -> Ledger:
    numbers = [field.name for field in fields(LedgerEntry) if field.name != "layer"]
    entries = tuple(
        LedgerEntry(layers[0].layer, **{name: _mean([getattr(layer, name) for layer in layers]) for name in numbers})
        for layers in zip(*(ledger.entries for ledger in ledgers), strict=True)
    )
    start_value = _mean([ledger.start_value.double() for ledger in ledgers])
    return Ledger(start_value, sum_per_volume(values), entries)


def _mean(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack([tensor.double() for tensor in tensors]).mean(0).to(tensors[0].dtype)
