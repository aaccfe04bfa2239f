"""Claims as records: what a source says, which statistics answer it, and by which rule (``claims.toml``)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from heatlas.pipeline.evaluation.claims.rule import OPEN, Estimate, at_an_end, together, told
from heatlas.pipeline.run.documents import read_toml
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import did_you_mean, nearest, unknown

LESS = " less "
SAYS = ("above", "below", "within")
OF_THE_LITERATURE = Path(__file__).with_name("claims.toml")
MORE = "more people or networks: the interval holds the bound"


@dataclass(frozen=True)
class Ask:
    """A statistic and what a claim says of it; `says` is empty for a number that is only shown."""

    of: str  # a statistic or measure, or two of them as "A less B"
    words: str = ""  # before the number
    says: str = ""  # above or below the bound, or within it of the origin
    bound: float = 0.0
    origin: float = 0.0
    ends: Sequence[float] = ()  # floor and ceiling of the measure, at which it cannot tell
    form: str = ".2f"
    scale: float = 1.0  # of the numbers on a page, and of the bound
    points: float = 100.0  # of a difference of 1, for the picture; 0: not in the picture

    @property
    def sides(self) -> list[str]:
        return self.of.split(LESS)

    @property
    def rule(self) -> str:
        return f"{self.says} {self.bound:g}{f' of {self.origin:g}' * (self.says == 'within')}"

    def margin(self, value: float) -> float:
        """How far a value lies on the side that the claim says; above 0 if it is as said."""
        if self.says == "within":
            return self.bound - abs(value - self.origin)
        return (value - self.bound) * (1 if self.says == "above" else -1)

    def margins(self, low: float, high: float) -> tuple[float, float]:
        """The least and the largest margin within an interval."""
        nearest = min(max(self.origin, low), high) if self.says == "within" else low
        found = [self.margin(value) for value in (low, high, nearest)]
        return min(found), max(found)


@dataclass(frozen=True)
class Claim:
    """What a source says, and what decides it."""

    id: str
    says: str
    where: str = ""  # in its source
    there: str = ""  # what the source found
    asks: Sequence[Ask] = ()
    about: str = ""  # the class that it is of, where it is of one alone
    command: str = ""  # that asks it, where it needs networks or maps of its own
    trains: bool = False  # whether this trains networks


def judged(
    asks: Sequence[Ask],
    estimate: Callable[[str], Estimate],
    sides: Callable[[Ask], Sequence[float]],
    knows: Callable[[str], bool],
) -> tuple[str, str, float]:
    """Verdict, what an open one needs, and p, of asks that have a rule.

    `sides`: means of the statistic, or of the two that it compares.
    `knows`: whether the networks that a statistic is of are better than a coin.
    """
    if not asks:  # numbers that no rule can judge
        return OPEN, MORE, 1.0
    verdict, p = together(
        [told(estimate(ask.of), ask.says, ask.bound / ask.scale, ask.origin / ask.scale) for ask in asks]
    )
    if not all(knows(ask.of) for ask in asks):
        return OPEN, "networks that are better than a coin", 1.0
    for ask in asks:
        if ask.ends and at_an_end([ask.scale * one for one in sides(ask)], ask.ends[0], ask.ends[1]):
            return OPEN, f"a measure that does not lie at its floor or ceiling, as {ask.words} does", 1.0
    return verdict, MORE if verdict == OPEN else "", p


def read_claims(path: Path, statistics: Collection[str]) -> tuple[Claim, ...]:
    """The claims of a file; BadInputError names the entry and the nearest name for one that is not known."""
    try:
        entries = read_toml(path).get("claim", [])
    except (OSError, ValueError) as error:
        raise BadInputError(f"{path}: cannot be read ({error}). It is TOML with a table [[claim]] for each.") from error
    if not entries or not isinstance(entries, list):
        raise BadInputError(f"{path}: has no claim. It is TOML with a table [[claim]] for each.")
    claims = [_claim(f"{path}: claim {place}", entry, statistics) for place, entry in enumerate(entries, 1)]
    claims = [replace(claim, where=claim.where or path.name) for claim in claims]
    twice = [one.id for place, one in enumerate(claims) if one.id in {other.id for other in claims[:place]}]
    if twice:
        raise BadInputError(f"{path}: two claims have the id {twice[0]!r}.")
    return tuple(claims)


def _claim(where: str, entry: Mapping[str, Any], statistics: Collection[str]) -> Claim:
    claim = _record(Claim, where, entry)
    claim = replace(claim, asks=tuple(_record(Ask, f"{where}: asks", ask) for ask in claim.asks))
    for ask in claim.asks:
        for side in ask.sides:
            if side not in statistics:
                raise BadInputError(f"{where}: no statistic {side!r}.{did_you_mean(nearest(side, statistics))}")
        if len(ask.sides) > 2:
            raise BadInputError(f"{where}: of = {ask.of!r} compares {len(ask.sides)} statistics; it may compare two.")
        if ask.says not in SAYS:
            raise BadInputError(unknown(f"{where}: says", repr(ask.says), SAYS))
        numbers = all(isinstance(end, int | float) for end in ask.ends)
        if ask.ends and not (numbers and len(ask.ends) == 2 and ask.ends[0] < ask.ends[1]):
            raise BadInputError(f"{where}: ends = {ask.ends!r} are not a floor and a ceiling, as [0, 1].")
    if bool(claim.asks) == bool(claim.command):
        raise BadInputError(f"{where}: give asks, or the command that asks it.")
    return claim


OF_THE_LEDGER = ("form", "scale")
"""Of the pages of benchmarks/claims alone."""
KINDS: Mapping[str, Any] = {"str": str, "float": (int, float), "bool": bool}
Record = TypeVar("Record", Claim, Ask)


def _record(kind: type[Record], where: str, entry: Any) -> Record:
    known = {one.name: one for one in fields(kind) if one.name not in OF_THE_LEDGER}
    given = entry if isinstance(entry, dict) else {}
    for name, value in given.items():
        if name not in known:
            raise BadInputError(unknown(f"{where}:", name, known))
        if not isinstance(value, KINDS.get(str(known[name].type), list)):
            raise BadInputError(f"{where}: {name} = {value!r} is of another type than {name} in claims.toml.")
    for name, one in known.items():
        if one.default is MISSING and name not in given:
            raise BadInputError(f"{where}: {name} is missing.")
    return kind(**given)
