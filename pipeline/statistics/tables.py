"""The tables of the statistics, as ``tables.toml`` beside this module declares them."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from heatlas.pipeline.run.declared import MEANINGS, Form, Inference, Table


@cache
def sections() -> dict[str, Any]:
    """The sections of ``tables.toml``: tables by name, ``words`` and ``usual``."""
    return tomllib.loads(Path(__file__).with_name("tables.toml").read_text(encoding="utf-8"))


@cache
def declared(name: str) -> Table:
    """The table of this name."""
    section, words, usual = dict(sections()[name]), sections()["words"], MEANINGS | sections()["usual"]
    meanings = {column: str(text or usual[column]).format_map(words) for column, text in section.pop("columns").items()}
    forms = {column: Form[form] for column, form in section.pop("forms", {}).items()}
    inference = Inference(*section.pop("tests")) if "tests" in section else None
    return Table(name, meanings, forms=forms, inference=inference, **section)


def declared_tables(*names: str) -> tuple[Table, ...]:
    """The tables of these names."""
    return tuple(map(declared, names))
