"""10,000 permutations x 136 regions x 6 maps: this engine against nilearn's ``permuted_ols``, one thread each.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python benchmarks/permutation_speed.py --output FILE

Both solve the same problem in the same run: every row one participant, Freedman-Lane permutation, max-T. Timed are
whole calls, random permutations included, in processor time, turn by turn; the best of a few turns counts for each:
nilearn's t, the same t by this engine, and the studentised t that the tables have, which nilearn does not offer. Then
the engine is given the permutations that nilearn draws, and both p values are compared.
"""

from __future__ import annotations

import tracemalloc
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import nilearn
import numpy as np
import pandas as pd
from harness import STATISTICS, arguments_of, line, machine, show, table
from nilearn.mass_univariate import permuted_ols
from nilearn.mass_univariate._utils import (
    normalize_matrix_on_axis,
    orthonormalize_matrix,
    t_score_with_covars_and_normalized_design,
)
from sklearn.utils import check_random_state
from timed import cpu_seconds

from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Resampling
from heatlas.pipeline.statistics.linear.design import Design, design_of
from heatlas.pipeline.statistics.linear.freedman_lane import (
    LinearModel,
    PermutationTest,
    freedman_lane,
    permutation_test,
)
from heatlas.pipeline.statistics.linear.permutations import Exchangeability, Permutations

COLUMNS = 136 * 6
PERMUTATIONS = 10_000
BY_HAND = 500
"""Permutations of which uncorrected p values, which nilearn does not give, are computed with nilearn's t."""
SEED = 43
BY_NILEARN = f"uncorrected p, {BY_HAND} permutations, nilearn's t by hand"
COLUMNS_OF_SPEED = (
    "problem", "nilearn, s", "Heatlas, same t, s", "ratio", "Heatlas, studentised t, s", "ratio", "nilearn, MB",
    "Heatlas (studentised), MB",
)  # fmt: skip
PROBLEMS = {
    "344 participants": (344, "x"),
    "344 participants, age, sex, field strength, 3 sites": (344, "x + age + sex + field_strength + site"),
    "60 participants": (60, "x"),
    "60 participants, age, sex": (60, "x + age + sex"),
}


def main() -> None:
    options = arguments_of(__doc__, "--output", permutations=PERMUTATIONS, turns=3)
    warnings.filterwarnings("ignore", module="nilearn")
    speeds, gaps = table(COLUMNS_OF_SPEED), table(["problem", "t", "family-wise p", BY_NILEARN])
    for name, (n, formula) in PROBLEMS.items():
        speed, gap = compared(n, formula, options.permutations, options.turns)
        speeds.append(line(name, *speed))
        gaps.append(line(name, *(f"{one:.1e}" for one in gap)))
        print(speeds[-1], gaps[-1], sep="\n", flush=True)
    print(machine(), f"nilearn {nilearn.__version__}")
    show("\n".join([*speeds, "", *gaps]), options.output, "Speed of permutations", STATISTICS)


def compared(n: int, formula: str, m: int, turns: int) -> tuple[list[str], list[float]]:
    """Cells of seconds and memory; the largest differences of t, family-wise p and uncorrected p from nilearn's."""
    values, design = problem(n, formula)
    confounds = design.nuisance[:, 1:] if design.nuisance.shape[1] > 1 else None

    def peer() -> dict[str, Any]:
        settings = {"n_perm": m, "random_state": SEED, "n_jobs": 1, "output_type": "dict"}
        return permuted_ols(design.tested, values, confounds, model_intercept=True, **settings)

    def studentised(equal_variances: bool = False) -> PermutationTest:
        resampling = Resampling(m, generator(SEED, "benchmark"))
        return freedman_lane(values, design, Exchangeability.free(n), resampling, equal_variances=equal_variances)

    same_t = partial(studentised, True)
    same_t(), studentised()  # numba compiles
    seconds = np.array([[cpu_seconds(call) for call in (peer, same_t, studentised)] for _ in range(turns)])
    theirs, ours, own = seconds.min(axis=0)
    found, orders = peer(), nilearn_orders(n, m)
    model = LinearModel.of(design, Exchangeability.free(n))
    same = permutation_test(values, model, orders, equal_variances=True)
    few = permutation_test(values, model, Permutations(orders.rows[:BY_HAND], False), equal_variances=True)
    by_hand = uncorrected_p(values, design, orders.rows[:BY_HAND])
    gaps = (same.statistic - found["t"][0], same.p_fwe - 10.0 ** -found["logp_max_t"][0], few.p - by_hand)
    cells = [f"{theirs:.2f}", f"{ours:.3f}", f"{theirs / ours:.1f}", f"{own:.3f}", f"{theirs / own:.1f}"]
    cells += [f"{peak_of(call) / 1e6:.0f}" for call in (peer, studentised)]
    return cells, [float(np.abs(gap).max()) for gap in gaps]


def problem(n: int, formula: str) -> tuple[np.ndarray, Design]:
    """Correlated columns, a few of them related to x."""
    rng = generator(SEED, "benchmark", n)
    frame = pd.DataFrame({"age": rng.normal(75, 6, n), "sex": rng.choice(["F", "M"], n)})
    frame["field_strength"] = rng.choice(["1.5", "3"], n)
    frame["site"] = rng.choice(["a", "b", "c"], n)
    frame["x"] = rng.normal(size=n) + 0.05 * (frame["age"] - 75)
    values = rng.normal(size=(n, 1)) + rng.normal(size=(n, COLUMNS)) + 0.02 * frame[["age"]].to_numpy()
    values[:, ::20] += 0.35 * frame[["x"]].to_numpy()
    return values, design_of(formula, "x", frame)


def nilearn_orders(n: int, m: int) -> Permutations:
    """The orders that permuted_ols draws with one job: it shuffles what it shuffled before."""
    chunk_seed = check_random_state(SEED).randint(1, np.iinfo(np.int32).max - 1, size=1)[0]
    rng = check_random_state(chunk_seed)
    rows, order = np.empty((m, n), np.int32), np.arange(n)
    for i in range(m):
        order = order[rng.permutation(n)]
        rows[i] = order
    return Permutations(rows, False)


def uncorrected_p(values: np.ndarray, design: Design, rows: np.ndarray) -> np.ndarray:
    """(b+1)/(m+1) of every column, from nilearn's own t of given permutations."""
    covariates = orthonormalize_matrix(design.nuisance)
    targets = normalize_matrix_on_axis(values)
    targets = normalize_matrix_on_axis(targets - covariates @ (covariates.T @ targets)).T.copy(order="F").T
    tested = normalize_matrix_on_axis(design.tested)
    tested = normalize_matrix_on_axis(tested - covariates @ (covariates.T @ tested))
    observed = np.abs(t_score_with_covars_and_normalized_design(tested, targets, covariates))[:, 0]
    b = sum(
        np.abs(t_score_with_covars_and_normalized_design(tested[row], targets, covariates[row]))[:, 0] >= observed
        for row in rows
    )
    return (b + 1) / (len(rows) + 1)


def peak_of(call: Callable[[], Any]) -> int:
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


if __name__ == "__main__":
    main()
