"""Check a built site: every link of a page leads to a file and an anchor of it, and no page loads from the network.

``python docs/check_site.py docs/_build/html`` lists what is wrong and ends with 1 if anything is.
"""

from __future__ import annotations

import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
"""Attribute by which an element loads a file."""


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = {"", "top"}
        self.links: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.anchors |= {value for key in ("id", "name") if (value := values.get(key))}
        if tag == "a" and values.get("href") is not None:
            self.links.append(values["href"] or "")
        if tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload", "preconnect", "shortcut icon"):
            self.loads.append(values.get("href") or "")
        if tag in LOADED and values.get(LOADED[tag]):
            self.loads.append(values[LOADED[tag]] or "")


@cache
def _read(page: Path) -> _Page:
    parsed = _Page()
    parsed.feed(page.read_text(encoding="utf-8"))
    return parsed


def faults(site: Path) -> list[str]:
    """What is wrong in a built site, or in the sample report alone, one line each."""
    found = []
    for page in sorted(site.rglob("*.html")):
        name = page.relative_to(site)
        parsed = _read(page)
        found += [f"{name}: loads {load}" for load in parsed.loads if urlsplit(load).netloc]
        for link in [*parsed.links, *(load for load in parsed.loads if not load.startswith("data:"))]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if not target.is_file():
                found.append(f"{name}: no file {link}")
            elif target.suffix == ".html" and unquote(parts.fragment) not in _read(target).anchors:
                found.append(f"{name}: no anchor {link}")
    for style in sorted(site.rglob("*.css")):
        text = style.read_text(encoding="utf-8")
        if "url(http" in text or "url(//" in text or "@import" in text:
            found.append(f"{style.relative_to(site)}: loads from the network")
    return found


if __name__ == "__main__":
    wrong = faults(Path(sys.argv[1]))
    print("\n".join(wrong) or "Every link leads somewhere; nothing is loaded from the network.")
    sys.exit(bool(wrong))
