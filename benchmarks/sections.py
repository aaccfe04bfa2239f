"""A page of benchmarks that several scripts write, each its own section."""

from __future__ import annotations

import re
from pathlib import Path


def write_section(page: Path, title: str, body: str, heading: str) -> None:
    """Replace the section ``## title`` of a page, or add it; the page begins with ``# heading``."""
    text = page.read_text(encoding="utf-8") if page.is_file() else f"# {heading}\n"
    section = f"## {title}\n\n{body.strip()}\n"
    pattern = re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
    if pattern.search(text):
        text = pattern.sub(lambda _: section + "\n", text, count=1)
    else:
        text = text.rstrip() + "\n\n" + section
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text.rstrip() + "\n", encoding="utf-8")
