"""Of which commit the pages are that claims quote, and whether they are so still.

    python benchmarks/result_pages.py results/guidance    # what to put in results.toml

`benchmarks/claims/results.toml` has a record per page; the tables of a study (`benchmarks/claims/results`) are a page,
its folder. What changes afterwards is said among the rules of the claims: its text has a digest, so that no history of
the repository is needed.
"""

from __future__ import annotations

import hashlib
import subprocess
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness import ROOT, arguments_of

RECORDS = ROOT / "benchmarks" / "claims" / "results.toml"
TABLES = "results/"
"""How the name of a page begins that is a folder of tables in `benchmarks/claims`."""
NEWER = "page newer than its record"
NONE = "page without a record"


@dataclass(frozen=True)
class PageRecord:
    """How the numbers of a page were made."""

    commit: str  # at which they were made
    text: str  # `digest_of` the page when it was recorded


def path_of(page: str) -> Path:
    """Where a page is: a file of docs/, or a folder with the tables of a study."""
    return ROOT / ("benchmarks/claims" if page.startswith(TABLES) else "docs") / page


def files_of(path: Path) -> list[Path]:
    """The files of a page, in the order of their names."""
    return sorted(path.iterdir()) if path.is_dir() else [path]


def digest_of(path: Path) -> str:
    """Of a file, or of the files of a folder one after the other."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in files_of(path))).hexdigest()[:12]


@cache
def records() -> tuple[dict[str, PageRecord], dict[str, str]]:
    """A record by page, and digests of the participants.tsv of the cohorts whose people were asked."""
    values = tomllib.loads(RECORDS.read_text(encoding="utf-8"))
    cohorts = values.pop("cohorts")
    return {page: PageRecord(**one) for page, one in values.items()}, cohorts


def fault_of(page: str) -> str:
    """What has changed since a page was recorded; empty if nothing has."""
    made, path = records()[0].get(page), path_of(page)
    if made is None:
        return NONE
    return "" if path.exists() and digest_of(path) == made.text else NEWER


def record(page: str) -> str:
    """What results.toml says of a page whose numbers were made at the present commit."""
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    return f'["{page}"]\ncommit = "{commit}"\ntext = "{digest_of(path_of(page))}"'


if __name__ == "__main__":
    print(
        record(arguments_of(__doc__, "page", page={"help": "of docs/, or a folder of tables as results/guidance"}).page)
    )
