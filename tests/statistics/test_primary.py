"""The primary outcome: the same numbers as the associations, one test, and a reason where there is none."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from made_up import GROUPS, MAPS, inputs_of, means_in_one_spread, people, relevance_of, settings

from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.declared import Form
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.statistics.associations.associations import (
    EXCHANGED,
    PRIMARY_COLUMNS,
    associations_tables,
    primary_tables,
)
from heatlas.pipeline.statistics.requested import require_names
from heatlas.pipeline.statistics.stage import STATISTICS_TABLES

NUMBERS = ["r", "ci_low", "ci_high", "p", "slope", "n_participants", "n_scans", "n_permutations"]


def primary_of(inputs) -> pd.Series:
    table = primary_tables(inputs)
    assert list(table.columns) == list(PRIMARY_COLUMNS)
    assert len(table) == 1
    return table.iloc[0]


@pytest.mark.parametrize(
    ("asked", "covariates", "held"),
    [
        ({}, "age + sex", "label + age + sex"),  # the class is held over all scans
        ({}, "label + age", "label + age"),
        ({}, "", "label"),
        ({"metric": "density", "map": "gb", "region": "Amygdala"}, "age", "label + age"),
        ({"scan_group": "negative", "biomarker": "tiv"}, "age + sex", "age + sex"),
        ({"scan_group": "TP", "biomarker": "hippocampus"}, "sex", "sex"),
        ({"scan_group": "positive", "biomarker": "age"}, "age + sex", "age + sex"),
    ],
)
def test_the_primary_row_is_the_row_of_associations_that_asks_the_same(asked, covariates, held):
    """Including its p: both draw the same permutations."""
    row = primary_of(inputs_of(people(10), settings(primary=asked, covariates=covariates)))
    keys = {"map": MAPS[0], "metric": "share", "region": "Hippocampus", "biomarker": "hippocampus/tiv"} | asked
    own = dict(biomarkers=[keys["biomarker"]], scan_groups=[asked.get("scan_group", "all")], metrics=[keys["metric"]])
    table = associations_tables(inputs_of(people(10), settings(associations=own, covariates=held)))
    table = table[(table[["estimator", "map", "group"]] == ["partial", keys["map"], keys["region"]]).all(axis=1)]
    (same,) = table.to_dict("records")
    assert row["note"] == same["note"]
    assert row[["interval", "covariates"]].tolist() == [same["interval"], same["covariates"]]
    for name in NUMBERS:  # critical values are of single precision
        assert row[name] == pytest.approx(same[name], rel=1e-9 if name in ("r", "p", "slope") else 1e-5), name
    assert np.isfinite([row["r"], row["ci_low"], row["ci_high"], row["p"]]).all()
    assert row["exchanged"] == f"{EXCHANGED}, within test folds"
    for name in ("map", "metric", "biomarker"):
        assert row[name] == keys[name]


def test_it_is_the_partial_correlation_of_participant_means_with_class_and_fold_held():
    inputs = inputs_of(people(10), settings(covariates="age"))
    row = primary_of(inputs)
    sums = inputs.values.sums[:, 0, :]
    frame = inputs.frame.assign(
        share=sums[:, GROUPS.index("Hippocampus")] / np.abs(sums).sum(axis=1),
        volume=inputs.frame["hippocampus_mm3"] / inputs.frame["tiv_mm3"],
    )
    means = frame.groupby("participant_id")[["share", "volume", "age", "target", "fold"]].mean()
    shares = sums / np.abs(sums).sum(axis=1, keepdims=True)
    means["share"] = means_in_one_spread(inputs, shares, means.index)["Hippocampus"]
    held = sm.add_constant(means[["age", "target", "fold"]])  # two folds, 0 and 1
    left = [sm.OLS(means[name], held).fit().resid for name in ("share", "volume")]
    assert row["r"] == pytest.approx(np.corrcoef(*left)[0, 1], abs=1e-12)
    assert row["n_participants"] == len(means) == 20


@pytest.mark.parametrize(
    ("evidence", "asked", "chosen"),
    [
        ((), {}, ("lrpB000", "share")),
        (("gb",), {}, ("gb", "sum")),
        (("lrpB100", "gb"), {}, ("lrpB100", "sum")),
        (("gb",), {"map": "lrpB100"}, ("lrpB100", "share")),
        (("gb",), {"metric": "density"}, ("gb", "density")),
    ],
)
def test_an_evidence_map_comes_first_and_is_summed(evidence, asked, chosen):
    scans = people()
    relevance = relevance_of(scans)
    relevance["evidence"] = relevance["sum"].where(relevance["map"].isin(evidence))
    row = primary_of(inputs_of(scans, settings(primary=asked), relevance=relevance))
    assert (row["map"], row["metric"]) == chosen


def without(**facts):
    return [dataclasses.replace(scan, **facts) for scan in people()]


@pytest.mark.parametrize(
    ("scans", "asked", "reason"),
    [
        (without(hippocampus_mm3=None), {"biomarker": "hippocampus/tiv"}, "hippocampus/tiv: no scan has a value"),
        (without(tiv_mm3=None), {"biomarker": "hippocampus/tiv"}, "hippocampus/tiv: no scan has a value"),
        (
            without(hippocampus_mm3=None, mmse=None),
            {},
            "hippocampus/tiv: no scan has a value, nor one of hippocampus, nwbv or mmse.",
        ),
        (without(hippocampus_mm3=6000.0, tiv_mm3=1e6), {}, "hippocampus/tiv"),  # constant
        (people(), {"biomarker": "cdrsb"}, "cdrsb: no such column"),
        (people(), {"biomarker": "volume of Hippocampus/tiv"}, "group/volumes.tsv: missing or empty"),
        (people(1), {}, "2 participants with a value; at least 4 are needed"),
        (people(2), {}, "4 participants are too few for"),
        (people(), {"map": "occlusion"}, "no map named occlusion in group/relevance_bilateral.tsv"),
        (people(), {"region": "Insula"}, "no bilateral group named Insula"),
        ([scan for scan in people() if scan.label == "CN"], {"scan_group": "positive"}, "no scan in this group"),
    ],
)
def test_a_primary_outcome_that_cannot_be_computed_is_a_row_with_the_reason(scans, asked, reason):
    row = primary_of(inputs_of(scans, settings(primary=asked)))
    assert row[["r", "ci_low", "ci_high", "p"]].isna().all()
    assert reason in row["note"]
    assert row["group"] == asked.get("region", "Hippocampus")


@pytest.mark.parametrize(
    ("missing", "clinical", "taken"),
    [
        ({}, {"nwbv": 0.7}, "hippocampus/tiv"),
        ({"tiv_mm3": None}, {"nwbv": 0.7}, "hippocampus"),
        ({"hippocampus_mm3": None}, {"nwbv": 0.7}, "nwbv"),
        ({"hippocampus_mm3": None}, {}, "mmse"),
    ],
)
def test_images_without_volumes_are_compared_with_what_is_there(missing, clinical, taken):
    """Images that enter registered: the first answer of the report was "not known" though MMSE was in the table."""
    scans = [dataclasses.replace(scan, mmse=29.0 - place % 5) for place, scan in enumerate(without(**missing))]
    columns = {name: value + 0.001 * (np.arange(len(scans)) % 7) for name, value in clinical.items()}
    known = pd.DataFrame({"scan_id": [scan.scan_id for scan in scans], **columns}).set_index("scan_id")
    row = primary_of(inputs_of(scans, settings(), clinical=known))
    own = primary_of(inputs_of(scans, settings(primary={"biomarker": taken}), clinical=known))
    assert row["biomarker"] == taken
    pd.testing.assert_series_equal(row.drop("note"), own.drop("note"))
    assert np.isfinite([row["r"], row["p"]]).all()
    said = f"hippocampus/tiv: no scan has a value, so {taken} takes its place"
    assert (said in str(row["note"])) == bool(missing)


def test_relevance_without_variation_has_no_p():
    relevance = relevance_of(people())
    relevance.loc[relevance["group"] == "Hippocampus", ["sum", "density"]] = np.nan  # a region without a voxel
    row = primary_of(inputs_of(people(), settings(), relevance=relevance))
    assert row[["r", "p"]].isna().all()
    assert row["note"]


def test_a_number_has_no_class_to_hold():
    config = settings()
    config = dataclasses.replace(config, cohort=dataclasses.replace(config.cohort, target="age"))
    assert "not defined where a number is predicted" in primary_of(inputs_of(people(), config))["note"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"scan_group": "MCI"}, r"statistics\.primary\.scan_group = 'MCI': must be one of 'all', 'positive'"),
        ({"metric": "mean"}, r"statistics\.primary\.metric = 'mean': must be one of 'auto', 'density'"),
        ({"biomarker": "own volume/tiv"}, r"statistics\.primary\.biomarker .* \"volume of Hippocampus/tiv\""),
        ({"region": " "}, r"statistics\.primary\.region must not be empty"),
        ({"outcome": "r"}, r"statistics\.primary\.outcome"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_when_it_is_read(asked, said):
    with pytest.raises(UsageError, match=said):
        load_config(overrides={"statistics": {"primary": asked}})


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"region": "Hipocampus"}, r"statistics\.primary\.region: 'Hipocampus' is not known\. .*Hippocampus"),
        ({"map": "lrpB00"}, r"statistics\.primary\.map: 'lrpB00' is not known\. .*lrpB000"),
        ({"biomarker": "mmsee"}, r"statistics\.primary\.biomarker: 'mmsee' is not known\. .*mmse"),
        ({"biomarker": "volume of Hipocampus"}, r"statistics\.primary\.biomarker: 'volume of Hipocampus'"),
        ({"biomarker": "sex"}, r"statistics\.primary\.biomarker: sex: not a numeric column"),
    ],
)
def test_a_name_that_the_run_will_not_have_is_refused_before_work_starts(asked, said):
    with pytest.raises(BadInputError, match=said):
        require_names(settings(primary=asked), people(), None, GROUPS)


def test_the_default_is_not_refused_with_an_atlas_without_hippocampus():
    require_names(settings(), people(), None, ["Insula"])


def test_every_table_with_p_values_states_role_family_and_correction_and_one_is_primary():
    for table in STATISTICS_TABLES:
        tests = [name for name, column in table.columns.items() if column.form is Form.P]
        assert {name for name in table.meanings if name == "p" or name.startswith("p_")} <= {*tests}
        assert bool(tests) == (table.inference is not None), table.name
        for name in tests:
            assert table.dictionary[name].endswith(table.tests)
        others = [name for name in table.meanings if name not in tests]
        assert all(table.dictionary[name] == table.meanings[name] for name in others)
        for start, said in (("p_fwe", "family-wise"), ("p_fdr", "for the false discovery rate")):
            assert any(name.startswith(start) for name in tests) == (said in table.tests), table.name
    roles = [table.inference.role for table in STATISTICS_TABLES if table.inference]
    assert roles.count("primary") == 1
    assert roles[0] == "primary"
