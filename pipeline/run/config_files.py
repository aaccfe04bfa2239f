"""Configurations as TOML: presets and a user's file in, the resolved configuration of a run out.

Presets are files in ``pipeline/run/presets``; what a preset does not name is a default. The resolved configuration
is written to the run folder and repeats the run.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from pipeline.run.config import Config
from pipeline.run.errors import UsageError

Record = TypeVar("Record")

PRESETS = Path(__file__).parent / "presets"


def load_config(
    preset: str = "default", file: Path | None = None, overrides: Mapping[str, Any] | None = None
) -> Config:
    """Build the configuration: defaults, then a preset, then a file, then single values.

    Parameters
    ----------
    preset : str
        ``default`` or the name of a file in ``pipeline/run/presets``.
    file : Path, optional
        TOML with the sections of `Config`; only what differs need be named.
    overrides : mapping, optional
        As the parsed file, e.g. ``{"seed": 7}``.

    Raises
    ------
    UsageError
        For an unknown preset, section, setting, type or value; the message names it.
    """
    values: dict[str, Any] = {}
    if preset != "default":
        path = PRESETS / f"{preset}.toml"
        if not path.is_file():
            known = ", ".join(["default", *sorted(p.stem for p in PRESETS.glob("*.toml"))])
            raise UsageError(f"--preset {preset}: unknown; known are {known}.")
        _merge(values, _read_toml(path))
    if file is not None:
        _merge(values, _read_toml(file))
    if overrides:
        _merge(values, overrides)
    return _build(Config, values, "")


def read_config(path: Path) -> Config:
    """Read the configuration that a run wrote."""
    values = _read_toml(path)
    values.pop("run", None)
    return _build(Config, values, "")


def config_to_toml(config: Config) -> str:
    """Write a configuration as TOML; `read_config` gives it back.

    The standard library reads TOML but does not write it; these records hold only text, numbers, booleans and
    flat tuples, so a dependency would be heavier than the ten lines.
    """
    return "\n".join(_toml_lines(config, "")) + "\n"


def _toml_lines(record: Any, where: str) -> list[str]:
    """Lines of a record: its values, then its sections, ``where`` being the path to it (``statistics.``)."""
    values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    lines = [f"{name} = {toml_value(value)}" for name, value in values.items() if not dataclasses.is_dataclass(value)]
    for name, value in values.items():
        if dataclasses.is_dataclass(value):
            lines += ["", f"[{where}{name}]", *_toml_lines(value, f"{where}{name}.")]
    return lines


def toml_value(value: Any) -> str:
    """Return a text, number, boolean or flat tuple as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    if isinstance(value, tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return repr(value)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such configuration file.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not valid TOML ({error}).") from error


def _merge(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    for name, value in new.items():
        if isinstance(value, Mapping) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        else:
            into[name] = dict(value) if isinstance(value, Mapping) else value


def _build(record: type[Record], values: Mapping[str, Any], where: str) -> Record:
    types = get_type_hints(record)
    unknown = sorted(set(values) - set(types))
    if unknown:
        raise UsageError(f"configuration: unknown setting {where}{unknown[0]}; known are {', '.join(types)}.")
    return record(**{name: _convert(types[name], value, where + name) for name, value in values.items()})


def _convert(kind: Any, value: Any, name: str) -> Any:
    """Check one value against its type; integers are accepted as floats, lists as tuples."""
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise UsageError(f"configuration: {name} is a section, not a value.")
        return _build(kind, value, name + ".")  # type: ignore[arg-type]
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise UsageError(f"configuration: {name} = {value!r}; allowed are {', '.join(map(repr, get_args(kind)))}.")
        return value
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise UsageError(f"configuration: {name} must be a list.")
        return tuple(_convert(get_args(kind)[0], item, name) for item in value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UsageError(f"configuration: {name} = {value!r} must be of type {kind.__name__}.")
    return value
