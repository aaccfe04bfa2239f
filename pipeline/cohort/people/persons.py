"""One person under two names: participants who changed site between ADNI phases.

A PTID starts with the site and ends with the person's RID, so ``002_S_0295`` and ``131_S_0295`` are the same person. An
ADNI download is read by RID. A BIDS dataset made from one may have both names, ``sub-ADNI002S0295`` and
``sub-ADNI131S0295``; they are kept, but a split keeps them together, and a note names them.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from statistics import median

from heatlas.pipeline.run.plain_text import note_on

ADULT = 18.0
ELDERLY = 40.0

HIDDEN = "sha256:"
"""What a name that is given as a digest begins with."""
_ADNI = re.compile(r"sub-ADNI\d{3}S(\d{4,})")
_OASIS = re.compile(r"sub-OASIS(\d)(\d{4})")
_RUN = re.compile(r"[^\W\d_]+|\d+")
_NO_NAME = re.compile(r"\b[0-9a-f]{16,}\b|\d+\.\d+(?:e[-+]?\d+)?")
"""Digests and measurements, in which the digits of a name stand by chance."""
_FEWEST_CHARACTERS, _FEWEST_DIGITS = 5, 6
"""Of letters with digits, and of digits alone, that are a name without ``sub`` before them."""
_WIDEST_GAP = 4
"""Other characters between two parts of a name, such as an escaped underscore."""


def same_person(participants: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Names of each person, keyed by the first in alphabetical order.

    >>> same_person(["sub-ADNI131S0295", "sub-01", "sub-ADNI002S0295"])
    {'sub-01': ('sub-01',), 'sub-ADNI002S0295': ('sub-ADNI002S0295', 'sub-ADNI131S0295')}
    """
    by_person: dict[str, list[str]] = {}
    for name in sorted(set(participants)):
        by_person.setdefault(_person(name), []).append(name)
    return {names[0]: tuple(names) for names in by_person.values()}


def _person(name: str) -> str:
    match = _ADNI.fullmatch(name)
    return f"RID {int(match[1])}" if match else name


def hidden_name(participant: str, salt: str) -> str:
    """A name as a salted digest, the same for every name of a person, by which `known_among` recognises them.

    It hides a name from those who read it, not from those who try out all names that there can be.

    >>> hidden_name("sub-01", "salt")
    'sha256:salt:577636181fdd13034b20c1c64cc476d2'
    >>> hidden_name("sub-ADNI002S0295", "salt") == hidden_name("sub-ADNI131S0295", "salt")
    True
    """
    return f"{HIDDEN}{salt}:{hashlib.sha256(f'{salt} {_person(participant)}'.encode()).hexdigest()[:32]}"


def spelled_in(text: str, participants: Iterable[str]) -> str | None:
    """The first participant whom a text names in any spelling; None if it names nobody.

    Letters and digits are compared, whatever their case and what stands between letters and digits: the whole id, and
    it without a leading site or study such as ADNI. An id of letters alone, of fewer than five characters, or of fewer
    than six digits counts only after ``sub``: otherwise ``1`` or ``test`` would refuse every text.

    >>> ids = ["sub-ADNI990S9003", "sub-02", "sub-OASIS10028", "sub-941130"]
    >>> [spelled_in(text, ids) for text in ("of 990_S-9003", "adni990s9003", "SUB 02", "OAS1_0028_MR1", "(941130)")]
    ['sub-ADNI990S9003', 'sub-ADNI990S9003', 'sub-02', 'sub-OASIS10028', 'sub-941130']
    >>> [spelled_in(text, ids) for text in ("02", "990 S 90031", "1990 S 9003", "0.941130")]
    [None, None, None, None]
    """
    spellings: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for name in sorted(set(participants)):
        for parts in _spellings(name):
            spellings.setdefault(parts[0], []).append((parts, name))
    text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda code: chr(int(code[1], 16)), text)
    text = _NO_NAME.sub(" " * (_WIDEST_GAP + 1), unicodedata.normalize("NFKC", text).casefold())
    matches = list(_RUN.finditer(text))
    runs = [match[0] for match in matches]
    for place, run in enumerate(runs):
        for parts, name in spellings.get(run, ()):
            last = place + len(parts)
            gaps = [after.start() - before.end() for before, after in pairwise(matches[place:last])]
            if tuple(runs[place:last]) == parts and max(gaps, default=0) <= _WIDEST_GAP:
                return name
    return None


