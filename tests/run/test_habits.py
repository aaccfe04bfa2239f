"""Additions through the registries alone, from a module outside the package; nothing else names what is added."""

from __future__ import annotations

import subprocess
import sys

TOY_PART = """
from heatlas.pipeline.evaluation import parts
from heatlas.pipeline.evaluation.bench.part import Part, Shown
from heatlas.pipeline.run.declared import Table

TABLE = Table("toy", {"group": "Name of a region", "value": "A value"}, "region", "What does the toy find?",
              stage="evaluation")
PART = Part("toy", "what a toy does", run=lambda bench, cohort: ["ran", cohort], tables=(TABLE,),
            shown=(Shown("Does the toy work?", "toy"),), options={"draws": "only the toy draws"})
parts.PARTS = (*parts.PARTS, PART)
parts.BENCH_TABLES = (*parts.BENCH_TABLES, TABLE)
"""
ASKED_OF_THE_PART = """
import pathlib, types
import pandas as pd
import pytest
import toy_part
from heatlas.pipeline.evaluation.bench.stage import Bench
from heatlas.pipeline.run.errors import UsageError
from heatlas.reports.content.relevance import evaluation_parts as page
from heatlas.reports.read.written_tables import ALL_TABLES
from heatlas.reports.read.table_documentation import documentation
from heatlas.workflows.command_documentation import documentation as commands
from heatlas.workflows.command_line import build_parser
from heatlas.workflows.evaluate import request_of

arguments = build_parser().parse_args(["evaluate", "out", "--parts", "toy"])
assert request_of(arguments).parts == (toy_part.PART,)
with pytest.raises(UsageError, match="--draws: only the toy draws; add toy to --parts"):
    request_of(build_parser().parse_args(["evaluate", "out", "--parts", "retrain", "--draws", "1"]))
assert "toy (what a toy does)" in commands()
assert ALL_TABLES["toy"] is toy_part.TABLE and "What does the toy find?" in documentation()

shown = {one: part for one, part in page.shown_of_all().items() if one.table == "toy"}
(one, part), = shown.items()
run = types.SimpleNamespace(tables={}, has=lambda name: False, why_absent=lambda *names, otherwise: otherwise)
assert page._part(run, one, part).text == "Not asked: heatlas evaluate OUT --parts toy makes this part."
run.tables, run.has = {"toy": pd.DataFrame({"group": ["Amygdala"], "value": [2.5]})}, lambda name: True
made = page._part(run, one, part)
assert (made.title, made.text) == ("Does the toy work?", "What does the toy find?")
assert [[cell.text for cell in row] for row in made.tables[0].rows] == [["Amygdala", "2.50"]]
"""


def test_a_part_of_the_bench_is_one_record(tmp_path) -> None:
    """The command, its help, the documentation of tables and the report find it."""
    (tmp_path / "toy_part.py").write_text(TOY_PART)
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{ASKED_OF_THE_PART}"
    made = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
