"""Patterns over regions: places of regions, rankings, images beside maps, other cohorts, and subtypes of patients.

The interval of a region's place should hold its true place, and the set of firsts the true first: regions have true
effects, so true places; each data set is ranked by Hedges' g, as group_comparisons does. Beside it what percentiles of
bootstrapped places would do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import null_data as null
import numpy as np
import pandas as pd
from null_data import CASES, INTERVALS, Found, Generator

from heatlas.pipeline.regions.effect_size import hedges_g
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.comparison.external import _People, agreement_over_regions, weighted_g
from heatlas.pipeline.statistics.comparison.rankings import agreement
from heatlas.pipeline.statistics.groups.gains import influence_on_g, influence_on_r, place_bounds
from heatlas.pipeline.statistics.images.differences import _agreement, rank_correlation
from heatlas.pipeline.statistics.linear.permutations import Exchangeability
from heatlas.pipeline.statistics.normative.clustering import consensus, gap_statistic, ward_labels
from heatlas.pipeline.statistics.normative.subtypes import Subtypes, _compared
from heatlas.pipeline.statistics.resampling.bootstrap import participant_draws, strata_of

REGIONS = 30
SCALE = np.array([0.5, 1.0, 1.5, 2.0, 3.0])
"""Of the networks of five folds."""


@CASES.add("rankings", "ranking_agreement, run_agreement", "68 regions", 0.1)
def rankings(rng: Generator, effect: float = 0.0) -> Found:
    for k in (2, 5):
        own = agreement(rng.normal(size=(k, 68)) + effect * np.arange(68), 10, null.fast().permutations, rng)
        yield f"Kendall's W of {k} rankings", np.array([own.p])
        yield f"top 10 of {k} rankings", np.array([own.overlap_p])


@CASES.add("cohorts: images", "image_agreement", "30 regions, five networks of scale 0.5 to 3")
def images_and_maps(rng: Generator) -> Found:
    """Images do not differ; the map is the image in the eyes of five networks, or is unrelated; most vary unequally."""
    for few, rest, spread, same in ((30, 90, 2.0, True), (8, 22, 2.0, True), (30, 90, 1.0, True), (30, 90, 2.0, False)):
        n = few + rest
        first, fold = np.arange(n) < few, rng.permutation(n) % 5
        wide = np.where(first, spread, 1.0)[:, None]
        images = rng.normal(size=(n, REGIONS)) * wide
        of_map = images if same else rng.normal(size=(n, REGIONS)) * wide
        of_map = of_map * SCALE[fold][:, None] + fold[:, None]
        frame = pd.DataFrame({"participant_id": np.arange(n).astype(str), "target": first.astype(int), "fold": fold})
        config = SimpleNamespace(statistics=null.fast(covariates="", bootstrap_samples=20))
        values = SimpleNamespace(maps=["map"], densities=of_map[:, None])
        inputs = SimpleNamespace(frame=frame, config=config, seed=null.seed_of(rng), values=values)
        row = _agreement(inputs, np.arange(n), images, "map")
        named = f"images and {'a map of them' if same else 'another map'}, {few} and {rest} people, SD {spread:g}:1"
        yield named, np.array([row["p"]])


@INTERVALS.add("cohorts: regions", "external_validation", "120 people and new ones")
def same_regions(rng: Generator) -> Found:
    """Sizes of the difference of the classes over regions that are unrelated, or correlate .5."""
    for related in (0.0, 0.5):
        for n in (60, 30, 20):
            z = rng.normal(size=(2, REGIONS))
            sizes = 0.4 * np.stack([z[0], related * z[0] + np.sqrt(1 - related**2) * z[1]])
            people = []
            for size, number, folds in zip(sizes, (120, n), (5, 1), strict=True):
                first, fold = np.arange(number) % 2 == 0, np.arange(number) // 2 % folds
                people.append(_People(rng.normal(size=(number, REGIONS)) + size * first[:, None], first, fold))
            row = agreement_over_regions(people, null.fast(bootstrap_samples=null.FEWER_DRAWS), rng)
            truly = float(rank_correlation(*sizes[:, None])[0])  # people are drawn, regions are not
            named = f"{REGIONS} regions with {n} new people, sizes correlated {related}"
            yield f"rank correlation over {named}", null.misses(row["ci_low"], row["ci_high"], truly)


PLACES_SEED, PLACES, CONFIDENCE, PERCENTILE_DRAWS = 44, 20, 0.95, 500


@dataclass(frozen=True, eq=False)
class Cell:
    """People and regions: true effects in standard deviations of all people, and how values vary.

    With one size effects are correlations with a number.
    """

    effects: np.ndarray
    sizes: tuple[int, ...]
    correlation: float = 0.0  # of regions, by one factor
    ratio: float = 1.0  # standard deviation of the first class by that of the second
    skew: float = 0.0  # sigma of lognormal values; 0 for normal ones
    scales: tuple[float, ...] = (1.0,)  # of the networks, one per fold

    def data_set(self, rng: Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values of people, in one spread; who is of the first class, or their number; fold."""
        n, first, second = sum(self.sizes), self.sizes[0], sum(self.sizes[1:])
        is_first = np.arange(n) < first
        fold = np.r_[np.arange(first), np.arange(second)] % len(self.scales)
        shared, own = rng.standard_normal((n, 1)), rng.standard_normal((n, len(self.effects)))
        z = np.sqrt(self.correlation) * shared + np.sqrt(1 - self.correlation) * own
        z = null.lognormal(z, self.skew) if self.skew else z
        if second:
            side, pooled = is_first.astype(float), np.sqrt((first * self.ratio**2 + second) / n)
            x = z * np.where(is_first, self.ratio, 1.0)[:, None] + side[:, None] * self.effects * pooled
        else:
            side = rng.standard_normal(n)
            x = np.sqrt(1 - self.effects**2) * z + side[:, None] * self.effects
        x *= np.asarray(self.scales)[fold][:, None]
        return Exchangeability.free(n).in_blocks(fold.tolist()).even(x), side, fold.astype(np.intp)


