"""``representations.tsv``: one table for several sets of features on the same people."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.studies.long_tail import LongTailedParts, long_tailed_parts
from heatlas.studies.representations.points import contributions, effective_negatives, peak, points_of
from heatlas.studies.representations.table import MEASURES, REPRESENTATIONS_TABLE, judged

CLASSES = ("CN", "MCI", "AD")


def cohort() -> tuple[dict[str, np.ndarray], list[str], list[str], list[str], LongTailedParts]:
    """120 people, every fourth with two scans; good features tell the class, poor ones the site."""
    rng = np.random.default_rng(0)
    kinds = {f"sub-{n:03d}": (CLASSES[n % 3], "site-" + "AB"[n // 3 % 2]) for n in range(120)}
    people = [person for n, person in enumerate(kinds) for _ in range(1 + (n % 4 == 0))]
    labels, sites = [kinds[person][0] for person in people], [kinds[person][1] for person in people]
    noise = lambda: rng.standard_normal((len(people), 8))  # noqa: E731
    good = noise() * 0.1 + [np.eye(8)[CLASSES.index(name)] for name in labels]
    poor = noise() * 0.3 + [np.eye(8)[5 if site == "site-A" else 6] for site in sites]
    parts = long_tailed_parts({person: name for person, (name, _) in kinds.items()}, 3, classes=CLASSES)
    return {"poor": poor, "good": good[:, :6]}, people, labels, sites, parts


def test_the_table_says_which_features_are_better_where() -> None:
    features, people, labels, sites, parts = cohort()
    table = judged(features, people, labels, parts, sites, draws=200, permutations=49)
    assert list(table.columns) == list(REPRESENTATIONS_TABLE.meanings) == list(REPRESENTATIONS_TABLE.columns)
    assert set(table["measure"]) == set(MEASURES)
    assert not table.duplicated(["features", "measure", "classes", "temperature"]).any()
    assert table[list(REPRESENTATIONS_TABLE.filled)].notna().all(axis=None)
    keys = ["features", "measure", "classes"]  # of pandas before 3, a repeated key makes every answer a table
    cell = table.drop_duplicates(keys).set_index(keys).sort_index()
    for measure in ("knn_1", "knn_10", "few_shot_probe", "long_tail_probe", "neighbour_agreement"):
        assert (cell.loc[("good", measure), "estimate"] == 1).all()
        assert {*cell.loc[("good", measure)].index} == {"all", "head", "mid", "tail", *CLASSES}
        better, worse = cell.loc[("good", measure, "all")], cell.loc[("poor", measure, "all")]
        assert better["difference"] == pytest.approx(1 - worse["estimate"])
        assert better["chance"] == pytest.approx(1 / 3)
        assert 0 < better["difference_low"] <= better["difference"] <= better["difference_high"]
        assert worse["ci_low"] < worse["estimate"] < worse["ci_high"]
        assert worse["estimate"] == pytest.approx(
            np.mean([cell.loc[("poor", measure, name), "estimate"] for name in CLASSES])
        )
        assert pd.isna(worse["difference"])
        assert pd.isna(better["ci_low"])
        assert "no interval" in better["note"]
    assert cell.loc[("good", "few_shot_probe", "all"), "n_training"] == 3 * parts.shots
    assert cell.loc[("good", "knn_1", "all"), "n_training"] == sum(map(len, parts.training.values()))
    assert cell.loc[("good", "knn_1", "all"), "n_participants"] == 30
    assert cell.loc[("good", "knn_1", "tail"), "n_participants"] == 10
    assert cell.loc[("poor", "site", "all"), "estimate"] > 0.95
    assert cell.loc[("poor", "site", "all"), "p"] == pytest.approx(1 / 50)
    assert cell.loc[("good", "site", "all"), "p"] > 0.05
    assert cell.loc[("good", "site", "all"), "n_participants"] == 120


def test_properties_of_the_loss_are_means_over_tested_people() -> None:
    features, people, labels, _, parts = cohort()
    table = judged(features, people, labels, parts, temperatures=(0.1, 1.0), draws=100)
    assert "site" not in set(table["measure"])
    test = points_of(features["good"], people).of({person for own in parts.test.values() for person in own})
    similar, same = test.similarities
    own = table[(table["features"] == "good") & (table["measure"] == "effective_negatives")]
    expected = [test.mean(effective_negatives(similar, one, same)).mean() for one in (0.1, 1.0)]
    assert own["estimate"].tolist() == pytest.approx(expected)
    assert (own["ci_low"] < own["estimate"]).all()
    peaks = table[(table["features"] == "good") & (table["measure"] == "contribution_peak")]["estimate"].tolist()
    assert peaks[0] >= peaks[1]
    assert judged(features, people, labels, parts, draws=100).equals(table)  # repeatable


def test_an_anchor_of_many_scans_counts_as_one_person() -> None:
    """With 60 scans of one person, the peak is still that of the histogram with a weight of 1 for each person."""
    features, people, labels, _, parts = cohort()
    rows = [*range(len(people)), *[people.index(parts.test["CN"][0])] * 59]
    values = features["good"][rows] + 0.02 * np.random.default_rng(1).standard_normal((len(rows), 6))
    names, temperatures = [people[row] for row in rows], np.geomspace(0.02, 5, 30).tolist()
    table = judged({"good": values}, names, [labels[row] for row in rows], parts, temperatures=temperatures, draws=20)
    found = table[table["measure"] == "contribution_peak"]["estimate"].tolist()
    test = points_of(values, names).of({person for own in parts.test.values() for person in own})
    similar, same = test.similarities
    weighted, plain = (
        [float(peak(contributions(similar, one, same, weights))) for one in temperatures]
        for weights in (1 / np.array([(test.participant == who).sum() for who in test.participant]), None)
    )
    assert found == pytest.approx(weighted)
    assert found != pytest.approx(plain)


def test_what_cannot_be_computed_has_a_note() -> None:
    features, people, labels, _, parts = cohort()
    small = LongTailedParts(parts.classes, {name: own[:2] for name, own in parts.few.items()}, parts.few, parts.test)
    small = LongTailedParts(parts.classes, small.training, small.training, parts.test)
    first = dict(zip(people, range(len(people)), strict=True)).values()  # one scan each
    own = {name: values[list(first)] for name, values in features.items()}
    names, classes = [people[row] for row in first], [labels[row] for row in first]
    table = judged(own, names, classes, small, ["A"] * len(names), draws=50)
    table = table.drop_duplicates(["features", "measure", "classes"]).set_index(["features", "measure", "classes"])
    assert table.loc[("good", "knn_10", "all"), "note"] == "only 6 people to train on"
    assert pd.isna(table.loc[("good", "knn_10", "all"), "estimate"])
    assert table.loc[("good", "knn_1", "all"), "estimate"] == 1
    assert "no one in the test part has two scans" in table.loc[("good", "alignment", "all"), "note"]
    assert "1 site with" in table.loc[("poor", "site", "all"), "note"]


def test_tables_that_cannot_be_made_are_refused() -> None:
    features, people, labels, _, parts = cohort()
    with pytest.raises(UsageError, match="no features"):
        judged({}, people, labels, parts)
    with pytest.raises(BadInputError, match="another class"):
        judged(features, people, ["AD" if name == "CN" else name for name in labels], parts)
    with pytest.raises(UsageError, match="temperature"):
        judged(features, people, labels, parts, temperatures=(0.0,), draws=20)
