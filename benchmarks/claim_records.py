"""Records of the ledger of claims (`benchmarks/claims`): sources, claims, answers, commands."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from asked import MORE, Ask, answered, deciding, study
from harness import line
from result_pages import files_of, path_of

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "benchmarks" / "claims"
SOURCES = ["relevance_propagation", "attribution_methods", "coda", "bcos", "guidance", "distillation", "temperature"]
SOURCES += ["probing", "opti_cam", "ca_stream", "readable_gradients"]
COHORTS = {
    "patients": "people of OASIS-1",
    "copies": "copies of brains with planted loss",
    "demo": "made-up people",
    "scenes": "made-up volumes",
    "identity": "nobody, proven by a test",
}
FOLDERS = ("INPUT", "YOUNGER", "ADNI", "RUN", "BACKBONE", "OUT")
"""Words of commands that whoever runs one names a folder for."""
CANNOT = "cannot be asked"
VERDICTS = ("holds", "does not", "open", CANNOT)
STALE = "stale"
COVERAGE = RECORDS / "coverage.tsv"
"""Of intervals by simulation, written by `tests/evaluation/interval_coverage.py`."""
BOUND = 24
"""Hours on two cores that all studies may take together."""


@dataclass(frozen=True)
class Answer:
    """What was found here about a claim: numbers that a page holds, or a test that proves it."""

    cohort: str  # a key of `COHORTS`
    settings: str  # whether they are the source's, and what differs
    verdict: str = ""  # "holds", "does not" or "open"; by rule where numbers are stored
    who: str = ""  # people and networks
    found: str = ""  # numbers with their intervals
    seeds: int = 0  # from which networks were trained; 0 where nothing was trained
    command: str = ""  # a key of commands.toml; empty where a test is the command
    needs: str = ""  # what would close an open row
    page: tuple[str, ...] = ()  # pages of docs/ and folders of tables, which hold every quotation
    quotes: tuple[str, ...] = ()
    shown: str = ""  # of `found`, what a page shows; "" for its first difference, or for the ask that decides
    test: str = ""  # file under tests/ and function
    numbers: str = ""  # a study in `benchmarks/claims/numbers`, which answers the asks
    asks: tuple[Ask, ...] = ()
    p: float = float("nan")  # of the verdict, if it is by rule

    @classmethod
    def of(cls, record: dict[str, Any]) -> Answer:
        """An answer of a record; where numbers are stored, what was found and the verdict are theirs."""
        asks = tuple(Ask(**{**one, "ends": tuple(one.get("ends", ()))}) for one in record.get("asks", ()))
        page = record.get("page", ())
        pages = (page,) if isinstance(page, str) else tuple(page)
        answer = cls(**{**record, "page": pages, "quotes": tuple(record.get("quotes", ())), "asks": asks})
        if not answer.numbers:
            return replace(answer, shown=answer.shown or first_difference(answer.found))
        found, verdict, needs, p = answered(answer.numbers, asks)
        needs = answer.needs if needs == MORE and answer.needs else needs
        seeds = len(study(answer.numbers).numbers.seeds)
        shown = answer.shown or deciding(answer.numbers, asks)
        return replace(answer, found=found, shown=shown, verdict=verdict, needs=needs, p=p, seeds=seeds)

    @property
    def stands(self) -> bool:
        """Whether the pages still hold what is quoted."""
        text = " ".join(map(page_text, self.page))
        return not self.page or all(flat(one) in text for one in self.quotes)

    @property
    def judged(self) -> bool:
        """Whether code gives the verdict, from stored numbers."""
        return any(ask.says for ask in self.asks)

    @property
    def shown_verdict(self) -> str:
        return self.verdict if self.stands else STALE


@dataclass(frozen=True)
class Claim:
    """One claim of a source; its verdict is that of the first answer, and open without one.

    `cannot` says why it cannot be asked of the cohorts here, whatever is built.
    """

    id: str
    where: str
    says: str
    there: str
    here: tuple[Answer, ...] = ()
    command: str = ""
    needs: str = ""
    cannot: str = ""

    @property
    def asked(self) -> bool:
        """Whether the first answer is of somebody, or of a test."""
        return bool(self.here and self.here[0].cohort)

    @property
    def verdict(self) -> str:
        shown = next(self.rows())[1].shown_verdict
        return "open" if shown == STALE else shown

    def rows(self) -> Iterator[tuple[str, Answer]]:
        """Answers under the names A2, A2b, A2c; one that says nothing where there is none."""
        verdict, why = (CANNOT, self.cannot) if self.cannot else ("open", self.needs)
        answers = self.here or (Answer("", "", verdict, command=self.command, needs=why),)
        for number, answer in enumerate(answers):
            yield self.id + ("" if not number else "abcdefgh"[number]), answer


@dataclass(frozen=True)
class Headline:
    """A claim of the first page: where its difference stands in what was found, and how large the source's is."""

    claim: str
    says: str
    after: str  # words of `Answer.found` before the difference
    scale: float  # to points out of 100; below 0 where less is what the source says
    chance: float  # points that are taken off
    there: tuple[float, ...]  # points in the source; of networks or methods that differ, from the smallest
    of: Answer

    @property
    def difference(self) -> Difference:
        """In points, above 0 where it is as the source says."""
        found = next(differences(self.of.found[self.of.found.index(self.after) + len(self.after) :]))
        mean, low, high, *seeds = (self.scale * one - self.chance for one in (*found[:3], *found.seeds))
        return Difference(mean, min(low, high), max(low, high), tuple(seeds))

    @property
    def points(self) -> str:
        found = self.difference
        return f"{found.mean:+.1f} ({found.low:+.1f} to {found.high:+.1f})".replace("-", "−")

    @property
    def in_source(self) -> str:
        return " to ".join(f"{value:+.3g}" for value in self.there)

    @property
    def size(self) -> str:
        """The effect here over the smallest in the source."""
        return f"{self.difference.mean / self.there[0]:.2g}".replace("-", "−") if self.there else "–"


