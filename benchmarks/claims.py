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
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import result_pages
from claim_records import (
    BOUND,
    CANNOT,
    COHORTS,
    ESTIMATED,
    MEASURED,
    ROOT,
    SAID,
    VERDICTS,
    Answer,
    Claim,
    Source,
    command_of,
    commands,
    hours,
    record,
    sources,
    systems,
    time_of,
)
from timed import timed

HEAD = """# Claims: what the papers say of explanations, and what holds here

Made by `python benchmarks/claims.py > docs/claims.md` from the records in `benchmarks/claims`; do not edit it by hand.

A row per claim and answer. **The source** is in our words, with its number and its place (*spec*, B.9, C1 and R1:
sections and numbers of our notes on the sources). **Here** is what a committed page holds: who was asked, by how many
seeds, whether settings were those of the source, and the difference with its 95 % interval over people in brackets.

- *holds*, *does not*: the interval, and every seed where there are several, lie on the side that the source says, or
  on the other; without an interval, every seed. Where the source says that two are alike, within a bound that the page
  states, or outside of it. An identity that a test proves holds.
- A mean over people counts each person once, however many seeds asked them, so it can lie outside the range of the
  seeds.
- *open*: everything else, with what it needs. A row is open if no page answers it, or if its measure cannot tell: the
  number lies at its floor or ceiling, or both networks answer no better than a coin. It is also open where a reader
  showed that the measure or the comparison cannot tell, although a rule was fixed beforehand; the row says what that
  rule would give.
- The verdict of a claim is that of its first row: the source's own measure where it was asked, then patients before
  made-up people. Where the network or the place that a claim names was not asked, that comes first and the claim is
  open.
- A made-up cohort, a toy or a test says nothing of patients, and two classes of small volumes are not ImageNet: "does
  not" means *not here*.
- *cannot be asked*: of no cohort here, for the reason given.
- A test compares every number with its page. A row whose quotation is no longer there is *stale*, and open.
- Behind a page is the commit at which its numbers were made. If its text, or the table of its participants, is no
  longer the one that was recorded then (`benchmarks/claims/results.toml`), that is said there."""

REACHED = """## Which command reaches which system

Parts S1 to S40 of our notes on the sources: *attribution* (chapters 3, 4, 7, 8, 9), *inherent* (CoDA, B-cos),
*probing* (how to probe, Opti-CAM, CA-Stream, readable gradients). What of a part a command does not reach is in the
last column; [tests of the inherent networks](benchmarks/inherent_tests.md)."""

COMMANDS = """## Commands

`python benchmarks/claims.py run ID NAME=FOLDER …` makes a row again and says how long it took: words in capitals are
folders, and CONFIG is a file with the settings that follow, or the file that is named. INPUT is
`../shared/data/oasis1/older`, YOUNGER `../shared/data/oasis1/younger`, RUN a finished run (of the demo: `demo/run`). A
command of an open row asks it with one setting; what else to set is in the row. An interrupted command continues where
it was."""
PROGRAMS = {
    "python": [sys.executable],
    "pytest": [sys.executable, "-m", "pytest"],
    "heatlas": [sys.executable, "workflows/adni.py"],
}
"""Programs of commands, by this Python and from the repository."""


def page() -> str:
    every = [claim for source in sources() for claim in source.claims]
    rows = [row for claim in every for row in claim.rows()]
    used = sorted({answer.command for _, answer in rows if answer.command})
    parts = [HEAD, _summary()]
    parts += [f"## {one.title}\n\n{one.papers}.\n\n{_table(one)}" for one in sources()]
    parts += [REACHED, _reached(), COMMANDS, *(_command(name) for name in used), f"## How long\n\n{_time(used)}"]
    parts += [f"## How many\n\n{_counts(every)}"]
    return "\n\n".join(part.strip() for part in parts) + "\n"


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
    by = [f"`{answer.command}`"] if answer.command else []
    by += [f"`{answer.test}`"] if answer.test else []
    by += [f"[{answer.page}]({answer.page}) {result_pages.state_of(answer.page)}"] if answer.page else []
    nothing = "–" if answer.verdict == CANNOT else "no command"
    return (name, said, here, answer.found or "–", verdict, ", ".join(by) or nothing)


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
    if one.config_file:
        return f"{text}\n\nCONFIG is `benchmarks/claims/{one.config_file}`."
    return text + (f"\n\n```toml\n{one.config.strip()}\n```" if one.config else "")


def _time(names: Sequence[str]) -> str:
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


def _by_verdict(what: str, groups: Mapping[str, Sequence[Claim]]) -> str:
    lines = [f"| {what} | claims | hold | do not | open | cannot be asked |", "|---|---:|---:|---:|---:|---:|"]
    for name, claims in groups.items():
        found = [claim.verdict for claim in claims]
        lines.append(f"| {name} | {len(found)} | " + " | ".join(str(found.count(v)) for v in VERDICTS) + " |")
    return "\n".join(lines)


def _counts(every: Sequence[Claim]) -> str:
    groups = {
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
    return _by_verdict("", groups)


def _asked(claim: Claim, cohort: str) -> bool:
    return any(answer.cohort == cohort for answer in claim.here)


def rows_with(words: Sequence[str]) -> Iterator[str]:
    """A line per row in which all words occur: its name, verdict, command and claim."""
    for source in sources():
        for claim in source.claims:
            for name, answer in claim.rows():
                by = answer.command or answer.test or "no command"
                line = f"{name}\t{answer.shown_verdict}\t{by}\t{claim.says}"
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
        print("\n".join(rows_with(arguments.words)))
    elif arguments.step == "run":
        return run(arguments.row, arguments.folders, arguments.record)
    else:
        print(page(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
