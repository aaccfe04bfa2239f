"""Text of the note column."""

from __future__ import annotations


def joined(*parts: object) -> str | None:
    """Join remarks by semicolons, without None, NaN and repetitions; None if there are none.

    Examples
    --------
    >>> joined("two scans left out", None, float("nan"), "one site")
    'two scans left out; one site'
    >>> joined(None) is None
    True
    """
    return "; ".join(dict.fromkeys(part for part in parts if isinstance(part, str) and part)) or None
