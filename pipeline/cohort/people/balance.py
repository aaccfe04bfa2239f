"""How alike the folds of a split are in sex, age and site, and how they are made so.

Folds are drawn stratified by class; then participants of one class change places between folds as long as that makes
the folds more alike (`balanced`). Numbers per class and fold stay as drawn, unknown values count as average, and where
nothing is known nobody moves. Considered: scikit-learn's ``StratifiedKFold`` over cells of class, sex, age and site
(most cells have fewer people than there are folds; it refuses if all have), ``StratifiedGroupKFold`` (one variable),
and iterative stratification (Sechidis et al. 2011; another package, categories only, keeps no counts per class).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.declared import declared

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

STRATUM = "class"
NUMBERS = ("age",)
DRAWS = 200
"""Splits drawn for `by_chance`."""
GAIN = 1e-9
"""Smallest decrease of the imbalance that an exchange is made for; less is rounding."""

SPLIT_BALANCE_TABLE = declared("split_balance", __file__, draws=DRAWS)
MEAN_DIFFERENCE, ASSOCIATION = SPLIT_BALANCE_TABLE.values["measure"]


def facts_of(scans: Sequence[Scan], person_of: Mapping[str, str]) -> pd.DataFrame:
    """Age, sex, site and field strength of each person's first labelled scan, indexed by person; NaN where unknown."""
    first: dict[str, Scan] = {}
    for scan in sorted(scans, key=lambda scan: (scan.age is None, scan.age or 0.0, scan.place)):
        if scan.label is not None:
            first.setdefault(person_of[scan.participant_id], scan)
    rows = {person: (scan.age, scan.sex, scan.site, scan.field_strength) for person, scan in sorted(first.items())}
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=["age", "sex", "site", "field_strength"])
    return frame.astype({"age": float, "sex": object, "site": object, "field_strength": object})


def features_of(facts: pd.DataFrame, variables: Sequence[str]) -> Floats:
    """Columns to balance (people, columns): each variable has mean 0 and total variance 1; unknown values are 0."""
    parts = [np.zeros((len(facts), 0))]
    for name in variables:
        if name in NUMBERS:
            values = facts[name].to_numpy(float)
            known_values = values[~np.isnan(values)]
            if len(known_values) and np.ptp(known_values) > 0:
                parts.append(np.nan_to_num((values - known_values.mean()) / known_values.std())[:, None])
            continue
        codes, levels = pd.factorize(facts[name])
        if len(levels) > 1:
            share = np.bincount(codes[codes >= 0]) / (codes >= 0).sum()
            columns = (np.eye(len(levels))[codes] - share) / np.sqrt(share * (len(levels) - 1))
            parts.append(np.where((codes >= 0)[:, None], columns, 0.0))
    return np.concatenate(parts, axis=1)


def balanced(fold: Indices, stratum: Indices, features: Floats, rng: np.random.Generator) -> Indices:
    """Folds (people,) after exchanges of people of one stratum that make folds more alike.

    The imbalance is the sum of squares of the folds' sums of features (people, columns), over everyone and within each
    stratum. Each person in turn, in random order, changes places with whoever lowers it most, until nobody can.
    """
    fold = fold.copy()
    alike = {int(number): np.flatnonzero(stratum == number) for number in np.unique(stratum)}
    in_fold = np.eye(int(fold.max()) + 1)[fold]
    sums = {  # of a fold: of all its people, and of those of the stratum from the stratum's mean
        number: in_fold.T @ features + in_fold[who].T @ (features[who] - features[who].mean(axis=0))
        for number, who in alike.items()
    }
    moved = bool(features.any())
    while moved:
        moved = False
        for person in rng.permutation(len(fold)):
            stratum_of_person, others = int(stratum[person]), alike[int(stratum[person])]
            step = features[others] - features[person]
            difference = sums[stratum_of_person][fold[person]] - sums[stratum_of_person][fold[others]]
            change = 2 * (step * difference).sum(axis=1) + 4 * (step**2).sum(axis=1)
            change[fold[others] == fold[person]] = 0.0
            best = int(change.argmin())
            if change[best] < -GAIN:
                other = others[best]
                for number in sums:
                    sums[number][fold[person]] += (1 + (number == stratum_of_person)) * step[best]
                    sums[number][fold[other]] -= (1 + (number == stratum_of_person)) * step[best]
                fold[person], fold[other] = fold[other], fold[person]
                moved = True
    return fold


def imbalance(values: Floats, fold: Indices, number: bool) -> float:
    """Largest standardised mean difference between a fold and the others, or Cramér's V; NaN if nothing varies.

    `values` (people,): numbers, or codes 0..L-1 of categories; NaN where unknown. `fold` (people,).
    """
    is_known = ~np.isnan(values)
    values, fold = values[is_known], np.unique(fold[is_known], return_inverse=True)[1]
    if len(np.unique(values)) < 2 or len(np.unique(fold)) < 2:
        return float("nan")
    if number:
        sizes, sums = np.bincount(fold), np.bincount(fold, weights=values)
        others = (values.sum() - sums) / (len(values) - sizes)
        return float(np.abs(sums / sizes - others).max() / values.std(ddof=1))
    level = np.unique(values, return_inverse=True)[1]
    counts = np.zeros((int(level.max()) + 1, int(fold.max()) + 1))
    np.add.at(counts, (level, fold), 1.0)
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / len(values)
    return float(np.sqrt(((counts - expected) ** 2 / expected).sum() / len(values) / (min(counts.shape) - 1)))


def balance_table(
    facts: pd.DataFrame, stratum: Indices, fold: Indices, variables: Sequence[str], rng: np.random.Generator
) -> pd.DataFrame:
    """How alike the folds are in class and in each fact that varies; columns of `SPLIT_BALANCE_TABLE`."""
    drawn = np.tile(fold, (DRAWS, 1))
    for number_of_stratum in np.unique(stratum):
        members = stratum == number_of_stratum
        drawn[:, members] = rng.permuted(drawn[:, members], axis=1)
    rows = []
    for name in (STRATUM, *map(str, facts)):
        number = name in NUMBERS
        column = pd.Series(stratum) if name == STRATUM else facts[name]
        codes = pd.factorize(column)[0].astype(float)
        values = column.to_numpy(float) if number else np.where(codes >= 0, codes, np.nan)
        difference = imbalance(values, fold, number)
        if np.isnan(difference):
            continue
        measure, n_levels = (MEAN_DIFFERENCE, None) if number else (ASSOCIATION, column.nunique())
        by_chance = float(np.mean([imbalance(values, split, number) for split in drawn]))
        is_balanced = name == STRATUM or name in variables
        rows.append((name, measure, difference, by_chance, is_balanced, n_levels, int(column.notna().sum())))
    return SPLIT_BALANCE_TABLE.frame(rows).astype({"n_levels": "Int64"})


def balance_sentence(table: pd.DataFrame) -> str:
    """The table in a sentence; empty if nothing but the class is known."""
    phrases = [
        f"in mean {row.variable} by {row.imbalance:.2f} standard deviations ({row.by_chance:.2f} by class alone)"
        if row.measure == MEAN_DIFFERENCE
        else f"in {row.variable} by {row.imbalance:.2f} of 1 ({row.by_chance:.2f} by class alone)"
        for row in table[table["variable"] != STRATUM].itertuples()
    ]
    return f"folds, dealt to be alike, differ {', '.join(phrases)}" if phrases else ""
