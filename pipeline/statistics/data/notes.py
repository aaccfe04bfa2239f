"""Text of the note column: remarks joined by semicolons, and counts with their nouns."""

from __future__ import annotations


def joined(*parts: object) -> str | None:
    """Join remarks; None and NaN (pandas' missing text) are skipped, and None is returned if nothing is left.

    Examples
    --------
    >>> joined("two scans left out", None, float("nan"), "one site")
    'two scans left out; one site'
    >>> joined(None) is None
    True
    """
    return "; ".join(dict.fromkeys(part for part in parts if isinstance(part, str) and part)) or None


def so_many(n: int, noun: str) -> str:
    """A count and its noun, in the singular for one.

    Examples
    --------
    >>> so_many(1, "scan"), so_many(2, "scan")
    ('1 scan', '2 scans')
    """
    return f"{n} {noun}{'' if n == 1 else 's'}"
