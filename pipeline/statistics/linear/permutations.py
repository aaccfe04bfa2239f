"""Which permutations are allowed under the null hypothesis, the p they give, and the false discovery rate.

Participants may have repeated scans. They are exchanged as

- *participant means*: rows are averaged over each participant, then participants are permuted. The default for
  questions between participants: it keeps all of them and holds its level (docs/benchmarks/statistics.md).
- *whole participants*: all rows of a participant go with those of one with the same number; for statistics over scans.
- *free*: every row is a participant.

Visits are never exchanged within a participant: where participants drift in different directions, such a test rejects
too often (14.6 % at 5 %). With blocks, participants are permuted within their block only (relevance: within test
folds).

p = (b+1)/(m+1) for m random permutations (Phipson & Smyth 2010); if there are no more than m distinct ones, all are
used, including the observed order, and p is exact. Permutations that only exchange rows with equal model rows are not
distinct: two groups of 5 and 6 have 462 permutations, not 11!.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numba
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import false_discovery_control, rankdata

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.arrays import Flags, Floats, Indices


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a loop, cached on disk where possible."""
    try:
        loop: Callable[..., Any] = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # neither this folder nor the user's cache is writable
        loop = numba.njit(nogil=True, error_model="numpy")(function)
    return loop


@compiled
def shuffle_rows(orders: Any, draws: Any) -> None:
    """Shuffle each row (Fisher & Yates) with 32-bit draws of the same shape, eight rows interleaved for speed."""
    for first in range(0, orders.shape[0], 8):
        end = min(first + 8, orders.shape[0])
        for last in range(orders.shape[1] - 1, 0, -1):
            for i in range(first, end):
                chosen = (np.uint64(draws[i, last]) * np.uint64(last + 1)) >> np.uint64(32)
                orders[i, last], orders[i, chosen] = orders[i, chosen], orders[i, last]


@compiled
def in_order_of_cells(rows: Any, cell: Any, order: Any, start: Any) -> None:
    """Positions 0..n-1 of each permutation sorted by cell (m, n), and where cells start (m, K+1)."""
    start[:] = 0
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            start[i, cell[rows[i, j]] + 1] += 1
        for k in range(1, start.shape[1]):
            start[i, k] += start[i, k - 1]
        place = start[i].copy()
        for j in range(rows.shape[1]):
            k = cell[rows[i, j]]
            order[i, place[k]] = j
            place[k] += 1


Scheme = Literal["free", "means", "whole"]

ROWS_AT_A_TIME = 512
LIKE_THE_OTHERS = 4
"""People added to each block who vary as all do, so that a block of three is not weighted by chance."""
TIE_TOLERANCE = 1e-9
"""Relative tolerance: statistics of equivalent permutations differ only by rounding and must count as equal."""


