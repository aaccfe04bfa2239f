"""Error rates and power of the statistics by simulation: every test offered, intervals, places of regions, subtypes.

    export PYTHONPATH=benchmarks OMP_NUM_THREADS=1
    python tests/statistics/error_rates/type_one_error.py scans power shortcuts --output docs/benchmarks/statistics.md
    python tests/statistics/error_rates/type_one_error.py tables --only "sites"    # cases of the modules null_*
    python tests/statistics/error_rates/type_one_error.py places --only "near" --data-sets 100
    python tests/statistics/error_rates/type_one_error.py planted subtypes --data-sets 100    # are printed only

Nothing is related to what is tested beyond what the model adjusts for, so 5 % of tests should reject at 5 %. Tests and
intervals are called as the pipeline, or made as their tables, make them. *scans*: 60 people with one to four scans
each, whose values have an intraclass correlation (ICC), the share of their variance that belongs to the person.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import null_associations  # noqa: F401, as the next three: they add their cases
import null_data as null
import null_people  # noqa: F401
import null_progression  # noqa: F401
import null_sites  # noqa: F401
import numpy as np
import pandas as pd
from harness import STATISTICS, arguments_of, show, table
from null_data import CASES, COLUMNS, INTERVALS, LIMITS, PEOPLE, SEED, Case, Found, Generator, Rates, counted
from null_groups import PLANTED, POWER, found_of_planted
from null_patterns import CELLS, OF_PATIENTS, PATIENTS, coverage, numbers_found
from scipy.stats import binom

from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.linear.design import design_of
from heatlas.pipeline.statistics.linear.permutations import Exchangeability

ICCS = (0.5, 0.7, 0.9)
EFFECTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
DIFFERENCES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2)


def cohort(rng: Generator) -> pd.DataFrame:
    """Scans of people of whom the 20 patients are older, have fewer scans and lower x.

    x is also lower with age and in women.
    """
    patient, shares = np.arange(PEOPLE) < 20, [0.4, 0.3, 0.2, 0.1]
    n_scans = np.where(patient, rng.choice([1, 2, 3, 4], PEOPLE, p=shares), rng.integers(1, 5, PEOPLE))
    person = np.repeat(np.arange(PEOPLE), n_scans)
    first = rng.normal(74, 6, PEOPLE) + 3 * patient
    male = rng.random(PEOPLE) < 0.5
    years = np.concatenate([np.sort(rng.uniform(0, 5, n)) for n in n_scans])
    x = -0.08 * (first - 75) + 0.5 * male - 0.8 * patient + rng.normal(size=PEOPLE)
    table = pd.DataFrame({"participant_id": person, "age": first[person] + years})
    table["sex"], table["group"] = np.where(male, "M", "F")[person], np.where(patient, "AD", "CN")[person]
    table["site"] = rng.permutation(np.arange(PEOPLE) % 3).astype(str)[person]
    table["field_strength"] = np.where(rng.random(len(person)) < 0.3 + 0.1 * years, "3", "1.5")
    return table.assign(x=x[person] + 0.25 * rng.normal(size=len(person)))


SHIFTS: dict[str, Callable[[pd.DataFrame], pd.Series]] = {
    "age": lambda table: 0.08 * (table["age"] - 75),
    "sex": lambda table: 0.6 * (table["sex"] == "M"),
    "field_strength": lambda table: 0.4 * (table["field_strength"] == "3"),
}


def unrelated(table: pd.DataFrame, icc: float, rng: Generator, shift: str = "", spread: str = "") -> np.ndarray:
    """Values (scans, sets) that are related to nothing but the columns of ``shift``.

    With ``spread``, the name of a column of groups, their standard deviations are as 2 to 1 or 3 to 2 to 1.
    """
    noise = rng.normal(size=(len(table), COLUMNS))
    values = np.sqrt(icc) * rng.normal(size=(PEOPLE, COLUMNS))[table["participant_id"]] + np.sqrt(1 - icc) * noise
    if spread:
        number = np.unique(table[spread], return_inverse=True)[1]
        values *= (1.0 + number.max() - number)[:, None]  # the first group, AD, varies most
    for name in shift.split():
        values += SHIFTS[name](table).to_numpy(float)[:, None]
    return values


MEANS, WHOLE, NAIVE = "participant means", "whole participants", "scans (naive)"
SCHEMES: dict[str, Callable[[list[int]], Exchangeability]] = {
    MEANS: Exchangeability.participant_means,
    WHOLE: Exchangeability.whole_participants,
    NAIVE: lambda rows: Exchangeability.free(len(rows)),
}


@dataclass(frozen=True)
class Test:
    """A test as the pipeline calls it; ``method`` "linear" is the coefficient's t or F, else a correlation."""

    scheme: str
    formula: str
    term: str
    method: str = "linear"
    spread: str = ""  # column of groups with different variances, for the studentised statistic
    shift: str = ""  # columns that move the values; all are adjusted for

    def p(self, table: pd.DataFrame, values: np.ndarray, rng: Generator) -> np.ndarray:
        design, exchange = (
            design_of(self.formula, self.term, table),
            SCHEMES[self.scheme](list(table["participant_id"])),
        )
        groups = table[self.spread].tolist() if self.spread else None
        return null.permuted(values, design, exchange, rng, self.method, groups).p


