"""Progression end to end: histories of diagnoses and tables of a run in, the statistics stage's tables out.

Eighty people with MCI who are followed, and some who are not. More relevance in one region means sooner AD; no other
region has anything to do with it. What the tables say is set against statsmodels and against loops over pairs.
"""

from __future__ import annotations

import dataclasses
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_up import people, predictions_of
from scipy.stats import norm
from statsmodels.duration.hazard_regression import PHReg

from heatlas.pipeline.cohort.candidates import Candidate
from heatlas.pipeline.cohort.people.diagnosis import OTHER_DEMENTIA, Diagnosis, follow_up, progression
from heatlas.pipeline.cohort.people.inclusion import clinical_table
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table, write_table
from heatlas.pipeline.statistics import stage

N = 80
MAPS = ("lrpB000", "lrpB100")
GROUPS = ("Amygdala", "Hippocampus", "Cuneus", "Putamen", "Thalamus", "Precuneus")
PLANTED = "Hippocampus"
LOG_HAZARD = 1.1
"""Per standard deviation of the planted region's relevance: a hazard ratio of 3."""
HORIZON = 36
WITHDRAWN, UNSEEN_AGAIN, OTHER = 3, 2, 3
MONTH = 30.4375


@dataclasses.dataclass(frozen=True)
class Cohort:
    """What was planted, and the tables that the stage made of it."""

    people: pd.DataFrame
    relevance: np.ndarray
    tables: dict[str, pd.DataFrame]


def history(*known: tuple[float, str]) -> list[Diagnosis]:
    return [
        Diagnosis(value, date(2010, 1, 1) + timedelta(days=round(MONTH * months)), "", None, "made up")
        for months, value in known
    ]


def visits_until(end: float, last: str = "MCI") -> list[tuple[float, str]]:
    """A visit every six months, with what was found at the last."""
    return [(month, "MCI") for month in range(0, int(end), 6)] + [(end, last)]


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Cohort:
    rng = np.random.default_rng(5)
    total = N + WITHDRAWN + UNSEEN_AGAIN
    relevance = rng.normal(size=(total, len(MAPS), len(GROUPS)))
    relevance[:, 1] = relevance[:, 0] + 0.3 * rng.normal(size=(total, len(GROUPS)))  # maps of one person are alike
    risk = relevance[:, 0, GROUPS.index(PLANTED)]
    onset = np.ceil(rng.exponential(40 * np.exp(-LOG_HAZARD * risk)) / 6) * 6
    followed = rng.choice([24, 36, 48, 60], size=total)
    other = np.isin(np.arange(total), [*np.flatnonzero(onset[:N] > 18)[:OTHER], *np.flatnonzero(onset[:N] <= 18)[:1]])
    candidates, facts = [], []
    for i in range(total):
        if i >= N + WITHDRAWN:
            course, kind = [(0.0, "MCI")], "unseen"
        elif i >= N:
            course, kind = [(0.0, "MCI"), (12.0, "AD"), (24.0, "MCI"), (36.0, "MCI")], "withdrawn"
        elif onset[i] <= followed[i] and not (other[i] and onset[i] > 18):
            after = OTHER_DEMENTIA if other[i] else "AD"
            course, kind = [*visits_until(onset[i], "AD"), (onset[i] + 6, "AD"), (onset[i] + 24, after)], "AD"
        elif other[i]:
            course, kind = [*visits_until(18, OTHER_DEMENTIA), (30.0, OTHER_DEMENTIA)], "other"
        else:
            course, kind = visits_until(followed[i]), "MCI"
        known = history(*course)
        scan = Scan(
            f"sub-M{i:03d}", "ses-M000", f"J{i}", None, "MCI", None, age=float(rng.integers(60, 88)), sex="FM"[i % 2],
            mmse=float(rng.integers(24, 30)), tiv_mm3=1.4e6, hippocampus_mm3=6500.0 + 200 * rng.normal(),
            progression=progression(known, known[0], HORIZON),
        )  # fmt: skip
        candidates.append(Candidate(scan, follow_up=follow_up(known, known[0])))
        months = onset[i] if kind == "AD" else 18 if kind == "other" else followed[i]
        facts.append((scan.scan_id, kind, float(months), scan.progression, scan.age, scan.sex, scan.mmse))
    written = _run(tmp_path_factory.mktemp("run"), candidates, relevance, risk)
    columns = ["scan_id", "kind", "months", "course", "age", "sex", "mmse"]
    return Cohort(pd.DataFrame(facts, columns=columns), relevance, written)


