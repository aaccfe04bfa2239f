"""What every table of a run must be like, wherever the run comes from."""

from __future__ import annotations

import json

import pandas as pd

from pipeline.run.columns import Form
from pipeline.run.config.files import read_config
from pipeline.run.declared import Table
from pipeline.run.layout.run_layout import RunLayout
from pipeline.run.tables import read_table
from reports.read.table_faults import bad_cell
from reports.read.written_tables import TABLES


def require_as_declared(layout: RunLayout, table: Table) -> None:
    """Columns, types, ranges and data dictionary are those of the declaration."""
    path = table.path(layout)
    dictionary = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    frame = read_table(path, text_columns=table.texts)
    if table.meanings:
        assert dictionary == {name: {"Description": meaning} for name, meaning in table.meanings.items()}
        assert list(frame.columns) == list(table.meanings)
    if table.name in TABLES:
        assert bad_cell(table.name, path.name, frame, read_config(layout.config)) == ""
    for name, column in table.columns.items():
        known = frame[name].dropna()
        if column.form is Form.FLAG:
            assert set(known) <= {True, False}, name
        elif not column.is_text and len(known):
            assert pd.api.types.is_numeric_dtype(known), name
            assert column.form is not Form.SHARE or known.between(-1e-9, 1 + 1e-9).all(), name
