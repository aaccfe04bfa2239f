"""Classes of a contrast by number: ``cdr = 0`` against ``cdr ≥ 0.5``.

A class is written as a comparison, or two, with a number (``>=0.5``, ``>=60<70``); beside such a class a plain number
means equality. The name under which a run knows it (`NumberClass.name`) says the column too, and is read as well, so
that names in the settings of a run, in its tables and in its report are the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

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
        """Whether a number belongs to the class."""
        above = value > self.low or (self.low_in and value == self.low)
        return above and (value < self.high or (self.high_in and value == self.high))

    def overlaps(self, other: NumberClass) -> bool:
        """Whether a number can belong to both classes."""
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
    made = NumberClass(column)
    for sign, number in ((match[1], match[2]), (match[3], match[4])):
        if sign is not None:
            made = _narrow(made, sign, float(number))
    return made


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