def _run(
    folder: Path, candidates: list[Candidate], relevance: np.ndarray, logit: np.ndarray
) -> dict[str, pd.DataFrame]:
    """Write what a run has before statistics, and run the real stage for the analyses of progression."""
    layout, labelled = RunLayout(folder), people(6)
    mci = [candidate.scan for candidate in candidates]
    ScanTable((*labelled, *mci)).write(layout.root / "scans.tsv")
    clinical, _ = clinical_table(candidates)
    write_table(layout.root / "clinical.tsv", clinical.frame)
    write_table(
        layout.group / "relevance_bilateral.tsv", _rows(labelled, np.ones((len(labelled), len(MAPS), len(GROUPS))))
    )
    write_table(layout.group / "relevance_applied_bilateral.tsv", _rows(mci, 5 + relevance))
    probability = 1 / (1 + np.exp(-logit))
    keys = [[s.participant_id, s.session_id, s.scan_id] for s in mci]
    applied = pd.DataFrame(keys, columns=["participant_id", "session_id", "scan_id"])
    write_table(layout.group / "predictions_applied.tsv", applied.assign(probability=probability, networks="0;1"))
    config = load_config(
        overrides={
            "seed": 3,
            "cohort": {"mci_horizon_months": HORIZON},
            "statistics": {"permutations": 999, "bootstrap_samples": 200},
        }
    )
    of_progression = tuple(one for one in stage.ANALYSES if one.name in ("progression", "trajectories"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "ANALYSES", of_progression)
        stage.analyse(layout, labelled, predictions_of(labelled), config)
    return {
        name: read_table(layout.statistics(name))
        for one in of_progression
        for name in (*(table.name for table in one.tables), "notes")
    }


def _rows(scans: list[Scan], values: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(
        [
            (scan.scan_id, name, group, values[i, m, g], values[i, m, g] / 10, np.nan)
            for i, scan in enumerate(scans) for m, name in enumerate(MAPS) for g, group in enumerate(GROUPS)
        ],
        columns=["scan_id", "map", "group", "sum", "density", "gain"],
    )  # fmt: skip


def followed_people(cohort: Cohort) -> tuple[pd.DataFrame, np.ndarray]:
    """Those whom the models are about, and their relevance."""
    return cohort.people.iloc[:N], cohort.relevance[:N]


def regions(table: pd.DataFrame, model: str) -> pd.DataFrame:
    return table[(table["predictor"] == "relevance") & (table["model"] == model)].set_index(["map", "group"])


@pytest.mark.parametrize("model", ["alone", "adjusted"])
def test_ratios_and_intervals_are_those_of_statsmodels(cohort: Cohort, model: str) -> None:
    known, relevance = followed_people(cohort)
    table = regions(cohort.tables["cox"], model)
    male = (known["sex"] == "M").to_numpy(float)
    covariates = [known["age"].to_numpy(float), male, known["mmse"].to_numpy(float)] if model == "adjusted" else []
    for m, name in enumerate(MAPS):
        for g, group in enumerate(GROUPS):
            x = relevance[:, m, g]
            columns = np.column_stack([(x - x.mean()) / x.std(ddof=1), *[(c - c.mean()) / c.std() for c in covariates]])
            time, event = np.round(np.round(known["months"] * MONTH) / MONTH, 2), known["kind"] == "AD"
            fit = PHReg(time.to_numpy(), columns, status=event.to_numpy(int), ties="efron").fit(disp=0)
            reach = norm.ppf(0.975) * fit.bse[0]
            row = table.loc[(name, group)]
            np.testing.assert_allclose(
                np.log(row[["hazard_ratio", "ci_low", "ci_high"]].to_numpy(float)),
                fit.params[0] + np.array([0, -reach, reach]),
                atol=1e-6,
            )
    planted = table.loc[(MAPS[0], PLANTED)]
    assert planted["ci_low"] > 1
    assert planted["ci_low"] < np.exp(LOG_HAZARD) < planted["ci_high"]


@pytest.mark.parametrize("model", ["alone", "adjusted"])
def test_the_planted_region_is_found_in_both_maps_and_no_other(cohort: Cohort, model: str) -> None:
    table = regions(cohort.tables["cox"], model)
    planted = table.index.get_level_values("group") == PLANTED
    assert table.loc[planted, ["p", "p_fwe", "p_fdr"]].to_numpy().max() < 0.01
    assert table.loc[~planted, ["p_fwe", "p_fdr"]].to_numpy().min() > 0.05
    assert (table["p"] >= 1 / 1000).all()
    assert (table["p_fwe"] >= table["p"]).all()


def test_events_censored_and_competing_people_are_counted_and_the_others_named(cohort: Cohort) -> None:
    known, _ = followed_people(cohort)
    kinds = known["kind"].value_counts()
    assert kinds["other"] == OTHER  # a fourth had AD before it
    table = cohort.tables["cox"]
    for _, row in table.iterrows():
        assert (row["n_participants"], row["n_missing"]) == (N, 0)
        assert row["n_events"] == kinds["AD"]
        assert row["n_censored"] == N - kinds["AD"]
        assert row["n_competing"] == kinds["other"]
        assert row["event"] == "AD at any visit after the scan"
        assert f"{WITHDRAWN} participants left out: neither conversion nor follow-up known" in row["note"]
        assert f"{UNSEEN_AGAIN} participants left out: no time between scan and last visit" in row["note"]
    assert not cohort.tables["notes"]["analysis"].eq("progression").any()


def test_a_dementia_of_another_cause_censors_at_its_diagnosis(cohort: Cohort) -> None:
    """Counting it as AD, or following those people on, would give other ratios than the table's."""
    known, relevance = followed_people(cohort)
    x = relevance[:, 0, GROUPS.index(PLANTED)]
    z = ((x - x.mean()) / x.std(ddof=1))[:, None]
    row = regions(cohort.tables["cox"], "alone").loc[(MAPS[0], PLANTED)]
    event, other = (known["kind"] == "AD").to_numpy(), (known["kind"] == "other").to_numpy()
    months = known["months"].to_numpy()
    ratios = {}
    for name, time, status in (
        ("cause-specific", months, event), ("as AD", months, event | other), ("on", np.where(other, 60, months), event)
    ):  # fmt: skip
        fit = PHReg(time, z, status=status.astype(int), ties="efron").fit(disp=0)
        ratios[name] = float(np.exp(fit.params[0]))
    assert row["hazard_ratio"] == pytest.approx(ratios["cause-specific"], rel=1e-6)
    assert abs(ratios["as AD"] / ratios["cause-specific"] - 1) > 1e-3
    assert abs(ratios["on"] / ratios["cause-specific"] - 1) > 1e-3


def by_pairs(time: np.ndarray, event: np.ndarray, x: np.ndarray) -> float:
    """Harrell's concordance, pair by pair."""
    right = total = 0.0
    for i in range(len(x)):
        for j in range(len(x)):
            if event[i] and (time[i] < time[j] or (time[i] == time[j] and not event[j])):
                total += 1
                right += float(x[i] > x[j]) + 0.5 * float(x[i] == x[j])
    return right / total


def test_concordance_is_that_of_all_pairs(cohort: Cohort) -> None:
    known, relevance = followed_people(cohort)
    time, event = known["months"].to_numpy(float), (known["kind"] == "AD").to_numpy()
    table = regions(cohort.tables["cox"], "alone")
    for m, name in enumerate(MAPS):
        for g, group in enumerate(GROUPS):
            wanted = by_pairs(time, event, relevance[:, m, g])
            assert table.loc[(name, group), "concordance"] == pytest.approx(wanted, abs=1e-12)
    progress = cohort.tables["progression"].set_index(["predictor", "measure"])
    logit = relevance[:, 0, GROUPS.index(PLANTED)]  # the made-up network says what the region does
    for predictor, x in {"model": logit, "mmse": -known["mmse"].to_numpy(), "age": known["age"].to_numpy()}.items():
        assert progress.loc[(predictor, "concordance"), "estimate"] == pytest.approx(
            by_pairs(time, event, x), abs=1e-12
        )


def test_the_horizon_splits_who_converts_late_from_who_does_early(cohort: Cohort) -> None:
    known, relevance = followed_people(cohort)
    late = (known["kind"] == "AD") & (known["months"] > HORIZON + 6)
    assert late.sum() > 2
    assert (known.loc[late, "course"] == "sMCI").all()
    everybody = cohort.people["course"]  # someone whose AD was withdrawn is neither
    converter, stable = (everybody == "pMCI")[:N], (everybody == "sMCI")[:N]
    progress = cohort.tables["progression"].set_index(["predictor", "measure"])
    auc, concordance = progress.loc[("model", "auc")], progress.loc[("model", "concordance")]
    assert (auc["n_events"], auc["n_participants"]) == (converter.sum(), (converter | stable).sum())
    assert auc["n_missing"] == N - (converter | stable).sum()
    assert concordance["n_events"] == (known["kind"] == "AD").sum() > auc["n_events"]
    assert auc["event"] == "AD by the visit 36 months after the scan (pMCI)"
    assert concordance["event"] == "AD at any visit after the scan"
    x = relevance[:, 0, GROUPS.index(PLANTED)]
    pairs = [float(a > b) for a in x[converter] for b in x[stable]]
    assert auc["estimate"] == pytest.approx(np.mean(pairs), abs=1e-12)
    assert auc["p"] <= 0.002
    assert progress.loc[("model", "sensitivity"), "estimate"] == pytest.approx((x[converter] > 0).mean())
    assert progress.loc[("model", "specificity"), "estimate"] == pytest.approx((x[stable] <= 0).mean())


def test_one_scan_each_is_no_trajectory_and_the_row_says_so(cohort: Cohort) -> None:
    (row,) = cohort.tables["trajectories"].to_dict("records")
    assert "participants with repeated scans; at least 10 are needed" in row["note"]
    courses = row["note"].partition("left out, fewer than 3 with repeated scans: ")[2]
    assert set(courses.split(", ")) == {"pMCI", "sMCI", "uMCI"}
    assert row["n_missing"] == N + WITHDRAWN + UNSEEN_AGAIN
    assert np.isnan(row["p"])
