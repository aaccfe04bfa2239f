"""Metrics, rankings, overlap and fingerprints on numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cosine

from heatlas.pipeline.regions.ranking import (
    FINGERPRINTS_TABLE,
    fingerprint_table,
    mean_over_participants,
    most_different_pair,
    overlap_table,
    top_groups,
    top_overlap,
)
from heatlas.pipeline.regions.tables import gain, negative_class_reference


def rows(densities, **scan):
    """Rows of one scan in map "a": a group per density."""
    frame = pd.DataFrame({"group": [f"g{i:02d}" for i in range(len(densities))], "density": densities})
    return frame.assign(**({"map": "a", "target": 1, "outcome": "TP", "probability": 0.95, "session_id": None} | scan))


def test_reference_is_the_mean_of_controls_in_the_same_fold():
    table = pd.DataFrame(
        {
            "participant_id": list("abcde"),
            "fold": [0, 0, 0, 1, 1],
            "target": [0, 0, 1, 0, 1],
            "map": "a",
            "group": "g",
            "sum": [2.0, 4.0, 9.0, -1.0, 5.0],
        }
    )
    reference = negative_class_reference(table, "participants")
    assert reference.tolist() == [3.0, 3.0, 3.0, -1.0, -1.0]
    got = gain(table["sum"].to_numpy(), reference.to_numpy())
    assert np.array_equal(got, [2 / 3, 4 / 3, 3.0, np.nan, np.nan], equal_nan=True)
    assert np.mean(got[:2]) == 1  # mean gain of controls


def test_fold_without_controls_has_no_reference():
    table = pd.DataFrame({"participant_id": ["p", "q"], "fold": [0, 1], "target": [0, 1], "sum": [2.0, 4.0]})
    table = table.assign(map="a", group="g")
    assert np.isnan(negative_class_reference(table, "participants").iloc[1])


@pytest.mark.parametrize(
    ("people", "over", "reference"),
    [
        (["a", "a", "a", "b", "c"], "participants", 4.0),  # (mean of 1, 2, 3 = 2; 6) / 2
        (["a", "a", "a", "b", "c"], "scans", 3.0),
        (["a", "a", "b", "b", "c"], "participants", 3.0),  # equal numbers of scans: no difference
        (["a", "a", "b", "b", "c"], "scans", 3.0),
        (["sub-ADNI131S0295"] * 2 + ["sub-ADNI002S0295", "b", "c"], "participants", 4.0),  # one person, two names
    ],
)
def test_controls_count_once_in_the_reference_however_many_scans_they_have(people, over, reference):
    table = pd.DataFrame({"participant_id": people, "target": [0, 0, 0, 0, 1], "sum": [1.0, 2.0, 3.0, 6.0, 8.0]})
    both = pd.concat([table.assign(fold=0), table.assign(fold=1, sum=-table["sum"])], ignore_index=True)
    got = negative_class_reference(both.assign(map="a", group="g"), over)
    assert got.tolist() == [reference] * 5 + [-reference] * 5


def test_participants_count_once_in_a_ranking():
    table = pd.concat(
        [
            rows([9.0, 0.0], participant_id="p", scan_id="1"),
            rows([9.0, 0.0], participant_id="p", scan_id="2"),
            rows([1.0, 8.0], participant_id="q", scan_id="3"),
            rows([0.0, 8.0], participant_id="r", scan_id="4"),
        ]
    )
    means = mean_over_participants(table, "density").droplevel("map")
    assert means.to_dict() == pytest.approx({"g00": 10 / 3, "g01": 16 / 3})  # over scans: 4.75 against 4
    assert top_groups(means, 5) == ["g01", "g00"]


@given(st.lists(st.integers(0, 30), min_size=10, max_size=10, unique=True), st.permutations(range(31)))
def test_overlap_is_symmetric_and_full_on_itself(a, b):
    names_a, names_b = [str(i) for i in a], [str(i) for i in b[:10]]
    assert top_overlap(names_a, names_a) == 100
    assert top_overlap(names_a, names_b) == top_overlap(names_b, names_a) == 10 * len(set(names_a) & set(names_b))


def test_overlap_table():
    rising, shifted = np.arange(14.0), np.roll(np.arange(14.0), 3)  # top 10 of both: 4..13 and 7..13 with 0..2
    table = pd.concat(
        [
            rows(rising, participant_id="p", scan_id="1"),
            rows(shifted, participant_id="p", scan_id="1", map="b"),
            rows(-rising, participant_id="q", scan_id="2", target=0, outcome="TN"),
        ]
    )
    table = table.assign(sum=table["density"] * 2, gain=np.where(table["group"] < "g09", table["density"], np.nan))
    got = overlap_table(table, ["a", "b"]).set_index(["metric", "map_a", "map_b"])
    assert got.loc[("sum", "a", "a"), "overlap"] == 100
    assert got.loc[("density", "a", "b"), "overlap"] == got.loc[("density", "b", "a"), "overlap"] == 70
    assert np.isnan(got.loc[("gain", "a", "b"), "overlap"])
    assert "only 9 groups" in got.loc[("gain", "a", "b"), "note"]
    nobody = overlap_table(table[table["target"] == 0], ["a", "b"])
    assert nobody["note"].str.contains("only 0 groups").all()


def test_most_different_pair_is_of_two_people():
    vectors = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    first, second, distance = most_different_pair(vectors, ["p", "p", "q", "r"])
    assert (first, second) == (0, 2)
    assert distance == pytest.approx(1)
    assert most_different_pair(vectors, ["p", "q", "r", "s"]) == (0, 1, pytest.approx(2))
    assert most_different_pair(vectors[[0, 1]], ["p", "p"]) is None
    assert most_different_pair(vectors[[0, 3]], ["p", "q"]) is None  # zeros have no direction


def test_fingerprints_of_the_planted_pair():
    rng = np.random.default_rng(0)
    profiles = {f"p{i}": np.linspace(10, 1, 30) + rng.normal(0, 0.1, 30) for i in range(4)}
    profiles["p3"] = profiles["p3"][::-1].copy()
    unsure = np.where(np.arange(30) % 2, 5.0, 0.0)
    table = pd.concat(
        [
            *(rows(v, participant_id=k, scan_id=k) for k, v in profiles.items()),
            rows(unsure, participant_id="u", scan_id="u", probability=0.9),
            rows(-unsure, participant_id="c", scan_id="c", target=0, outcome="FP"),
        ]
    )
    got = fingerprint_table(table, ["a"])
    assert list(got.columns) == list(FINGERPRINTS_TABLE.meanings)
    assert len(got) == 50
    assert "p3" in set(got["participant_id"])
    assert got["n_candidates"].eq(4).all()
    one, other = (got[got["patient"] == i].set_index("group")["density"] for i in (1, 2))
    assert list(one.index) == list(other.index)
    assert got["cosine_distance"].iloc[0] == pytest.approx(cosine(one, other))
    name = got["participant_id"].iloc[0]
    assert one["g03"] == profiles[name][3]
    means = table[table["target"] == 1].groupby("group")["density"].mean()
    assert list(one.index) == list(means.sort_values(ascending=False).index[:25])


def test_a_pair_is_not_chosen_by_a_small_region():
    """r differs from the others in a region of a few voxels alone, s in one of many."""
    profiles = {"p": [5.0, 4, 3, 0], "q": [5.0, 4, 3.1, 0], "r": [5.0, 4, 3, 90], "s": [1.0, 4, 9, 0]}
    table = pd.concat([rows(np.array(v), participant_id=k, scan_id=k) for k, v in profiles.items()])
    table["n_voxels"] = table["group"].map({"g00": 900, "g01": 50, "g02": 60, "g03": 49})
    assert "r" in set(fingerprint_table(table, ["a"])["participant_id"])
    got = fingerprint_table(table, ["a"], 50)
    assert set(got["participant_id"]) == {"s", "p"}
    assert set(got["group"]) == {"g00", "g01", "g02"}
    assert got["cosine_distance"].iloc[0] == pytest.approx(cosine(profiles["s"][:3], profiles["p"][:3]))
    assert len(fingerprint_table(table.assign(n_voxels=1), ["a"], 50)) == 8  # nothing else to choose by


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (rows([1.0, 2.0], participant_id="p", scan_id="1"), "1 participant of"),
        (rows([1.0, 2.0], participant_id="p", scan_id="1", probability=0.5), "0 participants"),
        (
            pd.concat([rows([0.0, 0.0], participant_id=p, scan_id=p) for p in "pq"]),
            "fewer than 2 of them have any relevance",
        ),
    ],
)
def test_no_pair_is_explained(table, said):
    got = fingerprint_table(table, ["a"])
    assert len(got) == 1
    assert said in got["note"].iloc[0]
    assert got["participant_id"].isna().all()


def test_gain_is_ranked_over_true_positives_only():
    """Missed patients would turn the order of gain round; those of sum and density are over all patients."""
    rising = np.arange(20.0)
    table = pd.concat(
        [
            rows(rising, participant_id="p", scan_id="1"),
            rows(rising, participant_id="p", scan_id="1", map="b"),
            rows(rising, participant_id="q", scan_id="2", outcome="FN"),
            rows(-10 * rising, participant_id="q", scan_id="2", outcome="FN", map="b"),
        ]
    )
    table = table.assign(sum=table["density"], gain=table["density"])
    got = overlap_table(table, ["a", "b"]).set_index(["metric", "map_a", "map_b"])["overlap"]
    assert got[("gain", "a", "b")] == 100
    assert got[("sum", "a", "b")] == got[("density", "a", "b")] == 0
