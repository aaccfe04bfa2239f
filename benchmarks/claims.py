"""The ledger of claims: what the sources say about explanations, what was measured here, and whether it holds.

    python benchmarks/claims.py > docs/claims.md                 # the page, from the records in benchmarks/claims
    python benchmarks/claims.py list [WORD ...]                  # rows in which every word occurs
    python benchmarks/claims.py run A2 RUN=demo/run              # makes a row again; folders by their names
    python benchmarks/claims.py run A2 RUN=demo/run --record     # and keeps what it took in times.tsv

A record quotes the page that its numbers come from. A row whose quotation is no longer there is shown as stale and
counts as open; `tests/evaluation/test_claims.py` fails by the name of the claim. Numbers of a row that its quotations
do not hold are refused there as well. Of which commit and people a page is: `benchmarks/result_pages.py`.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import result_pages
from timed import timed

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "benchmarks" / "claims"
TIMES = RECORDS / "times.tsv"
SOURCES = (
    "relevance_propagation", "attribution_methods", "coda", "bcos", "guidance", "distillation", "temperature",
    "probing", "opti_cam", "ca_stream", "readable_gradients",
)  # fmt: skip
COHORTS = {
    "patients": "patients (OASIS-1)",
    "copies": "copies of patients' and others' brains with planted loss",
    "demo": "demo (made-up people)",
    "scenes": "made-up volumes",
    "identity": "nobody: proven by a test",
}
FOLDERS = ("INPUT", "YOUNGER", "ADNI", "RUN", "BACKBONE", "OUT")
"""Words of commands that whoever runs one names a folder for."""
CANNOT = "cannot be asked"
VERDICTS = ("holds", "does not", "open", CANNOT)
STALE = "stale"
BOUND = 24
"""Hours on two cores that all studies may take together."""


@dataclass(frozen=True)
class Answer:
    """What was found here about a claim: numbers that a page holds, or a test that proves it.

    Parameters
    ----------
    cohort : str
        A key of `COHORTS`.
    verdict : {"holds", "does not", "open"}
    who, settings, found : str
        People and networks; whether settings are the source's, and what differs; numbers with their intervals.
    seeds : int
        Seeds from which networks were trained; 0 where nothing was trained.
    command : str
        A key of commands.toml; empty where a test is the command.
    needs : str
        What would close an open row.
    page : str
        Of docs/, which holds every quotation.
    quotes : tuple of str
    test : str
        File under tests/ and function.
    """

    cohort: str
    verdict: str
    settings: str
    who: str = ""
    found: str = ""
    seeds: int = 0
    command: str = ""
    needs: str = ""
    page: str = ""
    quotes: tuple[str, ...] = ()
    test: str = ""

    @property
    def stands(self) -> bool:
        """Whether the page still holds what is quoted."""
        return not self.page or all(flat(one) in page_text(self.page) for one in self.quotes)

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
    def verdict(self) -> str:
        shown = next(self.rows())[1].shown_verdict
        return "open" if shown == STALE else shown

    def rows(self) -> Iterator[tuple[str, Answer]]:
        """Answers under the names A2, A2b, A2c; one that says nothing where there is none."""
        verdict, why = (CANNOT, self.cannot) if self.cannot else ("open", self.needs)
        answers = self.here or (Answer("", verdict, "", command=self.command, needs=why),)
        for number, answer in enumerate(answers):
            yield self.id + ("" if not number else "abcdefgh"[number]), answer


@dataclass(frozen=True)
class System:
    """Parts of the notes on a source (`notes`), and the command that reaches them; empty where none does."""

    notes: str
    systems: str
    what: str
    command: str
    how: str


@dataclass(frozen=True)
class Source:
    """Claims of one line of papers."""

    title: str
    papers: str
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Command:
    """Lines that make rows again, the settings that they call CONFIG, and how long that takes.

    Parameters
    ----------
    lines : tuple of str
    config : str
    minutes : float or None
        Of one core; two cores for a minute are two. None where no page says.
    said, said_in : str
        By whom: a quotation, and the file that holds it.
    """

    lines: tuple[str, ...]
    config: str = ""
    minutes: float | None = None
    said: str = ""
    said_in: str = ""

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


SAID, MEASURED, ESTIMATED = "said", "measured", "estimated"
COLUMNS = ("command", "minutes", "kind", "date", "commit", "machine", "how")


@dataclass(frozen=True)
class Time:
    """How long a command takes, in minutes of one core.

    Parameters
    ----------
    minutes : float
    kind : {"said", "measured", "estimated"}
        On a page, by ``run ID --record``, or from measured parts: nobody ran the whole command.
    how : str
        The file that says it, the commit and machine, or what the estimate is made of.
    """

    minutes: float
    kind: str
    how: str


@cache
def recorded() -> dict[str, Time]:
    """Times of times.tsv by command."""
    return {
        one["command"]: Time(float(one["minutes"]), one["kind"], one["how"] or f"{one['machine']}, `{one['commit']}`")
        for one in _rows_of_times()
    }


def _rows_of_times() -> list[dict[str, str]]:
    lines = TIMES.read_text(encoding="utf-8").splitlines()[1:] if TIMES.is_file() else []
    return [dict(zip(COLUMNS, line.split("\t"), strict=True)) for line in lines]


def record(command: str, minutes: float) -> None:
    """Write what a command took to times.tsv, in place of what is there."""
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    values = (command, f"{minutes:.1f}", MEASURED, datetime.date.today().isoformat(), commit, machine, "")
    rows = [one for one in _rows_of_times() if one["command"] != command] + [dict(zip(COLUMNS, values, strict=True))]
    lines = ["\t".join(one[name] for name in COLUMNS) for one in sorted(rows, key=lambda one: one["command"])]
    TIMES.write_text("\n".join(["\t".join(COLUMNS), *lines]) + "\n", encoding="utf-8")


def time_of(name: str) -> Time | None:
    """What a page says; else what was measured or estimated; None where neither is known."""
    one = commands()[name]
    return recorded().get(name) if one.minutes is None else Time(one.minutes, SAID, f"`{one.said_in}`")


def _named(text: str, folders: Mapping[str, str]) -> str:
    """Text with folders in place of their names."""
    return re.sub(r"\b[A-Z]+\b", lambda found: folders.get(found[0], found[0]), text)


def flat(text: str) -> str:
    """Text with single spaces: a quotation may run over the end of a line."""
    return " ".join(text.split())


@cache
def page_text(page: str) -> str:
    """A page of docs/; empty where there is none, so that its rows are stale."""
    path = ROOT / "docs" / page
    return flat(path.read_text(encoding="utf-8")) if path.is_file() else ""


def numbers(text: str) -> set[str]:
    """Numbers of a text, with their minus sign; 0.5 and .5 are one."""
    found = re.findall(r"(?<![\w.])[-−]?(?:\d[\d,]*)?\.?\d+(?:e-?\d+)?", text)
    return {re.sub(r"^(-?)0+(?=\.)", r"\1", one.replace("−", "-").replace(",", "")) for one in found}


@cache
def sources() -> tuple[Source, ...]:
    """All records, in the order of the page."""
    return tuple(_source(tomllib.loads((RECORDS / f"{name}.toml").read_text(encoding="utf-8"))) for name in SOURCES)


def _source(values: dict[str, Any]) -> Source:
    claims = []
    for one in values["claim"]:
        answers = [Answer(**{**a, "quotes": tuple(a.get("quotes", ()))}) for a in one.pop("here", [])]
        claims.append(Claim(**one, here=tuple(answers)))
    return Source(values["title"], values["papers"], tuple(claims))


@cache
def commands() -> dict[str, Command]:
    values = tomllib.loads((RECORDS / "commands.toml").read_text(encoding="utf-8"))
    usual = {name: {**one, "lines": tuple(one["lines"])} for name, one in values.items()}
    return {name: Command(**{**one, "config": one.get("config", "").lstrip()}) for name, one in usual.items()}


@cache
def systems() -> tuple[System, ...]:
    """A row per command that reaches parts of the sources."""
    lines = (RECORDS / "systems.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return tuple(System(*line.split("\t")) for line in lines)


def command_of(answer: Answer) -> Command | None:
    """What makes a row again; None where no command does."""
    if answer.test:
        file, _, function = answer.test.partition("::")
        return Command((f"pytest -m '' tests/{file} -k {function}",))
    return commands()[answer.command] if answer.command else None


def page() -> str:
    """docs/claims.md."""
    every = [claim for source in sources() for claim in source.claims]
    rows = [row for claim in every for row in claim.rows()]
    used = sorted({answer.command for _, answer in rows if answer.command})
    parts = [HEAD, _summary()]
    parts += [f"## {one.title}\n\n{one.papers}.\n\n{_table(one)}" for one in sources()]
    parts += [REACHED, _reached(), COMMANDS, *(_command(name) for name in used), f"## How long\n\n{_time(used)}"]
    parts += [f"## How many\n\n{_counts(every)}"]
    return "\n\n".join(part.strip() for part in parts) + "\n"


HEAD = """# Claims: what the papers say of explanations, and what holds here

