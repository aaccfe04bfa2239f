"""Numbers behind verdicts on patients: what each network said of each person, in `benchmarks/claims/numbers`.

A study is two files. NAME.tsv.gz has a row per measure, person and seed, and NAME.json says how it was made: commit,
settings, command, date, and what holds for everybody (`about`). People have running numbers in the order of their
values, so that neither a number nor the order says who somebody is.
"""

from __future__ import annotations

import datetime
import gzip
import hashlib
import io
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from harness import ROOT
from numpy.typing import NDArray

Floats = NDArray[np.float64]
FOLDER = ROOT / "benchmarks" / "claims" / "numbers"
COLUMNS = ["measure", "seed", "person", "class", "fold", "value"]
DIGITS = 5
"""Significant digits of a stored value."""
NOBODY = -1
NUMBERS = "store what was found for claims, under this name"
"""Of the option of studies."""


@dataclass(frozen=True, eq=False)
class Numbers:
    """The table of a study."""

    name: str
    rows: pd.DataFrame  # `COLUMNS`
    about: Mapping[str, Any]

    @cached_property
    def people(self) -> NDArray[np.int64]:
        return np.unique(self.rows["person"].to_numpy())

    @cached_property
    def seeds(self) -> list[int]:
        return sorted(self.rows["seed"].unique())

    @cached_property
    def classes(self) -> NDArray[np.int64]:
        """Class of each person."""
        return self.rows.drop_duplicates("person").set_index("person")["class"].loc[self.people].to_numpy()

    @cached_property
    def folds(self) -> NDArray[np.int64]:
        """Whose network answered, (people, seeds); `NOBODY` for who was not asked."""
        wide = self.rows.drop_duplicates(["person", "seed"]).pivot_table(index="person", columns="seed", values="fold")
        return wide.reindex(self.people)[self.seeds].fillna(NOBODY).to_numpy(int)

    @cached_property
    def wide(self) -> pd.DataFrame:
        """A column per measure, a row per person and seed; NaN for who was not asked."""
        rows = self.rows.pivot_table(index=["person", "seed"], columns="measure", values="value")
        return rows.reindex(pd.MultiIndex.from_product([self.people, self.seeds]))

    def of(self, measure: str) -> Floats:
        """Values of a measure, (people, seeds)."""
        return self.wide[measure].to_numpy(float).reshape(len(self.people), -1)


def write_of_study(name: str, rows: pd.DataFrame, run: Path, **about: Any) -> Path:
    """Write the rows of a study on the scans or networks of a run; `about`: what holds for everybody."""
    settings = hashlib.sha256((run / "config.toml").read_bytes()).hexdigest()[:12]
    return write(name, rows, {"settings": settings, **about})


def write(name: str, rows: pd.DataFrame, about: Mapping[str, Any], folder: Path = FOLDER) -> Path:
    """Write the table of a study; `rows` have the names of people, which are not written.

    `about`: with what settings it was made, and what holds for everybody.
    """
    numbers = running_numbers(rows)
    typed = rows.astype({"class": int, "fold": int, "value": float})
    ordered = typed.assign(person=rows["person"].map(numbers))[COLUMNS].sort_values(COLUMNS[:3])
    text = ordered.to_csv(sep="\t", index=False, float_format=f"%.{DIGITS}g", lineterminator="\n").encode()
    packed = io.BytesIO()
    with gzip.GzipFile("", "wb", 9, packed, mtime=0) as file:
        file.write(text)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.tsv.gz").write_bytes(packed.getvalue())
    made = {
        "commit": subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip(),
        "date": datetime.date.today().isoformat(),
        "command": " ".join(Path(word).name if "/" in word else word for word in sys.argv),
        "table": hashlib.sha256(text).hexdigest()[:12],
        "people": len(numbers),
    }
    head = json.dumps(made | dict(about), ensure_ascii=False, indent=1)
    (folder / f"{name}.json").write_text(head + "\n", encoding="utf-8")
    return folder / f"{name}.tsv.gz"


def running_numbers(rows: pd.DataFrame) -> dict[str, int]:
    """A number by name: people in the order of their values, so that the same values give the same numbers."""
    wide = rows.pivot_table(index=["class", "person"], columns=["measure", "seed"], values="value")
    values = wide.round(9).reset_index(level="person").sort_index(axis=1)
    keys: Sequence[Any] = [one for one in values.columns if one[0] != "person"]
    ordered = values.reset_index().sort_values([("class", ""), *keys], kind="stable")
    return {name: number for number, name in enumerate(ordered[("person", "")])}


def read(name: str, folder: Path = FOLDER) -> Numbers:
    """The table of a study; refused if it is not the one that its header describes."""
    path = folder / f"{name}.tsv.gz"
    try:
        about = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        text = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, ValueError) as error:
        sys.exit(f"{path}: cannot be read ({error}). Take the committed file again: git checkout {path}")
    if hashlib.sha256(text).hexdigest()[:12] != about.get("table"):
        sys.exit(f"{path}: not the table that {name}.json describes. Take the committed files again.")
    return Numbers(name, pd.read_csv(io.BytesIO(text), sep="\t"), about)


def stored() -> list[str]:
    """Names of the studies whose numbers are kept."""
    return sorted(path.name.removesuffix(".tsv.gz") for path in FOLDER.glob("*.tsv.gz"))
