"""What a setting or an argument may be, and the check of its value.

A limit is said once, beside the field of the setting: ``steps: Annotated[int, between(2, 1000)] = 20``. The check, its
sentence in the error and the column "may be" of docs/settings.md follow from it. In a list a limit holds for each
element, unless it is one of the list. What relates several settings to each other is the ``checks`` of their record.

Values from TOML or a command line become what the fields of frozen dataclasses hold: a whole number is accepted where a
number is asked for, a list where a tuple is. `ARGUMENTS` says what each argument of the library must be; whether an
image fits a network is said where it is read. Errors are one line with the name and what it may be.
"""

from __future__ import annotations

import contextlib
import math
import operator
import os
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from math import inf
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from heatlas.pipeline.run.documents import toml_document
from heatlas.pipeline.run.errors import UsageError


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


LARGEST = 2**53
"""Largest whole number that a float holds exactly; no setting comes near it."""
_LONGEST = 60
_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
_PLURALS = {bool: "true or false", int: "whole numbers", float: "numbers", str: "texts"}


def typed_value(kind: Any, value: Any, name: str) -> Any:
    """The value of a setting as its field has it.

    `kind`: of the field: bool, int, float, str, a literal, a tuple, or a union of these; with its limits, if any.
    `value`: as TOML gives it. `name`: what to call the setting in an error, with the file or option before it. Raises
    UsageError if the value is of another type, none of those allowed, too large, not finite, not one line of text or
    beyond a limit.

    Examples
    --------
    >>> typed_value(float, 1, "training.dropout"), typed_value(tuple[float, ...], [0, 0.5], "betas")
    (1.0, (0.0, 0.5))
    >>> typed_value(tuple[int, int, int] | None, [1, 2, 3], "window")
    (1, 2, 3)
    """
    try:
        return _fit(kind, value)
    except _MisfitError as misfit:
        wrong, must = misfit.args
        raise UsageError(f"{name} = {shown(wrong)}: {must}.") from None


def misfits(record: Any) -> Iterator[tuple[str, Any, str]]:
    """Settings of a record, those of nested records aside, with values that are not allowed, and what they must be."""
    for name, kind in kinds_of(record.__class__).items():
        try:
            if any(map(is_plain, options_of(kind))):
                _fit(kind, getattr(record, name), infinite=True)
        except _MisfitError as misfit:
            yield name, getattr(record, name), misfit.args[1]


def problems(record: Any, where: str = "") -> list[str]:
    """What is wrong with the settings of a record and of those nested in it; only then what its `checks` say.

    These are pairs of whether a relation between settings holds and the message if it does not.
    """
    wrong = [f"{where}{name} {must}" for name, _, must in misfits(record)]
    nested = {name: getattr(record, name) for name, kind in kinds_of(record.__class__).items() if is_dataclass(kind)}
    wrong += [problem for name, value in nested.items() for problem in problems(value, f"{where}{name}.")]
    checks = [] if wrong or not hasattr(record, "checks") else record.checks()
    return wrong + [text for passed, text in checks if not passed]


@cache
def kinds_of(record: type) -> dict[str, Any]:
    hints = get_type_hints(record, include_extras=True)
    return {field.name: hints[field.name] for field in fields(record)}


def options_of(kind: Any) -> tuple[Any, ...]:
    """Members of a union, or the type itself, without limits."""
    kind, _ = split_kind(kind)
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def is_plain(kind: Any) -> bool:
    """Whether a field of this type can be set in a file or on a command line."""
    return kind in _NAMES or get_origin(kind) in (Literal, tuple)


def from_text(text: str) -> Any:
    """A value typed as in TOML (``20``, ``0.5``, ``true``, ``[16, 16, 8]``); anything else is text."""
    with contextlib.suppress(ValueError):  # not TOML, too many digits or brackets
        return toml_document(f"value = {text}")["value"]
    return text


def is_control(character: str) -> bool:
    return ord(character) < 32 or ord(character) == 127


def shown(value: Any) -> str:
    """A value as a user types it, cut where it is long."""
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


class _MisfitError(Exception):
    """A value, or an element of it, that is not allowed, and what it must be."""


def _fit(kind: Any, value: Any, infinite: bool = False) -> Any:
    """The value of its type and within its limits; with `infinite` a range decides on infinity too."""
    options, limits = [option for option in options_of(kind) if is_plain(option)], split_kind(kind)[1]
    for option in options:
        with contextlib.suppress(TypeError):
            fitted = _of_type(option, value)
            break
    else:
        single = isinstance(value, list) and not any(get_origin(option) is tuple for option in options)
        raise _MisfitError(value, f"must be {' or '.join(map(said, options))}" + ", not a list" * single)
    ranged = infinite and any(isinstance(limit, Bounds) for limit in limits)
    for item in fitted if isinstance(fitted, tuple) else (fitted,):
        if isinstance(item, int) and abs(item) > LARGEST:
            raise _MisfitError(item, "must be a smaller number")
        if isinstance(item, float) and not math.isfinite(item) and not ranged:
            raise _MisfitError(item, "must be a finite number")
        if isinstance(item, str) and any(map(is_control, item)):
            raise _MisfitError(item, "must be one line of text without control characters")
    if must := unmet(limits, fitted):
        literals = (said(option) for option in options if get_origin(option) is Literal)
        raise _MisfitError(value, ", or be ".join([must, *literals]))
    return fitted


