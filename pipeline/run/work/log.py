"""The log of a run: on the terminal, and with times in ``logs/run.log``."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from heatlas.pipeline.run.layout.private_paths import with_named_folders
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.plain_text import plain


class _Formatter(logging.Formatter):
    """Plain text with the folders of this machine replaced by names."""

    def __init__(self, form: str, folders: Mapping[Path, str]) -> None:
        super().__init__(form)
        self._folders = folders

    def format(self, record: logging.LogRecord) -> str:
        return with_named_folders(plain(super().format(record)), self._folders)


@contextmanager
def open_log(layout: RunLayout, source: Path) -> Iterator[logging.Logger]:
    """Log to the terminal and to the run folder for the duration of a run.

    `source`: input folder; the log file contains neither its path nor that of the run folder.
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
