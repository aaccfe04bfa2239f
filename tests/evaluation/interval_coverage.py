"""How often the interval of `pipeline/evaluation/claims/rule.py` holds the truth, by simulation.

PYTHONPATH=.:benchmarks python tests/evaluation/interval_coverage.py   # to benchmarks/claims/coverage.tsv
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from claim_records import COVERAGE

from heatlas.pipeline.evaluation.claims.rule import Design, Floats, estimate, mean_of

DRAWS = 200
SIZES = ((65, 68, 3), (13, 14, 3), (65, 68, 1))
VARIANCES = ((0, 1), (0.03, 0.25), (0.1, 0.25), (0.3, 1), (1, 0.25))
"""Of networks, and of what a person has with one network alone; that of people is 1."""


def simulated(
    random: np.random.Generator, size: tuple[int, int, int], networks: float, rest: float
) -> tuple[Design, Floats]:
    """Networks of five folds and mean 0: people of two classes in folds that each seed draws anew."""
    classes, seeds = np.repeat([0, 1], size[:2]), size[2]
    folds, values = np.empty((len(classes), seeds), int), np.empty((len(classes), seeds))
    own = random.normal(size=len(classes))
    for seed in range(seeds):
        for one in (0, 1):
            there = np.flatnonzero(classes == one)
            folds[random.permutation(there), seed] = np.arange(len(there)) % 5
        of_network = random.normal(scale=networks**0.5, size=5)[folds[:, seed]]
        values[:, seed] = own + of_network + random.normal(scale=rest**0.5, size=len(classes))
    return Design(classes, folds), values


def coverage(size: tuple[int, int, int], networks: float, rest: float, times: int = 2000) -> tuple[float, float]:
    """Share, in per cent, of the intervals that hold the truth, and of those that draw people alone."""
    random, held = np.random.default_rng(0), np.zeros(2)
    for _ in range(times):
        design, values = simulated(random, size, networks, rest)
        both = estimate(mean_of(values), design, DRAWS).interval
        of_people = mean_of(values.mean(axis=1, keepdims=True))
        alone = estimate(of_people, Design(design.classes, 0 * design.folds[:, :1]), DRAWS).interval
        held += [low <= 0 <= high for low, high in (both, alone)]
    return tuple(100 * held / times)


def coverages() -> Iterator[tuple[object, ...]]:
    for size in SIZES:
        for networks, rest in VARIANCES:
            yield (
                f"{size[0]} + {size[1]}",
                size[2],
                networks,
                rest,
                *(f"{one:.1f}" for one in coverage(size, networks, rest)),
            )


if __name__ == "__main__":
    columns = ("people", "seeds", "variance of networks", "of what is left", "people and networks", "people alone")
    lines = ["\t".join(map(str, row)) for row in (columns, *coverages())]
    COVERAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
