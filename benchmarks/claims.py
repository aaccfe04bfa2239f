"""The ledger of claims: what the sources say about explanations, what was measured here, and whether it holds.

    python benchmarks/claims.py pages                            # docs/claims.md, docs/claims/ and the picture
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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev

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
    Difference,
    Headline,
    Source,
    command_of,
    commands,
    differences,
    headlines,
    hours,
    record,
    sources,
    systems,
    time_of,
)
from timed import timed

from heatlas.reports.vector.charts import IntervalRow, draw_intervals

RULES = """# Claims: rules, commands, and what nobody asked

Made by `python benchmarks/claims.py pages` from the records in `benchmarks/claims`; do not edit it by hand.

## Rules

- *holds*, *does not*: the interval, and every seed where there are several, lie on the side that the source says, or
  on the other; without an interval, every seed. Where the source says that two are alike, within a bound that the page
  states, or outside of it. An identity that a test proves holds.
- A mean over people counts each person once, however many seeds asked them, so it can lie outside the range of the
  seeds. Numbers in brackets are 95 % intervals over people.
- *open*: everything else, with what it needs. A row is open if no page answers it, or if its measure cannot tell: the
  number lies at its floor or ceiling, or a network that it compares answers no better than a coin. It is also open
  where a reader showed that the measure or the comparison cannot tell, although a rule was fixed beforehand; the row
  says what that rule would give.
- The verdict of a claim is that of its first row: the source's own measure where it was asked, then patients before
  made-up people. Where the network or the place that a claim names was not asked, the claim is open.
- A made-up cohort, a toy or a test says nothing of patients, and two classes of small volumes are not ImageNet: "does
  not" means *not here*.
- *cannot be asked*: of no cohort here, for the reason given.
- A test compares every number with its page. A row whose quotation is no longer there is *stale*, and open."""

QUOTED = """## Pages that are quoted

The commit at which the numbers of a page were made. If its text, or the table of its participants, is no longer the
one that was recorded then (`benchmarks/claims/results.toml`), that is said here."""

REACHED = """## Which command reaches which system

Parts S1 to S40 of our notes on the sources: *attribution* (chapters 3, 4, 7, 8, 9), *inherent* (CoDA, B-cos),
*probing* (how to probe, Opti-CAM, CA-Stream, readable gradients). What of a part a command does not reach is in the
last column; [tests of the inherent networks](../benchmarks/inherent_tests.md)."""

COMMANDS = """## Commands

`python benchmarks/claims.py run ID NAME=FOLDER …` makes a row again and says how long it took: words in capitals are
folders, and CONFIG is a file with the settings that follow, or the file that is named. INPUT is
`../shared/data/oasis1/older`, YOUNGER `../shared/data/oasis1/younger`, RUN a finished run (of the demo: `demo/run`). A
command of an open row asks it with one setting; what else to set is in the row. An interrupted command continues where
it was."""

FIRST = """# Claims: what papers say of explanations, and what holds in brain MRI

Eleven chapters and papers make the claims below about maps that explain networks. Each was asked here where it could
be: of people with and without dementia (OASIS-1) or copies of their brains, or it was proven by a test. Volumes are
small and classes are two, so *does not* means: not here. [Rules, commands, and what nobody
asked](claims/rules.md). Made by `python benchmarks/claims.py pages`; do not edit it by hand."""

ORDER = """By the seed that says least, in points out of 100 with the 95 % interval over people:"""

PICTURE = """![Differences of the headline claims with their intervals](images/claims.svg)

Points out of 100; right of 0 is as the source says. Square and bar: mean and 95 % interval over people, with the
networks held. Circles: the three seeds. *Size* is the effect here over the smallest in the source: far from 1, the
claim holds in its sign alone."""

T_OF_THREE = 4.303
"""97.5 % of Student's t with two degrees of freedom."""

PROGRAMS = {
    "python": [sys.executable],
    "pytest": [sys.executable, "-m", "pytest"],
    "heatlas": [sys.executable, "workflows/adni.py"],
}
"""Programs of commands, by this Python and from the repository."""


