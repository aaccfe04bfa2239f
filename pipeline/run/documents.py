"""Files read within bounds: regular files only, and JSON and TOML of limited size, depth and kind.

Reading a named pipe may block for ever, and a device may be endless. Python's readers of JSON and TOML recurse, and
that of TOML takes time that grows with the square of the parts of a key. What is too large, too deep or of another kind
is refused here, by one line that names the file and the remedy.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heatlas.pipeline.run.errors import BadInputError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def irregular_kind(path: Path | str) -> str | None:
    """Kind of a path that is not a file or a link to one, such as ``a named pipe``; None for a file.

    Raises OSError if it does not exist or cannot be accessed.
    """
    return _KINDS.get(stat.S_IFMT(Path(path).stat().st_mode))


def require_regular(path: Path) -> None:
    """Raise OSError for a path that does not exist or is no file; ``strerror`` says what it is instead."""
    kind = irregular_kind(path)
    if kind is not None:
        raise OSError(errno.EINVAL, f"{kind}, not a file", str(path))


def read_regular(path: Path, most: int | None = None) -> bytes:
    """The content of a file; `most` is the largest number of bytes that is read.

    Raises OSError if it cannot be read, is not a file or is too large; ``strerror`` says what it is instead.
    """
    require_regular(path)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise OSError(errno.EFBIG, f"{size:,} bytes, more than {most:,}", str(path))
        return file.read()


LARGEST_JSON = 256 * 2**20
"""Bytes of a JSON file; the digests of 100,000 scans take half of it."""
LARGEST_TOML = 2**20
DEEPEST = 32
"""Levels of objects and lists, or parts of a TOML key; files of a run have less than ten."""

_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*\.[ \t]*{_PART}){{{DEEPEST}}}")


def json_object(text: str | bytes) -> dict[str, Any]:
    """The object that a JSON text holds.

    Raises ValueError if it is not UTF-8 or not JSON, holds NaN or infinity, is nested deeper than `DEEPEST`, or is no
    object.

    Examples
    --------
    >>> json_object('{"format": 1}')
    {'format': 1}
    """
    text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    if not _is_shallow(value):
        raise ValueError(f"it is nested deeper than {DEEPEST} levels")
    if "\\ud" in text.lower():  # half a character, which no file can hold
        json.dumps(value, ensure_ascii=False).encode()
    return value


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """The object in a JSON file.

    `remedy`: a sentence: what to do if it cannot be read. Raises BadInputError if the file is missing, no regular file,
    larger than `LARGEST_JSON`, or not as `json_object` wants it.
    """
    try:
        return json_object(read_regular(path, LARGEST_JSON))
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read ({error.strerror}). {remedy}") from error
    except ValueError as error:
        raise BadInputError(f"{path}: not a readable JSON object ({' '.join(str(error).split())}). {remedy}") from error


def known_json(path: Path) -> Mapping[str, Any]:
    """The object in a JSON file that can be done without; empty where there is none that can be read."""
    try:
        return read_json(path, "")
    except BadInputError:
        return {}


def toml_document(text: str) -> dict[str, Any]:
    r"""What a TOML text holds.

    Raises ValueError if it is not TOML, longer than `LARGEST_TOML`, or has values or keys of more than `DEEPEST`
    levels.

    Examples
    --------
    >>> toml_document("[training]\ndropout = 0.5")
    {'training': {'dropout': 0.5}}
    """
    if len(text) > LARGEST_TOML:
        raise ValueError(f"it is longer than {LARGEST_TOML:,} characters")
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") >= DEEPEST and _LONG_KEY.search(line):
            raise ValueError(f"line {number} has a key of more than {DEEPEST} parts")
    try:
        value = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not _is_shallow(value):
        raise ValueError(f"it is nested deeper than {DEEPEST} levels")
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file in UTF-8 holds.

    Raises OSError if it cannot be read, is no regular file or is longer than `LARGEST_TOML` bytes. Raises ValueError as
    `toml_document`.
    """
    return toml_document(read_regular(path, LARGEST_TOML).decode("utf-8-sig"))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def _is_shallow(document: Any) -> bool:
    """Whether objects and lists are nested at most `DEEPEST` deep."""
    level = [document]
    for _ in range(DEEPEST):
        inner = [item.values() if isinstance(item, dict) else item for item in level]
        level = [value for values in inner for value in values if isinstance(value, dict | list)]
        if not level:
            return True
    return False
