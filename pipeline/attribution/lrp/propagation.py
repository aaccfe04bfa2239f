"""Backward pass of LRP: relevance of the inputs of each step from that of its output, for several rules at once.

Attention follows the rules of AttnLRP (Achtibat et al. 2024). A softmax is expanded to first order (Deep Taylor): an
input gets its value times what its derivative hands back, and the rest is a constant, which absorbs its share. A
product of two values that both depend on the volume (queries and keys, attention weights and values) gives each factor
half, in proportion to its contributions. Neither depends on the rules of layers with weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heatlas.pipeline.attribution.graph.layers import Averaging, Convolution, MaxPool, gather, paired, scatter
from heatlas.pipeline.attribution.graph.planner import LOCAL, RelevancePlan, Weights
from heatlas.pipeline.attribution.graph.tape import Record, Tape
from heatlas.pipeline.attribution.lrp.rules import (
    UNWEIGHTED,
    BetaRule,
    Composite,
    Contributors,
    Messages,
    Rule,
    merge_copies,
    products,
)
from heatlas.pipeline.attribution.lrp.winners import divide_by_beta, sparse_pays, winner_relevance
from heatlas.pipeline.attribution.records import LOSSES, LedgerEntry, constant_entry, sum_per_volume
from heatlas.pipeline.models.graph.operations import Concatenate, Moved, Sum
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.work.host import on_host


def softmax_relevance(x: Tensor, s: Tensor, relevance: Tensor, dim: int) -> Tensor:
    """``x_i (R_i - s_i sum_j R_j)`` for ``s = softmax(x)``; masked inputs (minus infinity) get none.

    Source: Achtibat et al. 2024, proposition 3.1.

    >>> x = torch.tensor([1.0, 1.0])
    >>> softmax_relevance(x, torch.softmax(x, 0), torch.tensor([0.0, 1.0]), 0)
    tensor([-0.5000,  0.5000])
    """
    shares = x * (relevance - s * relevance.sum(dim, keepdim=True))
    return torch.where(torch.isfinite(x), shares, 0)


def product_relevance(product: Tensor, factors: Sequence[Tensor], message: Tensor) -> list[Tensor]:
    """Relevance of both factors: each value times what the derivative hands back of half the message.

    ``R_a = a * d/da <s / 2, f(a, b)>``, of which both parts sum to ``<s, f(a, b)>``.

    Source: Achtibat et al. 2024, proposition 3.3.

    `product`: ``f(a, b)``, linear in both factors, which are leaves of its graph. `message`: s, relevance per unit of
    the product.
    """
    halves = back(product, factors, message / 2)
    return [factor.detach() * half for factor, half in zip(factors, halves, strict=True)]


def back(value: Tensor, leaves: Sequence[Tensor], message: Tensor) -> list[Tensor]:
    """What the derivative of a value hands back to its leaves."""
    return list(torch.autograd.grad(value, list(leaves), message, retain_graph=True))


ROUNDING = 1e-5
"""Part of the relevance that may be lost in sums without an entry in the ledger."""
Relevance = list[Tensor]
"""One tensor per rule."""
Losses = Sequence[Tensor | None]
"""Relevance that a layer did not pass on, (B,), in the order of `pipeline.attribution.records.LOSSES`."""


def propagate(
    plan: RelevancePlan, tape: Tape, seed: Tensor, composites: Sequence[Composite]
) -> tuple[Relevance, list[tuple[LedgerEntry, ...]], list[Tensor]]:
    """Propagate relevance from the output to the boundary of the plan.

    `seed`: (B, K), relevance of the outputs. Returns, for each composite, relevance at the boundary, the balance of
    each step that redistributes relevance, and the sign (B,) of the relevance that speaks for the output
    (`pipeline.attribution.lrp.rules`).
    """
    at: dict[str, Relevance] = {plan.program.result: [seed] * len(composites)}
    entries: list[list[LedgerEntry]] = [[] for _ in composites]
    signs: list[Tensor] = []
    for record in reversed(tape.records):
        if record.step.value == plan.boundary:
            break
        if record.step.value not in at:
            continue
        relevance = at.pop(record.step.value)
        if not signs and (record.step.weights is not None or _is_unweighted(record)):
            signs = _speaking_signs(record, relevance, composites)
        below, accounts = _step_back(record, relevance, composites)
        if accounts:
            for book, account in zip(entries, accounts, strict=True):
                book.append(account.of_volumes(len(seed)))
        for name, part in zip(record.step.inputs, below, strict=True):
            if name in plan.program.constants:
                for book, relevance_of in zip(entries, part, strict=True):
                    book.append(constant_entry(record.step.name, relevance_of).of_volumes(len(seed)))
                continue
            at[name] = part if name not in at else [a + b for a, b in zip(at[name], part, strict=True)]
    answer = at.pop(plan.boundary)
    if at:
        raise UsageError("a skip connection carries relevance past this stage; choose a layer where all paths meet.")
    return answer, [tuple(book) for book in entries], signs or [torch.ones_like(seed[:, 0])] * len(composites)


def _step_back(
    record: Record, relevance: Relevance, composites: Sequence[Composite]
) -> tuple[list[Relevance], list[LedgerEntry]]:
    """Relevance at the inputs of a step, per input and rule; and its balances, if it redistributes relevance."""
    step, shape = record.step, record.unit_shape
    if step.weights is not None:
        rules = [_rule_of(step.weights, composite) for composite in composites]
        below, accounts = _through_weights(record, step.weights, _shaped(record, relevance), rules)
        return [below], accounts
    relevance = _shaped(record, relevance)
    if record.winners is not None:
        relevance = [scatter(r, record.winners, shape) for r in relevance]
    if _is_unweighted(record):
        parts = [_through_unweighted(record, r, c.unweighted) for r, c in zip(relevance, composites, strict=True)]
        by_input = [[below[place] for below, _ in parts] for place in range(len(record.inputs))]
        return by_input, _accounts(
            record, relevance, [sum_inputs(below) for below, _ in parts], [_losses(message) for _, message in parts]
        )
    if isinstance(step.head, Concatenate):
        axis = step.head.axis
        sizes = [a.shape[axis] for a in record.inputs]
        split = [torch.split(r, sizes, dim=axis) for r in relevance]
        return [[parts[place] for parts in split] for place in range(len(sizes))], []
    if isinstance(step.head, LOCAL):
        return _through_local(record, relevance)
    if isinstance(step.head, nn.ConstantPad3d):
        below = [F.pad(r, [-side for side in step.head.padding]) for r in relevance]
        return [below], _kept_by_constants(record, relevance, below)
    return [[r.reshape(record.inputs[0].shape) for r in relevance]], []


def _rule_of(weights: Weights, composite: Composite) -> Rule:
    if weights.first:
        return composite.first
    return composite.convolution if isinstance(weights.linear, Convolution) else composite.linear


def _is_unweighted(record: Record) -> bool:
    """Whether a step divides relevance without weights: an average pooling or a sum."""
    return record.step.averaging is not None or isinstance(record.step.head, Sum)


def _speaking_signs(record: Record, relevance: Relevance, composites: Sequence[Composite]) -> list[Tensor]:
    """Sign (B,) per composite of the relevance that speaks for the output: that of the output's message.

    The relevance of all other outputs is 0, and so is their message. Both messages of a unit have the same sign, unless
    β lies between -1 and 0; then that of the positive contributions counts.
    """
    signs = []
    for relevance_of, composite in zip(_shaped(record, relevance), composites, strict=True):
        if record.step.weights is None:
            whole = relevance_of if record.winners is None else scatter(relevance_of, record.winners, record.unit_shape)
            messages = composite.unweighted.messages(*_unweighted_sums(record), None, whole)
        else:
            weights, rule = record.step.weights, _rule_of(record.step.weights, composite)
            contributors = rule.contributors(record.inputs[0], weights.weight, weights.linear)
            sums = _SharedLayer(record, weights, contributors).sums(with_negative=True)
            messages = rule.messages(*sums, weights.bias, relevance_of)
        positive = messages.positive.flatten(1).sum(1)
        negative = torch.zeros_like(positive) if messages.negative is None else messages.negative.flatten(1).sum(1)
        signs.append(torch.where(torch.where(positive == 0, negative, positive) < 0, -1.0, 1.0).to(positive))
    return signs


def sum_inputs(parts: Sequence[Tensor]) -> Tensor:
    """Total relevance per volume of the inputs of a step, (B, 1)."""
    return torch.stack([sum_per_volume(part) for part in parts]).sum(0)[:, None]


def _shaped(record: Record, relevance: Relevance) -> Relevance:
    """Relevance in the shape of the step's output (a later flattening changes it)."""
    shape = record.unit_shape if record.winners is None else record.winners.shape
    return [r.reshape(shape) for r in relevance]