@dataclass(frozen=True, eq=False)
class Permutations:
    """Permutations of rows (m, rows): ``values[rows[i]]`` is the i-th; `exact`: these are all distinct ones."""

    rows: NDArray[np.int32]
    exact: bool

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class Exchangeability:
    """A permutation scheme for the rows of a table: participant 0..P-1 and block of each.

    A participant with rows in several blocks belongs to that of most of them.
    """

    scheme: Scheme
    codes: Indices
    blocks: Indices | None = None

    @classmethod
    def free(cls, n_rows: int) -> Exchangeability:
        """Every row is a participant."""
        return cls("free", np.arange(n_rows, dtype=np.intp))

    @classmethod
    def participant_means(cls, participants: Sequence[Any]) -> Exchangeability:
        """Average over the rows of a participant, then permute participants."""
        return cls("means", _codes(participants))

    @classmethod
    def whole_participants(cls, participants: Sequence[Any]) -> Exchangeability:
        """Permute participants with all their rows, among those with the same number of rows."""
        return cls("whole", _codes(participants))

    def in_blocks(self, labels: Sequence[Any] | None) -> Exchangeability:
        """The same scheme with permutation within blocks only, one label per row; None for no blocks."""
        blocks = None if labels is None else pd.factorize(pd.Series(list(labels), dtype=object))[0].astype(np.intp)
        return Exchangeability(self.scheme, self.codes, blocks)

    @property
    def n_participants(self) -> int:
        return int(self.codes.max(initial=-1)) + 1

    @property
    def unit(self) -> str:
        """Name of the units of analysis, in the singular."""
        return "participant" if self.scheme in ("free", "means") else "scan"

    def of_rows(self, rows: Indices) -> Exchangeability:
        """The same scheme for some of the rows."""
        codes = np.unique(self.codes[rows], return_inverse=True)[1].astype(np.intp)
        return Exchangeability(self.scheme, codes, None if self.blocks is None else self.blocks[rows])

    def reduce(self, values: Floats) -> Floats:
        """Values of rows (rows, columns) in the units of analysis: participant means, or the values unchanged."""
        if self.scheme != "means":
            return values
        sizes = np.bincount(self.codes)
        sums = np.zeros((len(sizes), values.shape[1]))
        np.add.at(sums, self.codes, values)
        means: Floats = sums / sizes[:, None]
        return means

    def even(self, values: Floats, kinds: Sequence[Any] | None = None) -> Floats:
        """Values of units (units, columns), multiplied so that they spread alike in all blocks: as in all of them.

        Networks of different blocks multiply what they see by different factors, and the widest would decide a test.
        All columns of a kind (the map) have the same factor, the median over them: one for each column would follow its
        outliers, and family-wise p would be too small (docs/benchmarks/statistics.md). A block's variance is about its
        own mean, so that permutation within blocks does not change it; `LIKE_THE_OTHERS` people who vary as all do are
        added to it.
        """
        if self.blocks is None:
            return values
        block = self.groups_of_units(self.blocks.tolist())
        present = np.isfinite(values)
        count = np.array([np.count_nonzero(present[block == number], axis=0) for number in range(block.max() + 1)])
        clean = np.where(present, values, 0.0)
        mean = np.array([clean[block == number].sum(axis=0) for number in range(len(count))]) / np.maximum(count, 1)
        left = np.where(present, values - mean[block], 0.0) ** 2
        squares = np.array([left[block == number].sum(axis=0) for number in range(len(count))])
        freedom = np.maximum(count - 1, 0)
        pooled = squares.sum(axis=0) / np.maximum(freedom.sum(axis=0), 1)
        variance = (squares + LIKE_THE_OTHERS * pooled) / (freedom + LIKE_THE_OTHERS)
        varies = pooled > (TIE_TOLERANCE * np.abs(clean).max(axis=0, initial=0.0)) ** 2  # not by rounding only
        logs = np.log(np.divide(pooled, variance, out=np.ones_like(variance), where=varies & (variance > 0))) / 2
        factor = np.ones_like(logs)
        kind = np.zeros(values.shape[1], np.intp) if kinds is None else pd.factorize(pd.Series(list(kinds)))[0]
        for columns in (varies & (kind == number) for number in np.unique(kind)):
            if columns.any():
                factor[:, columns] = np.exp(np.median(logs[:, columns], axis=1))[:, None]
        return np.asarray(values * factor[block], dtype=float)

    def ranked(self, values: Floats) -> Floats:
        """Ranks of units (units, columns) within their block, ties at their mean, as (rank - 1/2) / units of the block.

        The difference of two groups' means is then P(first > second) + P(equal) / 2 - 1/2 in the block (Brunner and
        Munzel 2000, Biometrical J. 42:17), whatever level and scale a block's network has. A column with a missing
        value stays as it is.

        >>> within = Exchangeability.free(4).in_blocks(["a", "a", "b", "b"])
        >>> within.ranked(np.array([[3.0], [1.0], [5.0], [5.0]]))[:, 0].tolist()
        [0.75, 0.25, 0.5, 0.5]
        """
        block = np.zeros(len(values), np.intp) if self.blocks is None else self.groups_of_units(self.blocks.tolist())
        placed, complete = values.astype(float), np.isfinite(values).all(axis=0)
        for number in np.unique(block):
            members = np.ix_(block == number, complete)
            placed[members] = (rankdata(values[members], axis=0) - 0.5) / np.count_nonzero(block == number)
        return placed

    def groups_of_units(self, groups: Sequence[Any]) -> Indices:
        """Group 0..G-1 of each unit of `reduce`: that of most of a participant's scans."""
        labels = np.unique([str(group) for group in groups], return_inverse=True)[1]
        if self.scheme == "means":
            counts = np.zeros((int(self.codes.max()) + 1, int(labels.max()) + 1))
            np.add.at(counts, (self.codes, labels), 1)
            labels = counts.argmax(axis=1)
        return np.unique(labels, return_inverse=True)[1].astype(np.intp)

    def stays(self, vectors: Floats) -> Flags:
        """Mask of the columns (units, columns) that no permutation changes: those constant within blocks."""
        if self.blocks is None:
            return np.asarray(np.ptp(vectors, axis=0) <= 1e-12, bool)
        blocks = self.groups_of_units(self.blocks.tolist())
        spread = [np.ptp(vectors[blocks == block], axis=0) for block in np.unique(blocks)]
        return np.asarray(np.max(spread, axis=0) <= 1e-12, bool)

    def permutations(self, count: int, rng: np.random.Generator, alike: Sequence[int] | None = None) -> Permutations:
        """Random permutations of the units, or all distinct ones if there are no more than ``count``.

        Units with equal numbers in `alike` have equal model rows; by default all differ.
        """
        blocks = self._blocks()
        n_units = sum(block.size for block in blocks)
        marks = np.arange(n_units) if alike is None else np.asarray(alike)
        labels = [np.unique(marks[block], axis=0, return_inverse=True)[1].ravel() for block in blocks]
        distinct = math.prod(_distinct(block) for block in labels)
        if distinct <= count:
            every = [np.array(list(_arrangements(block)), dtype=np.intp) for block in labels]
            choice = np.array(list(itertools.product(*(range(len(block)) for block in every))), dtype=np.intp)
            orders: list[NDArray[np.int32]] = [block[choice[:, i]].astype(np.int32) for i, block in enumerate(every)]
        else:
            orders = [random_orders(count, len(block), rng) for block in labels]
        if self.scheme in ("free", "means") and distinct > count and len(blocks) == 1:
            return Permutations(orders[0], False)
        rows = np.empty((len(orders[0]) if orders else 1, n_units), np.int32)
        for block, order in zip(blocks, orders, strict=True):
            rows[:, block.ravel()] = block[order].reshape(len(rows), -1)
        return Permutations(rows, distinct <= count)

    def _blocks(self) -> list[Indices]:
        """Sets of exchangeable items, each of shape (items, rows per item), as rows after `reduce`."""
        sizes = np.bincount(self.codes)
        if self.scheme in ("free", "means"):
            of_block = np.zeros(len(sizes), np.intp) if self.blocks is None else self._of_participants()
            return [np.flatnonzero(of_block == block)[:, None] for block in np.unique(of_block)]
        per_participant = np.split(np.argsort(self.codes, kind="stable"), np.cumsum(sizes)[:-1])
        alike = np.column_stack([sizes, np.zeros_like(sizes) if self.blocks is None else self._of_participants()])
        return [
            np.array([per_participant[code] for code in np.flatnonzero((alike == levels).all(axis=1))], dtype=np.intp)
            for levels in np.unique(alike, axis=0)
        ]

    def _of_participants(self) -> Indices:
        """Block of each participant."""
        assert self.blocks is not None
        return Exchangeability("means", self.codes).groups_of_units(self.blocks.tolist())


