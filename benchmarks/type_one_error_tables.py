"""Error rates of the tests that benchmarks/type_one_error.py does not have, as their tables make them.

    OMP_NUM_THREADS=1 python benchmarks/type_one_error_tables.py --output docs/benchmarks/statistics.md
    OMP_NUM_THREADS=1 python benchmarks/type_one_error_tables.py --only "mixed"        # some of them

Nothing is related to what is tested beyond what the model adjusts for, so 5 % of tests should reject at 5 %.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from pathlib import Path

import null_cohorts
import null_groups
import null_intervals
import null_people
import null_sites
import null_tables
import numpy as np
from harness import STATISTICS, arguments_of, line, show, table
from null_data import LEVEL, LIMITS, SEED, Case
from scipy.stats import binom

from heatlas.pipeline.run.work.seeds import generator

FULL = 1_000
"""Data sets below which a number is too rough to be judged by the limits."""
CASES = null_tables.CASES | null_sites.CASES | null_people.CASES | null_groups.CASES | null_cohorts.CASES
INTERVALS = null_intervals.INTERVALS | null_cohorts.INTERVALS


def main() -> None:
    options = arguments_of(
        __doc__,
        "--data-sets --output --rates",
        only=("", "cases whose name begins so"),
        seconds=(np.inf, "stop a case after so long, with fewer data sets"),
        rates={"type": Path, "help": "JSON file that keeps what was found, so that cases can be run apart"},
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
    p_values: dict[str, list[np.ndarray]] = defaultdict(list)
    started = time.monotonic()
    for i in range(data_sets):
        for test, p in case.function(generator(SEED, "type-one-error", name, i), *planted):
            p_values[test].append(np.asarray(p, float))
        if not p_values or time.monotonic() - started > seconds:
            break
        if min(sum(len(p) for p in own) for own in p_values.values()) >= data_sets:
            break
    found = {}
    for test, own in p_values.items():
        known = np.concatenate(own)
        known = known[np.isfinite(known)]
        found[test] = float((known <= LEVEL).mean()), len(known)
    return found


def section(kept: dict[str, dict[str, tuple[float, int]]]) -> str:
    lines = table(["table", "test", "data", "data sets", "rejected", "within 3.5-6.5 %"])
    for name, case in CASES.items():
        for test, (rate, count) in kept.get(name, {}).items():
            lines.append(line(case.tables, test, case.data, f"{count:,}", f"{rate:.1%}", verdict(rate, count, case)))
    lines += ["", *table(["95 % interval", "data sets", "misses the true value"])]
    for name in INTERVALS:
        lines += [line(test, f"{count:,}", f"{rate:.1%}") for test, (rate, count) in kept.get(name, {}).items()]
    return "\n".join(lines)


def verdict(rate: float, count: int, case: Case) -> str:
    """Whether a test holds its level; *cautious*: few values of the statistic are possible."""
    low, high = (binom.ppf(q, count, LEVEL) / count for q in (0.025, 0.975))
    if count < FULL and low <= rate <= high:
        return "open: few data sets, within chance"
    if rate > (high if count < FULL else LIMITS[1]):
        return "no, and its rows say so" if case.caveat else "**no**"
    return "yes" if rate >= LIMITS[0] else "cautious"


if __name__ == "__main__":
    main()
