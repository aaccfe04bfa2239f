"""Configurations as TOML: presets and a user's file in, the resolved configuration of a run out.

Presets are files in ``pipeline/run/config/presets``; what a preset does not name is a default. The resolved
configuration is written to the run folder and repeats the run.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from heatlas.pipeline.run.config.networks import DEFAULT_NETWORK, NETWORKS, SHARED, ModelConfig
from heatlas.pipeline.run.config.ranges import is_control, problems, typed_value
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.documents import read_toml, toml_document
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.plain_text import did_you_mean, nearest, nearest_setting, unknown

Record = TypeVar("Record")

PRESETS = Path(__file__).parent / "presets"
PUBLISHED = "published"
"""Section of the file of a network that says what its makers published; no setting."""


def load_config(
    preset: str = "default", file: Path | Mapping[str, Any] | None = None, overrides: Mapping[str, Any] | None = None
) -> Config:
    """Build the configuration: defaults, then a preset, then a file, then single values.

    `preset`: ``default`` or the name of a file in ``pipeline/run/config/presets``; several joined by ``+``, the last
    over those before it. `file`: TOML with the sections of `Config`, or what such a file holds; only what differs need
    be named. `overrides`: as the parsed file, e.g. ``{"seed": 7}``. Raises UsageError for an unknown preset, section,
    setting, type or value; the message names it and the file it stands in.
    """
    values: dict[str, Any] = {}
    sources = []
    named = [name for name in preset.split("+") if name != "default"]
    known = preset_names() if named else ()
    for name in named:
        if name not in known:  # a path is no name, even where it leads to a preset
            raise UsageError(unknown("--preset", name, known))
        sources.append(f"preset {name}")
        _add(values, _read_toml(PRESETS / f"{name}.toml"), sources[-1])
    if isinstance(file, Mapping):
        sources.append("settings")
        _add(values, file, sources[-1])
    elif file is not None:
        sources.append(str(file))
        _add(values, _with_files_beside(file, _read_settings(file)), sources[-1])
    if overrides:
        sources.append("options")
        _add(values, overrides, sources[-1])
    return _configuration(values, sources)


def preset_names() -> tuple[str, ...]:
    """Names of all presets, the usual one first."""
    return ("default", *sorted(path.stem for path in PRESETS.glob("*.toml")))


def read_config(path: Path) -> Config:
    """The configuration of a run or an export, which an earlier version may have written."""
    return _configuration(_check(Config, _read_settings(path, of_run=True), "", str(path)), [str(path)])


def with_section(config: Config, file: Path, section: str) -> Config:
    """A configuration with the settings of one section from a file, which may name no other.

    Raises UsageError for another section, and as `load_config`.
    """
    new = _read_settings(file)
    if others := [name for name in new if name != section]:
        raise UsageError(f"{file}: {others[0]} belongs to heatlas run; this command reads [{section}] only.")
    values = _check(Config, toml_document(config_to_toml(config)), "", "the run")
    _merge(values, _check(Config, new, "", str(file)))
    return _configuration(values, [str(file)])


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
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        text = "".join(f"\\u{ord(character):04x}" if is_control(character) else character for character in escaped)
        return f'"{text}"'
    if isinstance(value, tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return repr(value)


def _read_settings(path: Path, *, of_run: bool = False) -> dict[str, Any]:
    """Settings of a file, without what a run's own file says of its input, and a description of its network.

    `of_run`: whether a run or an export has written it; a file with the section ``[run]`` is one of a run.
    """
    values = _read_toml(path)
    of_run = of_run or "run" in values
    for name in ("run", PUBLISHED):
        values.pop(name, None)
    attribution = values.get("attribution")
    if of_run and isinstance(attribution, dict):
        attribution.pop("networks", None)
        if isinstance(attribution.get("guided_backpropagation"), bool):
            guided = attribution.pop("guided_backpropagation")
            attribution.setdefault("methods", ["lrp", *(["guided-backpropagation"] if guided else [])])
    return values


REMOVED = {
    "attribution.networks": "All networks that may explain a scan do; take the setting out.",
    "attribution.guided_backpropagation": "Name guided-backpropagation in attribution.methods.",
}
"""Settings of earlier versions, which files of runs may hold, and what a file of the user's own should have instead."""


