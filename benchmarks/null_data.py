"""Made-up people and relevance with no effect beyond covariates and folds, and cases of tests on them.

The network of a test fold multiplies what it sees by its scale; groups are unevenly spread over folds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from heatlas.pipeline.run.config.statistics import ProgressionConfig, StatisticsConfig
from heatlas.pipeline.statistics.arrays import Resampling
from heatlas.pipeline.statistics.associations.volume_association import volume_association
from heatlas.pipeline.statistics.linear.correlation import partial_correlation
from heatlas.pipeline.statistics.linear.fold_effect import FoldModel, model_within_folds
from heatlas.pipeline.statistics.linear.freedman_lane import PermutationTest, freedman_lane

SEED, PEOPLE = 43, 60
LEVEL, LIMITS = 0.05, (0.035, 0.065)
"""Of p, and of the share of tests that reject at it."""
FAST = replace(StatisticsConfig(), permutations=199, bootstrap_samples=100, progression=ProgressionConfig(2))
Generator = np.random.Generator
Found = Iterable[tuple[str, np.ndarray]]
"""Tests, and the p of some data sets of each."""


@dataclass(frozen=True)
class Case:
    """Tests made on the same made-up data."""

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


def fast(**changes: Any) -> StatisticsConfig:
    """Settings of the statistics, with few permutations and draws."""
    return replace(FAST, **changes)


def orders(rng: Generator) -> Resampling:
    return Resampling.orders(FAST, rng)


def linear_test(
    values: np.ndarray,
    formula: str,
    term: str,
    frame: pd.DataFrame,
    rng: Generator,
    groups: Sequence[Any] | None = None,
) -> PermutationTest:
    """The test of a term as the tables make it, fold held; groups may differ in variance."""
    model = model_within_folds(formula, term, frame, True, groups)
    return freedman_lane(values, model.design, model.exchange, orders(rng), groups)


def correlation_test(
    values: np.ndarray, formula: str, frame: pd.DataFrame, rng: Generator, method: Any = "pearson"
) -> PermutationTest:
    """The test of x as the tables make it, fold held."""
    model = model_within_folds(formula, "x", frame, True)
    return partial_correlation(values, model.design, model.exchange, orders(rng), method)


def people(rng: Generator, folds: int = 4, levels: int = 3) -> pd.DataFrame:
    """60 participants; folds are unbalanced over x, age and group, sites as even as can be."""
    fold = np.arange(PEOPLE) % folds
    patient = rng.random(PEOPLE) < np.array([0.2, 0.3, 0.4, 0.5])[fold % 4]
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


def planted(model: FoldModel, effect: float) -> np.ndarray:
    """What to add to values so that they go with the tested term, (people, 1)."""
    tested = model.design.tested
    shift: np.ndarray = effect * (tested / tested.std(axis=0)).sum(axis=1, keepdims=True)
    return shift


HORIZON = 36
"""Months that tell pMCI from sMCI."""


def answers(person: np.ndarray, positive: np.ndarray, called: np.ndarray) -> pd.DataFrame:
    """People of scans with their class, and whether it was found."""
    outcome = np.where(called == positive, np.where(called, "TP", "TN"), np.where(called, "FP", "FN"))
    return pd.DataFrame({"participant_id": person.astype(str), "target": positive.astype(float), "outcome": outcome})


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


def misses(low: np.ndarray, high: np.ndarray, true: float) -> np.ndarray:
    """0 where an interval misses the true value, 1 where it does not: so misses count as p <= .05; NaN without one."""
    inside = ((low <= true) & (true <= high)).astype(float)
    return np.where(np.isnan(low), np.nan, inside)


def missed(low: float, high: float, true: float) -> np.ndarray:
    """As `misses`, of one interval."""
    return misses(np.array([low], float), np.array([high], float), true)


def beside_volumes(
    person: np.ndarray, fold: Any, volume: np.ndarray, sums: Sequence[np.ndarray], rng: Generator, draws: int = 100
) -> pd.DataFrame:
    """The table of hippocampi: their volume in each scan, and sums of relevance in several maps."""
    frame = pd.DataFrame({"participant_id": person.astype(str), "fold": fold, "hippocampus_mm3": volume})
    frame = frame.assign(hippocampus_per_tiv=np.nan, hippocampus_source="made up")
    maps = {f"map {place}": frame.assign(map=f"map {place}", relevance_sum=own) for place, own in enumerate(sums)}
    settings, seed = fast(bootstrap_samples=draws), int(rng.integers(2**31))
    return volume_association(pd.concat(maps.values()), list(maps), True, settings, seed)
