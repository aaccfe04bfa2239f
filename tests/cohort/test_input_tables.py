"""Tables of people: text and workbooks, dates, values and their ranges."""

from __future__ import annotations

import dataclasses
import gzip
import re
from datetime import date
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from input_trees import AdniTree, BidsTree, image_bytes
from workbook_files import SPACE, write_ods, write_xls, write_xlsx

from heatlas.pipeline.cohort.bids.tables import BASELINE_COLUMNS, COLUMNS
from heatlas.pipeline.cohort.candidates import Candidate, possible_scans
from heatlas.pipeline.cohort.cells import values
from heatlas.pipeline.cohort.cells.tables import (
    RANGES,
    header_separator,
    plain_name,
    possible_cells,
    read_header,
    read_sheet,
    read_text_table,
    read_workbook,
)
from heatlas.pipeline.cohort.cells.values import read_date, with_iso_dates
from heatlas.pipeline.cohort.people.inclusion import MEASURES
from heatlas.pipeline.cohort.reading import InputCohort, read_cohort
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.config.settings import CohortConfig
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
        (gzip.compress(b"a,b\n1,2\n", mtime=0), r"t\.csv: a compressed file, not a text table\. Unpack it"),
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


# Workbooks as tables: what their cells show, and which files are refused.

STYLES = (
    f'<styleSheet {SPACE}><numFmts><numFmt numFmtId="164" formatCode="dd\\.mm\\.yyyy"/>'
    '<numFmt numFmtId="166" formatCode="0&quot; days&quot;"/></numFmts>'
    '<cellStyleXfs><xf numFmtId="22"/></cellStyleXfs><cellXfs>'
    + "".join(f'<xf numFmtId="{number}"/>' for number in (0, 14, 164, 22, 166, 2))
    + "</cellXfs></styleSheet>"
)
GENERAL, SHORT_DATE, GERMAN_DATE, MOMENT, DAYS, TWO_PLACES = range(6)


def book(path: Path, *rows: list[tuple[object, int] | str | bool], from_1904: bool = False) -> Path:
    """A workbook of texts, truth values, and numbers with their style."""
    lines = []
    for row in rows:
        cells = [
            f'<c t="b"><v>{int(cell)}</v></c>' if isinstance(cell, bool)
            else f'<c t="inlineStr"><is><t>{cell}</t></is></c>' if isinstance(cell, str)
            else f'<c s="{cell[1]}"><v>{cell[0]}</v></c>'
            for cell in row
        ]  # fmt: skip
        lines.append(f"<row>{''.join(cells)}</row>")
    return write_xlsx(path, "".join(lines), {"xl/styles.xml": STYLES}, from_1904)


@pytest.mark.parametrize(
    ("cell", "text"),
    [((43831, SHORT_DATE), "2020-01-01"), ((43831, GERMAN_DATE), "2020-01-01"), ((43831, GENERAL), "43831"),
     ((43831.75, MOMENT), "2020-01-01T18:00:00"), ((1, SHORT_DATE), "1900-01-01"), ((61, SHORT_DATE), "1900-03-01"),
     ((7, DAYS), "7"), ((0.74299999999999999, TWO_PLACES), "0.743"), (True, "TRUE"),
     (False, "FALSE"), ("1e3", "1e3"), ((999999999999999, GENERAL), "999999999999999"),
     ((1234567890123459, GENERAL), "1234567890123459.0"), ((9000000000000000, GENERAL), "9000000000000000.0"),
     ("1234567890123459", "1234567890123459")],
)  # fmt: skip
def test_cells_are_what_the_sheet_shows(tmp_path: Path, cell: tuple[object, int] | str | bool, text: str) -> None:
    frame, _ = read_workbook(book(tmp_path / "t.xlsx", ["value"], [cell]))
    assert frame["value"].tolist() == [text]


def test_days_are_counted_from_the_first_day_of_the_workbook(tmp_path: Path) -> None:
    frame, _ = read_workbook(book(tmp_path / "t.xlsx", ["day"], [(42369, SHORT_DATE)], from_1904=True))
    assert frame["day"].tolist() == ["2020-01-01"]


