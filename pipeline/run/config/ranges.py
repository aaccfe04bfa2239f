"""What a setting may be, said once beside its field: ``steps: Annotated[int, between(2, 1000)] = 20``.

The check, its sentence in the error and the column "may be" of docs/settings.md follow from it. In a list a limit holds
for each element, unless it is one of the list. What relates several settings to each other is a function instead, the
``checks`` of their record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any, ClassVar, get_args, get_origin


@dataclass(frozen=True)
class Bounds:
    """Numbers from `low` to `high`, and whether each end is allowed; NaN never is."""

    low: float
    high: float
    low_in: bool = True
    high_in: bool = True
    of_list: ClassVar[bool] = False

    @property
    def clause(self) -> str:
        """What follows "must".

        >>> [one.clause for one in (between(1, 1000), above(0), above(0, 1), above(0, below=1))]
        ['lie between 1 and 1,000', 'lie above 0', 'lie above 0 and up to 1', 'lie above 0 and below 1']
        >>> at_least(1).clause, at_least(0, below=1).clause
        ('be 1 or more', 'lie in [0, 1)')
        """
        low, high = (f"{end:,.9f}".rstrip("0").rstrip(".") for end in (self.low, self.high))
        if self.low_in and self.high == inf:
            return f"be {low} or more"
        if self.low_in:
            return f"lie between {low} and {high}" if self.high_in else f"lie in [{low}, {high})"
        return f"lie above {low}" + ("" if self.high == inf else f" and {'up to' if self.high_in else 'below'} {high}")

    def holds(self, value: Any) -> bool:
        above_low = value > self.low or (self.low_in and value == self.low)
        return bool(above_low and (value < self.high or (self.high_in and value == self.high)))


@dataclass(frozen=True)
class Limit:
    """Any other limit: what follows "must" in the error, and the check."""

    clause: str
    holds: Callable[[Any], bool]
    of_list: bool = False


def between(low: float, high: float) -> Bounds:
    return Bounds(low, high)


def at_least(low: float, below: float = inf) -> Bounds:
    return Bounds(low, below, high_in=False)


def above(low: float, up_to: float | None = None, below: float = inf) -> Bounds:
    return Bounds(low, below if up_to is None else up_to, low_in=False, high_in=up_to is not None)


def matching(pattern: str, clause: str) -> Limit:
    """Text that a regular expression matches as a whole."""
    return Limit(clause, lambda text: re.fullmatch(pattern, text) is not None)


def naming(least: int, thing: str = "value", once: bool = False) -> Limit:
    """A list of at least so many things, each once if `once` is set.

    >>> naming(2).clause, naming(1, "method", once=True).clause, naming(0, once=True).clause
    ('name at least two values', 'name at least one method, each once', 'name each value once')
    """
    several = ("", f"one {thing}", f"two {thing}s")[least]
    clause = f"name at least {several}{', each once' * once}" if least else f"name each {thing} once"
    return Limit(clause, lambda values: len(values) >= least and (len(set(values)) == len(values) or not once), True)


ODD = Limit("be odd", lambda value: value % 2 == 1)
RISING = Limit("be in rising order", lambda values: list(values) == sorted(set(values)), of_list=True)

Count = Annotated[int, at_least(1)]
Counts = Annotated[tuple[int, ...], naming(1), at_least(1)]
Seed = Annotated[int, at_least(0)]
Fraction = Annotated[float, at_least(0, below=1)]
Probability = Annotated[float, between(0, 1)]


def split_kind(kind: Any) -> tuple[Any, tuple[Bounds | Limit, ...]]:
    """The type of a field without its limits, and these.

    >>> split_kind(Probability)
    (<class 'float'>, (Bounds(low=0, high=1, low_in=True, high_in=True),))
    """
    return (get_args(kind)[0], kind.__metadata__) if get_origin(kind) is Annotated else (kind, ())


def unmet(limits: Sequence[Bounds | Limit], value: Any) -> str:
    """What a value must be instead; empty if it is within all limits.

    >>> unmet([naming(1), at_least(1)], (8, 0)), unmet([ODD, between(1, 15)], 4), unmet([ODD, between(1, 15)], 3)
    ('must name at least one value, each 1 or more', 'must be odd and between 1 and 15', '')
    """
    if all(_holds(limit, value) for limit in limits):
        return ""
    first, *others = limits
    if first.of_list:
        return f"must {', '.join([first.clause, *(f'each {_without_verb(limit.clause)}' for limit in others)])}"
    must = "must each" if isinstance(value, tuple) else "must"
    return f"{must} {' and '.join([first.clause, *(_without_verb(limit.clause) for limit in others)])}"


def in_words(limits: Sequence[Bounds | Limit], kind: str) -> str:
    """A type and its limits, as docs/settings.md says them.

    >>> in_words([ODD, between(1, 15)], "whole number"), in_words([naming(1), at_least(1)], "list of whole numbers")
    ('whole number, odd, between 1 and 15', 'list of whole numbers, at least one value, each 1 or more')
    """
    each = "each " if kind.startswith("list") else ""
    return ", ".join([kind, *(each * (not limit.of_list) + _without_verb(limit.clause) for limit in limits)])


def _without_verb(clause: str) -> str:
    return re.sub("^(not )?(be|lie|name) ", r"\1", clause)


def _holds(limit: Bounds | Limit, value: Any) -> bool:
    """Whether a value is within a limit; text beside numbers ("usual") always is, and a number beside lists."""
    if limit.of_list:
        return not isinstance(value, tuple) or limit.holds(value)
    each = value if isinstance(value, tuple) else (value,)
    return all(limit.holds(member) for member in each if not (isinstance(limit, Bounds) and isinstance(member, str)))
