"""Effects of who and where on relevance and volume: values by ordinary least squares, and what was planted is found."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from folded_cohort import GROUPS, MAPS, inputs_of, quick_config, scans_of
from statsmodels.regression.linear_model import RegressionResults

from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.groups.subgroups import MAIN_EFFECTS_TABLE, main_effects_tables
from heatlas.pipeline.statistics.linear.fold_effect import model_within_folds, with_variances

PUTAMEN = GROUPS.index("Putamen")


def cohort(sex_effect: float = 0.0, coil: float = 0.0, n: int = 36, **statistics) -> StatisticsInputs:
    """Volumes in proportion to the head; the putamen larger in men; relevance of the thalamus higher at one site."""
    scans = scans_of(n, seed=1)
    rng = np.random.default_rng(2)
    scans = [
        dataclasses.replace(s, field_strength=float(np.random.default_rng(int(s.participant_id[4:])).choice([1.5, 3])))
        for s in scans
    ]
    head = np.array([float(s.tiv_mm3 or 0) for s in scans])
    man = np.array([s.sex == "M" for s in scans])
    volumes = 0.004 * head[:, None] * np.exp(0.03 * rng.normal(size=(len(scans), len(GROUPS))))
    volumes[:, PUTAMEN] *= np.exp(sex_effect * man)
    densities = rng.normal(size=(len(scans), len(MAPS), len(GROUPS)))
    densities[:, :, GROUPS.index("Thalamus")] += coil * np.array([s.site == "101" for s in scans])[:, None]
    education = rng.integers(8, 20, len(scans)).astype(float)
    inputs = inputs_of(scans, densities, volumes, quick_config(**statistics))
    clinical = pd.DataFrame({"education": education}, index=pd.Index([s.scan_id for s in scans], name="scan_id"))
    return dataclasses.replace(inputs, clinical=clinical)


def table_of(inputs: StatisticsInputs) -> pd.DataFrame:
    table = main_effects_tables(inputs)
    assert list(table.columns) == list(MAIN_EFFECTS_TABLE.meanings)
    return table.set_index(["source", "variable", "group"]).sort_index()


def test_estimates_are_those_of_least_squares_over_participants() -> None:
    inputs = cohort(0.1)
    table = table_of(inputs)
    frame = inputs.frame
    tiv = frame["tiv_mm3"].to_numpy(float)
    wide = inputs.volumes.pivot_table("volume_mm3", "scan_id", "group", aggfunc="sum").loc[frame["scan_id"]]
    design = pd.DataFrame(
        {
            "person": frame["participant_id"], "sex": (frame["sex"] == "M").astype(float), "age": frame["age"],
            "education": frame["education"], "cn": (frame["label"] == "CN").astype(float),
            "field": (frame["field_strength"] == 3).astype(float), "s1": (frame["site"] == "101").astype(float),
            "s2": (frame["site"] == "102").astype(float), "y": np.log(wide["Putamen"].to_numpy() / tiv),
        }
    ).groupby("person").mean()  # fmt: skip
    y = design.pop("y")
    fit = sm.OLS(y, sm.add_constant(design)).fit()

    def design_without(name: str) -> pd.DataFrame:
        return sm.add_constant(design.drop(columns=name))

    for variable, name in (("sex", "sex"), ("age", "age"), ("education", "education"), ("field_strength", "field")):
        row = table.loc[("volume", variable, "Putamen")]
        assert row["estimate"] == pytest.approx(fit.params[name], rel=1e-8)
        kappa = (fit.tvalues[name] / row["statistic"]) ** 2
        left = [sm.OLS(part, design_without(name)).fit().resid for part in (y, design[name])]
        e2, x2 = (np.asarray(part) ** 2 / (np.asarray(part) ** 2).mean() for part in left)
        assert kappa == pytest.approx((e2 * x2).mean(), rel=1e-8)
        assert row["df"] == fit.df_resid
    assert table.loc[("volume", "sex", "Putamen"), "contrast"] == "M - the other"
    site = table.loc[("volume", "site", "Putamen")]
    assert [site["statistic"], site["df"]] == pytest.approx(welch(fit, design), rel=1e-8)
    assert pd.isna(table.loc[("volume", "site", "Putamen"), "estimate"])
    assert (table["n_participants"] == 36).all()


def welch(fit: RegressionResults, design: pd.DataFrame) -> list[float]:
    """Welch's F of the two columns of site, with one variance per site, and its degrees of freedom."""
    x, group = fit.model.exog, (design["s1"] + 2 * design["s2"]).to_numpy(int)
    inverse = np.linalg.inv(x.T @ x)
    meat, parts, freedom = np.zeros_like(inverse), [], []
    for one in range(3):
        own = x[group == one]
        freedom.append(len(own) - np.trace(own @ inverse @ own.T))
        variance = (fit.resid.to_numpy()[group == one] ** 2).sum() / freedom[-1]
        meat += variance * own.T @ own
        parts.append(len(own) / variance)
    tested = [list(fit.params.index).index(name) for name in ("s1", "s2")]
    effect = fit.params.to_numpy()[tested]
    covariance = (inverse @ meat @ inverse)[np.ix_(tested, tested)]
    lack = sum((1 - w / sum(parts)) ** 2 / df for w, df in zip(parts, freedom, strict=True))
    return [effect @ np.linalg.solve(covariance, effect) / 2 / (1 + lack / 4), 8 / (3 * lack)]


