"""docs/tables.md, made from the declarations: ``python -m heatlas.reports.read.table_documentation`` prints it."""

from __future__ import annotations

from pathlib import Path

from heatlas.pipeline.run.columns import unit_of
from heatlas.pipeline.run.declared import CLASSES, Table
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.statistics.comparison.runs import MAP_AGREEMENT_TABLE, MAPS_TABLE, MCNEMAR_TABLE, RUNS_TABLE
from heatlas.reports.read.run_files import DECLARED

_HEAD = """# Tables of a run

Made by `python -m heatlas.reports.read.table_documentation > docs/tables.md`; do not edit it by hand.

Tables are tab-separated, in UTF-8, with `n/a` for what is missing. Beside each lies a JSON data dictionary with the
same descriptions. The unit of inference is the participant, whose scans are averaged first.
"""

_COMPARISON = """## Comparison of runs

`heatlas compare` writes the following tables into the folder that `--to` names, and a `ranking_agreement.tsv` with the
columns above.
"""
OF_COMPARISON = (MCNEMAR_TABLE, RUNS_TABLE, MAPS_TABLE, MAP_AGREEMENT_TABLE)
"""Tables that belong to no run."""


def documentation() -> str:
    """All tables as Markdown."""
    root = Path("run")
    files = {table.name: table.path(RunLayout(root)).relative_to(root).as_posix() for table in DECLARED}
    of_runs = [_section(table, files[table.name]) for table in DECLARED]
    return "\n".join([_HEAD, *of_runs, _COMPARISON, *(_section(table, table.file) for table in OF_COMPARISON)])


def _section(table: Table, file: str) -> str:
    question = table.question if table.question.endswith((".", "?")) else f"{table.question}."
    lines = [
        f'<a id="{table.name}"></a>',
        "",
        f"## {file}",
        "",
        f"{question} One row per {table.rows}. Stage: {table.stage}. {table.tests}".rstrip(),
        "",
    ]
    if not table.meanings:
        return "\n".join(lines)
    lines += ["| column | holds | unit | meaning |", "|---|---|---|---|"]
    for name, column in table.columns.items():
        values = table.values.get(name, ())
        holds = "one of " + ", ".join(values) if values else column.form.value
        lines.append(f"| `{name}` | {_cell(holds)} | {unit_of(name)} | {_cell(column.meaning)} |")
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return text.replace(CLASSES, "the classes").replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


if __name__ == "__main__":
    print(documentation(), end="")
