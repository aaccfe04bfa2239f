"""One scan explained by several networks: the mean of their maps.

The start value of the answer is the mean over networks of what is explained (the logit, or the probability; whichever
`start_value` says). Seen as one network whose last layer averages, each member passes on its share of that mean: its
own value divided by the number of members. Relevance is linear in what it starts from, so the explanation of a mean of
logits is the mean of the explanations, and with the start value "probability" the same holds for the mean of the
probabilities. (The softmax of the mean logits is another quantity, and is not explained.) Ledgers are averaged with
the maps, so every account still adds up: mean start value = sum of the mean map + mean losses.

Guided backpropagation has no start value to share out. Its map is the mean of the members' magnitudes, not the
magnitude of the mean gradient: members with gradients of opposite sign are both susceptible.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from pipeline.attribution.lrp.ledger import Ledger, LedgerEntry, sum_per_volume
from pipeline.attribution.records import Attribution
from pipeline.cohort.people.unseen import require_unseen
from pipeline.explaining.explained_scan import (
    ExplainedScan,
    ScanToExplain,
    cached_model,
    explained_scan,
    write_map,
    write_scan_tables,
)
from pipeline.models.device import chosen_device
from pipeline.run.errors import BadInputError
from pipeline.run.layout.scan_files import ScanFiles


@dataclass(frozen=True)
class EnsembleToExplain:
    """One scan and the networks that explain it together.

    Parameters
    ----------
    members : tuple of ScanToExplain
        The same scan, each with another network that has not seen its participant.
    """

    members: tuple[ScanToExplain, ...]

    @property
    def files(self) -> ScanFiles:
        return self.members[0].files


def explain_by_ensemble(outputs: Mapping[str, Path], task: EnsembleToExplain) -> Mapping[str, float]:
    """Explain one scan by several networks; the work of one job.

    Parameters
    ----------
    outputs : mapping of str to Path
        As for `pipeline.explaining.explained_scan.explain_scan`.
    task : EnsembleToExplain

    Returns
    -------
    mapping of str to float
        Account of each LRP map, averaged over networks.

    Raises
    ------
    BadInputError
        If a network or the scan cannot be read or do not fit, or a network has seen the participant.
    """
    explained = mean_explanation(task.members)
    for name, attribution in explained.attributions.items():
        if name in outputs:
            write_map(outputs, name, attribution, explained.loaded, task.members)
    return write_scan_tables(outputs, explained, task.members[0])


def mean_explanation(members: Sequence[ScanToExplain]) -> ExplainedScan:
    """Explain a scan by each network and average; raises as `explain_by_ensemble`."""
    first: ExplainedScan | None = None
    means: dict[str, RunningMean] = {}
    for member in members:
        network = cached_model(member.model, member.weights_digest, chosen_device(member.training))
        require_unseen(network.description, str(member.model.description), [member.scan.participant_id])
        explained = explained_scan(member)
        if first is None:
            first = explained
        elif explained.loaded.input != first.loaded.input:
            raise BadInputError(
                f"{member.model.description}: sees another part of the template than the other networks. Train all "
                "folds with the same settings."
            )
        for name, attribution in explained.attributions.items():
            means.setdefault(name, RunningMean()).add(attribution)
    assert first is not None
    return dataclasses.replace(first, attributions={name: mean.result() for name, mean in means.items()})


class RunningMean:
    """Mean of the maps, start values and ledgers of several networks, one at a time; all sums in float64."""

    def __init__(self) -> None:
        self._first: Attribution | None = None
        self._total: torch.Tensor | None = None
        self._start_values: list[torch.Tensor] = []
        self._ledgers: list[Ledger] = []

    def add(self, attribution: Attribution) -> None:
        """Add the answer of one more network; of the same volume, method and target."""
        values = attribution.values.double()
        self._total = values if self._total is None else self._total + values
        # Only one map is kept: the others are in the sum.
        self._first = self._first or dataclasses.replace(attribution, values=attribution.values[:0])
        self._start_values.append(attribution.start_value)
        if attribution.ledger is not None:
            self._ledgers.append(attribution.ledger)

    def result(self) -> Attribution:
        """The mean, in float32 as the maps of single networks are."""
        assert self._first is not None
        assert self._total is not None
        values = (self._total / len(self._start_values)).to(self._first.values.dtype)
        ledger = _mean_ledger(self._ledgers, values) if self._ledgers else None
        return dataclasses.replace(self._first, values=values, start_value=_mean(self._start_values), ledger=ledger)


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