def _through_weights(
    record: Record, weights: Weights, relevance: Relevance, rules: Sequence[Rule]
) -> tuple[Relevance, list[LedgerEntry]]:
    below: Relevance = [relevance[0]] * len(rules)
    losses: list[Losses] = [()] * len(rules)
    places_of: dict[object, list[int]] = {}  # of rules with the same contributions
    for place, rule in enumerate(rules):
        places_of.setdefault("products" if rule.contributors is products else id(rule), []).append(place)
    for places in places_of.values():
        of_group = [rules[place] for place in places]
        contributors = of_group[0].contributors(record.inputs[0], weights.weight, weights.linear)
        layer = _SharedLayer(record, weights, contributors)
        division = _Division(of_group, [relevance[place] for place in places], weights.bias, layer.parts)
        for place, answer, lost in zip(places, layer.hand_down(division), division.lost.sum(-1), strict=True):
            below[place], losses[place] = answer, lost.unbind()
    return below, _accounts(record, relevance, below, losses)


class _Division:
    """Messages of rules with the same contributions, and what each loses (`LOSSES`), by volume and part."""

    def __init__(self, rules: Sequence[Rule], relevance: Relevance, bias: Tensor | None, parts: int) -> None:
        self.rules, self.relevance, self.bias = rules, relevance, bias
        self.lost = relevance[0].new_zeros(len(rules), len(LOSSES), len(relevance[0]), parts, dtype=torch.float64)

    def messages(self, part: tuple[slice, ...], positive: Tensor, negative: Tensor | None) -> Iterator[Messages]:
        for rule, relevance, lost in zip(self.rules, self.relevance, self.lost, strict=True):  # one in memory at a time
            message = rule.messages(positive, negative, self.bias, relevance[part])
            for own, loss in zip(lost, _losses(message), strict=True):
                if loss is not None:
                    own[part[::2]] = loss[:, None]
            yield message

    def write(self, part: tuple[slice, ...], sums: Tensor, sent: Tensor) -> None:
        """Write the messages of one plane; see `winner_relevance`."""
        betas = [rule.beta for rule in self.rules if isinstance(rule, BetaRule)]
        if len(betas) == len(self.rules):
            relevance = torch.stack([relevance[part].movedim(1, -1) for relevance in self.relevance])
            self.lost[:, 1][:, *part[::2]] = divide_by_beta(betas, sums, relevance, sent)[:, None, None]
            return
        for own, message in zip(sent, self.messages(part, *_as_units(sums)), strict=True):
            for side, values in zip(_as_units(own), (message.positive, message.negative), strict=True):
                if values is not None:
                    side.copy_(values)


