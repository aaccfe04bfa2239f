"""What a report could not show, and why: said in its place, at the top of the report, and in the log."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from jinja2 import UndefinedError

from heatlas.pipeline.run.errors import HeatlasError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import write_text
from heatlas.reports.words.numbers import LONGEST_TEXT, shortened

Made = TypeVar("Made")
CAUSED_BY_DATA = (ArithmeticError, AttributeError, LookupError, TypeError, UndefinedError, ValueError)
"""What a value that no check has foreseen may end in. A full disk or too little memory is no fault of the data."""


@dataclass
class Faults:
    """Sentences, each once, in the order in which they were met."""

    layout: RunLayout  # of the run, whose logs keep the tracebacks
    said: dict[str, None] = field(default_factory=dict)

    def add(self, sentence: str) -> str:
        """Write a sentence down, and give it back for the place that it is about."""
        self.said[sentence] = None
        return sentence

    def attempt(self, part: str, make: Callable[[], Made], files: str = "") -> tuple[Made | None, str]:
        """Make a part of the report; None and the reason where its data do not allow it.

        `part`: what is made, to begin the sentence with. `files`: those that it is made from, as far as they are known.
        """
        try:
            return make(), ""
        except HeatlasError as error:
            return None, self.add(f"{part} is missing. {error}")
        except CAUSED_BY_DATA as error:
            log = self.layout.traceback("report", "".join(c if c.isalnum() else "-" for c in part)[:80])
            write_text(log, traceback.format_exc())
            return None, self.add(
                f"{part} is missing: {files or 'a table of this run'} holds something unexpected "
                f"({type(error).__name__}: {shortened(error, LONGEST_TEXT)}; details in "
                f"{log.relative_to(self.layout.root).as_posix()}). Repeat the command that made this run."
            )
