from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatlas.pipeline.evaluation.planted import (
    PLANTED_RECOVERY_TABLE,
    evaluate_planted,
    localisation,
    planted_recovery,
    read_planted,
)
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table, write_table

VOXELS = {"Hippocampus": 10, "Amygdala": 4, "Cuneus": 6, "Precuneus": 20}


def scan_table(participant: str, scan: str, sums: dict[str, float], map_name: str = "lrpB000") -> pd.DataFrame:
    return pd.DataFrame(
        {
            "participant_id": participant,
            "session_id": "ses-M000",
            "scan_id": scan,
            "map": map_name,
            "group": list(sums),
            "n_voxels": [VOXELS[group] for group in sums],
            "sum": list(sums.values()),
            "density": [value / VOXELS[group] for group, value in sums.items()],
            "gain": [np.nan if group == "Cuneus" else value / 2 for group, value in sums.items()],
        }
    )


# sub-1 has two scans whose mean is Hippocampus 4, Amygdala 3, Cuneus 0, Precuneus 5; sub-2 one.
# Means over participants: Hippocampus (4+2)/2 = 3, Amygdala (3+1)/2 = 2, Cuneus (0+3)/2 = 1.5, Precuneus (5+2)/2 = 3.5.
# Over scans they would be 3.33, 2.33, 1, 4; sub-1's -1 and 1 in the cuneus tell whether signs survive the averaging.
TWO_PEOPLE = pd.concat(
    [
        scan_table("sub-1", "I1", {"Hippocampus": 6, "Amygdala": 3, "Cuneus": -1, "Precuneus": 7}),
        scan_table("sub-1", "I2", {"Hippocampus": 2, "Amygdala": 3, "Cuneus": 1, "Precuneus": 3}),
        scan_table("sub-2", "I3", {"Hippocampus": 2, "Amygdala": 1, "Cuneus": 3, "Precuneus": 2}),
    ]
)


def test_recovery_by_hand() -> None:
    by_sum = planted_recovery(TWO_PEOPLE, ["Hippocampus", "Amygdala"], "sum", top=2)
    assert by_sum["first_groups"] == "Precuneus; Hippocampus"
    assert by_sum["found"] == "Hippocampus"
    assert (by_sum["hits"], by_sum["n_groups"], by_sum["n_planted"]) == (1, 4, 2)
    # 6 lists of 2 from 4: one misses both planted groups, so 5/6 have one or more; the mean number is 1.
    assert by_sum["expected_hits"] == pytest.approx(1.0)
    assert by_sum["p_value"] == pytest.approx(5 / 6)
    # Densities: .3, .5, .25, .175.
    by_density = planted_recovery(TWO_PEOPLE, ["Hippocampus", "Amygdala"], "density", top=2)
    assert by_density["first_groups"] == by_density["found"] == "Amygdala; Hippocampus"
    assert by_density["p_value"] == pytest.approx(1 / 6)


def test_participants_weigh_the_same_however_often_they_were_scanned() -> None:
    often = [scan_table("sub-1", f"I{n}", {"Hippocampus": 1, "Cuneus": 2}) for n in range(5)]
    once = scan_table("sub-2", "I9", {"Hippocampus": 5, "Cuneus": 1})
    # Participants: 3 against 1.5. Scans: 10/6 against 11/6, the other way round.
    assert planted_recovery(pd.concat([*often, once]), ["Hippocampus"], "sum", top=1)["found"] == "Hippocampus"


def test_groups_without_a_value_are_not_ranked_and_still_counted() -> None:
    recovery = planted_recovery(TWO_PEOPLE, ["Cuneus"], "gain", top=4)
    assert recovery["first_groups"] == "Precuneus; Hippocampus; Amygdala"
    assert (recovery["hits"], recovery["n_groups"]) == (0, 4)
    assert recovery["expected_hits"] == pytest.approx(3 / 4)
    assert recovery["p_value"] == 1.0


def test_no_value_at_all_gives_an_empty_list() -> None:
    recovery = planted_recovery(TWO_PEOPLE.assign(gain=np.nan), ["Cuneus"], "gain")
    assert [recovery[name] for name in ("first_groups", "hits", "expected_hits", "p_value")] == [None, 0, 0.0, 1.0]


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 7), st.data())
def test_chance_equals_counting_every_list(n_groups: int, data: st.DataObject) -> None:
    n_planted = data.draw(st.integers(1, n_groups))
    top = data.draw(st.integers(1, n_groups))
    names = [f"region {n}" for n in range(n_groups)]
    values = data.draw(st.permutations(list(range(n_groups))))
    table = pd.DataFrame({"participant_id": "sub-1", "map": "gb", "group": names, "sum": values})
    planted = names[:n_planted]
    recovery = planted_recovery(table, planted, "sum", top)
    hits = [len(set(chosen) & set(planted)) for chosen in itertools.combinations(names, top)]
    assert recovery["expected_hits"] == pytest.approx(np.mean(hits))
    assert recovery["p_value"] == pytest.approx(np.mean(np.array(hits) >= recovery["hits"]))


def test_localisation_by_hand() -> None:
    place = localisation(TWO_PEOPLE, ["Hippocampus", "Amygdala"])
    # Positive shares: I1 9/16, I2 5/9, I3 3/8; a person's scans first.
    assert place["relevance_share"] == pytest.approx(((9 / 16 + 5 / 9) / 2 + 3 / 8) / 2)
    assert place["volume_share"] == pytest.approx(14 / 40)
    assert place["enrichment"] == pytest.approx(place["relevance_share"] / 0.35)


