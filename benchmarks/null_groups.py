"""Two groups that differ in size, spread and shape but not in what is tested: single, family-wise and FDR p.

    OMP_NUM_THREADS=1 python benchmarks/null_groups.py          # power: planted differences that are found

The null cases are run by benchmarks/type_one_error_tables.py. Networks of five folds differ from .5 to 3 in scale and
by 1.2 SD in level, classes are unequal over folds, and people have one to four scans, unless said otherwise. Means are
equal for the tests of means; for those of ranks a member of either group is as likely to be above one of the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
from harness import arguments_of, line, table
from null_data import LEVEL, SEED, Case, Found, Generator, correlation_test, linear_test, orders, people, relevance

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Resampling
from heatlas.pipeline.statistics.images.differences import Adjusted
from heatlas.pipeline.statistics.images.voxel_test import voxel_test
from heatlas.pipeline.statistics.linear.fold_effect import FoldModel, model_within_folds
from heatlas.pipeline.statistics.linear.freedman_lane import PermutationTest, freedman_lane
from heatlas.pipeline.statistics.resampling.means import FEW_OF_GROUP

REGIONS = 30
OF_POWER, ORDERS_OF_POWER, PLANTED = 67, 999, 5
"""Regions, permutations, and regions with a difference in the study of power."""
ZEROS, VOXELS = 0.85, (8, 8, 8)
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
    folds: int = 5
    mixed: bool = True
    by_order: bool = False
    site: bool = False


def shaped(kind: str, size: tuple[int, ...], rng: Generator) -> np.ndarray:
    """Values of mean 0 and standard deviation 1: normal, or lognormal of the sigma that ends the kind."""
    if kind == "normal":
        return rng.normal(size=size)
    sigma = float(kind.split()[-1])
    spread = np.sqrt((np.exp(sigma**2) - 1) * np.exp(sigma**2))
    values: np.ndarray = (np.exp(sigma * rng.normal(size=size)) - np.exp(sigma**2 / 2)) / spread
    return values


def draws(groups: Groups, of_first: np.ndarray, regions: int, rng: Generator) -> np.ndarray:
    """Values (people, regions) of mean 0; the first group has `ratio` times the standard deviation of the second's 1.

    Of values with zeros, the first group has fewer but larger ones where it varies more, so that means are equal and
    zeros are zeros in both. *mixed*: a tenth of the regions is lognormal, the others normal.
    """
    first, size = of_first[:, None], (len(of_first), regions)
    if groups.kind == "zeros":
        share = np.where(first, (1 - ZEROS) / groups.ratio, 1 - ZEROS)
        large = rng.exponential(size=size) * (1 - ZEROS) / share
        return np.where(rng.random(size) < share, large, 0.0)
    values = shaped("normal" if groups.kind == "mixed" else groups.kind, size, rng)
    if groups.kind == "mixed":
        values[:, : regions // 10] = shaped("lognormal 1", (len(of_first), regions // 10), rng)
    values = values * np.where(first, groups.ratio, 1.0)
    return values + first * ahead(groups.kind, groups.ratio) if groups.by_order else values


@cache
def ahead(kind: str, ratio: float) -> float:
    """What to add to the first group so that it is above the second in half of all pairs."""
    rng = generator(SEED, "stochastically equal", kind)
    return float(np.median(shaped(kind, (MANY,), rng) - ratio * shaped(kind, (MANY,), rng)))


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
        values = scale * values + 1.2 * fold[person][:, None] * (groups.kind != "zeros")
    frame = pd.DataFrame({"group": of_first[person].astype(float), "fold": fold[person]})
    at_first = rng.random(n) < np.where(of_first, 0.75, 0.25)
    return values, frame.assign(participant_id=person.astype(str), site=np.where(at_first, "a", "b")[person])


def compared(
    groups: Groups, values: np.ndarray, frame: pd.DataFrame, resampling: Resampling, by_ranks: bool = False
) -> PermutationTest:
    """The test of the tables."""
    model, of_first = class_model(groups, frame)
    return freedman_lane(values, model.design, model.exchange, resampling, of_first, by_ranks=by_ranks)


def class_model(groups: Groups, frame: pd.DataFrame) -> tuple[FoldModel, list[float]]:
    of_first = frame["group"].tolist()
    return model_within_folds(f"group{' + site' * groups.site}", "group", frame, True, of_first), of_first


UNTESTED = np.array([np.nan])


def case(groups: Groups) -> Callable[..., Found]:
    def function(rng: Generator, effect: float = 0.0) -> Found:
        try:
            test = compared(groups, *drawn_people(groups, rng, effect), orders(rng), groups.by_order)
        except BadInputError:  # a class that makes up a fold
            return [("family-wise", UNTESTED)]
        if groups.by_order:
            return [("family-wise, by ranks", least(test.p_fwe))]
        family = [("family-wise", least(test.p_fwe)), ("any of the false discovery rate", least(test.p_fdr))]
        return [(f"single{', site held' * groups.site}", test.p), *family]

    return function


def least(p: np.ndarray) -> np.ndarray:
    return np.array([np.nanmin(p)])


def false_discoveries(rng: Generator, effect: float = 0.0) -> Found:
    """Whether any of 30 regions has an adjusted p, in other tests of the same engine."""
    frame = people(rng, levels=6)
    values, of_class = relevance(frame, REGIONS, rng, 2.0), frame["label"].tolist()
    for term, groups in (("age", None), ("site", None), ("label:sex", of_class)):
        formula = "label + age + sex + site" + " + label:sex" * (term == "label:sex")
        shown = values - 0.08 * (term == "age") * (1 + 0.5 * frame[["fold"]].to_numpy()) * frame[["age"]].to_numpy()
        test = linear_test(shown, formula, term, frame, rng, groups)
        yield f"any of the false discovery rate, {term}", least(test.p_fdr)
    for method in ("pearson", "spearman"):
        test = correlation_test(values, "x + age + sex", frame, rng, method)
        yield f"any of the false discovery rate, {method}", least(test.p_fdr)


def voxels(groups: Groups) -> Callable[..., Found]:
    def function(rng: Generator, effect: float = 0.0) -> Found:
        """Maps of 512 voxels."""
        values, frame = drawn_people(groups, rng, effect, int(np.prod(VOXELS)))
        model, of_first = class_model(groups, frame)
        adjusted = Adjusted.of(values, model, of_first)
        drawn = adjusted.exchange.permutations(orders(rng).m, rng, adjusted.model.alike.tolist())
        test = voxel_test(adjusted.values, adjusted.model, drawn, np.ones(VOXELS, bool))
        return (("largest t", np.array([test.p_fwe.min()])), ("TFCE", np.array([test.p_fwe_tfce.min()])))

    return function


def warned(groups: Groups) -> bool:
    """Whether the rows have a caveat."""
    return min(groups.sizes) < FEW_OF_GROUP or groups.kind == "zeros"


NULL = {
    "60 and 60, SD 1:1, normal": Groups((60, 60), 1.0, "normal"),
    "60 and 60, SD 1:1, lognormal 1": Groups((60, 60), 1.0, "lognormal 1"),
    "80 and 160, SD 2:1, lognormal 1": Groups((80, 160), 2.0, "lognormal 1"),
    "30 and 90, SD 2:1, normal": Groups((30, 90), 2.0, "normal"),
    "30 and 90, SD 2:1, a tenth of the regions lognormal 1": Groups((30, 90), 2.0, "mixed"),
    "30 and 90, SD 2:1, lognormal 0.6": Groups((30, 90), 2.0, "lognormal 0.6"),
    "30 and 90, SD 2:1, lognormal 1": Groups((30, 90), 2.0, "lognormal 1"),
    "30 and 90, SD 2:1, lognormal 1, most of the first at one site": Groups((30, 90), 2.0, "lognormal 1", site=True),
    "8 and 22, SD 2:1, normal": Groups((8, 22), 2.0, "normal"),
    "8 and 22, SD 2:1, lognormal 0.6": Groups((8, 22), 2.0, "lognormal 0.6"),
    "8 and 22, SD 2:1, lognormal 1": Groups((8, 22), 2.0, "lognormal 1"),
    "3 and 9, SD 2:1, normal, two folds": Groups((3, 9), 2.0, "normal", folds=2),
    "30 and 90, SD 1:1, 85 % zeros": Groups((30, 90), 1.0, "zeros"),
}
EQUAL_ORDER = {
    "60 and 60, SD 1:1, lognormal 1": Groups((60, 60), 1.0, "lognormal 1", by_order=True),
    "80 and 160, SD 2:1, lognormal 1, a scan each": Groups((80, 160), 2.0, "lognormal 1", by_order=True, mixed=False),
    "30 and 90, SD 2:1, normal": Groups((30, 90), 2.0, "normal", by_order=True),
    "30 and 90, SD 2:1, lognormal 0.6, a scan each": Groups((30, 90), 2.0, "lognormal 0.6", by_order=True, mixed=False),
    "30 and 90, SD 2:1, lognormal 1, a scan each": Groups((30, 90), 2.0, "lognormal 1", by_order=True, mixed=False),
    "20 and 60, SD 2:1, normal": Groups((20, 60), 2.0, "normal", by_order=True),
    "8 and 22, SD 1:1, lognormal 1": Groups((8, 22), 1.0, "lognormal 1", by_order=True),
    "8 and 22, SD 2:1, normal": Groups((8, 22), 2.0, "normal", by_order=True),
}
OF_VOXELS = {
    "30 and 90, SD 2:1, normal": Groups((30, 90), 2.0, "normal"),
    "30 and 90, SD 2:1, lognormal 0.6": Groups((30, 90), 2.0, "lognormal 0.6"),
}
CASES = {
    **{
        f"groups: {part}{data}": Case(table, data, function(groups), caveat=warned(groups))
        for part, table, function, cells in (
            ("", "group_comparisons", case, NULL),
            ("ranks: ", "group_comparisons", case, EQUAL_ORDER),
            ("voxels: ", "voxel_tests", voxels, OF_VOXELS),
        )
        for data, groups in cells.items()
    },
    "groups: other tables": Case(
        "associations, interactions, main_effects",
        "60 people, four networks, patients with 2 x the SD",
        false_discoveries,
    ),
}
POWER = {
    "60 and 60, SD 1:1, normal": Groups((60, 60), 1.0, "normal", mixed=False),
    "60 and 60, SD 1:1, normal, networks and scans differ": Groups((60, 60), 1.0, "normal"),
    "30 and 90, SD 1:1, lognormal 0.6": Groups((30, 90), 1.0, "lognormal 0.6", mixed=False),
    "30 and 90, SD 1:1, lognormal 1": Groups((30, 90), 1.0, "lognormal 1", mixed=False),
    "30 and 90, SD 2:1, normal": Groups((30, 90), 2.0, "normal", mixed=False),
    "30 and 90, SD 2:1, lognormal 0.6": Groups((30, 90), 2.0, "lognormal 0.6", mixed=False),
    "30 and 90, SD 2:1, lognormal 0.6, from equal order": Groups(
        (30, 90), 2.0, "lognormal 0.6", by_order=True, mixed=False
    ),
}


def main() -> None:
    options = arguments_of(__doc__, "--data-sets", data_sets=100, effect=0.8)
    print(*table(["data", "p", "p_fwe", "p_fdr", "p_fwe_ranks"]), sep="\n")
    for name, groups in POWER.items():
        found = []
        for i in range(options.data_sets):
            rng = generator(SEED, "power", name, i)
            values, frame = drawn_people(groups, rng, options.effect, OF_POWER, PLANTED)
            resampling = Resampling(ORDERS_OF_POWER, rng)
            means, ranks = (compared(groups, values, frame, resampling, by_ranks) for by_ranks in (False, True))
            found.append([(p[:PLANTED] <= LEVEL).mean() for p in (means.p, means.p_fwe, means.p_fdr, ranks.p_fwe)])
        print(line(name, *(f"{share:.0%}" for share in np.mean(found, axis=0))), flush=True)


if __name__ == "__main__":
    main()
