from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from heatlas.pipeline.cohort.cells.tables import header_separator, read_header, read_text_table
from heatlas.pipeline.run.errors import BadInputError


def table(folder: Path, content: str, encoding: str = "utf-8", **options: object) -> dict[str, list[str]]:
    path = folder / "table.csv"
    path.write_bytes(content.encode(encoding))
    return read_text_table(path, **options)[0].to_dict("list")  # type: ignore[arg-type,return-value]


NAMES = 'Name,Años\n"O\'Brien, ""Jim""",é\n'
EXPECTED = {"Name": ['O\'Brien, "Jim"'], "Años": ["é"]}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16"])
def test_encodings_and_quotes_in_names(tmp_path: Path, encoding: str) -> None:
    assert table(tmp_path, NAMES, encoding) == EXPECTED
    assert read_header(tmp_path / "table.csv")[0] == "Name"


def test_a_byte_order_mark_before_a_quoted_name(tmp_path: Path) -> None:
    content = '"Name, full",x\n1,2\n'
    assert table(tmp_path, content, "utf-8-sig") == {"Name, full": ["1"], "x": ["2"]}
    assert read_header(tmp_path / "table.csv") == ["Name, full", "x"]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_separators_are_told_from_the_header_outside_quotes(tmp_path: Path, separator: str) -> None:
    content = separator.join(['"a, b; c; d"', "x", "y"]) + "\n" + separator.join(["1", "2", "3"]) + "\n"
    assert header_separator(content.split("\n", 1)[0]) == separator
    assert table(tmp_path, content) == {"a, b; c; d": ["1"], "x": ["2"], "y": ["3"]}
    assert read_header(tmp_path / "table.csv") == ["a, b; c; d", "x", "y"]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_lines_may_end_as_on_an_old_mac(tmp_path: Path, separator: str) -> None:
    (tmp_path / "t.csv").write_bytes("\r".join(separator.join(row) for row in ("ab", "12", "34")).encode())
    frame, notes = read_text_table(tmp_path / "t.csv")
    assert (frame.to_dict("list"), list(frame.index), notes) == ({"a": ["1", "3"], "b": ["2", "4"]}, [2, 3], [])
    assert read_header(tmp_path / "t.csv") == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"sep=;\r\na;b\r\n1;2\r\n", r"t\.csv: line 1: 'sep=;' is for Excel only, and no header\. Remove this line"),
        ("a,b\n1,2\n".encode("utf-16-le"), r"t\.csv: not a text table: it holds zero bytes, .* as CSV in UTF-8"),
        (gzip.compress(b"a,b\n1,2\n"), r"t\.csv: a compressed file, not a text table\. Unpack it"),
    ],
)
def test_files_that_are_no_table_are_refused_with_a_remedy(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(BadInputError, match=said):
        read_text_table(tmp_path / "t.csv")


def test_decimal_commas_belong_to_tables_with_semicolons(tmp_path: Path) -> None:
    assert table(tmp_path, "ICV;Name\n1500000,5;a,b\n") == {"ICV": ["1500000.5"], "Name": ["a,b"]}
    assert table(tmp_path, 'ICV,Name\n"1,5",b\n')["ICV"] == ["1,5"]


def test_codes_stay_text(tmp_path: Path) -> None:
    assert table(tmp_path, "a,b,c\n0012,-4,\n") == {"a": ["0012"], "b": ["-4"], "c": [""]}


GOOD = "I1,fine,1.5"
AFTER = "I9,good,3"
BROKEN_ROWS = {
    "too few cells": "I2,1.5",
    "too many cells": "I2,a,1.5,x",
    "a trailing separator": "I2,a,1.5,",
    "an unquoted separator": "I2,seen at 5.0 T, scanned twice,3",
    "a quote that is never closed": 'I2,"no, 5.0 T,3',
    "a quote that merges two cells": 'I2,"no,5.0 T",a,3',
    "a quote closed too early": 'I2,"he said "no, 5.0 T",3',
    "a quote that takes in the next row": 'I2,"5.0 T,3\nI3,no",3',
    "a quote that takes in two rows": 'I2,"5.0 T,3\nI3,no,3\nI4,no",3',
}


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("broken", BROKEN_ROWS.values(), ids=list(BROKEN_ROWS))
def test_a_row_whose_cells_do_not_fit_the_header_is_left_out_by_line(
    tmp_path: Path, broken: str, separator: str
) -> None:
    content = "\n".join(["id,note,tesla", GOOD, "", broken, AFTER]).replace(",", separator)
    (tmp_path / "t.csv").write_text(content, encoding="utf-8")
    frame, notes = read_text_table(tmp_path / "t.csv")
    kept = frame["id"].tolist()
    assert (kept[0], kept[-1], frame.index[0]) == ("I1", "I9", 2)
    assert frame.index[-1] == content.count("\n") + 1  # the line in the file
    assert "I2" not in kept
    assert set(frame["tesla"]) <= {"1.5", "3"}
    assert len(notes) == 1
    assert re.match(r"\d rows? whose cells do not fit the header .*: t\.csv line 4 \(", notes[0])


@pytest.mark.parametrize("row", ['I1,"two\nlines",3', '"I1","two\nlines, and, more","3"', 'I1,"say ""5, 3""",3'])
def test_line_breaks_and_doubled_quotes_inside_a_cell_are_no_fault(tmp_path: Path, row: str) -> None:
    (tmp_path / "t.csv").write_text(f"id,note,tesla\n{row}\n{AFTER}\n", encoding="utf-8")
    frame, notes = read_text_table(tmp_path / "t.csv")
    assert (frame["id"].tolist(), frame["tesla"].tolist(), notes) == (["I1", "I9"], ["3", "3"], [])


def test_a_quoted_word_begins_a_cell_of_a_tab_separated_table(tmp_path: Path) -> None:
    assert table(tmp_path, 'id\tnote\n1\t"frontal" lobe\n', separator="\t") == {"id": ["1"], "note": ["frontal lobe"]}


def test_a_header_that_cannot_be_read_is_not_replaced_by_the_next_row(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"table\.csv: not a readable table \(line 1"):
        table(tmp_path, '"id"x,note\n1,2\n')


@pytest.mark.parametrize(("content", "problem"), [("", "empty"), (" \n", "empty"), ("a,b\n1,2,3\n", "not a readable")])
def test_what_is_no_table_is_refused_in_one_line(tmp_path: Path, content: str, problem: str) -> None:
    with pytest.raises(BadInputError, match=rf"table\.csv: {problem}.* again\.$") as caught:
        table(tmp_path, content)
    assert "\n" not in str(caught.value)


def test_a_header_named_twice_is_one_column_if_both_hold_the_same(tmp_path: Path) -> None:
    assert table(tmp_path, "RID,DX,RID\n1,CN,1\n") == {"RID": ["1"], "DX": ["CN"]}


def test_a_header_named_twice_with_other_cells_is_refused_if_it_matters(tmp_path: Path) -> None:
    content = "RID,DX,DX\n1,CN,MCI\n"
    with pytest.raises(BadInputError, match=r"table\.csv: two columns are named DX and hold different values"):
        table(tmp_path, content, used=["dx"])
    assert table(tmp_path, content, used=["RID"]) == {"RID": ["1"], "DX": ["CN"]}


def test_a_file_that_is_no_text_has_no_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(bytes(range(256)))
    assert "RID" not in read_header(tmp_path / "a.csv")
    assert read_header(tmp_path / "absent.csv") == []
