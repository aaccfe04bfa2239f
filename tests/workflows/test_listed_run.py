"""A folder of images with a table through a run, its application to others, and its export."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from heatlas.pipeline.run.config.files import read_config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.workflows.command_line import main
from tests.workflows.template_cohort import write_config, write_template_cohort

OWN_WORDS = {"image", "diagnosis_source"}
"""Columns of the scan table that name files of the input."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The same scans as a BIDS dataset and as one folder with a table, and a run of each."""
    folder = tmp_path_factory.mktemp("listed")
    table = write_template_cohort(folder / "bids", participants=24)
    (folder / "flat").mkdir()
    for name in table["participant_id"]:
        original = folder / "bids" / name / "anat" / f"{name}_T1w.nii.gz"
        (folder / "flat" / original.name).hardlink_to(original)
    listed = table.assign(scan=table["participant_id"] + "_T1w.nii.gz").rename(columns={"participant_id": "Subject"})
    listed.to_csv(folder / "flat" / "people.csv", index=False)
    config = write_config(folder / "config.toml")
    config.write_text(config.read_text().replace("validation_fraction = 0.4", "validation_fraction = 0.1"))
    for name, options in (("bids", []), ("flat", ["--table", str(folder / "flat" / "people.csv")])):
        command = ["run", str(folder / name), str(folder / f"run-{name}"), "--config", str(config), "--n-procs", "1"]
        assert main([*command, "--stop-after", "regions", *options]) == 0
    return folder


@pytest.mark.slow
def test_tables_are_those_of_the_same_scans_as_bids(folder) -> None:
    bids, flat = folder / "run-bids", folder / "run-flat"
    tables = sorted(path.relative_to(bids) for path in bids.rglob("*.tsv") if "logs" not in path.parts)
    assert tables == sorted(path.relative_to(flat) for path in flat.rglob("*.tsv") if "logs" not in path.parts)
    assert len(tables) > 20, tables
    for one in tables:
        mine, theirs = (read_table(run / one) for run in (flat, bids))
        names = [name for name in mine.columns if name not in OWN_WORDS]
        pd.testing.assert_frame_equal(mine[names], theirs[names], obj=str(one))


@pytest.mark.slow
def test_others_with_a_table_of_their_own(folder) -> None:
    config = read_config(RunLayout(folder / "run-flat").config)
    assert config.cohort.table == str((folder / "flat" / "people.csv").resolve())
    new = folder / "new"
    new.mkdir()
    (new / "x.nii.gz").hardlink_to(folder / "flat" / "sub-03_T1w.nii.gz")
    (new / "list.tsv").write_text("t1w\tperson\tage\tsex\nx.nii.gz\tsomeone\t70\tF\n")
    command = ["apply", str(folder / "run-flat"), str(new), str(folder / "applied"), "--n-procs", "1"]
    command += ["--start-at", "template", "--stop-after", "regions"]
    assert main(command) == 65  # without a table these are files of any names
    assert main([*command, "--table", "list.tsv"]) == 0  # found in the folder
    (row,) = read_table(folder / "applied" / "group" / "predictions_applied.tsv").to_dict("records")
    assert row["participant_id"] == "sub-someone"
    assert main([*command[:2], str(new / "x.nii.gz"), *command[3:], "--table", "list.tsv"]) == 2


@pytest.mark.slow
def test_export_names_no_table(folder) -> None:
    assert main(["export", str(folder / "run-flat"), str(folder / "shared")]) == 0
    named = [path for path in (folder / "shared").rglob("*") if path.is_file() and b"people.csv" in path.read_bytes()]
    assert named == []


@pytest.mark.slow
def test_check_describes_it(folder, capsys) -> None:
    assert main(["check", str(folder / "flat"), "--table", str(folder / "flat" / "people.csv"), "--config",
                 str(folder / "config.toml"), "--stop-after", "registration"]) == 0  # fmt: skip
    said = capsys.readouterr().out
    assert "flat: images with a table" in said
    assert "24 scans found of 24 participants; 24 kept of 24 participants" in said
    assert "columns of people.csv that are used: scan for the path, Subject for the participant" in said
