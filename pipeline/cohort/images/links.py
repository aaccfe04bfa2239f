"""Which links in an input folder are followed, and what is said of the others.

A link out of the input is followed only if the user says so (``--follow-links``): a folder that is given should be all
that is read. The choice holds for the reading of a whole input, hence a context and no argument of twenty functions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_FOLLOWED: ContextVar[bool] = ContextVar("links out of the input are followed", default=False)


@contextmanager
def following_links(followed: bool) -> Iterator[None]:
    """Follow links out of the input folder while an input is read, or do not."""
    token = _FOLLOWED.set(followed)
    try:
        yield
    finally:
        _FOLLOWED.reset(token)


def are_followed() -> bool:
    """Whether links out of the input folder are followed."""
    return _FOLLOWED.get()


def link_problem(root: Path, image: str) -> str | None:
    """Why a path must not be followed: it leads out of the input folder, nowhere, or in a circle."""
    path = root / image
    if Path(image).is_absolute() or ".." in Path(image).parts:
        return "a path outside the input folder: give one relative to it"
    if not path.is_symlink() and not any((root / parent).is_symlink() for parent in Path(image).parents):
        return None
    try:
        target = path.resolve(strict=True)
    except PermissionError:
        return "no permission to read it"
    except (OSError, RuntimeError):  # RuntimeError: a loop of links, in Python 3.11
        return dead_link(path)
    if not target.is_relative_to(root) and not are_followed():
        # The target is not named: its path may contain the name of a person.
        return "a link to a file outside the input folder: copy the file into it, or give --follow-links"
    return None


def dead_link(path: Path) -> str:
    """What is wrong with a link that cannot be followed: a circle, a file that DataLad has not fetched, or no file."""
    try:
        target = path.resolve()
    except (OSError, RuntimeError):
        return "a link in a circle"
    if target.is_symlink():  # Python 3.13 and later give the link of the circle back
        return "a link in a circle"
    if any(pair == (".git", "annex") for pair in zip(target.parts, target.parts[1:], strict=False)):
        return "a link that leads nowhere: its content has not been fetched; run `datalad get` in the dataset"
    return "a link that leads nowhere"


def leads_in_a_circle(root: Path, folder: str) -> bool:
    """Whether a linked folder, by its path from `root`, holds itself or a folder on the way to it."""
    target = (root / folder).resolve()
    above = [root, *(root / parent for parent in Path(folder).parents)]
    return any(place.resolve().is_relative_to(target) for place in above)


def is_dead(folder: str, name: str) -> bool:
    """Whether a name is that of a link that leads nowhere, or in a circle."""
    path = os.path.join(folder, name)  # noqa: PTH118 speed
    return os.path.islink(path) and not os.path.exists(path)  # noqa: PTH110, PTH114 speed
