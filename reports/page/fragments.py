"""Markup, styles and scripts of the components, from ``reports/templates/components``."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from reports.page.pages import TEMPLATES

COMPONENTS = TEMPLATES / "components"


def fragment(template: str, **content: Any) -> Markup:
    """A part of a page from its template, text of the input escaped."""
    return Markup(_environment().get_template(template).render(**content))


@cache
def source(name: str) -> str:
    """A style sheet or script as it is."""
    return (COMPONENTS / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(COMPONENTS), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
