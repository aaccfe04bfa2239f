"""Entry point of the program, which handles Ctrl-C and termination with one line and the right exit code at any time.

Before the signal handlers are installed, only modules needed for them are imported.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

from heatlas.pipeline.run.errors import EXIT_INTERRUPTED, EXIT_TERMINATED, TerminatedError

_CODES = {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_TERMINATED}
_WHY = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated from outside"}
_SAME = 2.0
"""Seconds within which a second signal counts as the first: ``timeout`` signals the process and then its group, which
includes the process."""


class Interrupts:
    """Handlers of both signals: before `begin` they exit at once, afterwards they raise an exception for a clean exit.

    During imports, an exception could be raised inside a library and be lost there.
    """

    def __init__(self) -> None:
        self._working = False
        self._came: float | None = None

    def listen(self) -> None:
        """Handle both signals, even if a shell lets background jobs ignore Ctrl-C."""
        for number in _CODES:
            signal.signal(number, self._handle)

    def begin(self) -> None:
        self._working = True

    def end(self) -> None:
        """Ignore both signals: Python removes its handlers before it exits, and the exit code is known."""
        for number in _CODES:
            signal.signal(number, signal.SIG_IGN)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        which = signal.Signals(number)
        if self._came is not None and time.monotonic() - self._came < _SAME:
            return
        again, self._came = self._came is not None, time.monotonic()
        if again or not self._working:  # a second signal skips the clean-up
            os.write(2, f"heatlas: {_WHY[which]}; run the same command again.\n".encode())
            os._exit(_CODES[which])
        if which == signal.SIGINT:
            raise KeyboardInterrupt
        raise TerminatedError(_WHY[which])


def _open_what_is_closed() -> None:
    """Give closed standard streams a place to go; otherwise the first files opened would take their numbers."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8"))


def start(command: Callable[..., int] | None = None) -> int:
    """Run the command line of this process: that of ``heatlas``, or a function of the same parameters."""
    _open_what_is_closed()
    interrupts = Interrupts()
    interrupts.listen()
    from heatlas.workflows.command_line import main

    try:
        return (command or main)(begin=interrupts.begin)
    finally:
        interrupts.end()
