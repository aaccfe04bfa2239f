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

import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from claim_records import ROOT, command_of, sources
from claim_times import record
from claims_page import page
from sections import parser_of
from timed import timed

PROGRAMS = {
    "python": [sys.executable],
    "pytest": [sys.executable, "-m", "pytest"],
    "heatlas": [sys.executable, "workflows/adni.py"],
}
"""Programs of commands, by this Python and from the repository."""


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


def main() -> int:
    parser = parser_of(__doc__)
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
