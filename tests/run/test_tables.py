"""Tables and documents that are written and read."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heatlas.pipeline.run import documents
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.ranges import from_text
from heatlas.pipeline.run.declared import MEANINGS, Form, Inference, Table, described
from heatlas.pipeline.run.documents import DEEPEST, json_object, known_json, read_json, toml_document
from heatlas.pipeline.run.errors import BadInputError, ResumableError, UsageError
from heatlas.pipeline.run.layout.folder import read_run_input, run_lock
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout, RunLayout
from heatlas.pipeline.run.layout.scan_files import PathIn
from heatlas.pipeline.run.tables import (
    MISSING,
    guarded,
    read_table,
    require_numbers,
    unguarded,
    write_table,
    write_text,
)
from heatlas.pipeline.run.work.digests import DigestCache, file_digest, read_receipt
from heatlas.pipeline.run.work.jobs import step_outputs
from heatlas.reports.read.run_files import DECLARED


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_floats_come_back_exactly(tmp_path, values):
    path = tmp_path / "t.tsv"
    write_table(path, pd.DataFrame({"x": np.array(values, dtype=float)}))
    assert read_table(path)["x"].astype(float).tolist() == values


def test_identifiers_stay_text_and_missing_is_na(tmp_path):
    path = tmp_path / "t.tsv"
    frame = pd.DataFrame({"participant_id": ["0012", "NA"], "x": [1.5, None], "kept": [True, False]})
    write_table(path, frame)
    assert path.read_text() == "participant_id\tx\tkept\n0012\t1.5\ttrue\nNA\tn/a\tfalse\n"
    back = read_table(path)
    assert back["participant_id"].tolist() == ["0012", "NA"]
    assert back["x"].isna().tolist() == [False, True]
    assert back["kept"].tolist() == [True, False]


@pytest.mark.parametrize("values", [["0", "1"], ["1.5", "3"], ["true", "false"], ["1.0", "NA"]])
@pytest.mark.parametrize("column", ["label", "predicted", "scan_id", "asked"])
def test_class_names_and_identifiers_are_never_numbers_or_truth_values(tmp_path, column, values):
    path = tmp_path / "t.tsv"
    write_table(path, pd.DataFrame({column: [*values, None], "kept": [True, False, True]}))
    back = read_table(path, text_columns=["asked", "not there"])
    assert back[column].tolist()[:2] == values
    assert back[column].isna().tolist() == [False, False, True]
    assert back["kept"].dtype == bool


def test_missing_column_is_named(tmp_path):
    path = tmp_path / "t.tsv"
    path.write_text("a\tb\n1\t2\n")
    with pytest.raises(BadInputError, match=r"t\.tsv: column c is missing; found: a, b"):
        read_table(path, required=["a", "c"])


def test_empty_file_and_absent_file_are_bad_input(tmp_path):
    (tmp_path / "empty.tsv").touch()
    for name in ("empty.tsv", "absent.tsv"):
        with pytest.raises(BadInputError, match=name):
            read_table(tmp_path / name)


def test_byte_order_mark_is_not_part_of_the_first_column(tmp_path):
    path = tmp_path / "t.tsv"
    path.write_bytes("\ufeffa\tb\n1\t2\n".encode())
    assert list(read_table(path).columns) == ["a", "b"]


def test_of_two_who_write_one_file_at_once_each_has_its_own_temporary_file(tmp_path, monkeypatch):
    """As two computers do, on which a process may have the same number: here one process writes twice."""
    rename = Path.replace

    def written_meanwhile(temporary, path):
        monkeypatch.setattr(Path, "replace", rename)
        write_text(path, "second")
        assert path.read_text() == "second"
        return rename(temporary, path)

    monkeypatch.setattr(Path, "replace", written_meanwhile)
    write_text(tmp_path / "t.txt", "first")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("t.txt", "first")]


def test_a_file_that_holds_the_text_already_is_left_alone(tmp_path):
    path = tmp_path / "t.txt"
    write_text(path, "β\n")
    os.utime(path, ns=(1, 1))
    write_text(path, "β\n")
    assert path.stat().st_mtime_ns == 1
    write_text(path, "γ\n")
    assert path.read_text(encoding="utf-8") == "γ\n"


BEGINNINGS = ["=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"]


@pytest.mark.parametrize("beginning", BEGINNINGS)
@pytest.mark.parametrize("rest", ["cmd|' /C calc'!A0", "1+1", "SUM(A1)", "", "inf"])
def test_no_text_begins_as_a_formula_in_the_file(tmp_path, beginning, rest):
    text = beginning + rest
    write_table(tmp_path / "t.tsv", pd.DataFrame({text: [text], "scan_id": [text], "x": [-1.5]}))
    cells = (tmp_path / "t.tsv").read_bytes().decode().replace('"', "")
    assert cells.startswith(f"'{text}\tscan_id")
    assert f"'{text}\t'{text}\t-1.5" in cells
    back = read_table(tmp_path / "t.tsv")
    assert list(back.columns) == [text, "scan_id", "x"]
    assert back.iloc[0].tolist() == [text, text, -1.5]


TEXTS = st.tuples(
    st.text("'", max_size=3),
    st.sampled_from(["", *BEGINNINGS]),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6),
).map("".join)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(TEXTS.filter(lambda text: text != MISSING), min_size=1, max_size=8))
def test_every_text_comes_back_as_it_was(tmp_path, texts):
    write_table(tmp_path / "t.tsv", pd.DataFrame({"scan_id": texts, "n": 1}))
    assert read_table(tmp_path / "t.tsv")["scan_id"].tolist() == texts
    assert [unguarded(guarded(text)) for text in texts] == texts


@pytest.mark.parametrize("number", ["-1.5", "+2", "-1e-3", "-.5", "+3."])
def test_numbers_with_a_sign_stay_numbers(tmp_path, number):
    write_table(tmp_path / "t.tsv", pd.DataFrame({"x": [number, number]}))
    assert (tmp_path / "t.tsv").read_text() == f"x\n{number}\n{number}\n"
    assert read_table(tmp_path / "t.tsv")["x"].tolist() == [float(number)] * 2


# A declared table: written with its dictionary, read as text where it is text, refused where columns do not fit.

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


@pytest.mark.parametrize("name", ["predictions", "relevance_bilateral"])
def test_a_table_of_the_evaluation_is_outdated_once_answers_or_maps_of_the_run_change(tmp_path: Path, name) -> None:
    layout, rows = EvaluationLayout(tmp_path), [{"participant_id": "sub-1", "group": "A", "p": 0.5}]
    layout.group.mkdir()
    source = layout.group / f"{name}.tsv"
    source.write_text("0.25")
    TABLE.write(layout, rows)
    source.write_text("0.25")  # made again, and the same
    assert TABLE.outdated(RunLayout(tmp_path)) == ""
    source.write_text("0.35")
    assert TABLE.outdated(RunLayout(tmp_path)).startswith(f"group/made.tsv was made from group/{name}.tsv, changed")
    TABLE.write(layout, rows)
    assert TABLE.outdated(RunLayout(tmp_path)) == ""


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


# JSON and TOML within bounds: what is too large, too deep or of another kind is refused by one line.

DEEP = '{"a": ' * 100_000 + "1" + "}" * 100_000
BAD = {
    "deep": DEEP,
    "deep list": '{"a": ' + "[" * 100_000,
    "a list": "[1]",
    "a number": "3",
    "empty": "",
    "cut": '{"a": 1',
    "not a number": '{"a": NaN}',
    "infinity": '{"a": -Infinity}',
    "half a character": '{"a": "\\ud800"}',
    "long number": '{"a": ' + "9" * 10_000 + "}",
}


@pytest.mark.parametrize("how", BAD)
def test_a_json_text_that_is_no_shallow_object_is_refused(tmp_path, how):
    with pytest.raises(ValueError):
        json_object(BAD[how])
    path = tmp_path / "some.json"
    path.write_text(BAD[how])
    with pytest.raises(BadInputError, match=r"some\.json: not a readable JSON object \(.*\)\. Make it again\.$"):
        read_json(path, "Make it again.")
    assert known_json(path) == {}


def test_what_is_no_file_or_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "LARGEST_JSON", 10)
    path = tmp_path / "some.json"
    path.write_text('{"a": 1, "b": 2}')
    with pytest.raises(BadInputError, match=r"cannot be read \(16 bytes, more than 10\)\. Remedy\."):
        read_json(path, "Remedy.")
    for target in (tmp_path, "/dev/zero", tmp_path / "nothing"):
        path.unlink()
        path.symlink_to(target)
        with pytest.raises(BadInputError, match="cannot be read"):
            read_json(path, "")
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(OSError, match="a device, not a file"):
        file_digest(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(BadInputError, match="a named pipe"):
        read_json(path, "")


def test_depth_is_counted_in_objects_and_lists():
    def nested(levels):
        return '{"a": ' * levels + "1" + "}" * levels

    assert json_object(nested(DEEPEST)) == json.loads(nested(DEEPEST))
    with pytest.raises(ValueError, match="deeper than"):
        json_object(nested(DEEPEST + 1))
    assert json_object('{"smile": "\\ud83d\\ude00"}') == {"smile": "\N{GRINNING FACE}"}
    assert json_object(b'\xef\xbb\xbf{"a": [1]}') == {"a": [1]}


@pytest.mark.parametrize("content", [DEEP, "[1]", '{"key": 1}', '{"key": "k", "outputs": 3}'])
def test_damaged_files_of_the_machinery_count_as_none(tmp_path, content):
    layout = RunLayout(tmp_path)
    for path in (layout.digests, layout.receipt("steps", "one")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert read_receipt(layout.receipt("steps", "one")) is None
    assert step_outputs(layout) == []
    (tmp_path / "image").write_text("x")
    assert DigestCache(layout.digests).digest(tmp_path / "image") == file_digest(tmp_path / "image")
    layout.lock.write_text(content)
    with pytest.raises(ResumableError, match=r"delete .* and try again"), run_lock(layout.lock):
        pass


def test_dotted_keys_of_settings_are_bounded(tmp_path):
    path = tmp_path / "settings.toml"
    begun = time.monotonic()
    for text in (".".join(["a"] * 60_000) + " = 1", "[" + " . ".join(["'a'"] * 60_000) + "]", "a = " + "[" * 10_000):
        path.write_text(text)
        with pytest.raises(UsageError, match=r"settings\.toml: not valid TOML"):
            load_config(file=path)
    path.write_text("# " + "x" * 2**20)
    with pytest.raises(UsageError, match="more than 1,048,576"):
        load_config(file=path)
    text = "{" + ".".join(["a"] * 60_000) + " = 1}"
    assert from_text(text) == text
    (tmp_path / "config.toml").write_text("[run]\ninput = " + "[" * 10_000)
    with pytest.raises(UsageError, match="not a Heatlas run"):
        read_run_input(RunLayout(tmp_path))
    assert time.monotonic() - begun < 5
    many = ", ".join(["0.1"] * 500)
    assert toml_document(f"a = [{many}]  # 1.2.3.4") == {"a": [0.1] * 500}
    with pytest.raises(ValueError, match="deeper than"):
        toml_document("a = " + "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1))


def test_a_confidence_that_no_draws_can_show_is_refused():
    load_config(overrides={"statistics": {"confidence": 0.9999}})
    for level in (0.9999999999999999, 0.99999, 0.5):
        with pytest.raises(UsageError, match=r"statistics\.confidence must lie above 0\.5 and up to 0\.9999"):
            load_config(overrides={"statistics": {"confidence": level}})


@pytest.mark.parametrize("note", ["plain", "two\nlines", 'three\n"quoted"\nlines'])
def test_a_wrong_cell_is_named_by_its_line_in_the_file(tmp_path, note):
    path = tmp_path / "table.tsv"
    write_table(path, pd.DataFrame({"note": [note, note, "last"], "age": ["70", "71", "seventy"]}))
    lines = path.read_text().splitlines()
    line = next(number for number, text in enumerate(lines, start=1) if "seventy" in text)
    with pytest.raises(BadInputError, match=rf"table\.tsv: line {line}, column age: 'seventy' is not a number"):
        require_numbers(path, read_table(path), ["age"])
