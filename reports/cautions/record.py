"""One reason for doubt, as the report shows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Caution:
    """One reason for doubt."""

    level: str  # ``serious`` (conclusions may be wrong) or ``note`` (keep in mind)
    title: str  # short sentence
    text: str
    section: str = ""  # anchor of the section with the details; empty if there is none
