"""How many rules fit into a memory budget, worked out before any work from shapes alone."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.attribution.planner import Plan
from pipeline.attribution.tape import Values
from pipeline.attribution.tracing import Program
from pipeline.run.errors import UsageError

LIVE_VALUES = 2
"""Full-size tensors alive at once in the forward pass of a step: what an operation reads and what it writes."""


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
        a: Any = inputs[0] if inputs else None
        for operation in step.operations:
            a = values.run(operations[operation.value])
        units = getattr(a, "nbytes", 0)
        if step.pool is not None:
            pooled, winners = step.pool.apply(a)
            values.give(step.value, pooled)
            values.used(step.operations[-1].value if step.operations else step.inputs[0])
            tape += winners.nbytes
        keeps = step.weights is not None or step.averaging is not None or len(inputs) > 1
        tape += entering if keeps else 0
        largest = max(largest, LIVE_VALUES * units)
        # Densely, messages of both signs at the units; and relevance of the inputs beside its messages.
        per_rule = max(per_rule, 2 * units + 2 * entering)
    return MemoryNeed(tape + largest, per_rule)


def _weightless(program: Program) -> Program:
    """The same operations with weights that have shapes but no values."""
    operations = tuple(
        dataclasses.replace(o, module=None if o.module is None else copy.deepcopy(o.module).to("meta"))
        for o in program.operations
    )
    return dataclasses.replace(program, operations=operations, graph=copy.deepcopy(program.graph).to("meta"))
