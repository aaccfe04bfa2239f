"""Memory of a process that computes with large arrays again and again."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

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