def two_sided_p(observed: Floats, null: Floats, exact: bool) -> Floats:
    """Share of permutations null (m, ...) at least as extreme as the observed statistic (...), NaN where that is.

    >>> float(two_sided_p(np.array(2.0), np.array([1.0, -2.0, 0.5]), exact=False))
    0.5
    """
    b = (np.abs(null) >= np.abs(observed) * (1 - TIE_TOLERANCE)).sum(axis=0)
    return np.where(np.isnan(observed), np.nan, p_value(b, len(null), exact))


def p_value(b: NDArray[Any], m: int, exact: bool) -> Floats:
    """P from ``b`` of ``m`` permutations at least as extreme: (b+1)/(m+1), or b/m of all permutations.

    All permutations include the observed order, so b is at least 1 of them, whatever rounding says.
    """
    p: Floats = np.maximum(b, 1) / m if exact else (b + 1) / (m + 1)
    return p


def _codes(participants: Sequence[Any]) -> Indices:
    codes, _ = pd.factorize(pd.Series(list(participants), dtype=object))
    if (codes < 0).any():
        row = int(np.flatnonzero(codes < 0)[0])
        raise BadInputError(f"column participant_id: row {row + 1} has no value. Fill in the participant of each scan.")
    return codes.astype(np.intp)


