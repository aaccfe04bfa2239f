"""Several networks explain one scan at about the cost of those of one fold.

A scan of a run is explained by the networks of one fold, which have not seen its person. A scan of someone else may be
explained by those of all folds, at as many times the cost as there are folds. What is wanted is the mean of their maps:

- **draws**: a method that draws at random takes its draws over networks too: all of them explain, each with a few
  (`pipeline.attribution.gradient.shared_draws`).
- **some**: any other method is asked of some of the networks, every so many through all folds. Networks of a fold differ
  by their seed alone, so it does not matter which of them it is; that every fold takes part does, since their networks
  learned from other people. No scan decides which.
- **all**: a method that costs two passes is asked of all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from torch import Tensor, nn

from heatlas.pipeline.attribution.gradient.shared_draws import expected_gradients_of_mean
from heatlas.pipeline.attribution.methods import Method, attribute_all
from heatlas.pipeline.attribution.network_view import StartValue
from heatlas.pipeline.attribution.records import Attribution, RunningMean

MISSED = 0.05
"""Variance by which the mean map of some networks may miss that of all, as a share of the variance between networks.

Ranks of regions by 10 of 20 networks then correlate with those by all at .97 and above (docs/benchmarks/applied.md).
"""


def some_of(count: int) -> tuple[int, ...]:
    """Which of so many networks, in the order of their folds, are asked by methods that are not asked of all.

    The mean over c of n networks misses that over all by ``1/c - 1/n`` of the variance between networks.

    >>> some_of(20), some_of(5), some_of(1)
    ((0, 2, 4, 6, 8, 10, 12, 14, 16, 18), (0, 1, 2, 3), (0,))
    """
    chosen = min(count, math.ceil(1 / (MISSED + 1 / count) - 1e-9))
    return tuple(place * count // chosen for place in range(chosen))


Members = Sequence[tuple[nn.Module, Method]]
"""Networks in the order of their folds, each with the method that would explain it alone."""


def mean_of_some(
    members: Members, volume: Tensor, target: int, stage: int | str, start: StartValue
) -> tuple[Attribution, ...]:
    """The means over some of the networks, one per map of the method; see the head of the module."""
    places, means = some_of(len(members)), list[RunningMean]()
    for place in places:
        answers = attribute_all(members[place][0], volume, target, members[place][1], stage, start)
        means = means or [RunningMean() for _ in answers]
        for mean, answer in zip(means, answers, strict=True):
            mean.add(answer if answer.reference_value is None else replace(answer, members=answer.values[None]))
    said = f"{len(places)} of {len(members)}: {', '.join(str(place + 1) for place in places)}"
    return tuple(_with_networks(mean.result(), said) for mean in means)


def mean_by_draws(
    members: Members, volume: Tensor, target: int, stage: int | str, start: StartValue
) -> tuple[Attribution, ...]:
    """The mean over all networks, which share the draws; at the input."""
    assert stage == 0
    answer = expected_gradients_of_mean(cast(Any, members), volume, target, start)
    return (_with_networks(answer, f"all {len(members)}, which share the draws"),)


def _with_networks(answer: Attribution, networks: str) -> Attribution:
    return replace(answer, parameters={**answer.parameters, "networks": networks})
