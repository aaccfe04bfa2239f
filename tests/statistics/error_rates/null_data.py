"""Made-up people and values with no effect beyond covariates and folds, and what cases of tests and intervals share.

The network of a test fold multiplies what it sees by its scale; groups are unevenly spread over folds.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from heatlas.pipeline.run.config.statistics import ProgressionConfig, StatisticsConfig
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Resampling
from heatlas.pipeline.statistics.linear.correlation import partial_correlation
from heatlas.pipeline.statistics.linear.design import Design
from heatlas.pipeline.statistics.linear.fold_effect import model_within_folds
from heatlas.pipeline.statistics.linear.freedman_lane import PermutationTest, freedman_lane
from heatlas.pipeline.statistics.linear.permutations import Exchangeability

SEED, PEOPLE = 43, 60
LEVEL, LIMITS = 0.05, (0.035, 0.065)
"""Of p, and of the share of tests that reject at it."""
FAST = replace(StatisticsConfig(), permutations=199, bootstrap_samples=100, progression=ProgressionConfig(2))
DRAWS, FEWER_DRAWS, SIMULATED = 1_000, 500, 1_000
"""Of intervals, fewer where cohorts are compared; cohorts from which a true value is measured."""
Generator = np.random.Generator
Found = Iterable[tuple[Hashable, np.ndarray]]
"""Tests, and the p of some data sets of each."""
Rates = dict[Any, tuple[float, int]]
"""By test, the share of data sets in which it rejects, and data sets."""


@dataclass(frozen=True)
class Case:
    """Tests, or intervals, made on the same made-up data."""

    tables: str  # that make the tests
    data: str  # what they are
    function: Callable[..., Found]
    """The p values of a data set, from a generator of random numbers and the size of a planted effect, 0 for none."""
    effect: float = 0.0  # planted, that nearly every test should find; 0 where nothing can be planted
    caveat: bool = False  # whether the rows of such data say that p may be too small


class Cases(dict[str, Case]):
    """Cases by name, shown in their order."""

    def add(self, name: str, tables: str, data: str, effect: float = 0.0, caveat: bool = False) -> Callable[[Any], Any]:
        """Put a function among the cases."""

        def put(function: Callable[..., Found]) -> Callable[..., Found]:
            self[name] = Case(tables, data, function, effect, caveat)
            return function

        return put


CASES, INTERVALS = Cases(), Cases()
"""Tests, and intervals whose misses are counted; modules named null_ add theirs."""


def rates(name: str, case: Case, data_sets: int, seconds: float = np.inf, effect: float = 0.0) -> Rates:
    """How often each test of a case rejects."""
    planted = (effect,) if effect else ()
    found = (case.function(generator(SEED, "type-one-error", name, i), *planted) for i in range(data_sets))
    return counted(found, data_sets, seconds)


def counted(found: Iterable[Found], data_sets: int, seconds: float = np.inf) -> Rates:
    """Share of data sets in which each test rejects, until each has so many; those without p are left out of count."""
    p_values: dict[Hashable, list[np.ndarray]] = defaultdict(list)
    started = time.monotonic()
    for one in found:
        for test, p in one:
            p_values[test].append(np.asarray(p, float))
        fewest = min((sum(len(p) for p in own) for own in p_values.values()), default=0)
        if fewest >= data_sets or time.monotonic() - started > seconds:
            break
    every = {test: np.concatenate(own) for test, own in p_values.items()}
    known = {test: p[np.isfinite(p)] for test, p in every.items() if np.isfinite(p).any()}
    return {test: (float((p <= LEVEL).mean()), len(p)) for test, p in known.items()}


def fast(**changes: Any) -> StatisticsConfig:
    """Settings of the statistics, with few permutations and draws."""
    return replace(FAST, **changes)


def orders(rng: Generator) -> Resampling:
    return Resampling.orders(FAST, rng)


def seed_of(rng: Generator) -> int:
    return int(rng.integers(2**31))


def permuted(
    values: np.ndarray, design: Design, exchange: Exchangeability, rng: Generator, method: str, groups: Any = None
) -> PermutationTest:
    """A coefficient's t or F ("linear") where groups may differ in variance, or a correlation."""
    if method == "linear":
        return freedman_lane(values, design, exchange, orders(rng), groups)
    return partial_correlation(values, design, exchange, orders(rng), method)


def term_test(
    values: np.ndarray, formula: str, term: str, frame: pd.DataFrame, rng: Generator, method: str = "linear",
    spread: str = "",
) -> PermutationTest:  # fmt: skip
    """The test of a term as the tables make it, fold held; `spread`: a column of groups that may differ in variance."""
    groups = frame[spread].tolist() if spread else None
    model = model_within_folds(formula, term, frame, True, groups)
    return permuted(values, model.design, model.exchange, rng, method, groups)