Made by `python benchmarks/claims.py > docs/claims.md` from the records in `benchmarks/claims`; do not edit it by hand.

A row per claim and answer. **The source** is in our words, with its number and its place (*spec*, B.9, C1 and R1:
sections and numbers of our notes on the sources). **Here** is what a committed page holds: who was asked, by how many
seeds, whether settings were those of the source, and the difference with its 95 % interval over people in brackets.

- *holds*, *does not*: the interval, and every seed where there are several, lie on the side that the source says, or
  on the other; without an interval, every seed. Where the source says that two are alike, within a bound that the page
  states, or outside of it. An identity that a test proves holds.
- A mean over people counts each person once, however many seeds asked them, so it may lie beside those of the seeds.
- *open*: everything else, with what it needs. A row that no page answers is open.
- The verdict of a claim is that of its first row: the source's own measure where it was asked, then patients before
  made-up people.
- A made-up cohort, a toy or a test says nothing of patients, and two classes of small volumes are not ImageNet: "does
  not" means *not here*.
- *cannot be asked*: of no cohort here, for the reason given.
- A test compares every number with its page. A row whose quotation is no longer there is *stale*, and open.
- Behind a page is the commit at which its numbers were made. If its text, or the table of its participants, is no
  longer the one that was recorded then (`benchmarks/claims/results.toml`), that is said there."""

REACHED = """## Which command reaches which system

