"""How often the interval of a region's place holds its true place, and the set of firsts the true first.

    OMP_NUM_THREADS=1 python benchmarks/place_coverage.py --output docs/benchmarks/statistics.md
    OMP_NUM_THREADS=1 python benchmarks/place_coverage.py --only "near" --data-sets 100

Regions have true effects, so true places; each data set is ranked by Hedges' g, as group_comparisons does. Beside
it what percentiles of bootstrapped places would do.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from harness import STATISTICS, arguments_of, line, show, table

from heatlas.pipeline.regions.effect_size import hedges_g
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Floats, Indices
from heatlas.pipeline.statistics.comparison.external import weighted_g
from heatlas.pipeline.statistics.groups.gains import influence_on_g, influence_on_r, place_bounds
from heatlas.pipeline.statistics.linear.permutations import Exchangeability
from heatlas.pipeline.statistics.resampling.bootstrap import participant_draws, strata_of

SEED, REGIONS, CONFIDENCE = 44, 20, 0.95
PERCENTILE_DRAWS = 500


@dataclass(frozen=True, eq=False)
class Cell:
    """People and regions: true effects in standard deviations of all people, and how values vary.

    With one size effects are correlations with a number.
    """

    effects: Floats
    sizes: tuple[int, ...]
    correlation: float = 0.0  # of regions, by one factor
    ratio: float = 1.0  # standard deviation of the first class by that of the second
    skew: float = 0.0  # sigma of lognormal values; 0 for normal ones
    scales: tuple[float, ...] = (1.0,)  # of the networks, one per fold


TIES, WINNER = np.zeros(REGIONS), np.r_[1.5, np.zeros(REGIONS - 1)]
PAIR = np.r_[1.5, 1.5, np.zeros(REGIONS - 2)]
NEAR, LADDER = np.linspace(0.62, 0.58, REGIONS), np.linspace(1.2, 0.0, REGIONS)
FIVE = (1.0, 1.5, 2.0, 2.5, 3.0)
CELLS = {
    "all tied, 15:15": Cell(TIES, (15, 15)),
    "all tied, 30:90": Cell(TIES, (30, 90)),
    "all tied, 67 regions correlated .5, 60:70, five networks 1 to 3 in scale":
        Cell(np.zeros(67), (60, 70), 0.5, scales=FIVE),
    "all tied at .6, correlated .5, 30:90, SD 2:1": Cell(np.full(REGIONS, 0.6), (30, 90), 0.5, 2.0),
    "all tied, 15:45, SD 2:1, lognormal": Cell(TIES, (15, 45), 0.0, 2.0, 0.6),
    "all tied, 15:15, five networks 1 to 3 in scale": Cell(TIES, (15, 15), scales=FIVE),
    "near ties (.62 to .58), 30:90": Cell(NEAR, (30, 90)),
    "near ties (.62 to .58), correlated .8, 30:90, SD 2:1": Cell(NEAR, (30, 90), 0.8, 2.0),
    "one first (1.5; others 0), 15:15": Cell(WINNER, (15, 15)),
    "one first (1.5; others 0), 30:90": Cell(WINNER, (30, 90)),
    "two tied first (1.5; others 0), 15:15": Cell(PAIR, (15, 15)),
    "two tied first (1.5; others 0), 60:70": Cell(PAIR, (60, 70)),
    "two tied first (1.5; others 0), correlated .5, 30:90, SD 2:1, five networks":
        Cell(PAIR, (30, 90), 0.5, 2.0, scales=FIVE),
    "1.2 to 0 in equal steps, 30:90": Cell(LADDER, (30, 90)),
    "1.2 to 0 in equal steps, correlated .5, 60:70, five networks": Cell(LADDER, (60, 70), 0.5, scales=FIVE),
    "all tied, r .4 with a number, correlated .5, 40 people": Cell(np.full(REGIONS, 0.4), (40,), 0.5),
    "two tied first, r .7 with a number; others 0, 120 people, five networks":
        Cell(np.r_[0.7, 0.7, np.zeros(REGIONS - 2)], (120,), scales=FIVE),
}  # fmt: skip


@dataclass(eq=False)
class Coverage:
    """What was counted over data sets."""

    places: list[Floats] = field(default_factory=list)  # by region: whether its interval holds its true place
    of_first: list[bool] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)  # regions that may be first
    width: list[float] = field(default_factory=list)
    percentile: list[float] = field(default_factory=list)


def data_set(cell: Cell, rng: np.random.Generator) -> tuple[Floats, Floats, Indices]:
    """Values of people, in one spread; who is of the first class, or their number; fold."""
    n, first, second = sum(cell.sizes), cell.sizes[0], sum(cell.sizes[1:])
    is_first = np.arange(n) < first
    fold = np.r_[np.arange(first), np.arange(second)] % len(cell.scales)
    shared, own = rng.standard_normal((n, 1)), rng.standard_normal((n, len(cell.effects)))
    z = np.sqrt(cell.correlation) * shared + np.sqrt(1 - cell.correlation) * own
    if cell.skew:
        grown = np.exp(cell.skew**2)
        z = (np.exp(cell.skew * z) - np.sqrt(grown)) / np.sqrt(grown * (grown - 1))
    if not second:
        age = rng.standard_normal(n)
        x = np.sqrt(1 - cell.effects**2) * z + age[:, None] * cell.effects
        x *= np.asarray(cell.scales)[fold][:, None]
        return Exchangeability.free(n).in_blocks(fold.tolist()).even(x), age, fold.astype(np.intp)
    pooled = np.sqrt((first * cell.ratio**2 + second) / n)
    x = z * np.where(is_first, cell.ratio, 1.0)[:, None] + is_first[:, None] * cell.effects * pooled
    x *= np.asarray(cell.scales)[fold][:, None]
    return Exchangeability.free(n).in_blocks(fold.tolist()).even(x), is_first.astype(float), fold.astype(np.intp)


def coverage(name: str, data_sets: int, percentile: bool = False) -> Coverage:
    """How often the true places of a cell are held; a region that shares the first place stands for all of these."""
    cell, counted = CELLS[name], Coverage()
    true = 1 + (cell.effects > cell.effects[:, None]).sum(axis=1)
    for i in range(data_sets):
        rng = generator(SEED, "places", name, i)
        x, side, fold = data_set(cell, rng)
        estimates, influence, group = hedges_g(x, side, fold), influence_on_g(x, side > 0, fold), side > 0
        if len(cell.sizes) == 1:
            held = (fold[:, None] == np.unique(fold)).astype(float)
            left = [one - held @ np.linalg.lstsq(held, one)[0] for one in (side, x)]
            estimates = left[0] @ left[1] / np.linalg.norm(left[0]) / np.linalg.norm(left[1], axis=0)
            influence, group = influence_on_r(x, side[:, None], held), np.zeros(len(x), bool)
        low, high = place_bounds(estimates, influence, group.astype(np.intp), CONFIDENCE, rng)
        counted.places.append((low <= true) & (true <= high))
        counted.of_first.append(bool(low[0] == 1))
        counted.firsts.append(int((low == 1).sum()))
        counted.width.append(float((high - low + 1).mean()))
        if percentile:
            weights = participant_draws(strata_of(fold, group.astype(np.intp)).tolist(), PERCENTILE_DRAWS, rng)
            drawn = weighted_g(x, side, fold, weights)
            places = 1 + (drawn[:, None, :] > drawn[:, :, None]).sum(axis=2)
            ends = np.quantile(places, [0.025, 0.975], axis=0)
            counted.percentile.append(float(((ends[0] <= true) & (true <= ends[1])).mean()))
    return counted


def row_of(name: str, counted: Coverage) -> str:
    share = lambda values: f"{100 * float(np.mean(values)):.1f} %"  # noqa: E731
    places = np.asarray(counted.places)
    held = share(places), share(places.mean(axis=0).min()), f"{np.mean(counted.width):.1f}"
    percentile = share(counted.percentile) if counted.percentile else ""
    return line(name, share(counted.of_first), f"{np.mean(counted.firsts):.1f}", *held, percentile)


def main() -> None:
    options = arguments_of(
        __doc__,
        "--data-sets --output",
        data_sets=1_000,
        only=("", "cells whose name begins so"),
        percentile=(200, "data sets for percentiles of bootstrapped places"),
    )
    rows = []
    for name in CELLS:
        if name.startswith(options.only):
            counted = coverage(name, options.data_sets)
            counted.percentile = coverage(name, options.percentile, percentile=True).percentile
            rows.append(row_of(name, counted))
            print(rows[-1], flush=True)
    columns = ["cell", "the first is among those that may be", "how many may be", "place held, mean over regions"]
    columns += ["in the worst region", "places in the interval", "percentiles of bootstrapped places hold it"]
    show("\n".join([*table(columns), *rows]), options.output, "Places of regions", STATISTICS)


if __name__ == "__main__":
    main()
