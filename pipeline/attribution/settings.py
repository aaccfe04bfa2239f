"""Checks of a method's settings when the method is created."""

from __future__ import annotations

import math

from heatlas.pipeline.run.errors import UsageError


def require_whole(method: str, setting: str, value: int, least: int) -> None:
    """Refuse anything but a whole number of at least `least`.

    Raises
    ------
    UsageError
        Naming method and setting.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{method}: {setting} = {value!r}; it must be a whole number of at least {least}.")


def require_number(method: str, setting: str, value: float, least: float, most: float) -> None:
    """Refuse anything but a number from `least` to `most`, including NaN.

    Raises
    ------
    UsageError
        Naming method and setting.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        span = f"of at least {least:g}" if math.isinf(most) else f"from {least:g} to {most:g}"
        raise UsageError(f"{method}: {setting} = {value!r}; it must be a number {span}.")
