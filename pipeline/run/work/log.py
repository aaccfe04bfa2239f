"""The log of a run: what a person sees on the terminal, with times in ``logs/run.log``."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pipeline.run.layout.private_paths import with_named_folders
from pipeline.run.layout.run_layout import RunLayout
from pipeline.run.plain_text import plain


class _Formatter(logging.Formatter):
    """Plain text, in which folders of this machine are named as given."""

    def __init__(self, form: str, folders: Mapping[Path, str]) -> None:
        super().__init__(form)
        self._folders = folders

    def format(self, record: logging.LogRecord) -> str:
        return with_named_folders(plain(super().format(record)), self._folders)


@contextmanager
def open_log(layout: RunLayout, source: Path) -> Iterator[logging.Logger]:
    """Log to the terminal and to the run folder for the length of a run.

    Parameters
    ----------
    layout : RunLayout
    source : Path
        Input folder; the file of the run names neither it nor the run folder by its place on this machine.
    """
    logger = logging.getLogger("heatlas")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    layout.logs.mkdir(parents=True, exist_ok=True)
    terminal = logging.StreamHandler(sys.stdout)
    terminal.setFormatter(_Formatter("%(message)s", {}))
    file = logging.FileHandler(layout.log, encoding="utf-8")
    file.setFormatter(_Formatter("%(asctime)s %(levelname)s %(message)s", {layout.root: "OUT", source: "INPUT"}))
    handlers = (terminal, file)
    for handler in handlers:
        logger.addHandler(handler)
    try:
        yield logger
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