class Difference(NamedTuple):
    mean: float
    low: float
    high: float
    seeds: tuple[float, ...] = ()


_NUMBER = r"([+−-]?\d*\.?\d+)"
_DIFFERENCE = re.compile(
    rf"{_NUMBER} \({_NUMBER} to {_NUMBER}\)(?:, by seed {_NUMBER}, {_NUMBER},? (?:and )?{_NUMBER})?"
)


def differences(text: str) -> Iterator[Difference]:
    """Differences of a text with their intervals over people, and of three seeds where it says them."""
    for found in _DIFFERENCE.finditer(text):
        mean, low, high, *seeds = (float(one.replace("−", "-")) for one in found.groups() if one)
        yield Difference(mean, low, high, tuple(seeds))


def first_difference(text: str) -> str:
    """A text up to the end of its first difference; without one, up to its first semicolon.

    >>> first_difference("less gradient −3.7 (−5.5 to −1.4), by seed −3.9, −.5, −5.8; less IxG 1 (0 to 2)")
    'less gradient −3.7 (−5.5 to −1.4), by seed −3.9, −.5, −5.8'
    """
    found = _DIFFERENCE.search(text)
    return text[: found.end()] if found else text.partition(";")[0]


@dataclass(frozen=True)
class Source:
    name: str
    title: str
    papers: str
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Command:
    """Lines that make rows again, the settings that they call CONFIG, and how long that takes."""

    lines: tuple[str, ...]
    config: str = ""
    minutes: float | None = None  # of one core (two cores for a minute are two)
    said: str = ""  # how a page says it
    said_in: str = ""  # the file that holds this quotation
    how: str = ""  # it was estimated, where no page says it
    config_file: str = ""  # in `benchmarks/claims`: settings that several commands share; `config` holds them as well

    @property
    def folders(self) -> tuple[str, ...]:
        """Those of `FOLDERS` that it names."""
        words = set(re.findall(r"\w+", " ".join((*self.lines, self.config))))
        return tuple(name for name in FOLDERS if name in words)

    def filled(self, folders: Mapping[str, str], config: Path) -> tuple[list[str], ...]:
        """Arguments of each line, with folders in place of their names; settings are written to ``config``."""
        config.write_text(_named(self.config, folders), encoding="utf-8")
        every = {**folders, "CONFIG": str(config)}
        return tuple([_named(word, every) for word in shlex.split(line)] for line in self.lines)


def _named(text: str, folders: Mapping[str, str]) -> str:
    return re.sub(r"\b[A-Z]+\b", lambda found: folders.get(found[0], found[0]), text)


def flat(text: str) -> str:
    """Text with single spaces: a quotation may run over the end of a line."""
    return " ".join(text.split())


@cache
def page_text(page: str) -> str:
    """A page of docs/, or a folder of tables; empty where there is none, so that its rows are stale.

    A row of a table is quoted as Markdown has it: ``| a | b |``.
    """
    path = path_of(page)
    return flat("\n".join(map(_with_rows, files_of(path) if path.exists() else ())))


def _with_rows(file: Path) -> str:
    text = file.read_text(encoding="utf-8")
    return "\n".join(line(*row.split("\t")) for row in text.splitlines()) if file.suffix == ".tsv" else text


def numbers(text: str) -> set[str]:
    """Numbers of a text, with their minus sign; 0.5 and .5 are one."""
    found = re.findall(r"(?<![\w.])[-−]?(?:\d[\d,]*)?\.?\d+(?:e-?\d+)?", text)
    return {re.sub(r"^(-?)0+(?=\.)", r"\1", one.replace("−", "-").replace(",", "")) for one in found}


@cache
def sources() -> tuple[Source, ...]:
    found = []
    for name in SOURCES:
        values = tomllib.loads((RECORDS / f"{name}.toml").read_text(encoding="utf-8"))
        claims = []
        for one in values["claim"]:
            answers = map(Answer.of, one.pop("here", []))
            claims.append(Claim(**one, here=tuple(answers)))
        found.append(Source(name, values["title"], values["papers"], tuple(claims)))
    return tuple(found)


@cache
def commands() -> dict[str, Command]:
    values = tomllib.loads((RECORDS / "commands.toml").read_text(encoding="utf-8"))
    return {name: _command(one) for name, one in values.items()}


def _command(one: dict[str, Any]) -> Command:
    shared = one.get("config_file")
    config = (RECORDS / shared).read_text(encoding="utf-8") if shared else one.get("config", "").lstrip()
    return Command(**{**one, "lines": tuple(one["lines"]), "config": config})


@cache
def headlines() -> tuple[Headline, ...]:
    answers = {claim.id: claim.here[0] for source in sources() for claim in source.claims if claim.here}
    found = []
    for row in (RECORDS / "headlines.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        claim, says, after, scale, chance, there = row.split("\t")
        numbers_there = tuple(map(float, there.split()))
        found.append(Headline(claim, says, after, float(scale), float(chance), numbers_there, answers[claim]))
    return tuple(found)


def command_of(answer: Answer) -> Command | None:
    """What makes a row again; None where no command does."""
    if answer.test:
        file, _, function = answer.test.partition("::")
        return Command((f"pytest -m '' tests/{file} -k {function}",))
    return commands()[answer.command] if answer.command else None


def hours(names: Sequence[str]) -> float:
    """On two cores, of commands whose time is known."""
    return sum(commands()[name].minutes or 0 for name in names) / 60 / 2