Parts S1 to S40 of our notes on the sources: *attribution* (chapters 3, 4, 7, 8, 9), *inherent* (CoDA, B-cos),
*probing* (how to probe, Opti-CAM, CA-Stream, readable gradients). What of a part a command does not reach is in the
last column; [tests of the inherent networks](theory/inherent.md#what-the-tests-check)."""

COMMANDS = """## Commands

`python benchmarks/claims.py run ID NAME=FOLDER …` makes a row again and says how long it took: words in capitals are
folders, and CONFIG is a file with the settings that follow. INPUT is `../shared/data/oasis1/older`, YOUNGER
`../shared/data/oasis1/younger`, RUN a finished run (of the demo: `demo/run`). A command of an open row asks it with one
setting; what else to set is in the row. An interrupted command continues where it was."""


def _table(source: Source) -> str:
    lines = ["| | the source | here | difference | verdict | made by |", "|---|---|---|---|---|---|"]
    for claim in source.claims:
        for number, (name, answer) in enumerate(claim.rows()):
            said = f"{claim.says} *{claim.there}* ({claim.where})" if not number else ""
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in _cells(name, said, answer)) + " |")
    return "\n".join(lines)


def _cells(name: str, said: str, answer: Answer) -> tuple[str, ...]:
    if not answer.cohort:
        here = "not asked"
    else:
        seeds = f"{answer.seeds} seed{'s' * (answer.seeds > 1)}" if answer.seeds else ""
        who = ", ".join(part for part in (COHORTS[answer.cohort], answer.who, seeds) if part)
        here = f"{who}. Settings: {answer.settings}"
    verdict = f"**{answer.shown_verdict}**" + (" (identity)" if answer.cohort == "identity" else "")
    if answer.needs:
        plain = answer.verdict == CANNOT or answer.needs.startswith("no command")
        verdict += f"; {'' if plain else 'needs '}{answer.needs}"
    made = [f"`{answer.command}`"] if answer.command else []
    made += [f"`{answer.test}`"] if answer.test else []
    made += [f"[{answer.page}]({answer.page}) {result_pages.shown(answer.page)}"] if answer.page else []
    nothing = "–" if answer.verdict == CANNOT else "no command"
    return (name, said, here, answer.found or "–", verdict, ", ".join(made) or nothing)