def pages() -> dict[str, str]:
    """Text by file of docs/: what holds, a page a source, rules and commands, and the picture."""
    found = {"claims.md": _first(), "claims/rules.md": _rules(), "images/claims.svg": _picture()}
    found |= {f"claims/{one.name}.md": _of_source(one) for one in sources()}
    return {name: text.strip() + "\n" for name, text in found.items()}


def _first() -> str:
    by_effect = sorted(headlines(), key=_least)
    best = [one for one in reversed(by_effect) if one.of.shown_verdict == "holds"][:5]
    worst = [one for one in by_effect if one.of.shown_verdict == "does not"][:5]
    parts = [FIRST, _summary(), f"## What holds best\n\n{ORDER}", _list(best)]
    parts += ["## What fails most clearly", _list(worst), "## How large", PICTURE, _headline_table(), "## How sure"]
    return "\n\n".join([*parts, _sure()])


def _least(one: Headline) -> float:
    """The seed nearest to 0, or on the other side of it, of a difference of either sign."""
    found = one.difference
    ends = found.seeds or (found.low, found.high)
    return min(ends) if found.mean > 0 else max(ends)


def _list(some: Sequence[Headline]) -> str:
    return "\n".join(f"1. {one.says}: {_points(one.difference)}" for one in some)


def _points(found: Difference) -> str:
    return f"{found.mean:+.1f} ({found.low:+.1f} to {found.high:+.1f})".replace("-", "−")


def _there(one: Headline) -> str:
    return " to ".join(f"{value:+.3g}" for value in one.there)


def _headline_table() -> str:
    lines = ["| claim | here | source | size | verdict |", "|---|---|---|---:|---|"]
    for one in headlines():
        size = f"{one.difference.mean / one.there[0]:.2g}".replace("-", "−") if one.there else "–"
        says, there = f"{one.says} ({one.claim})", _there(one) or "no number"
        cells = says, _points(one.difference), there, size, f"**{one.of.shown_verdict}**"
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _sure() -> str:
    """How often networks move a difference beyond the interval over people."""
    answers = [claim.here[0] for one in sources() for claim in one.claims if claim.verdict in ("holds", "does not")]
    every = [one for answer in answers for one in differences(answer.found) if one.seeds]
    outside = sum(any(not one.low <= seed <= one.high for seed in one.seeds) for one in every)
    zero = sum(abs(mean(one.seeds)) <= T_OF_THREE * stdev(one.seeds) / 3**0.5 for one in every)
    return f"""Trust signs more than sizes. Intervals draw people and hold the networks. Of {len(every)} differences of
three seeds behind verdicts, {outside} have a seed outside of their interval, and an interval over the seeds instead
(Student's t) holds 0 in {zero}. Nothing is corrected for the number of claims. Some bounds were chosen after a look at
the numbers, which [their page](benchmarks/patients_claims.md) says. Scores of people are not stored, so a verdict on
patients cannot be recomputed without training again. Several networks are little better than a coin, those of CoDA
most of all."""


def _picture() -> str:
    rows = []
    for one in sorted(headlines(), key=lambda one: -one.difference.mean):
        found, there = one.difference, f"source {_there(one)}" if one.there else ""
        rows.append(IntervalRow(one.says, there, found.mean, found.low, found.high, points=found.seeds))
    first, end, _ = draw_intervals(rows, "points, above 0 as the source says", "Headline claims", 0).partition("</svg>")
    alone = '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" style="background:#fff" '
    return f"{first}{end}".replace("<svg ", alone, 1)


