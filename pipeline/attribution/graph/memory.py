"""How many rules fit into a memory budget, worked out before any work from shapes alone."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.attribution.graph.planner import Plan, Step
from pipeline.attribution.graph.pooling import MaxPool
from pipeline.attribution.graph.tape import Values
from pipeline.attribution.graph.tracing import Program
from pipeline.attribution.lrp.winners import sparse_pays
from pipeline.run.errors import UsageError

FORWARD_VALUES = 5
"""Tensors as large as the units alive at once in the forward pass of a step: what an operation reads and writes, and
the copies in which a convolution rearranges both."""
SHARING_VALUES = 13
"""Tensors as large as the units (or their winners) alive at once where relevance is shared out: sums of both signs,
messages, what they are made of, and what a convolution rearranges; measured, for the rule that needs most."""


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes beside the model and the volumes.

    Parameters
    ----------
    shared : int
        The forward pass and its tape, whatever the number of rules.
    per_rule : int
        For each rule of a round.
    """

    shared: int
    per_rule: int


def rules_within(budget: int | None, plan: Plan, volumes: Tensor, rules: int) -> int:
    """How many rules to work off at once.

    Raises
    ------
    UsageError
        If the budget is too small for one; says what is needed.
    """
    if budget is None:
        return rules
    need = memory_need(plan, volumes)
    fitting = (budget - need.shared) // max(need.per_rule, 1)
    if fitting < 1:
        raise UsageError(
            f"memory_budget = {budget}: one rule needs about {need.shared + need.per_rule} bytes for these volumes; "
            "raise it or explain fewer volumes at once."
        )
    return min(rules, fitting)


def memory_need(plan: Plan, volumes: Tensor) -> MemoryNeed:
    """Estimate the need of a plan for some volumes, without computing anything."""
    program = _weightless(plan.program)
    operations = {operation.value: operation for operation in program.operations}
    values = Values(program, torch.empty(volumes.shape, dtype=volumes.dtype, device="meta"))
    tape = largest = per_rule = 0
    for step in plan.steps:
        inputs = [values[name] for name in step.inputs]
        entering = sum(a.nbytes for a in inputs)
        beside = values.nbytes - entering  # for later steps; on the way back, relevance of the same shape
        a: Any = inputs[0] if inputs else None
        for operation in step.operations:
            a = values.run(operations[operation.value])
        units = leaving = getattr(a, "nbytes", 0)
        if step.pool is not None:
            pooled, winners = step.pool.apply(a)
            values.give(step.value, pooled)
            values.used(step.operations[-1].value if step.operations else step.inputs[0])
            tape += winners.nbytes
            leaving = pooled.nbytes
        largest = max(largest, FORWARD_VALUES * units + beside)
        if step.weights is not None or step.averaging is not None or len(inputs) > 1:
            tape += entering
            at_units = 0 if step.pool is None or _winners_only(step, volumes) else 4 * units
            largest = max(largest, SHARING_VALUES * leaving + at_units + 2 * entering)
        per_rule = max(per_rule, leaving + entering + beside + (0 if step.pool is None else 2 * leaving))
    return MemoryNeed(tape + largest, per_rule)


def _winners_only(step: Step, volumes: Tensor) -> bool:
    """Whether nothing as large as the units is made where relevance is shared out."""
    if step.weights is None or not isinstance(step.pool, MaxPool):
        return False
    return sparse_pays(step.weights.linear, step.pool, volumes)


def _weightless(program: Program) -> Program:
    """The same operations with weights that have shapes but no values."""
    operations = tuple(
        dataclasses.replace(o, module=None if o.module is None else copy.deepcopy(o.module).to("meta"))
        for o in program.operations
    )
    return dataclasses.replace(program, operations=operations, graph=copy.deepcopy(program.graph).to("meta"))
