"""Being someone whom permissions keep out, also where tests run as root."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def nobody(folder: Path) -> Iterator[None]:
    """As root, whom no mode keeps out, become a user who may look into `folder` and do no more."""
    if os.geteuid() != 0:
        yield
        return
    parents = [path for path in [folder, *folder.parents] if path.is_relative_to(tempfile.gettempdir())]
    modes = {path: path.stat().st_mode & 0o7777 for path in parents}
    for path, mode in modes.items():
        path.chmod(mode | 0o055)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        for path, mode in modes.items():
            path.chmod(mode)