def _of_source(source: Source) -> str:
    rows = [(name, answer, claim) for claim in source.claims if claim.here for name, answer in claim.rows()]
    people = list(dict.fromkeys(answer.who for _, answer, _ in rows if answer.who))
    settings = list(dict.fromkeys(answer.settings for _, answer, _ in rows if answer.settings))

    def table(some: Sequence[tuple[str, Answer, Claim]]) -> str:
        lines = ["| | verdict | the source | here | asked of | made by |", "|---|---|---|---|---|---|"]
        for name, answer, claim in some:
            said = f"{claim.says} *{claim.there}* ({claim.where})" if name == claim.id else ""
            seeds = f", {answer.seeds} seed{'s' * (answer.seeds > 1)}" if answer.seeds else ""
            who = COHORTS.get(answer.cohort, "not asked") + seeds
            who += f"; [people {people.index(answer.who) + 1}](#people)" if answer.who else ""
            who += f", [settings {settings.index(answer.settings) + 1}](#settings)" if answer.settings else ""
            lines.append(_line(name, _verdict(answer), said, answer.found or "–", who, _made_by(answer)))
        return "\n".join(lines)

    first = [row for row in rows if row[0] == row[2].id]
    others = [row for row in rows if row not in first]
    parts = [f"# {source.title}", f"{source.papers}. [All claims](../claims.md), [rules](rules.md)."]
    parts += [_by_verdict("", {"claims": source.claims}), table(first)]
    parts += ["## Asked otherwise", table(others)] if others else []
    for title, every in (("People", people), ("Settings", settings)):
        parts += [f"## {title}", "\n".join(f"{number}. {one}" for number, one in enumerate(every, 1))] if every else []
    return "\n\n".join(parts)


def _line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _verdict(answer: Answer) -> str:
    found = f"**{answer.shown_verdict}**" + (" (identity)" if answer.cohort == "identity" else "")
    if answer.needs:
        plain = answer.verdict == CANNOT or answer.needs.startswith("no command")
        found += f"; {'' if plain else 'needs '}{answer.needs}"
    return found


def _made_by(answer: Answer) -> str:
    by = [f"`{answer.command}`"] if answer.command else []
    by += [f"`{answer.test}`"] if answer.test else []
    by += [f"[{answer.page.removeprefix('benchmarks/')}](../{answer.page})"] if answer.page else []
    return ", ".join(by) or ("–" if answer.verdict == CANNOT else "no command")


def _rules() -> str:
    every = [claim for source in sources() for claim in source.claims]
    used = sorted({answer.command for claim in every for _, answer in claim.rows() if answer.command})
    not_asked = ["| | verdict | the source | made by |", "|---|---|---|---|"]
    for claim in every:
        if not claim.here:
            name, answer = next(claim.rows())
            said = f"{claim.says} *{claim.there}* ({claim.where})"
            not_asked.append(_line(name, _verdict(answer), said, _made_by(answer)))
    quoted = sorted({answer.page for claim in every for answer in claim.here if answer.page})
    states = "\n".join(f"- [{one}](../{one}) {result_pages.state_of(one)}" for one in quoted)
    parts = [RULES, "## Not asked", "\n".join(not_asked), QUOTED, states, REACHED, _reached(), COMMANDS]
    parts += [*(_command(name) for name in used), f"## How long\n\n{_time(used)}", f"## How many\n\n{_counts(every)}"]
    return "\n\n".join(part.strip() for part in parts)


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
    titles = (
        "source",
        "claims",
        "proven by a test",
        "people: hold",
        "people: do not",
        "made-up: hold",
        "open",
        "not asked",
    )
    lines = [_line(*titles), "|---" + "|---:" * 7 + "|"]
    rows = [(f"[{one.title}](claims/{one.name}.md)", one.claims) for one in sources()]
    every = [claim for _, claims in rows for claim in claims]
    for name, claims in [*rows, ("**all**", every)]:
        kinds = Counter((claim.here[0].cohort if claim.here else "", claim.verdict) for claim in claims)
        proven = kinds["identity", "holds"]
        hold, not_ = (kinds["patients", one] + kinds["copies", one] for one in ("holds", "does not"))
        made_up = kinds["demo", "holds"] + kinds["scenes", "holds"]
        asked_not = sum(not claim.here for claim in claims)
        rest = len(claims) - proven - hold - not_ - made_up - asked_not
        lines.append(_line(name, *map(str, (len(claims), proven, hold, not_, made_up, rest, asked_not))))
    return "\n".join(lines)


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
    steps = parser.add_subparsers(dest="step", required=True)
    steps.add_parser("pages", help="write the pages, from the records")
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
        for name, text in pages().items():
            (ROOT / "docs" / name).parent.mkdir(exist_ok=True)
            (ROOT / "docs" / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