def _as_units(pair: Tensor) -> Tensor:
    """(2, h, w, C) as two tensors (1, C, 1, h, w)."""
    return pair[:, None, None].movedim(-1, 2)


class _SharedLayer:
    """Sums of contributions of a layer, and propagation of messages to its inputs."""

    def __init__(self, record: Record, weights: Weights, contributors: Contributors) -> None:
        self.winners, self.shape = record.winners, record.unit_shape
        self.linear, self.c = weights.linear, contributors
        pool = record.step.pool
        self.pool = pool if isinstance(pool, MaxPool) and sparse_pays(weights.linear, pool, contributors.x) else None
        self.parts = 1 if self.pool is None or self.winners is None else self.winners.shape[2]

    def sums(self, with_negative: bool) -> tuple[Tensor, Tensor | None]:
        """``z+`` and ``z-`` at the units, or at the winners among them."""
        x, weight, linear = self.c.x, self.c.weight, self.linear
        positive = self._at_winners(linear.apply(x, weight.clamp(min=0)))
        return positive, self._at_winners(linear.apply(x, weight.clamp(max=0))) if with_negative else None

    def _at_winners(self, sums: Tensor) -> Tensor:
        return sums if self.winners is None else gather(sums, self.winners)

    def hand_down(self, division: _Division) -> Relevance:
        x, weight, linear = self.c.x, self.c.weight, self.linear
        if self.pool is None or self.winners is None or not isinstance(linear, Convolution):
            sums = self.sums(with_negative=any(rule.uses_negative for rule in division.rules))
            messages = division.messages((slice(None),), *sums)
            return [merge_copies(self._dense(message).mul_(x), self.c.copies, linear) for message in messages]
        layer = x, weight, linear, self.pool, self.winners, self.shape[2:]
        down = winner_relevance(*layer, len(division.rules), division.write)
        return [merge_copies(relevance, self.c.copies, linear) for relevance in down]

    def _dense(self, message: Messages) -> Tensor:
        """``W+^T s+ + W-^T s-`` in one transposed map."""
        linear, weight, s, winners = self.linear, self.c.weight, message.positive, self.winners
        if message.negative is None:
            weight = weight.clamp(min=0)
        elif message.negative is not message.positive:
            weight = paired(weight.clamp(min=0), weight.clamp(max=0), 0, linear.groups)
            s = paired(s, message.negative, linear.channel_axis, linear.groups)
            winners = None if winners is None else paired(winners, winners, linear.channel_axis, linear.groups)
        if winners is not None:
            s = scatter(s, winners, (*s.shape[:2], *self.shape[2:]))
        return linear.transpose(s, weight, self.c.x.shape)