ADJUSTED, SHIFTED = "age + sex + field_strength", "age sex field_strength"
OFFERED = {
    "Pearson": Test(MEANS, "x", "x", "pearson"),
    "Spearman": Test(MEANS, "x", "x", "spearman"),
    "partial Pearson": Test(MEANS, f"x + {ADJUSTED}", "x", "pearson", shift=SHIFTED),
    "partial Spearman": Test(MEANS, f"x + {ADJUSTED}", "x", "spearman", shift=SHIFTED),
    "Pearson over scans": Test(WHOLE, "x", "x", "pearson"),
    "Spearman over scans": Test(WHOLE, "x", "x", "spearman"),
    "partial Pearson over scans": Test(WHOLE, f"x + {ADJUSTED}", "x", "pearson", shift=SHIFTED),
    "two groups, t": Test(MEANS, "group", "group"),
    "two groups, t, covariates": Test(MEANS, f"group + {ADJUSTED}", "group", shift=SHIFTED),
    "two groups, Welch's t, SD 2:1": Test(MEANS, "group", "group", spread="group"),
    "two groups, studentised, covariates, SD 2:1": Test(
        MEANS, f"group + {ADJUSTED}", "group", spread="group", shift=SHIFTED
    ),
    "three sites, F": Test(MEANS, "site", "site"),
    "three sites, F, covariates": Test(MEANS, f"site + {ADJUSTED}", "site", shift=SHIFTED),
    "three sites, Welch's F, SD 3:2:1": Test(MEANS, "site", "site", spread="site"),
    "interaction x : group, covariates": Test(MEANS, f"x * group + {ADJUSTED}", "x:group", shift=SHIFTED),
    "interaction sex : site (F), covariates": Test(MEANS, "sex * site + age", "sex:site", shift="age sex"),
}
SHUFFLED = {
    "Pearson": Test(NAIVE, "x", "x", "pearson"),
    "partial Pearson": Test(NAIVE, f"x + {ADJUSTED}", "x", "pearson", shift=SHIFTED),
    "two groups, t": Test(NAIVE, "group", "group"),
}


def without_effect(tests: Mapping[str, Test]) -> Iterator[Found]:
    """p of each test and ICC, in one cohort after the other."""
    for i in itertools.count():
        people, found = cohort(generator(SEED, "type-one-error", "cohort", i)), []
        for (name, test), icc in itertools.product(tests.items(), ICCS):
            rng = generator(SEED, "type-one-error", name, str(icc), i)
            found.append(((name, icc), test.p(people, unrelated(people, icc, rng, test.shift, test.spread), rng)))
        yield found


def with_effect(test: Test, effects: tuple[float, ...]) -> Iterator[Found]:
    """p of a test by ICC and true effect: correlation of people's true values with x, or difference of groups in SD."""
    for i in itertools.count():
        rng, found = generator(SEED, "power", test.scheme, test.term, i), []
        people = cohort(rng)
        rng.normal(size=len(people))  # of a column that is no more, so that the others stay as they were
        person, own = people["participant_id"].to_numpy(), rng.normal(size=PEOPLE)
        people["x"] = own[person] + 0.25 * rng.normal(size=len(person))
        for icc, effect in itertools.product(ICCS, effects):
            if test.term == "group":
                values = unrelated(people, icc, rng) + effect * (people[["group"]] == "AD").to_numpy(float)
            else:
                level = effect * own[:, None] + np.sqrt(1 - effect**2) * rng.normal(size=(PEOPLE, COLUMNS))
                values = null.scans_of(rng, np.sqrt(icc) * level, person, np.sqrt(1 - icc))
            found.append(((icc, effect), test.p(people, values, rng)))
        yield found


