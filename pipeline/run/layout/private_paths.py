"""Paths in outputs, without the home folder, which may be named after a person."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from heatlas.pipeline.run.errors import HeatlasError


def without_home(text: str | Path) -> str:
    """A path, or a text with paths, with the user's home folder written as ``~``.

    Examples
    --------
    >>> without_home(f"heatlas check {Path.home()}/adni") if str(Path.home()) != "/" else "heatlas check ~/adni"
    'heatlas check ~/adni'
    """
    home = str(Path.home())
    return re.sub(rf"{re.escape(home)}(?![\w.-])", "~", str(text)) if home != os.sep else str(text)


_FOLDERS = re.compile(
    r"(?<![\w:/.~…-])(?:(?:/[^/\s:;,'\"()<>]+)+/|[A-Za-z]:[\\/](?:[^\\/\s:;,'\"()<>]+[\\/])*)(?=[^/\s])"
)
"""The folders of an absolute path, of two parts or more."""


def without_folders(text: str) -> str:
    r"""Cut absolute paths in a text to their last part, for pages that leave the machine.

    Examples
    --------
    >>> without_folders("heatlas run /data/trial/adni out --config=/etc/heatlas/my.toml")
    'heatlas run …/adni out --config=…/my.toml'
    >>> without_folders("AD/CN, n/a, https://a.org/b/c, 1 / 2, ../x/y, C:/Users/jane/adni")
    'AD/CN, n/a, https://a.org/b/c, 1 / 2, ../x/y, …/adni'
    """
    return _FOLDERS.sub("…/", text)


def relative_to_folder(path: Path, folder: Path) -> str:
    """Path relative to a folder, with POSIX separators; stays valid if both are moved together.

    >>> relative_to_folder(Path("/home/jane/adni"), Path("/home/jane/runs/first"))
    '../../adni'
    """
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()


def relative_uri(path: Path, folder: Path) -> str:
    """The same as a relative URI reference, as BIDS allows in ``DatasetLinks``."""
    return quote(relative_to_folder(path, folder))


def last_part(argument: str) -> str:
    """An argument of a command line, with an absolute path cut to its last part.

    Examples
    --------
    >>> [last_part(one) for one in ("/data/adni", "--config=/home/jane/my.toml", "adni", "--contrast", "a/b=c,d")]
    ['…/adni', '--config=…/my.toml', 'adni', '--contrast', 'a/b=c,d']
    """
    option, equals, value = argument.partition("=") if argument.startswith("-") else ("", "", argument)
    return f"{option}{equals}…/{Path(value).name}" if Path(value).is_absolute() else without_home(argument)


def with_named_folders(text: str, folders: Mapping[Path, str]) -> str:
    """Replace folders in a text by names, also at the beginning of longer paths.

    >>> folders = {Path("/x/out"): "OUT", Path("/x/in"): "INPUT"}
    >>> with_named_folders("/x/out/report.html, not /x/in2 or /x/in.old, is of /x/in.", folders)
    'OUT/report.html, not /x/in2 or /x/in.old, is of INPUT.'
    """
    for folder in sorted(folders, key=lambda path: len(str(path)), reverse=True):
        if len(folder.parts) > 1:
            text = folders[folder].join(re.split(rf"{re.escape(str(folder))}(?![\w-]|\.\w)", text))
    return without_home(text)


@contextmanager
def shown_as(path: Path, name: str) -> Iterator[None]:
    """Replace the path of a file by `name` in messages and tracebacks of errors of this program.

    Examples
    --------
    >>> with shown_as(Path("/home/jane/adni/a.nii"), "a.nii"):
    ...     raise HeatlasError("/home/jane/adni/a.nii: truncated.")
    Traceback (most recent call last):
    heatlas.pipeline.run.errors.HeatlasError: a.nii: truncated.
    """
    try:
        yield
    except HeatlasError as error:
        if str(path) not in str(error):
            raise
        raise type(error)(str(error).replace(str(path), name)) from None
