from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.tables import MISSING, guarded, read_table, unguarded, write_table, write_text


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
