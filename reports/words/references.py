"""Works that the methods text cites, by key, and how they are written: as a line, and as BibTeX."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CitedWork:
    """One work."""

    key: str  # in citations and in BibTeX
    authors: str  # ``Family IN, Family IN``; may end with ``et al.``
    year: int
    title: str
    venue: str
    volume: str  # empty where there is none
    number: str
    pages: str
    identifier: str  # DOI, or an address

    @property
    def link(self) -> str:
        """Permanent address."""
        return self.identifier if self.identifier.startswith("http") else f"https://doi.org/{self.identifier}"

    @property
    def text(self) -> str:
        """The work as a line of a list of references."""
        issue = self.volume + (f"({self.number})" if self.number else "")
        place = ":".join(filter(None, (issue, self.pages)))
        authors = self.authors.removesuffix(".")
        dot = "." if self.authors.endswith(".") else ""
        return f"{authors}{dot} ({self.year}). {self.title}. {' '.join(filter(None, (self.venue, place)))}."

    @property
    def bibtex(self) -> str:
        """The work as a BibTeX entry.

        Examples
        --------
        >>> print(REFERENCES["adam"].bibtex)
        @inproceedings{adam,
          author = {Kingma, D. P. and Ba, J.},
          title = {{Adam: a method for stochastic optimization}},
          booktitle = {ICLR},
          year = {2015},
          url = {https://arxiv.org/abs/1412.6980}
        }
        """
        article = bool(self.volume)
        identifier = ("url", self.link) if self.identifier.startswith("http") else ("doi", self.identifier)
        fields = [
            ("author", " and ".join(_name(name) for name in self.authors.split(", "))),
            ("title", f"{{{self.title}}}"),
            ("journal" if article else "booktitle", self.venue),
            ("year", str(self.year)),
            ("volume", self.volume),
            ("number", self.number),
            ("pages", self.pages.replace("-", "--")),
            identifier,
        ]
        lines = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields if value)
        return f"@{'article' if article else 'inproceedings'}{{{self.key},\n{lines}\n}}"


def _name(name: str) -> str:
    """An author as BibTeX reads names: family, initials.

    Examples
    --------
    >>> _name("Müller K-R"), _name("Babington Smith B"), _name("et al.")
    ('Müller, K.-R.', 'Babington Smith, B.', 'others')
    """
    if name == "et al.":
        return "others"
    family, _, initials = name.rpartition(" ")
    letters = [f"{letter}." for letter in initials if letter != "-"]
    return f"{family}, {'-'.join(letters) if '-' in initials else ' '.join(letters)}"


def _read() -> dict[str, CitedWork]:
    with (Path(__file__).parent / "references.tsv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    known = [{name: "" if value == "n/a" else value for name, value in row.items()} for row in rows]
    return {row["key"]: CitedWork(**{**row, "year": int(row["year"])}) for row in known}  # type: ignore[arg-type]


REFERENCES: Mapping[str, CitedWork] = _read()  # those of ``references.tsv`` by key; one line there adds a work