_FILES = {"cohort": ("table", "freesurfer_folder", "without"), "model": ("weights", "network")}


def _with_files_beside(file: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Settings of a file that name what lies beside it, wherever the command is given."""
    found = dict(values)
    for section, names in _FILES.items():
        given = values.get(section)
        if not isinstance(given, dict):
            continue
        for name in names:
            path, code, what = given[name].partition(".py:") if isinstance(given.get(name), str) else ("", "", "")
            path = f"{path}.py" if code else path
            if path and os.path.exists(file.parent / path):  # noqa: PTH110 os.path, a name may be too long for Path
                found[section] = found[section] | {name: f"{(file.parent / path).absolute()}{code[3:]}{what}"}
    return found


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path)
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such configuration file.") from error
    except OSError as error:
        raise UsageError(f"{path}: this configuration file cannot be read ({error.strerror}).") from error
    except ValueError as error:  # besides its own errors tomllib passes on int's, of too many digits
        raise UsageError(f"{path}: not valid TOML in UTF-8 ({error}).") from error


def _add(values: dict[str, Any], new: Mapping[str, Any], source: str) -> None:
    """Check the settings of one source and put them over those of the sources before it.

    A source that names another architecture than those before it starts from the defaults of that architecture: the
    pools of a preset mean nothing to a ResNet. In other sections it starts from what the architecture usually has.
    """
    if isinstance(section := new.get("attribution"), Mapping):
        new = {**new, "attribution": _with_texts(section)}
    model = new.get("model")
    if isinstance(model, Mapping):
        before = values.get("model", {})
        architecture = before.get("architecture", DEFAULT_NETWORK)
        new = {**new, "model": {"architecture": architecture, **model}}
        if new["model"]["architecture"] != architecture:
            values["model"] = {name: value for name, value in before.items() if name in SHARED}
            _merge(values, usual_settings(new["model"]["architecture"]))
    _merge(values, _check(Config, new, "", source))


def _with_texts(section: Mapping[str, Any]) -> dict[str, Any]:
    """The section ``[attribution]`` with tables of methods, as ``[attribution.lrp]``, as texts of its ``settings``.

    >>> _with_texts({"settings": ["batch=4"], "lrp": {"batch_norm": "fold"}, "rise": {"masking": {"baseline": -1.5}}})
    {'settings': ['batch=4', 'lrp:batch_norm=fold', 'rise:masking.baseline=-1.5']}
    """

    def texts(table: Mapping[str, Any], before: str) -> list[str]:
        texts_of_table = []
        for name, value in table.items():
            if isinstance(value, Mapping):
                texts_of_table += texts(value, f"{before}{name}.")
            else:
                written = toml_value(tuple(value) if isinstance(value, list) else value)
                texts_of_table.append(f"{before}{name}={value if isinstance(value, str) else written}")
        return texts_of_table

    tables = {name: value for name, value in section.items() if isinstance(value, Mapping)}
    rest = {name: value for name, value in section.items() if name not in tables}
    from_tables = [text for method, table in tables.items() for text in texts(table, f"{method}:")]
    return {**rest, "settings": [*rest.get("settings", []), *from_tables]} if from_tables else rest


def usual_settings(architecture: Any) -> Mapping[str, Mapping[str, Any]]:
    """Settings of other sections that an architecture usually has; none for an unknown one, which is refused later."""
    has_usual = isinstance(architecture, str) and architecture in NETWORKS
    return NETWORKS[architecture](architecture=architecture).usual if has_usual else {}


def usual_sentence(config: Config) -> str:
    """Settings of other sections that a run has because of its architecture; empty if there are none.

    Examples
    --------
    >>> usual_sentence(load_config())
    ''
    >>> usual_sentence(load_config(overrides={"model": {"architecture": "bcos-simple"}}))[:75]
    'usual for bcos-simple and not set otherwise: training.learning_rate = 0.001'
    """
    kept = [
        f"{section}.{name} = {toml_value(value)}"
        for section, values in usual_settings(config.model.architecture).items()
        for name, value in values.items()
        if getattr(getattr(config, section), name) == value
    ]
    return f"usual for {config.model.architecture} and not set otherwise: {', '.join(kept)}" if kept else ""


def checked_section(record: type[Record], values: Mapping[str, Any], where: str, source: str) -> Record:
    """A record from the values of a section of a file; raises `UsageError` as for settings."""
    return _record(record, _check(record, values, where, source))


def network_settings(values: Mapping[str, Any], source: str) -> ModelConfig:
    """Settings of a network from plain values, checked as the section ``[model]`` is; raises `UsageError`."""
    record = _network_record(values, source)
    settings = _record(record, _check(record, values, "model.", source))
    for problem in problems(settings, "model."):
        raise UsageError(f"{source}: {problem}.")
    return settings


def _network_record(values: Mapping[str, Any], source: str) -> type[ModelConfig]:
    name = values.get("architecture", DEFAULT_NETWORK)
    if not isinstance(name, str) or name not in NETWORKS:
        meant = did_you_mean(nearest(name, NETWORKS) if isinstance(name, str) else None)
        raise UsageError(
            f"{source}: model.architecture = {name!r}: no such family of networks.{meant} Known are "
            f"{', '.join(NETWORKS)}; `heatlas models` describes them."
        )
    return NETWORKS[name]


def _merge(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    for name, value in new.items():
        if isinstance(value, Mapping) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        else:
            into[name] = dict(value) if isinstance(value, Mapping) else value


def _configuration(values: Mapping[str, Any], sources: Sequence[str]) -> Config:
    """Make the record from checked values; settings that make no sense are refused with where they come from."""
    try:
        return _record(Config, values)
    except UsageError as error:
        raise UsageError(f"{error} (settings from {', '.join(sources)})" if sources else str(error)) from error


def _record(record: type[Record], values: Mapping[str, Any]) -> Record:
    types = get_type_hints(record)
    fields = {}
    for name, value in values.items():
        kind = NETWORKS[value["architecture"]] if types[name] is ModelConfig else types[name]
        fields[name] = _record(kind, value) if isinstance(value, Mapping) else value
    return record(**fields)


def _check(record: type[Any], values: Mapping[str, Any], where: str, source: str) -> dict[str, Any]:
    """Values of one source, each of the type of its setting; sections as mappings."""
    types = get_type_hints(record)
    for name in values:
        if name not in types:
            _require_own_network(record, values, name, source)
            known = setting_names(Config)
            if not any(one.startswith(where) for one in known):  # a section of another file
                known = [where + one for one in types]
            instead = REMOVED.get(where + name)
            meant = f" {instead}" if instead else did_you_mean(nearest_setting(where + name, known))
            raise UsageError(f"{source}: unknown setting {where}{name}.{meant} Known here are {', '.join(types)}.")
    return {name: _convert(types[name], value, where + name, source) for name, value in values.items()}


def _require_own_network(record: type[Any], values: Mapping[str, Any], name: str, source: str) -> None:
    """Say so where a setting of ``[model]`` belongs to another family than that of its section."""
    families = NETWORKS.items() if issubclass(record, ModelConfig) else ()
    owners = [family for family, other in families if name in get_type_hints(other)]
    if owners:
        family = values.get("architecture", DEFAULT_NETWORK)
        names = ", ".join(field.name for field in dataclasses.fields(record))
        raise UsageError(
            f"{source}: model.{name} is a setting of {', '.join(owners)}, and model.architecture is {family!r}. Remove "
            f'model.{name}, or set architecture = "{owners[0]}". Settings of {family} are {names}.'
        )


def setting_names(record: type[Any], where: str = "") -> list[str]:
    """Names of all sections and settings: ``training``, ``training.learning_rate``."""
    names = []
    for name, kind in get_type_hints(record).items():
        names.append(where + name)
        kinds = NETWORKS.values() if kind is ModelConfig else [kind]
        names += [n for k in kinds if dataclasses.is_dataclass(k) for n in setting_names(k, f"{where}{name}.")]
    return list(dict.fromkeys(names))


def _convert(kind: Any, value: Any, name: str, source: str) -> Any:
    """One value as its setting has it, or a section checked by its record, ``[model]`` by that of its architecture."""
    if not dataclasses.is_dataclass(kind):
        return typed_value(kind, value, f"{source}: {name}")
    if not isinstance(value, Mapping):
        raise UsageError(f"{source}: {name} is a section, not a value.")
    if kind is ModelConfig:
        kind, value = _network_record(value, source), {"architecture": DEFAULT_NETWORK, **value}
    return _check(kind, value, name + ".", source)
