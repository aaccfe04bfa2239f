"""What the report says, as data: each module reads its sentences from the TOML file beside it, of the same name.

A line end in the file is a space on the page. ``{name}`` stands for a fact, and ``{name:form}`` writes it in one of
`FORMS`, as in ``{row[p]:p}``, ``{share:percent 0}``, ``{n:count scan}`` or ``{n:verb is are}``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from string import Formatter
from typing import Any

from heatlas.pipeline.attribution.titles import map_title
from heatlas.reports.words.numbers import (
    count,
    fixed,
    listing,
    mid_sentence,
    number,
    p_cell,
    p_value,
    percent,
    sentence_case,
    shortened,
    signed,
    with_article,
)

FORMS: Mapping[str, Callable[..., str]] = {
    "fixed": lambda value, decimals="2": fixed(value, int(decimals)),
    "signed": lambda value, decimals="2": signed(value, int(decimals)),
    "percent": lambda value, decimals="1": percent(value, int(decimals)),
    "number": lambda value, digits="3": number(value, int(digits)),
    "count": count,
    "p": p_value,
    "p_cell": p_cell,
    "listing": listing,
    "joined": "; ".join,
    "verb": lambda n, forms: forms.split(" ")[0 if n == 1 else 1],
    "map": map_title,
    "map_mid": lambda name: mid_sentence(map_title(name)),
    "mid": mid_sentence,
    "the": with_article,
    "capital": sentence_case,
    "short": shortened,
}
"""Ways to write a fact, each with an argument or without."""


class _Forms(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        known = format_spec.partition(" ")[0] in FORMS
        return in_form(value, format_spec) if known else str(super().format_field(value, format_spec))


def in_form(value: object, form: str) -> str:
    """A value as ``fixed``, or with an argument as ``fixed 3`` writes it."""
    name, _, argument = form.partition(" ")
    return FORMS[name](value, argument) if argument else FORMS[name](value)


def filled(sentence: str, /, **facts: object) -> str:
    r"""A sentence with its facts.

    Examples
    --------
    >>> filled("{row[r]:fixed}, {row[p]:p}, {n:count scan} ({share:percent 0})", row={"r": 0.5, "p": 0.2}, n=1, share=0)
    '0.50, p\xa0=\xa00.20, 1 scan (0 %)'
    """
    return _Forms().vformat(sentence, (), facts)


def one_line(value: Any) -> Any:
    """A value of a TOML file with every text in it on one line."""
    if isinstance(value, dict):
        return {name: one_line(part) for name, part in value.items()}
    if isinstance(value, list):
        return [one_line(part) for part in value]
    return value.strip("\n").replace("\n", " ") if isinstance(value, str) else value


class Words:
    """The sentences of a module, by its ``__file__``."""

    def __init__(self, module: str) -> None:
        self.file = Path(module).with_suffix(".toml")

    @cached_property
    def all(self) -> Mapping[str, Any]:
        return one_line(tomllib.loads(self.file.read_text(encoding="utf-8")))  # type: ignore[no-any-return]

    def say(self, name: str, /, **facts: object) -> str:
        """A sentence of the table ``say`` of the file."""
        return filled(self.all["say"][name], **facts)
