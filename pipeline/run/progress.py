"""Progress bars on a terminal, silence elsewhere."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm


def progress_bar(total: int, description: str) -> Any:
    """A `tqdm` bar on standard error; disabled when that is not a terminal."""
    return tqdm(total=total, desc=f"{description:<24}", unit="", disable=not sys.stderr.isatty(), leave=True)
