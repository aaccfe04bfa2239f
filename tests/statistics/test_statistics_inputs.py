"""What analyses are given: scans, covariates and model matrices."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from made_up import GROUPS, MAPS, fast, inputs_of, made_up_run, people, predictions_of, relevance_of, settings
from numpy.testing import assert_allclose

import heatlas.pipeline.statistics.stage as stage
from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.people.tasks import TWO_CLASSES
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.tables import read_table, write_table
from heatlas.pipeline.statistics.data.features import CovariateColumns, FoldedScans, refuse_class
from heatlas.pipeline.statistics.data.inputs import AppliedScans, files_read, read_inputs, without_contradictions
from heatlas.pipeline.statistics.data.members import course_of, first_visits
from heatlas.pipeline.statistics.data.values import RelevanceValues
from heatlas.pipeline.statistics.groups.fairness import fairness_tables
from heatlas.pipeline.statistics.groups.subgroups import subgroup_levels, subgroups_tables
from heatlas.pipeline.statistics.linear.design import design_of
from heatlas.pipeline.statistics.stage import Analysis, analyse

# What analyses are given, labelled and applied scans together, and how the stage keeps analyses apart.


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
    written_by_apply = {"w_answers"}
    tables = [table.name for analysis in chosen for table in analysis.tables if table.name not in written_by_apply]
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


# Model matrices and covariates: what formulas mean, and every row, level and column left out by name.


def scans():
    """Twelve people with two scans each."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "participant_id": np.repeat([f"sub-{i:02d}" for i in range(12)], 2),
            "age": rng.normal(75, 6, 24),
            "sex": np.repeat(["F", "M"] * 6, 2),
            "site": np.repeat(list("aaaabbbbcccc"), 2),
            "field_strength": rng.choice([1.5, 3.0], 24),
            "apoe4": np.repeat([0, 1, 2] * 4, 2),
            "hippocampus_mm3": rng.normal(7000, 500, 24),
            "tiv_mm3": rng.normal(1.5e6, 1e5, 24),
        }
    )


@pytest.mark.parametrize(("formula", "term", "statsmodels_formula"), [
    ("hippocampus_mm3/tiv_mm3 + age + sex", "hippocampus_mm3/tiv_mm3", "I(hippocampus_mm3/tiv_mm3) + age + sex"),
    ("relevance ~ hippocampus_mm3 / tiv_mm3 + age", "age", "I(hippocampus_mm3/tiv_mm3) + age"),
    ("age*sex + site", "sex:age", "age*sex + site"),
    ("log(tiv_mm3) + I(age**2) + sex + age", "I(age**2)", "np.log(tiv_mm3) + I(age**2) + sex + age"),
    ("site + field_strength + apoe4", "apoe4", "site + C(field_strength) + apoe4"),
    ("(hippocampus_mm3 + age) * sex", "hippocampus_mm3:sex", "(hippocampus_mm3 + age) * sex"),
])  # fmt: skip
def test_matrix_spans_what_statsmodels_makes_of_the_formula(formula, term, statsmodels_formula):
    frame = scans()
    design = design_of(formula, term, frame)
    oracle = smf.ols(f"y ~ {statsmodels_formula}", frame.assign(y=1.0)).exog
    own = np.column_stack([design.nuisance, design.tested])
    assert own.shape == oracle.shape
    assert np.linalg.matrix_rank(oracle / np.linalg.norm(oracle, axis=0)) == own.shape[1]
    fitted = own @ np.linalg.lstsq(own, oracle, rcond=None)[0]
    assert_allclose(fitted, oracle, rtol=1e-7, atol=1e-7 * np.abs(oracle).max())
    assert design.names[design.tested.shape[1]] == "Intercept"
    assert (design.nuisance[:, 0] == 1).all()
    assert len(design.names) == own.shape[1]
    assert (dict(design.missing), dict(design.dropped), design.note) == ({}, {}, None)


def test_splines_and_polynomials_count_their_columns():
    frame = scans()
    assert design_of("bs(age, df=4) + sex", "bs(age, df=4)", frame).tested.shape == (24, 4)
    assert design_of("poly(age, 2) + sex", "poly(age, 2)", frame).tested.shape == (24, 2)


def test_missing_values_are_listwise_and_counted_per_column():
    frame = scans().astype({"sex": object, "age": object})
    frame.loc[[0, 3], "age"] = ["n/a", None]
    frame.loc[[3, 5], "hippocampus_mm3"] = [np.nan, np.inf]
    frame.loc[7, "tiv_mm3"] = 0.0
    frame.loc[9, "site"] = np.nan
    design = design_of("hippocampus_mm3/tiv_mm3 + age", "age", frame)
    assert design.rows.tolist() == [i for i in range(24) if i not in (0, 3, 5, 7)]
    assert design.missing == {"age": 2, "hippocampus_mm3": 2, "hippocampus_mm3 / tiv_mm3": 1}
    assert design.tested[0, 0] == frame.loc[1, "age"]
    assert "2 rows without age" in design.note


