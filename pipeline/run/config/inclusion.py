"""The rule of inclusion, ``[cohort] include``: a small, safe expression on columns of the cohort's tables.

``age >= 60 and cdr >= 0 and site in ["A", "B"]``: comparisons of columns with numbers, quoted text, lists or other
columns, joined by ``and``, ``or``, ``not`` and parentheses. Python's own parser reads it, and every node it makes must
be one of these; nothing is ever executed. Names of columns that are not plain words stand in backticks.
"""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass

from heatlas.pipeline.run.errors import UsageError

LONGEST = 1000
"""Characters of a rule."""
EXAMPLE = 'include = "age >= 60 and cdr >= 0"'
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.In: "in",
    ast.NotIn: "not in",
}  # fmt: skip
_QUOTED = re.compile(r"`([^`]+)`|'[^']*'|\"[^\"]*\"")
_STAND_IN = "column_in_backticks_{}"


@dataclass(frozen=True)
class InclusionRule:
    """A rule of inclusion.

    `parts`: the parts that ``and`` joins, in their order; a scan must meet them all. `texts`: the same as text, each
    spelt in one way. `columns`: names of columns, in the order of their first use.
    """

    parts: tuple[ast.expr, ...]
    texts: tuple[str, ...]
    columns: tuple[str, ...]


def read_rule(text: str) -> InclusionRule:
    """Read a rule; raises `UsageError` with what is wrong in it and what may stand there.

    Examples
    --------
    >>> read_rule("age >= 60 and (cdr > 0 or `MR Delay` == 0)").texts
    ('age >= 60', 'cdr > 0 or `MR Delay` == 0')
    """
    if len(text) > LONGEST:
        raise _refusal(text[:60] + "…", f"has more than {LONGEST} characters")
    columns: list[str] = []

    def stand_in(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        columns.append(match[1])
        return _STAND_IN.format(len(columns) - 1)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Python warns of texts such as ``60and``
            tree = ast.parse(_QUOTED.sub(stand_in, text).strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError, Warning):
        single = re.search(r"(?<![<>=!])=(?!=)", text)
        raise _refusal(text, "is no valid expression" + (": equality is written ==" if single else "")) from None
    names = {_STAND_IN.format(number): column for number, column in enumerate(columns)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
    _require_condition(text, tree)
    parts = tuple(tree.values) if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else (tree,)
    used = dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    return InclusionRule(parts, tuple(map(_written, parts)), tuple(used))


def dropped_because(part: str, unknown: bool) -> str:
    """The reason of a scan that a part of the rule leaves out; ``scans.tsv`` and the flow chart share it."""
    return f"not included ({part})" + (", as the value is missing" if unknown else "")


def _require_condition(text: str, node: ast.expr) -> None:
    """Refuse a node that is not a comparison, or ``and``, ``or`` or ``not`` of such."""
    if isinstance(node, ast.BoolOp):
        for value in node.values:
            _require_condition(text, value)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        _require_condition(text, node.operand)
    elif isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        for left, sign, right in zip(sides, node.ops, node.comparators, strict=False):
            if type(sign) not in COMPARISONS:
                raise _refusal(text, "uses is; equality is written ==")
            _require_side(text, left, listed=False)
            _require_side(text, right, listed=isinstance(sign, (ast.In, ast.NotIn)))
            if not any(isinstance(side, ast.Name) for side in (left, right)):
                raise _refusal(text, f"compares no column in {ast.unparse(node)}")
    elif isinstance(node, ast.Name):
        raise _refusal(text, f"names {node.id} without comparing it: write {node.id} == 1 or {node.id} > 0")
    else:
        raise _refusal(text, f"holds {ast.unparse(node)}, which is not a comparison")


def _require_side(text: str, node: ast.expr, listed: bool) -> None:
    """Refuse a side of a comparison that is not a column, a number or quoted text, or a list of them after ``in``."""
    if listed:
        if not isinstance(node, (ast.List, ast.Tuple)) or not node.elts:
            raise _refusal(text, "needs a list after in: site in ['A', 'B']")
        values = [constant(item) for item in node.elts]
        if None in values or len({isinstance(item, str) for item in values}) > 1:
            raise _refusal(text, f"needs numbers only or quoted text only in {ast.unparse(node)}")
    elif not isinstance(node, ast.Name) and constant(node) is None:
        raise _refusal(text, f"holds {ast.unparse(node)}, which is no column, no number and no quoted text")


def constant(node: ast.expr) -> float | str | None:
    """The number or text that a node is; None for anything else.

    Examples
    --------
    >>> constant(ast.parse("-4.5", mode="eval").body), constant(ast.parse("True", mode="eval").body)
    (-4.5, None)
    """
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = constant(node.operand)
        return -value if isinstance(value, float) else None
    if not isinstance(node, ast.Constant) or isinstance(node.value, bool):
        return None
    try:
        return (
            float(node.value)
            if isinstance(node.value, (int, float))
            else node.value
            if isinstance(node.value, str)
            else None
        )
    except OverflowError:
        return None


def _written(node: ast.expr) -> str:
    """A part of a rule as text, names that are not plain words in backticks."""
    for name in ast.walk(node):
        if isinstance(name, ast.Name) and not name.id.isidentifier():
            name.id = f"`{name.id}`"
    text = ast.unparse(node)
    for name in ast.walk(node):
        if isinstance(name, ast.Name):
            name.id = name.id.strip("`")
    return text


def _refusal(text: str, why: str) -> UsageError:
    return UsageError(
        f"cohort.include = {text!r} {why}. Write comparisons of columns with numbers, quoted text or lists, joined by "
        f"and, or, not and parentheses, such as {EXAMPLE}; docs/inputs.md."
    )