def _through_unweighted(record: Record, relevance: Tensor, rule: Rule) -> tuple[list[Tensor], Messages]:
    """Through a sum or an average pooling; coefficients are positive, so contributions have the inputs' signs."""
    averaging = record.step.averaging
    messages = rule.messages(*_unweighted_sums(record), None, relevance)
    below = []
    for a in record.inputs:
        up = _back_unweighted(averaging, messages.positive, a)
        down = None if messages.negative is None else _back_unweighted(averaging, messages.negative, a)
        below.append(a.clamp(min=0) * up if down is None else torch.where(a > 0, a * up, a * down))
    return below, messages


def _through_local(record: Record, relevance: Relevance) -> tuple[list[Relevance], list[LedgerEntry]]:
    """Through attention: products of matrices, softmaxes, and values that are moved."""
    head, local, leaves = record.step.head, record.local, record.inputs
    assert local is not None
    if isinstance(head, Moved):
        below = [back(local, leaves, r.reshape(local.shape))[0] for r in relevance]
        return [below], _kept_by_constants(record, relevance, below)
    parts: list[list[Tensor]] = []
    losses: list[Losses] = []
    for relevance_of in relevance:
        r = relevance_of.reshape(local.shape)
        if isinstance(head, nn.Softmax):
            passed = softmax_relevance(leaves[0].detach(), local.detach(), r, head.dim or 0)
            parts.append([passed])
            losses.append((sum_per_volume(r) - sum_per_volume(passed), None, None))
        else:
            messages = UNWEIGHTED.messages(local.detach(), None, None, r)
            parts.append(product_relevance(local, leaves, messages.positive))
            losses.append(_losses(messages))
    by_input = [[below[place] for below in parts] for place in range(len(leaves))]
    return by_input, _accounts(record, relevance, [sum_inputs(below) for below in parts], losses)


def _kept_by_constants(record: Record, relevance: Relevance, below: Relevance) -> list[LedgerEntry]:
    """Balances of values among which are constants (a border, a mask), if more than rounding stays with these."""
    sums = [(sum_per_volume(above), sum_per_volume(under)) for above, under in zip(relevance, below, strict=True)]
    kept = [a - b if len(a) == len(b) else (a.sum() - b.sum())[None] for a, b in sums]
    whole = [ROUNDING * sum_per_volume(above.abs()).sum() for above in relevance]
    if not any(bool(on_host(part.abs().sum() > least)) for part, least in zip(kept, whole, strict=True)):
        return []
    return _accounts(record, relevance, below, [(part, None, None) for part in kept])


def _unweighted_sums(record: Record) -> tuple[Tensor, Tensor]:
    averaging = record.step.averaging
    positive = _forward_unweighted(averaging, [a.clamp(min=0) for a in record.inputs])
    return positive, _forward_unweighted(averaging, [a.clamp(max=0) for a in record.inputs])


def _forward_unweighted(averaging: Averaging | None, inputs: Sequence[Tensor]) -> Tensor:
    return averaging.apply(inputs[0]) if averaging is not None else torch.stack(list(inputs)).sum(0)


def _back_unweighted(averaging: Averaging | None, message: Tensor, a: Tensor) -> Tensor:
    return averaging.transpose(message, a.shape) if averaging is not None else message


def _accounts(record: Record, relevance: Relevance, below: Relevance, losses: Sequence[Losses]) -> list[LedgerEntry]:
    return [
        LedgerEntry.of(record.step.name, above, under, lost)
        for above, under, lost in zip(relevance, below, losses, strict=True)
    ]


def _losses(message: Messages) -> Losses:
    bias, lost, stabiliser = (
        None if part is None else sum_per_volume(part) for part in (message.bias, message.lost, message.stabiliser)
    )
    return bias, lost, stabiliser
