"""Workbooks as tables: what their cells show, and which files are refused."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from input_trees import image_bytes

from heatlas.pipeline.cohort.cells.workbooks import read_sheet, read_workbook
from heatlas.pipeline.cohort.reading import read_cohort
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError

SPACE = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
STYLES = (
    f'<styleSheet {SPACE}><numFmts><numFmt numFmtId="164" formatCode="dd\\.mm\\.yyyy"/>'
    '<numFmt numFmtId="165" formatCode="0000"/><numFmt numFmtId="166" formatCode="0&quot; days&quot;"/></numFmts>'
    '<cellStyleXfs><xf numFmtId="22"/></cellStyleXfs><cellXfs>'
    + "".join(f'<xf numFmtId="{number}"/>' for number in (0, 14, 164, 22, 165, 166, 2))
    + "</cellXfs></styleSheet>"
)
GENERAL, SHORT_DATE, GERMAN_DATE, MOMENT, FOUR_DIGITS, DAYS, TWO_PLACES = range(7)


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
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("xl/worksheets/sheet1.xml", f"<worksheet {SPACE}>{''.join(lines)}</worksheet>")
        archive.writestr("xl/styles.xml", STYLES)
        archive.writestr("xl/workbook.xml", f'<workbook {SPACE}><workbookPr date1904="{int(from_1904)}"/></workbook>')
    return path


@pytest.mark.parametrize(
    ("cell", "text"),
    [((43831, SHORT_DATE), "2020-01-01"), ((43831, GERMAN_DATE), "2020-01-01"), ((43831, GENERAL), "43831"),
     ((43831.75, MOMENT), "2020-01-01T18:00:00"), ((1, SHORT_DATE), "1900-01-01"), ((61, SHORT_DATE), "1900-03-01"),
     ((7, FOUR_DIGITS), "0007"), ((7, DAYS), "7"), ((0.74299999999999999, TWO_PLACES), "0.743"), (True, "TRUE"),
     (False, "FALSE"), ("1e3", "1e3")],
)  # fmt: skip
def test_cells_are_what_the_sheet_shows(tmp_path: Path, cell: tuple[object, int] | str | bool, text: str) -> None:
    frame = read_workbook(book(tmp_path / "t.xlsx", ["value"], [cell]))
    assert frame["value"].tolist() == [text]


def test_days_are_counted_from_the_first_day_of_the_workbook(tmp_path: Path) -> None:
    frame = read_workbook(book(tmp_path / "t.xlsx", ["day"], [(42369, SHORT_DATE)], from_1904=True))
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


@pytest.mark.parametrize(
    ("name", "content"), [("p.xls", b"\xd0\xcf\x11\xe0"), ("p.ods", b"PK\x03\x04"), ("p.csv", b"PK\x03\x04")]
)
def test_other_workbooks_are_refused_by_their_content(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content + bytes(range(256)))
    with pytest.raises(BadInputError, match=r"a workbook or archive, not a text table\. Save it as CSV\."):
        read_sheet(tmp_path / name)


def test_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"two columns are named Age and AGE\. Rename or remove one"):
        read_workbook(book(tmp_path / "t.xlsx", ["Age", "id", "AGE"], ["1", "2", "3"]))