def test_a_workbook_of_people_is_read_as_its_csv_is(tmp_path: Path) -> None:
    names = ["path", "participant_id", "age", "diagnosis", "exam_date", "treated"]
    for name in ("a.nii", "b.nii"):
        (tmp_path / name).write_bytes(image_bytes())
    rows = [
        ["a.nii", "1", (71.5, 0), "CN", (43831, GERMAN_DATE), True],
        ["b.nii", "2", (80, 0), "AD", (43832, 1), False],
    ]
    book(tmp_path / "people.xlsx", names, *rows)
    lines = [",".join(names), "a.nii,1,71.5,CN,2020-01-01,TRUE", "b.nii,2,80,AD,2020-01-02,FALSE"]
    (tmp_path / "people.csv").write_text("\n".join(lines) + "\n")
    columns = ("exam_date", "treated")
    found, wanted = (
        read_cohort(tmp_path, CohortConfig(table=f"people.{kind}", clinical_columns=columns), 43)
        for kind in ("xlsx", "csv")
    )
    assert [scan.age for scan in found.table.kept] == [71.5, 80.0]
    assert [scan.label for scan in found.table.kept] == ["CN", "AD"]
    assert found.clinical is not None
    assert wanted.clinical is not None
    assert found.clinical.frame.equals(wanted.clinical.frame)


def test_sheets_of_all_formats_are_read_alike(tmp_path: Path) -> None:
    day = ("date", "date-value", "2011-03-04")
    files = [
        book(tmp_path / "a.xlsx", ["id", "age", "day", "left"], ["01", (71, 0), (40606, SHORT_DATE), True]),
        write_xls(tmp_path / "a.xls", ["id", "age", "day", "left"], ["01", (71, 0), (40606, 1), True]),
        write_ods(
            tmp_path / "a.ods",
            ["id", "age", "day", "left"],
            ["01", ("float", "value", "71"), day, ("boolean", "boolean-value", "true")],
        ),
    ]
    for file in files:
        frame, notes = read_sheet(file)
        assert frame.to_dict("records") == [{"id": "01", "age": "71", "day": "2011-03-04", "left": "TRUE"}]
        assert not notes


def test_formulas_give_the_values_saved_with_them(tmp_path: Path) -> None:
    formula = '<row><c t="str"><v>a</v></c></row><row><c><f>WEBSERVICE("x")</f><v>2</v></c></row>'
    frame, _ = read_workbook(write_xlsx(tmp_path / "t.xlsx", formula))
    assert frame["a"].tolist() == ["2"]


def test_a_sheet_that_asks_for_any_amount_of_memory_is_refused(tmp_path: Path) -> None:
    corners = '<row><c r="A1"><v>1</v></c></row><row r="1048576"><c r="XFD1048576"><v>1</v></c></row>'
    with pytest.raises(BadInputError, match=r"t\.xlsx: no readable workbook \(it asks for too much memory\)\. Save it"):
        read_workbook(write_xlsx(tmp_path / "t.xlsx", corners))


def test_a_workbook_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heatlas.pipeline.cohort.cells.tables.MAX_BYTES", 10_000)
    file = write_xlsx(tmp_path / "t.xlsx", "", {"xl/sharedStrings.xml": " " * 10_000})
    assert file.stat().st_size < 10_000
    with pytest.raises(BadInputError, match=r"it holds 1\d,\d{3} bytes, more than 10,000"):
        read_workbook(file)


@pytest.mark.parametrize("name", ["p.xls", "p.ods", "p.xlsx"])
@pytest.mark.parametrize("content", [b"\xd0\xcf\x11\xe0", b"PK\x03\x04", b"<!DOCTYPE a>", b""])
def test_files_that_are_no_workbook_are_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content + bytes(range(256)))
    with pytest.raises(BadInputError, match=r"no readable workbook \(.+\)\. Save it as CSV\."):
        read_sheet(tmp_path / name)