TIES, WINNER = np.zeros(PLACES), np.r_[1.5, np.zeros(PLACES - 1)]
PAIR = np.r_[1.5, 1.5, np.zeros(PLACES - 2)]
NEAR, LADDER = np.linspace(0.62, 0.58, PLACES), np.linspace(1.2, 0.0, PLACES)
FIVE = (1.0, 1.5, 2.0, 2.5, 3.0)
CELLS = {
    "all tied, 15:15": Cell(TIES, (15, 15)),
    "all tied, 30:90": Cell(TIES, (30, 90)),
    "all tied, 67 regions correlated .5, 60:70, five networks 1 to 3 in scale":
        Cell(np.zeros(67), (60, 70), 0.5, scales=FIVE),
    "all tied at .6, correlated .5, 30:90, SD 2:1": Cell(np.full(PLACES, 0.6), (30, 90), 0.5, 2.0),
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
    "all tied, r .4 with a number, correlated .5, 40 people": Cell(np.full(PLACES, 0.4), (40,), 0.5),
    "two tied first, r .7 with a number; others 0, 120 people, five networks":
        Cell(np.r_[0.7, 0.7, np.zeros(PLACES - 2)], (120,), scales=FIVE),
}  # fmt: skip


def coverage(name: str, data_sets: int, percentile: bool = False) -> pd.DataFrame:
    """What is said of the places of a cell in each data set.

    Whether intervals hold each region's true place (`held`) and the set of firsts the first, how many may be first,
    places in an interval, and the share that percentiles hold. A region that shares the first place stands for all.
    """
    cell = CELLS[name]
    true = 1 + (cell.effects > cell.effects[:, None]).sum(axis=1)
    found = []
    for i in range(data_sets):
        rng = generator(PLACES_SEED, "places", name, i)
        x, side, fold = cell.data_set(rng)
        estimates, influence, group = hedges_g(x, side, fold), influence_on_g(x, side > 0, fold), side > 0
        if len(cell.sizes) == 1:
            fold_of = (fold[:, None] == np.unique(fold)).astype(float)
            left = [one - fold_of @ np.linalg.lstsq(fold_of, one)[0] for one in (side, x)]
            estimates = left[0] @ left[1] / np.linalg.norm(left[0]) / np.linalg.norm(left[1], axis=0)
            influence, group = influence_on_r(x, side[:, None], fold_of), np.zeros(len(x), bool)
        low, high = place_bounds(estimates, influence, group.astype(np.intp), CONFIDENCE, rng)
        row = {"held": (low <= true) & (true <= high), "holds_first": low[0] == 1, "firsts": (low == 1).sum()}
        row["width"] = (high - low + 1).mean()
        if percentile:
            weights = participant_draws(strata_of(fold, group.astype(np.intp)).tolist(), PERCENTILE_DRAWS, rng)
            bootstrapped = weighted_g(x, side, fold, weights)
            places = 1 + (bootstrapped[:, None, :] > bootstrapped[:, :, None]).sum(axis=2)
            ends = np.quantile(places, [0.025, 0.975], axis=0)
            row["percentile"] = ((ends[0] <= true) & (true <= ends[1])).mean()
        found.append(row)
    return pd.DataFrame(found)


