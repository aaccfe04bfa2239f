"""Several networks explain one scan at about the cost of those of one fold.

A scan of a run is explained by the networks of one fold, which have not seen its person. A scan of someone else is
explained by those of all folds, and the mean of their maps is wanted. Two things save most of what that costs:

- Points on a path are asked together (`together`): a small volume in a pass of its own takes three times as long.
- Maps that compare with no reference are asked of some of the networks (`some_of`), every so many through all folds.
  Networks of a fold differ by their seed alone, so any of them will do; that every fold takes part matters, since their
  networks learned from other people. No scan decides which. Maps on a reference differ more between networks: they are
  asked of all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from torch import Tensor, nn

from heatlas.pipeline.attribution.methods import Method, attribute_all
from heatlas.pipeline.attribution.network_view import StartValue
from heatlas.pipeline.attribution.records import Attribution, RunningMean

MISSED = 0.075
"""Variance by which the mean map of some networks may miss that of all, as a share of the variance between networks.

Ranks of regions by 8 of 20 networks correlate with those by all as docs/benchmarks/applied.md says.
"""
VOXELS_TOGETHER = 1_000_000
"""Voxels of the volumes that are asked in one pass: one at 2 mm, eight at 4 mm."""


def some_of(count: int) -> tuple[int, ...]:
    """Which of so many networks, in the order of their folds, are asked by methods that are not asked of all.

    The mean over c of n networks misses that over all by ``1/c - 1/n`` of the variance between networks.

    >>> some_of(20), some_of(5), some_of(1)
    ((0, 2, 5, 7, 10, 12, 15, 17), (0, 1, 2, 3), (0,))
    """
    chosen = min(count, math.ceil(1 / (MISSED + 1 / count) - 1e-9))
    return tuple(place * count // chosen for place in range(chosen))


def together(shape: Iterable[int]) -> int:
    """Volumes of a shape that are asked in one pass.

    >>> together((46, 54, 46)), together((91, 109, 91)), together((193, 229, 193))
    (8, 1, 1)
    """
    return max(1, VOXELS_TOGETHER // math.prod(shape))


Members = Sequence[tuple[nn.Module, Method]]
"""Networks in the order of their folds, each with the method that would explain it alone."""


def mean_of_some(
    members: Members, volume: Tensor, target: int, stage: int | str, start: StartValue
) -> tuple[Attribution, ...]:
    """The means over some of the networks, one per map of the method; see the head of the module."""
    places, means = some_of(len(members)), list[RunningMean]()
    for place in places:
        network, method = members[place]
        answers = attribute_all(network, volume, target, method, stage, start)
        means = means or [RunningMean() for _ in answers]
        for mean, answer in zip(means, answers, strict=True):
            mean.add(answer)
    said = f"{len(places)} of {len(members)}: {', '.join(str(place + 1) for place in places)}"
    results = [mean.result() for mean in means]
    return tuple(replace(one, parameters={**one.parameters, "networks": said}) for one in results)
