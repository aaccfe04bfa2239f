"""What stored numbers answer to a claim: records name statistics and bounds, `evaluation.claims.rule` decides."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, cached_property, lru_cache

import claim_numbers
import numpy as np
from claim_numbers import NOBODY, Numbers
from harness import listed

from heatlas.pipeline.evaluation.claims import relevance
from heatlas.pipeline.evaluation.claims.records import LESS, MORE, Ask, judged  # noqa: F401  # MORE: claim_records
from heatlas.pipeline.evaluation.claims.rule import (
    NOT,
    OPEN,
    Design,
    Estimate,
    Floats,
    Ints,
    Statistic,
    area_of,
    estimate,
    less,
    mean_of,
)

ANSWERS, LOGIT, COIN = "probability", ", logit", 0.5
"""What networks answer, which all studies store; of a recipe, where a study has several."""
CAM = "GridPG needle: grad-cam at 4"
INTEGRATED, SMOOTH = "GridPG needle: integrated-gradients at 0", "GridPG needle: smooth-integrated-gradients kernel="


def rank_correlation(first: Floats, second: Floats) -> Statistic:
    """Of values (people, seeds) over people, each as often as it is drawn; undefined maps have a share of 0."""

    def ranks(values: Floats, weights: Floats) -> Floats:
        return weights @ ((values[:, None] < values) + 0.5 * (values[:, None] == values))

    def statistic(seed: int, weights: Floats) -> Floats:
        there = np.isfinite(first[:, seed]) & np.isfinite(second[:, seed])
        own = weights[:, there]
        found = [ranks(one[there, seed], own) for one in (first, second)]
        a, b = (one - (own * one).sum(axis=1, keepdims=True) / own.sum(axis=1, keepdims=True) for one in found)
        return (own * a * b).sum(axis=1) / np.sqrt((own * a**2).sum(axis=1) * (own * b**2).sum(axis=1))

    return statistic


def of_grids(numbers: Numbers) -> dict[str, Statistic]:
    """How the shares of integrated gradients go with those of Grad-CAM (A21), by the kernel of smoothing."""
    kernels = {"not smoothed": INTEGRATED}
    kernels |= {f"K = {one.removeprefix(SMOOTH)[:-5]}": one for one in numbers.wide if one.startswith(SMOOTH)}
    cam = numbers.of(CAM)
    return {f"with Grad-CAM, {name}": rank_correlation(numbers.of(one), cam) for name, one in kernels.items()}


def relevance_of(numbers: Numbers) -> relevance.Relevance:
    voxels = numbers.about["voxels"]
    maps = {
        name: np.stack([numbers.of(f"{name}: {region}") for region in voxels], axis=2).swapaxes(0, 1)
        for name in {one.partition(": ")[0] for one in numbers.wide if ": " in one}
    }
    return relevance.Relevance(maps, voxels, numbers.classes, numbers.folds, numbers.of)


def of_relevance(numbers: Numbers) -> dict[str, Statistic]:
    found = relevance.statistics(relevance_of(numbers))
    unknown = tuple(tissue for tissue in (relevance.INTENSITY, relevance.VOLUME) if tissue not in numbers.wide)
    return {name: one for name, one in found.items() if not name.startswith(unknown)}


STUDIES = {"relevance": of_relevance, "grids": of_grids, "grids-unnormed": of_grids}
"""Statistics beside the means of measures, by study."""


@dataclass(frozen=True, eq=False)
class Study:
    numbers: Numbers

    @cached_property
    def statistics(self) -> dict[str, Statistic]:
        return STUDIES[self.numbers.name](self.numbers) if self.numbers.name in STUDIES else {}

    @lru_cache  # noqa: B019  # a study is kept as long as the process
    def estimate(self, of: str) -> Estimate:
        """A statistic, the mean of a measure, or a difference of two of them."""
        sides = self.sides(of)
        if set(sides) <= set(self.statistics):
            first, *second = [self.statistics[name] for name in sides]
            return estimate(less(first, *second) if second else first, Design(self.numbers.classes, self.numbers.folds))
        values, *others = [self.numbers.of(name) for name in sides]
        return self.mean(values - sum(others))

    def sides(self, of: str) -> tuple[str, ...]:
        """The name of a statistic or measure, or the two of "A less B"; a name may hold "less" itself."""
        kinds, words = (set(self.statistics), set(self.numbers.wide)), of.split(LESS)
        pairs = [(LESS.join(words[:k]), LESS.join(words[k:])) for k in range(1, len(words))]
        found = [one for one in [(of,), *pairs] if any(kind.issuperset(one) for kind in kinds)]
        if not found:
            names = kinds[0] | kinds[1]
            unknown = next((one for one in words if one not in names), of)
            near = "".join(f"; did you mean {one!r}?" for one in get_close_matches(unknown, names, 1))
            sys.exit(f"numbers {self.numbers.name}: no statistic {unknown!r}{near}")
        return found[0]

    def mean(self, values: Floats) -> Estimate:
        """The mean of a measure of those who were asked."""
        there = np.isfinite(values).any(axis=1)
        return estimate(mean_of(values[there]), Design(self.numbers.classes[there], self._folds(values)[there]))

    def _folds(self, values: Floats) -> Ints:
        """Whose network answered those who have a value."""
        return np.where(np.isfinite(values), self.numbers.folds, NOBODY)

    def networks_know(self, of: str) -> bool:
        """Whether the networks that a statistic is of are better than a coin: the area of their answers is above .5."""
        return all(self._area(name).interval[0] > COIN for name in self.answers(of))

    def answers(self, of: str) -> set[str]:
        """What the networks answer that a statistic is of: the recipe that it begins with or the head that it ends
        with, the longest of several; those of the run otherwise."""
        networks = [one.removesuffix(LOGIT) for one in self.numbers.wide if one.endswith(LOGIT)]
        found = set()
        for side in self.sides(of):
            own = [one for one in networks if side.startswith(f"{one}, ") or side.endswith(f", {one}")]
            found.add(max(own, key=len) + LOGIT if own else ANSWERS)
        return found

    @lru_cache  # noqa: B019
    def _area(self, name: str) -> Estimate:
        values, classes = self.numbers.of(name), self.numbers.classes
        there = np.isfinite(values).any(axis=1)
        values, classes, folds = values[there], classes[there], self._folds(values)[there]
        return estimate(area_of(values, classes == 1, folds), Design(classes, folds))


@cache
def study(name: str) -> Study:
    return Study(claim_numbers.read(name))


def answered(name: str, asks: tuple[Ask, ...]) -> tuple[str, str, str, float]:
    """Text, verdict, what an open one needs, and p, of what a study says to asks."""
    of = study(name)
    text = "; ".join(text_of(ask, of.estimate(ask.of)) for ask in asks)
    ruled = [ask for ask in asks if ask.says]
    verdict, needs, p = judged(
        ruled, of.estimate, lambda ask: [of.estimate(side).mean for side in of.sides(ask.of)], of.networks_know
    )
    return text, verdict, needs, p


def deciding(name: str, asks: tuple[Ask, ...]) -> str:
    """Text of the ask that decides: the first that fails; else the first that is open; else the first."""
    of = study(name)
    ruled = [ask for ask in asks if ask.says]
    said = [answered(name, (ask,))[1] for ask in ruled]
    first = next((ask for word in (NOT, OPEN) for ask, one in zip(ruled, said, strict=True) if one == word), asks[0])
    return text_of(first, of.estimate(first.of))


def text_of(ask: Ask, found: Estimate) -> str:
    seeds = listed((ask.scale * one for one in found.seeds), ask.form)
    if not ask.says:
        return shortened(f"{ask.words} {seeds}{' by seed' * (len(found.seeds) > 1)}")
    low, high = sorted(ask.scale * one for one in found.interval)
    rule = f"{ask.words}, {ask.says} {ask.bound:g}{f' of {ask.origin:g}' * (ask.says == 'within')}: "
    mean = format(ask.scale * found.mean, ask.form)
    by_seed = f", by seed {seeds}" * (len(found.seeds) > 1)
    return shortened(f"{rule}{mean} ({low:{ask.form}} to {high:{ask.form}}){by_seed}")


def shortened(text: str) -> str:
    """Numbers as the pages have them.

    >>> shortened("-0.50 to +0.25, 10.5")
    '−.50 to +.25, 10.5'
    """
    return re.sub(r"(?<![\d.])0(?=\.\d)", "", re.sub(r"-(?=\d)", "−", text))