@pytest.mark.parametrize("content", [b"\xd0\xcf\x11\xe0", b"PK\x03\x04"])
def test_workbooks_of_another_ending_are_refused_by_their_content(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p.csv").write_bytes(content + bytes(range(256)))
    with pytest.raises(BadInputError, match=r"a workbook or archive, not a text table\. Save it as CSV\."):
        read_sheet(tmp_path / "p.csv")


@pytest.mark.parametrize(("name", "content"), [("p.xls", b"<html><table>"), ("p.xlsx", b"path,id\na.nii,1\n")])
def test_text_named_like_a_workbook_is_said_to_be_text(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(
        BadInputError, match=rf"not of the kind that \{name[1:]} says, but perhaps text or a web page\)"
    ):
        read_sheet(tmp_path / name)


def test_what_a_sheet_shows_otherwise_than_it_is_read_is_named(tmp_path: Path) -> None:
    def cell(place: str, value: str, kind: str = "inlineStr", formula: str = "") -> str:
        inner = f"<is><t>{value}</t></is>" if kind == "inlineStr" else f"<f>{formula}</f><v>{value}</v>"
        return f'<c r="{place}" t="{kind}">{inner}</c>'

    file = write_xlsx(
        tmp_path / "t.xlsx",
        f'<row r="1">{cell("A1", "id")}{cell("C1", "age")}</row>'
        f'<row r="2">{cell("A2", "1")}{cell("C2", "#REF!", "e", "#REF!+1")}</row>'
        f'<row r="4" hidden="1">{cell("A4", "2")}{cell("C4", "", "n", "35*2")}</row>'
        f'<row r="5">{cell("A5", "3")}{cell("C5", "", "str", "B5")}</row><row r="6" hidden="1"/>',
    )
    frame, notes = read_sheet(file)
    assert frame.to_dict("list") == {"id": ["1", "2", "3"], "age": ["#REF!", "", ""]}
    assert list(frame.index) == [2, 4, 5]
    assert notes == [
        "t.xlsx: 1 cell with an error of the spreadsheet: line 2, age '#REF!'",
        "t.xlsx: 1 formula without a saved value, read as empty; open the workbook in a spreadsheet and save it: "
        "line 4, age",
        "t.xlsx: 1 hidden or filtered row is read as the others are; remove rows that are not meant: line 4",
    ]


def test_columns_of_one_name_are_one_if_they_are_equal(tmp_path: Path) -> None:
    frame, _ = read_workbook(book(tmp_path / "t.xlsx", ["Age", "", "id", "AGE"], ["1", "x", "2", "1"]))
    assert frame.to_dict("list") == {"Age": ["1"], "id": ["2"]}


def test_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"two columns are named Age and AGE and hold different values\. Rename or"):
        read_workbook(book(tmp_path / "t.xlsx", ["Age", "id", "AGE"], ["1", "2", "3"]))


PATH = Path("somewhere/DXSUM.csv")


def iso(*cells: str) -> tuple[list[str], list[str]]:
    frame, notes = with_iso_dates(PATH, pd.DataFrame({"EXAMDATE": list(cells)}, dtype=str), ["EXAMDATE", "absent"])
    return list(frame["EXAMDATE"]), notes


@given(
    st.dates(date(1990, 1, 1), date(2099, 12, 31)),
    st.sampled_from(["%Y-%m-%d", "%m/%d/%Y", "%Y%m%d", "%d.%m.%Y", "%d-%b-%Y", "%d%b%Y", "%Y-%m-%d 00:00:00.0"]),
)
def test_a_date_in_any_form_comes_back(day: date, form: str) -> None:
    assert read_date(day.strftime(form)) == day


@given(st.dates(date(1990, 1, 1), date(2099, 12, 31)))
def test_a_date_written_day_first_comes_back(day: date) -> None:
    assert read_date(day.strftime("%d/%m/%Y"), "day first") == day


@pytest.mark.parametrize(
    "text", ["4/18/06", "0206-04-18", "1900-01-00", "31/31/2006", "2006-02-30", "38825", "April", "2006", "18-4"]
)
def test_what_is_no_date_is_none_and_named(text: str) -> None:
    cells, notes = iso(text, "2006-04-18")
    assert cells == ["", "2006-04-18"]
    assert notes == [f"DXSUM.csv: 1 value of EXAMDATE unreadable as a date (YYYY-MM-DD): '{text}'"]


def test_a_column_that_is_day_first_is_read_so_and_said() -> None:
    cells, notes = iso("13/4/2006", "5/4/2006", "")
    assert cells == ["2006-04-13", "2006-04-05", ""]
    assert notes == ["DXSUM.csv: dates are read day first, because of 13/4/2006"]


def test_a_column_that_is_month_first_needs_no_note() -> None:
    assert iso("4/13/2006", "5/4/2006") == (["2006-04-13", "2006-05-04"], [])


def test_dates_that_can_be_read_either_way_are_read_as_loni_writes_and_said() -> None:
    cells, notes = iso("5/4/2006")
    assert cells == ["2006-05-04"]
    assert notes == ["DXSUM.csv: dates such as 5/4/2006 are read month first, as LONI writes them"]
    assert iso("4/4/2006") == (["2006-04-04"], [])


def test_dates_of_both_orders_are_refused_with_a_witness_of_each() -> None:
    with pytest.raises(
        BadInputError, match=r"DXSUM\.csv: column EXAMDATE .* 13/4/2006 \(day first\) and 4/13/2006 \(month"
    ):
        iso("13/4/2006", "4/13/2006")


def test_the_order_is_that_of_the_whole_table() -> None:
    frame = pd.DataFrame({"EXAMDATE": ["5/4/2006"], "EXAMDATE_bl": ["13/4/2006"]}, dtype=str)
    found, _ = with_iso_dates(PATH, frame, ["EXAMDATE", "EXAMDATE_bl"])
    assert list(found["EXAMDATE"]) == ["2006-04-05"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CN", "CN"),
        ("NL", "CN"),
        ("SMC", "CN"),
        ("EMCI", "MCI"),
        ("lmci", "MCI"),
        (" Dementia ", "AD"),
        ("NL to MCI", "MCI"),
        ("Dementia to MCI", "MCI"),
        ("FTD", None),
        ("to", None),
        ("", None),
        (None, None),
    ],
)
def test_diagnosis(text: str | None, expected: str | None) -> None:
    assert values.diagnosis(text) == expected


