"""A whole run whose work is done by Parsl's workers, without a cluster."""

from __future__ import annotations

import pytest
from template_cohort import write_config, write_template_cohort

from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.workflows.command_line import main

pytest.importorskip("parsl")


@pytest.mark.slow
def test_parsl_does_all_stages_up_to_the_statistics(tmp_path):
    """`make test-cluster` compares the tables with those of a local run, report included."""
    write_template_cohort(tmp_path / "cohort", participants=12)
    config = write_config(tmp_path / "config.toml")
    config.write_text(config.read_text() + "[cluster]\nworkers = 1\n")
    layout = RunLayout(tmp_path / "out")
    command = ["run", str(tmp_path / "cohort"), str(layout.root), "--config", str(config), "--executor", "local"]
    assert main([*command, "--stop-after", "statistics"]) == 0
    assert sorted(read_table(layout.group / "predictions.tsv")["participant_id"]) == [
        f"sub-{n:02d}" for n in (0, 2, 3, 5, 6, 8, 9, 11)
    ]
    assert len(read_table(layout.statistics("group_comparisons"))) > 100
    assert not layout.parsl_logs.exists()
    assert list(layout.scratch.iterdir()) == []
