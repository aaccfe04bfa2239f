"""A whole run whose work is done by Parsl's workers, without a cluster."""

from __future__ import annotations

import pytest
from template_cohort import write_config, write_template_cohort

from pipeline.run.layout.run_layout import RunLayout
from workflows.command_line import main

pytest.importorskip("parsl")


def test_a_run_by_parsl_writes_the_tables_of_a_local_run(tmp_path):
    """Up to the statistics, since the report takes longest."""
    write_template_cohort(tmp_path / "cohort", participants=12)
    config = write_config(tmp_path / "config.toml")
    config.write_text(config.read_text() + "[cluster]\nworkers = 1\n")
    tables = []
    for out, where in (("here", ["--n-procs", "1"]), ("parsl", ["--executor", "local"])):
        layout = RunLayout(tmp_path / out)
        command = ["run", str(tmp_path / "cohort"), str(layout.root), "--config", str(config), *where]
        assert main([*command, "--stop-after", "statistics"]) == 0
        tables.append({path.relative_to(layout.root): path.read_bytes() for path in layout.root.rglob("*.tsv")})
        assert not layout.parsl_logs.exists()
        assert list(layout.scratch.iterdir()) == []
    assert len(tables[0]) > 50
    assert tables[0] == tables[1]