def test_missing_codes_of_volumes_and_scores() -> None:
    assert [values.positive(text) for text in ("7123.5", "0", "-4", "nan", None)] == [7123.5, None, None, None, None]
    assert [values.score(text) for text in ("0", "27", "-1")] == [0.0, 27.0, None]
    assert [values.count(text) for text in ("2", "2.0", "1.5", "-4")] == [2, 2, None, None]


def test_words_of_adni() -> None:
    assert [values.sex(text) for text in ("Female", "M", "male", "1", "2", "Unknown", None)] == [
        *("F", "M", "M", "M", "F", None, None),
    ]
    assert [values.field_strength(text) for text in ("1.5 Tesla MRI", "3 Tesla MRI", "3.0", "", None)] == [
        *(1.5, 3.0, 3.0, None, None),
    ]
    assert [values.identifier(text) for text in ("11.0", "011", "1.5", None)] == ["11", "011", "1.5", None]


def test_dates_that_are_none() -> None:
    assert [values.calendar_date(text) for text in ("2006-13-01", "18/04/2006", "2006", "2006-04-181", None)] == [
        None
    ] * 5


@given(st.dates())
def test_dates_in_both_spellings(day: date) -> None:
    assert values.calendar_date(day.isoformat() + "_08_20_30.0") == day
    assert values.calendar_date(f"{day.month}/{day.day}/{day.year:04d}") == day


@given(st.text())
def test_no_text_is_an_accident(text: str) -> None:
    for read in (values.number, values.positive, values.score, values.count, values.sex, values.field_strength):
        read(text)
    values.diagnosis(text)
    values.calendar_date(text)


# Impossible values never become plausible ones, in either layout and from whatever source.