def _reached() -> str:
    lines = ["| notes | parts | | command | settings, and what is not reached |", "|---|---|---|---|---|"]
    for one in systems():
        command = f"`{one.command}`" if one.command else "**none**"
        lines.append(f"| {one.notes} | {one.systems} | {one.what} | {command} | {one.how} |")
    return "\n".join(lines)


def _command(name: str) -> str:
    one, time = commands()[name], time_of(name)
    long = f" ({time.minutes:g} minutes of a core, {time.kind})" if time else ""
    text = f"**`{name}`**{long}\n\n```bash\n" + "\n".join(one.lines) + "\n```"
    return text + (f"\n\n```toml\n{one.config.strip()}\n```" if one.config else "")


def hours(names: Sequence[str]) -> float:
    """Hours on two cores of the commands whose time is known."""
    return sum(one.minutes for one in map(time_of, names) if one) / 60 / 2


def _time(names: Sequence[str]) -> str:
    """Time of each study, longest first, and of all together."""
    known = {name: one for name in names if (one := time_of(name))}
    kinds = [one.kind for one in known.values()]
    unknown = ", ".join(f"`{name}`" for name in names if name not in known)
    lines = [
        "Minutes of one core (two cores for a minute are two), without the runs that a command reads, and without what",
        "several share (the networks of `benchmarks/patients.py`). *Said*: by the file beside it. *Measured*: by",
        "`python benchmarks/claims.py run ID … --record`; a command that continues an interrupted one is measured from",
        "there. *Estimated*: from measured parts, as said beside it; nobody has timed the whole.", "",
        f"Known for {len(known)} of {len(names)} commands ({kinds.count(SAID)} said, {kinds.count(MEASURED)} measured, "
        f"{kinds.count(ESTIMATED)} estimated){f'; not for {unknown}' if unknown else ''}. **Together",
        f"{hours(names):.1f} hours on two cores**; all studies may take {BOUND}.", "",
        "| command | minutes of a core | | by |", "|---|---:|---|---|",
    ]  # fmt: skip
    order = sorted(known.items(), key=lambda item: -item[1].minutes)
    return "\n".join(lines + [f"| `{name}` | {one.minutes:g} | {one.kind} | {one.how} |" for name, one in order])


def _summary() -> str:
    return _by_verdict("source", {one.title: one.claims for one in sources()})


def _by_verdict(what: str, shown: Mapping[str, Sequence[Claim]]) -> str:
    """A row per name: how many claims, and how many of each verdict."""
    lines = [f"| {what} | claims | hold | do not | open | cannot be asked |", "|---|---:|---:|---:|---:|---:|"]
    for name, claims in shown.items():
        found = [claim.verdict for claim in claims]
        lines.append(f"| {name} | {len(found)} | " + " | ".join(str(found.count(v)) for v in VERDICTS) + " |")
    return "\n".join(lines)


