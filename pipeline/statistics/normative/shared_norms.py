"""Norms of controls in numbers of the group alone, which an export gives away, and where the networks' answers lie.

A linear norm on age and sex is told by how many women and men there are, their ages (mean, spread, mean of the men) and
the regression of all of them: from these the leverage of a new person follows, so that scores are those of the controls
themselves. A group with few of either sex has its mean and spread alone. The answer of the networks has a norm like
that of a region: each control was answered out of fold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from heatlas.pipeline.explaining.controls import NORMS_TABLE
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.statistics.arrays import Flags, Floats
from heatlas.pipeline.statistics.data.inputs import AppliedScans
from heatlas.pipeline.statistics.data.values import joined
from heatlas.pipeline.statistics.normative.w_scores import FEWEST_CONTROLS, NO_SPREAD, Norm, fit_norm

ANSWER = "answer"
"""Map and group of what the networks answer in a table of norms."""
FEWEST_OF_A_SEX = 5
"""Women, and men, from whom on a norm takes account of age and sex: what is said of fewer would show single people."""
MEANS_ALONE = "norm without age and sex: of the controls mean and spread alone are known"
_OF_ALL = ("map", "group", "n_controls", "mean", "sd")
_BY_AGE_AND_SEX = tuple(name for name in NORMS_TABLE.meanings if name not in _OF_ALL)
W_ANSWERS_TABLE = declared("w_answers", __file__)


def answers_of(frame: pd.DataFrame) -> Floats | None:
    """The number that networks predicted, or the logit of the positive class less that of the other, of each scan.

    None for networks of several classes, whose answer is no single number.
    """
    if "prediction" in frame:
        return frame["prediction"].to_numpy(float)
    if {"logit_negative", "logit_positive"} <= set(frame):
        return (frame["logit_positive"] - frame["logit_negative"]).to_numpy(float)
    return None


def norm_rows(source: str, groups: Sequence[str], values: Floats, facts: pd.DataFrame) -> pd.DataFrame:
    """Rows of `NORMS_TABLE` of controls with values (controls, groups), a scan each; none for a group with too few.

    Examples
    --------
    >>> facts = pd.DataFrame({"age": np.arange(60.0, 72.0), "sex": list("FM" * 6)})
    >>> values = 2 * facts["age"] + 3 * (facts["sex"] == "M") + np.array([0.1, -0.1, -0.1, 0.1] * 3)
    >>> row = norm_rows("lrp", ["Amygdala"], values.to_numpy()[:, None], facts).iloc[0]
    >>> row[["n_women", "n_men", "age_mean", "age_men"]].astype(float).tolist()
    [6.0, 6.0, 65.5, 66.0]
    >>> row[["women", "age_slope", "men_less_women"]].astype(float).round(1).tolist()
    [131.0, 2.0, 3.0]
    """
    age, man = pd.to_numeric(facts["age"]).to_numpy(float), (facts["sex"] == "M").to_numpy(bool)
    known, rows = np.isfinite(age) & facts["sex"].isin(["F", "M"]).to_numpy(bool), []
    for group, of_group in zip(groups, values.T, strict=True):
        there = ~np.isnan(of_group)
        if (n := int(there.sum())) >= FEWEST_CONTROLS:
            row: dict[str, Any] = {"map": source, "group": group, "n_controls": n, "mean": of_group[there].mean()}
            used = there & known
            rows.append(row | {"sd": of_group[there].std(ddof=1)} | _regressed(of_group[used], age[used], man[used]))
    return NORMS_TABLE.frame(rows).astype({"n_women": "Int64", "n_men": "Int64"})


def _regressed(values: Floats, age: Floats, man: Flags) -> dict[str, Any]:
    """The columns of a norm by age and sex; none where there are too few, or age and sex cannot be told apart."""
    if min(man.sum(), (~man).sum()) < FEWEST_OF_A_SEX:
        return {}
    norm = fit_norm(values[:, None], np.column_stack([age - age.mean(), man]), min_freedom=1)
    if norm.problems[0]:
        return {}
    women, slope, difference = norm.coefficients[:, 0]
    return {
        "n_women": int((~man).sum()), "n_men": int(man.sum()), "age_mean": age.mean(), "age_sd": age.std(ddof=1),
        "age_men": age[man].mean(), "age_low": np.ceil(age.min()), "age_high": np.floor(age.max()), "women": women,
        "age_slope": slope, "men_less_women": difference, "residual_sd": norm.deviation[0],
    }  # fmt: skip


@dataclass(frozen=True, eq=False)
class SharedNorms:
    """Norms of one map, or of the answer: rows of `NORMS_TABLE`, which earlier exports have without age and sex."""

    source: str
    rows: pd.DataFrame

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(self.rows["group"])

    def for_scan(self, facts: pd.DataFrame) -> tuple[Norm, Floats, str | None]:
        """The norm of a scan, its covariates (1, n), and which of them had to be left out.

        Outside the ages of the controls there is no norm.
        """
        by_age = self.rows[list(_BY_AGE_AND_SEX)].notna().all(axis=1).to_numpy(bool)
        if not by_age.any():
            return self._of_all(), np.empty((1, 0)), MEANS_ALONE
        unknown = [f"{name} is n/a" for name in ("age", "sex") if pd.isna(facts[name].iloc[0])]
        if unknown:
            return self._of_all(), np.empty((1, 0)), f"norm without age and sex ({'; '.join(unknown)})"
        age, man = float(facts["age"].iloc[0]), float(facts["sex"].iloc[0] == "M")
        return self._by_age_and_sex(by_age, age), np.array([[age, man]]), None

    def _of_all(self) -> Norm:
        mean, sd, n = (self.rows[name].to_numpy(float) for name in ("mean", "sd", "n_controls"))
        nothing: tuple[str | None, ...] = (None,) * len(n)
        spread = np.where(sd**2 > NO_SPREAD * (mean**2 + sd**2), sd, np.nan)
        return Norm(mean[None], (1 / n)[:, None, None], spread, n, n - 1, nothing)

    def _by_age_and_sex(self, by_age: Flags, age: float) -> Norm:
        """The regression on age and sex, where there is one; NaN, with a problem, outside the ages of its controls."""
        n_women, men, ages, spread, of_men, low, high, women, slope, difference, deviation = (
            self.rows[name].to_numpy(float, na_value=np.nan) for name in _BY_AGE_AND_SEX
        )
        n, everyone = n_women + men, self._of_all()
        products = np.array([  # X'X of the columns 1, age and man
            [n, n * ages, men], [n * ages, (n - 1) * spread**2 + n * ages**2, men * of_men], [men, men * of_men, men],
        ])  # fmt: skip
        coefficients, inverse = np.zeros((3, len(n))), np.zeros((len(n), 3, 3))
        coefficients[0], inverse[:, :1, :1] = everyone.coefficients, everyone.inverse
        coefficients[:, by_age] = np.array([women - slope * ages, slope, difference])[:, by_age]
        inverse[by_age] = np.linalg.inv(np.moveaxis(products, 2, 0)[by_age])
        outside = by_age & ((age < low) | (age > high))
        problems = [
            f"age {age:g} is outside those of the controls, {first:g} to {last:g}" if beyond
            else None if known else "norm without age and sex: too few controls with both"
            for beyond, known, first, last in zip(outside, by_age, low, high, strict=True)
        ]  # fmt: skip
        return Norm(
            coefficients, inverse, np.where(outside, np.nan, np.where(by_age, deviation, everyone.deviation)),
            np.where(by_age, n, everyone.controls), np.where(by_age, n - 3, everyone.freedom), tuple(problems),
        )  # fmt: skip


def answer_table(applied: AppliedScans, norms: SharedNorms) -> pd.DataFrame:
    """What the networks answer to each scan beside what they answer to controls; columns of `W_ANSWERS_TABLE`."""
    frame, rows, answers = applied.frame, [], answers_of(applied.frame)
    for place, answer in enumerate([] if answers is None else answers.tolist()):
        facts = frame.iloc[[place]]
        norm, covariates, left_out = norms.for_scan(facts)
        usual = (np.column_stack([np.ones(1), covariates]) @ norm.coefficients)[0, 0]
        w, z = norm.scores(np.array([[answer]]), covariates)
        row = facts[["participant_id", "session_id", "scan_id"]].iloc[0].to_dict()
        rows.append(row | {
            "answer": answer, "mean": np.nan if np.isnan(norm.deviation[0]) else usual, "sd": norm.deviation[0],
            "w": w[0, 0], "z": z[0, 0], "n_controls": int(norm.controls[0]),
            "covariates": "age, sex" if covariates.size else None, "note": joined(norm.problems[0], left_out),
        })  # fmt: skip
    return W_ANSWERS_TABLE.frame(rows)
