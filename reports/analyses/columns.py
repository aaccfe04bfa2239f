"""Columns of statistics tables as the page writes them, by the form and heading that the table declares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from heatlas.pipeline.run.columns import Form
from heatlas.pipeline.run.declared import Table
from heatlas.reports.page.tables import Column, footnote, text
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.read.written_tables import TABLES
from heatlas.reports.words.numbers import fixed, number, p_cell, percent

FORMS: Mapping[Form, Callable[[object], str]] = {
    Form.TEXT: text, Form.MAP: text, Form.FLAG: text, Form.NOTE: footnote, Form.COUNT: number, Form.VALUE: number,
    Form.PROBABILITY: number, Form.P: p_cell, Form.RATIO: lambda value: fixed(value, 2),
    Form.SHARE: lambda value: percent(value, 1), Form.CODE: lambda value: worded(value),
}  # fmt: skip
LINKS = {"group": "group_page", "participant_id": "person_page"}
"""Column with the address of the page that a cell leads to."""

WORDS: Mapping[str, str] = {
    "auc": "area under the curve", "auc_within_folds": "area under the curve, within folds",
    "brier": "Brier score", "mae": "mean absolute error", "r2": "R²",
    "mae_of_mean": "mean absolute error of predicting the mean", "corrected_mae": "mean absolute corrected gap",
    "gap_slope": "slope of the gap on the target", "corrected_gap_slope": "slope of the corrected gap on the target",
    "rim": "rim of the mask", "rim_inside": "inner side of the rim",
    "outside": "outside the brain", "seen": "all the network sees", "brain_and_rim": "brain and rim",
    "dark": "dark voxels", "vessel": "vessels", "no_region": "no region of the atlas",
    "own volume": "the region's own volume", "mmse": "MMSE", "nwbv": "whole-brain ÷ intracranial volume",
    "intensity": "intensity", "log_jacobian": "volume change (log-Jacobian)",
    "model": "network's score", "location": "mean", "scale": "spread", "betas": "values of β",
    "p": "uncorrected",
    "p_fwe": "family-wise", "p_fwe_before": "family-wise, before ComBat", "p_fwe_after": "family-wise, after ComBat",
    "r2_before": "R² before", "r2_after": "R² after", "partial_r": "partial r",
    "severity_cdrsb": "CDRSB", "severity_adas13": "ADAS13", "severity_mmse": "MMSE", "cdrsb": "CDRSB",
    "adas11": "ADAS11", "adas13": "ADAS13", "faq": "FAQ", "moca": "MoCA",
    "site_effect_before_combat": "site in volumes, raw", "site_effect_after_combat": "site in volumes, after ComBat",
    "site_effect_in_relevance_before_combat": "site in relevance, raw",
    "site_effect_in_relevance_after_combat": "site in relevance, after ComBat",
}  # fmt: skip

CORRECTIONS: Mapping[str, str] = {
    "p_fwe": "family-wise, largest statistic", "p_fdr": "FDR, Benjamini–Hochberg",
}  # fmt: skip
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


def worded(value: object) -> str:
    """A code of the tables in words.

    Examples
    --------
    >>> worded("rim_inside"), worded("auc"), worded("null_education"), worded(None)
    ('inner side of the rim', 'area under the curve', 'null: education', 'n/a')
    >>> worded("own volume/tiv"), worded("hippocampus/tiv")
    ("the region's own volume ÷ intracranial volume", 'hippocampal volume ÷ intracranial volume')
    """
    said = text(value)
    if said.endswith("/tiv"):
        base = said.removesuffix("/tiv")
        return f"{'hippocampal volume' if base == 'hippocampus' else worded(base)} ÷ intracranial volume"
    if said.startswith("null_"):
        return f"null: {said.removeprefix('null_').replace('_', ' ')}"
    return WORDS.get(said, said.replace("_", " "))