def _distinct(labels: Indices) -> int:
    """Number of distinct orders of items, some of which are equal."""
    alike = math.prod(math.factorial(int(n)) for n in np.bincount(labels))
    return math.factorial(len(labels)) // alike


def _arrangements(labels: Indices) -> Iterator[Indices]:
    """One order of the items for each distinct order of their labels, including the given order."""
    groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    order = np.empty(len(labels), np.intp)

    def place(index: int, free: tuple[int, ...]) -> Iterator[Indices]:
        if index == len(groups):
            yield order.copy()
            return
        for chosen in itertools.combinations(free, len(groups[index])):
            order[list(chosen)] = groups[index]
            yield from place(index + 1, tuple(place_ for place_ in free if place_ not in chosen))

    yield from place(0, tuple(range(len(labels))))


def random_orders(count: int, n: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """Independent uniform permutations of 0..n-1, shape (count, n).

    `numpy.random.Generator.permuted` takes three times as long. A position is a 32-bit draw scaled to its range (Lemire
    2019 without rejection), which biases the probability of a permutation by at most n^2 / 2^32.
    """
    orders = np.empty((count, n), np.int32)
    orders[:] = np.arange(n, dtype=np.int32)
    for start in range(0, count, ROWS_AT_A_TIME):
        rows = orders[start : start + ROWS_AT_A_TIME]
        shuffle_rows(rows, rng.integers(0, 2**32, size=rows.shape, dtype=np.uint32))
    return orders


def benjamini_hochberg(p: Floats) -> Floats:
    """Adjusted p values that control the false discovery rate; missing tests (NaN) are ignored.

    >>> benjamini_hochberg(np.array([0.01, np.nan, 0.04])).tolist()
    [0.02, nan, 0.04]
    """
    adjusted = np.full(len(p), np.nan)
    done = ~np.isnan(p)
    if done.any():
        adjusted[done] = false_discovery_control(p[done], method="bh")
    return adjusted


def pooled_fdr(pooled: Floats, p: Floats) -> Floats:
    """`benjamini_hochberg` of p from pooled permutations (`studentised.pooled_p`), at least p.

    >>> pooled_fdr(np.array([0.0001, 0.03]), np.array([0.01, 0.02])).tolist()
    [0.01, 0.03]
    """
    return np.maximum(benjamini_hochberg(pooled), p)


def add_false_discovery_rate(table: pd.DataFrame, apart: Sequence[str], over: str, of: str = "p") -> pd.DataFrame:
    """Add ``p_fdr`` and ``family``.

    `table`: must have the column `of`. `apart`: columns whose values separate families. `over`: what varies within a
    family, for its name. `of`: column of uncorrected p.
    """
    adjusted = table.assign(p_fdr=np.nan, family="none")
    for values, part in table.groupby(list(apart), sort=False):
        rows, p = part.index, part[of].to_numpy(float)
        adjusted.loc[rows, "p_fdr"] = benjamini_hochberg(p)
        names = ", ".join(str(value) for value in values if value != "")
        adjusted.loc[rows, "family"] = f"{int((~np.isnan(p)).sum())} {over}: {names}"
    return adjusted
