"""Tables of an ADNI download, written as they come."""

from __future__ import annotations

from pathlib import Path


def write_csv(path: Path, content: str, encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode(encoding))
    return path
