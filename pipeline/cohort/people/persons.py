"""One person under two names: participants who changed site between ADNI phases.

A PTID starts with the site and ends with the person's RID, so ``002_S_0295`` and ``131_S_0295`` are the same person. An
ADNI download is read by RID. A BIDS dataset made from one may have both names, ``sub-ADNI002S0295`` and
``sub-ADNI131S0295``; they are kept, but a split keeps them together, and a note names them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pipeline.run.plain_text import counted, listed

_ADNI = re.compile(r"sub-ADNI\d{3}S(\d{4,})")


def same_person(participants: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Names of each person, keyed by the first in alphabetical order.

    >>> same_person(["sub-ADNI131S0295", "sub-01", "sub-ADNI002S0295"])
    {'sub-01': ('sub-01',), 'sub-ADNI002S0295': ('sub-ADNI002S0295', 'sub-ADNI131S0295')}
    """
    by_person: dict[str, list[str]] = {}
    for name in sorted(set(participants)):
        match = _ADNI.fullmatch(name)
        by_person.setdefault(f"RID {int(match[1])}" if match else name, []).append(name)
    return {names[0]: tuple(names) for names in by_person.values()}


def name_of_person(participants: Iterable[str]) -> dict[str, str]:
    """First name of the person behind each participant.

    Examples
    --------
    >>> name_of_person(["sub-ADNI131S0295", "sub-ADNI002S0295"])
    {'sub-ADNI002S0295': 'sub-ADNI002S0295', 'sub-ADNI131S0295': 'sub-ADNI002S0295'}
    """
    return {name: person for person, names in same_person(participants).items() for name in names}


def known_among(participants: Iterable[str], known: Iterable[str]) -> list[str]:
    """Those of the participants who are known, under any of their names; sorted.

    Examples
    --------
    >>> known_among(["sub-ADNI131S0295", "sub-01"], ["sub-ADNI002S0295"])
    ['sub-ADNI131S0295']
    """
    asked, others = set(participants), set(known)
    person = name_of_person(asked | others)
    theirs = {person[name] for name in others}
    return sorted(name for name in asked if person[name] in theirs)


def roll_over_notes(participants: Iterable[str]) -> list[str]:
    """A note on participants who are the same person."""
    joined = [" and ".join(names) for names in same_person(participants).values() if len(names) > 1]
    if not joined:
        return []
    return [
        f"{counted(len(joined), 'person', 'has', 'people')} several names (one RID), always in the same part of "
        f"a fold: {listed(joined, 3)}"
    ]
