"""Something done now and then while a stage runs, for a small share of its time."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS_BETWEEN = 30.0
LARGEST_SHARE = 0.05


class Paced:
    """Calls a function when asked, but not soon after the last call.

    Between two calls lie at least `SECONDS_BETWEEN`, and so many that calls take at most `LARGEST_SHARE` of the time.
    The first is as long after the start.

    Parameters
    ----------
    function : callable
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
