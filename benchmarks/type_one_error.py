"""Error rates of every test offered when people were scanned one to four times, and power.

    OMP_NUM_THREADS=1 python benchmarks/type_one_error.py --output docs/benchmarks/statistics.md

Made-up cohorts: 60 people with one to four scans each. Values of a region have an intraclass correlation (ICC): the
share of their variance that belongs to the person. Nothing is related to the tested variable beyond what the model
adjusts for, so 5 % of tests should reject at 5 %. Tests are called as the pipeline calls them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from harness import STATISTICS, arguments_of, line, show, table
from null_data import LEVEL, LIMITS, PEOPLE, SEED, linear_test, orders

from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.linear.correlation import partial_correlation
from heatlas.pipeline.statistics.linear.design import design_of
from heatlas.pipeline.statistics.linear.freedman_lane import PermutationTest, freedman_lane
from heatlas.pipeline.statistics.linear.permutations import Exchangeability

ICCS = (0.5, 0.7, 0.9)
SETS_PER_COHORT = 10
"""Independent sets of values for the same people and covariates."""
EFFECTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
DIFFERENCES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2)


@dataclass(frozen=True, eq=False)
class Cohort:
    """One row per scan, and the number of its person."""

    table: pd.DataFrame
    person: np.ndarray

    def values(self, icc: float, rng: np.random.Generator, shift: str = "", spread: str = "") -> np.ndarray:
        """Values that are related to nothing but the columns of ``shift``; shape (scans, sets).

        With ``spread``, the name of a column of groups, their standard deviations are as 2 to 1 or 3 to 2 to 1.
        """
        noise = rng.normal(size=(len(self.person), SETS_PER_COHORT))
        people = rng.normal(size=(PEOPLE, SETS_PER_COHORT))[self.person]
        values = np.sqrt(icc) * people + np.sqrt(1 - icc) * noise
        if spread:
            number = np.unique(self.table[spread], return_inverse=True)[1]
            values *= (1.0 + number.max() - number)[:, None]  # the first group, AD, varies most
        for name in shift.split():
            values += SHIFTS[name](self.table[name]).to_numpy(float)[:, None]
        return values


def cohort(rng: np.random.Generator) -> Cohort:
    """People of whom the 20 patients are older, have fewer scans and lower x; x is also lower with age and in women."""
    patient = np.arange(PEOPLE) < 20
    n_scans = np.where(patient, rng.choice([1, 2, 3, 4], PEOPLE, p=[0.4, 0.3, 0.2, 0.1]), rng.integers(1, 5, PEOPLE))
    person = np.repeat(np.arange(PEOPLE), n_scans)
    first = rng.normal(74, 6, PEOPLE) + 3 * patient
    male = rng.random(PEOPLE) < 0.5
    years = np.concatenate([np.sort(rng.uniform(0, 5, n)) for n in n_scans])
    x = -0.08 * (first - 75) + 0.5 * male - 0.8 * patient + rng.normal(size=PEOPLE)
    table = pd.DataFrame(
        {
            "participant_id": person,
            "years": years,
            "age": first[person] + years,
            "sex": np.where(male, "M", "F")[person],
            "group": np.where(patient, "AD", "CN")[person],
            "site": rng.permutation(np.arange(PEOPLE) % 3).astype(str)[person],
            "field_strength": np.where(rng.random(len(person)) < 0.3 + 0.1 * years, "3", "1.5"),
            "x": x[person] + 0.25 * rng.normal(size=len(person)),
            "state": 0.5 * years + rng.normal(size=len(person)),  # not tested any more; drawn so that the others stay
        }
    )
    return Cohort(table, person)


@dataclass(frozen=True)
class Test:
    """A test as the pipeline calls it; ``method`` "linear" is the coefficient's t or F, else a correlation."""

    scheme: str
    formula: str
    term: str
    method: Any = "linear"
    spread: str = ""  # column of groups with different variances, for the studentised statistic
    shift: str = ""  # columns that move the values; all are adjusted for

    def of(self, people: Cohort) -> Callable[[np.ndarray, np.random.Generator], PermutationTest]:
        design = design_of(self.formula, self.term, people.table)
        exchange = SCHEMES[self.scheme](people.table["participant_id"].tolist())
        groups = people.table[self.spread].tolist() if self.spread else None
        if self.method == "linear":
            return lambda values, rng: freedman_lane(values, design, exchange, orders(rng), groups)
        return lambda values, rng: partial_correlation(values, design, exchange, orders(rng), self.method)


MEANS, WHOLE, NAIVE = "participant means", "whole participants", "scans (naive)"
SCHEMES: dict[str, Callable[[list[int]], Exchangeability]] = {
    MEANS: Exchangeability.participant_means,
    WHOLE: Exchangeability.whole_participants,
    NAIVE: lambda rows: Exchangeability.free(len(rows)),
}
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
SHIFTS: dict[str, Callable[[pd.Series], pd.Series]] = {
    "age": lambda age: 0.08 * (age - 75),
    "sex": lambda sex: 0.6 * (sex == "M"),
    "field_strength": lambda tesla: 0.4 * (tesla == "3"),
}


