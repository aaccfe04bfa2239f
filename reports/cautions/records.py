"""A reason for doubt, and the check that finds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from heatlas.reports.read.run_record import RunRecord


@dataclass(frozen=True)
class Caution:
    """One reason for doubt."""

    level: str  # ``serious`` (conclusions may be wrong) or ``note`` (keep in mind)
    title: str  # a short sentence
    text: str
    section: str = ""  # anchor of the section with the details


@dataclass(frozen=True)
class Check:
    """A check of a run that gives a caution or None; it is made where the run has these tables."""

    find: Callable[[RunRecord], Caution | None]
    tables: tuple[str, ...] = ()

    def __call__(self, run: RunRecord) -> Caution | None:
        return self.find(run) if run.has(*self.tables) else None
