"""The cells of the documentation's notebooks run on a run of today, and the notebooks hold what they showed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from heatlas.pipeline.cohort.demo.cohort import write_demo_cohort

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))
RUN = '"../../demo/run"'
"""The run that notebooks open."""


def code(notebook: Path) -> list[str]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_notebooks_are_executed_in_order_and_small() -> None:
    assert [path.name for path in NOTEBOOKS] == ["one_scan.ipynb", "read_a_run.ipynb"]
    for notebook in NOTEBOOKS:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        counts = [cell["execution_count"] for cell in cells if cell["cell_type"] == "code"]
        assert counts == list(range(1, len(counts) + 1)), notebook.name
        assert not [out for cell in cells for out in cell.get("outputs", []) if out["output_type"] == "error"]
        assert notebook.stat().st_size < 300_000
        assert sum(RUN in text for text in code(notebook)) == 1


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    cohort = tmp_path_factory.mktemp("demo") / "cohort"
    write_demo_cohort(cohort, seed=5, participants=10, resolution_mm=4.0)
    out, config = cohort.with_name("run"), Path(__file__).with_name("mini.toml")
    options = ["--config", config, "--n-procs", "2", "--stop-after", "statistics"]
    command = ["-m", "heatlas.workflows.adni", "run", cohort, out, *options]
    subprocess.run([sys.executable, *map(str, command)], check=True, capture_output=True)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_cells_run(notebook: Path, finished: Path, tmp_path: Path) -> None:
    program = "import matplotlib\nmatplotlib.use('agg')\n" + "\n".join(code(notebook)).replace(RUN, repr(str(finished)))
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
