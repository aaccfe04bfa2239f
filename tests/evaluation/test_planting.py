"""Planted loss: how it is planted, what is found of it, and in which tables."""

from __future__ import annotations

import itertools
import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import template_grid
from heatlas.atlases.templates import load_template
from heatlas.pipeline.cohort.demo.people import EFFECTS
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.planted import (
    PLANTED_EFFECTS_TABLE,
    PLANTED_RECOVERY_TABLE,
    QUESTIONS,
    evaluate_effects,
    evaluate_planted,
    localisation,
    planted_recovery,
    read_effects,
    read_planted,
)
from heatlas.pipeline.evaluation.planting.cohort import strongest
from heatlas.pipeline.evaluation.planting.copies import (
    BOTH_CLASSES,
    FEWEST,
    SEVERITIES,
    UNTOUCHED,
    WITH_LOSS,
    paired_folds,
    people_to_plant,
    planted_changes,
    truth_of,
)
from heatlas.pipeline.evaluation.scores.map_scores import marker, with_marker
from heatlas.pipeline.explaining.planted_loss import PlantingSite, planted_copy, planting_site
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table, write_table
from heatlas.pipeline.statistics.stage import ANALYSES

# Copies of controls with planted loss: what is changed, by how much, and what is not.

ATLAS = "neuromorphometrics-cat12"
GRID = template_grid(4.0)


@pytest.fixture(scope="module")
def site() -> PlantingSite:
    atlas = load_atlas(ATLAS, GRID)
    return planting_site(ATLAS, (*planted_changes(atlas), BOTH_CLASSES), 4.0)


@pytest.fixture(scope="module")
def brain() -> tuple[np.ndarray, np.ndarray]:
    template = load_template(4.0)
    return np.asarray(template.t1w, np.float32), np.asarray(template.brain_mask)


def in_group(values: np.ndarray, name: str) -> float:
    atlas = load_atlas(ATLAS, GRID)
    return float(values[np.isin(atlas.labels, atlas.regions.groups[name])].mean())


def copy_of(brain, site, severity: float, unused: float = 0.0) -> np.ndarray:
    severities = [*[severity] * (len(site.rates) - 1), unused]
    return planted_copy(*brain, site, severities, np.random.default_rng(2))


@pytest.mark.ci
def test_loss_grows_with_severity_where_it_is_planted_and_nowhere_else(brain, site) -> None:
    plain = copy_of(brain, site, 0.0)
    falls = [in_group(plain, "Hippocampus") - in_group(copy_of(brain, site, s), "Hippocampus") for s in SEVERITIES]
    assert 0 < falls[0] < falls[1] < falls[2]
    assert falls[2] > 0.05 * in_group(plain, "Hippocampus")
    change = abs(
        in_group(copy_of(brain, site, 2.0), "Superior parietal lobule") - in_group(plain, "Superior parietal lobule")
    )
    assert change < 0.05 * falls[2]


def test_the_unused_change_is_about_as_large_as_the_used_one(brain, site) -> None:
    plain = copy_of(brain, site, 0.0)
    used = in_group(plain, "Hippocampus") - in_group(copy_of(brain, site, 2.0), "Hippocampus")
    unused = in_group(plain, "Putamen") - in_group(copy_of(brain, site, 0.0, unused=2.0), "Putamen")
    assert 0.5 < unused / used < 2


def test_nothing_outside_the_brain_changes_and_no_copy_is_without_interpolation(brain, site) -> None:
    volume, mask = brain
    plain = copy_of(brain, site, 0.0)
    assert np.array_equal(plain[~mask], volume[~mask])
    assert 0 < np.abs(plain - volume)[mask].mean() < 0.1 * volume[mask].mean()


def test_every_copy_has_the_range_of_its_scan(brain, site) -> None:
    volume, mask = brain
    spiky = np.where(mask, volume, 0).astype(np.float32)
    spiky[tuple(np.argwhere(mask)[500])] = 3 * volume.max()  # a bright vessel, which interpolation would smooth away
    for severity in (0.0, 3.0):
        copied = planted_copy(spiky, mask, site, [severity] * len(site.rates), np.random.default_rng(2))
        assert (copied[mask].min(), copied[mask].max()) == (spiky[mask].min(), spiky[mask].max())