def _counts(every: Sequence[Claim]) -> str:
    """Claims by verdict, by whom they were asked of, and by seeds."""
    shown = {
        "all claims": every,
        "identities": [one for one in every if _asked(one, "identity") and len(one.here) == 1],
        "measured": [one for one in every if one.here and not all(a.cohort == "identity" for a in one.here)],
        "asked of patients": [one for one in every if _asked(one, "patients")],
        "asked of copies of real brains": [one for one in every if _asked(one, "copies")],
        "measured with three seeds or more": [one for one in every if any(a.seeds >= 3 for a in one.here)],
        "asked of patients with three seeds or more": [
            one for one in every if any(a.seeds >= 3 and a.cohort == "patients" for a in one.here)
        ],
        "reached by no command": [
            one for one in every if not one.cannot and all(command_of(a) is None for _, a in one.rows())
        ],
    }
    return _by_verdict("", shown)


def _asked(claim: Claim, cohort: str) -> bool:
    return any(answer.cohort == cohort for answer in claim.here)


def listed(words: Sequence[str]) -> Iterator[str]:
    """A line per row in which all words occur: its name, verdict, command and claim."""
    for source in sources():
        for claim in source.claims:
            for name, answer in claim.rows():
                made = answer.command or answer.test or "no command"
                line = f"{name}\t{answer.shown_verdict}\t{made}\t{claim.says}"
                if all(word.casefold() in f"{line} {answer.cohort} {source.title}".casefold() for word in words):
                    yield line


def run(row: str, given: Sequence[str], keep: bool = False) -> int:
    """Run the command of a row and say how long it took; the exit code of its first line that fails, else 0.

    `keep`: the time is recorded.
    """
    answers = {name: answer for source in sources() for claim in source.claims for name, answer in claim.rows()}
    if row not in answers:
        raise SystemExit(f"claims: no row {row}; python benchmarks/claims.py list names them.")
    command = command_of(answers[row])
    if command is None:
        raise SystemExit(f"claims: {row} has no command: {answers[row].needs}.")
    folders = {name: str(Path(to).resolve()) for name, _, to in (one.partition("=") for one in given) if to}
    if set(folders) != set(command.folders):
        wanted = " ".join(f"{name}=FOLDER" for name in command.folders) or "nothing"
        raise SystemExit(f"claims: {row} takes {wanted} after its name.")
    if keep and not answers[row].command:
        raise SystemExit(f"claims: {row} is made by a test, whose time is not recorded.")
    spent = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        for words in command.filled(folders, Path(scratch) / "config.toml"):
            print(shlex.join(words), flush=True)
            code, seconds = timed([*PROGRAMS[words[0]], *words[1:]], ROOT)
            spent += seconds / 60
            if code:
                return code
    print(f"{spent:.1f} minutes of a core")
    if keep:
        record(answers[row].command, spent)
    return 0


PROGRAMS = {
    "python": [sys.executable],
    "pytest": [sys.executable, "-m", "pytest"],
    "heatlas": [sys.executable, "workflows/adni.py"],
}
"""Programs of commands, by this Python and from the repository."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step")
    steps.add_parser("list", help="rows in which every word occurs").add_argument("words", nargs="*")
    making = steps.add_parser("run", help="make a row again")
    making.add_argument("row")
    making.add_argument("folders", nargs="*", metavar="NAME=FOLDER")
    making.add_argument("--record", action="store_true", help="write what it took to benchmarks/claims/times.tsv")
    arguments = parser.parse_args()
    if arguments.step == "list":
        print("\n".join(listed(arguments.words)))
    elif arguments.step == "run":
        return run(arguments.row, arguments.folders, arguments.record)
    else:
        print(page(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
