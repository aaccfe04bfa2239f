"""How often subtypes are reported where there are none, and found where there are some.

    python benchmarks/subtypes_without_effect.py

The rule with its defaults (gap statistic, no group under three participants, level of each patient removed) on data of
67 regions. Sites without effect are in benchmarks/type_one_error_tables.py.
"""

from __future__ import annotations

import numpy as np
from harness import arguments_of, line, table

from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.statistics.normative.clustering import consensus, gap_statistic

N_REGIONS = 67
DATA_SETS = 100


def loadings(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(5, N_REGIONS)) * np.array([3, 1.5, 1, 1, 0.7])[:, None]


def independent(n: int, rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(n, N_REGIONS))


def correlated(n: int, rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(n, 5)) @ loadings(rng) + rng.normal(size=(n, N_REGIONS))


def heavy_tailed(n: int, rng: np.random.Generator) -> np.ndarray:
    return rng.standard_t(5, size=(n, 5)) @ loadings(rng) + rng.standard_t(5, size=(n, N_REGIONS))


def skewed(n: int, rng: np.random.Generator) -> np.ndarray:
    """The main axis is exponential: a few are far gone."""
    factors = rng.normal(size=(n, 5))
    factors[:, 0] = 1.5 * rng.exponential(size=n)
    return factors @ loadings(rng) + rng.normal(size=(n, N_REGIONS))


def two_patterns(n: int, rng: np.random.Generator, distance: float) -> np.ndarray:
    """Halves that differ by so many standard deviations, one way in 22 regions and the other way in 22 others."""
    pattern = np.repeat([1.0, -1.0, 0.0], [22, 22, 23]) * distance / 2
    half = np.where(np.arange(n) % 2, 1.0, -1.0)
    return np.outer(half, pattern) + 0.3 * correlated(n, rng) + rng.normal(size=(n, N_REGIONS))


def number_found(points: np.ndarray, rng: np.random.Generator) -> int:
    """The rule of `pipeline.statistics.normative.subtypes.find_subtypes` without its tables."""
    settings = load_config().statistics.normative
    pattern = points - points.mean(axis=1, keepdims=True)
    number = gap_statistic(pattern, settings.max_subtypes, settings.resamples, rng).number
    if number == 1:
        return 1
    labels = consensus(pattern, [number], settings.resamples, rng)[0].labels
    return number if np.bincount(labels)[1:].min() >= settings.min_subtype_participants else 1


def numbers_found(make, n: int) -> np.ndarray:
    streams = [np.random.default_rng(seed) for seed in range(DATA_SETS)]
    return np.array([number_found(make(n, rng), rng) for rng in streams])


def main() -> None:
    cases = {"independent": independent, "correlated": correlated, "heavy-tailed": heavy_tailed, "skewed": skewed}
    for distance in (1.0, 2.0, 3.0):
        cases[f"two patterns, {distance:g} SD apart"] = lambda n, rng, d=distance: two_patterns(n, rng, d)
    arguments_of(__doc__)
    print(*table(["data", "patients", "one group %", "two %", "more %"]), sep="\n")
    for name, make in cases.items():
        for n in (15, 30, 100):
            found = numbers_found(make, n)
            shares = [100 * (found == 1).mean(), 100 * (found == 2).mean(), 100 * (found > 2).mean()]
            print(line(name, n, *(f"{share:.1f}" for share in shares)), flush=True)


if __name__ == "__main__":
    main()
