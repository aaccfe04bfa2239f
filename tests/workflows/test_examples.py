"""The examples of the documentation are short, and run on a run of today."""

from __future__ import annotations

import ast
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from first_lines import PAGE, PICTURE, draw, first_lines

import heatlas
from heatlas.pipeline.cohort.demo.cohort import write_demo_cohort
from heatlas.pipeline.run.errors import UsageError

FOLDER = Path(__file__).parents[2] / "docs" / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
RUN = '"../../demo/run"'
"""The run that examples open."""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_uses_names_that_there_are(example: Path) -> None:
    text = example.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40
    assert f"heatlas.open({RUN})" in text or f"heatlas.export({RUN}" in text
    used = {
        node.attr
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "heatlas"
    }
    assert used <= {*heatlas.__all__}, "public names"


def test_the_library_begins_with_ten_lines_that_end_in_a_picture() -> None:
    lines = first_lines().strip().splitlines()
    assert (lines[0], len(lines)) == ("import heatlas", 10)
    assert lines[-1].startswith("found.plot(")
    ast.parse(first_lines())
    before = PAGE.read_text(encoding="utf-8").split("```python")[0]
    assert len(before.split()) < 60, "the page begins with them"
    assert 10_000 < PICTURE.stat().st_size < 200_000


@pytest.mark.slow
def test_the_first_lines_of_the_library_run(finished: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    printed = draw(finished, tmp_path / "map.png")
    assert printed.startswith("Expected gradients map of output 1: ")
    assert printed.count("\n") == 7
    assert (tmp_path / "map.png").stat().st_size > 10_000


def test_there_are_ten() -> None:
    assert [path.name[:2] for path in EXAMPLES] == [f"{number:02}" for number in range(1, 11)]


def test_a_command_in_a_program_that_a_worker_reads_is_refused_with_the_remedy(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(UsageError, match=r'heatlas\.export: write it under `if __name__ == "__main__":`'):
        heatlas.export(tmp_path, tmp_path / "new")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    cohort = tmp_path_factory.mktemp("demo") / "cohort"
    write_demo_cohort(cohort, seed=5, participants=18, resolution_mm=4.0)  # an export needs five controls to train with
    out, config = cohort.with_name("run"), Path(__file__).with_name("mini.toml")
    options = ["--config", config, "--n-procs", "2", "--stop-after", "statistics"]
    command = ["-m", "heatlas.workflows.adni", "run", cohort, out, *options]
    subprocess.run([sys.executable, *map(str, command)], check=True, capture_output=True)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example: Path, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "run").symlink_to(finished)
    place = tmp_path / "docs" / "examples"
    place.mkdir(parents=True)
    environment = os.environ | {"MPLBACKEND": "agg"}
    command = [sys.executable, str(example)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd=place, env=environment)
    assert answer.returncode == 0, answer.stderr