def test_a_marker_is_seen_and_lies_outside_the_brain(brain) -> None:
    volume, mask = brain
    cube = marker(volume.shape, (1, 1, 1))
    assert cube.sum() == 27
    marked, seen = with_marker(volume, mask, cube)
    assert (marked[cube] == volume[mask].max()).all()
    assert seen.sum() == mask.sum() + 27
    with pytest.raises(BadInputError, match="inside the brain"):
        with_marker(volume, np.ones_like(mask), cube)


def controls(count: int, label: str | None = "CN") -> list[Scan]:
    return [Scan(f"sub-{i:02d}", f"ses-{n}", f"I{i}-{n}", None, label=label) for i in range(count) for n in range(2)]


def test_every_control_gives_two_copies_and_severities_are_dealt_evenly() -> None:
    people = people_to_plant([*controls(12), Scan("sub-ad", None, "Iad", None, label="AD")], "CN", seed=1)
    assert [person.scan.scan_id for person in people] == [f"I{i}-0" for i in range(12)]
    assert Counter(person.severity for person in people) == dict.fromkeys(SEVERITIES, 4)
    assert sum(person.unused > 0 for person in people) == 4
    assert sum(person.marked for person in people) == 6
    assert {copy.label for copy in people[0].copies} == {UNTOUCHED, WITH_LOSS}
    assert people != people_to_plant(controls(12), "CN", seed=2)


def test_without_labels_everyone_is_a_control() -> None:
    assert len(people_to_plant(controls(FEWEST, None), "CN", seed=1)) == FEWEST


@pytest.mark.parametrize("label", ["CN", "AD"], ids=["few controls", "no control"])
def test_too_few_controls_are_refused_with_their_number(label) -> None:
    with pytest.raises(BadInputError, match=rf"this run has {5 if label == 'CN' else 0} .* at least {FEWEST}"):
        people_to_plant([*controls(5, label), Scan("sub-x", None, "x", None, label="other")], "CN", seed=1)


@pytest.mark.parametrize("count", [6, 7, 20])
def test_folds_are_of_whole_people_and_test_everyone_once(count) -> None:
    people = people_to_plant(controls(count), "CN", seed=1)
    split = paired_folds(people, 5, 0.2, seed=1)  # refuses by itself a person in two parts
    assert Counter(name for fold in split.folds for name in fold.test) == {f"sub-{i:02d}": 1 for i in range(count)}
    assert all(fold.validation and len(fold.train) >= 2 for fold in split.folds)


def test_the_first_folds_are_those_of_all() -> None:
    people = people_to_plant(controls(12), "CN", seed=4)
    every, first = (paired_folds(people, 3, 0.2, 4, only) for only in (0, 1))
    assert first.folds == every.folds[:1]
    assert len(every.folds) == 3


def test_the_truth_names_what_was_planted_and_what_is_not_to_be_marked() -> None:
    people = people_to_plant(controls(12), "CN", seed=1)
    truth = truth_of(people, load_atlas(ATLAS, GRID), "Cuneus")
    assert truth.groups == ("Hippocampus", "Amygdala", "Entorhinal area", "Parahippocampal gyrus")
    assert [one.kind for one in truth.distractors] == ["both classes", "correlated", "marker"]
    assert len(truth.distractors[0].scans) == 4
    assert {truth.severity[person.copy(UNTOUCHED).scan_id] for person in people} == {0.0}


def test_the_correlated_group_is_neither_planted_nor_left_out() -> None:
    random = np.random.default_rng(0)
    planted = random.standard_normal(30)
    means = np.stack(
        [planted, planted + 0.01, planted + 0.1 * random.standard_normal(30), -planted, np.ones(30)], axis=1
    )
    assert strongest(means, list("abcde"), ["a"], {"b"}) == "c"
    assert strongest(means[:, [0, 4]], ["a", "e"], ["a"], set()) is None


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


# Planted effects against statistics tables made by hand.


