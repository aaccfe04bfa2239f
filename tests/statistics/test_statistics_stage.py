"""All tables of a run: averages by hand, dictionaries, the same bytes twice, and cohorts that allow little."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from made_up import FAST, GROUPS, MAPS, fast, made_up_run, people, predictions_of, relevance_of
from scipy.special import gamma

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.statistics.data.values import RelevanceValues, participant_means
from heatlas.pipeline.statistics.groups.summaries import demographic_tests, demographics, region_summary
from heatlas.pipeline.statistics.resampling.means import FEW, HALL
from heatlas.pipeline.statistics.stage import analyse
from heatlas.pipeline.statistics.tables import sections

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


def test_what_is_usual_is_left_out_of_several_tables() -> None:
    tables = [section for name, section in sections().items() if name not in ("words", "usual")]
    left_out = Counter(name for table in tables for name, text in table["columns"].items() if not text)
    assert not {name for name in sections()["usual"] if left_out[name] < 2}