OF_ADNIMERGE = dict(age="AGE", field_strength="FLDSTRENG", apoe4="APOE4", mmse="MMSE", cdr="CDGLOBAL", tiv_mm3="ICV")
OF_ADNIMERGE |= dict(hippocampus_mm3="Hippocampus", amyloid_pet="AV45", fdg_pet="FDG", education="PTEDUCAT")
OF_ADNIMERGE |= dict(logical_memory_delayed="LDELTOTAL")
SHOWN = [name for name in RANGES if name not in ("brain_volume_mm3", "apoe_allele", "years_bl")]
"""Columns of ``scans.tsv`` and ``clinical.tsv``."""
BAD = ["1e9", "99999999", "-70", "inf", "-inf", "1e999", "#REF!", "seventy", "7O", "7_0", "٧٠"]
P = "002_S_0295"


def value(cohort: InputCohort, scan_id: str, column: str) -> float | None:
    assert cohort.clinical is not None
    for frame in (cohort.table.frame(), cohort.clinical.frame):
        if column in frame.columns:
            found = frame.set_index("scan_id").loc[scan_id, column]
            return None if pd.isna(found) else float(found)
    return None


def test_every_number_of_both_tables_has_a_range() -> None:
    numbers = [f.name for f in dataclasses.fields(Scan) if "float" in str(f.type) or "int" in str(f.type)]
    assert {*numbers, *MEASURES} == set(SHOWN)
    names = {plain_name(name) for names in (*COLUMNS.values(), *BASELINE_COLUMNS.values()) for name in names}
    known = {plain for name, one in RANGES.items() for plain in (plain_name(name), *one.names)}
    words = {"diagnosis", "dx", "diagnosisbl", "diagnosissc", "dxbl", "sex", "gender"}
    assert names - known == {*words, "site", "siteid", "center", "centre"}
    assert len(known) == sum(1 + len(one.names) for one in RANGES.values())  # no name means two columns


def named(cohort: InputCohort) -> str:
    (note,) = [note for note in cohort.notes if note.startswith("impossible values")]
    return note


@pytest.mark.parametrize("column", SHOWN)
def test_impossible_cells_of_adnimerge_are_missing_and_named(adni: AdniTree, column: str) -> None:
    name = OF_ADNIMERGE.get(column, column.upper())
    for number, text in enumerate(BAD, 1):
        adni.image(f"002_S_010{number}", number=f"I{number}")
        adni.row(f"002_S_010{number}", **{name: text})
    cohort = adni.read()
    assert [value(cohort, f"I{number}", column) for number in range(1, len(BAD) + 1)] == [None] * len(BAD)
    for line, text in enumerate(BAD, 2):
        assert f"ADNIMERGE_01Jan2025.csv line {line}, {name} '{text}' (" in named(cohort)


@pytest.mark.parametrize("column", SHOWN)
def test_impossible_cells_of_a_bids_table_are_missing_and_named(bids: BidsTree, column: str) -> None:
    rows = []
    for number, text in enumerate(BAD, 1):
        bids.image(f"sub-{number}/anat/sub-{number}_T1w.nii")
        rows.append(f"sub-{number} {'FM'[number % 2]} {text}")
    bids.table("participants.tsv", f"participant_id sex {column}", *rows)
    cohort = bids.read(contrast_column="sex", negative="F", positive="M")
    assert [value(cohort, f"sub-{number}_T1w", column) for number in range(1, len(BAD) + 1)] == [None] * len(BAD)
    for line, text in enumerate(BAD, 2):
        assert f"participants.tsv line {line}, {column} '{text}' (" in named(cohort)


@pytest.mark.parametrize("column", SHOWN)
@settings(max_examples=25)
@given(st.data())
def test_possible_values_are_kept_and_no_other_is(column: str, data: st.DataObject) -> None:
    allowed = RANGES[column]
    number = data.draw(
        st.floats(-1e10, 1e10) | st.floats(allowed.low, allowed.high) | st.integers(-5, 130).map(lambda n: n / 2)
    )
    problems: list[str] = []
    text = format(number, ".4f")
    kept = possible_cells("t", 7, {column: text}, problems)
    missing = float(text) in (-1, -4) or (float(text) == 0 and column.endswith("_mm3"))
    assert (column in kept) == (allowed.holds(float(text)) or missing)
    assert problems == ([] if column in kept else [f"t line 7, {column} '{text}' (must be {allowed})"])