@pytest.fixture
def effects_truth(tmp_path: Path) -> Path:
    path = tmp_path / "effects.json"
    path.write_text(json.dumps({"synthetic": True, "effects": [dict(effect.record()) for effect in EFFECTS]}))
    return path


@pytest.fixture
def effects_layout(tmp_path: Path) -> RunLayout:
    return RunLayout(tmp_path / "run")


def write(layout: RunLayout, name: str, *rows: dict[str, Any]) -> None:
    write_table(layout.statistics(name), pd.DataFrame(rows))


def comparison(group: str, difference: float, p_fwe: float, **other: Any) -> dict[str, Any]:
    row = dict(comparison="AD/CN", map="lrpB000", metric="density", group=group, difference=difference)
    row |= dict(ci_low=difference - 1, ci_high=difference + 1, p=p_fwe / 2, p_fwe=p_fwe, note=None)
    return row | other


def main_effect(source: str, variable: str, group: str, estimate: float, p: float, p_fwe: float) -> dict[str, Any]:
    return dict(source=source, variable=variable, group=group, estimate=estimate, partial_r=estimate, p=p) | dict(
        p_fwe=p_fwe, note=None
    )


def effects_site(
    group: str, before: float, after: float, effect: str = "location", source: str = "volume"
) -> dict[str, Any]:
    return dict(source=source, effect=effect, group=group, p_fwe_before=before, r2_before=0.4) | dict(
        p_fwe_after=after, r2_after=0.1, note=None
    )


def answers(layout: RunLayout, truth: Path) -> pd.DataFrame:
    table = evaluate_effects(layout, truth, "lrpB000")
    assert list(table.columns) == list(PLANTED_EFFECTS_TABLE.meanings)
    return table.set_index("effect")


def test_every_planted_effect_has_a_question_and_every_question_a_table_that_is_written() -> None:
    assert {effect.effect for effect in EFFECTS} == set(QUESTIONS)
    tables = {table.name for analysis in ANALYSES for table in analysis.tables}
    assert {question.table for asked in QUESTIONS.values() for question in asked.values()} <= tables | {"site_effects"}


def test_questions_name_columns_that_the_tables_have() -> None:
    from heatlas.pipeline.statistics.associations.associations import ASSOCIATIONS_TABLE
    from heatlas.pipeline.statistics.groups.comparisons import GROUP_COMPARISONS_TABLE
    from heatlas.pipeline.statistics.groups.subgroups import MAIN_EFFECTS_TABLE
    from heatlas.pipeline.statistics.harmonisation.tables import SITE_EFFECTS_TABLE
    from heatlas.pipeline.statistics.progression.prediction import PROGRESSION_TABLE

    tables = (
        ASSOCIATIONS_TABLE, GROUP_COMPARISONS_TABLE, SITE_EFFECTS_TABLE, MAIN_EFFECTS_TABLE, PROGRESSION_TABLE,
    )  # fmt: skip
    columns = {table.name: table.meanings for table in tables}
    for asked in QUESTIONS.values():
        for question in asked.values():
            used = {*question.rows, question.p, question.estimate, *question.interval}
            assert used <= set(columns[question.table]), question.table


def test_without_tables_every_row_says_which_is_missing(effects_layout: RunLayout, effects_truth: Path) -> None:
    table = answers(effects_layout, effects_truth)
    assert len(table) == len(EFFECTS) + 3  # site before and after, in volumes and in relevance
    assert (table["result"] == "no answer").all()
    assert (table["verdict"] == "no answer").all()
    assert table.loc["sex_difference", "note"].startswith("main_effects.tsv is missing")
    assert read_table(effects_layout.statistics("planted_effects"))["effect"].tolist() == list(table.index)


