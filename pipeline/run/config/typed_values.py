"""Values of settings, from TOML or typed, as the fields of frozen dataclasses have them.

One check for configuration files and for settings of methods on the command line. A whole number is accepted where a
number is asked for, a list where a tuple is. Errors name the setting and what it may be.
"""

from __future__ import annotations

import contextlib
import math
import types
from typing import Any, Literal, Union, get_args, get_origin

from heatlas.pipeline.run.documents import toml_document
from heatlas.pipeline.run.errors import UsageError

LARGEST = 2**53
"""Largest whole number that a float holds exactly; no setting comes near it."""
_LONGEST = 60
_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
_PLURALS = {bool: "true or false", int: "whole numbers", float: "numbers", str: "texts"}


def typed_value(kind: Any, value: Any, name: str) -> Any:
    """The value of a setting as its field has it.

    Parameters
    ----------
    kind : type
        Of the field: bool, int, float, str, a literal, a tuple, or a union of these.
    value : object
        As TOML gives it.
    name : str
        What to call the setting in an error, with the file or option before it.

    Raises
    ------
    UsageError
        If the value is of another type, none of those allowed, too large, not finite or not one line of text.

    Examples
    --------
    >>> typed_value(float, 1, "training.dropout"), typed_value(tuple[float, ...], [0, 0.5], "betas")
    (1.0, (0.0, 0.5))
    >>> typed_value(tuple[int, int, int] | None, [1, 2, 3], "window")
    (1, 2, 3)
    """
    options = [option for option in options_of(kind) if is_plain(option)]
    for option in options:
        with contextlib.suppress(_MisfitError):
            return _fitted(option, value, name)
    raise UsageError(f"{name} = {shown(value)}: must be {' or '.join(map(_said, options))}.")


def options_of(kind: Any) -> tuple[Any, ...]:
    """Members of a union, or the type itself."""
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
    """A value is not of a type; another of a union may fit."""


def _fitted(kind: Any, value: Any, name: str) -> Any:
    if get_origin(kind) is Literal:
        if not any(value == one and type(value) is type(one) for one in get_args(kind)):
            raise _MisfitError
        return value
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        if not isinstance(value, list | tuple) or (kinds[-1] is not Ellipsis and len(kinds) != len(value)):
            raise _MisfitError
        each = kinds[:1] * len(value) if kinds[-1] is Ellipsis else kinds
        return tuple(_fitted(one, item, name) for one, item in zip(each, value, strict=True))
    if isinstance(value, int) and abs(value) > LARGEST:
        raise UsageError(f"{name} is too large a number.")
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise _MisfitError
    if kind is float and not math.isfinite(value):
        raise UsageError(f"{name} = {value}: must be a finite number.")
    if kind is str and any(map(is_control, value)):
        raise UsageError(f"{name} = {value!r}: must be one line of text without control characters.")
    return value


def _said(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(shown, get_args(kind)))
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        length = "" if kinds[-1] is Ellipsis else f"{len(kinds)} "
        return f"a list of {length}{_PLURALS.get(kinds[0]) or _said(kinds[0])}"
    return _NAMES[kind]