def main() -> None:
    options = arguments_of(__doc__, "--data-sets --output")
    started = time.process_time()
    sections = {"Error rates": error_section(options.data_sets), "Power": power_section(options.data_sets // 2)}
    print(f"{time.process_time() - started:.0f} s of one core")
    sections["Shortcuts"] = shortcut_section(options.data_sets)
    for title, text in sections.items():
        show(text, options.output, title, STATISTICS)


def rates(tests: dict[str, Test], data_sets: int) -> dict[str, list[float]]:
    rejected = {name: np.zeros(len(ICCS)) for name in tests}
    for i in range(data_sets // SETS_PER_COHORT):
        people = cohort(generator(SEED, "type-one-error", "cohort", i))
        for name, test in tests.items():
            run = test.of(people)
            for j, icc in enumerate(ICCS):
                rng = generator(SEED, "type-one-error", name, str(icc), i)
                rejected[name][j] += (run(people.values(icc, rng, test.shift, test.spread), rng).p <= LEVEL).sum()
    return {name: (own / data_sets).tolist() for name, own in rejected.items()}


def error_section(data_sets: int) -> str:
    lines = table(["test", "what is exchanged", *(f"ICC {icc}" for icc in ICCS), "within 3.5-6.5 %"])
    for tests in (OFFERED, SHUFFLED):
        for name, own in rates(tests, data_sets).items():
            good = "yes" if all(LIMITS[0] <= rate <= LIMITS[1] for rate in own) else "**no**"
            lines.append(line(name, tests[name].scheme, *(f"{rate:.1%}" for rate in own), good))
    return "\n".join(lines)


def shortcut_rates(data_sets: int) -> dict[tuple[int, float, bool], list[float]]:
    """Rejections by the studentised and the plain difference; by positive participants, ratio of SD, and fold held.

    The test is that of `pipeline.statistics.shortcuts` in many columns; plain without groups.
    """
    found = {}
    for n_positive, spread, hold in itertools.product((20, 40), (1.0, 2.0, 3.0), (True, False)):
        rng = generator(SEED, "type-one-error", "shortcuts", n_positive, str(spread), hold)
        positive, fold = np.arange(PEOPLE) < n_positive, np.arange(PEOPLE) % 4 if hold else np.zeros(PEOPLE, np.intp)
        frame, groups = pd.DataFrame({"positive": positive.astype(float), "fold": fold}), positive.tolist()
        rejected = np.zeros(2)
        for _ in range(data_sets // SETS_PER_COHORT):
            values = rng.normal(size=(PEOPLE, SETS_PER_COHORT)) * np.where(positive, spread, 1.0)[:, None]
            values *= (1.0 + fold)[:, None]
            tests = [linear_test(values, "positive", "positive", frame, rng, own) for own in (groups, None)]
            rejected += [(test.p <= LEVEL).sum() for test in tests]
        found[n_positive, spread, hold] = (rejected / data_sets).tolist()
    return found


def shortcut_section(data_sets: int) -> str:
    """Difference of the classes in the shortcut audit, whose classes differ in size and spread; four networks."""
    lines = table(["positive / negative", "SD", "fold held", "studentised, as offered", "plain difference"])
    for (n_positive, spread, hold), (studentised, plain) in shortcut_rates(data_sets).items():
        of = f"{n_positive} / {PEOPLE - n_positive}", f"{spread:g}:1", "yes" if hold else "no"
        lines.append(line(*of, f"{studentised:.1%}", f"{plain:.1%}"))
    return "\n".join(lines)


def power_section(data_sets: int) -> str:
    """Rejections for a true effect: correlation of the people's true values with x; difference of groups in SD."""
    lines = table(["test", "what is exchanged", "ICC", *(f"{effect:g}" for effect in EFFECTS)])
    for scheme in (MEANS, WHOLE):
        for icc, row in zip(ICCS, power(Test(scheme, "x", "x", "pearson"), EFFECTS, data_sets), strict=True):
            lines.append(line("Pearson", scheme, icc, *(f"{share:.0%}" for share in row)))
    lines += ["", *table(["test", "what is exchanged", "ICC", *(f"{d:g} SD" for d in DIFFERENCES)])]
    for icc, row in zip(
        ICCS, power(Test(MEANS, "group", "group", spread="group"), DIFFERENCES, data_sets), strict=True
    ):
        lines.append(line("two groups, Welch's t", MEANS, icc, *(f"{share:.0%}" for share in row)))
    return "\n".join(lines)


def power(test: Test, effects: tuple[float, ...], data_sets: int) -> list[list[float]]:
    rejected = np.zeros((len(ICCS), len(effects)))
    for i in range(data_sets // SETS_PER_COHORT):
        rng = generator(SEED, "power", test.scheme, test.term, i)
        people = cohort(rng)
        own = rng.normal(size=PEOPLE)
        people.table["x"] = own[people.person] + 0.25 * rng.normal(size=len(people.person))
        run, patient = test.of(people), (people.table["group"] == "AD").to_numpy(float)[:, None]
        for j, icc in enumerate(ICCS):
            for k, effect in enumerate(effects):
                if test.term == "group":
                    values = people.values(icc, rng) + effect * patient
                else:
                    level = effect * own[:, None] + np.sqrt(1 - effect**2) * rng.normal(size=(PEOPLE, SETS_PER_COHORT))
                    noise = rng.normal(size=(len(people.person), SETS_PER_COHORT))
                    values = np.sqrt(icc) * level[people.person] + np.sqrt(1 - icc) * noise
                rejected[j, k] += (run(values, rng).p <= LEVEL).sum()
    shares: list[list[float]] = (rejected / data_sets).tolist()
    return shares


if __name__ == "__main__":
    main()
