"""Pages: all have the same frame, contain everything they show, and allow only their own scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from heatlas.pipeline.run.plain_text import plain
from heatlas.reports.frame.chapters import INDEX, PROVENANCE, menu
from heatlas.reports.frame.components import Component, PageAssets
from heatlas.reports.words.glossary import linked
from heatlas.reports.words.numbers import number

TEMPLATES = Path(__file__).parents[1] / "templates"


@dataclass(frozen=True)
class NavigationEntry:
    """One line of a page's contents: an anchor of the page or another page."""

    title: str
    link: str
    missing: bool = False


@dataclass(frozen=True)
class Frame:
    """What surrounds the content of every page."""

    title: str  # of the document
    navigation: Sequence[NavigationEntry]
    components: Sequence[Component] = ()  # interactive parts on the page
    index: str = ""  # address of the report, from a page of it; empty on the report itself
    file: str = ""  # of a page of the menu, which marks it there
    within: str = ""  # address of the page of the menu that leads here, which the menu marks instead
    of_a_run: bool = True  # whether it belongs to the report of a run, with its menu

    @property
    def cited(self) -> str:
        """Address of how to cite the program and the run."""
        return f"{self.index.removesuffix(INDEX)}{PROVENANCE.file}#credits"

    @property
    def menu(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """Topics and their pages, the same on every page of a run."""
        return menu(self.index) if self.of_a_run else []

    @property
    def assets(self) -> PageAssets:
        return PageAssets.of(template_text("report.css"), [template_text("report.js")], self.components)


def render(template: str, frame: Frame, **content: Any) -> str:
    """A page from a template that extends ``base.html.j2``; control characters from an input are spelt out."""
    return plain(_environment().get_template(template).render(frame=frame, assets=frame.assets, **content))


def render_part(template: str, **content: Any) -> Markup:
    """A part of a page from its template."""
    return Markup(_environment().get_template(template).render(**content))


def template_files() -> Iterable[Path]:
    """All templates, style sheets and scripts."""
    return (path for path in TEMPLATES.rglob("*") if path.is_file())


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["glossed"] = linked
    environment.filters["grouped"] = number
    environment.globals["version"] = _version()
    return environment


def _version() -> str:
    """Version of the program; empty where it is not installed."""
    try:
        return metadata.version("heatlas")
    except metadata.PackageNotFoundError:
        return ""


@cache
def template_text(name: str) -> str:
    """A style sheet or script as it is."""
    return (TEMPLATES / name).read_text(encoding="utf-8")
