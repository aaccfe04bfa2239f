"""Columns of statistics tables as the page writes them, by the form and heading that the table declares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from heatlas.pipeline.run.columns import Form
from heatlas.pipeline.run.declared import Table
from heatlas.reports.frame.tables import Column, footnote, text
from heatlas.reports.read.run_files import TABLES
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import fixed, number, p_cell, percent
from heatlas.reports.words.wording import worded

FORMS: Mapping[Form, Callable[[object], str]] = {
    Form.TEXT: text, Form.MAP: text, Form.FLAG: text, Form.NOTE: footnote, Form.COUNT: number, Form.VALUE: number,
    Form.PROBABILITY: number, Form.P: p_cell, Form.RATIO: lambda value: fixed(value, 2),
    Form.SHARE: lambda value: percent(value, 1), Form.CODE: lambda value: worded(value),
}  # fmt: skip
LINKS = {"group": "group_page", "participant_id": "person_page"}
"""Column with the address of the page that a cell leads to."""

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
    title = declared.title or name.replace("_", " ").capitalize()
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
