"""What analyses are given, labelled and applied scans together, and how the stage keeps analyses apart."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from made_up import GROUPS, MAPS, fast, inputs_of, made_up_run, people, predictions_of, relevance_of, settings

import heatlas.pipeline.statistics.stage as stage
from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.people.tasks import TWO_CLASSES
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.tables import read_table, write_table
from heatlas.pipeline.statistics.data.features import FoldedScans
from heatlas.pipeline.statistics.data.inputs import AppliedScans, files_read, read_inputs, without_contradictions
from heatlas.pipeline.statistics.data.members import course_of, first_visits
from heatlas.pipeline.statistics.data.values import RelevanceValues
from heatlas.pipeline.statistics.groups.fairness import fairness_tables
from heatlas.pipeline.statistics.groups.subgroups import subgroup_levels, subgroups_tables
from heatlas.pipeline.statistics.stage import Analysis, analyse


def read(folder, scans, clinical):
    layout = made_up_run(folder, scans, relevance_of(scans))
    write_table(layout.root / "clinical.tsv", clinical)
    return read_inputs(layout, scans, predictions_of(scans), fast())


def test_frame_joins_by_scan_in_the_order_of_the_values(tmp_path):
    scans = people()
    clinical = pd.DataFrame({"scan_id": [s.scan_id for s in reversed(scans)], "cdrsb": np.arange(len(scans), 0.0, -1)})
    clinical["age"] = 1.0  # the scan table has the last word
    inputs = read(tmp_path, scans, clinical=clinical)
    assert inputs.frame["scan_id"].tolist() == inputs.values.scans["scan_id"].tolist()
    assert inputs.frame["cdrsb"].tolist() == list(range(1, len(scans) + 1))
    assert inputs.frame["age"].tolist() == [s.age for s in scans]
    assert inputs.frame["mmse"].isna().sum() == sum(s.mmse is None for s in scans)


def test_a_scan_twice_in_the_clinical_table_is_named(tmp_path):
    scans = people()
    with pytest.raises(BadInputError, match=r"clinical\.tsv: scan I0 is listed twice"):
        read(tmp_path, scans, clinical=pd.DataFrame({"scan_id": ["I0", "I0"], "cdrsb": [1.0, 2.0]}))


def test_a_participant_with_two_sexes_has_none_and_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "ANALYSES", stage.ANALYSES[:1])  # the note is not of an analysis
    scans = people()
    scans[2] = dataclasses.replace(scans[2], sex="M" if scans[1].sex == "F" else "F")  # sub-002 has several scans
    person = scans[2].participant_id
    assert sum(s.participant_id == person for s in scans) > 1
    layout = made_up_run(tmp_path, scans, relevance_of(scans))
    inputs = read_inputs(layout, scans, predictions_of(scans), fast())
    assert inputs.frame.loc[inputs.frame["participant_id"] == person, "sex"].isna().all()
    assert inputs.frame["sex"].isna().sum() == sum(s.participant_id == person for s in scans)
    analyse(layout, scans, predictions_of(scans), fast())
    notes = read_table(layout.statistics("notes")).set_index("analysis")
    assert f"{person} is recorded with both sexes" in notes.loc["inputs", "reason"]


@pytest.mark.ci
def test_two_names_of_one_person_change_no_table(tmp_path, monkeypatch):
    """The same run twice: later visits of some people under the name of another site, or under their first one."""
    scans = people(6, (1, 2, 3))
    numbers = {name: i for i, name in enumerate(dict.fromkeys(s.participant_id for s in scans))}
    relevance, predicted = relevance_of(scans), predictions_of(scans)
    others = {"performance_repeats", "shortcuts", "site_prediction", "progression", "main_effects", "image_differences",
              "external"}  # fmt: skip
    chosen = tuple(one for one in stage.ANALYSES if one.name not in others and TWO_CLASSES in one.tasks)
    monkeypatch.setattr(stage, "ANALYSES", chosen)
    config = load_config(
        overrides={"statistics": {"permutations": 99, "bootstrap_samples": 100,
                                  "normative": {"resamples": 20, "max_subtypes": 2},
                                  "harmonisation": {"min_participants": 2, "relevance_covariates": ""}}, "seed": 3},
    )  # fmt: skip
    layouts = []
    for run, sites in (("one", (2, 2)), ("two", (2, 131))):
        names = [f"sub-ADNI{sites[s.session_id != 'ses-M000']:03d}S{numbers[s.participant_id]:04d}" for s in scans]
        own = [
            dataclasses.replace(scan, participant_id=name, site="AB"[int(name[-4:]) // 4 % 2])
            for scan, name in zip(scans, names, strict=True)
        ]
        layouts.append(made_up_run(tmp_path / run, own, relevance))
        folds = predicted.assign(participant_id=names)
        parts = [set(folds.loc[folds["fold"] == k, "participant_id"]) for k in (0, 1)]
        Split(tuple(Fold(k, tuple(parts[1 - k]), (), tuple(parts[k])) for k in (0, 1))).write(
            layouts[-1].root / "splits.tsv"
        )
        analyse(layouts[-1], own, folds, config)
    of_scans = {"volume_points", "w_scores", "harmonised_relevance", "harmonised_volumes"}
    tables = [table.name for analysis in chosen for table in analysis.tables]
    for name in tables:
        one, two = (read_table(layout.statistics(name)) for layout in layouts)
        if name in of_scans:
            later = one["session_id"] != "ses-M000"
            assert two["participant_id"].str.startswith("sub-ADNI131").tolist() == later.tolist(), name
            one, two = (table.drop(columns="participant_id") for table in (one, two))
        pd.testing.assert_frame_equal(one, two)
    one, two = (read_table(layout.statistics("notes")) for layout in layouts)
    assert set(two["reason"]) - set(one["reason"]) == {
        "sub-ADNI131S0002 is sub-ADNI002S0002, sub-ADNI131S0003 is sub-ADNI002S0003, sub-ADNI131S0004 is "
        "sub-ADNI002S0004 and 5 more: names with the same RID are analysed as one participant. Tables with a row per "
        "scan keep the names of the input."
    }


def test_two_names_with_two_sexes_are_one_doubtful_person():
    scans = people(1, (1,))
    pair = [dataclasses.replace(s, participant_id=f"sub-ADNI{i:03d}S0295", sex="FM"[i]) for i, s in enumerate(scans)]
    settled, said = without_contradictions(pair)
    assert [s.sex for s in settled] == [None, None]
    assert len(said) == 1
    assert "sub-ADNI000S0295 is recorded with both sexes" in said[0]


def test_scans_outside_the_contrast_come_with_their_facts(tmp_path):
    scans = people()
    mci = [dataclasses.replace(s, participant_id=f"sub-mci{i}", scan_id=f"X{i}", label=None, diagnosis="MCI",
                               progression="sMCI") for i, s in enumerate(people(2, (1,)))]  # fmt: skip
    layout = made_up_run(tmp_path, scans, relevance_of(scans))
    ScanTable((*scans, *mci)).write(layout.root / "scans.tsv")
    write_table(
        layout.group / "predictions_applied.tsv",
        predictions_of(mci).drop(columns=["target", "outcome", "fold", "label"]),
    )
    write_table(layout.group / "relevance_applied_bilateral.tsv", relevance_of(mci))
    applied = read_inputs(layout, scans, predictions_of(scans), fast()).applied
    assert applied is not None
    assert applied.frame["scan_id"].tolist() == ["X0", "X1", "X2", "X3"]
    assert applied.frame["progression"].tolist() == ["sMCI"] * 4
    assert applied.values.densities.shape == (4, 3, 4)


def test_every_file_that_is_read_is_in_the_receipt(tmp_path):
    layout = made_up_run(tmp_path, people(), relevance_of(people()))
    own = {
        layout.root / "clinical.tsv",
        layout.group / "volumes.tsv",
        layout.root / "splits.tsv",
        layout.group / "predictions_applied.tsv",
        layout.group / "relevance_applied_bilateral.tsv",
    }
    assert own <= set(files_read(layout))


def declared(name):
    return Table(name, {"a": "A number"}, "row", "?")


def test_data_problems_are_rows_and_old_tables_go(tmp_path, monkeypatch):
    scans = people(2, (1,))
    layout = made_up_run(tmp_path, scans, relevance_of(scans))

    def works(inputs):
        return pd.DataFrame({"a": [1]})

    def no_volumes(inputs):
        raise BadInputError("volumes.tsv: column x is missing.\nRun registration again.")

    def singular(inputs):
        raise np.linalg.LinAlgError("Singular matrix")

    Table("stale", {"a": "A number"}, "", "").write(layout, [[1]])
    analyses = (
        Analysis("no_volumes", no_volumes, (declared("stale"),)),
        Analysis("singular", singular, (declared("gone"),)),
        Analysis("works", works, (declared("fine"),)),
    )
    monkeypatch.setattr(stage, "ANALYSES", analyses)
    written = analyse(layout, scans, predictions_of(scans), fast())
    assert written == [layout.statistics("fine"), layout.statistics("notes")]
    notes = read_table(layout.statistics("notes"))
    assert notes.to_numpy().tolist() == [
        ["no_volumes", "stale", "volumes.tsv: column x is missing. Run registration again."],
        ["singular", "gone", "Singular matrix"],
    ]
    assert not layout.statistics("stale").exists()
    assert not layout.statistics("stale").with_suffix(".json").exists()


def test_defects_of_the_program_are_not_hidden(tmp_path, monkeypatch):
    scans = people(2, (1,))
    layout = made_up_run(tmp_path, scans, relevance_of(scans))

    def broken(inputs):
        raise KeyError("oops")

    monkeypatch.setattr(stage, "ANALYSES", (Analysis("broken", broken, (declared("x"),)),))
    with pytest.raises(KeyError, match="oops"):
        analyse(layout, scans, predictions_of(scans), fast())
    undeclared = Analysis("undeclared", lambda inputs: {"y": pd.DataFrame()}, (declared("x"),))
    monkeypatch.setattr(stage, "ANALYSES", (undeclared,))
    with pytest.raises(ValueError, match=r"undeclared.*'y'"):
        analyse(layout, scans, predictions_of(scans), fast())


def test_no_table_is_written_by_two_analyses():
    names = [table.name for analysis in stage.ANALYSES for table in analysis.tables]
    assert len(names) == len(set(names))


NOTHING = pd.DataFrame(index=pd.Index([], name="scan_id"))


def applied(scans: list[Scan], relevance: pd.DataFrame | None = None) -> AppliedScans:
    predictions = predictions_of(scans).drop(columns=["target", "outcome"]).assign(networks="0;1")
    values = RelevanceValues.of(relevance_of(scans, seed=9) if relevance is None else relevance, predictions)
    return AppliedScans(tuple(scans), predictions, values, NOTHING)


def mci(ages: list[float]) -> list[Scan]:
    return [
        Scan(f"sub-9{i:02d}", "ses-M000", f"J{i}", None, "MCI", None, progression="sMCI", age=age, sex="F")
        for i, age in enumerate(ages)
    ]


def test_regions_and_maps_of_both_tables_are_matched_by_name() -> None:
    others = mci([70.0, 71.0])
    relevance = relevance_of(others, seed=9)
    relevance = relevance[(relevance["group"] != "Amygdala") & (relevance["map"] != "gb")].iloc[::-1]
    inputs = inputs_of(people(2), applied=applied(others, relevance))
    scans, n = inputs.all_scans, len(inputs.frame)
    assert scans.labelled.tolist() == [True] * n + [False] * 2
    assert scans.frame["scan_id"].tolist() == [*inputs.frame["scan_id"], "J1", "J0"]  # as their table has them
    assert scans.values.scans["scan_id"].tolist() == scans.frame["scan_id"].tolist()
    assert scans.frame["fold"][n:].isna().all()
    theirs = relevance.set_index(["scan_id", "map", "group"])
    for m, name in enumerate(MAPS):
        for g, group in enumerate(GROUPS):
            for field, column in (("sums", "sum"), ("densities", "density"), ("gains", "gain")):
                own, stacked = getattr(inputs.values, field), getattr(scans.values, field)
                np.testing.assert_array_equal(stacked[:n, m, g], own[:, m, g])
                if name == "gb" or group == "Amygdala":
                    assert np.isnan(stacked[n:, m, g]).all()
                else:
                    wanted = [theirs.loc[(scan, name, group), column] for scan in ("J1", "J0")]
                    np.testing.assert_array_equal(stacked[n:, m, g], wanted)


def test_norms_are_fitted_on_the_same_first_scan_that_progression_counts_from() -> None:
    """The ages say that I101 came before I100 (a birthday noted wrongly); the dates, which are what is known best, not.

    A scan before the first labelled one, with MCI, is the person's first and none that a model is fitted on.
    """
    scans = [dataclasses.replace(s, age={"I100": 75.0, "I101": 74.0}.get(s.scan_id, s.age)) for s in people(2, (2,))]
    dates = {s.scan_id: float(s.session_id != "ses-M000") for s in scans}
    clinical = pd.DataFrame({"years_since_first_scan": dates}).rename_axis("scan_id")
    inputs = inputs_of(scans, clinical=clinical)
    folded = FoldedScans.of(inputs)
    assert folded.frame["scan_id"][folded.first].tolist() == ["I0", "I100", "I200", "I300"]
    assert set(first_visits(inputs.frame)["scan_id"]) == {"I0", "I100", "I200", "I300"}
    assert FoldedScans.of(inputs_of(scans)).first.sum() == 4
    by_age = FoldedScans.of(inputs_of(scans))
    assert by_age.frame["scan_id"][by_age.first].tolist() == ["I0", "I101", "I200", "I300"]

    earlier = dataclasses.replace(scans[0], session_id="ses-M-12", scan_id="J0", age=50.0, diagnosis="MCI", label=None)
    with_mci = FoldedScans.of(inputs_of(scans, applied=applied([earlier]), clinical=clinical))
    assert with_mci.frame["scan_id"][with_mci.first].tolist() == ["I0", "I100", "I200", "I300"]
    assert with_mci.fold[-1] == with_mci.fold[0]  # the model of the fold that tests the person


def test_a_course_is_a_diagnosis_and_a_class_only_where_there_are_no_diagnoses() -> None:
    frame = pd.DataFrame(
        {
            "diagnosis": ["CN", "MCI", "MCI", None, None, "AD"],
            "progression": [None, "pMCI", None, "sMCI", None, None],
            "label": ["young", None, None, None, "old", "old"],
        }
    )
    assert course_of(frame).tolist() == ["CN", "pMCI", "MCI", "sMCI", None, "AD"]
    blank = frame.assign(diagnosis=None, progression=None)
    assert course_of(blank).tolist() == ["young", None, None, None, "old", "old"]


def test_people_with_mci_move_no_bound_and_all_tables_have_the_same_subgroups() -> None:
    config = settings(subgroups={"variables": ("age",), "minimum_participants": 2})
    scans = people()
    per_person = pd.DataFrame([(s.participant_id, s.age) for s in scans]).groupby(0)[1].mean()
    low, high = (f"{per_person.quantile(q):.4g}" for q in (1 / 3, 2 / 3))
    wanted = [f"below {low}", f"{low} to below {high}", f"{high} and above"]
    older = mci([95.0, 96.0, 97.0, 98.0, 55.0, 56.0])
    alone, together = inputs_of(scans, config), inputs_of(scans, config, applied=applied(older))
    for inputs in (alone, together):
        for table in (subgroups_tables(inputs), fairness_tables(inputs)):
            assert table["level"].unique().tolist() == wanted
    pd.testing.assert_frame_equal(fairness_tables(alone), fairness_tables(together))
    counts = [
        subgroups_tables(inputs).drop_duplicates("level")["n_participants"].to_numpy() for inputs in (alone, together)
    ]
    assert (counts[1] - counts[0]).tolist() == [2, 0, 4]
    assert subgroup_levels(together, "age").names == tuple(wanted)


def test_bounds_that_four_digits_cannot_tell_apart_are_written_with_more() -> None:
    scans = [dataclasses.replace(s, tiv_mm3=1.4e6 + 10 * i) for i, s in enumerate(people(8, (1,)))]
    names = subgroup_levels(inputs_of(scans), "tiv_mm3").names
    assert names == ("below 1400050", "1400050 to below 1400100", "1400100 and above")


@pytest.mark.parametrize("variable", ["mmse", "site"])
def test_what_only_people_with_mci_have_is_no_subgroup_of_the_contrast(variable) -> None:
    scans = [dataclasses.replace(s, mmse=None, site=None) for s in people()]
    others = [dataclasses.replace(s, mmse=26.0, site="7") for s in mci([70.0] * 5)]
    inputs = inputs_of(scans, settings(subgroups={"variables": (variable,)}), applied=applied(others))
    (row,) = fairness_tables(inputs).to_dict("records")
    assert row["note"] == f"{variable}: no scan has a value."
    assert subgroups_tables(inputs)["n_participants"].eq(5).all()
