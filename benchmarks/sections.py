"""What the commands of this folder share: their arguments, Markdown, differences over people, kept rows, sections."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from heatlas.pipeline.evaluation.scores.accuracy import DRAWS, participant_interval

HEADING = "Claims asked of patients"
STATISTICS = "Statistics: speed, error rates, power"
"""Headings of pages to which many commands write."""
ARGUMENTS: dict[str, dict[str, Any]] = {
    **{name: {"type": Path} for name in ("run", "out", "input", "cohort", "folder", "answers", "table")},
    "runs": {"type": Path, "nargs": "+"},
    "--seeds": {"type": int, "nargs": "+", "default": [43, 44, 45]},
    "--only": {"nargs": "+"},
    "--folds": {"type": int, "default": 0, "help": "the first ones only; 0 for all"},
    "--data-sets": {"type": int, "default": 2_000},
    "--repeats": {"type": int, "default": 3},
    "--n-procs": {"type": int, "default": 1},
    **{name: {"type": Path, "help": "Markdown page to write to"} for name in ("--page", "--output")},
}
"""What an argument of this name is in every command that has it."""


Argument = str | tuple[str, Mapping[str, Any]]
"""A name of `ARGUMENTS`; or a name and what `add_argument` takes."""


def parser_of(doc: str | None, *arguments: Argument, **defaults: object) -> argparse.ArgumentParser:
    """A parser with these arguments, in this order; `defaults` are in place of those of `ARGUMENTS`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for argument in arguments:
        name, settings = (argument, ARGUMENTS[argument]) if isinstance(argument, str) else argument
        parser.add_argument(name, **settings)
    parser.set_defaults(**defaults)
    return parser


def arguments_of(doc: str | None, *arguments: Argument, **defaults: object) -> argparse.Namespace:
    """What a command was given, with the parser of `parser_of`."""
    return parser_of(doc, *arguments, **defaults).parse_args()


def line(*cells: object) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]] = (), rule: str = "---") -> list[str]:
    """Lines of a Markdown table; more rows can be added."""
    return [line(*columns).replace("|  |", "| |"), "|" + f"{rule}|" * len(columns), *(line(*row) for row in rows)]


def listed(values: Iterable[float], form: str) -> str:
    """Numbers beside each other in one cell.

    >>> listed([1, 2.5], "+.1f")
    '+1.0, +2.5'
    """
    return ", ".join(f"{value:{form}}" for value in values)


def over_people(values: Any) -> tuple[float, float]:
    """The 95 % interval of a mean over people, who are drawn with replacement; NaN where all are alike."""
    return participant_interval((np.asarray(values, float),), np.mean, DRAWS, 0)


def within(low: float, high: float, form: str, ends: str = " ({} to {})") -> str:
    """An interval as text; nothing where there is none."""
    return "" if np.isnan(low) else ends.format(f"{low:{form}}", f"{high:{form}}")


def across(change: pd.Series, decimals: int) -> str:
    """Cells of a row: people, mean by seed, and mean over people, each by the mean of the seeds, with an interval.

    `change`: differences by seed (or run) and person.
    """
    form, each = f"+.{decimals}f", change.groupby(level=1).mean().to_numpy()
    seeds = listed(change.groupby(level=0).mean(), form)
    return f"{len(each)} | {seeds} | {each.mean():{form}}{within(*over_people(each), form)}"


def kept_rows(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """What earlier commands wrote to a table; no rows if there is none."""
    return pd.read_csv(path, sep="\t") if path.is_file() else pd.DataFrame(columns=list(columns))


def replaced(rows: pd.DataFrame, path: Path, keys: Sequence[str]) -> None:
    """Add rows to a table; earlier ones with the same keys go."""
    every = pd.concat([kept_rows(path, rows.columns), rows], ignore_index=True) if path.is_file() else rows
    every.drop_duplicates(list(keys), keep="last").to_csv(path, sep="\t", index=False)


def write_section(page: Path, title: str, body: str, heading: str) -> None:
    """Replace the section ``## title`` of a page, or add it; the page begins with ``# heading``."""
    text = page.read_text(encoding="utf-8") if page.is_file() else f"# {heading}\n"
    section = f"## {title}\n\n{body.strip()}\n"
    pattern = _section(title)
    if pattern.search(text):
        text = pattern.sub(lambda _: section + "\n", text, count=1)
    else:
        text = text.rstrip() + "\n\n" + section
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text.rstrip() + "\n", encoding="utf-8")


def write_tables(page: Path, title: str, tables: str, heading: str) -> None:
    """Replace the tables of a section; its words above the first table stay, for they stand on the page alone."""
    earlier = _section(title).search(page.read_text(encoding="utf-8")) if page.is_file() else None
    words = _words(earlier[0].partition("\n")[2]).removesuffix(_words(tables)).strip() if earlier else ""
    write_section(page, title, f"{words}\n\n{tables}", heading)


def _section(title: str) -> re.Pattern[str]:
    return re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)


def _words(text: str) -> str:
    return re.split(r"^\|", text, maxsplit=1, flags=re.MULTILINE)[0].strip()


def show(text: str, page: Path | None, title: str, heading: str, words: bool = True) -> None:
    """Print a section and write it to a page, if one is asked for; `words`: they are in the text, not on the page."""
    print(text)
    if page:
        (write_section if words else write_tables)(page, title, text, heading)


def show_page(text: str, page: Path | None) -> None:
    """Print a page and write it, if asked for."""
    print(text)
    if page:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
