"""The log of a run: what a person sees on the terminal, with times in ``logs/run.log``."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.run.layout import RunLayout


@contextmanager
def open_log(layout: RunLayout) -> Iterator[logging.Logger]:
    """Log to the terminal and to the run folder for the length of a run."""
    logger = logging.getLogger("heatlas")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    layout.logs.mkdir(parents=True, exist_ok=True)
    terminal = logging.StreamHandler(sys.stdout)
    terminal.setFormatter(logging.Formatter("%(message)s"))
    file = logging.FileHandler(layout.log, encoding="utf-8")
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    handlers = (terminal, file)
    for handler in handlers:
        logger.addHandler(handler)
    try:
        yield logger
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