def test_a_participant_with_two_sexes_is_named_and_left_out():
    frame = scans()
    frame.loc[4, "sex"] = "M"  # sub-02 is F in the other scan
    design = design_of("age + sex", "age", frame)
    assert [i for i in range(24) if i not in design.rows] == [4, 5]
    assert design.missing == {"sex": 2}
    assert design.dropped == {"sub-02": "sex is F and M; treated as unknown, so these scans are left out"}
    assert len(design_of("age", "age", frame).rows) == 24


def test_constant_and_collinear_covariates_are_left_out_by_name():
    frame = scans().assign(one=3.7, unknown=None, years=lambda t: t["age"] - 50, months=lambda t: 12 * t["age"])
    frame["who"] = "adult"
    design = design_of("hippocampus_mm3 + one + age + years + months + unknown + who", "hippocampus_mm3", frame)
    assert design.names == ("hippocampus_mm3", "Intercept", "age")
    assert design.dropped == {
        "unknown": "no known value in any row; left out of the model",
        "who": "adult in all rows; left out of the model",
        "one": "constant; left out",
        "years": "collinear with Intercept, age; left out",
        "months": "collinear with Intercept, age; left out",
    }


def test_site_that_says_the_field_strength_is_dropped_column_by_column():
    frame = scans()
    frame["field_strength"] = np.where(frame["site"] == "a", 1.5, 3.0)
    design = design_of("age + field_strength + site", "age", frame)
    assert list(design.dropped) == ["site[T.c]"]
    assert design.nuisance.shape[1] == 3


@pytest.mark.parametrize(("change", "said"), [
    ({"age": 70.0}, "term age: cannot be tested: age is constant"),
    ({"age": None}, "column age: no known value, so age cannot be tested"),
    ({"tiv_mm3": None, "age": None}, "column age: no known value"),
])  # fmt: skip
def test_tested_column_without_variation_is_refused(change, said):
    with pytest.raises(BadInputError, match=said):
        design_of("age + tiv_mm3", "age", scans().assign(**change))


def test_tested_column_that_follows_from_the_covariates_is_refused():
    frame = scans().assign(label=lambda t: np.where(t["site"] == "a", "AD", "CN"))
    with pytest.raises(BadInputError, match=r"term label: .*label\[T.CN\] is collinear with Intercept, site"):
        design_of("site + label", "label", frame)
    with pytest.raises(BadInputError, match="term label: cannot be tested: one level only"):
        design_of("age + label", "label", frame.assign(label="AD"))


def test_levels_with_one_participant():
    frame = scans()
    frame["site"] = np.repeat(list("aaaabbbbbbxy"), 2)
    design = design_of("age + site", "age", frame)
    assert design.dropped == {"site=x, y": "one participant each; merged into one level"}
    assert len(design.rows) == 24
    assert design.nuisance.sum(axis=0).tolist() in ([24, 8, 12], [24, 12, 8], [24, 12, 4], [24, 8, 4])
    frame["site"] = np.repeat(list("aaaabbbbbbbx"), 2)
    design = design_of("age + site", "age", frame)
    assert design.dropped == {"site=x": "one participant only; 2 rows left out"}
    assert design.rows.tolist() == list(range(22))
    frame["site"] = frame["participant_id"]
    design = design_of("age + site", "age", frame)
    assert design.names == ("age", "Intercept")
    assert "each level has one participant" in design.dropped["site"]
    assert (
        design_of("site + age", "site", frame.drop(columns="participant_id")).tested.shape[1] == 11
    )  # rows count then


def test_numbers_that_are_names_are_levels():
    frame = scans()
    frame["site"] = np.repeat([2, 2, 2, 2, 9, 9, 9, 9, 14, 14, 14, 14], 2)
    assert design_of("age + site", "site", frame).tested.shape[1] == 2
    assert design_of("age + apoe4", "apoe4", frame).tested.shape[1] == 1


@pytest.mark.parametrize(("formula", "term", "said"), [
    ("age + weight", "age", "no column 'weight'"),
    ("age + seks", "age", r"no column 'seks'\. Did you mean sex\? It has .*age"),
    ("age + sex", "mmse", "no column 'mmse'"),
    ("age + sex", "site", "has no term 'site'; its terms are age, sex"),
    ("age +", "age", "cannot be read"),
    ("0 + age", "age", "without an intercept"),
    ("age * sex", "age", "age cannot be tested with age:sex"),
    ("age + I(__import__('os').getcwd())", "age", "not arithmetic"),
    ("age + {tiv_mm3.__class__}", "age", "not arithmetic"),
    ("age + {[x for x in sex]}", "age", "not arithmetic"),
    ("age + eval('1')", "age", "not arithmetic"),
    ("age + log(sex)", "age", "cannot be evaluated"),
])  # fmt: skip
def test_formulas_that_cannot_be_used_say_why(formula, term, said):
    with pytest.raises(BadInputError, match=said):
        design_of(formula, term, scans())


