"""Open only regular files: reading a named pipe may block forever, and a device may be endless."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

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