def test_of_several_groups_the_family_wise_p_in_the_planted_direction_counts(
    effects_layout: RunLayout, effects_truth: Path
) -> None:
    rows = [comparison("Hippocampus", 2, 0.03), comparison("Amygdala", 3, 0.2), comparison("Entorhinal area", -1, 0.01)]
    # Another region, another map and another metric are not asked.
    others = [
        comparison("Cuneus", 9, 0.001),
        comparison("Hippocampus", 9, 0.001, map="gb"),
        comparison("Hippocampus", 9, 0.001, metric="share"),
    ]
    write(effects_layout, "group_comparisons", *rows, *others)
    row = answers(effects_layout, effects_truth).loc["disease"]
    assert (row["where"], row["p"], row["p_is"], row["n_tests"]) == ("Hippocampus", 0.03, "p_fwe", 3)
    assert (row["ci_low"], row["estimate"], row["ci_high"]) == (1, 2, 3)
    assert (row["result"], row["verdict"]) == ("found", "as planted")
    write(effects_layout, "group_comparisons", *rows[1:])
    row = answers(effects_layout, effects_truth).loc["disease"]
    assert (row["where"], row["result"], row["verdict"]) == ("Amygdala", "not found", "missed")
    write(effects_layout, "group_comparisons", rows[2])  # significant, and the wrong way round
    row = answers(effects_layout, effects_truth).loc["disease"]
    assert (row["where"], row["p"], row["verdict"]) == ("Entorhinal area", 0.01, "missed")


def test_one_named_group_is_one_question(effects_layout: RunLayout, effects_truth: Path) -> None:
    write(
        effects_layout,
        "main_effects",
        main_effect("volume", "sex", "Putamen", 0.11, 0.004, 0.2),
        main_effect("volume", "sex", "Cuneus", 0.1, 0.03, 0.9),
        main_effect("volume", "sex", "Thalamus", 0.3, 0.001, 0.001),
        main_effect("lrpB000", "education", "Cuneus", 0.2, 0.01, 0.4),
        main_effect("lrpB000", "field_strength", "Cuneus", -0.6, 0.0001, 0.002),
        main_effect("gb", "education", "Cuneus", 0.9, 0.0001, 0.0001),
    )
    table = answers(effects_layout, effects_truth)
    sex = table.loc["sex_difference"]
    assert (sex["p"], sex["p_is"], sex["estimate"], sex["verdict"]) == (0.004, "p", 0.11, "as planted")
    assert table.loc["null_sex_difference", "verdict"] == "false alarm"
    education, field = table.loc["null_education"], table.loc["null_field_strength"]
    assert (education["p"], education["result"], education["verdict"]) == (0.4, "not found", "as planted")
    assert (field["where"], field["result"], field["verdict"]) == ("Cuneus", "found", "false alarm")


def test_a_sex_difference_the_wrong_way_round_is_missed(effects_layout: RunLayout, effects_truth: Path) -> None:
    write(effects_layout, "main_effects", main_effect("volume", "sex", "Putamen", -0.11, 0.004, 0.2))
    assert answers(effects_layout, effects_truth).loc["sex_difference", "verdict"] == "missed"


@pytest.mark.parametrize(
    ("before", "after", "verdicts"),
    [
        (0.01, 0.6, ("as planted", "as planted")),
        (0.01, 0.02, ("as planted", "false alarm")),
        (0.3, 0.6, ("missed", "nothing to remove")),
        (0.3, 0.02, ("missed", "false alarm")),
    ],
)
def test_the_site_effect_is_there_before_combat_and_gone_after(
    effects_layout: RunLayout, effects_truth: Path, before: float, after: float, verdicts: tuple[str, str]
) -> None:
    around = effects_site("Putamen", 0.9, 0.9), effects_site("Cuneus", 0.001, 0.001, effect="scale")
    in_relevance = effects_site("Cuneus", 0.2, 0.3, source="lrpB000")
    write(effects_layout, "site_effects", effects_site("Cuneus", before, after), *around, in_relevance)
    table = answers(effects_layout, effects_truth)
    got = [table.loc[f"site_effect_{when}_combat", "verdict"] for when in ("before", "after")]
    assert tuple(got) == verdicts
    assert table.loc["site_effect_after_combat", "expected"] == "not found"
    assert table.loc["site_effect_in_relevance_before_combat", ["p", "verdict"]].tolist() == [0.2, "missed"]
    assert table.loc["site_effect_in_relevance_after_combat", ["p", "verdict"]].tolist() == [0.3, "nothing to remove"]


