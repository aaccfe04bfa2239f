"""Workbooks as tables: what their cells show, and which files are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from input_trees import image_bytes
from workbook_files import SPACE, write_ods, write_xls, write_xlsx

from heatlas.pipeline.cohort.cells.tables import read_sheet, read_workbook
from heatlas.pipeline.cohort.reading import read_cohort
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError

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
