"""Of which commit and which people the pages are that claims quote, and whether they are so still.

    python benchmarks/result_pages.py record results/guidance oasis1/older    # what to put in results.toml

`benchmarks/claims/results.toml` has a record per page; the tables of a study (`benchmarks/claims/results`) are a page,
its folder. What changes afterwards is said among the rules of the claims: its text by a digest, so that no history of
the repository is needed, its people by a digest of the table of participants. Nothing of a person is in either.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from harness import ROOT, arguments_of

RECORDS = ROOT / "benchmarks" / "claims" / "results.toml"
TABLES = "results/"
"""How the name of a page begins that is a folder of tables in `benchmarks/claims`."""
DATA = Path(os.environ.get("HEATLAS_TEST_DATA", ROOT.parent / "shared" / "data"))
NEWER = "page newer than its record"
OTHER = "another cohort than now"
NONE = "page without a record"


@dataclass(frozen=True)
class PageRecord:
    """How the numbers of a page were made; all empty for a page without a record."""

    commit: str = ""  # at which they were made
    text: str = ""  # `digest_of` the page when it was recorded
    cohorts: Mapping[str, str] = field(default_factory=dict)
    """From folders below ../shared/data to the digest of their participants.tsv; made-up people are those of the
    commit."""

    def faults(self, page: str, now: Mapping[str, str]) -> Iterator[str]:
        """What has changed since: `NEWER`, `OTHER`, or that nothing is known (`NONE`).

        `page`: as `path_of` takes it; `now`: as `cohorts`, of the data as they are now.
        """
        path = path_of(page)
        if not self.commit:
            yield NONE
        elif not path.exists() or digest_of(path) != self.text:
            yield NEWER
        if any(now.get(name) != digest for name, digest in self.cohorts.items()):
            yield OTHER


def path_of(page: str) -> Path:
    """Where a page is: a file of docs/, or a folder with the tables of a study."""
    return ROOT / ("benchmarks/claims" if page.startswith(TABLES) else "docs") / page


def files_of(path: Path) -> list[Path]:
    """The files of a page, in the order of their names."""
    return sorted(path.iterdir()) if path.is_dir() else [path]


def digest_of(path: Path) -> str:
    """Of a file, or of the files of a folder one after the other."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in files_of(path))).hexdigest()[:12]


def people_of(folder: str) -> str:
    """Digest of the participants of a folder below ../shared/data."""
    return digest_of(DATA / folder / "participants.tsv")


@cache
def records() -> tuple[Mapping[str, PageRecord], Mapping[str, str]]:
    """A record by page, and the digests of the cohorts as they are now."""
    values = tomllib.loads(RECORDS.read_text(encoding="utf-8"))
    now = values.pop("cohorts")
    return {page: PageRecord(**one) for page, one in values.items()}, now


def faults_of(page: str) -> list[str]:
    """What has changed since a page was recorded."""
    pages, now = records()
    return list(pages.get(page, PageRecord()).faults(page, now))


def record(page: str, cohorts: list[str]) -> str:
    """What results.toml says of a page whose numbers were made at the present commit."""
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    lines = [f'["{page}"]', f'commit = "{commit}"', f'text = "{digest_of(path_of(page))}"']
    if cohorts:
        lines.append("cohorts = { " + ", ".join(f'"{one}" = "{people_of(one)}"' for one in cohorts) + " }")
    return "\n".join(lines)


def main() -> None:
    cohorts = {"nargs": "*", "help": "folders below ../shared/data whose people were asked"}
    step, page = {"choices": ["record"]}, {"help": "of docs/, or a folder of tables as results/guidance"}
    arguments = arguments_of(__doc__, "step page cohorts", step=step, page=page, cohorts=cohorts)
    print(record(arguments.page, arguments.cohorts))


if __name__ == "__main__":
    main()
