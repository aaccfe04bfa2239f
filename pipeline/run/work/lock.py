"""One program at a time in a run folder: a lock file that says who is at work there.

Two programs would overwrite each other's tables. The lock of a process that is gone is taken over; whether a process
of another machine is gone cannot be known, so a person decides.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.run.errors import ResumableError, UsageError


@contextmanager
def run_lock(path: Path) -> Iterator[str]:
    """Hold the lock of a folder, made if need be.

    Parameters
    ----------
    path : Path
        The lock file.

    Yields
    ------
    str
        A line for the log if the lock of a process that is gone was taken over, else "".

    Raises
    ------
    ResumableError
        If another program is at work there.
    UsageError
        If the folder cannot be written to.
    """
    mine = _text({"host": platform.node(), "pid": os.getpid(), "process": _process_start(os.getpid()),
                  "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")})  # fmt: skip
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        line = "" if _created(path, mine) else _taken_over(path, mine)
    except OSError as error:
        raise UsageError(f"{path.parent}: cannot write there ({error.strerror}).") from error
    try:
        yield line
    finally:
        if _read(path) == mine:
            path.unlink(missing_ok=True)


def _text(holder: dict[str, Any]) -> str:
    return json.dumps(holder) + "\n"


def _created(path: Path, text: str) -> bool:
    """Whether the file was not there and is now."""
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
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _taken_over(path: Path, mine: str) -> str:
    """Put our lock in the place of one whose process is gone; say whose it was.

    Of several that try at once one moves the old lock away; whoever moves a new one by mistake puts it back.
    """
    theirs = _read(path)
    _require_gone(path, theirs)
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.replace(aside)
        if _read(aside) != theirs:
            _created(path, _read(aside))
    except FileNotFoundError:
        pass  # another was faster
    finally:
        aside.unlink(missing_ok=True)
    if not _created(path, mine):
        _require_gone(path, _read(path))
        raise ResumableError(f"{path.parent}: another program has just begun to work there. Try again.")
    held = json.loads(theirs)
    return f"Taken over from a run that was killed (process {held['pid']}, begun {held['started']})."


def _require_gone(path: Path, text: str) -> None:
    """Refuse unless the process that wrote this lock is known to be gone."""
    try:
        held = json.loads(text)
        host, pid, started = str(held["host"]), int(held["pid"]), str(held["started"])
        process = held["process"]
    except (ValueError, KeyError, TypeError) as error:
        raise ResumableError(
            f"{path.parent}: another program may just begin to work there. If none does, delete {path} and try again."
        ) from error
    if host != platform.node():
        raise ResumableError(
            f"{path.parent}: process {pid} on {host} works there, begun {started}. Wait for it. If it is gone, delete "
            f"{path} and run the same command again."
        )
    if _is_alive(pid, process):
        raise ResumableError(
            f"{path.parent}: process {pid} works there, begun {started}. Wait for it, or choose another output folder."
        )


def _is_alive(pid: int, process: str | None) -> bool:
    """Whether a process of this machine is there and began when the lock says."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return _process_start(pid) == process


def _process_start(pid: int) -> str | None:
    """When a process began, in ticks since the machine was started; None where the system does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
