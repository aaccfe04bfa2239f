"""Calls of a function from time to time during a stage, for a small share of its time."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS_BETWEEN = 30.0
LARGEST_SHARE = 0.05


class Paced:
    """Calls a function when called, but not too often.

    Calls are at least `SECONDS_BETWEEN` apart, from the start on, and take at most `LARGEST_SHARE` of the time.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._next = time.monotonic() + SECONDS_BETWEEN

    def __call__(self) -> None:
        """Call the function if it is time."""
        started = time.monotonic()
        if started < self._next:
            return
        self._function()
        ended = time.monotonic()
        self._next = ended + max(SECONDS_BETWEEN, (ended - started) / LARGEST_SHARE)
