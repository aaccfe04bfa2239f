"""Planted effects against statistics tables made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from heatlas.pipeline.cohort.demo.people import EFFECTS
from heatlas.pipeline.evaluation.planted import (
    PLANTED_EFFECTS_TABLE,
    QUESTIONS,
    evaluate_effects,
    read_effects,
)
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table, write_table
from heatlas.pipeline.statistics.stage import ANALYSES


@pytest.fixture
def truth(tmp_path: Path) -> Path:
    path = tmp_path / "effects.json"
    path.write_text(json.dumps({"synthetic": True, "effects": [dict(effect.record()) for effect in EFFECTS]}))
    return path


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
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


def site(group: str, before: float, after: float, effect: str = "location", source: str = "volume") -> dict[str, Any]:
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
    from heatlas.pipeline.statistics.associations.associations import ASSOCIATIONS_COLUMNS
    from heatlas.pipeline.statistics.groups.comparisons import COMPARISONS_COLUMNS
    from heatlas.pipeline.statistics.groups.subgroups import MAIN_EFFECTS_COLUMNS
    from heatlas.pipeline.statistics.harmonisation.tables import EFFECT_COLUMNS
    from heatlas.pipeline.statistics.progression.prediction import PROGRESSION_COLUMNS

    columns = dict(associations=ASSOCIATIONS_COLUMNS, group_comparisons=COMPARISONS_COLUMNS)
    columns |= dict(site_effects=EFFECT_COLUMNS, main_effects=MAIN_EFFECTS_COLUMNS, progression=PROGRESSION_COLUMNS)
    for asked in QUESTIONS.values():
        for question in asked.values():
            used = {*question.rows, question.p, question.estimate, *question.interval}
            assert used <= set(columns[question.table]), question.table


def test_without_tables_every_row_says_which_is_missing(layout: RunLayout, truth: Path) -> None:
    table = answers(layout, truth)
    assert len(table) == len(EFFECTS) + 3  # site before and after, in volumes and in relevance
    assert (table["result"] == "no answer").all()
    assert (table["verdict"] == "no answer").all()
    assert table.loc["sex_difference", "note"].startswith("main_effects.tsv is missing")
    assert read_table(layout.statistics("planted_effects"))["effect"].tolist() == list(table.index)


def test_of_several_groups_the_family_wise_p_in_the_planted_direction_counts(layout: RunLayout, truth: Path) -> None:
    rows = [comparison("Hippocampus", 2, 0.03), comparison("Amygdala", 3, 0.2), comparison("Entorhinal area", -1, 0.01)]
    # Another region, another map and another metric are not asked.
    others = [
        comparison("Cuneus", 9, 0.001),
        comparison("Hippocampus", 9, 0.001, map="gb"),
        comparison("Hippocampus", 9, 0.001, metric="share"),
    ]
    write(layout, "group_comparisons", *rows, *others)
    row = answers(layout, truth).loc["disease"]
    assert (row["where"], row["p"], row["p_is"], row["n_tests"]) == ("Hippocampus", 0.03, "p_fwe", 3)
    assert (row["ci_low"], row["estimate"], row["ci_high"]) == (1, 2, 3)
    assert (row["result"], row["verdict"]) == ("found", "as planted")
    write(layout, "group_comparisons", *rows[1:])
    row = answers(layout, truth).loc["disease"]
    assert (row["where"], row["result"], row["verdict"]) == ("Amygdala", "not found", "missed")
    write(layout, "group_comparisons", rows[2])  # significant, and the wrong way round
    row = answers(layout, truth).loc["disease"]
    assert (row["where"], row["p"], row["verdict"]) == ("Entorhinal area", 0.01, "missed")


def test_one_named_group_is_one_question(layout: RunLayout, truth: Path) -> None:
    write(
        layout,
        "main_effects",
        main_effect("volume", "sex", "Putamen", 0.11, 0.004, 0.2),
        main_effect("volume", "sex", "Cuneus", 0.1, 0.03, 0.9),
        main_effect("volume", "sex", "Thalamus", 0.3, 0.001, 0.001),
        main_effect("lrpB000", "education", "Cuneus", 0.2, 0.01, 0.4),
        main_effect("lrpB000", "field_strength", "Cuneus", -0.6, 0.0001, 0.002),
        main_effect("gb", "education", "Cuneus", 0.9, 0.0001, 0.0001),
    )
    table = answers(layout, truth)
    sex = table.loc["sex_difference"]
    assert (sex["p"], sex["p_is"], sex["estimate"], sex["verdict"]) == (0.004, "p", 0.11, "as planted")
    assert table.loc["null_sex_difference", "verdict"] == "false alarm"
    education, field = table.loc["null_education"], table.loc["null_field_strength"]
    assert (education["p"], education["result"], education["verdict"]) == (0.4, "not found", "as planted")
    assert (field["where"], field["result"], field["verdict"]) == ("Cuneus", "found", "false alarm")


def test_a_sex_difference_the_wrong_way_round_is_missed(layout: RunLayout, truth: Path) -> None:
    write(layout, "main_effects", main_effect("volume", "sex", "Putamen", -0.11, 0.004, 0.2))
    assert answers(layout, truth).loc["sex_difference", "verdict"] == "missed"


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
    layout: RunLayout, truth: Path, before: float, after: float, verdicts: tuple[str, str]
) -> None:
    write(
        layout, "site_effects",
        site("Cuneus", before, after), site("Putamen", 0.9, 0.9), site("Cuneus", 0.001, 0.001, effect="scale"),
        site("Cuneus", 0.2, 0.3, source="lrpB000"),
    )  # fmt: skip
    table = answers(layout, truth)
    got = [table.loc[f"site_effect_{when}_combat", "verdict"] for when in ("before", "after")]
    assert tuple(got) == verdicts
    assert table.loc["site_effect_after_combat", "expected"] == "not found"
    assert table.loc["site_effect_in_relevance_before_combat", ["p", "verdict"]].tolist() == [0.2, "missed"]
    assert table.loc["site_effect_in_relevance_after_combat", ["p", "verdict"]].tolist() == [0.3, "nothing to remove"]


@pytest.mark.parametrize(
    ("concordance", "p", "verdict"), [(0.9, 0.01, "as planted"), (0.9, 0.2, "missed"), (0.2, 0.01, "missed")]
)
def test_conversion_of_enough_people_is_judged_by_its_p_in_the_planted_direction(
    layout: RunLayout, truth: Path, concordance: float, p: float, verdict: str
) -> None:
    row = dict(predictor="model", measure="concordance", estimate=concordance, ci_low=0.1, ci_high=1.0, p=p)
    row |= dict(n_events=10, note=None)
    write(layout, "progression", row, row | {"predictor": "age", "estimate": 1.0}, row | {"measure": "auc"})
    assert answers(layout, truth).loc["conversion", "verdict"] == verdict


@pytest.mark.parametrize("concordance", [0.9, 0.2])
def test_conversion_of_a_few_is_not_tested_and_no_miss(layout: RunLayout, truth: Path, concordance: float) -> None:
    row = dict(predictor="model", measure="concordance", estimate=concordance, ci_low=0.1, ci_high=1.0, p=0.01)
    row |= dict(n_events=9, note=None)
    write(layout, "progression", row)
    answer = answers(layout, truth).loc["conversion", ["expected", "result", "verdict", "note"]]
    assert answer.tolist() == ["open", "not tested", "not tested: too few", "9 events; 10 are needed"]


def test_a_row_without_a_value_gives_its_reason(layout: RunLayout, truth: Path) -> None:
    row = dict(biomarker="cdrsb", scan_group="all", estimator="pearson", metric="density", map="lrpB000")
    row |= dict(group="Hippocampus", r=None, ci_low=None, ci_high=None, p=None, p_fwe=None, note="no scan has cdrsb")
    write(layout, "associations", row)
    table = answers(layout, truth)
    assert (table.loc["severity_cdrsb", "result"], table.loc["severity_cdrsb", "note"]) == (
        "no answer",
        "no scan has cdrsb",
    )
    assert table.loc["severity_mmse", "note"] == "the table has no such row with a value"


def test_scores_that_fall_with_severity_are_expected_to_fall_with_relevance(layout: RunLayout, truth: Path) -> None:
    rows = [
        dict(biomarker=name, scan_group="all", estimator="pearson", metric="density", map="lrpB000")
        | dict(group="Hippocampus", r=r, ci_low=r - 0.1, ci_high=r + 0.1, p=0.001, p_fwe=0.01, note=None)
        for name, r in (("mmse", -0.7), ("cdrsb", 0.7), ("adas13", -0.7))
    ]
    write(layout, "associations", *rows)
    table = answers(layout, truth)
    verdicts = [table.loc[f"severity_{name}", "verdict"] for name in ("mmse", "cdrsb", "adas13")]
    assert verdicts == ["as planted", "as planted", "missed"]


@pytest.mark.parametrize("text", ["", "[]", '{"effects": [{"effect": "disease"}]}', '{"planted": []}'])
def test_an_unreadable_truth_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "effects.json").write_text(text)
    with pytest.raises(BadInputError, match=r"effects\.json: not a (readable JSON object|truth)"):
        read_effects(tmp_path / "effects.json")
    with pytest.raises(BadInputError, match=r"none\.json"):
        read_effects(tmp_path / "none.json")


def test_an_effect_without_a_question_is_refused(layout: RunLayout, truth: Path) -> None:
    known = json.loads(truth.read_text())
    known["effects"][0]["effect"] = "moon_phase"
    truth.write_text(json.dumps(known))
    with pytest.raises(BadInputError, match="moon_phase"):
        evaluate_effects(layout, truth, "lrpB000")


def test_a_table_without_its_column_is_named(layout: RunLayout, truth: Path) -> None:
    write(layout, "main_effects", {"source": "volume", "variable": "sex", "group": "Putamen"})
    with pytest.raises(BadInputError, match=r"main_effects\.tsv: column estimate, p is missing"):
        evaluate_effects(layout, truth, "lrpB000")
