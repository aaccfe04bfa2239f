"""Tests of change over visits on the published OASIS-2 table, beside two models of statsmodels.

    python benchmarks/longitudinal_table.py oasis_longitudinal.csv

The table (Marcus et al. 2010; 150 people, 373 scans, one row each) is not part of this repository. Whole-brain volume
(nWBV) in per cent of the cranium and MMSE are read from it. The same question is asked by least squares of people's
slopes with the same weights and HC3 errors, which like Heatlas gives no group the variance of another. The mixed model
(random intercept and slope per person; Wald test) gives all groups one variance.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import statsmodels.api as sm
import statsmodels.formula.api as smf
from harness import arguments_of, line
from harness import table as markdown

from heatlas.pipeline.statistics.arrays import Resampling
from heatlas.pipeline.statistics.progression.trajectories import ParticipantSlopes, change_test, participant_slopes

Row = dict[str, float]
JOINT: Row = dict.fromkeys(("estimate", "low", "high"), np.nan)

RESPONSES = {"nWBV": 100.0, "MMSE": 1.0}
GROUPS = ("Nondemented", "Converted", "Demented")


def read(path: Path) -> pd.DataFrame:
    """Rows of the table with years since the first visit."""
    table = pd.read_csv(path)
    return table.assign(years=table["MR Delay"] / 365.25).sort_values(["Subject ID", "years"]).reset_index(drop=True)


def of_groups(table: pd.DataFrame, response: str, groups: tuple[str, ...]) -> tuple[pd.DataFrame, ParticipantSlopes]:
    """Scans of some groups with the response, and the slopes of their people."""
    rows = table[table["Group"].isin(groups)].dropna(subset=[response])
    return rows, participant_slopes(*_arrays(rows, response, groups))


def _arrays(rows: pd.DataFrame, response: str, groups: tuple[str, ...]) -> tuple[Any, ...]:
    numbers = np.array([groups.index(name) for name in rows["Group"]])
    people, network = pd.factorize(rows["Subject ID"])[0], np.zeros(len(rows), dtype=np.intp)
    return rows[[response]].to_numpy(float), rows["years"].to_numpy(float), people, numbers, network


def ours(table: pd.DataFrame, response: str, groups: tuple[str, ...], m: int) -> Row:
    """Slope of a group, difference of two, or equality of all."""
    rows, _ = of_groups(table, response, groups)
    found = change_test(*_arrays(rows, response, groups), Resampling(m, np.random.default_rng(1)))
    return {name: float(getattr(found, name)[0]) for name in ("estimate", "low", "high", "p")}


def two_stage(table: pd.DataFrame, response: str, groups: tuple[str, ...]) -> Row:
    """The same by statsmodels: weighted least squares of the slopes, errors by HC3."""
    _, lines = of_groups(table, response, groups)
    weights = lines.weights[:, 0] if len(groups) == 1 else lines.reliability
    design = np.column_stack([np.ones(len(lines.slopes)), *(lines.group == place for place in range(1, len(groups)))])
    fit = sm.WLS(lines.slopes[:, 0], design, weights).fit(cov_type="HC3", use_t=True)
    if len(groups) > 2:
        return JOINT | {"p": float(fit.f_test(np.eye(len(groups))[1:]).pvalue)}
    low, high = fit.conf_int()[-1]
    return {"estimate": fit.params[-1], "low": low, "high": high, "p": fit.pvalues[-1]}


def mixed_model(table: pd.DataFrame, response: str, groups: tuple[str, ...]) -> Row:
    """The same by statsmodels' mixed model, with random intercepts and slopes."""
    rows = table[table["Group"].isin(groups)].dropna(subset=[response]).rename(columns={response: "y"})
    rows = rows.assign(group=pd.Categorical(rows["Group"], groups))
    formula = "y ~ years" if len(groups) == 1 else "y ~ group * years"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = smf.mixedlm(formula, rows, groups=rows["Subject ID"], re_formula="~years").fit(method=["lbfgs", "powell"])
    names = list(fit.params.index)
    terms = [name for name in names if ":years" in name] or ["years"]
    if len(groups) > 2:
        joint = fit.wald_test(np.eye(len(names))[[names.index(name) for name in terms]], scalar=True)
        return JOINT | {"p": float(joint.pvalue)}
    low, high = fit.conf_int().loc[terms[0]]
    return {"estimate": fit.params[terms[0]], "low": low, "high": high, "p": fit.pvalues[terms[0]]}


def main() -> None:
    options = arguments_of(__doc__, "table", permutations=9999)
    table = read(options.table)
    ways = ("Heatlas: per year (95 %)", "p", "slopes, HC3: per year (95 %)", "p", "mixed model", "p")
    print(*markdown(["response", "term", *ways]), sep="\n")
    pairs = [(a, b) for place, b in enumerate(GROUPS) for a in GROUPS[:place]]
    terms = {f"slope {name}": (name,) for name in GROUPS} | {f"{b} - {a}": (a, b) for a, b in pairs}
    for response, scale in RESPONSES.items():
        scaled = table.assign(**{response: table[response] * scale})
        for term, groups in (terms | {"group x time": GROUPS}).items():
            cells = []
            answers = two_stage(scaled, response, groups), mixed_model(scaled, response, groups)
            for found in (ours(scaled, response, groups, options.permutations), *answers):
                estimate = "" if np.isnan(found["estimate"]) else "{estimate:+.3f} ({low:+.3f} to {high:+.3f})"
                cells += [estimate.format(**found), f"{found['p']:.4f}"]
            print(line(response, term, *cells))


if __name__ == "__main__":
    main()
