"""The way into the program, and out of it by Ctrl-C or termination: one line and the right exit code, whenever.

Nothing is imported before the signals are listened to that this does not need.
"""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

from pipeline.run.errors import EXIT_INTERRUPTED, EXIT_RESUMABLE, ResumableError

_CODES = {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_RESUMABLE}
_LINES = {
    signal.SIGINT: "interrupted; run the same command again to continue.",
    signal.SIGTERM: "terminated from outside; run the same command again to continue.",
}
_SAME = 2.0
"""Seconds within which a second signal is taken for the first one: ``timeout`` sends it to the process, then to its
group, of which the process is a part."""


class Interrupts:
    """What the two signals do: before `begin` they end the process at once, after it they raise, so that it cleans up.

    While libraries are imported an exception could come up in the middle of their own code and be lost there.
    """

    def __init__(self) -> None:
        self._working = False
        self._came: float | None = None

    def listen(self) -> None:
        """Take both signals, also where a shell has told its background jobs to ignore Ctrl-C."""
        for number in _CODES:
            signal.signal(number, self._handle)

    def begin(self) -> None:
        self._working = True

    def end(self) -> None:
        """Ignore both signals: Python takes its handlers away before it ends, and the exit code is known."""
        for number in _CODES:
            signal.signal(number, signal.SIG_IGN)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        which = signal.Signals(number)
        if self._came is not None and time.monotonic() - self._came < _SAME:
            return
        again, self._came = self._came is not None, time.monotonic()
        if again or not self._working:  # whoever asks twice does not want to wait for the cleaning up
            os.write(2, f"heatlas: {_LINES[which]}\n".encode())
            os._exit(_CODES[which])
        if which == signal.SIGINT:
            raise KeyboardInterrupt
        raise ResumableError(_LINES[which])


def start() -> int:
    """Run the command line of this process."""
    interrupts = Interrupts()
    interrupts.listen()
    from workflows.command_line import main

    try:
        return main(begin=interrupts.begin)
    finally:
        interrupts.end()
