"""A declared table: written with its dictionary, read as text where it is text, refused where columns do not fit."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from heatlas.pipeline.run.declared import MEANINGS, Form, Inference, Table, described
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout, RunLayout
from heatlas.pipeline.run.layout.scan_files import PathIn
from heatlas.reports.read.run_files import DECLARED

ROOT = Path(__file__).parents[2]

TABLE = Table(
    "made", {**described("participant_id", "group"), "p": "Some p", "spread": "Only of ensembles"}, "participant",
    "What is it?", file="group/made.tsv", later=("spread",), inference=Inference("secondary", "all rows"),
)  # fmt: skip


def test_rows_are_written_in_the_order_of_the_columns_with_a_dictionary(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    frame = pd.DataFrame({"p": [0.5], "group": ["0012"], "participant_id": ["sub-1"]})
    path = TABLE.write(layout, frame)
    assert path == tmp_path / "group" / "made.tsv"
    assert path.read_text() == "participant_id\tgroup\tp\nsub-1\t0012\t0.5\n"
    assert json.loads(path.with_suffix(".json").read_text()) == {
        "participant_id": {"Description": MEANINGS["participant_id"]},
        "group": {"Description": "Bilateral group of regions"},
        "p": {"Description": "Some p. Secondary outcome; family: all rows; not corrected."},
    }
    assert TABLE.read(layout)["group"].tolist() == ["0012"]
    elsewhere = TABLE.write(tmp_path / "other.tsv", [("sub-1", "0012", 0.5, 0.25)])
    assert elsewhere.read_text() == "participant_id\tgroup\tp\tspread\nsub-1\t0012\t0.5\t0.25\n"


@pytest.mark.parametrize("columns", [["participant_id", "group"], ["participant_id", "group", "p", "further"]])
def test_a_column_that_is_missing_or_not_declared_is_refused(tmp_path: Path, columns: list[str]) -> None:
    with pytest.raises(ValueError, match=r"made\.tsv: columns and descriptions differ"):
        TABLE.write(RunLayout(tmp_path), pd.DataFrame(columns=columns))


def test_a_table_without_a_column_that_every_version_has_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "made.tsv").write_text("participant_id\tgroup\nsub-1\tA\n")
    with pytest.raises(BadInputError, match="column p is missing"):
        TABLE.read(tmp_path / "made.tsv")
    assert len(TABLE.read(tmp_path / "made.tsv", ["group"])) == 1


def test_a_cell_that_was_changed_after_the_run_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    layout = RunLayout(tmp_path)
    path = TABLE.write(layout, [{"participant_id": "sub-1", "group": "A", "p": 0.5}])
    assert TABLE.not_as_written(layout) == ""
    path.write_text(path.read_text().replace("0.5", "0.4"))
    said = "group/made.tsv: not the table that the run wrote there (SHA-256 differs). Restore the file, or delete it "
    assert TABLE.not_as_written(layout).startswith(said)
    assert TABLE.read(layout)["p"].tolist() == TABLE.read(layout)["p"].tolist() == [0.4]
    assert [line for line in caplog.messages if said in line] == [f"{tmp_path}: {TABLE.not_as_written(layout)}"]
    TABLE.write(layout, [{"participant_id": "sub-1", "group": "A", "p": 0.4}])
    assert TABLE.not_as_written(layout) == ""


def test_a_table_without_a_receipt_or_that_was_only_copied_counts_as_written(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path / "run")
    path = TABLE.write(layout, [{"participant_id": "sub-1", "group": "A", "p": 0.5}])
    os.utime(path, (0, 0))
    assert TABLE.not_as_written(layout) == ""
    shutil.rmtree(layout.logs)  # a run of an earlier version
    path.write_text(path.read_text().replace("0.5", "0.4"))
    assert TABLE.not_as_written(layout) == ""


def test_a_table_of_the_evaluation_is_known_by_the_receipt_there(tmp_path: Path) -> None:
    path = TABLE.write(EvaluationLayout(tmp_path), [{"participant_id": "sub-1", "group": "A", "p": 0.5}])
    path.write_text(path.read_text().replace("0.5", "0.4"))
    assert TABLE.not_as_written(RunLayout(tmp_path)) != ""


def test_the_table_of_an_earlier_command_is_removed_with_its_dictionary(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    TABLE.write(layout, [])
    assert all(path.is_file() for path in TABLE.files(layout))
    assert TABLE.remove(layout)
    assert not any(path.exists() for path in TABLE.files(layout))
    assert not TABLE.remove(layout)


def test_a_table_of_statistics_lies_among_them() -> None:
    assert Table("primary", {}, "run", "").path(RunLayout(Path("run"))) == Path("run/group/statistics/primary.tsv")


@pytest.mark.parametrize(("stage", "file"), [("evaluation", "evaluation/made.tsv"), ("registration", "group/made.tsv")])
def test_a_table_lies_in_the_folder_of_its_stage(stage: str, file: str) -> None:
    assert Table("made", {}, "row", "", stage=stage).file == file


def test_the_table_of_one_scan_lacks_some_columns_and_all_that_is_said_of_them(tmp_path: Path) -> None:
    whole = Table(
        "made", {"scan_id": "Scan", "x": "Number", "kind": "Kind"}, "scan", "", filled=("scan_id", "x"),
        later=("kind",), values={"kind": ("a", "b")}, forms={"kind": Form.CODE},
    )  # fmt: skip
    fewer = whole.without("scan_id", "kind")
    assert fewer.write(tmp_path / "one.tsv", [[1.5]]).read_text() == "x\n1.5\n"
    assert (list(fewer.columns), fewer.filled, fewer.later, fewer.values, fewer.forms) == (["x"], ["x"], [], {}, {})
    assert whole.frame([{"x": 2.0}]).to_dict("list")["x"] == [2.0]
    assert list(whole.frame()) == ["scan_id", "x", "kind"]


def test_a_layout_repeats_no_path_that_a_table_has() -> None:
    layout = RunLayout(Path("run"))
    tables = {table.path(layout): table.name for table in DECLARED}
    members = [name for name, member in vars(RunLayout).items() if isinstance(member, (property, PathIn))]
    assert {name for name in members if getattr(layout, name) in tables} == {"failures"}  # another for each command


@pytest.mark.studies
def test_a_dictionary_is_written_by_the_record_of_a_table_alone() -> None:
    """The others are rows that one unit of work leaves for the command that started it."""
    callers = {
        path.relative_to(ROOT).as_posix()
        for room in ("pipeline", "reports", "workflows", "studies")
        for path in (ROOT / room).rglob("*.py")
        if re.search(r"(?<!def )(?<!_)\bwrite_table\(", path.read_text(encoding="utf-8"))
    }
    inner = {"pipeline/evaluation/bench/scan_job.py", "studies/grids/job.py"}
    assert callers == {"pipeline/run/declared.py", *inner}
