"""Text of others on a terminal and in logs: shown, never obeyed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TextIO

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and line feed, marks that turn the direction of writing, halves of characters."""


def plain(text: str, lines: bool = True) -> str:
    r"""A text in which characters that a terminal obeys, or cannot show, are written as Python writes them.

    Parameters
    ----------
    text : str
    lines : bool
        Whether line feeds and tabs may stay.

    Examples
    --------
    >>> print(plain("site \x1b[31mred\x1b[0m"))
    site \x1b[31mred\x1b[0m
    """
    shown = _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)
    return shown if lines else shown.replace("\n", r"\n").replace("\t", r"\t")


def listed(names: Iterable[str], limit: int = 5) -> str:
    """Names for a message: the first few, and how many more.

    Examples
    --------
    >>> listed(["a", "b", "c"], limit=2)
    'a, b and 1 more'
    """
    all_names = list(names)
    more = len(all_names) - limit
    return ", ".join(all_names[:limit]) + (f" and {more} more" if more > 0 else "")


class PlainStream:
    """A text stream that writes only plain text; otherwise the stream it is made from."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(plain(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
