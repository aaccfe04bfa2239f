"""Who works in a run folder: one program alone, or several on different people (``heatlas-bids ... participant``).

A lock file names the process that works in the folder, or on a person there. Two programs would overwrite each other's
tables, or images of the person. The lock of a process that has ended is replaced. Whether a process on another machine
has ended cannot be known, so a person decides.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from heatlas.pipeline.run.documents import json_object
from heatlas.pipeline.run.errors import ResumableError, UsageError
from heatlas.pipeline.run.regular_files import read_regular

LARGEST = 2**16
"""Bytes of a lock file that are read."""


@contextmanager
def run_lock(path: Path, people: Sequence[str] = ()) -> Iterator[str]:
    """Hold the lock of a folder, which is created if needed, or those of people in it.

    The holder of the folder works there alone; holders of different people work side by side. Who begins makes its own
    lock file first and then looks for those of others, so that of two that begin at once no one is overlooked.

    `path`: the lock file. `people`: lock these (``sub-01``, once or more often) instead of the folder; each has a lock
    file of its own. Yields a line for the log if the lock of an ended process was replaced, else "". Raises
    ResumableError if another program works there, or on one of the people. Raises UsageError if the folder cannot be
    written to, or a link in it leads out of it.
    """
    require_no_links_out(path.parent)
    mine = _text({"host": platform.node(), "pid": os.getpid(), "process": _process_start(os.getpid()),
                  "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")})  # fmt: skip
    with ExitStack() as held:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = []
            for file in [path.with_name(f"{path.name}.{person}") for person in dict.fromkeys(people)] or [path]:
                lines.append("" if _created(file, mine) else _replaced(file, mine))
                held.callback(_give_back, file, mine)
            if people and path.exists():
                _require_gone(path, _read(path))
            for left in [] if people else list(path.parent.glob(f"{path.name}.sub-*")):
                if left.exists():  # taken over before it is removed: its job may be starting again
                    _replaced(left, mine)
                    _give_back(left, mine)
        except OSError as error:
            raise UsageError(f"{path.parent}: cannot write there ({error.strerror}).") from error
        yield next(filter(None, lines), "")


def _give_back(file: Path, mine: str) -> None:
    if _read(file) == mine:
        file.unlink(missing_ok=True)


def require_no_links_out(root: Path) -> None:
    """Refuse a run folder with a link to a folder outside it: results would be written there.

    Raises UsageError: names the link. Links to files are safe, since writing a file replaces the link.
    """
    inside = root.resolve()
    for folder, names, _ in os.walk(inside):
        for link in (Path(folder, name) for name in names):
            if link.is_symlink() and not link.resolve().is_relative_to(inside):
                raise UsageError(
                    f"{link}: is a link to a folder outside {root}, and results would be written there. Replace the "
                    "link by the folder itself, or choose another output folder."
                )


def _text(holder: dict[str, Any]) -> str:
    return json.dumps(holder) + "\n"


def _created(path: Path, text: str) -> bool:
    """Create the file unless it exists; returns whether it was created."""
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)
    return True


def _read(path: Path) -> str:
    try:
        return read_regular(path, LARGEST).decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _replaced(path: Path, mine: str) -> str:
    """Replace the lock of an ended process, and return a line about it.

    Of several processes that find the same lock, the one that can create a file named after its content replaces it.
    """
    theirs = _read(path)
    _require_gone(path, theirs)
    claim = path.with_name(f"{path.name}.{hashlib.sha256(theirs.encode()).hexdigest()[:16]}")
    if not _created(claim, mine):
        raise ResumableError(
            f"{path.parent}: another program has just begun to work there. If not, delete {claim} and try again."
        )
    if _read(path) != theirs:
        claim.unlink(missing_ok=True)
        raise ResumableError(f"{path.parent}: another program has just begun to work there. Try again.")
    claim.replace(path)
    held = json_object(theirs)
    return f"Continuing a run that was killed (process {held['pid']}, started {held['started']})."


def _require_gone(path: Path, text: str) -> None:
    """Refuse unless the process that wrote this lock is known to have ended."""
    person = next((part for part in path.name.split(".") if part.startswith("sub-")), "")
    work = f"works on {person}" if person else "works"
    try:
        held = json_object(text)
        host, pid, started = str(held["host"]), int(held["pid"]), str(held["started"])
        process = held["process"]
    except (ValueError, KeyError, TypeError) as error:
        raise ResumableError(
            f"{path.parent}: another program may be starting to work there. If not, delete {path} and try again."
        ) from error
    if host != platform.node():
        raise ResumableError(
            f"{path.parent}: process {pid} on {host} {work} there since {started}. Wait for it. If it has ended, "
            f"delete {path} and run the same command again."
        )
    if _is_alive(pid, process):
        raise ResumableError(
            f"{path.parent}: process {pid} {work} there since {started}. Wait for it, or choose another output folder."
        )


def _is_alive(pid: int, process: str | None) -> bool:
    """Whether a process of this machine exists and was started when the lock says."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return _process_start(pid) == process


def _process_start(pid: int) -> str | None:
    """Start time of a process in ticks since boot; None if the system does not provide it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
