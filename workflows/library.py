"""The commands as functions: ``heatlas.run``, ``heatlas.apply``, ``heatlas.evaluate`` and ``heatlas.export``."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heatlas.pipeline.run.config.files import toml_value
from heatlas.pipeline.run.config.typed_values import require_arguments
from heatlas.pipeline.run.errors import HeatlasError, UsageError
from heatlas.reports.read.open_run import OpenRun, open_run


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
    with tempfile.TemporaryDirectory() as folder:
        words = ["run", str(input), str(out), "--preset", preset]
        words += [] if seed is None else ["--seed", str(seed)]
        words += [] if not settings else ["--config", str(_written(Path(folder), settings))]
        return _finished([*words, *_options(options)], out)


def apply(run: str | Path, new: str | Path, out: str | Path, **options: Any) -> OpenRun:
    """The networks of a finished run on another cohort or a scan, as ``heatlas apply RUN NEW OUT``; raises as `run`."""
    require_arguments(run=run, new=new, out=out)
    return _finished(["apply", str(run), str(new), str(out), *_options(options)], out)


def evaluate(out: str | Path, **options: Any) -> OpenRun:
    """Judge every method on a finished run, as ``heatlas evaluate OUT``; raises as `run`."""
    require_arguments(out=out)
    return _finished(["evaluate", str(out), *_options(options)], out)


def export(run: str | Path, folder: str | Path) -> Path:
    """Networks of a finished run as a folder without scans, as ``heatlas export RUN FOLDER``; raises as `run`."""
    require_arguments(run=run, folder=folder)
    _end(["export", str(run), str(folder)])
    return Path(folder)


def _options(options: Mapping[str, Any]) -> list[str]:
    """Options of a command line.

    >>> _options({"n_procs": 4, "quick": True, "methods": ["lrp", "deeplift"], "plant": False})
    ['--n-procs', '4', '--quick', '--methods', 'lrp', 'deeplift']
    """
    words: list[str] = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words += [str(one) for one in value] if isinstance(value, list | tuple) else [str(value)]
    return words


def _written(folder: Path, settings: Mapping[str, Mapping[str, Any]]) -> Path:
    """The settings as a file for ``--config``."""
    lines = []
    for section, values in settings.items():
        if not isinstance(values, Mapping):
            raise UsageError(f'settings: {section} must be a section, as {{"training": {{"ensemble": 4}}}}.')
        lines += [f"[{section}]", *(f"{name} = {toml_value(value)}" for name, value in values.items())]
    path = folder / "settings.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _finished(words: list[str], out: str | Path) -> OpenRun:
    _end(words)
    return open_run(out)


def _end(words: list[str]) -> None:
    """Give a command, and raise if it ends without results."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # a worker reads the program that started it
        raise UsageError(
            f'heatlas.{words[0]}: write it under `if __name__ == "__main__":` in a program, since its worker processes '
            "read the program too."
        )
    from heatlas.workflows.command_line import main

    try:
        code = main(words)
    except SystemExit as end:  # argparse, which has said what is wrong
        raise UsageError(f"heatlas {' '.join(words[:1])}: an option is wrong; see above.") from end
    if code not in (0, 1):
        raise CommandError(f"heatlas {words[0]} ended with exit code {code}; the reason is above.")
