"""``report.json``: what the index and the pages of sections show, for programs.

Tables have the cells of the page; numbers are numbers, as they are in the files of the run. Pages of people and regions
show rows of the tables of the run (``group/*.tsv``), which are read as they are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any, TypeVar

from heatlas.reports.analyses.verdicts import Verdict
from heatlas.reports.cautions.records import Caution
from heatlas.reports.content.run.summary import Summary
from heatlas.reports.figures.gallery import Picture
from heatlas.reports.frame.tables import PageTable

VERSION = 1
Kind = TypeVar("Kind")


def facts_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Verdict, tables and figures among the variables of a section's template."""
    verdict = next(_all(content, Verdict), None)
    return {
        "answer": None if verdict is None else asdict(verdict),
        "tables": [table_of(table) for table in _all(content, PageTable)],
        "figures": [{"file": f"figures/{one.name}", "caption": one.caption} for one in _all(content, Picture)],
    }


def table_of(table: PageTable) -> dict[str, Any]:
    """A table with a mapping per row; a cell of a numeric column without a number is null."""
    rows = [
        {
            column.key: _number(cell.order) if column.numeric else cell.whole or cell.text
            for column, cell in zip(table.columns, row, strict=True)
        }
        for row in table.rows
    ]
    titles = {column.key: column.title for column in table.columns}
    return {"caption": table.caption, "columns": titles, "rows": rows, "rows_in_file_only": table.more,
            "notes": list(table.notes)}  # fmt: skip


def report_json(
    title: str, summary: Summary, cautions: Sequence[Caution], sections: Sequence[tuple[str, Mapping[str, Any]]]
) -> str:
    """Text of ``report.json``; `sections`: the page of each section and what it says."""
    content = {
        "report_version": VERSION,
        "title": title,
        **asdict(summary),
        "cautions": [asdict(one) for one in cautions],
        "sections": [{"page": page, **section} for page, section in sections],
    }
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _number(order: str) -> float | None:
    value = float(order) if order else math.nan
    return value if math.isfinite(value) else None


def _all(value: Any, kind: type[Kind]) -> Iterator[Kind]:
    """Objects of a kind inside mappings, sequences and records, in their order."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _all(one, kind)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _all(one, kind)
    elif is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            yield from _all(getattr(value, one.name), kind)
