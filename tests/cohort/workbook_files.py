"""Smallest workbooks of each format, written byte by byte."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

SPACE = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_ODF = "urn:oasis:names:tc:opendocument:xmlns"


def write_xlsx(path: Path, sheet: str, parts: dict[str, str] | None = None, from_1904: bool = False) -> Path:
    """A package (ECMA-376) with one sheet, whose rows are given as XML."""

    def link(kind: str, target: str) -> str:
        space = "http://schemas.openxmlformats.org/package/2006/relationships"
        one = f'<Relationship Id="rId1" Type="{_OFFICE}/{kind}" Target="{target}"/>'
        return f'<Relationships xmlns="{space}">{one}</Relationships>'

    book = f'<workbookPr date1904="{int(from_1904)}"/><sheets><sheet name="a" sheetId="1" r:id="rId1"/></sheets>'
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in {
            "_rels/.rels": link("officeDocument", "xl/workbook.xml"),
            "xl/_rels/workbook.xml.rels": link("worksheet", "worksheets/sheet1.xml"),
            "xl/workbook.xml": f'<workbook {SPACE} xmlns:r="{_OFFICE}">{book}</workbook>',
            "xl/worksheets/sheet1.xml": f"<worksheet {SPACE}><sheetData>{sheet}</sheetData></worksheet>",
            **(parts or {}),
        }.items():
            archive.writestr(name, text)
    return path


def write_ods(path: Path, *rows: list[tuple[str, str, str] | str]) -> Path:
    """An OpenDocument sheet of texts, and of cells as kind, attribute and value."""
    lines = ""
    for row in rows:
        cells = [("string", "string-value", cell) if isinstance(cell, str) else cell for cell in row]
        texts = (
            f'<table:table-cell office:value-type="{kind}" office:{attribute}="{value}"><text:p>{value}</text:p>'
            "</table:table-cell>"
            for kind, attribute, value in cells
        )
        lines += f"<table:table-row>{''.join(texts)}</table:table-row>"
    spaces = " ".join(f'xmlns:{name}="{_ODF}:{name}:1.0"' for name in ("office", "table", "text"))
    table = f'<office:spreadsheet><table:table table:name="a">{lines}</table:table></office:spreadsheet>'
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        archive.writestr("META-INF/manifest.xml", f'<manifest:manifest xmlns:manifest="{_ODF}:manifest:1.0"/>')
        content = f"<office:document-content {spaces}><office:body>{table}</office:body></office:document-content>"
        archive.writestr("content.xml", content)
    return path


def write_xls(path: Path, *rows: list[tuple[float, int] | str | bool]) -> Path:
    """A BIFF8 sheet of texts, truth values, and numbers with a style (0 general, 1 a date) in a compound file."""

    def record(kind: int, content: bytes) -> bytes:
        return struct.pack("<HH", kind, len(content)) + content

    def cell(row: int, column: int, value: tuple[float, int] | str | bool) -> bytes:
        if isinstance(value, bool):
            return record(0x205, struct.pack("<HHHBB", row, column, 0, value, 0))
        if isinstance(value, str):
            text = struct.pack("<HB", len(value), 0) + value.encode("latin-1")
            return record(0x204, struct.pack("<HHH", row, column, 0) + text)
        return record(0x203, struct.pack("<HHHd", row, column, value[1], value[0]))

    def begin(kind: int) -> bytes:
        return record(0x809, struct.pack("<HHHHII", 0x600, kind, 0, 0, 0, 0))

    end = record(0x0A, b"")
    styles = b"".join(record(0xE0, struct.pack("<HH16x", 0, form)) for form in (0, 14))
    globals_ = begin(5) + styles
    offset = len(globals_) + 4 + 9 + len(end)
    globals_ += record(0x85, struct.pack("<IBBBB", offset, 0, 0, 1, 0) + b"a") + end
    cells = (cell(i, j, value) for i, row in enumerate(rows) for j, value in enumerate(row))
    stream = (globals_ + begin(0x10) + b"".join(cells) + end).ljust(4096, b"\0")  # shorter ones lie elsewhere
    count = -(-len(stream) // 512)
    table = [0xFFFFFFFD, 0xFFFFFFFE, *range(3, 2 + count), 0xFFFFFFFE]
    table += [0xFFFFFFFF] * (128 - len(table))

    def entry(name: str, kind: int, child: int, start: int, size: int) -> bytes:
        free = 0xFFFFFFFF
        head = name.encode("utf-16-le").ljust(64, b"\0") + struct.pack("<HBB", 2 * len(name) + 2, kind, 1)
        return head + struct.pack("<III16x4x16xIQ", free, free, child, start, size)

    folder = entry("Root Entry", 5, 1, 0xFFFFFFFE, 0) + entry("Workbook", 2, 0xFFFFFFFF, 2, len(stream))
    header = bytes.fromhex("d0cf11e0a1b11ae1") + bytes(16) + struct.pack("<HHHHH6x", 0x3E, 3, 0xFFFE, 9, 6)
    header += struct.pack("<9I", 0, 1, 1, 0, 4096, 0xFFFFFFFE, 0, 0xFFFFFFFE, 0)
    header += struct.pack("<109I", 0, *[0xFFFFFFFF] * 108)
    sectors = struct.pack("<128I", *table) + folder.ljust(512, b"\0") + stream.ljust(512 * count, b"\0")
    path.write_bytes(header + sectors)
    return path
