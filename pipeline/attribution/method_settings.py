"""Settings of a method given as ``key=value``, checked against the fields of its record.

Values are written as in TOML (``20``, ``0.5``, ``true``, ``[16, 16, 8]``); anything else is text. Fields of a nested
record, such as the masking of a perturbation method, use dots: ``masking.baseline=-1.5``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from heatlas.pipeline.run.config import ranges
from heatlas.pipeline.run.errors import UsageError

Setting = bool | int | float | str | tuple[Any, ...]


class CheckedSettings:
    """Base of the records of methods: a value that its field does not allow is refused when one is created."""

    def __post_init__(self) -> None:
        for setting, value, must in ranges.misfits(self):
            name = getattr(self, "name", type(self).__name__.lower())
            raise UsageError(f"{name}: {setting} = {ranges.shown(value)}: {must}.")


def read_settings(method: str, record: type, texts: Sequence[str], where: str = "--setting") -> dict[str, Setting]:
    """Settings by name, each of the type of its field, only those that differ from the default.

    `texts`: ``key=value``, for the fields of the dataclass `record`. `where`: option or setting that they come from,
    for messages.
    """
    given: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageError(f"{where} {text}: write KEY=VALUE, as {where} batch=4.")
        if name in given:
            raise UsageError(f"{where} {name}: given twice.")
        given[name] = ranges.from_text(value.strip())
    return typed_settings(method, record, given, where)


def typed_settings(method: str, record: type, given: Mapping[str, Any], where: str) -> dict[str, Setting]:
    fields = dict(settable(record))
    values: dict[str, Setting] = {}
    for name, value in given.items():
        if name not in fields:
            settings = ", ".join(fields) or "none"
            raise UsageError(
                f"{where} {name} = {ranges.shown(value)}: {method} has no setting {name!r}; it has {settings}."
            )
        values[name] = ranges.typed_value(fields[name].kind, value, f"{where} {name}")
    return {name: value for name, value in values.items() if value != fields[name].default}


@dataclasses.dataclass(frozen=True)
class Field:
    """A setting: its type and its default, or `dataclasses.MISSING`."""

    kind: Any
    default: Any


def settable(record: type, prefix: str = "") -> Iterator[tuple[str, Field]]:
    """Settings of a record by name; those of nested records with a dot."""
    kinds = ranges.kinds_of(record)
    for field in dataclasses.fields(record):
        kind = kinds[field.name]
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            if field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING:
                yield from settable(kind, f"{prefix}{field.name}.")  # else the run gives it whole
        elif any(map(ranges.is_plain, ranges.options_of(kind))):
            default = field.default
            if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            yield prefix + field.name, Field(kind, default)


def build_record(record: type, settings: Mapping[str, Setting], given: Mapping[str, Any]) -> Any:
    kinds, values = ranges.kinds_of(record), dict(given)
    for name, value in settings.items():
        head, point, _ = name.partition(".")
        if point:
            inner = {key[len(head) + 1 :]: item for key, item in settings.items() if key.startswith(head + ".")}
            values[head] = build_record(kinds[head], inner, {})
        else:
            values[head] = value
    return record(**values)
