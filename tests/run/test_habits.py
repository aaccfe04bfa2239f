"""What is added to the program is named in its registry and nowhere else.

A method, a family of networks and a statistic with its section are each added to a copy of the program: new files, and
lines in registries. A script of ``additions`` then does with it what users do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parents[2]
ADDITIONS = Path(__file__).parent / "additions"
PAGES = ROOT / "docs" / "_ext"
HELPERS = ("attribution", "reports")
"""Rooms of tests whose runs the scripts use."""

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
from printed_pages import commands_page, tables_page
from heatlas.pipeline.evaluation.bench.part import Bench
from heatlas.pipeline.run.errors import UsageError
from heatlas.reports.content.relevance import evaluation as page
from heatlas.reports.read.run_files import ALL_TABLES
from heatlas.workflows.command_line import read_command
from heatlas.workflows.evaluate import request_of

arguments = read_command(["evaluate", "out", "--parts", "toy"])
assert request_of(arguments).parts == (toy_part.PART,)
with pytest.raises(UsageError, match="--draws: only the toy draws; add toy to --parts"):
    request_of(read_command(["evaluate", "out", "--parts", "retrain", "--draws", "1"]))
assert "toy (what a toy does)" in commands_page()
assert ALL_TABLES["toy"] is toy_part.TABLE and "What does the toy find?" in tables_page()

shown = {one: part for one, part in page.shown_of_all().items() if one.table == "toy"}
(one, part), = shown.items()
run = types.SimpleNamespace(tables={}, has=lambda name: False, why_absent=lambda *names, otherwise: otherwise)
shown_now = lambda: page._part({}, types.SimpleNamespace(run=run), one, part)
assert shown_now().text == "Not asked: heatlas evaluate OUT --parts toy makes this part."
run.tables, run.has = {"toy": pd.DataFrame({"group": ["Amygdala"], "value": [2.5]})}, lambda name: True
made = shown_now()
assert (made.title, made.text) == ("Does the toy work?", "What does the toy find?")
assert [[cell.text for cell in row] for row in made.tables[0].rows] == [["Amygdala", "2.50"]]
"""


def test_a_part_of_the_bench_is_one_record(tmp_path) -> None:
    """The command, its help, the documentation of tables and the report find it."""
    (tmp_path / "toy_part.py").write_text(TOY_PART)
    script = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(PAGES)!r}]\n{ASKED_OF_THE_PART}"
    made = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr


def added(folder: Path, file: str, source: str, registries: Mapping[str, Mapping[str, str]]) -> None:
    """A copy of the program with one new file, and lines in registries; the checks of it must pass.

    Parameters
    ----------
    folder : Path
        Empty.
    file : str
        Where the new module goes.
    source : str
        Its name in ``additions``, less what it begins with.
    registries : mapping of str to mapping of str to str
        By file, the lines added, by the line that they follow.
    """
    package = folder / "program" / "heatlas"
    for room in ("atlases", "pipeline", "reports", "studies", "workflows"):
        shutil.copytree(ROOT / room, package / room, copy_function=_linked)
    for path in (ROOT / "heatlas").glob("*.py"):
        shutil.copy2(path, package)
    shutil.copy2(ADDITIONS / f"toy_{source}.py", package / file)
    for registry, lines in registries.items():
        text = (package / registry).read_text(encoding="utf-8")
        for before, line in lines.items():
            assert text.count(f"\n{before}\n") == 1, before
            text = text.replace(f"\n{before}\n", f"\n{before}\n{line}\n")
        (package / registry).unlink()  # shared with the program
        (package / registry).write_text(text, encoding="utf-8")
    work = folder / "work"
    work.mkdir()
    paths = [package.parent, *(ROOT / "tests" / room for room in HELPERS), PAGES, ROOT]
    made = subprocess.run(
        [sys.executable, ADDITIONS / f"check_{source}.py", work], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
    )  # fmt: skip
    assert made.returncode == 0, made.stderr


def _linked(source: str, target: str) -> None:
    """A file by a second name, or a copy on another disk."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def test_a_method_is_one_file_and_a_line(tmp_path) -> None:
    """Besides a row of docs/attribution_methods.md, which test_methods_of_run.py asks for."""
    line = "from heatlas.pipeline.attribution.gradient.toy import ToyMap"
    added(tmp_path, "pipeline/attribution/gradient/toy.py", "method", {
        "pipeline/attribution/registry.py": {
            "from heatlas.pipeline.attribution.lrp.relevance import Lrp": line,
            "ENTRIES: Sequence[Entry] = (": '    Entry(ToyMap, "a power of the gradient", spelling="TOY map"),',
        },
    })  # fmt: skip


def test_a_family_of_networks_is_one_file_and_a_line(tmp_path) -> None:
    line = "from heatlas.pipeline.models.families.toy import TOY"
    added(tmp_path, "pipeline/models/families/toy.py", "network", {
        "pipeline/models/families/registry.py": {
            "from heatlas.pipeline.models.families.monai import MONAI_FAMILIES": line,
            "OWN = (": "    TOY,",
        },
    })  # fmt: skip


SECTION = """from heatlas.reports.frame import pages
from heatlas.reports.questions.views import View
TOY = Question(
    "toy", "How sure is it?", "Toy", pages.CLINICAL, "A toy asks.",
    (View("toy", "Mean probability of each class.", ("label", "probability", "p")),),
)
"""


def test_a_statistic_with_its_section_is_one_file_and_two_entries(tmp_path) -> None:
    line = "from heatlas.pipeline.statistics.groups.toy import TOY_TABLE, toy_table"
    added(tmp_path, "pipeline/statistics/groups/toy.py", "statistic", {
        "pipeline/statistics/stage.py": {
            "from heatlas.pipeline.statistics.groups.fairness import fairness_tables": line,
            '    Analysis("normative", normative_tables, (*NORMATIVE_TABLES, W_ANSWERS_TABLE)),':
                '    Analysis("toy", toy_table, (TOY_TABLE,)),',
        },
        "reports/questions/analyses.py": {
            "from heatlas.reports.questions.trust import AGREEMENT, CLAIMS, PLANTED, PLANTED_EFFECTS": SECTION,
            "    PLANTED_EFFECTS, CLAIMS,": "    TOY,",
        },
    })  # fmt: skip