@pytest.mark.parametrize("text", ["-1", "-4", "-4.0", "", "n/a", "nan"])
def test_codes_for_missing_are_missing_without_a_note(adni: AdniTree, text: str) -> None:
    adni.image(P)
    adni.row(P, MMSE=text, AGE=text)
    cohort = adni.read()
    assert (value(cohort, "I1001", "mmse"), value(cohort, "I1001", "age")) == (None, None)
    assert not any("possible" in note for note in cohort.notes)


@pytest.mark.parametrize(("text", "age"), [("89", 89.0), ("89+", 89.0), ("95", 89.0), ("120", 89.0), ("121", None)])
def test_ages_are_checked_before_they_are_capped(bids: BidsTree, text: str, age: float | None) -> None:
    for person in "12":
        bids.image(f"sub-{person}/anat/sub-{person}_T1w.nii")
    bids.table("participants.tsv", "participant_id sex age", f"sub-1 F {text}", "sub-2 M 70")
    assert value(bids.read(contrast_column="sex", negative="F", positive="M"), "sub-1_T1w", "age") == age


def test_an_age_that_dates_make_impossible_is_missing_and_named(adni: AdniTree) -> None:
    adni.image(P, "2006-04-18")
    adni.row(P, EXAMDATE_bl="1990-04-10", AGE="110")
    cohort = adni.read()
    assert value(cohort, "I1001", "age") is None
    assert any("I1001/brain.nii, age 126.02 (must be 1 to 120)" in note for note in cohort.notes)


@pytest.mark.parametrize(("column", "bad"), [("age", 740.0), ("field_strength", 740.0), ("mmse", 999.0)])
def test_values_from_headers_and_sidecars_are_held_to_the_same_ranges(column: str, bad: float) -> None:
    scans = [Scan("sub-1", None, "I1", "a.nii", **{column: bad}), Scan("sub-2", None, "I2", "b.nii", age=70)]  # type: ignore[arg-type]
    checked, notes = possible_scans([Candidate(scan) for scan in scans])
    assert [getattr(one.scan, column) for one in checked] == [None, 70 if column == "age" else None]
    assert notes[0].startswith(f"impossible values, treated as missing (1): a.nii, {column} {bad:g} (must be")


@pytest.mark.parametrize("word", ["X", "family", "Mujer", "3", "unknown"])
def test_a_word_for_no_sex_is_named(adni: AdniTree, word: str) -> None:
    adni.image(P)
    adni.row(P, PTGENDER=word)
    cohort = adni.read()
    assert next(scan for scan in cohort.table if scan.scan_id == "I1001").sex is None
    assert any(f"line 2, PTGENDER '{word}' (not F or M)" in note for note in cohort.notes)


@pytest.mark.parametrize(
    ("file", "header", "row", "named"),
    [
        ("CDR_01Jan2025.csv", "RID,VISCODE,EXAMDATE,CDGLOBAL", "295,bl,2006-04-10,7", "line 2, CDGLOBAL '7'"),
        ("UCSFFSX51.csv", "RID,VISCODE,EXAMDATE,ST29SV,ST88SV", "295,bl,2006-04-10,3.9,4000", "line 2, ST29SV '3.9'"),
        ("list.csv", "Image Data ID,Subject,Age,Sex", "I1001,002_S_0295,740,F", "line 2, age '740'"),
        ("MPRAGEMETA.csv", "ImageUID,MagStrength", "1001,150", "line 2, magstrength '150'"),
    ],
)
def test_other_tables_of_adni_are_held_to_the_same_ranges(
    adni: AdniTree, file: str, header: str, row: str, named: str
) -> None:
    adni.image(P)
    adni.row(P)
    (adni.root / file).write_text(f"{header}\n{row}\n", encoding="utf-8")
    assert any(f"{file} {named} (must be" in note for note in adni.read().notes)


def test_people_without_images_are_not_spoken_of(adni: AdniTree) -> None:
    adni.image(P)
    adni.row(P)
    adni.row("002_S_0413", AGE="740")
    assert not any("740" in note for note in adni.read().notes)
