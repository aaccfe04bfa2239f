"""Inclusion by rule (``[cohort] include``): which scans meet it, and what leaves the others out.

A comparison with a missing value is unknown, as it would be for a reader: ``not`` keeps it unknown, ``or`` needs one
side that is met (Kleene's logic, that of pandas' nullable booleans). A scan takes part if every part of the rule is
met; otherwise the first part that is not, or not known, is its reason. `pipeline.run.config.inclusion` reads the rule.
"""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from heatlas.pipeline.cohort.candidates import ANOTHER_PREFERRED, Candidate
from heatlas.pipeline.cohort.cells.ranges import plain_name
from heatlas.pipeline.cohort.cells.values import MISSING_CODES, number
from heatlas.pipeline.cohort.people.clinical import IDENTIFYING, MEASURES, TIMES, measure_of, times_of
from heatlas.pipeline.cohort.records import OLDEST_AGE, SCAN_COLUMNS
from heatlas.pipeline.run.config.inclusion import InclusionRule, constant, dropped_because, read_rule
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted, did_you_mean, listed, nearest

_NOT_COMPARED = frozenset({"label", "kept", "reason", "image"})
"""Columns of the scan table that do not describe a person or an image."""
_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class InclusionStep:
    """What one part of a rule leaves of the scans that met those before it: rows of the scan table, and counts."""

    part: str
    left: pd.DataFrame
    not_met: int
    unknown: int


def included(candidates: Sequence[Candidate], include: str) -> list[Candidate]:
    """Drop the kept scans that do not meet the rule; an empty rule keeps all.

    BadInputError if the rule names no column, compares numbers with text, or keeps nobody.
    """
    kept = [candidate for candidate in candidates if candidate.scan.kept]
    if not include or not kept:
        return list(candidates)
    rule = read_rule(include)
    frame = pd.DataFrame(_Columns(kept, include).of(rule.columns), dtype=object)
    reasons: list[str | None] = [None] * len(kept)
    for part, text in zip(rule.parts, rule.texts, strict=True):
        met = _met(part, frame, include)
        for place, value in enumerate(met):
            if reasons[place] is None and (value is pd.NA or not value):
                reasons[place] = dropped_because(text, unknown=value is pd.NA)
    decided = iter(reasons)
    scans = [
        candidate.dropped(reason) if candidate.scan.kept and (reason := next(decided)) is not None else candidate
        for candidate in candidates
    ]
    if not any(candidate.scan.kept for candidate in scans):
        decisions = pd.DataFrame({"kept": False, "reason": [one.scan.reason for one in scans]})
        raise _keeps_nobody(include, steps(decisions, rule), frame)
    return scans


def reached(scans: pd.DataFrame, rule: InclusionRule) -> pd.DataFrame:
    """Scans on which the rule decided: used, or dropped by it or in the choice of one per session, which follows."""
    by_rule = [dropped_because(part, unknown) for part in rule.texts for unknown in (False, True)]
    reasons = scans["reason"].fillna("").astype(str)
    return scans[scans["kept"].astype(bool) | reasons.isin(by_rule) | reasons.str.startswith(ANOTHER_PREFERRED)]


def steps(scans: pd.DataFrame, rule: InclusionRule) -> list[InclusionStep]:
    """What each part of a rule left, from the columns ``kept`` and ``reason`` of a scan table."""
    results, left = [], reached(scans, rule)
    for part in rule.texts:
        not_met, unknown = (left["reason"] == dropped_because(part, missing) for missing in (False, True))
        left = left[~not_met & ~unknown]
        results.append(InclusionStep(part, left, int(not_met.sum()), int(unknown.sum())))
    return results


class _Columns:
    """Values of columns of the scans to decide on."""

    def __init__(self, kept: Sequence[Candidate], include: str) -> None:
        self.kept, self.include = kept, include
        self.times = times_of(kept)[0]

    def of(self, names: Sequence[str]) -> dict[str, list[object]]:
        """Values by name; a name is that of a column regardless of case."""
        return {name: self._values(name) for name in names}

    def _values(self, name: str) -> list[object]:
        values = self._of_run(name)
        if all(value is None for value in values):
            values = self._of_source(name)
        if all(value is None for value in values):
            known = self._known()
            raise BadInputError(
                f"cohort.include = {self.include!r}: no scan has a value in {name}."
                f"{did_you_mean(nearest(name, known))} Columns with values: {listed(known, 60)}."
            )
        return values

    def _of_run(self, name: str) -> list[object]:
        """Values of a column of the scan table or the clinical table."""
        lower = name.lower()
        if lower == "age":  # as the tables write it
            return [
                None if candidate.scan.age is None else min(candidate.scan.age, OLDEST_AGE) for candidate in self.kept
            ]
        if lower in SCAN_COLUMNS and lower not in _NOT_COMPARED:
            return [getattr(candidate.scan, lower) for candidate in self.kept]
        if lower in TIMES:
            return self.times[lower]
        return (
            [measure_of(candidate, lower) for candidate in self.kept] if lower in MEASURES else [None] * len(self.kept)
        )

    def _of_source(self, name: str) -> list[object]:
        """Values of a column of the source tables at the visit of the scan."""
        if plain_name(name) in IDENTIFYING:
            return [None] * len(self.kept)
        cells = [{column.lower(): text for column, text in candidate.columns.items()} for candidate in self.kept]
        texts = [
            candidate.columns.get(name, lower.get(name.lower()))
            for candidate, lower in zip(self.kept, cells, strict=True)
        ]
        return [None if text in MISSING_CODES else text for text in texts]

    def _known(self) -> list[str]:
        ours = [*(name for name in SCAN_COLUMNS if name not in _NOT_COMPARED), *MEASURES, *TIMES]
        filled = {name for name in ours if any(value is not None for value in self._of_run(name))}
        source = {name for candidate in self.kept for name in candidate.columns if plain_name(name) not in IDENTIFYING}
        return sorted(filled | {name for name in source if name.lower() not in filled}, key=str.lower)


