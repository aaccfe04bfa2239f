"""The machine that a process works on: its memory, why a file could not be written, and values from its GPU.

A disk may be full, or the shell may limit the size of files. Libraries differ in what they say then: ANTs says nothing
and leaves a truncated file, safetensors has an error of its own.

`on_host` is the one place where values come back from the device that computes. Whoever asks a GPU for a value waits
until it has done all that it was told before, and has nothing to do meanwhile. So nothing asks but `on_host`, and tests
on a stand-in for a GPU (`tests/other_device.py`) find whoever asks otherwise. What is meant, and worth its wait:

- in training, the classes of the part and the constants of a fresh network before the first step; loss and score at the
  end of a pass over a part; the checkpoint; in the first ten steps the counts of batch normalisation; with guidance,
  which scans of a batch have a mask; with SimCLR, whether a batch has a wrong answer;
- in an explanation: whether volumes, masks and maps are finite and in range, whether LRP needs twice the products
  (signed inputs), which boxes and regions change anything, whether expected gradients need more points, and what LIME
  and ViT-CX fit by scikit-image, numpy and scipy;
- results on their way to a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor
import ctypes
import errno
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_FSIZE, getrlimit


def on_host(values: Tensor) -> Tensor:
    """The values of a tensor on the CPU, without a graph; of one that is there already, itself (detached)."""
    return values.detach().cpu()


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Parameters of glibc's ``mallopt`` (malloc.h)."""
GLIBC_MMAP_MAX, GLIBC_TRIM_THRESHOLD = 65536, 128 * 1024


@contextmanager
def kept_memory() -> Iterator[None]:
    """Let the C library keep freed memory instead of returning it to the system.

    Activations of a 3D network are tens of megabytes each. glibc maps such blocks anew every time, and the kernel
    clears every page, which takes half the time of a forward pass or a training step on the CPU. No effect without
    glibc. Also a decorator: ``@kept_memory()``.
    """
    if platform.libc_ver()[0] != "glibc":
        yield
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield
    finally:
        libc.mallopt(M_MMAP_MAX, GLIBC_MMAP_MAX)
        libc.mallopt(M_TRIM_THRESHOLD, GLIBC_TRIM_THRESHOLD)
        libc.malloc_trim(0)


FULL_BYTES = 2**20
"""A disk with less free space is full, and a limit below it too low: what was just written may be cut short."""
FULL = "no space left on the disk; free some"


def size_limit() -> int | None:
    """Most bytes of a file that the shell allows (``ulimit -f``); None without a limit."""
    limit = getrlimit(RLIMIT_FSIZE)[0]
    return None if limit == RLIM_INFINITY else limit


def too_large() -> str:
    return f"a file may not be larger than {size_limit() or 0:,} bytes here (ulimit -f); raise the limit"


def why_unwritten(error: BaseException, disk: Path | None = None, written: Path | None = None) -> str | None:
    """What keeps files from being written, and what to do about it; None if that is not why an error was raised.

    `disk`: a folder: whether its disk is full is looked up. `written`: a folder of files just written: whether one has
    reached the limit of the shell is looked up.
    """
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT) or (disk is not None and is_full(disk)):
        return FULL
    if number == errno.EFBIG or os.strerror(errno.EFBIG) in str(error) or _at_limit(written):
        return too_large()
    return None


def is_full(folder: Path) -> bool:
    with suppress(OSError):
        return shutil.disk_usage(folder).free < FULL_BYTES
    return False


def _at_limit(folder: Path | None) -> bool:
    limit = size_limit()
    if limit is None or folder is None:
        return False
    return any(path.stat().st_size >= limit for path in folder.rglob("*") if path.is_file())
