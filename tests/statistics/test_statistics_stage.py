"""The tables of a run, the primary outcome, and main effects."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from folded_cohort import GROUPS as EFFECTS_GROUPS
from folded_cohort import MAPS as EFFECTS_MAPS
from folded_cohort import inputs_of as effects_inputs_of
from folded_cohort import quick_config, scans_of
from made_up import (
    FAST,
    GROUPS,
    MAPS,
    fast,
    inputs_of,
    made_up_run,
    means_in_one_spread,
    people,
    predictions_of,
    relevance_of,
    settings,
)
from scipy.special import gamma
from statsmodels.regression.linear_model import RegressionResults

import heatlas
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.declared import Form
from heatlas.pipeline.run.documents import read_toml
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.statistics.associations.associations import (
    EXCHANGED,
    PRIMARY_TABLE,
    associations_tables,
    primary_tables,
)
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.values import RelevanceValues, participant_means
from heatlas.pipeline.statistics.groups.subgroups import MAIN_EFFECTS_TABLE, main_effects_tables
from heatlas.pipeline.statistics.groups.summaries import demographic_tests, demographics, region_summary
from heatlas.pipeline.statistics.linear.fold_effect import model_within_folds, with_variances
from heatlas.pipeline.statistics.requested import require_names
from heatlas.pipeline.statistics.resampling.means import FEW, HALL
from heatlas.pipeline.statistics.stage import STATISTICS_TABLES, analyse

# All tables of a run: averages by hand, dictionaries, the same bytes twice, and cohorts that allow little.

TABLES = (
    "demographics", "performance", "roc", "region_summary", "group_comparisons", "volume_points", "volume_association",
)  # fmt: skip


def analysed(folder, scans, config=None, relevance=None):
    layout = made_up_run(folder, scans, relevance_of(scans) if relevance is None else relevance)
    analyse(layout, scans, predictions_of(scans), config or fast())
    return layout


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    return analysed(tmp_path_factory.mktemp("usual") / "run", people(), fast(seed=3))


def test_every_table_has_a_dictionary_of_its_columns(usual):
    for name in TABLES:
        path = usual.statistics(name)
        described = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        frame = read_table(path)
        assert list(described) == list(frame.columns)
        assert len(frame) > 0


@pytest.mark.ci
def test_same_seed_same_bytes_other_seed_other_draws(usual, tmp_path):
    runs = [usual, *(analysed(tmp_path / str(seed), people(), fast(seed=seed)) for seed in (3, 4))]
    contents = [{path.stem: path.read_bytes() for path in run.statistics("roc").parent.glob("*.tsv")} for run in runs]
    assert contents[0] == contents[1]
    assert {*TABLES, "associations", "subgroups", "interactions", "fairness"} <= set(contents[0])
    assert contents[0]["performance"] != contents[2]["performance"]
    assert contents[0]["demographics"] == contents[2]["demographics"]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "scans",
    [
        people(per_class=1),
        [scan for scan in people() if scan.label == "CN"],
        [scan for scan in people() if scan.label == "AD"],
        [dataclasses.replace(s, hippocampus_mm3=None, tiv_mm3=None, age=None, sex=None, mmse=None) for s in people()],
        [dataclasses.replace(s, session_id=None) for s in people(scans_each=(1,))],
    ],
    ids=["two people", "controls only", "patients only", "nothing known", "no sessions"],
)
@pytest.mark.filterwarnings("error")
def test_poor_cohorts_give_rows_that_say_why(scans, tmp_path):
    relevance = relevance_of(scans)
    layout = analysed(tmp_path, scans, relevance=relevance)
    effects = read_table(layout.statistics("group_comparisons"))
    effects = effects[(effects["metric"] == "density") & (effects["comparison"] == "AD/CN")]
    assert len(effects) == 12
    assert (effects["p"].notna() | effects["note"].notna()).all()
    association = read_table(layout.statistics("volume_association"))
    assert len(association) == len(MAPS) * 2 * 5  # volumes; units with their estimators
    assert (association["p"].notna() | association["note"].notna()).all()
    summary = read_table(layout.statistics("region_summary"))
    assert len(summary) == 72
    assert (summary["mean_density"].notna() | summary["note"].notna()).all()


@pytest.mark.ci
def test_labels_that_look_like_numbers(tmp_path):
    scans = [dataclasses.replace(s, label="1" if s.label == "AD" else "0") for s in people()]
    predictions = predictions_of([dataclasses.replace(s, label="AD" if s.label == "1" else "CN") for s in scans])
    layout = made_up_run(tmp_path, scans, relevance_of(people()))
    config = fast(cohort=dataclasses.replace(fast().cohort, negative="0", positive="1"))
    analyse(layout, scans, predictions.assign(label=predictions["target"]), config)
    summary = read_table(layout.statistics("region_summary"), text_columns=["scan_group"])
    assert set(summary["scan_group"]) == {"0", "1", "TP", "FP", "TN", "FN"}
    assert summary.loc[summary["scan_group"] == "1", "n_scans"].eq(15).all()


def test_bad_tables_are_named(tmp_path):
    scans = people()
    layout = made_up_run(tmp_path, scans, relevance_of(scans))
    predictions = predictions_of(scans)
    with pytest.raises(BadInputError, match=r"predictions\.tsv: column outcome"):
        analyse(layout, scans, predictions.drop(columns="outcome"), fast())
    with pytest.raises(BadInputError, match=r"scan I0 of .*has no row"):
        analyse(layout, scans, predictions.iloc[1:], fast())
    with pytest.raises(BadInputError, match="I0 is listed twice"):
        analyse(layout, scans, pd.concat([predictions, predictions.iloc[:1]]), fast())
    with pytest.raises(BadInputError, match="no such table"):
        analyse(RunLayout(tmp_path / "nothing"), scans, predictions, fast())


def test_demographics_average_participants():
    table = demographics(people(), fast().cohort).set_index(["label", "variable"])
    assert table.loc[("all", "scans"), ["n_participants", "n_scans"]].tolist() == [16, 30]
    ages = [60 + i + {0: 0, 1: 0.5, 2: 1}[i // 2 % 3] for i in range(1, 16, 2)]
    assert table.loc[("AD", "age"), "mean"] == pytest.approx(sum(ages) / 8)
    assert table.loc[("AD", "age"), "sd"] == pytest.approx(pd.Series(ages).std())
    assert table.loc[("CN", "mmse"), "n_known"] == 7  # the first participant's is unknown
    assert table.loc[("all", "female"), "mean"] == pytest.approx(10 / 16)
    assert table.loc[("AD", "scans"), "maximum"] == 3


def test_notes_name_files_as_the_run_folder_does(usual):
    notes = read_table(usual.statistics("notes"))
    said = notes.loc[notes["analysis"] == "shortcuts", "reason"].item()
    assert said.startswith("group/relevance_audit.tsv: no such table")
    for path in usual.root.rglob("*.tsv"):
        assert str(usual.root.parent) not in path.read_text(encoding="utf-8"), path.name


@pytest.mark.parametrize("per_class", [3, 5, 12])
def test_hedges_g_of_demographics_has_the_exact_correction(per_class):
    scans = people(per_class)
    table = demographic_tests(scans, fast().cohort).set_index("variable")
    frame = pd.DataFrame([(s.participant_id, s.label, s.age) for s in scans], columns=["who", "label", "age"])
    means = frame.groupby(["label", "who"])["age"].mean()
    a, b = means["AD"], means["CN"]
    freedom = len(a) + len(b) - 2
    pooled = np.sqrt(((len(a) - 1) * a.var() + (len(b) - 1) * b.var()) / freedom)
    exact = gamma(freedom / 2) / (np.sqrt(freedom / 2) * gamma((freedom - 1) / 2))
    assert table.loc["age", "hedges_g"] == pytest.approx(exact * (a.mean() - b.mean()) / pooled, rel=1e-12)


@pytest.fixture
def data():
    scans = people()
    return relevance_of(scans), predictions_of(scans)


def summary(relevance, predictions):
    values = RelevanceValues.of(relevance, predictions)
    return region_summary(values, FAST.cohort, FAST.statistics.confidence, 0).set_index(["map", "group", "scan_group"])


def test_means_over_participants_and_over_scans(data):
    relevance, predictions = data
    table = summary(*data)
    assert len(table) == len(MAPS) * len(GROUPS) * 6
    merged = relevance.merge(predictions[["scan_id", "label", "outcome"]], on="scan_id")
    own = merged[(merged["map"] == "gb") & (merged["group"] == "Hippocampus")]
    for scan_group, column in (("AD", "label"), ("CN", "label"), ("TP", "outcome"), ("FN", "outcome")):
        rows = own[own[column] == scan_group]
        people_means = rows.groupby("participant_id")[["sum", "density", "gain"]].mean()
        row = table.loc[("gb", "Hippocampus", scan_group)]
        assert row["n_scans"] == len(rows)
        assert row["n_participants"] == len(people_means)
        assert row["mean_sum"] == pytest.approx(people_means["sum"].mean())
        assert row["mean_gain"] == pytest.approx(people_means["gain"].mean())
        assert row["mean_density"] == pytest.approx(people_means["density"].mean())
        assert row["scan_mean_density"] == pytest.approx(rows["density"].mean())
        if len(people_means) > 1:
            assert row["sd_density"] == pytest.approx(people_means["density"].std())
        if len(people_means) > 2:
            assert row["ci_low"] < row["mean_density"] < row["ci_high"]
            assert (row["interval"], row["note"]) == (HALL, FEW)
        ratio = rows["sum"].mean() / own[own["label"] == "CN"]["sum"].mean()
        assert row["ratio_of_means"] == pytest.approx(ratio)
    assert table.loc[("gb", "Hippocampus", "AD"), "mean_density"] != pytest.approx(
        table.loc[("gb", "Hippocampus", "AD"), "scan_mean_density"], rel=1e-6
    )


def test_groups_without_scans_have_rows(data):
    relevance, predictions = data
    table = summary(relevance, predictions.replace({"outcome": {"FP": "TN", "FN": "TP"}}))
    row = table.loc[("gb", "Amygdala", "FP")]
    assert row["n_scans"] == row["n_participants"] == 0
    assert np.isnan(row["mean_density"])
    assert row["note"] == "no scan in this group"


def test_ratio_needs_a_positive_denominator_and_empty_groups_say_so(data):
    relevance, predictions = data
    relevance.loc[relevance["group"] == "Amygdala", "sum"] *= -1
    relevance.loc[relevance["group"] == "Third ventricle", "density"] = np.nan
    table = summary(relevance, predictions)
    assert np.isnan(table.loc[("gb", "Amygdala", "AD"), "ratio_of_means"])
    assert "no voxel" in table.loc[("gb", "Third ventricle", "AD"), "note"]


def test_participant_means_leave_out_what_is_not_known():
    values = np.array([[1.0, np.nan], [3.0, 4.0], [np.nan, np.nan]])
    means = participant_means(values, np.array([0, 0, 1]))
    assert np.array_equal(means, [[2.0, 4.0], [np.nan, np.nan]], equal_nan=True)


def test_densest_regions_have_places_in_the_positive_class(data):
    table = summary(*data)
    rows = table.xs("AD", level="scan_group")
    others = table[table.index.get_level_values("scan_group") != "AD"]
    assert others[["place_low", "place_high"]].isna().all(axis=None)
    for name in MAPS:
        own = rows.loc[name]
        place = own["mean_density"].rank(ascending=False)
        assert ((own["place_low"] <= place) & (place <= own["place_high"])).all()
        assert own["place_low"].min() == 1


_OF_PIPELINE = ("cohort", "evaluation", "explaining", "regions", "statistics", "training")
ROOMS = [*(f"pipeline/{room}" for room in _OF_PIPELINE), "studies"]


@pytest.mark.parametrize("room", ROOMS)
def test_what_is_usual_is_left_out_of_several_tables(room: str) -> None:
    sections = read_toml(Path(heatlas.__file__).parent / room / "tables.toml")
    tables = [section for section in sections.values() if "columns" in section]
    left_out = Counter(name for table in tables for name, text in table["columns"].items() if not text)
    assert not {name for name in sections.get("usual", ()) if left_out[name] < 2}


# The primary outcome: the same numbers as the associations, one test, and a reason where there is none.

NUMBERS = ["r", "ci_low", "ci_high", "p", "slope", "n_participants", "n_scans", "n_permutations"]


def primary_of(inputs) -> pd.Series:
    table = primary_tables(inputs)
    assert list(table.columns) == list(PRIMARY_TABLE.meanings)
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


# Effects of who and where on relevance and volume: values by ordinary least squares, and what was planted is found.

PUTAMEN = EFFECTS_GROUPS.index("Putamen")


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
    volumes = 0.004 * head[:, None] * np.exp(0.03 * rng.normal(size=(len(scans), len(EFFECTS_GROUPS))))
    volumes[:, PUTAMEN] *= np.exp(sex_effect * man)
    densities = rng.normal(size=(len(scans), len(EFFECTS_MAPS), len(EFFECTS_GROUPS)))
    densities[:, :, EFFECTS_GROUPS.index("Thalamus")] += coil * np.array([s.site == "101" for s in scans])[:, None]
    education = rng.integers(8, 20, len(scans)).astype(float)
    inputs = effects_inputs_of(scans, densities, volumes, quick_config(**statistics))
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
    for name in EFFECTS_MAPS:
        site = table.loc[(name, "site")]
        assert site.loc["Thalamus", "p_fwe"] <= 0.01
        assert (site.drop("Thalamus")["p_fwe"] > 0.05).all()
    assert (
        table.xs("education", level="variable")["p_fwe"] > 0.05 / (len(EFFECTS_MAPS) + 1)
    ).all()  # one family per source


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
    assert table.loc[table["source"] == EFFECTS_MAPS[0], "p"].notna().all()
