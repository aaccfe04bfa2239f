"""The run folder as a whole: made, recognised, protected from mix-ups."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

from pipeline.run.config import Config
from pipeline.run.config_files import config_to_toml, read_config, toml_value
from pipeline.run.errors import BadInputError, UsageError
from pipeline.run.layout import RunLayout
from pipeline.run.private_paths import relative_to_folder
from pipeline.run.tables import write_text


@dataclass(frozen=True)
class RunInput:
    """What a run was made from; the ``[run]`` section of its ``config.toml``.

    The input is written as seen from the run folder, so that no home folder is named.
    """

    input: Path
    preset: str


def prepare_run_folder(out: Path, source: RunInput, config: Config) -> RunLayout:
    """Make the run folder, or recognise one of the same input, and write its configuration.

    Raises
    ------
    BadInputError
        If the input folder is missing or unreadable.
    UsageError
        If `out` holds something else, belongs to another input, lies where it would be read as input, or cannot
        be written.
    """
    out, root = out.resolve(), source.input.resolve()
    if not root.is_dir():
        raise BadInputError(f"{source.input}: no such folder. Give the folder of an ADNI download or a BIDS dataset.")
    if out == root or out in root.parents:
        raise UsageError(f"{out}: the output folder must not be or contain the input folder {root}.")
    if root in out.parents and root / "derivatives" not in [out, *out.parents]:
        raise UsageError(f"{out}: lies inside the input folder, which is never written to. Choose a folder elsewhere.")
    layout = RunLayout(out)
    if layout.config.is_file():
        known = read_run_input(layout)
        if known.input.resolve() != root:
            raise UsageError(f"{out}: holds a run of another input ({known.input}). Choose another output folder.")
    elif out.is_dir() and any(out.iterdir()):
        raise UsageError(f"{out}: is not empty and not a Heatlas run. Choose an empty or new output folder.")
    try:
        text = (
            f"{config_to_toml(config)}\n[run]\ninput = {toml_value(relative_to_folder(root, out))}\n"
            f"preset = {toml_value(source.preset)}\n"
        )
        write_text(layout.config, text)
    except OSError as error:
        raise UsageError(f"{out}: cannot write there ({os.strerror(error.errno or 0)}).") from error
    return layout


def require_same_privacy(out: Path, config: Config) -> None:
    """Refuse to continue a run under other privacy settings: what it hides would stand beside what is to be hidden.

    Raises
    ------
    UsageError
        If `out` is a run with other settings.
    """
    layout = RunLayout(out.resolve())
    if layout.config.is_file() and read_config(layout.config).privacy != config.privacy:
        raise UsageError(
            f"{out}: this run was begun with other privacy settings. Give --anonymise and --pseudonymise as then, or "
            "choose another output folder."
        )


def read_run_input(layout: RunLayout) -> RunInput:
    """Read what a run was made from.

    Raises
    ------
    UsageError
        If the folder is not a run.
    """
    try:
        section = tomllib.loads(layout.config.read_text(encoding="utf-8"))["run"]
        return RunInput((layout.root / section["input"]).resolve(), section["preset"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{layout.root}: not a Heatlas run (no readable config.toml with a [run] section).") from error
