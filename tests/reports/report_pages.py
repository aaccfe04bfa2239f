"""The pages that hold the sections of a report: the index and the chapters of `reports.frame.pages`."""

from __future__ import annotations

from pathlib import Path

from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.reports.frame.pages import CHAPTERS, anchors_of


def chapter_files(layout: RunLayout) -> list[Path]:
    """The index, then the other pages in the order of the menu."""
    return [layout.root / chapter.file for chapter in CHAPTERS]


def all_pages(layout: RunLayout) -> str:
    """Sources of the index and all chapters, one after the other."""
    return "\n".join(path.read_text(encoding="utf-8") for path in chapter_files(layout))


def page_with(layout: RunLayout, anchor: str) -> Path:
    """The one page that has an anchor."""
    (path,) = [path for path in chapter_files(layout) if anchor in anchors_of(path.read_text(encoding="utf-8"))]
    return path