@settings(deadline=None, max_examples=30)
@given(st.floats(1e-6, 1e6), st.sets(st.sampled_from(sorted(VOXELS)), min_size=1))
def test_an_even_map_has_enrichment_one(density: float, planted: set[str]) -> None:
    even = scan_table("sub-1", "I1", {group: density * voxels for group, voxels in VOXELS.items()})
    assert localisation(even, sorted(planted))["enrichment"] == pytest.approx(1.0)


def test_a_scan_without_positive_relevance_has_no_say() -> None:
    dark = scan_table("sub-3", "I4", {"Hippocampus": -1, "Amygdala": -2, "Cuneus": 0, "Precuneus": -3})
    both = pd.concat([TWO_PEOPLE, dark])
    assert (
        localisation(both, ["Amygdala"])["relevance_share"] == localisation(TWO_PEOPLE, ["Amygdala"])["relevance_share"]
    )
    assert np.isnan(localisation(dark, ["Amygdala"])["relevance_share"])


def test_a_planted_group_that_the_atlas_lacks_is_named() -> None:
    with pytest.raises(BadInputError, match="Vessel"):
        planted_recovery(TWO_PEOPLE, ["Hippocampus", "Vessel"], "sum")
    with pytest.raises(BadInputError, match="Vessel"):
        localisation(TWO_PEOPLE, ["Vessel"])


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    """A run of two maps; I3 is a false negative, I5 a true negative."""
    layout = RunLayout(tmp_path / "run")
    negative = scan_table("sub-4", "I5", {"Hippocampus": 0, "Amygdala": 0, "Cuneus": 99, "Precuneus": 0})
    first = pd.concat([TWO_PEOPLE, negative])
    second = first.assign(map="gb", sum=first["sum"].where(first["group"] != "Precuneus", 0.5))
    write_table(layout.group / "relevance_bilateral.tsv", pd.concat([first, second]))
    outcomes = {"I1": "TP", "I2": "TP", "I3": "FN", "I5": "TN"}
    people = {"I1": "sub-1", "I2": "sub-1", "I3": "sub-2", "I5": "sub-4"}
    predictions = pd.DataFrame(
        [{"participant_id": people[scan], "scan_id": scan, "outcome": kind} for scan, kind in outcomes.items()]
    )
    write_table(layout.group / "predictions.tsv", predictions)
    return layout


def truth(tmp_path: Path, *groups: str) -> Path:
    path = tmp_path / "planted.json"
    path.write_text(json.dumps({"synthetic": True, "planted": list(groups)}))
    return path


def test_a_run_is_judged_on_its_true_positives(layout: RunLayout, tmp_path: Path) -> None:
    frame = evaluate_planted(layout, truth(tmp_path, "Hippocampus"))
    written = read_table(layout.statistics("planted_recovery"), list(PLANTED_RECOVERY_TABLE.meanings))
    pd.testing.assert_frame_equal(written, frame, check_dtype=False)
    assert list(zip(frame["map"], frame["metric"], strict=True)) == [
        (name, metric) for name in ("lrpB000", "gb") for metric in ("sum", "density", "gain")
    ]
    assert set(frame["n_participants"]) == {1}
    assert set(frame["n_scans"]) == {2}
    # sub-1 alone: 4, 3, 0, 5 by sum; in the second map the precuneus falls to .5.
    rows = frame.set_index(["map", "metric"])
    assert rows.loc[("lrpB000", "sum"), "first_groups"] == "Precuneus; Hippocampus; Amygdala; Cuneus"
    assert rows.loc[("gb", "sum"), "first_groups"] == "Hippocampus; Amygdala; Precuneus; Cuneus"
    assert rows.loc[("lrpB000", "sum"), "relevance_share"] == pytest.approx((6 / 16 + 2 / 9) / 2)
    assert rows.loc[("gb", "sum"), "relevance_share"] == pytest.approx((6 / 9.5 + 2 / 6.5) / 2)


def test_without_a_true_positive_the_table_is_empty(layout: RunLayout, tmp_path: Path) -> None:
    predictions = read_table(layout.group / "predictions.tsv")
    write_table(layout.group / "predictions.tsv", predictions.assign(outcome="FN"))
    assert len(evaluate_planted(layout, truth(tmp_path, "Hippocampus"))) == 0
    assert list(read_table(layout.statistics("planted_recovery")).columns) == list(PLANTED_RECOVERY_TABLE.meanings)


def test_an_atlas_with_some_of_the_groups_is_judged_on_those(
    layout: RunLayout, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="heatlas"):
        frame = evaluate_planted(layout, truth(tmp_path, "Hippocampus", "Entorhinal area"))
    assert "Entorhinal area" in caplog.text
    assert set(frame["n_planted"]) == {1}
    assert len(evaluate_planted(layout, truth(tmp_path, "Entorhinal area"))) == 0


@pytest.mark.parametrize(
    "content", ["", "[]", '{"planted": []}', '{"planted": "Hippocampus"}', '{"planted": ["a", "a"]}']
)
def test_an_unusable_truth_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "planted.json"
    path.write_text(content)
    with pytest.raises(BadInputError, match=r"planted\.json"):
        read_planted(path)
    with pytest.raises(BadInputError, match=r"nowhere\.json"):
        read_planted(tmp_path / "nowhere.json")
