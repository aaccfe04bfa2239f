"""Layer-wise relevance propagation with the β-rule through a 3D network, for several β at once.

Choices (each changes maps; see `pipeline.attribution.rules` for those of the rule): biases take no part; batch
normalisation is folded into the convolution before it, or passed as identity; relevance of a pooling window goes to
its winner; ReLU, dropout and flattening pass relevance on. One forward pass and one set of contribution sums serve all
β; only the way back is walked once per β, in a loop, because a larger batch is slower and larger on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pipeline.attribution.ledger import Ledger, LedgerEntry, sum_per_volume
from pipeline.attribution.linear_maps import paired
from pipeline.attribution.numerics import exact_float32
from pipeline.attribution.planner import BatchNormMode, plan_relevance
from pipeline.attribution.pooling import scatter
from pipeline.attribution.records import Attribution
from pipeline.attribution.rules import Messages, beta_messages, both_parts, merge_signs, redistribute
from pipeline.attribution.tape import Record, Shared, Tape, record_forward
from pipeline.attribution.targets import StartValue, require_explainable, start_values
from pipeline.run.errors import UsageError


def lrp_beta(
    model: nn.Module,
    volumes: Tensor,
    target: int,
    betas: Sequence[float],
    start: StartValue = "logit",
    batch_norm: BatchNormMode = "fold",
) -> dict[float, Attribution]:
    """Explain one output of a model with the LRP β-rule.

    Parameters
    ----------
    model : StagedModel or nn.Sequential
        In evaluation mode; not changed in any way.
    volumes : Tensor
        (B, 1, D, H, W), in the precision and on the device of the model.
    target : int
        Output unit to explain.
    betas : sequence of float
        Any real numbers; 0 uses positive contributions only.
    start : {"logit", "probability"}
        Value that relevance starts from; a negative logit gives a negated map.
    batch_norm : {"fold", "identity"}

    Returns
    -------
    dict of float to Attribution
        One per β, in the order asked for. In each, start value = sum of the map + losses of the ledger.

    Raises
    ------
    UsageError
        For a layer, option, target, β or mode that is not supported, before any work.
    BadInputError
        For volumes that do not fit the model or are not finite.
    """
    if not betas or not torch.isfinite(torch.tensor(list(betas), dtype=torch.float64)).all():
        raise UsageError(f"betas = {list(betas)}: name at least one, all finite.")
    steps = plan_relevance(model, batch_norm)
    require_explainable(model, volumes)
    with torch.no_grad(), exact_float32(volumes.device):
        tape = record_forward(steps, volumes, with_negative=any(beta != 0 for beta in betas))
        start_value = start_values(tape.logits, target, start)
        answers = {}
        for beta in betas:
            values, ledger = propagate(tape, start_value, target, beta)
            parameters: dict[str, str | float] = {"beta": beta, "start": start, "batch_norm": batch_norm}
            answers[beta] = Attribution(values, "lrp-beta", target, start_value, parameters, ledger)
    return answers


def propagate(tape: Tape, start_value: Tensor, target: int, beta: float) -> tuple[Tensor, Ledger]:
    """Walk a tape back from one output to the input.

    Parameters
    ----------
    tape : Tape
    start_value : Tensor
        (B,).
    target : int
        Output unit.
    beta : float

    Returns
    -------
    tuple of (Tensor, Ledger)
        The map, of the shape of the volumes, and its account.
    """
    relevance = torch.zeros_like(tape.logits)
    relevance[:, target] = start_value
    entries = []
    for record in reversed(tape.records):
        relevance, entry = _step_back(record, relevance, beta)
        if entry is not None:
            entries.append(entry)
    return relevance, Ledger(start_value, sum_per_volume(relevance), tuple(entries))


def _step_back(record: Record, relevance: Tensor, beta: float) -> tuple[Tensor, LedgerEntry | None]:
    """Relevance at the input of a step from that at its output, and the layer's account if it has weights."""
    winners, shared, shape = record.winners, record.shared, record.pooled_shape
    if shared is None:
        below = relevance if winners is None else scatter(relevance.reshape(winners.shape), winners, shape)
        return below.reshape(record.input_shape), None
    relevance = relevance.reshape(shared.contributions.positive.shape)  # undoes a flattening
    messages = beta_messages(shared.contributions, relevance, beta)
    below = _to_inputs(shared, messages, winners, shape)
    if shared.signed:
        below = merge_signs(below, shared.linear)
    nothing = torch.zeros(len(below), dtype=torch.float64, device=below.device)
    entry = LedgerEntry(
        layer=record.step.name,
        relevance_in=sum_per_volume(relevance),
        relevance_out=sum_per_volume(below),
        absorbed_by_bias=nothing,
        lost_no_contribution=sum_per_volume(messages.lost),
        stabiliser=nothing,
    )
    return below, entry


def _to_inputs(shared: Shared, messages: Messages, winners: Tensor | None, shape: Sequence[int]) -> Tensor:
    """Relevance at a layer's inputs from the messages at its units, or at those that won a max-pooling."""
    linear, s = shared.linear, messages.positive
    parts = shared.weight.clamp(min=0)
    if messages.negative is not None:
        parts = both_parts(shared.weight, linear)
        s = paired(s, messages.negative, linear.channel_axis, linear.groups)
    if winners is not None:
        if messages.negative is not None:
            winners = paired(winners, winners, linear.channel_axis, linear.groups)
        s = scatter(s, winners, (*s.shape[:2], *shape[2:]))
    return redistribute(shared.x, parts, linear, s)
