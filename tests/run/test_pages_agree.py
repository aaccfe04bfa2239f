"""Facts that stand on several pages are the same on all of them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def text(name: str) -> str:
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


def test_the_download_is_the_measured_one_on_every_page() -> None:
    measured = re.search(r"`requirements.lock` \| ([\d.]+ GB) \| ([\d.]+) GB", text("docs/installation.md"))
    assert measured
    for page in ("README.md", "docs/start.md"):
        assert f"installation ({measured[1]})" in text(page)
        disk = re.search(r"(\d+) GB of disk", text(page))
        assert disk
        assert int(disk[1]) >= float(measured[2]) + 1.1, "the environment and the demo"


def test_what_was_not_tried_is_the_same_on_both_pages() -> None:
    said = [re.findall(r"- Not tried yet: ([^(]+)", text(page)) for page in ("README.md", "docs/limits.md")]
    assert len(said[0]) == 1
    assert said[0] == said[1]
