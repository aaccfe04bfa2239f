"""What analyses are given, and how the stage keeps them apart."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from made_up import fast, made_up_run, people, predictions_of, relevance_of

import heatlas.pipeline.statistics.stage as stage
from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.people.tasks import TWO_CLASSES
from heatlas.pipeline.cohort.records import ScanTable
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.tables import read_table, write_table
from heatlas.pipeline.statistics.data.inputs import files_read, read_inputs, without_contradictions
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
