"""Volume against relevance: by hand, with planted truth, and with data that do not allow it."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import statsmodels.formula.api as smf
from made_up import FAST, MAPS, people, predictions_of, relevance_of

from heatlas.pipeline.registration.settled import JACOBIAN_SOURCE, RELIABILITY, not_measured
from heatlas.pipeline.run.config.settings import RegistrationConfig
from heatlas.pipeline.statistics.associations.volume_association import WITHIN, volume_association, volume_points
from heatlas.pipeline.statistics.data.values import RelevanceValues
from heatlas.pipeline.statistics.resampling.correction_family import benjamini_hochberg

KEYS = ["map", "volume", "unit", "estimator"]


def associate(scans, relevance=None, predictions=None, has_region=True):
    relevance = relevance_of(scans) if relevance is None else relevance
    predictions = predictions_of(scans) if predictions is None else predictions
    points = volume_points(RelevanceValues.of(relevance, predictions), scans)
    true = points[points["outcome"] == "TP"]
    table = volume_association(true, MAPS, has_region, FAST.statistics, 3)
    assert len(table) == len(MAPS) * 2 * (2 + 2 + 1)  # units, estimators of each
    return points, table.set_index(KEYS)


def test_coefficients_by_hand():
    points, table = associate(people())
    false_positives = points[(points["map"] == "gb") & (points["outcome"] == "FP")]
    assert set(false_positives["participant_id"]) == {"sub-004"}  # drawn beside the true ones, correlated nowhere
    assert set(false_positives["hippocampus_mm3"]) == {
        scan.hippocampus_mm3 for scan in people() if scan.participant_id == "sub-004"
    }
    own = points[(points["map"] == "gb") & (points["outcome"] == "TP")]
    assert set(own["participant_id"]) == {f"sub-{i:03d}" for i in range(1, 16, 2)} - {"sub-003"}
    means = own.groupby("participant_id")[["relevance_sum", "hippocampus_mm3", "hippocampus_per_tiv"]].mean()
    for volume, column in (("hippocampus_mm3", "hippocampus_mm3"), ("hippocampus/tiv", "hippocampus_per_tiv")):
        for unit, frame in (("participant", means), ("scan", own)):
            for name, oracle in (("pearson", scipy.stats.pearsonr), ("spearman", scipy.stats.spearmanr)):
                row = table.loc[("gb", volume, unit, name)]
                expected = oracle(frame[column], frame["relevance_sum"]).statistic
                assert row["r"] == pytest.approx(expected, abs=1e-12)
                assert row["n_participants"] == 7
                assert row["n_scans"] == len(own) == 13
                if abs(row["r"]) < 1 - 1e-12:
                    assert row["ci_low"] <= row["r"] <= row["ci_high"]
                else:
                    assert row["interval"] == "none"
                    assert "no interval: all points lie on one line" in row["note"]


def test_planted_association_is_found_and_none_is_not():
    _, found = associate(people())
    primary = found.xs("participant", level="unit")
    assert (primary["r"] < -0.8).all()
    assert (primary.xs("hippocampus_mm3", level="volume")["p"] == 1 / 200).all()
    _, none = associate(people(per_class=12), relevance_of(people(per_class=12), seed=1, effect=0.0))
    assert (none.xs("participant", level="unit")["p_fdr"] > 0.05).all()


def test_correction_is_over_the_maps_of_one_volume_unit_and_estimator():
    _, table = associate(people(), relevance_of(people(), effect=0.03))
    family = table.xs(("hippocampus_mm3", "participant", "pearson"), level=["volume", "unit", "estimator"])
    assert family["p_fdr"].tolist() == pytest.approx(scipy.stats.false_discovery_control(family["p"]).tolist())
    assert set(family["family"]) == {"3 maps: hippocampus_mm3, participant, pearson"}
    assert len(set(family["p"])) > 1


def test_not_computed_tests_are_no_part_of_a_family():
    assert benjamini_hochberg(np.array([np.nan, 0.03])).tolist() == pytest.approx([np.nan, 0.03], nan_ok=True)
    assert np.isnan(benjamini_hochberg(np.array([np.nan]))).all()


def test_few_scans_of_each_kind_are_permuted_exactly():
    _, table = associate(people())
    row = table.loc[("gb", "hippocampus_mm3", "scan", "pearson")]
    assert row["exact"]
    assert row["n_permutations"] == 24  # 7 participants: 3 with one scan, 2 with two, 2 with three: 3! x 2! x 2!
    assert row["p"] * 24 == pytest.approx(round(row["p"] * 24))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hippocampus_mm3": None}, "no true-positive scan has a known hippocampal volume"),
        ({"hippocampus_mm3": 5000.0, "tiv_mm3": 1e6}, "the volume is constant"),
    ],
)
def test_unusable_volumes_say_so(change, said):
    scans = [dataclasses.replace(scan, **change) for scan in people()]
    _, table = associate(scans, relevance_of(people()))
    rows = table.xs("participant", level="unit")
    assert rows["r"].isna().all()
    assert rows["p"].isna().all()
    assert rows.xs("hippocampus_mm3", level="volume")["note"].str.contains(said).all()


def test_without_intracranial_volume_the_plain_volume_still_counts():
    scans = [dataclasses.replace(scan, tiv_mm3=None if i % 2 else 0.0) for i, scan in enumerate(people())]
    _, table = associate(scans)
    assert table.xs("hippocampus_mm3", level="volume")["r"].notna().all()
    adjusted = table.xs("hippocampus/tiv", level="volume")
    assert adjusted["r"].isna().all()
    assert adjusted["note"].str.contains("intracranial").all()


def test_partly_known_volumes_and_mixed_sources_are_said():
    scans = people()
    scans = [
        dataclasses.replace(
            scan,
            hippocampus_mm3=None if scan.scan_id == "I502" else scan.hippocampus_mm3,
            hippocampus_source="FreeSurfer" if i < 10 else "warp",
        )
        for i, scan in enumerate(scans)
    ]
    _, table = associate(scans, relevance_of(people()))
    row = table.loc[("gb", "hippocampus_mm3", "participant", "pearson")]
    assert row["n_scans"] == 12
    assert "1 true-positive scan without a known volume" in row["note"]
    assert "FreeSurfer, warp" in row["note"]


def test_own_volumes_carry_their_reliability():
    source = f"{JACOBIAN_SOURCE}, cat12 ({RELIABILITY})"
    points, table = associate([dataclasses.replace(scan, hippocampus_source=source) for scan in people()])
    assert set(points["hippocampus_source"]) == {source}
    assert table["note"].str.contains(f"volumes: {source}", regex=False).all()


def test_why_there_is_no_volume_is_said():
    why = not_measured(RegistrationConfig(resolution_mm=4.0))
    scans = [dataclasses.replace(scan, hippocampus_mm3=None, hippocampus_source=why) for scan in people()]
    _, table = associate(scans, relevance_of(people()))
    assert table["r"].isna().all()
    assert table["note"].str.contains(why, regex=False).all()


def test_too_few_true_positives_constant_relevance_and_another_atlas():
    scans = people(per_class=3)
    _, few = associate(scans)
    between = few.drop(WITHIN, level="unit")
    assert between["note"].str.contains("2 participants; at least 3").all()
    change = few.xs(WITHIN, level="unit")["note"]
    assert change.str.contains("1 participant with several scans; at least 3").all()
    relevance = relevance_of(people())
    relevance.loc[relevance["map"] == "gb", "sum"] = 0.0
    _, flat = associate(people(), relevance)
    assert flat.loc["gb"]["note"].str.contains("relevance is constant").all()
    assert flat.loc["lrpB000"]["r"].notna().all()
    nobody = predictions_of(people()).replace({"outcome": {"TP": "FN"}})
    _, none = associate(people(), predictions=nobody)
    assert (none["note"] == "no true-positive scan").all()
    renamed = relevance_of(people()).replace({"group": {"Hippocampus": "CA1"}})
    points, other = associate(people(), renamed, has_region=False)
    assert len(points) == 0
    assert other["note"].str.contains("no bilateral group named Hippocampus").all()


def test_participants_who_cannot_be_exchanged_have_no_p_over_scans():
    scans = [scan for scan in people(per_class=3, scans_each=(1, 2, 3)) if scan.label == "AD"]
    _, table = associate(scans, predictions=predictions_of(scans, wrong=()))
    row = table.loc[("gb", "hippocampus_mm3", "scan", "pearson")]
    assert np.isfinite(row["r"])
    assert np.isnan(row["p"])
    assert "none can be permuted" in row["note"]


def test_change_within_participants_is_the_repeated_measures_correlation():
    """r of Bakdash and Marusich: from t of the slope beside one intercept for each person with several scans."""
    points, table = associate(people(per_class=12))
    points = points[points["outcome"] == "TP"]
    own = points[(points["map"] == "gb") & points.groupby(["map", "participant_id"])["scan_id"].transform("size").gt(1)]
    fitted = smf.ols("relevance_sum ~ C(participant_id) + hippocampus_mm3", own).fit()
    t = fitted.tvalues["hippocampus_mm3"]
    row = table.loc[("gb", "hippocampus_mm3", WITHIN, "pearson")]
    assert row["r"] == pytest.approx(t / np.sqrt(t**2 + fitted.df_resid), abs=1e-12)
    assert (row["n_participants"], row["n_scans"]) == (own["participant_id"].nunique(), len(own)) == (7, 18)


def test_levels_of_people_are_no_change_and_change_is_not_hidden_by_them():
    scans = [scan for scan in people(per_class=12, scans_each=(3, 2)) if scan.label == "AD"]
    rng = np.random.default_rng(4)
    change = rng.normal(size=len(scans))
    level = {scan.participant_id: 50 * rng.normal() for scan in scans}
    scans = [dataclasses.replace(s, hippocampus_mm3=6000 + 100 * x) for s, x in zip(scans, change, strict=True)]
    relevance = relevance_of(scans)
    found = {scan.scan_id: level[scan.participant_id] - x for scan, x in zip(scans, change, strict=True)}
    planted = relevance["group"].eq("Hippocampus") & relevance["map"].eq("gb")
    relevance.loc[planted, "sum"] = relevance.loc[planted, "scan_id"].map(found)
    _, table = associate(scans, relevance, predictions_of(scans, wrong=()))
    rows = table.xs(("gb", "hippocampus_mm3", "pearson"), level=["map", "volume", "estimator"])
    assert rows.loc[WITHIN, "r"] == pytest.approx(-1)
    assert rows.loc[WITHIN, "p"] == 1 / 200
    assert rows.loc["participant", "p"] > 0.05


def test_signs_of_few_participants_are_flipped_exactly():
    scans = [scan for scan in people(per_class=4, scans_each=(2, 3)) if scan.label == "AD"]
    points, table = associate(scans, predictions=predictions_of(scans, wrong=()))
    row = table.loc[("gb", "hippocampus_mm3", WITHIN, "pearson")]
    assert (row["n_permutations"], row["exact"]) == (8, True)
    own = points[points["map"] == "gb"].set_index("participant_id")[["hippocampus_mm3", "relevance_sum"]]
    own -= own.groupby(level=0).transform("mean")
    products = own.prod(axis=1).groupby(level=0).sum().to_numpy()
    every = [abs(signs @ products) for signs in itertools.product((1, -1), repeat=4)]
    assert row["p"] == pytest.approx(np.mean(np.array(every) >= abs(products.sum()) * (1 - 1e-9)))


@pytest.mark.ci
def test_random_drift_of_relevance_while_hippocampi_shrink_is_no_finding():
    """250 maps of which 5 % should reject; where visits change places, 14.6 % do."""
    rng, n, found = np.random.default_rng(5), 30, []
    settings, names = dataclasses.replace(FAST.statistics, permutations=99, bootstrap_samples=10), list("abcdefghij")
    for _ in range(25):
        person = np.repeat(np.arange(n), rng.integers(1, 5, n))
        years = 0.7 * (np.arange(len(person)) - np.searchsorted(person, person))
        volume = (6000 + 800 * rng.normal(size=n))[person] - (150 + 50 * rng.normal(size=n))[person] * years
        frame = pd.DataFrame({"participant_id": person.astype(str), "fold": 0, "hippocampus_mm3": volume})
        frame = frame.assign(hippocampus_per_tiv=np.nan, hippocampus_source="made up")
        drift = 0.6 * rng.normal(size=(10, n))[:, person] * years + 0.5 * rng.normal(size=(10, len(person)))
        blocks = [frame.assign(map=name, relevance_sum=own) for name, own in zip(names, drift, strict=True)]
        table = volume_association(pd.concat(blocks), names, True, settings, int(rng.integers(2**31)))
        found.append(table.loc[(table["unit"] == WITHIN) & table["p"].notna(), "p"])
    p = pd.concat(found)
    assert len(p) == 250
    assert 0.015 <= (p <= 0.05).mean() <= 0.095, (p <= 0.05).mean()
