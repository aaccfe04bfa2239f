"""The commands as functions: ``heatlas.run``, ``heatlas.apply``, ``heatlas.evaluate`` and ``heatlas.export``."""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from heatlas.pipeline.run.config.ranges import require_arguments
from heatlas.pipeline.run.errors import HeatlasError, UsageError
from heatlas.pipeline.run.plain_text import did_you_mean, nearest
from heatlas.reports.read.open_run import OpenRun, open_run
from heatlas.workflows.commands import Apply, Command, Evaluate, Export, Run, options_of

Record = TypeVar("Record", bound=Command)


class CommandError(HeatlasError):
    """A command ended with an error, which it has printed."""


def run(
    input: str | Path,
    out: str | Path,
    *,
    preset: str = "default",
    seed: int | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    **options: Any,
) -> OpenRun:
    """Everything from scans to report, as ``heatlas run INPUT OUT``.

    Parameters
    ----------
    input : str or Path
        ADNI or OASIS download or BIDS dataset; only read.
    out : str or Path
        Folder for the results. An interrupted run is continued by the same call.
    preset : str
        Named settings.
    seed : int, optional
    settings : mapping, optional
        Settings that differ from the preset, by section, as ``{"training": {"ensemble": 4}}`` (docs/settings.md).
    **options
        Of the command line, with underscores, as ``contrast="cdr=0,>=0.5"`` or ``n_procs=4``.

    Returns
    -------
    OpenRun

    Raises
    ------
    CommandError
        If the run ends without results; a run in which single scans failed is returned.
    UsageError
        For an option that does not exist.
    """
    require_arguments(input=input, out=out, preset=preset, seed=seed, settings=settings)
    if settings and options.get("config") is not None:
        raise UsageError("settings and config: both say what differs from the preset; give one of them.")
    for section, values in (settings or {}).items():
        if not isinstance(values, Mapping):
            raise UsageError(f'settings: {section} must be a section, as {{"training": {{"ensemble": 4}}}}.')
    record = filled(Run, {"input": input, "out": out, "preset": preset, "seed": seed, **options})
    return _finished(dataclasses.replace(record, config=settings) if settings else record, out)


def apply(run: str | Path, new: str | Path, out: str | Path, **options: Any) -> OpenRun:
    """The networks of a finished run on another cohort or a scan, as ``heatlas apply RUN NEW OUT``; raises as `run`."""
    require_arguments(run=run, new=new, out=out)
    return _finished(filled(Apply, {"run": run, "input": new, "out": out, **options}), out)


def apply_until_registered(run: Path, scan: Path, out: Path, **options: Any) -> None:
    """Bring one scan into template space as the networks of a run see it; `options`, and what it raises, as `apply`."""
    only = {"stop_after": "registration", "n_procs": 1}
    _end(filled(Apply, {"run": run, "input": scan, "out": out, **only, **options}))


def evaluate(out: str | Path, **options: Any) -> OpenRun:
    """Judge every method on a finished run, as ``heatlas evaluate OUT``; raises as `run`."""
    require_arguments(out=out)
    return _finished(filled(Evaluate, {"out": out, **options}), out)


def export(run: str | Path, folder: str | Path, **options: Any) -> Path:
    """Networks of a finished run as a folder without scans, as ``heatlas export RUN FOLDER``; raises as `run`."""
    require_arguments(run=run, folder=folder)
    _end(filled(Export, {"run": run, "folder": folder, **options}))
    return Path(folder)


def filled(record: type[Record], values: Mapping[str, Any]) -> Record:
    """A record from what a program gives; None and False are absent.

    Raises UsageError for an option that does not exist, or a value that it cannot have.

    >>> filled(Evaluate, {"out": "out", "quick": True, "methods": ["lrp", "deeplift"], "plant": False}).methods
    ('lrp', 'deeplift')
    >>> filled(Evaluate, {"out": "out", "method": "lrp"})
    Traceback (most recent call last):
    heatlas.pipeline.run.errors.UsageError: heatlas.evaluate: there is no option method. Did you mean methods?
    """
    options = {option.name: option for option in options_of(record)}
    for name in values:
        if name not in options:
            raise UsageError(f"heatlas.{record.name}: there is no option {name}.{did_you_mean(nearest(name, options))}")
    given = {name: value for name, value in values.items() if value is not None and value is not False}
    return record(**{name: _typed(options[name], value) for name, value in given.items()})


def _typed(option: dataclasses.Field[Any], value: Any) -> Any:
    if option.metadata.get("action") == "store_true":
        if value is not True:
            raise UsageError(f"{option.name} = {value!r}: must be True or False.")
        return True
    if "nargs" in option.metadata:
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(_typed_item(option, item) for item in items)
    return _typed_item(option, value)


def _typed_item(option: dataclasses.Field[Any], value: Any) -> Any:
    choices = option.metadata.get("choices")
    try:
        typed = option.metadata.get("type", str)(str(value))
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise UsageError(f"{option.name} = {value!r}: cannot be used ({error}).") from None
    if choices and typed not in choices:
        raise UsageError(f"{option.name} = {value!r}: must be one of {', '.join(choices)}.")
    return typed


def _finished(record: Command, out: str | Path) -> OpenRun:
    _end(record)
    return open_run(out)


def _end(record: Command) -> None:
    """Do what a record says, and raise if it ends without results."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # a worker reads the program that started it
        raise UsageError(
            f'heatlas.{record.name}: write it under `if __name__ == "__main__":` in a program, since its worker '
            "processes read the program too."
        )
    from heatlas.workflows.command_line import execute

    code = execute(record)
    if code not in (0, 1):
        raise CommandError(f"heatlas {record.name} ended with exit code {code}; the reason is above.")
