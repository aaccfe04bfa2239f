"""One reason for doubt, as the report shows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Caution:
    """One reason for doubt.

    Parameters
    ----------
    level : str
        ``serious`` (conclusions may be wrong) or ``note`` (keep in mind).
    title : str
        Short sentence.
    text : str
    section : str
        Anchor of the section with the details; empty if there is none.
    """

    level: str
    title: str
    text: str
    section: str = ""
