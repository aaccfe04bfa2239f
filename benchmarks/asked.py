"""What stored numbers answer to a claim: records name statistics and bounds, and `verdicts.py` has the rule."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, cached_property

import claim_numbers
import relevance_statistics
from claim_numbers import Numbers
from harness import listed
from verdicts import (
    OPEN,
    Design,
    Estimate,
    Statistic,
    area_of,
    at_an_end,
    estimate,
    less,
    mean_of,
    same_of,
    together,
    told,
)

STUDIES: Mapping[str, Callable[[Numbers], dict[str, Statistic]]] = {"relevance": relevance_statistics.statistics}
"""Statistics of a study beside the means of its measures."""
NETWORKS, ANSWERS, COIN = "networks", "probability", 0.5
"""In a table: the study whose networks it asks; the measure of their answers, whose area is above .5 if they know."""
LESS = " less "
MORE = "more people or networks: the interval holds the bound"


@dataclass(frozen=True)
class Ask:
    """A statistic and what a claim says of it; `says` is empty for a number that is only shown."""

    of: str  # a statistic or measure of the study, or two of them as "A less B"
    words: str = ""  # before the number on the page
    says: str = ""  # above or below the bound, or within it of the origin
    bound: float = 0.0
    origin: float = 0.0
    ends: tuple[float, ...] = ()  # floor and ceiling of the measure, at which it cannot tell
    form: str = ".2f"
    scale: float = 1.0  # of the numbers on the page, and of the bound


@dataclass(frozen=True)
class Study:
    numbers: Numbers

    @cached_property
    def design(self) -> Design:
        return Design(self.numbers.classes, self.numbers.folds)

    @cached_property
    def statistics(self) -> dict[str, Statistic]:
        own = STUDIES.get(self.numbers.name, lambda _: {})(self.numbers)
        each = {name: mean_of(self.numbers.of(name)) for name in self.numbers.measures}
        return each | {name: same_of(self.numbers.of_cohort(name)) for name in self.numbers.cohort_measures} | own

    @cached_property
    def found(self) -> dict[str, Estimate]:
        return {}

    def estimate(self, of: str) -> Estimate:
        if of not in self.found:
            sides = [self._statistic(name) for name in of.split(LESS)]
            self.found[of] = estimate(sides[0] if len(sides) == 1 else less(*sides), self.design)
        return self.found[of]

    def _statistic(self, name: str) -> Statistic:
        if name not in self.statistics:
            near = get_close_matches(name, self.statistics, 1)
            sys.exit(
                f"numbers {self.numbers.name}: no statistic {name!r}"
                + (f"; did you mean {near[0]!r}?" if near else ".")
            )
        return self.statistics[name]

    @cached_property
    def networks_know(self) -> bool:
        """Whether the networks are better than a coin."""
        numbers = study(self.numbers.about.get(NETWORKS, self.numbers.name)).numbers
        area = area_of(numbers.of(ANSWERS), numbers.classes == 1, numbers.folds)
        return estimate(area, Design(numbers.classes, numbers.folds)).interval[0] > COIN


@cache
def study(name: str) -> Study:
    return Study(claim_numbers.read(name))


def answered(name: str, asks: tuple[Ask, ...]) -> tuple[str, str, str, float]:
    """Text, verdict, what an open one needs, and p, of what a study says to asks."""
    of = study(name)
    text = "; ".join(text_of(ask, of.estimate(ask.of)) for ask in asks)
    parts = [
        (ask, told(of.estimate(ask.of), ask.says, ask.bound / ask.scale, ask.origin / ask.scale))
        for ask in asks
        if ask.says
    ]
    verdict, p = together([part for _, part in parts])
    if not of.networks_know:
        return text, OPEN, "networks that are better than a coin", 1.0
    for ask, _ in parts:
        sides = [of.estimate(side).mean * ask.scale for side in ask.of.split(LESS)]
        if ask.ends and at_an_end(sides, *ask.ends):
            return text, OPEN, f"a measure that does not lie at its floor or ceiling, as {ask.words} does", 1.0
    return text, verdict, MORE if verdict == OPEN else "", p


def text_of(ask: Ask, found: Estimate) -> str:
    seeds = listed((ask.scale * one for one in found.seeds), ask.form)
    if not ask.says:
        return shortened(f"{ask.words} {seeds} by seed")
    low, high = sorted(ask.scale * one for one in found.interval)
    rule = f"{ask.words}, {ask.says} {ask.bound:g}{f' of {ask.origin:g}' * (ask.says == 'within')}: "
    mean = format(ask.scale * found.mean, ask.form)
    return shortened(f"{rule}{mean} ({low:{ask.form}} to {high:{ask.form}}), by seed {seeds}")


def shortened(text: str) -> str:
    """Numbers as the pages have them.

    >>> shortened("-0.50 to +0.25, 10.5")
    '−.50 to +.25, 10.5'
    """
    return re.sub(r"(?<![\d.])0(?=\.\d)", "", re.sub(r"-(?=\d)", "−", text))
