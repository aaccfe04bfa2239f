"""Tables on the page: declared by their columns, formatted once, sortable by the true values.

A column of a table of the statistics takes its form and heading from the declaration of that table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import pandas as pd

from heatlas.pipeline.run.declared import Form, Table
from heatlas.reports.read.run_files import TABLES
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import LONGEST_TEXT, MISSING, fixed, is_missing, number, p_cell, percent, shortened
from heatlas.reports.words.sentences import Words, filled, in_form
from heatlas.reports.words.wording import without_codes, worded


def text(value: object) -> str:
    """A cell of text; booleans as yes and no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return MISSING if is_missing(value) else str(value)


def remark(value: object) -> str:
    """A cell that is empty where there is nothing to say."""
    return "" if is_missing(value) else str(value)


def footnote(value: object) -> str:
    """A remark printed below the table; the cell shows only its number, which keeps rows short."""
    return shortened(without_codes(remark(value)), LONGEST_TEXT)


_WHERE_SAID = (remark, footnote)  # columns that are left out where no row has anything to say


@dataclass(frozen=True)
class Column:
    """One column of a table on the page."""

    key: str  # column of the frame
    title: str
    form: Callable[[object], str] = text  # gives the text of a cell
    numeric: bool = False  # set in figures of equal width, to the right, sorted by value
    hint: str = ""  # longer explanation
    link: str = ""  # column with the address, relative to the page, that the cell leads to


def numeric(key: str, title: str, form: Callable[[object], str] = number, hint: str = "") -> Column:
    """A column of numbers."""
    return Column(key, title, form, True, hint)


OF_TEXT: Mapping[str, Callable[[object], str]] = {"text": text, "remark": remark, "footnote": footnote}


def worded_columns(words: Words, name: str, **facts: object) -> tuple[Column, ...]:
    """Columns of a table of the page from a file: each a title, or a title with a form, a hint and a link."""
    found = []
    for key, told in words.all["columns"][name].items():
        one = {"title": told} if isinstance(told, str) else told
        form = one.get("form", "text")
        show = OF_TEXT.get(form) or partial(in_form, form=form)
        title, hint = (filled(one.get(part, ""), **facts) for part in ("title", "hint"))
        found.append(Column(key, title, show, form not in OF_TEXT, hint, one.get("link", "")))
    return tuple(found)


DIGITS = 6  # significant digits of the values that rows are sorted by and saved with; the tables of the run have all
LONGEST_CELL = 160  # characters of a cell that is no remark; where there are more, they appear under the pointer


class Cell(NamedTuple):
    """Text of a cell, the value it is sorted by (empty for text), where it leads (empty for nowhere), all of its text.

    The last is empty where `text` is whole.
    """

    text: str
    order: str = ""
    link: str = ""
    whole: str = ""


@dataclass(frozen=True)
class PageTable:
    """A formatted table."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    more: int = 0  # rows left out; the caption's file has them
    notes: tuple[str, ...] = ()  # what the cells of footnotes say, each once, in the order of their numbers from 1

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Style of each column: ``num``, and ``names`` for the one that stays in sight when others are scrolled.

        That is the region where rows have one, whatever stands before it, and else the first column.
        """
        naming = next((place for place, column in enumerate(self.columns) if column.key == "group"), 0)
        return tuple(
            " ".join(["num"] * column.numeric + ["names"] * (place == naming))
            for place, column in enumerate(self.columns)
        )


def page_table(frame: pd.DataFrame, columns: Sequence[Column], caption: str, at_most: int | None = None) -> PageTable:
    """Format a frame.

    `columns`: those the frame lacks are left out, and remarks where no row has one. `at_most`: rows shown. `row_key`:
    column whose value is attached to each row, to filter by.
    """
    there = tuple(
        column for column in columns
        if column.key in frame.columns and (column.form not in _WHERE_SAID or frame[column.key].notna().any())
    )  # fmt: skip
    shown = frame if at_most is None else frame.head(at_most)
    told = [footnote(value) for one in there if one.form is footnote for value in shown[one.key].dropna().tolist()]
    parts = {note: _in_parts(note, set(told)) for note in ["", *told]}
    notes = tuple(dict.fromkeys(part for note in told for part in parts[note]))
    numbers = {note: str(place) for place, note in enumerate(notes, start=1)}
    cells = [
        [
            Cell(", ".join(numbers[part] for part in parts[footnote(value)]))
            if column.form is footnote
            else _cell(column, value, link)
            for value, link in zip(shown[column.key].tolist(), links, strict=True)
        ]
        for column in there
        for links in [shown[column.link].tolist() if column.link in shown.columns else [None] * len(shown)]
    ]
    rows = tuple(zip(*cells, strict=True)) if cells else ()
    return PageTable(caption, there, rows, len(frame) - len(shown), notes)


