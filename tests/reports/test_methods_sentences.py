"""Sentences of the methods text that a setting or a table decides, on both sides."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd
import pytest

from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.layout.folder import RunInput
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.statistics.associations.volume_association import WITHIN
from heatlas.pipeline.training.objectives.records import kind_of
from heatlas.reports.content.run import methods
from heatlas.reports.read.run_record import RunRecord

FOLDER = Path("nowhere")


def record(tables: dict[str, pd.DataFrame], **sections: dict[str, object]) -> RunRecord:
    """A run that has only these tables."""
    config = load_config(overrides=sections)
    return RunRecord(RunLayout(FOLDER), config, RunInput(FOLDER, "default"), tables, {}, {}, {}, {})


@pytest.mark.parametrize(("held", "said"), [
    ([True, True], "participants are reassigned within their fold only"), ([False, False], "fold is not in the model"),
])  # fmt: skip
def test_networks_of_folds_are_held_as_the_table_says(held, said):
    tables = {"performance": pd.DataFrame({"a": [1]}), "group_comparisons": pd.DataFrame({"fold_held": held})}
    assert said in methods._statistics(record(tables))


@pytest.mark.parametrize(("columns", "said"), [
    ("label + age", "with their class, age in the model, so that their effects are not removed as effects of the site"),
    ("", "training participants of each fold, and applied"),
])  # fmt: skip
def test_combat_uses_the_class_in_training_if_set_to(columns, said):
    run = record(
        {"site_effects": pd.DataFrame({"a": [1]})}, statistics={"harmonisation": {"training_covariates": columns}}
    )
    text = methods.further_analyses(run)
    assert said in text
    assert ("they are not used for the participants tested" in text) == bool(columns)


def test_folds_are_said_to_be_balanced_for_what_they_were():
    scans = pd.DataFrame({"participant_id": ["a"], "kept": [True], "label": ["AD"]})
    balance = pd.DataFrame({"variable": ["class", "age", "sex", "site"], "balanced": [True, True, True, False]})
    text = methods._data(record({"scans": scans, "split_balance": balance}))
    assert "into 5 folds, stratified by class and balanced for age and sex; no participant" in text
    assert "balanced" not in methods._data(record({"scans": scans}))


def test_covariates_are_in_words_and_named_once():
    table = pd.DataFrame({"covariates": ["fold", "fold, age, sex[T.M]", None]})
    text = methods.further_analyses(record({"associations": table}))
    assert "held constant: test fold, age and sex, each those that its row of the table names (Freedman" in text


def test_audit_names_only_places_that_were_there():
    table = pd.DataFrame({"compartment": ["fluid", "rim", "vessel"], "enrichment": [1.2, 0.9, float("nan")]})
    text = methods.further_analyses(record({"shortcuts": table}))
    assert "(fluid and rim of the mask)" in text
    assert methods.further_analyses(record({"shortcuts": table[2:]})) == ""


@pytest.mark.parametrize(("r", "said"), [(-0.4, True), (float("nan"), False)])
def test_change_within_participants_is_described_where_it_is_known(r, said):
    association = pd.DataFrame({"unit": ["participant", WITHIN], "r": [-0.3, r]})
    tables = {"performance": pd.DataFrame({"a": [1]}), "volume_association": association}
    text = methods._statistics(record(tables))
    assert ("[@rmcorr], the signs of participants' change in relevance being flipped." in text) == said


@pytest.mark.parametrize(("estimate", "said"), [(0.2, True), (float("nan"), False)])
def test_p_of_change_over_visits_is_not_the_model_s(estimate, said):
    text = methods.further_analyses(record({"trajectories": pd.DataFrame({"estimate": [estimate]})}))
    assert ("mean slopes were tested by flipping signs" in text) == said


@pytest.mark.parametrize(("settings", "said"), [
    ({}, ""),
    ({"kind": "guided", "regions": ["Hippocampus", "Amygdala"], "annotated": 0.1},
     " Maps of input times gradient were guided into the mask of Hippocampus and Amygdala (energy loss, with weight "
     "30, 10 % of the training participants) [@guidance]."),
    ({"kind": "distilled", "teacher": "run", "temperature": 2.0},
     " Networks learned the answers of a teacher, the network of the same fold of another run, instead of the labels "
     "(temperature 2), and its maps of Grad-CAM with weight 1 [@e2kd]."),
    ({"kind": "distilled", "teacher": "run", "map": "inherent", "scans": "other"},
     " Networks learned the answers of a teacher, the network of the same fold of another run, instead of the labels "
     "(temperature 1), and its maps of contributions of the network's own linear map with weight 1 [@e2kd]. They saw "
     "scans of an unrelated cohort, not those of the training part."),
    ({"kind": "distilled", "teacher": "run", "weight": 0.0, "mixup": 0.5},
     " Networks learned the answers of a teacher, the network of the same fold of another run, instead of the labels "
     "(temperature 1), and its maps of Grad-CAM with weight 0 [@e2kd]. Both saw each scan mixed with another (MixUp, "
     "α = 0.5) [@mixup]."),
    ({"kind": "distilled", "teacher": "run", "map": "attention-transfer", "weight": 10.0},
     " Networks learned the labels, and the maps of a teacher, the network of the same fold of another run: attention "
     "(squared features summed over channels) [@attentiontransfer], with weight 10."),
    ({"kind": "guided", "map": "evidence", "regions": ("brain",), "annotated": 0.1},
     " Maps of expected gradients [@expectedgradients] from the mean control were guided into the mask of brain "
     "(energy loss, with weight 30, 10 % of the training participants) [@guidance]."),
    ({"kind": "readable-gradients", "weight": 0.5},
     " The input gradient of the loss was kept like that of guided backpropagation (cosine, with weight 0.5) "
     "[@readable]."),
    ({"kind": "readable-gradients", "guided_alone": True},
     " Networks learned the task by the gradients of guided backpropagation alone [@readable]."),
])  # fmt: skip
def test_what_networks_learned_besides_the_task_is_said(settings, said):
    config = load_config(overrides={"objective": settings})
    assert kind_of(config).sentence(config) == said


def test_with_whom_the_network_was_trained_that_another_started_from_is_said():
    started = record({}, training={"from_run": "before"})
    started = dataclasses.replace(started, models={0: {"backbone_participants": ["sub-1", "sub-2"]}})
    assert "weights of a network that had been trained with 2 participants" in methods._fitting(started)
    assert "from the weights" not in methods._fitting(record({}))
