"""``.bidsignore``: paths that the owner of a BIDS dataset excludes, as patterns of ``.gitignore``.

The patterns are matched by `pathspec`; ``fnmatch`` supports neither negation, nor ``**``, nor folders.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pathspec import GitIgnoreSpec

from pipeline.run.errors import BadInputError
from pipeline.run.regular_files import read_regular

BIDSIGNORE = ".bidsignore"
MOST_WILDCARDS = 10


def split_ignored(root: Path, paths: Iterable[str]) -> tuple[list[str], list[str]]:
    """Split paths into those of the dataset and those excluded by its ``.bidsignore``, in their order.

    A file that cannot be read and a malformed pattern are errors: images meant to be excluded must not be used.
    """
    patterns = read_patterns(root / BIDSIGNORE)
    used: list[str] = []
    ignored: list[str] = []
    for path in paths:
        (ignored if patterns.match_file(path) else used).append(path)
    return used, ignored


def read_patterns(path: Path) -> GitIgnoreSpec:
    """Patterns of a ``.bidsignore``; empty without the file."""
    try:
        lines = read_regular(path).decode("utf-8-sig").splitlines()
    except FileNotFoundError:
        lines = []
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path}: cannot be read ({error}). Check its permissions and encoding (UTF-8).") from error
    for line in lines:
        if line.count("*") > MOST_WILDCARDS:  # matching takes exponentially long
            raise BadInputError(
                f"{path}: the pattern {line[:40]!r}… has more than {MOST_WILDCARDS} asterisks. Split it."
            )
    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError as error:  # pathspec's pattern errors are ValueErrors
        raise BadInputError(f"{path}: a pattern is malformed ({error}). Write it as in a .gitignore.") from error
