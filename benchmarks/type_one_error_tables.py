"""Error rates of the tests that benchmarks/type_one_error.py does not have, as their tables make them.

    OMP_NUM_THREADS=1 python benchmarks/type_one_error_tables.py --output docs/benchmarks/statistics.md
    OMP_NUM_THREADS=1 python benchmarks/type_one_error_tables.py --only "mixed"        # some of them

Nothing is related to what is tested beyond what the model adjusts for, so 5 % of tests should reject at 5 %.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import null_cohorts
import null_estimates
import null_groups
import null_intervals
import null_networks
import null_people
import null_relevance
import numpy as np
from null_relevance import Case, M
from scipy.stats import binom
from sections import STATISTICS, arguments_of, line, show, table

from heatlas.pipeline.run.work.seeds import generator

SEED, LEVEL = 43, 0.05
LIMITS = (0.035, 0.065)
FULL = 1_000
"""Data sets below which a number is too rough to be judged by the limits."""
CASES = null_relevance.CASES | null_people.CASES | null_networks.CASES | null_estimates.CASES | null_groups.CASES
CASES |= null_cohorts.CASES
INTERVALS = null_networks.INTERVALS | null_intervals.INTERVALS | null_estimates.INTERVALS
INTERVALS |= null_cohorts.INTERVALS


def main() -> None:
    options = arguments_of(
        __doc__,
        "--data-sets",
        ("--only", {"default": "", "help": "cases whose name begins so"}),
        ("--seconds", {"type": float, "default": np.inf, "help": "stop a case after so long, with fewer data sets"}),
        "--output",
        ("--rates", {"type": Path, "help": "JSON file that keeps what was found, so that cases can be run apart"}),
    )
    kept = json.loads(options.rates.read_text()) if options.rates and options.rates.is_file() else {}
    for name, case in (CASES | INTERVALS).items():
        if name.startswith(options.only) and name not in kept:
            started = time.process_time()
            kept[name] = rates(name, case, options.data_sets, options.seconds)
            print(name, kept[name], f"{time.process_time() - started:.0f} s", flush=True, file=sys.stderr)
            if options.rates:
                options.rates.write_text(json.dumps(kept))
    show(section(kept), options.output, "Error rates of the other tables", STATISTICS)


def rates(
    name: str, case: Case, data_sets: int, seconds: float = np.inf, effect: float = 0.0
) -> dict[str, tuple[float, int]]:
    """Share of data sets in which each test rejects, and data sets; those without p are left out of count."""
    planted = (effect,) if effect else ()
    made: dict[str, list[np.ndarray]] = {}
    started = time.monotonic()
    for i in range(data_sets):
        found = case.function(generator(SEED, "type-one-error", name, i), *planted)
        for test, p in found.items():
            made.setdefault(test, []).append(np.asarray(p, float))
        if not made or time.monotonic() - started > seconds:
            break
        if min(sum(len(p) for p in own) for own in made.values()) >= data_sets:
            break
    p_of = {test: np.concatenate(own) for test, own in made.items()}
    known = {test: own[np.isfinite(own)] for test, own in p_of.items()}
    return {test: (float((own <= LEVEL).mean()), len(own)) for test, own in known.items()}


def section(kept: dict[str, dict[str, tuple[float, int]]]) -> str:
    lines = [
        f"`python benchmarks/type_one_error_tables.py`: {M} permutations, nominal 5 %, made by the functions of the "
        "tables. A test that holds its level is between 4.0 and 6.0 % in 95 of 100 cases of 2,000 data sets, and "
        "between 3.1 and 7.0 % of 500. *Cautious*: few values of the statistic are possible, so p is above 5 % more "
        "often than it needs to be.",
        "",
        *table(["table", "test", "data", "data sets", "rejected", "within 3.5-6.5 %"]),
    ]
    for name, case in CASES.items():
        for test, (rate, count) in kept.get(name, {}).items():
            chance = [binom.ppf(q, count, LEVEL) / count for q in (0.025, 0.975)]
            good = "yes" if LIMITS[0] <= rate <= LIMITS[1] else "cautious" if rate < LIMITS[0] else "**no**"
            if count < FULL and chance[0] <= rate <= chance[1]:
                good = "open: few data sets, within chance"
            elif count < FULL and rate > chance[1]:
                good = "**no**"
            if good == "**no**" and case.caveat:
                good = "no, and its rows say so"
            lines.append(line(case.tables, test, case.data, f"{count:,}", f"{rate:.1%}", good))
    lines += [
        "",
        "Intervals of 95 %, where the true value is known (0 unless stated):",
        "",
        *table(["95 % interval", "data sets", "misses the true value"]),
    ]
    lines += [
        line(test, f"{count:,}", f"{rate:.1%}")
        for name in INTERVALS
        for test, (rate, count) in kept.get(name, {}).items()
    ]
    lines += [
        "",
        "Not simulated: `p_holm` and the `p_fdr` of other tests, which are computed from these p (checked against "
        "statsmodels); tables without p (calibration, w-scores). Every other p of a table is in this section or in "
        "*Error rates* and *Shortcuts*.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
