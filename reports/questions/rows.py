"""Rows of the tables of a run, picked by their values, and words for tests that several questions share.

A result that is not significant among few people is never reported as no effect.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import pandas as pd

from heatlas.reports.frame.tables import correction
from heatlas.reports.questions.question import CLEAR
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import (
    count,
    fixed,
    is_missing,
    listing,
    mid_sentence,
    number,
    p_value,
    percent,
    shortened,
)

NAMED = 4  # regions named for each direction of a difference


def g_in_words(row: Mapping[Hashable, object] | pd.Series) -> str:
    """Hedges' g with its interval in square brackets.

    Examples
    --------
    >>> g_in_words({"hedges_g": 0.8, "hedges_g_low": 0.25, "hedges_g_high": 1.35}), g_in_words({"hedges_g": 0.8})
    ('0.80 [0.25 to 1.35]', '0.80')
    """
    low, high = row.get("hedges_g_low"), row.get("hedges_g_high")
    g = fixed(row["hedges_g"])
    return g if is_missing(low) or is_missing(high) else f"{g} [{fixed(low)} to {fixed(high)}]"


def rows_where(run: RunRecord, table: str, known: str = "", **values: object) -> pd.DataFrame:
    """Rows of a table of the run with these values, and with any in the column `known`; none without one of these."""
    if not run.has(table) or not set(values) <= set(run.tables[table]):
        return pd.DataFrame()
    rows = run.tables[table]
    for column, value in values.items():
        rows = rows[rows[column] == value]
    return rows[rows[known].notna()] if known and len(rows) else rows


def classes_compared(run: RunRecord, known: str = "", **values: object) -> pd.DataFrame:
    """Rows of ``group_comparisons.tsv`` about the classes, with these values."""
    return rows_where(run, "group_comparisons", known, comparison=f"{run.positive}/{run.negative}", **values)


def survivors(rows: pd.DataFrame, p: str) -> str:
    r"""How many tests are significant after correction, and the clearest one.

    Examples
    --------
    >>> survivors(pd.DataFrame({"group": ["A", "B"], "p_fwe": [0.2, 0.01]}), "p_fwe")
    '1 of 2 regions with a corrected p (family-wise, largest statistic) below 0.05 (smallest: p\xa0=\xa00.010, B)'
    """
    tested = rows[rows[p].notna()]
    if tested.empty:
        return "nothing could be tested"
    first = tested.sort_values(p, kind="stable").iloc[0]
    significant = int((tested[p] < CLEAR).sum())
    return (
        f"{number(significant)} of {count(len(tested), 'region')} with a corrected p {correction(p)} below 0.05 "
        f"(smallest: {p_value(first[p])}, {shortened(first['group'])})"
    )


def by_ranks(positive: str, negative: str, rows: pd.DataFrame) -> str:
    """Where ranks and means disagree on which regions differ, as a sentence with a space before it; empty elsewhere.

    `rows` compare the classes, one per region. A table of an earlier version has no ranks.
    """
    if "p_fwe_ranks" not in rows:
        return ""
    known = rows[rows["p_fwe_ranks"].notna()].sort_values("p_fwe_ranks", kind="stable")
    ranks, means = known["p_fwe_ranks"] < CLEAR, known["p_fwe"] < CLEAR
    more, less = known[ranks & ~means], known[means & ~ranks]
    by_ranks_only = [
        f"{mid_sentence(name)} ({positive} above {negative} in {percent(share, 0)} of pairs)"
        for name, share in zip(more["group"], more["superiority"], strict=True)
    ]
    by_means_only = [mid_sentence(name) for name in less["group"]]
    parts = [f"also {first_few(by_ranks_only)}"] if by_ranks_only else []
    parts += [f"not {first_few(by_means_only)}"] if by_means_only else []
    return f" By ranks, which no single person's value can move: {', '.join(parts)}." if parts else ""


def first_few(names: Sequence[str], shown: int = NAMED) -> str:
    """The first names, and how many more there are."""
    more = [f"{number(len(names) - shown)} more"] if len(names) > shown else []
    return listing([*names[:shown], *more])


def folds_held(table: pd.DataFrame) -> bool:
    """Whether the test fold is held in any comparison of a table."""
    return bool(table["fold_held"].fillna(False).astype(bool).any())


def difference_in_words(table: pd.DataFrame) -> str:
    """What the column of differences is, to end a caption, where it is not the difference of the means beside it."""
    if not folds_held(table):
        return ""
    return " The difference, its interval and g are within test folds: not the difference of the two means."