def misses(low: Any, high: Any, true: float) -> np.ndarray:
    """0 where an interval misses the true value, 1 where it does not: so misses count as p <= .05; NaN without one."""
    low, high = np.atleast_1d(low).astype(float), np.atleast_1d(high).astype(float)
    return np.where(np.isnan(low), np.nan, (low <= true) & (true <= high))


def people(rng: Generator, levels: int = 3) -> pd.DataFrame:
    """60 participants; folds are unbalanced over x, age and group, sites as even as can be."""
    fold = np.arange(PEOPLE) % 4
    patient = rng.random(PEOPLE) < np.array([0.2, 0.3, 0.4, 0.5])[fold]
    patient[:8], patient[8:16] = True, False
    age = rng.normal(74, 6, PEOPLE) + 3 * patient + fold
    frame = pd.DataFrame({"age": age, "fold": fold, "label": patient.astype(float)})
    frame["sex"] = np.where(rng.random(PEOPLE) < 0.5, "M", "F")
    frame["field_strength"] = np.where(rng.random(PEOPLE) < 0.3 + 0.1 * fold, "3", "1.5")
    frame["site"] = np.char.add("s", rng.permutation(np.arange(PEOPLE) % levels).astype(str))
    frame["x"] = 0.08 * (age - 75) + 0.4 * fold - 0.8 * patient + rng.normal(size=PEOPLE)
    return frame


def relevance(frame: pd.DataFrame, columns: int, rng: Generator, spread: float = 1.0) -> np.ndarray:
    """Values of networks that differ in level and scale; they go with age, and patients have `spread` as much SD."""
    values = rng.normal(size=(PEOPLE, columns)) * np.where(frame["label"] == 1, spread, 1.0)[:, None]
    values += 0.08 * (frame["age"].to_numpy()[:, None] - 75)
    fold = frame["fold"].to_numpy()[:, None]
    return values * (1 + 0.5 * fold) + 2.0 * fold


def planted(formula: str, term: str, frame: pd.DataFrame, effect: float) -> np.ndarray:
    """What to add to values so that they go with the tested term, fold held, (people, 1)."""
    columns = model_within_folds(formula, term, frame, True).design.tested
    return effect * (columns / columns.std(axis=0)).sum(axis=1, keepdims=True)


SCALES = np.array([1.0, 1.5, 2.0, 3.0])
"""Of the networks of four folds."""
COLUMNS = 10
"""Independent sets of values for the same people."""


def unbalanced(rng: Generator, n: int, least: float = 0.15, most: float = 0.85) -> tuple[np.ndarray, np.ndarray]:
    """Fold and group (0, 1) of people; the share of group 1 rises from fold to fold."""
    fold = np.arange(n) % len(SCALES)
    group = rng.random(n) < np.linspace(least, most, len(SCALES))[fold]
    group[:8], group[8:16] = True, False  # each fold has two of either
    return fold, group.astype(np.intp)


def seen(values: np.ndarray, fold: np.ndarray, level: float = 2.0) -> np.ndarray:
    """Values (people, columns) in the eyes of four networks that differ in scale and, by `level`, in level."""
    return values * SCALES[fold][:, None] + level * fold[:, None]


def scans_of(rng: Generator, of_people: np.ndarray, person: np.ndarray, noise: float = 0.5) -> np.ndarray:
    """Values of scans: those of their people, and noise of so many standard deviations."""
    return of_people[person] + noise * rng.normal(size=(len(person), *of_people.shape[1:]))


def lognormal(z: np.ndarray, sigma: float, standard: bool = True) -> np.ndarray:
    """Normal values made lognormal, of mean 0 and, where `standard`, of standard deviation 1."""
    grown = np.exp(sigma**2)
    return (np.exp(sigma * z) - np.exp(sigma**2 / 2)) / (np.sqrt((grown - 1) * grown) if standard else 1.0)


def drawn(rng: Generator, kind: str, size: tuple[int, ...], standard: bool = False) -> np.ndarray:
    """Values of mean 0: normal, lognormal of the sigma that ends the kind, or mostly zeros."""
    z = rng.normal(size=size)
    if kind == "85 % zeros":
        return np.exp(z) * (rng.random(size) < 0.15) - 0.15 * np.exp(0.5)
    return z if kind == "normal" else lognormal(z, float(kind.split()[-1]), standard)