def _of_type(kind: Any, value: Any) -> Any:
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        if not isinstance(value, list | tuple) or (kinds[-1] is not Ellipsis and len(kinds) != len(value)):
            raise TypeError
        return tuple(_of_type(kinds[0], item) for item in value)
    if get_origin(kind) is Literal:
        fits = any(value == item and type(value) is type(item) for item in get_args(kind))
    else:
        fits = isinstance(value, (int, float) if kind is float else kind) and isinstance(value, bool) <= (kind is bool)
    if not fits:
        raise TypeError
    return float(value) if kind is float and abs(value) <= LARGEST else value


def said(kind: Any) -> str:
    """What a type is called in an error: "a list of 3 whole numbers", "one of 'fold', 'identity'"."""
    if get_origin(kind) is Literal:
        return "one of " * (len(get_args(kind)) > 1) + ", ".join(map(shown, get_args(kind)))
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        length = "" if kinds[-1] is Ellipsis else f"{len(kinds)} "
        return f"a list of {length}{_PLURALS.get(kinds[0]) or f'any of {said(kinds[0])}'.replace('one of ', '')}"
    return _NAMES[kind]


def require_arguments(**given: Any) -> None:
    """Refuse an argument that cannot be what its name says.

    `**given`: arguments by the names of `ARGUMENTS`.

    Examples
    --------
    >>> require_arguments(method="lrp", target=None, stage=0)
    >>> require_arguments(stage=True)
    Traceback (most recent call last):
    heatlas.pipeline.run.errors.UsageError: stage = true: must be the number of a stage or the name of a layer.
    """
    for name, value in given.items():
        holds, must = ARGUMENTS[name]
        if not holds(value):
            raise UsageError(f"{name} = {' '.join(shown(value).split())}: must be {must}.")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_path(value: Any) -> bool:
    return _is_text(value) or isinstance(value, os.PathLike)


def _is_count(value: Any) -> bool:
    """Whether a value is a whole number of Python, numpy or torch, and no truth."""
    truth = isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")
    try:
        return not truth and operator.index(value) >= 0
    except TypeError:  # an array of several, or of no whole numbers
        return False


def _is_network(value: Any) -> bool:
    import torch  # takes a second

    return isinstance(value, torch.nn.Module)


def _is_image(value: Any) -> bool:
    import numpy as np
    import torch

    return _is_path(value) or hasattr(value, "dataobj") or isinstance(value, np.ndarray | torch.Tensor)


def _are_numbers(value: Any) -> bool:
    try:
        return not isinstance(value, str | bytes) and all(math.isfinite(number) for number in value)
    except TypeError:
        return False


def _or_none(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or holds(value)


def _one_of(*texts: str) -> tuple[Callable[[Any], bool], str]:
    return lambda value: isinstance(value, str) and value in texts, f"one of {', '.join(map(repr, texts))}"


_PATH = (_is_path, "a path, as text or Path")
_STARTS = _one_of("logit", "probability", "evidence")
ARGUMENTS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "network": (
        _is_network,
        "a torch.nn.Module that holds its weights; create the network, load its weights, and give it "
        "(no class, function, file or state_dict)",
    ),
    "image": (_is_image, "the path of an image, a nibabel image, an array or a tensor"),
    "reference": (_or_none(lambda value: isinstance(value, list | tuple) and all(map(_is_image, value))),
                  "a list of images of controls, as reference=[control]"),
    "method": (_is_text, 'a name, as "lrp"; heatlas.methods() has them all'),
    "target": (_or_none(_is_count), "the number of an output unit, counted from 0"),
    "stage": (
        _or_none(lambda value: _is_text(value) or _is_count(value)),
        "the number of a stage or the name of a layer",
    ),
    "start": (_or_none(_STARTS[0]), _STARTS[1]),
    "settings": (_or_none(lambda value: isinstance(value, Mapping) and all(isinstance(name, str) for name in value)),
                 'settings by name, as {"samples": 200}; of heatlas.run those of sections, as '
                 '{"training": {"ensemble": 4}}'),
    "output": _one_of("auto", "logits", "softmax", "log-softmax", "sigmoid"),
    "output_item": (lambda value: isinstance(value, str) or _is_count(value),
                    "the key of a dict, or the place in a tuple or list"),
    "bins": (_are_numbers, "a list of numbers, one for each output"),
    "contract": (_or_none(_is_path), "the path of a description file"),
    "smooth": (lambda value: _are_numbers([value]) and value is not True and value >= 0, "millimetres, 0 or more"),
    "atlas": (_is_path, "the name of an atlas, or the path of a label image"),
    "preset": (_is_text, 'the name of a preset, as "patients"'),
    "seed": (_or_none(_is_count), "a whole number, 0 or more"),
    **dict.fromkeys(("input", "out", "run", "new", "folder"), _PATH),
}  # fmt: skip