def test_a_factor_with_a_small_level_has_one_variance_and_says_so() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(size=30), "site": np.repeat(["a", "b", "c"], [4, 13, 13])})
    held = model_within_folds("age + site", "site", frame, False)
    model, groups = with_variances(held, frame["site"].tolist(), "site")
    assert groups is None
    assert "site: F takes one variance for all levels (a level with fewer than 5" in str(model.design.note)
    large = frame.assign(site=np.repeat(["a", "b", "c"], 10))
    model, groups = with_variances(model_within_folds("age + site", "site", large, False), list(large["site"]), "site")
    assert groups == large["site"].tolist()
    assert model.design.note is None


def test_what_is_planted_is_found_where_it_is_and_nowhere_else() -> None:
    table = table_of(cohort(sex_effect=0.1, coil=3.0))
    volumes = table.loc[("volume", "sex")]
    assert volumes.loc["Putamen", "estimate"] == pytest.approx(0.1, abs=0.025)
    assert volumes.loc["Putamen", "p_fwe"] == 1 / 200
    assert (volumes.drop("Putamen")["p_fwe"] > 0.05).all()
    for name in MAPS:
        site = table.loc[(name, "site")]
        assert site.loc["Thalamus", "p_fwe"] <= 0.01
        assert (site.drop("Thalamus")["p_fwe"] > 0.05).all()
    assert (table.xs("education", level="variable")["p_fwe"] > 0.05 / (len(MAPS) + 1)).all()  # one family per source


def test_a_column_that_is_not_there_or_says_nothing_has_a_row_that_says_so() -> None:
    inputs = cohort(main_effects={"variables": ["sex", "shoe_size", "mmse_bl"]})
    inputs = dataclasses.replace(inputs, clinical=inputs.clinical.assign(mmse_bl=29.0))
    table = table_of(inputs).reset_index()
    for name, why in (("shoe_size", "no column shoe_size"), ("mmse_bl", "mmse_bl")):
        rows = table[table["variable"] == name]
        assert rows["group"].isna().all()
        assert rows["note"].str.contains(why).all()
    assert table.loc[table["variable"] == "sex", "p"].notna().all()


def test_someone_without_head_size_costs_nobody_else_the_test() -> None:
    inputs = cohort(sex_effect=0.1)
    person = inputs.scans[0].participant_id
    scans = tuple(dataclasses.replace(s, tiv_mm3=None) if s.participant_id == person else s for s in inputs.scans)
    row = table_of(dataclasses.replace(inputs, scans=scans)).loc[("volume", "sex", "Putamen")]
    assert row["n_participants"] == 35
    assert row["p"] == 1 / 200
    assert "2 scans without a value" in row["note"]


def test_a_column_that_few_have_is_tested_and_costs_the_others_nothing() -> None:
    """Education of 12 of 36 people: with it in every model, 24 would be lost to every test."""
    inputs = cohort(0.1)
    few = inputs.clinical.copy()
    owner = pd.Series({scan.scan_id: int(scan.participant_id[-3:]) for scan in inputs.scans})
    few.loc[owner[few.index].to_numpy() >= 12, "education"] = np.nan
    table = table_of(dataclasses.replace(inputs, clinical=few))
    row = table.loc[("volume", "sex", "Putamen")]
    assert row["n_participants"] == 36
    assert "not adjusted for, known for too few participants: education (12 of 36)" in row["note"]
    assert "education" not in row["covariates"]
    own = table.xs("education", level="variable")
    assert own["n_participants"].eq(12).all()
    assert "not held" not in str(own["note"].iloc[0])


def test_without_head_sizes_volumes_cannot_be_compared_and_relevance_can() -> None:
    inputs = cohort()
    scans = tuple(dataclasses.replace(scan, tiv_mm3=None) for scan in inputs.scans)
    table = table_of(dataclasses.replace(inputs, scans=scans)).reset_index()
    volumes = table[table["source"] == "volume"]
    assert volumes["note"].str.contains("intracranial volume").all()
    assert table.loc[table["source"] == MAPS[0], "p"].notna().all()
