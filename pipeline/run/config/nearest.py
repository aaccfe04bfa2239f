"""Suggestions for misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

CUTOFF = 0.7
"""Similarity (difflib's ratio) below which nothing is suggested."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most similar to a misspelt one, regardless of case; None if none is similar.

    Examples
    --------
    >>> nearest("seks", ["age", "sex"]), nearest("AGE", ["age", "sex"]), nearest("tremor", ["age", "sex"])
    ('sex', 'age', None)
    """
    by_lower = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), by_lower, 1, CUTOFF if len(name) > 4 else 0.5)
    return by_lower[found[0]] if found else None


def nearest_setting(name: str, known: Sequence[str]) -> str | None:
    """The setting most similar to a misspelt one, in any section.

    >>> nearest_setting("training.learning_rat", ["seed", "training.learning_rate"])
    'training.learning_rate'
    >>> nearest_setting("learning_rate", ["seed", "training.learning_rate"])
    'training.learning_rate'
    """
    last = nearest(name.rpartition(".")[2], [one.rpartition(".")[2] for one in known])
    alike = [one for one in known if one.rpartition(".")[2] == last]
    return max(alike, key=lambda one: difflib.SequenceMatcher(None, name, one).ratio(), default=None)


def did_you_mean(name: str | None) -> str:
    """The question at the end of a message; empty without a suggestion."""
    return f" Did you mean {name}?" if name else ""