def _met(node: ast.expr, frame: pd.DataFrame, include: str) -> pd.Series:
    """Whether each scan meets a part of the rule: True, False or NA."""
    if isinstance(node, ast.BoolOp):
        join = operator.and_ if isinstance(node.op, ast.And) else operator.or_
        return functools.reduce(join, [_met(part, frame, include) for part in node.values])
    if isinstance(node, ast.UnaryOp):
        return ~_met(node.operand, frame, include)
    if not isinstance(node, ast.Compare):
        raise TypeError(f"{ast.unparse(node)} is no condition")  # read_rule refuses it
    pairs = zip([node.left, *node.comparators], node.ops, node.comparators, strict=False)
    compared = [_compared(left, sign, right, frame, include) for left, sign, right in pairs]
    return functools.reduce(operator.and_, compared)


def _compared(left: ast.expr, sign: ast.cmpop, right: ast.expr, frame: pd.DataFrame, include: str) -> pd.Series:
    """One comparison, of numbers or of text, NA where a value is missing."""
    wanted = [constant(node) for node in getattr(right, "elts", (right, left))]
    as_text = any(isinstance(value, str) for value in wanted)
    first = _side(left, frame, as_text, include)
    if isinstance(sign, (ast.In, ast.NotIn)):
        met = first.isin(wanted)
        result = met if isinstance(sign, ast.In) else ~met
        return result.astype("boolean").mask(first.isna())
    if as_text and not isinstance(sign, (ast.Eq, ast.NotEq)):
        raise BadInputError(
            f"cohort.include = {include!r}: text is compared by ==, != or in, not as in "
            f"{ast.unparse(ast.Compare(left, [sign], [right]))}. A number is written without quotes."
        )
    second = _side(right, frame, as_text, include)
    result = pd.Series(_ORDER[type(sign)](first, second), index=frame.index).astype("boolean")
    return result.mask(first.isna() | second.isna())


def _side(node: ast.expr, frame: pd.DataFrame, as_text: bool, include: str) -> pd.Series:
    """Values of a side of a comparison, as numbers or as text; a column must hold such."""
    if not isinstance(node, ast.Name):
        return pd.Series([constant(node)] * len(frame), index=frame.index)
    held = frame[node.id]
    known = held.dropna()
    numeric = known.map(lambda value: not isinstance(value, str)).all()
    if as_text:
        if numeric:
            raise BadInputError(
                f"cohort.include = {include!r}: {node.id} holds numbers ({_examples(known)}); write them without "
                "quotes."
            )
        return held
    values = held if numeric else held.map(number, na_action="ignore")
    if values.isna().all():
        raise BadInputError(
            f"cohort.include = {include!r}: {node.id} holds text ({_examples(known)}), not numbers; compare it with "
            f'quoted text: {node.id} == "{known.iloc[0]}".'
        )
    return values.astype(float)


def _keeps_nobody(include: str, results: Sequence[InclusionStep], frame: pd.DataFrame) -> BadInputError:
    parts = [
        f"{step.part} leaves {len(step.left)} ({step.not_met} not met, {step.unknown} unknown)" for step in results
    ]
    last = next(step for step in results if step.left.empty)
    there = [f"{name}: {_span(frame[name])}" for name in read_rule(last.part).columns]
    return BadInputError(
        f"cohort.include = {include!r} keeps none of {counted(len(frame), 'scan')}: {'; '.join(parts)}. In the input, "
        f"{'; '.join(there)}. Correct the rule."
    )


def _span(values: pd.Series) -> str:
    """What a column holds, for a message."""
    known = values.dropna()
    read = [number(one) if isinstance(one, str) else float(one) for one in known]
    numbers = [one for one in read if one is not None]
    if len(numbers) == len(read):
        return f"{min(numbers):g} to {max(numbers):g}"
    return _examples(known)


def _examples(known: pd.Series) -> str:
    return listed([str(value) for value in known.value_counts().index], 8)
