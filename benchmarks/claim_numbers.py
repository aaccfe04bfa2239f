"""Numbers behind verdicts on patients: what each network said of each person, in `benchmarks/claims/numbers`.

A study is two files. NAME.tsv.gz has a row per measure, person and seed, and NAME.toml says how it was made: commit,
settings, command, date, and what holds for everybody (`about`). People have running numbers in the order of their
values, so that neither a number nor the order says who somebody is; rows without a person are of the whole cohort.
"""

from __future__ import annotations

import datetime
import gzip
import hashlib
import io
import json
import subprocess
import sys
import tomllib
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


@dataclass(frozen=True, eq=False)
class Numbers:
    """The table of a study."""

    name: str
    rows: pd.DataFrame  # `COLUMNS`
    about: Mapping[str, Any]

    @cached_property
    def people(self) -> NDArray[np.int64]:
        return np.unique(self.rows.loc[self.rows["person"] != NOBODY, "person"].to_numpy())

    @cached_property
    def seeds(self) -> list[int]:
        return sorted(self.rows["seed"].unique())

    @cached_property
    def classes(self) -> NDArray[np.int64]:
        """Class of each person."""
        own = self.rows[self.rows["person"] != NOBODY].drop_duplicates("person").set_index("person")["class"]
        return own.loc[self.people].to_numpy()

    @cached_property
    def folds(self) -> NDArray[np.int64]:
        """Whose network answered, (people, seeds); `NOBODY` for who was not asked."""
        own = self.rows[self.rows["person"] != NOBODY].drop_duplicates(["person", "seed"])
        wide = own.pivot_table(index="person", columns="seed", values="fold")
        return wide.reindex(self.people)[self.seeds].fillna(NOBODY).to_numpy(int)

    @cached_property
    def _by_measure(self) -> Mapping[str, pd.DataFrame]:
        return dict(iter(self.rows.groupby("measure", sort=False)))

    @property
    def measures(self) -> list[str]:
        return [name for name, own in self._by_measure.items() if own["person"].iloc[0] != NOBODY]

    @property
    def cohort_measures(self) -> list[str]:
        """Measures that no person has."""
        return [name for name, own in self._by_measure.items() if own["person"].iloc[0] == NOBODY]

    def of(self, measure: str) -> Floats:
        """Values of a measure, (people, seeds); NaN for who was not asked."""
        if measure not in self._by_measure:
            sys.exit(f"{self.name}: no numbers of {measure!r}; there are {', '.join(self.measures[:5])} and others.")
        wide = self._by_measure[measure].pivot_table(index="person", columns="seed", values="value")
        return wide.reindex(index=self.people, columns=self.seeds).to_numpy(float)

    def of_cohort(self, measure: str) -> Floats:
        """Values that no person has, by seed."""
        return self._by_measure[measure].set_index("seed")["value"].loc[self.seeds].to_numpy(float)


def write(name: str, rows: pd.DataFrame, settings: Path, about: Mapping[str, Any], folder: Path = FOLDER) -> Path:
    """Write the table of a study; `rows` have the names of people, which are not written (none: the whole cohort).

    `settings`: what its runs were made with.
    """
    known = rows["person"].notna()
    numbers = running_numbers(rows[known])
    rows = rows.assign(person=rows["person"].map(numbers).fillna(NOBODY).astype(int))
    rows[["class", "fold"]] = rows[["class", "fold"]].fillna(NOBODY).astype(int)
    ordered = rows[COLUMNS].sort_values(COLUMNS[:3], key=lambda one: one, kind="stable")
    text = ordered.to_csv(sep="\t", index=False, float_format=f"%.{DIGITS}g", lineterminator="\n").encode()
    packed = io.BytesIO()
    with gzip.GzipFile("", "wb", 9, packed, mtime=0) as file:
        file.write(text)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.tsv.gz").write_bytes(packed.getvalue())
    made = {
        "commit": subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip(),
        "date": datetime.date.today().isoformat(),
        "settings": hashlib.sha256(settings.read_bytes()).hexdigest()[:12],
        "command": " ".join(Path(word).name if "/" in word else word for word in sys.argv),
        "table": hashlib.sha256(text).hexdigest()[:12],
        "people": len(numbers),
    }
    head = "\n".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in (made | dict(about)).items())
    (folder / f"{name}.toml").write_text(head + "\n", encoding="utf-8")
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
        about = tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))
        text = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, tomllib.TOMLDecodeError) as error:
        sys.exit(f"{path}: cannot be read ({error}). Take the committed file again: git checkout {path}")
    if hashlib.sha256(text).hexdigest()[:12] != about.get("table"):
        sys.exit(f"{path}: not the table that {name}.toml describes. Take the committed files again.")
    return Numbers(name, pd.read_csv(io.BytesIO(text), sep="\t"), about)


def stored() -> list[str]:
    """Names of the studies whose numbers are kept."""
    return sorted(path.name.removesuffix(".tsv.gz") for path in FOLDER.glob("*.tsv.gz"))