def test_no_complete_row_names_the_columns():
    frame = scans()
    frame.loc[:11, "age"] = np.nan
    frame.loc[12:, "tiv_mm3"] = np.nan
    with pytest.raises(BadInputError, match=r"no row has all values; missing in age \(12\), tiv_mm3 \(12\)"):
        design_of("age + tiv_mm3", "age", frame)
    with pytest.raises(BadInputError):
        design_of("age", "age", frame.iloc[:0])


TRAINING = dict(age=[60.0, 70.0, 80.0, 75.0, 66.0], sex=["F", "M", "F", "F", "M"], field_strength=[1.5] * 5)
TRAINING |= dict(hippocampus_mm3=[5.0, 6.0, 7.0, 8.0, 9.0], tiv_mm3=[10.0, 11.0, 12.0, 13.0, 9.0], mmse=[np.nan] * 5)
TRAINING = pd.DataFrame(TRAINING | dict(years=[6.0, 7.0, 8.0, 7.5, 6.6], site=[941, 941, 2, 2, 2]))


def test_columns_of_others_are_coded_as_in_training():
    covariates = CovariateColumns.of("age + sex + hippocampus_mm3/tiv_mm3 + site", TRAINING)
    other = TRAINING.iloc[[1, 2]].assign(age=[50.0, 51.0])
    columns, reasons = covariates.matrix(other)
    assert covariates.names == ("age", "sex[T.M]", "hippocampus_mm3 / tiv_mm3", "site[T.941]")
    np.testing.assert_allclose(columns, [[50, 1, 6 / 11, 1], [51, 0, 7 / 12, 0]])
    assert reasons == [None, None]


def test_centring_is_that_of_training():
    columns, _ = CovariateColumns.of("center(age)", TRAINING).matrix(TRAINING.assign(age=100.0))
    assert columns[:, 0] == pytest.approx([100 - TRAINING["age"].mean()] * 5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sex": "X"}, "sex X was not seen in training"),
        ({"field_strength": 3.0}, "field_strength 3 was not seen in training"),
        ({"age": np.nan}, "age is n/a"),
        ({"age": np.inf}, "age is n/a"),
    ],
)
def test_a_row_that_training_does_not_know_says_so(change, reason):
    covariates = CovariateColumns.of("age + sex + field_strength", TRAINING)
    columns, reasons = covariates.matrix(TRAINING.iloc[[0, 1]].assign(**change))
    assert reasons == [reason, reason]
    assert np.isnan(columns).all()


def test_what_carries_nothing_is_left_out_and_named():
    covariates = CovariateColumns.of("age + field_strength + years + mmse", TRAINING)
    assert covariates.names == ("age",)
    assert covariates.dropped == {
        "mmse": "unknown for all participants",
        "field_strength": "constant",
        "years": "collinear with the other covariates",
    }
    columns, _ = covariates.matrix(TRAINING)
    assert columns[:, 0].tolist() == TRAINING["age"].tolist()


@pytest.mark.parametrize("formula", ["", "1", "mmse"])
def test_no_covariate_is_no_column(formula):
    columns, reasons = CovariateColumns.of(formula, TRAINING).matrix(TRAINING)
    assert columns.shape == (5, 0)
    assert reasons == [None] * 5


@pytest.mark.parametrize(
    ("formula", "said"),
    [
        ("age + smoking", r"formula 'age \+ smoking': .*no column 'smoking'"),
        ("age + open('x')", "formula"),
        ("age +* sex", "formula"),
        ("age + ", r"formula 'age \+ ': cannot be read"),
        ("age -", "cannot be read"),
        ("age:", "cannot be read"),
        ("+", "cannot be read"),
        ("(age", "cannot be read"),
        ("age) + (sex", "cannot be read"),
        ("age sex", "cannot be read"),
        ("age | sex", "several parts"),
        ("relevance ~ age", "left-hand side"),
    ],
)
def test_a_formula_that_cannot_be_used_is_refused(formula, said):
    with pytest.raises(BadInputError, match=said) as caught:
        CovariateColumns.of(formula, TRAINING)
    assert "everything_else" not in str(caught.value)


@pytest.mark.parametrize("column", ["label", "diagnosis", "group"])
def test_the_class_is_refused(column):
    columns = ["age", "label", "diagnosis", "group"]
    with pytest.raises(BadInputError, match=rf"statistics.x = 'age \+ {column}': {column} contains the class"):
        refuse_class(f"age + {column}", "group", columns, "statistics.x")
    refuse_class("age", "group", columns, "statistics.x")
