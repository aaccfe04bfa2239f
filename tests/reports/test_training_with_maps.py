"""What training with maps changed, on the page: against the tables it is read from."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd

from heatlas.pipeline.run.config.networks import ObjectiveConfig
from heatlas.pipeline.run.config.settings import Config
from heatlas.studies.before_after.measures import BEFORE_AFTER_TABLE
from heatlas.studies.before_after.stage import OBJECTIVE_WEIGHTS_TABLE
from heatlas.studies.marker.marker_groups import MARKER_TABLE
from heatlas.studies.pages.networks import applies, build


def material(objective: ObjectiveConfig, **tables: pd.DataFrame) -> SimpleNamespace:
    """A run with some tables, whose mean maps cannot be shown."""
    run = SimpleNamespace(
        tables=tables, unreadable={}, config=Config(objective=objective),
        has=lambda name: name in tables, why_absent=lambda *names, otherwise: otherwise,
        layout=SimpleNamespace(compared_map=lambda *names: "-".join(names)),
    )  # fmt: skip
    return SimpleNamespace(run=run, view=lambda path: None)


GUIDED = ObjectiveConfig(kind="guided")


def test_changes_whose_interval_excludes_0_are_named() -> None:
    rows = [
        ["guided", "correct", 0.8, 0.75, -0.05, -0.2, 0.1, 30],
        ["guided", "epg", 0.1, 0.4, 0.3, 0.25, 0.35, 30],
        ["guided", "iou", 0.1, 0.1, 0.0, np.nan, np.nan, 30],
    ]
    (found,) = build(material(GUIDED, before_after=BEFORE_AFTER_TABLE.frame(rows)))["comparisons"]
    assert found.text.endswith("The interval excludes 0 for: in the mask (EPG).")
    cells = [[cell.text for cell in row] for row in found.table.rows]
    assert cells[0] == ["Accuracy", "0.800", "0.750", "−0.050", "−0.200", "+0.100"]
    assert cells[1][3] == "+0.300"
    assert found.figure is None


def test_the_number_of_people_with_a_mask_of_their_own_is_said() -> None:
    rows = [["guided", "correct", 0.8, 0.75, -0.05, -0.2, 0.1, 30], ["guided", "epg", 0.1, 0.4, 0.3, 0.25, 0.35, 7]]
    for labels, said in (("own", True), ("atlas", False)):
        objective = ObjectiveConfig(kind="guided", regions=("Hippocampus",), region_labels=labels)
        (found,) = build(material(objective, before_after=BEFORE_AFTER_TABLE.frame(rows)))["comparisons"]
        assert ("are of 7 participants with a mask of their own; people without labels" in found.text) is said


def test_networks_taught_by_guided_gradients_alone_are_called_so() -> None:
    table = BEFORE_AFTER_TABLE.frame([["readable-gradients", "correct", 0.8, 0.5, -0.3, -0.4, -0.2, 30]])
    for alone, said in ((True, "taught by guided gradients alone. Before"), (False, "like those of guided backprop")):
        objective = ObjectiveConfig(kind="readable-gradients", guided_alone=alone)
        (found,) = build(material(objective, before_after=table))["comparisons"]
        assert said in found.text


def test_the_weight_that_is_chosen_is_named() -> None:
    shown = ("validation_balanced_accuracy", "validation_epg", "validation_iou", "test_epg")
    values = {0.0: (0.8, 0.2, 0.1, 0.21), 3.0: (0.78, 0.4, 0.12, 0.39), 30.0: (0.6, 0.9, 0.3, 0.88)}
    rows = [
        dict(weight=weight, of_run=weight == 30, in_pareto_set=True, chosen=weight == 3, n_validation=12)
        | dict(n_participants=30)
        | dict(zip(shown, own, strict=True))
        for weight, own in values.items()
    ]
    table = OBJECTIVE_WEIGHTS_TABLE.frame(rows)
    (found,) = build(material(GUIDED, objective_weights=table))["comparisons"]
    assert found.text.startswith("The weight chosen is 3, not that of this run.")
    assert "at most 5 points below that of weight 0, the one that is best in “In the mask (EPG)”." in found.text
    assert "no say" not in found.text  # folds share people
    assert "people tested in one fold are validation people of another" in found.text
    assert [column.title for column in found.table.columns][:4] == [
        "Weight", "Balanced accuracy, validation", "In the mask (EPG), validation",
        "Overlap with the mask (IoU), validation",
    ]  # fmt: skip
    cells = [[cell.text for cell in row] for row in found.table.rows]
    assert cells[1][:6] == ["3", "0.780", "0.400", "0.120", "yes", "yes"]
    assert (cells[2][5], cells[2][7]) == ("no", "0.880")
    control = OBJECTIVE_WEIGHTS_TABLE.frame([row | {"chosen": row["weight"] == 0} for row in rows])
    (found,) = build(material(GUIDED, objective_weights=control))["comparisons"]
    assert found.text.startswith("The weight chosen is 0: no other")
    (found,) = build(material(ObjectiveConfig(), objective_weights=table))["comparisons"]  # the run was made anew
    assert "In the mask (EPG), validation" in [column.title for column in found.table.columns]


def test_the_worst_group_stands_beside_that_of_the_control() -> None:
    names = [
        "accuracy_negative_plain",
        "accuracy_negative_marked",
        "accuracy_positive_plain",
        "accuracy_positive_marked",
    ]
    control = dict(task="diagnosis", training="control", n_participants=30, worst_group=0.1, epg=0.2)
    control |= dict(worst_group_high=0.3, as_in_training=0.85, mean_accuracy=0.55, chance=0.428, chance_low=0.2)
    control |= dict(chance_high=0.6)
    control |= dict(zip(names, (0.9, 0.2, 0.1, 0.8), strict=True))
    guided = (
        control
        | dict(training="guided", worst_group=0.5, worst_group_change=0.4, against_training_change=0.45)
        | dict(against_training_change_low=0.1, against_training_change_high=0.6, mean_accuracy_change=0.05)
        | dict(epg_change=0.25, epg_change_low=0.2, epg_change_high=0.3)
    )
    table = MARKER_TABLE.frame([control, guided])
    (found,) = build(material(ObjectiveConfig(), marker_groups=table))["comparisons"]
    assert [column.title for column in found.table.columns][1:5] == [
        "CN, without marker", "CN, with marker", "AD, without marker", "AD, with marker"
    ]  # fmt: skip
    assert [row[0].text for row in found.table.rows] == ["Without guidance", "With guidance"]
    assert [row[5].text for row in found.table.rows] == ["0.10", "0.50"]
    assert [column.title for column in found.table.columns][8:10] == ["By chance", "Mean of the four"]
    assert [cell.text for cell in found.table.rows[1][8:10]] == ["0.43", "0.55"]
    assert "do not go together changes by +0.45 (95 % interval +0.10 to +0.60), the mean of the four" in found.text
    assert "the mean of the four groups changes by +0.05, and" in found.text
    assert "guided to the brain." in found.text
    assert "+0.250 (95 % interval +0.200 to +0.300)" in found.text
    assert (
        "They recognise 50 % of the worst group; a coin tossed for each participant has 43 % (20 % to 60 %), so this"
        in (found.text)
    )
    assert found.text.endswith("does not show that they recognise the diagnosis.")
    assert "recognise 85 % of the copies in which marker and diagnosis go together" in found.text
    assert "and 10 % of the worst group: they follow the marker." in found.text


def test_students_stand_beside_students_of_answers_alone() -> None:
    control = dict(task="diagnosis", training="control", n_participants=30, worst_group=0.1, worst_group_high=0.3)
    control |= dict(as_in_training=0.85, chance=0.4, chance_low=0.2, chance_high=0.6, agreement_as_in_training=0.9)
    control |= dict(agreement_against_training=0.4)
    taught = (
        control
        | dict(training="distilled", against_training_change=0.1, mean_accuracy_change=0.05, epg_change=0.25)
        | dict(agreement_against_training=0.7, agreement_against_training_change=0.3)
        | dict(agreement_against_training_change_low=0.1, agreement_against_training_change_high=0.5)
    )
    objective = ObjectiveConfig(kind="distilled", teacher="run")
    (found,) = build(material(objective, marker_groups=MARKER_TABLE.frame([control, taught])))["comparisons"]
    assert [row[0].text for row in found.table.rows] == ["Taught answers alone", "Taught answers and maps"]
    assert [cell.text for cell in found.table.rows[1][-2:]] == ["0.90", "0.70"]
    assert "The teacher of the run teaches its answers for these copies, and its maps." in found.text
    assert found.text.endswith("answer as their teacher does changes by +0.30 (95 % interval +0.10 to +0.50).")
    objective = ObjectiveConfig(kind="distilled", teacher="run", map="attention-transfer")  # which teaches no answers
    (found,) = build(material(objective, marker_groups=MARKER_TABLE.frame([control, taught])))["comparisons"]
    assert [row[0].text for row in found.table.rows] == ["Labels alone", "Labels and taught maps"]
    assert "The teacher of the run teaches its maps, beside the labels." in found.text
    objective = ObjectiveConfig(kind="distilled", teacher="run", scans="other")
    (found,) = build(material(objective, marker_groups=MARKER_TABLE.frame([control, taught])))["comparisons"]
    assert "its answers for scans of an unrelated cohort, without the marker, and its maps." in found.text


def test_networks_that_know_every_copy_follow_nothing_else() -> None:
    control = dict(task="marker", training="control", n_participants=30, worst_group=1.0, as_in_training=1.0)
    control |= dict(chance=0.36, chance_low=0.2, chance_high=0.47)
    guided = control | {"training": "guided", "worst_group_change": 0.0, "against_training_change": 0.0,
                        "mean_accuracy_change": 0.0, "epg_change": 0.002, "epg_change_low": 0.001,
                        "epg_change_high": 0.003}  # fmt: skip
    (found,) = build(material(ObjectiveConfig(), marker_groups=MARKER_TABLE.frame([control, guided])))["comparisons"]
    assert "and 100 % of the worst group. With guidance, accuracy where marker and diagnosis do not" in found.text
    assert "together does not change, the mean of the four groups does not change, and the share" in found.text
    assert found.text.endswith("a coin tossed for each participant has 36 % (20 % to 47 %).")


def test_a_run_trained_with_maps_says_how_to_compare_it_and_others_have_no_section() -> None:
    (said,) = build(material(GUIDED))["absent"]
    assert "heatlas evaluate OUT --parts objective" in said
    assert applies(material(GUIDED).run)
    assert not applies(material(ObjectiveConfig()).run)
    assert not applies(material(ObjectiveConfig(kind="guided", weight=0.0)).run)