def of_shortcuts(n_positive: int, spread: float, hold: bool) -> Iterator[Found]:
    """p of the studentised and the plain difference of positive and other people, of `spread` times the SD.

    The test is that of `pipeline.statistics.shortcuts` in many columns; plain without groups.
    """
    rng = generator(SEED, "type-one-error", "shortcuts", n_positive, str(spread), hold)
    positive, fold = np.arange(PEOPLE) < n_positive, np.arange(PEOPLE) % 4 * hold
    frame = pd.DataFrame({"positive": positive.astype(float), "fold": fold})
    while True:
        values = rng.normal(size=(PEOPLE, COLUMNS)) * np.where(positive, spread, 1.0)[:, None]
        values *= (1.0 + fold)[:, None]
        studentised = null.term_test(values, "positive", "positive", frame, rng, spread="positive")
        yield [("studentised", studentised.p), ("plain", null.term_test(values, "positive", "positive", frame, rng).p)]


FULL = 1_000
"""Data sets below which a number is too rough to be judged by the limits."""
Tables = Iterator[tuple[Sequence[str], Sequence[Sequence[object]]]]
"""Columns and rows."""


def kept_rates(options: argparse.Namespace) -> dict[str, Rates]:
    """Rates of the cases asked for, and of those in the file of rates."""
    kept = json.loads(options.rates.read_text()) if options.rates and options.rates.is_file() else {}
    for name, case in (CASES | INTERVALS).items():
        if name.startswith(options.only) and name not in kept:
            started = time.process_time()
            kept[name] = null.rates(name, case, options.data_sets, options.seconds)
            print(name, kept[name], f"{time.process_time() - started:.0f} s", flush=True, file=sys.stderr)
            if options.rates:
                options.rates.write_text(json.dumps(kept))
    return kept


def cases(options: argparse.Namespace) -> Tables:
    kept = kept_rates(options)
    yield (
        ["table", "test", "data", "data sets", "rejected", "within 3.5-6.5 %"],
        [
            (case.tables, test, case.data, f"{number:,}", f"{rate:.1%}", verdict(rate, number, case))
            for name, case in CASES.items()
            for test, (rate, number) in kept.get(name, {}).items()
        ],
    )
    found = [row for name in INTERVALS for row in kept.get(name, {}).items()]
    rows = [(test, f"{number:,}", f"{rate:.1%}") for test, (rate, number) in found]
    yield ["95 % interval", "data sets", "misses the true value"], rows


def verdict(rate: float, number: int, case: Case) -> str:
    """Whether a test holds its level; *cautious*: few values of the statistic are possible."""
    low, high = (binom.ppf(q, number, null.LEVEL) / number for q in (0.025, 0.975))
    if number < FULL and low <= rate <= high:
        return "open: few data sets, within chance"
    if rate > (high if number < FULL else LIMITS[1]):
        return "no, and its rows say so" if case.caveat else "**no**"
    return "yes" if rate >= LIMITS[0] else "cautious"


def scan_rates(tests: dict[str, Test], data_sets: int) -> dict[str, list[float]]:
    """Of tests of people with several scans, by ICC."""
    found = counted(without_effect(tests), data_sets)
    return {name: [found[name, icc][0] for icc in ICCS] for name in tests}


def scans(options: argparse.Namespace) -> Tables:
    rows = []
    for tests in (OFFERED, SHUFFLED):
        for name, own in scan_rates(tests, options.data_sets).items():
            good = "yes" if all(LIMITS[0] <= rate <= LIMITS[1] for rate in own) else "**no**"
            rows.append((name, tests[name].scheme, *(f"{rate:.1%}" for rate in own), good))
    yield ["test", "what is exchanged", *(f"ICC {icc}" for icc in ICCS), "within 3.5-6.5 %"], rows


