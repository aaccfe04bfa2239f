"""Two groups that differ in size, spread and shape but not in mean, over 100 regions: single, family-wise and FDR p.

    OMP_NUM_THREADS=1 python benchmarks/null_groups.py          # power: planted differences that are found

The null cases are run by benchmarks/type_one_error_tables.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import pandas as pd
from null_relevance import Case, Found, Generator

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.linear.fold_effect import model_within_folds
from heatlas.pipeline.statistics.linear.freedman_lane import PermutationTest, freedman_lane

REGIONS, ORDERS = 100, 999
PLANTED = 5
"""Regions with a difference, in the study of power."""
ZEROS, SIGMA = 0.85, 0.6


def draws(kind: str, of_first: np.ndarray, ratio: float, rho: float, rng: Generator) -> np.ndarray:
    """Values (people, regions) of mean 0; the first group has `ratio` times the standard deviation of the second's 1.

    rho is the correlation between regions, of the normal values behind lognormal ones. Of values with zeros, the first
    group has fewer but larger ones where it varies more, so that means are equal and zeros are zeros in both.
    """
    n, first = len(of_first), of_first[:, None]
    z = np.sqrt(1 - rho) * rng.normal(size=(n, REGIONS)) + np.sqrt(rho) * rng.normal(size=(n, 1))
    if kind == "normal":
        return z * np.where(first, ratio, 1.0)
    if kind == "lognormal":
        spread = np.sqrt((np.exp(SIGMA**2) - 1) * np.exp(SIGMA**2))
        return (np.exp(SIGMA * z) - np.exp(SIGMA**2 / 2)) / spread * np.where(first, ratio, 1.0)
    share = np.where(first, (1 - ZEROS) / ratio, 1 - ZEROS)
    large = rng.exponential(size=(n, REGIONS)) * (1 - ZEROS) / share
    return np.where(rng.random((n, REGIONS)) < share, large, 0.0)


def of_tables(
    sizes: tuple[int, int], ratio: float, kind: str, rng: Generator, effect: float = 0.0, rho: float = 0.0,
    folds: int = 5, networks: float = 1.0, scans: bool = False,
) -> PermutationTest:  # fmt: skip
    """The test of the tables. Networks of folds differ by 1.2 SD in level and up to `networks` times in scale.

    The first `PLANTED` regions differ by `effect` standard deviations of all people; people have one to four `scans`.
    """
    n = sum(sizes)
    of_first, fold = np.arange(n) < sizes[0], rng.permutation(n) % folds
    values = draws(kind, of_first, ratio, rho, rng)
    values[:, :PLANTED] += effect * np.sqrt((ratio**2 * sizes[0] + sizes[1]) / n) * of_first[:, None]
    person = np.repeat(np.arange(n), rng.integers(1, 5, n) if scans else 1)
    values = values[person] + 0.5 * scans * rng.normal(size=(len(person), REGIONS))
    scale = np.linspace(1.0, networks, folds)[fold[person]][:, None]
    values = scale * (values + 1.2 * (networks > 1) * fold[person][:, None])
    frame = pd.DataFrame({"group": of_first[person].astype(float), "fold": fold[person]})
    frame = frame.assign(participant_id=person.astype(str))
    groups = frame["group"].tolist()
    model = model_within_folds("group", "group", frame, True, groups)
    return freedman_lane(values, model.design, model.exchange, ORDERS, rng, groups)


UNTESTED = np.array([np.nan])


def case(*settings, **further) -> Callable[..., Found]:  # type: ignore[no-untyped-def]
    def function(rng: Generator, effect: float = 0.0) -> Found:
        try:
            test = of_tables(*settings, rng, effect, **further)
        except BadInputError:  # a class that makes up a fold
            return dict.fromkeys(("single", "family-wise", "any of the false discovery rate"), UNTESTED)
        family = {"family-wise": test.p_fwe, "any of the false discovery rate": test.p_fdr}
        return {"single": test.p} | {name: np.array([np.nanmin(p)]) for name, p in family.items()}

    return function


MIXED = {"networks": 3.0, "scans": True}
DATA = {
    "30 and 90, SD 2:1, lognormal": case((30, 90), 2.0, "lognormal"),
    "30 and 90, SD 2:1, lognormal, regions correlated .5": case((30, 90), 2.0, "lognormal", rho=0.5),
    "30 and 30, SD 2:1, lognormal": case((30, 30), 2.0, "lognormal"),
    "60 and 60, SD 1:1, lognormal": case((60, 60), 1.0, "lognormal"),
    "90 and 30, SD 2:1, lognormal": case((90, 30), 2.0, "lognormal"),
    "15 and 45, SD 2:1, lognormal": case((15, 45), 2.0, "lognormal"),
    "8 and 22, SD 2:1, normal": case((8, 22), 2.0, "normal"),
    "8 and 22, SD 1:1, normal": case((8, 22), 1.0, "normal"),
    "8 and 22, SD 2:1, lognormal": case((8, 22), 2.0, "lognormal"),
    "3 and 9, SD 2:1, normal": case((3, 9), 2.0, "normal", folds=2),
    "3 and 9, SD 1:1, normal": case((3, 9), 1.0, "normal", folds=2),
    "30 and 90, 85 % zeros alike": case((30, 90), 1.0, "zeros"),
    "30 and 90, 92 and 85 % zeros": case((30, 90), 2.0, "zeros"),
    "40 and 80, SD 2:1, normal, networks 1 to 3 in scale, 1 to 4 scans": case((40, 80), 2.0, "normal", **MIXED),
    "40 and 80, SD 2:1, lognormal, networks 1 to 3 in scale, 1 to 4 scans": case((40, 80), 2.0, "lognormal", **MIXED),
}
CASES = {f"groups: {data}": Case("group_comparisons", data, own) for data, own in DATA.items()}
POWER = {
    "30 and 90, SD 1:1, normal": ((30, 90), 1.0, "normal"),
    "30 and 90, SD 2:1, normal": ((30, 90), 2.0, "normal"),
    "30 and 90, SD 1:1, lognormal": ((30, 90), 1.0, "lognormal"),
    "30 and 90, SD 2:1, lognormal": ((30, 90), 2.0, "lognormal"),
    "60 and 60, SD 1:1, normal": ((60, 60), 1.0, "normal"),
    "40 and 80, SD 1:1, normal, networks 1 to 3 in scale": ((40, 80), 1.0, "normal"),
    "40 and 80, SD 1:1, normal, networks 1 to 9 in scale": ((40, 80), 1.0, "normal"),
    "8 and 22, SD 1:1, normal": ((8, 22), 1.0, "normal"),
    "8 and 22, SD 1:1, 85 % zeros": ((8, 22), 1.0, "zeros"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-sets", type=int, default=200)
    options = parser.parse_args()
    print("| data | difference, SD | p found | p_fwe found |\n|---|---|---|---|")
    for name, settings in POWER.items():
        networks = float(name.split()[-3]) if "networks" in name else 1.0
        effect = 0.8 if "networks" not in name else 0.6
        found = []
        for i in range(options.data_sets):
            test = of_tables(*settings, generator(43, "power", name, i), effect, networks=networks)
            found.append([(p[:PLANTED] <= 0.05).mean() for p in (test.p, test.p_fwe)])
        single, family = np.mean(found, axis=0)
        print(f"| {name} | {effect} | {single:.0%} | {family:.0%} |", flush=True)


if __name__ == "__main__":
    main()
