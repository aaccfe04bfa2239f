"""Small input folders, made to order."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

from heatlas.pipeline.cohort.reading import InputCohort, read_cohort
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError

ROW = {"AGE": "74.3", "PTGENDER": "Female", "SITE": "11", "APOE4": "1", "MMSE": "27", "FLDSTRENG": "1.5 Tesla MRI"}


def image_bytes(shape: tuple[int, ...] = (7, 9, 11), dtype: type = np.int16) -> bytes:
    return nib.Nifti1Image(np.ones(shape, dtype), np.diag([-1.0, 1, 1, 1])).to_bytes()


def write_csv(path: Path, content: str, encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode(encoding))
    return path


def _labelled(cohort: InputCohort) -> InputCohort:
    """The cohort, unless it cannot be labelled; raises as a run does."""
    if cohort.problem:
        raise BadInputError(cohort.problem)
    return cohort


@dataclass
class AdniTree:
    """An ADNI download in the making."""

    root: Path
    rows: list[dict[str, str]] = field(default_factory=list)

    def image(
        self,
        ptid: str,
        date: str | None = "2006-04-18",
        number: str = "I1001",
        sequence: str = "MPRAGE",
        content: bytes | None = None,
        name: str = "brain.nii",
    ) -> Path:
        folders = ["ADNI", ptid, sequence] + ([f"{date}_08_20_30.0"] if date else []) + [number]
        path = self.root.joinpath(*folders, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image_bytes() if content is None else content)
        return path

    def row(self, ptid: str, viscode: str = "bl", examdate: str = "2006-04-10", dx: str = "CN", **cells: str) -> None:
        self.rows.append({"PTID": ptid, "VISCODE": viscode, "EXAMDATE": examdate, "DX": dx, **ROW, **cells})

    def table(self, name: str = "ADNIMERGE_01Jan2025.csv", separator: str = ",", encoding: str = "utf-8") -> Path:
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding=encoding) as handle:
            writer = csv.DictWriter(handle, names, restval="", delimiter=separator, quoting=csv.QUOTE_ALL)
            writer.writeheader()
            writer.writerows(self.rows)
        return path

    def both_classes(self) -> None:
        """Add a person with AD and one without, so that the contrast exists."""
        for person, dx in (("999_S_9999", "Dementia"), ("999_S_9998", "CN")):
            self.image(person, number=f"I{person[-4:]}")
            self.row(person, dx=dx)

    def read(self, as_is: bool = False, **settings: Any) -> InputCohort:
        """Read the tree, after adding `both_classes` and the table unless these are there."""
        if not as_is and "999_S_9999" not in {row["PTID"] for row in self.rows}:
            self.both_classes()
        if self.rows and not list(self.root.rglob("[Aa][Dd][Nn][Ii][Mm]*.csv")):
            self.table()
        return _labelled(read_cohort(self.root, CohortConfig(**settings), 43))

    def scan(self, scan_id: str, **settings: Any) -> Scan:
        return next(scan for scan in self.read(**settings).table if scan.scan_id == scan_id)


@dataclass
class BidsTree:
    """A BIDS dataset in the making."""

    root: Path

    def image(self, path: str, content: bytes | None = None) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(image_bytes() if content is None else content)
        return target

    def table(self, path: str, *lines: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("\n".join(line.replace(" ", "\t") for line in lines) + "\n", encoding="utf-8")

    def read(self, **settings: Any) -> InputCohort:
        return _labelled(read_cohort(self.root, CohortConfig(**settings), 43))