def power(options: argparse.Namespace) -> Tables:
    """Rejections for a true effect: correlation of the people's true values with x; difference of groups in SD."""
    related = [Test(scheme, "x", "x", "pearson") for scheme in (MEANS, WHOLE)]
    differing = [Test(MEANS, "group", "group", spread="group")]
    for name, tests, effects, unit in (
        ("Pearson", related, EFFECTS, ""),
        ("two groups, Welch's t", differing, DIFFERENCES, " SD"),
    ):
        rows = []
        for test in tests:
            found = counted(with_effect(test, effects), options.data_sets // 2)
            shares = {icc: [f"{found[icc, effect][0]:.0%}" for effect in effects] for icc in ICCS}
            rows += [(name, test.scheme, icc, *own) for icc, own in shares.items()]
        yield ["test", "what is exchanged", "ICC", *(f"{effect:g}{unit}" for effect in effects)], rows


def shortcut_rates(data_sets: int) -> dict[tuple[int, float, bool], Rates]:
    """Rejections in the shortcut audit; by positive participants, ratio of SD, and fold held."""
    ways = itertools.product((20, 40), (1.0, 2.0, 3.0), (True, False))
    return {way: counted(of_shortcuts(*way), data_sets) for way in ways}


def shortcuts(options: argparse.Namespace) -> Tables:
    """Difference of the classes in the shortcut audit, whose classes differ in size and spread; four networks."""
    rows = []
    for (n, spread, hold), found in shortcut_rates(options.data_sets).items():
        shares = (f"{found[name][0]:.1%}" for name in ("studentised", "plain"))
        rows.append((f"{n} / {PEOPLE - n}", f"{spread:g}:1", "yes" if hold else "no", *shares))
    yield ["positive / negative", "SD", "fold held", "studentised, as offered", "plain difference"], rows


def places(options: argparse.Namespace) -> Tables:
    columns = ["cell", "the first is among those that may be", "how many may be", "place held, mean over regions"]
    columns += ["in the worst region", "places in the interval", "percentiles of bootstrapped places hold it"]
    rows = []
    for name in CELLS:
        if name.startswith(options.only):
            found, resampled = coverage(name, options.data_sets), coverage(name, options.percentile, True)
            held, first = np.stack(found["held"].tolist()).mean(axis=0), found["holds_first"].mean()
            shares = [
                f"{100 * share:.1f} %" for share in (first, held.mean(), held.min(), resampled["percentile"].mean())
            ]
            numbers = [f"{found[column].mean():.1f}" for column in ("firsts", "width")]
            rows.append((name, shares[0], numbers[0], *shares[1:3], numbers[1], shares[3]))
            print(*rows[-1], flush=True, file=sys.stderr)
    yield columns, rows


def planted(options: argparse.Namespace) -> Tables:
    """Share found of planted differences of two groups."""
    rows = []
    for groups in POWER:
        found = counted(found_of_planted(groups, options.effect), options.data_sets * PLANTED)
        rows.append((groups.name, *(f"{share:.0%}" for share, _ in found.values())))
    yield ["data", "p", "p_fwe", "p_fdr", "p_fwe_ranks"], rows


def subtypes(options: argparse.Namespace) -> Tables:
    """In how many data sets more than one subtype is reported: in the first four kinds there are none."""
    rows = []
    for kind in PATIENTS:
        found = [np.array(list(numbers_found(kind, n, options.data_sets))) for n in OF_PATIENTS]
        rows.append((kind, *(f"{(numbers > 1).mean():.0%}" for numbers in found)))
    yield ["data", *(f"{n} patients" for n in OF_PATIENTS)], rows


PARTS = {
    "scans": (scans, "Error rates"),
    "power": (power, "Power"),
    "places": (places, "Places of regions"),
    "shortcuts": (shortcuts, "Shortcuts"),
    "tables": (cases, "Error rates of the other tables"),
    "planted": (planted, ""),
    "subtypes": (subtypes, ""),
}
"""What can be asked for, and its section of the page; without one it is printed."""


def shown(part: str, options: argparse.Namespace) -> str:
    return "\n\n".join("\n".join(table(columns, rows)) for columns, rows in PARTS[part][0](options))


def main() -> None:
    options = arguments_of(
        __doc__,
        "parts --data-sets --output --rates",
        parts={"nargs": "+", "choices": list(PARTS)},
        only=("", "cases or cells whose name begins so"),
        seconds=(np.inf, "stop a case after so long, with fewer data sets"),
        rates={"type": Path, "help": "JSON file that keeps what was found, so that cases can be run apart"},
        percentile=(200, "data sets for percentiles of bootstrapped places"),
        effect=(0.8, "planted differences in SD"),
    )
    for part in options.parts:
        title = PARTS[part][1]
        show(shown(part, options), options.output if title else None, title, STATISTICS)


if __name__ == "__main__":
    main()
