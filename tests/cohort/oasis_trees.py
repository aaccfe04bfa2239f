"""OASIS downloads made to order: Analyze pairs as the archives hold them, and their tables."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import nibabel as nib
import numpy as np
from workbook_files import SPACE, write_xlsx

from heatlas.pipeline.cohort.reading import InputCohort, read_cohort
from heatlas.pipeline.run.config.settings import CohortConfig

CROSS = ("ID", "M/F", "Hand", "Age", "Educ", "SES", "MMSE", "CDR", "eTIV", "nWBV", "ASF", "Delay")
LONGITUDINAL = (
    "Subject ID", "MRI ID", "Group", "Visit", "MR Delay", "M/F", "Hand", "Age", "EDUC", "SES", "MMSE", "CDR", "eTIV",
    "nWBV", "ASF",
)  # fmt: skip
PLACES = {
    "SUBJ_111": ("PROCESSED/MPRAGE/SUBJ_111", "{}_mpr_n4_anon_sbj_111"),
    "T88_111": ("PROCESSED/MPRAGE/T88_111", "{}_mpr_n4_anon_111_t88_masked_gfc"),
    "RAW": ("RAW", "{}_mpr-1_anon"),
    "RAW2": ("RAW", "mpr-1.nifti"),
}


def head() -> np.ndarray:
    """An asymmetric head in RAS+ order, unequal sides: one bright block high, in front, on the right."""
    volume = np.zeros((10, 14, 12), np.int16)
    volume[1:9, 1:13, 1:11] = 100
    volume[6:9, 9:13, 7:11] = 900
    return volume


def as_stored(volume: np.ndarray, axes: str) -> np.ndarray:
    """A RAS+ volume with its indices in other directions, by brute force over every voxel."""
    order = [{"R": 0, "L": 0, "A": 1, "P": 1, "S": 2, "I": 2}[letter] for letter in axes]
    stored = np.zeros([volume.shape[axis] for axis in order], volume.dtype)
    for index in np.ndindex(*stored.shape):
        place = [0, 0, 0]
        for i, axis, letter in zip(index, order, axes, strict=True):
            place[axis] = i if letter in "RAS" else volume.shape[axis] - 1 - i
        stored[index] = volume[tuple(place)]
    return stored


def write_pair(image: Path, stored: np.ndarray, zooms: tuple[float, ...] = (1.0, 1.0, 1.0)) -> None:
    """A big-endian Analyze 7.5 pair of four dimensions, as OASIS's are."""
    image.parent.mkdir(parents=True, exist_ok=True)
    header = nib.AnalyzeHeader(endianness=">")
    header.set_data_dtype(np.int16)
    header.set_data_shape((*stored.shape, 1))
    header.set_zooms((*zooms, 1.0))
    with image.with_name(image.name[:-4] + ".hdr").open("wb") as handle:
        header.write_to(handle)
    image.write_bytes(stored.astype(">i2").tobytes(order="F"))


def write_workbook(path: Path, rows: list[list[str]]) -> None:
    """A workbook as spreadsheets write it: shared texts, numbers as numbers, empty cells left out."""
    texts: list[str] = []
    lines = []
    for number, row in enumerate(rows, 1):
        cells = ""
        for column, text in enumerate(row):
            reference = f"{chr(ord('A') + column)}{number}"
            if text == "":
                continue
            try:
                cells += f'<c r="{reference}"><v>{float(text):.17g}</v></c>'
            except ValueError:
                texts.append(text)
                cells += f'<c r="{reference}" t="s"><v>{len(texts) - 1}</v></c>'
        lines.append(f'<row r="{number}">{cells}</row>')
    items = "".join(f"<si><t>{escape(text)}</t></si>" for text in texts)
    write_xlsx(path, "".join(lines), {"xl/sharedStrings.xml": f"<sst {SPACE}>{items}</sst>"})


@dataclass
class OasisTree:
    """A download in the making."""

    root: Path
    release: str = "OAS1"
    rows: list[dict[str, str]] = field(default_factory=list)

    def image(
        self, session: str, kind: str = "SUBJ_111", disc: str = "disc1", volume: np.ndarray | None = None
    ) -> Path:
        folder, name = PLACES[kind]
        axes = "LAS" if kind == "T88_111" else "ASL"
        path = self.root / disc / session / folder / f"{name.format(session)}.img"
        zooms = (1.0, 1.0, 1.25) if kind.startswith("RAW") else (1.0, 1.0, 1.0)
        write_pair(path, as_stored(head() if volume is None else volume, axes), zooms)
        return path

    def row(self, session: str, **cells: str) -> None:
        if self.release == "OAS1":
            row = {"ID": session, "M/F": "F", "Hand": "R", "Age": "74", "Educ": "2", "SES": "3", "MMSE": "29",
                   "CDR": "0", "eTIV": "1344", "nWBV": "0.743", "ASF": "1.306", "Delay": "N/A"}  # fmt: skip
        else:
            number = session[-1]
            row = {"Subject ID": session[:9], "MRI ID": session, "Group": "Nondemented", "Visit": number,
                   "MR Delay": "0", "M/F": "M", "Hand": "R", "Age": "87", "EDUC": "14", "SES": "2", "MMSE": "27",
                   "CDR": "0", "eTIV": "1987", "nWBV": "0.696", "ASF": "0.883"}  # fmt: skip
        self.rows.append({**row, **cells})

    def table(self, name: str = "oasis_cross-sectional.csv") -> Path:
        columns = CROSS if self.release == "OAS1" else LONGITUDINAL
        lines = [list(columns), *([row.get(column, "") for column in columns] for row in self.rows)]
        path = self.root / name
        if name.endswith(".xlsx"):
            write_workbook(path, lines)
        else:
            with path.open("w", newline="", encoding="utf-8") as handle:
                csv.writer(handle).writerows(lines)
        return path

    def read(self, **settings: Any) -> InputCohort:
        return read_cohort(self.root, CohortConfig(**settings), 43)
