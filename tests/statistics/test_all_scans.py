"""Labelled and applied scans in one table, with one first scan, one course and one set of subgroups per person."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from made_up import GROUPS, MAPS, inputs_of, people, predictions_of, relevance_of, settings

from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.statistics.data.features import FoldedScans
from heatlas.pipeline.statistics.data.inputs import AppliedScans
from heatlas.pipeline.statistics.data.members import course_of, first_visits
from heatlas.pipeline.statistics.data.values import RelevanceValues
from heatlas.pipeline.statistics.groups.fairness import fairness_tables
from heatlas.pipeline.statistics.groups.subgroups import subgroup_levels, subgroups_tables

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
