"""Two groups that differ in size, spread and shape but not in what is tested: single, family-wise and FDR p; means.

Networks of five folds differ from .5 to 3 in scale and by 1.2 SD in level, classes are unequal over folds, and people
have one to four scans, unless said otherwise. Means are equal for the tests of means; for those of ranks a member of
either group is as likely to be above one of the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import count

import null_data as null
import numpy as np
import pandas as pd
from null_data import CASES, COLUMNS, INTERVALS, SEED, Case, Found, Generator
from scipy.stats import t as t_distribution

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Resampling
from heatlas.pipeline.statistics.data.members import difference_within, welch_within
from heatlas.pipeline.statistics.images.differences import Adjusted
from heatlas.pipeline.statistics.images.voxel_test import voxel_test
from heatlas.pipeline.statistics.linear.fold_effect import FoldModel, model_within_folds
from heatlas.pipeline.statistics.linear.freedman_lane import PermutationTest, freedman_lane
from heatlas.pipeline.statistics.resampling.means import FEW_OF_GROUP, mean_intervals

REGIONS = 30
OF_POWER, ORDERS_OF_POWER, PLANTED = 67, 999, 5
"""Regions, permutations, and regions with a difference in the study of power."""
ZEROS, MIXED = "85 % zeros", "a tenth of the regions lognormal 1"
NOT_ZERO, VOXELS = 0.15, (8, 8, 8)
MANY = 2_000_000
"""Draws by which groups are made stochastically equal."""


@dataclass(frozen=True)
class Groups:
    """Two groups: sizes, ratio of their standard deviations (first to second), kind of values.

    `folds` networks, `mixed` where they differ and people have several scans; `by_order` where neither group is ahead
    of the other, instead of equal means; `site` where one of two sites has most of the first group.
    """

    sizes: tuple[int, int]
    ratio: float
    kind: str
    note: str = ""  # what else the name says
    folds: int = 5
    mixed: bool = True
    by_order: bool = False
    site: bool = False

    @property
    def name(self) -> str:
        first, second = self.sizes
        return f"{first} and {second}, SD {self.ratio:g}:1, {self.kind}{self.note}"

    @property
    def warned(self) -> bool:
        """Whether the rows have a caveat."""
        return min(self.sizes) < FEW_OF_GROUP or self.kind == ZEROS


def draws(groups: Groups, of_first: np.ndarray, regions: int, rng: Generator) -> np.ndarray:
    """Values (people, regions) of mean 0; the first group has `ratio` times the standard deviation of the second's 1.

    Of values with zeros, the first group has fewer but larger ones where it varies more, so that means are equal and
    zeros are zeros in both. *mixed*: a tenth of the regions is lognormal, the others normal.
    """
    first, size = of_first[:, None], (len(of_first), regions)
    if groups.kind == ZEROS:
        share = np.where(first, NOT_ZERO / groups.ratio, NOT_ZERO)
        large = rng.exponential(size=size) * NOT_ZERO / share
        return np.where(rng.random(size) < share, large, 0.0)
    values = null.drawn(rng, "normal" if groups.kind == MIXED else groups.kind, size, True)
    if groups.kind == MIXED:
        values[:, : regions // 10] = null.drawn(rng, "lognormal 1", (len(of_first), regions // 10), True)
    values = values * np.where(first, groups.ratio, 1.0)
    return values + first * ahead(groups.kind, groups.ratio) if groups.by_order else values


@cache
def ahead(kind: str, ratio: float) -> float:
    """What to add to the first group so that it is above the second in half of all pairs."""
    rng = generator(SEED, "stochastically equal", kind)
    return float(np.median(null.drawn(rng, kind, (MANY,), True) - ratio * null.drawn(rng, kind, (MANY,), True)))


def drawn_people(
    groups: Groups, rng: Generator, effect: float = 0.0, regions: int = REGIONS, planted: int | None = None
) -> tuple[np.ndarray, pd.DataFrame]:
    """Values of scans (scans, regions), and the scans; some regions differ by `effect` SD of all people."""
    n, (n_first, n_second) = sum(groups.sizes), groups.sizes
    of_first = np.arange(n) < n_first
    uneven = np.linspace(1.0, 1.6 if groups.mixed else 1.0, groups.folds)
    chance = np.where(of_first[:, None], uneven, uneven[::-1]) / uneven.sum()
    fold = (rng.random((n, 1)) > chance.cumsum(axis=1)).sum(axis=1).clip(max=groups.folds - 1)
    values = draws(groups, of_first, regions, rng)
    values[:, :planted] += effect * np.sqrt((groups.ratio**2 * n_first + n_second) / n) * of_first[:, None]
    person = np.repeat(np.arange(n), rng.integers(1, 5, n) if groups.mixed else 1)
    noise = 0.5 * groups.mixed * rng.normal(size=(len(person), regions))
    values = values[person] + noise * (values[person] != 0)  # no relevance is no relevance in every scan
    if groups.mixed:
        scale = np.linspace(0.5, 3.0, groups.folds)[fold[person]][:, None]
        values = scale * values + 1.2 * fold[person][:, None] * (groups.kind != ZEROS)
    frame = pd.DataFrame({"group": of_first[person].astype(float), "fold": fold[person]})
    at_first = rng.random(n) < np.where(of_first, 0.75, 0.25)
    return values, frame.assign(participant_id=person.astype(str), site=np.where(at_first, "a", "b")[person])


def class_model(groups: Groups, frame: pd.DataFrame) -> tuple[FoldModel, list[float]]:
    of_first = frame["group"].tolist()
    return model_within_folds(f"group{' + site' * groups.site}", "group", frame, True, of_first), of_first


def compared(
    groups: Groups, values: np.ndarray, frame: pd.DataFrame, resampling: Resampling, by_ranks: bool = False
) -> PermutationTest:
    """The test of the tables."""
    model, of_first = class_model(groups, frame)
    return freedman_lane(values, model.design, model.exchange, resampling, of_first, by_ranks=by_ranks)


def regions_of(groups: Groups, rng: Generator) -> Found:
    try:
        test = compared(groups, *drawn_people(groups, rng), null.orders(rng), groups.by_order)
    except BadInputError:  # a class that makes up a fold
        return
    if groups.by_order:
        yield "family-wise, by ranks", least(test.p_fwe)
    else:
        yield f"single{', site held' * groups.site}", test.p
        yield "family-wise", least(test.p_fwe)
        yield "any of the false discovery rate", least(test.p_fdr)


def voxels_of(groups: Groups, rng: Generator) -> Found:
    """Maps of 512 voxels."""
    values, frame = drawn_people(groups, rng, regions=int(np.prod(VOXELS)))
    model, of_first = class_model(groups, frame)
    adjusted = Adjusted.of(values, model, of_first)
    order = adjusted.exchange.permutations(null.orders(rng).m, rng, adjusted.model.alike.tolist())
    test = voxel_test(adjusted.values, adjusted.model, order, np.ones(VOXELS, bool))
    return (("largest t", least(test.p_fwe)), ("TFCE", least(test.p_fwe_tfce)))


def least(p: np.ndarray) -> np.ndarray:
    return np.array([np.nanmin(p)])


EACH = ", a scan each"
NULL = (
    Groups((60, 60), 1.0, "normal"),
    Groups((60, 60), 1.0, "lognormal 1"),
    Groups((80, 160), 2.0, "lognormal 1"),
    Groups((30, 90), 2.0, "normal"),
    Groups((30, 90), 2.0, MIXED),
    Groups((30, 90), 2.0, "lognormal 0.6"),
    Groups((30, 90), 2.0, "lognormal 1"),
    Groups((30, 90), 2.0, "lognormal 1", ", most of the first at one site", site=True),
    Groups((8, 22), 2.0, "normal"),
    Groups((8, 22), 2.0, "lognormal 0.6"),
    Groups((8, 22), 2.0, "lognormal 1"),
    Groups((3, 9), 2.0, "normal", ", two folds", folds=2),
    Groups((30, 90), 1.0, ZEROS),
)
EQUAL_ORDER = (
    Groups((60, 60), 1.0, "lognormal 1", by_order=True),
    Groups((80, 160), 2.0, "lognormal 1", EACH, by_order=True, mixed=False),
    Groups((30, 90), 2.0, "normal", by_order=True),
    Groups((30, 90), 2.0, "lognormal 0.6", EACH, by_order=True, mixed=False),
    Groups((30, 90), 2.0, "lognormal 1", EACH, by_order=True, mixed=False),
    Groups((20, 60), 2.0, "normal", by_order=True),
    Groups((8, 22), 1.0, "lognormal 1", by_order=True),
    Groups((8, 22), 2.0, "normal", by_order=True),
)
OF_VOXELS = (Groups((30, 90), 2.0, "normal"), Groups((30, 90), 2.0, "lognormal 0.6"))
POWER = (
    Groups((60, 60), 1.0, "normal", mixed=False),
    Groups((60, 60), 1.0, "normal", ", networks and scans differ"),
    Groups((30, 90), 1.0, "lognormal 0.6", mixed=False),
    Groups((30, 90), 1.0, "lognormal 1", mixed=False),
    Groups((30, 90), 2.0, "normal", mixed=False),
    Groups((30, 90), 2.0, "lognormal 0.6", mixed=False),
    Groups((30, 90), 2.0, "lognormal 0.6", ", from equal order", by_order=True, mixed=False),
)
for part, tables, function, every in (
    ("", "group_comparisons", regions_of, NULL),
    ("ranks: ", "group_comparisons", regions_of, EQUAL_ORDER),
    ("voxels: ", "voxel_tests", voxels_of, OF_VOXELS),
):
    for one in every:
        CASES[f"groups: {part}{one.name}"] = Case(tables, one.name, partial(function, one), caveat=one.warned)


def found_of_planted(groups: Groups, effect: float) -> Iterator[Found]:
    """p of the regions that differ by `effect` SD of all people, in one data set after the other."""
    for i in count():
        rng = generator(SEED, "power", groups.name, i)
        values, frame = drawn_people(groups, rng, effect, OF_POWER, PLANTED)
        resampling = Resampling(ORDERS_OF_POWER, rng)
        means, ranks = (compared(groups, values, frame, resampling, by_ranks) for by_ranks in (False, True))
        found = {"p": means.p, "p_fwe": means.p_fwe, "p_fdr": means.p_fdr, "p_fwe_ranks": ranks.p_fwe}
        yield [(name, p[:PLANTED]) for name, p in found.items()]


@CASES.add(
    "groups: other tables",
    "associations, interactions, main_effects",
    "60 people, four networks, patients with 2 x the SD",
)
def false_discoveries(rng: Generator) -> Found:
    """Whether any of 30 regions has an adjusted p, in other tests of the same engine."""
    frame = null.people(rng, levels=6)
    values, main = null.relevance(frame, REGIONS, rng, 2.0), "label + age + sex + site"
    for term, formula, spread in (("age", main, ""), ("site", main, ""), ("label:sex", f"{main} + label:sex", "label")):
        shown = values - 0.08 * (term == "age") * (1 + 0.5 * frame[["fold"]].to_numpy()) * frame[["age"]].to_numpy()
        test = null.term_test(shown, formula, term, frame, rng, spread=spread)
        yield f"any of the false discovery rate, {term}", test.p_fdr.min(keepdims=True)
    for method in ("pearson", "spearman"):
        test = null.term_test(values, "x + age + sex", "x", frame, rng, method)
        yield f"any of the false discovery rate, {method}", test.p_fdr.min(keepdims=True)


SHAPES = (("normal", "normal"), ("lognormal", "lognormal 1"))


@INTERVALS.add("groups: intervals", "group_comparisons", "no difference", 2.5)
def unequal_groups(rng: Generator, effect: float = 0.0) -> Found:
    for first, second in ((12, 48), (15, 45), (42, 78)):
        frame = pd.DataFrame({"group": (np.arange(first + second) < first).astype(float)})
        for name, kind in SHAPES:
            values = null.drawn(rng, kind, (first + second, COLUMNS)) + effect * frame[["group"]].to_numpy()
            test = null.term_test(values, "group", "group", frame, rng, spread="group")
            yield f"difference of {first} and {second}, {name}", null.misses(test.low, test.high, 0.0)


@INTERVALS.add("subgroups: intervals", "subgroups", "no difference", 4.0)
def subgroup_differences(rng: Generator, effect: float = 0.0) -> Found:
    """Welch's interval in a subgroup, in one fold and in four of unequal scale."""
    for first, second, folds in ((5, 5, 1), (12, 48, 1), (15, 45, 4)):
        is_first, fold = np.arange(first + second) < first, np.arange(first + second) % folds
        for name, kind in SHAPES:
            values = null.drawn(rng, kind, (first + second, COLUMNS)) + effect * is_first[:, None]
            values = null.seen(values, fold, 1.0)
            error, df = welch_within(values, is_first, fold)
            difference = difference_within(values, is_first, fold, np.ones((1, len(values))))[0]
            reach = t_distribution.isf(0.025, df) * error
            named = f"class difference in a subgroup, {first} and {second} in {folds} fold{'s' * (folds > 1)}, {name}"
            yield named, null.misses(difference - reach, difference + reach, 0.0)


@INTERVALS.add("means: intervals", "region_summary, subgroups", "6 to 60 people")
def means(rng: Generator) -> Found:
    for n in (6, 12, 30, 60):
        for kind in ("normal", "lognormal 0.6", "lognormal 1", ZEROS):
            one = mean_intervals(null.drawn(rng, kind, (n, COLUMNS)), 0.95)[0]
            yield f"mean of {n}, {kind}", null.misses(one.low, one.high, 0.0)
