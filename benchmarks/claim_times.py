"""How long the commands of the ledger take: said by a page, measured by `claims.py run`, or estimated."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from claim_records import RECORDS, ROOT, commands

TIMES = RECORDS / "times.tsv"
BOUND = 24
"""Hours on two cores that all studies may take together."""
SAID, MEASURED, ESTIMATED = "said", "measured", "estimated"
COLUMNS = ("command", "minutes", "kind", "date", "commit", "machine", "how")


@dataclass(frozen=True)
class Time:
    """How long a command takes, in minutes of one core."""

    minutes: float
    kind: str
    """Said on a page, measured by ``run ID --record``, or estimated from measured parts: nobody ran the command."""
    how: str
    """The file that says it, the commit and machine, or what the estimate is made of."""


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


def hours(names: Sequence[str]) -> float:
    """Hours on two cores of the commands whose time is known."""
    return sum(one.minutes for one in map(time_of, names) if one) / 60 / 2
