"""Control runs see no image or true label, and say so wherever their numbers are."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from heatlas.atlases.brain_box import Box
from heatlas.pipeline.models.inputs import NetworkInput, configured_input, to_network
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.training.control import control_of
from tests.training.run_of_folds import CONFIG, train_all, write_registered

BINARISED = dataclasses.replace(CONFIG, training=dataclasses.replace(CONFIG.training, control="binarised"))
SPEC = NetworkInput(4.0, Box((3, 8, 5), (31, 40, 33)), "binary-brain")


def test_binarised_network_sees_the_mask_and_nothing_of_the_image():
    random = np.random.default_rng(0)
    shape = SPEC.template_grid.shape
    mask = random.random(shape) < 0.7
    one, other = (to_network(random.normal(60, 9, shape), mask.astype(float), SPEC) for _ in range(2))
    np.testing.assert_array_equal(one, mask[3:34, 8:48, 5:38])
    assert one.dtype == np.float32
    np.testing.assert_array_equal(one, other)


def test_binarised_refuses_the_scans_that_the_real_run_refuses():
    shape = SPEC.template_grid.shape
    with pytest.raises(BadInputError, match="mask is empty"):
        to_network(np.ones(shape), np.zeros(shape), SPEC)


def test_the_setting_reaches_the_network_and_unknown_ones_are_refused():
    assert configured_input(BINARISED).normalisation == "binary-brain"
    assert configured_input(CONFIG).normalisation == "minmax-brain"
    with pytest.raises(UsageError, match=r"training\.control = 'binarized'"):
        load_config(overrides={"training": {"control": "binarized"}})


def test_a_control_run_says_so_in_its_models_and_predictions_and_is_no_continuation(tmp_path):
    layout = RunLayout(tmp_path)
    write_registered(layout)
    train_all(layout)
    real = read_table(layout.group / "predictions.tsv")
    assert set(real["control"]) == {"none"}
    assert real.groupby("fold")["logit_positive"].nunique().tolist() == [3, 2]

    assert {outcome.status for outcome in train_all(layout, config=BINARISED)} == {"done"}
    control = read_table(layout.group / "predictions.tsv")
    assert set(control["control"]) == {"binarised"}
    assert control.groupby("fold")["logit_positive"].nunique().tolist() == [1, 1]  # all made with one mask
    files = layout.fold(0)
    assert json.loads(files.description.read_text())["control"] == "binarised"
    assert load_model(files).input.normalisation == "binary-brain"

    shuffled = dataclasses.replace(CONFIG, cohort=dataclasses.replace(CONFIG.cohort, shuffle_labels=True))
    assert {outcome.status for outcome in train_all(layout, config=shuffled)} == {"done"}
    assert set(read_table(layout.group / "predictions.tsv")["control"]) == {control_of(shuffled)} == {"shuffled labels"}
