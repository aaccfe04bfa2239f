"""Who takes part and in which class, read from text: the rule of inclusion, and classes by number.

``age >= 60 and cdr >= 0 and site in ["A", "B"]``: a rule (``[cohort] include``) has comparisons of columns with
numbers, quoted text, lists or other columns, joined by ``and``, ``or``, ``not`` and parentheses. Python's own parser
reads it, and every node it makes must be one of these; nothing is ever executed. Names of columns that are not plain
words stand in backticks.

``>=0.5``, ``>=60<70``: a class by number is a comparison, or two; beside such a class a plain number means equality.
The name under which a run knows it (`NumberClass.name`) says the column too, and is read as well, so that names in the
settings of a run, in its tables and in its report are the same.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from heatlas.pipeline.run.errors import UsageError

LONGEST = 1000
"""Characters of a rule."""
EXAMPLE = 'include = "age >= 60 and cdr >= 0"'
IDS = ("participant_id", "scan_id")
"""Columns whose values name people and scans."""
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


def ids_in(node: ast.expr) -> list[tuple[str, str]]:
    """The ids of people and scans that a part of a rule names, each with its column.

    >>> ids_in(read_rule("age > 60 or scan_id not in ['I1', 'I2']").parts[0])
    [('scan_id', 'I1'), ('scan_id', 'I2')]
    """
    compared = [[one.left, *one.comparators] for one in ast.walk(node) if isinstance(one, ast.Compare)]
    return [
        (column.id.lower(), value)
        for sides in compared
        for column in sides
        if isinstance(column, ast.Name) and column.id.lower() in IDS
        for side in sides
        for value in map(constant, getattr(side, "elts", (side,)))
        if isinstance(value, str)
    ]


def without_ids(text: str) -> str:
    """A rule for other people: without the parts that name people or scans.

    >>> without_ids("scan_id != 'I1' and (age > 60 or sex == 'F') and cdr >= 0")
    "(age > 60 or sex == 'F') and cdr >= 0"
    """
    rule = read_rule(text)
    parts = [(part, written) for part, written in zip(rule.parts, rule.texts, strict=True) if not ids_in(part)]
    either = len(parts) > 1
    return " and ".join(f"({one})" if either and isinstance(part, ast.BoolOp) else one for part, one in parts)


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
    if isinstance(node.value, str):
        return node.value
    try:
        return float(node.value) if isinstance(node.value, (int, float)) else None
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


_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_COMPARISON = rf"(>=|<=|==|=|>|<)\s*({_NUMBER})"
_CLASS = re.compile(rf"\s*{_COMPARISON}\s*(?:(?:and\s*)?{_COMPARISON}\s*)?")


@dataclass(frozen=True)
class NumberClass:
    """The numbers of a class, from `low` to `high`; whether each end belongs to it."""

    column: str
    low: float = -inf
    low_in: bool = True
    high: float = inf
    high_in: bool = True

    @property
    def name(self) -> str:
        """The class in words.

        Examples
        --------
        >>> NumberClass("cdr", low=0.5).name, NumberClass("age", 60, True, 70, False).name
        ('cdr ≥ 0.5', 'age ≥ 60 and < 70')
        """
        if self.low == self.high:
            return f"{self.column} = {_digits(self.low)}"
        ends = [f"{'≥' if self.low_in else '>'} {_digits(self.low)}"] if self.low > -inf else []
        ends += [f"{'≤' if self.high_in else '<'} {_digits(self.high)}"] if self.high < inf else []
        return f"{self.column} {' and '.join(ends)}"

    @property
    def is_empty(self) -> bool:
        return self.low > self.high or (self.low == self.high and not (self.low_in and self.high_in))

    def holds(self, value: float) -> bool:
        above = value > self.low or (self.low_in and value == self.low)
        return above and (value < self.high or (self.high_in and value == self.high))

    def overlaps(self, other: NumberClass) -> bool:
        first, second = sorted((self, other), key=lambda one: (one.low, not one.low_in))
        return first.high > second.low or (first.high == second.low and first.high_in and second.low_in)


def read_class(text: str, column: str) -> NumberClass | None:
    """The class that a text means as a comparison; None if it is none.

    Examples
    --------
    >>> read_class(">=0.5", "cdr") == read_class("cdr ≥ 0.5", "cdr") == NumberClass("cdr", low=0.5)
    True
    >>> read_class("AD", "diagnosis"), read_class("0", "cdr")
    (None, None)
    """
    plain = text.strip().removeprefix(column).replace("≥", ">=").replace("≤", "<=")
    match = _CLASS.fullmatch(plain)
    if match is None:
        return None
    number_class = NumberClass(column)
    for sign, number in ((match[1], match[2]), (match[3], match[4])):
        if sign is not None:
            number_class = _narrow(number_class, sign, float(number))
    return number_class


def class_names(texts: Sequence[str], column: str) -> tuple[str, ...]:
    """Names of the classes of a contrast: unchanged, unless one of them is a comparison.

    Examples
    --------
    >>> class_names(("0", ">=0.5"), "cdr"), class_names(("0", "1"), "cdr")
    (('cdr = 0', 'cdr ≥ 0.5'), ('0', '1'))
    """
    if all(read_class(text, column) is None for text in texts):
        return tuple(texts)
    read = (read_class(f"={text}" if re.fullmatch(_NUMBER, text.strip()) else text, column) for text in texts)
    return tuple(
        text if number_class is None else number_class.name for text, number_class in zip(texts, read, strict=True)
    )


def class_problems(names: Sequence[str], column: str) -> list[str]:
    """What is wrong with classes by number: mixed with others, without numbers, overlapping; empty if nothing is.

    Examples
    --------
    >>> class_problems(("cdr = 0", "cdr ≥ 0.5"), "cdr"), class_problems(("cdr ≤ 0.5", "cdr ≥ 0.5"), "cdr")
    ([], ['classes overlap: cdr ≤ 0.5 and cdr ≥ 0.5'])
    """
    read = {name: read_class(name, column) for name in names}
    classes = {name: number_class for name, number_class in read.items() if number_class is not None}
    if not classes:
        return []
    others = [name for name, number_class in read.items() if number_class is None]
    problems = [f"{name!r} is no number or comparison, and {next(iter(classes))} is one" for name in others]
    problems += [f"no number can be in {name}" for name, number_class in classes.items() if number_class.is_empty]
    pairs = [(a, b) for i, a in enumerate(classes) for b in list(classes)[i + 1 :]]
    return problems + [f"classes overlap: {a} and {b}" for a, b in pairs if classes[a].overlaps(classes[b])]


def _narrow(wide: NumberClass, sign: str, number: float) -> NumberClass:
    """The class with another comparison; the narrower of two ends on one side holds."""
    low, high = (wide.low, wide.low_in), (wide.high, wide.high_in)
    if sign != "<" and sign != "<=":
        low = max(low, (number, sign != ">"), key=lambda end: (end[0], not end[1]))
    if sign != ">" and sign != ">=":
        high = min(high, (number, sign != "<"), key=lambda end: (end[0], end[1]))
    return NumberClass(wide.column, *low, *high)


def _digits(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
