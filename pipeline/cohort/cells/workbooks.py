"""The first sheet of a workbook (``.xlsx``, ``.xls``, ``.ods``), read as text like any other table.

Tables such as those of OASIS are offered as workbooks. calamine reads them, in a process of its own
(`workbook_cells`): a file that asks for too much ends that process and is refused here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pandas as pd

from heatlas.pipeline.cohort.cells.text_tables import read_text_table, same_column
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.regular_files import require_regular

SUFFIXES = (".xlsx", ".xls", ".ods")
MAX_BYTES = 2**27
"""Size of a workbook, and of what it unpacks to but pictures; a table of ten thousand rows has a few MB."""
TIMEOUT_S = 120
_PROGRAM = Path(__file__).with_name("workbook_cells.py")


def read_sheet(path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Read a table that may be a workbook, every cell as text; notes as of `read_text_table`.

    Workbooks with another suffix are refused there by their content.
    """
    return (read_workbook(path), []) if path.suffix.lower() in SUFFIXES else read_text_table(path)


def read_workbook(path: Path) -> pd.DataFrame:
    """Read the first sheet, every cell as text ("" if empty), indexed by row; the first row holds the names."""
    try:
        _require_moderate(path)
        rows = _rows(path)
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read ({error.strerror or error}). Check the file.") from error
    except (zipfile.BadZipFile, ValueError, subprocess.TimeoutExpired) as error:
        raise BadInputError(f"{path}: no readable workbook ({error}). Save it as CSV.") from error
    filled = [(number, cells) for number, cells in enumerate(rows, 1) if any(text.strip() for text in cells)]
    if not filled:
        raise BadInputError(f"{path}: empty table. Download or export it again.")
    (_, header), *body = filled
    names = {column: text.strip() for column, text in enumerate(header) if text.strip()}
    spelled = [same_column(name) for name in names.values()]
    if twice := [name for name in names.values() if spelled.count(same_column(name)) > 1]:
        raise BadInputError(
            f"{path}: two columns are named {' and '.join(dict.fromkeys(twice))}. Rename or remove one."
        )
    table = [[cells[column] for column in names] for _, cells in body]
    return pd.DataFrame(table, columns=list(names.values()), index=[number for number, _ in body], dtype=str)


def _require_moderate(path: Path) -> None:
    """Raise ValueError for a file that is large, or unpacks to something large."""
    require_regular(path)
    with path.open("rb") as file:
        size = path.stat().st_size
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                size = max(size, sum(one.file_size for one in archive.infolist() if one.filename.endswith(".xml")))
    if size > MAX_BYTES:
        raise ValueError(f"it holds {size:,} bytes, more than {MAX_BYTES:,}")


def _rows(path: Path) -> list[list[str]]:
    command = [sys.executable, "-P", str(_PROGRAM), str(path)]
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", errors="replace", timeout=TIMEOUT_S, check=False
    )
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2] if done.returncode > 0 else "it asks for too much memory"
        raise ValueError(reason)
    rows: list[list[str]] = json.loads(done.stdout)
    return rows