def _spellings(name: str) -> Iterator[tuple[str, ...]]:
    """Runs of letters and of digits by which a participant is recognised, in lower case."""
    label = tuple(_RUN.findall(name.removeprefix("sub-").casefold()))
    if not label:
        return
    yield ("sub", *label)
    yield (f"sub{label[0]}", *label[1:])
    if oasis := _OASIS.fullmatch(name):
        yield ("oas", *oasis.groups())
    for parts in (label, label[1:] if label[0].isalpha() else ()):
        text = "".join(parts)
        if len(text) >= _FEWEST_DIGITS if text.isdigit() else len(text) >= _FEWEST_CHARACTERS and not text.isalpha():
            yield parts


def name_of_person(participants: Iterable[str]) -> dict[str, str]:
    """First name of the person behind each participant.

    >>> name_of_person(["sub-ADNI131S0295", "sub-ADNI002S0295"])
    {'sub-ADNI002S0295': 'sub-ADNI002S0295', 'sub-ADNI131S0295': 'sub-ADNI002S0295'}
    """
    return {name: person for person, names in same_person(participants).items() for name in names}


def known_among(participants: Iterable[str], known: Iterable[str]) -> list[str]:
    """Those of the participants who are known, under any of their names or as a `hidden_name`; sorted.

    >>> known_among(["sub-ADNI131S0295", "sub-01"], ["sub-ADNI002S0295"])
    ['sub-ADNI131S0295']
    >>> known_among(["sub-ADNI131S0295", "sub-01"], [hidden_name("sub-ADNI002S0295", "salt")])
    ['sub-ADNI131S0295']
    """
    others = set(known)
    salts = {name.split(":")[1] for name in others if name.startswith(HIDDEN)}
    theirs = {_person(name) for name in others}
    return sorted(
        name
        for name in set(participants)
        if _person(name) in theirs or any(hidden_name(name, salt) in others for salt in salts)
    )


def roll_over_notes(participants: Iterable[str]) -> list[str]:
    joined = [" and ".join(names) for names in same_person(participants).values() if len(names) > 1]
    text = "several names (one RID), always in the same part of a fold"
    return note_on(joined, "person", text, verb="has", plural="people", limit=3)


def unusual_ages(ages: Mapping[str, float]) -> list[str]:
    """A note where ages in years, by participant, look like typing errors; they are used as they are.

    >>> unusual_ages({"sub-01": 7.5, "sub-02": 6.1, "sub-03": 8.0})
    ['all ages are below 18 (6.1 to 8): are they in years?']
    >>> unusual_ages({"sub-01": 75.0, "sub-02": 7.0, "sub-03": 80.0})
    ['1 participant below 18 among people of a median age of 75; correct the age or leave them out: sub-02 (7)']
    >>> unusual_ages({"sub-01": 75.0, "sub-02": 66.0}), unusual_ages({"sub-01": 9.0, "sub-02": 30.0})
    ([], [])
    """
    young = {name: age for name, age in ages.items() if age < ADULT}
    if young and len(young) == len(ages):
        return [f"all ages are below {ADULT:g} ({min(ages.values()):g} to {max(ages.values()):g}): are they in years?"]
    if young and (middle := median(ages.values())) >= ELDERLY:
        text = f"below {ADULT:g} among people of a median age of {middle:g}; correct the age or leave them out"
        return note_on([f"{name} ({age:g})" for name, age in sorted(young.items())], "participant", text)
    return []