@CASES.add("subtypes", "subtype_comparison", "40 patients, three groups by Ward's method", 1.5)
def subtypes(rng: Generator, effect: float = 0.0) -> Found:
    points = rng.normal(size=(40, 6))
    labels = ward_labels(points, [3])[:, 0]
    config = load_config(overrides={"statistics": {"permutations": null.fast().permutations}})
    one = Subtypes("lrp", tuple(map(str, range(40))), points, labels, np.ones(40), pd.DataFrame())
    config = replace(config, seed=null.seed_of(rng))
    values = pd.DataFrame(np.column_stack([rng.normal(size=(40, 5)), rng.exponential(size=(40, 5))]))
    values += effect * labels[:, None]
    fold_of = dict.fromkeys(one.participants, "0")
    p = np.array([_compared(one, f"v{i}", values[i], fold_of, config).get("p", np.nan) for i in values])
    return (("three subtypes, F, normal values", p[:5]), ("three subtypes, F, exponential values", p[5:]))


OF_SUBTYPES = 67
"""Regions of the patients among whom subtypes are looked for."""


def correlated(n: int, rng: Generator, heavy: bool = False, skewed: bool = False) -> np.ndarray:
    """Regions that go with five factors, of heavy tails or the first of them exponential: a few are far gone."""
    drawn: Callable[..., np.ndarray] = partial(rng.standard_t, 5) if heavy else rng.normal
    factors = drawn(size=(n, 5))
    if skewed:
        factors[:, 0] = 1.5 * rng.exponential(size=n)
    loadings = rng.normal(size=(5, OF_SUBTYPES)) * np.array([3, 1.5, 1, 1, 0.7])[:, None]
    return factors @ loadings + drawn(size=(n, OF_SUBTYPES))


def two_patterns(n: int, rng: Generator, distance: float) -> np.ndarray:
    """Halves that differ by so many standard deviations, one way in 22 regions and the other way in 22 others."""
    pattern = np.repeat([1.0, -1.0, 0.0], [22, 22, 23]) * distance / 2
    half = np.where(np.arange(n) % 2, 1.0, -1.0)
    return np.outer(half, pattern) + 0.3 * correlated(n, rng) + rng.normal(size=(n, OF_SUBTYPES))


PATIENTS: dict[str, Callable[[int, Generator], np.ndarray]] = {
    "independent": lambda n, rng: rng.normal(size=(n, OF_SUBTYPES)),
    "correlated": correlated,
    "heavy-tailed": partial(correlated, heavy=True),
    "skewed": partial(correlated, skewed=True),
    **{f"two patterns, {apart:g} SD apart": partial(two_patterns, distance=apart) for apart in (1.0, 2.0, 3.0)},
}


OF_PATIENTS = (15, 30, 100)


def numbers_found(kind: str, n: int, data_sets: int) -> Iterator[int]:
    """Subtypes by the rule of `pipeline.statistics.normative.subtypes.find_subtypes` without its tables.

    With its defaults: gap statistic, no group under three participants, level of each patient removed.
    """
    settings = load_config().statistics.normative
    for seed in range(data_sets):
        rng = np.random.default_rng(seed)
        points = PATIENTS[kind](n, rng)
        pattern = points - points.mean(axis=1, keepdims=True)
        number = gap_statistic(pattern, settings.max_subtypes, settings.resamples, rng).number
        if number > 1:
            labels = consensus(pattern, [number], settings.resamples, rng)[0].labels
            number = number if np.bincount(labels)[1:].min() >= settings.min_subtype_participants else 1
        yield number