@pytest.mark.parametrize(
    ("concordance", "p", "verdict"), [(0.9, 0.01, "as planted"), (0.9, 0.2, "missed"), (0.2, 0.01, "missed")]
)
def test_conversion_of_enough_people_is_judged_by_its_p_in_the_planted_direction(
    effects_layout: RunLayout, effects_truth: Path, concordance: float, p: float, verdict: str
) -> None:
    row = dict(predictor="model", measure="concordance", estimate=concordance, ci_low=0.1, ci_high=1.0, p=p)
    row |= dict(n_events=10, note=None)
    write(effects_layout, "progression", row, row | {"predictor": "age", "estimate": 1.0}, row | {"measure": "auc"})
    assert answers(effects_layout, effects_truth).loc["conversion", "verdict"] == verdict


@pytest.mark.parametrize("concordance", [0.9, 0.2])
def test_conversion_of_a_few_is_not_tested_and_no_miss(
    effects_layout: RunLayout, effects_truth: Path, concordance: float
) -> None:
    row = dict(predictor="model", measure="concordance", estimate=concordance, ci_low=0.1, ci_high=1.0, p=0.01)
    row |= dict(n_events=9, note=None)
    write(effects_layout, "progression", row)
    answer = answers(effects_layout, effects_truth).loc["conversion", ["expected", "result", "verdict", "note"]]
    assert answer.tolist() == ["open", "not tested", "not tested: too few", "9 events; 10 are needed"]


def test_a_row_without_a_value_gives_its_reason(effects_layout: RunLayout, effects_truth: Path) -> None:
    row = dict(biomarker="cdrsb", scan_group="all", estimator="pearson", metric="density", map="lrpB000")
    row |= dict(group="Hippocampus", r=None, ci_low=None, ci_high=None, p=None, p_fwe=None, note="no scan has cdrsb")
    write(effects_layout, "associations", row)
    table = answers(effects_layout, effects_truth)
    assert (table.loc["severity_cdrsb", "result"], table.loc["severity_cdrsb", "note"]) == (
        "no answer",
        "no scan has cdrsb",
    )
    assert table.loc["severity_mmse", "note"] == "the table has no such row with a value"


def test_scores_that_fall_with_severity_are_expected_to_fall_with_relevance(
    effects_layout: RunLayout, effects_truth: Path
) -> None:
    rows = [
        dict(biomarker=name, scan_group="all", estimator="pearson", metric="density", map="lrpB000")
        | dict(group="Hippocampus", r=r, ci_low=r - 0.1, ci_high=r + 0.1, p=0.001, p_fwe=0.01, note=None)
        for name, r in (("mmse", -0.7), ("cdrsb", 0.7), ("adas13", -0.7))
    ]
    write(effects_layout, "associations", *rows)
    table = answers(effects_layout, effects_truth)
    verdicts = [table.loc[f"severity_{name}", "verdict"] for name in ("mmse", "cdrsb", "adas13")]
    assert verdicts == ["as planted", "as planted", "missed"]


@pytest.mark.parametrize("text", ["", "[]", '{"effects": [{"effect": "disease"}]}', '{"planted": []}'])
def test_an_unreadable_truth_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "effects.json").write_text(text)
    with pytest.raises(BadInputError, match=r"effects\.json: not a (readable JSON object|truth)"):
        read_effects(tmp_path / "effects.json")
    with pytest.raises(BadInputError, match=r"none\.json"):
        read_effects(tmp_path / "none.json")


def test_an_effect_without_a_question_is_refused(effects_layout: RunLayout, effects_truth: Path) -> None:
    known = json.loads(effects_truth.read_text())
    known["effects"][0]["effect"] = "moon_phase"
    effects_truth.write_text(json.dumps(known))
    with pytest.raises(BadInputError, match="moon_phase"):
        evaluate_effects(effects_layout, effects_truth, "lrpB000")


def test_a_table_without_its_column_is_named(effects_layout: RunLayout, effects_truth: Path) -> None:
    write(effects_layout, "main_effects", {"source": "volume", "variable": "sex", "group": "Putamen"})
    with pytest.raises(BadInputError, match=r"main_effects\.tsv: column estimate, p is missing"):
        evaluate_effects(effects_layout, effects_truth, "lrpB000")