def _in_parts(note: str, others: Set[str]) -> list[str]:
    """A footnote, without what it begins with where that is a note of the same table: that stands apart.

    Examples
    --------
    >>> _in_parts("few people; skewed", {"few people", "few people; skewed"}), _in_parts("few; odd", {"few; odd"})
    (['few people', 'skewed'], ['few; odd'])
    """
    begun = max((one for one in others if one and note.startswith(f"{one}; ")), key=len, default="")
    if not begun:
        return [note] * bool(note)
    return [*_in_parts(begun, others), note.removeprefix(f"{begun}; ")]


def _cell(column: Column, value: object, link: object) -> Cell:
    if not column.numeric:
        said = column.form(value)
        longest = LONGEST_TEXT if column.form is remark else LONGEST_CELL
        whole = shortened(said, LONGEST_TEXT) if len(said) > longest else ""
        return Cell(shortened(said, longest), "", "" if is_missing(link) else str(link), whole)
    return Cell(column.form(value), "" if is_missing(value) else f"{float(value):.{DIGITS}g}")  # type: ignore[arg-type]


FORMS: Mapping[Form, Callable[[object], str]] = {
    Form.TEXT: text, Form.MAP: text, Form.FLAG: text, Form.NOTE: footnote, Form.COUNT: number, Form.VALUE: number,
    Form.PROBABILITY: number, Form.P: p_cell, Form.RATIO: lambda value: fixed(value, 2),
    Form.SHARE: lambda value: percent(value, 1), Form.CODE: lambda value: worded(value),
}  # fmt: skip
LINKS = {"group": "group_page", "participant_id": "person_page"}
"""Column with the address of the page that a cell leads to."""

HEADINGS = {
    "participant_id": "Participant", "session_id": "Session", "scan_id": "Scan", "n_networks": "Networks",
    "probability_sd": "Standard deviation over networks",
}  # fmt: skip
"""Headings of columns that declare none, where the name of the column is not one."""

CORRECTIONS: Mapping[str, str] = {
    "p_fwe": "family-wise, largest statistic",
    "p_fdr": "FDR, Benjamini–Hochberg",
}
"""Kinds of correction by the beginning of the column's name."""


def correction(column: str) -> str:
    """Name of the correction that a column of p values has, to stand after `corrected p`.

    Examples
    --------
    >>> correction("p_fdr"), correction("p_fwe_before")
    ('(FDR, Benjamini–Hochberg)', '(family-wise, largest statistic)')
    """
    return next(f"({kind})" for start, kind in CORRECTIONS.items() if column.startswith(start))


def column_of(table: Table, name: str) -> Column:
    """A column of a declared table on the page."""
    declared = table.columns[name]
    title = declared.title or HEADINGS.get(name) or name.replace("_", " ").capitalize()
    numeric = not declared.is_text and declared.form is not Form.FLAG
    return Column(name, title, FORMS[declared.form], numeric, declared.meaning, LINKS.get(name, ""))


def columns_of(run: RunRecord, table: str, names: Iterable[str], **titles: str) -> list[Column]:
    """Columns of a table as it declares them, the classes filled in; `titles` replace some headings.

    A p value is not called uncorrected where another column says which one it is.
    """
    wanted, classes = list(names), {"positive": run.positive, "negative": run.negative}
    titles |= {"p": "p"} if "p_is" in wanted else {}
    columns = [column_of(TABLES[table], name) for name in wanted]
    return [replace(column, title=titles.get(column.key, column.title).format(**classes)) for column in columns]
