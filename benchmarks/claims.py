"""The ledger of claims: what the sources say about explanations, what was measured here, and whether it holds.

    python benchmarks/claims.py pages                            # docs/claims.md, docs/claims/ and the picture
    python benchmarks/claims.py list [WORD ...]                  # rows in which every word occurs
    python benchmarks/claims.py show A2 [ID ...]                 # all that was found for a claim, of whom, with what
    python benchmarks/claims.py run A2 RUN=demo/run              # makes a row again; folders by their names

A record quotes the page or the tables that its numbers come from. A row whose quotation is no longer there is shown as
stale and counts as open; `tests/evaluation/test_claims.py` fails by the name of the claim. Numbers of a row that its
quotations do not hold are refused there as well. Of which commit a page is: `benchmarks/result_pages.py`.
Pages show one row a claim, of its first answer; all answers are shown by `show`.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from math import isnan
from pathlib import Path

import asked
import claim_numbers
import result_pages
from asked import MORE
from claim_records import (
    BOUND,
    CANNOT,
    COHORTS,
    COVERAGE,
    RECORDS,
    ROOT,
    Answer,
    Claim,
    Headline,
    Source,
    command_of,
    commands,
    differences,
    headlines,
    hours,
    sources,
)
from harness import line
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from timed import timed

from heatlas.pipeline.evaluation.claims.rule import ALPHA, holm
from heatlas.reports.vector.charts import IntervalRow, draw_intervals

PROGRAMS = {
    "python": [sys.executable],
    "pytest": [sys.executable, "-m", "pytest"],
    "heatlas": [sys.executable, "workflows/adni.py"],
}
"""Programs of commands, by this Python and from the repository."""
SHOWN_AS = {"scenes": "volumes", "identity": "test"}
"""How pages name those of `COHORTS` that they do not call by their keys."""


def pages() -> dict[str, str]:
    """Text by file of docs/: what holds, a page a source, rules and commands, and the picture."""
    found = {"claims.md": _first(), "claims/rules.md": _rules(), "images/claims.svg": _picture()}
    found |= {f"claims/{one.name}.md": _of_source(one) for one in sources()}
    return {name: text.strip() + "\n" for name, text in found.items()}


def _first() -> str:
    by_effect = sorted(headlines(), key=lambda one: one.difference.mean)
    best = [one for one in reversed(by_effect) if one.of.shown_verdict == "holds"][:5]
    worst = [one for one in by_effect if one.of.shown_verdict == "does not"][:3]
    every = headlines()
    return _page(
        "claims",
        summary=_summary(),
        best=best,
        worst=worst,
        headlines=every,
        alone=_alone,
        after=_after_holm,
        **_how_sure(),
    )


def _how_sure() -> dict[str, object]:
    """How many verdicts on people are by rule; of the others, how often a seed lies outside of its interval."""
    decided = [claim for one in sources() for claim in one.claims if claim.verdict in ("holds", "does not")]
    answers = [claim.here[0] for claim in decided]
    every = [one for answer in answers if not answer.numbers for one in differences(answer.found) if one.seeds]
    corrected = sum(claim.here[0].judged and _after_holm()[claim.id] > ALPHA for claim in decided)
    outside = sum(any(not one.low <= seed <= one.high for seed in one.seeds) for one in every)
    firsts = [claim.here[0] for source in sources() for claim in source.claims if claim.here]
    stored, by_rule = (sum(one.judged for one in each) for each in (firsts, answers))
    alone = sum(one.cohort in ("patients", "copies") for one in answers) - by_rule
    found = {"stored": stored, "by_rule": by_rule, "differences": len(every), "outside": outside}
    return found | {"corrected": corrected, "alone_decided": alone}


@cache
def _after_holm() -> dict[str, float]:
    """p of each row that stored numbers judge, adjusted for the others of its source."""
    found: dict[str, float] = {}
    for source in sources():
        own = [(name, one.p) for claim in source.claims for name, one in claim.rows() if one.judged]
        found |= dict(zip([name for name, _ in own], holm([p for _, p in own]), strict=True))
    return found


def _alone(one: Headline) -> str:
    """A mark where the interval is of people alone."""
    return "" if one.of.judged else " †"


def _picture() -> str:
    rows = []
    for one in sorted(headlines(), key=lambda one: -one.difference.mean):
        found, there = one.difference, one.in_source and f"source {one.in_source}"
        rows.append(IntervalRow(one.says + _alone(one), there, found.mean, found.low, found.high, points=found.seeds))
    first, end, _ = draw_intervals(rows, "points, right of 0 as the source says", "Headline claims", 0).partition(
        "</svg>"
    )
    alone = '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" style="background:#fff" '
    return f"{first}{end}".replace("<svg ", alone, 1)


def _of_source(source: Source) -> str:
    asked_of = [claim for claim in source.claims if claim.asked]
    found = Counter(claim.verdict for claim in asked_of)
    return _page("source", source=source, claims=asked_of, found=found, others=len(source.claims) - len(asked_of))


def _page(name: str, **values: object) -> str:
    """A page by its template in `benchmarks/claims/pages`."""
    folder = FileSystemLoader(RECORDS / "pages")
    templates = Environment(loader=folder, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    templates.globals |= {"cells": _cells, "verdict_of": _verdict, "said_by": _said, "found_here": _found, "p_of": _p}
    templates.globals |= {"asked_of": lambda answer: SHOWN_AS.get(answer.cohort, answer.cohort)}
    return templates.get_template(f"{name}.md.j2").render(values).strip()


def _cells(*cells: str) -> str:
    return line(*(cell.replace("|", "\\|") for cell in cells))


def _said(claim: Claim) -> str:
    return f"{claim.says} *{claim.there}* ({claim.where})"


def _verdict(name: str, answer: Answer) -> str:
    if not answer.judged:
        return f"**{answer.shown_verdict}**"
    p = "by rule" if answer.verdict == "open" else f"p {_p(answer.p)}, Holm {_p(_after_holm()[name])}"
    return f"**{answer.shown_verdict}** ({p})"


def _found(answer: Answer) -> str:
    """What a page says was found, and what would close an open row."""
    return ". ".join(filter(None, (answer.shown, _needs(answer)))) or "–"


def _needs(answer: Answer) -> str:
    if answer.needs == MORE:
        return "The interval includes the bound"
    before = (
        "Cannot be asked: " if answer.verdict == CANNOT else "" if answer.needs.startswith("no command") else "Needs "
    )
    return before + answer.needs if answer.needs else ""


def _p(value: float) -> str:
    return "<.001" if value < 0.001 else f"{value:.3f}".lstrip("0")


def _made_by(answer: Answer) -> str:
    numbers = f"numbers {answer.numbers}" * bool(answer.numbers)
    return ", ".join(filter(None, (answer.command, answer.test, numbers, *answer.page))) or "no command"


def _rules() -> str:
    every = [claim for source in sources() for claim in source.claims]
    used = sorted({answer.command for claim in every for _, answer in claim.rows() if answer.command})
    quoted = sorted({page for claim in every for answer in claim.here for page in answer.page})
    simulated = [row.split("\t")[-2:] for row in COVERAGE.read_text(encoding="utf-8").splitlines()[1:]]
    return _page(
        "rules",
        not_asked=[(claim, _first_clause(_needs(next(claim.rows())[1]))) for claim in every if not claim.asked],
        quoted=quoted,
        changed=[f"{page} ({fault})" for page in quoted if (fault := result_pages.fault_of(page))],
        numbers=[claim_numbers.read(name) for name in claim_numbers.stored()],
        differ=_seeds_differ(),
        coverage=[f"{min(each)} to {max(each)}" for each in zip(*(map(float, row) for row in simulated), strict=True)],
        cohorts={SHOWN_AS.get(name, name): words for name, words in COHORTS.items()},
        time=_time(used),
    )


def _first_clause(text: str) -> str:
    return re.split(r"(?<!asked)[:;] ", text, maxsplit=1)[0]


def _seeds_differ() -> Sequence[bool]:
    """Of each number that decides a claim, whether its seeds differ by more than their networks do (p < .05)."""
    answers = [answer for source in sources() for claim in source.claims for answer in claim.here]
    asks = {(answer.numbers, ask.of) for answer in answers for ask in answer.asks if ask.says}
    ps = [asked.study(name).estimate(of).seeds_differ for name, of in sorted(asks)]
    return [p < 0.05 for p in ps if not isnan(p)]


def _time(names: Sequence[str]) -> str:
    """How long all commands take, and how much of that is estimated or not known."""
    every = {name: commands()[name] for name in names}
    unknown = ", ".join(f"`{name}`" for name, one in every.items() if one.minutes is None)
    known = [one for one in every.values() if one.minutes is not None]
    said = sum(bool(one.said) for one in known)
    return _page("time", names=names, known=known, unknown=unknown, said=said, hours=hours(names), bound=BOUND)


def _summary() -> Sequence[tuple[str, tuple[int, ...]]]:
    """Of each source and of all: claims, proven ones, what holds and does not of people, and the others."""
    rows = [(f"[{one.title}](claims/{one.name}.md)", one.claims) for one in sources()]
    every = tuple(claim for _, claims in rows for claim in claims)
    found = []
    for name, claims in [*rows, ("**all**", every)]:
        kinds = Counter((claim.here[0].cohort if claim.here else "", claim.verdict) for claim in claims)
        hold, not_ = (kinds["patients", one] + kinds["copies", one] for one in ("holds", "does not"))
        known = kinds["identity", "holds"], hold, not_, kinds["demo", "holds"] + kinds["scenes", "holds"]
        asked_not = sum(not claim.asked for claim in claims)
        found.append((name, (len(claims), *known, len(claims) - sum(known) - asked_not, asked_not)))
    return found


def rows_with(words: Sequence[str]) -> Iterator[str]:
    """A line per row in which all words occur: its name, verdict, command and claim."""
    for source in sources():
        for claim in source.claims:
            for name, answer in claim.rows():
                by = answer.command or answer.test or "no command"
                line = f"{name}\t{answer.shown_verdict}\t{by}\t{claim.says}"
                if all(word.casefold() in f"{line} {answer.cohort} {source.title}".casefold() for word in words):
                    yield line


def all_of(id_: str) -> Iterator[str]:
    """All that the ledger says of a claim: its source, and of each answer what was found, of whom and with what."""
    claim = next((claim for source in sources() for claim in source.claims if claim.id == id_), None)
    if claim is None:
        raise SystemExit(f"claims: no claim {id_}; python benchmarks/claims.py list names them.")
    yield f"{claim.id}: {claim.says}\n  source   {claim.there} ({claim.where})"
    for name, answer in claim.rows():
        yield f"{name}: {_verdict(name, answer).replace('**', '')}"
        cohort = COHORTS.get(answer.cohort, "not asked")
        who = "; ".join(filter(None, (cohort, answer.who, f"{answer.seeds} seeds" * bool(answer.seeds))))
        words = ("found", answer.found), ("of", who), ("settings", answer.settings), ("needs", answer.needs)
        yield from (f"  {word:<8} {text}" for word, text in (*words, ("by", _made_by(answer))) if text)


def run(row: str, given: Sequence[str]) -> int:
    """Run the command of a row and say how long it took; the exit code of its first line that fails, else 0."""
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
    spent = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        for words in command.filled(folders, Path(scratch) / "config.toml"):
            print(shlex.join(words), flush=True)
            code, seconds = timed([*PROGRAMS[words[0]], *words[1:]], ROOT)
            spent += seconds / 60
            if code:
                return code
    print(f"{spent:.1f} minutes of a core")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    steps.add_parser("pages", help="write the pages, from the records")
    steps.add_parser("list", help="rows in which every word occurs").add_argument("words", nargs="*")
    showing = steps.add_parser("show", help="all that was found for claims, of whom, with which settings")
    showing.add_argument("ids", nargs="+", metavar="ID")
    making = steps.add_parser("run", help="make a row again")
    making.add_argument("row")
    making.add_argument("folders", nargs="*", metavar="NAME=FOLDER")
    arguments = parser.parse_args()
    if arguments.step == "list":
        print("\n".join(rows_with(arguments.words)))
    elif arguments.step == "show":
        print("\n".join(line for id_ in arguments.ids for line in all_of(id_)))
    elif arguments.step == "run":
        return run(arguments.row, arguments.folders)
    else:
        for name, text in pages().items():
            (ROOT / "docs" / name).parent.mkdir(exist_ok=True)
            (ROOT / "docs" / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
