"""Offsets of logits that are fitted after training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn

from heatlas.pipeline.attribution.inherent.ledger import inherent_ledger
from heatlas.pipeline.models.dynamic.logits import LogitLayer
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.models.storage import load_model, save_model
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.training.centring import balanced_offsets, centre
from heatlas.pipeline.training.metrics import balanced_accuracy
from heatlas.pipeline.training.volumes import LabelledVolumes

SMALL = {"architecture": "bcos-simple", "channels": [2, 4], "strides": [3, 2]}


def test_the_difference_of_two_offsets_is_the_intercept_of_logistic_regression_with_the_slope_held():
    random = np.random.default_rng(0)
    targets = np.repeat([0, 1], [30, 10])
    logits = random.normal(0, 1, (40, 2)) + 5 * np.eye(2)[0]
    offsets = balanced_offsets(logits, targets)
    assert offsets.sum() == pytest.approx(0, abs=1e-9)
    odds = logits[:, 1] - logits[:, 0] + offsets[1] - offsets[0]
    residual = targets - 1 / (1 + np.exp(-odds))
    # where the derivative of the weighted loss by the intercept is 0, but for the penalty
    assert (residual * np.where(targets, 1 / 20, 1 / 60)).sum() == pytest.approx(0, abs=2e-3)
    moved = logits + np.array([7.0, -2.0])
    assert_allclose(np.diff(moved + balanced_offsets(moved, targets)), np.diff(logits + offsets), atol=1e-6)


def test_three_classes_get_back_the_constants_that_were_taken_from_true_log_odds():
    """Normal classes around three corners: the log odds are linear in the values, with a slope of mean / variance."""
    random = np.random.default_rng(1)
    targets = np.repeat([0, 1, 2], [3000, 1000, 200])  # how many there are of a class does not count
    values = random.normal(0, 1.5, (len(targets), 3)) + 2 * np.eye(3)[targets]
    constants = np.array([3.0, -1.0, -2.0])
    assert_allclose(balanced_offsets(values * 2 / 1.5**2 - constants, targets), constants, atol=0.15)


class Sums(nn.Module):
    """Gives the sum of a volume as the logit of class 1, less 100, and nothing for class 0."""

    def __init__(self) -> None:
        super().__init__()
        self.last = LogitLayer()

    def forward(self, x):
        total = x.flatten(1).sum(1)
        return self.last(torch.stack([torch.zeros_like(total), total - 100], 1))


def test_a_network_that_ranks_well_answers_well_afterwards():
    volumes = torch.arange(8.0).view(8, 1, 1, 1, 1).half()
    data = LabelledVolumes(volumes, torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]))
    network = Sums().eval()
    before = network(volumes.float())
    assert balanced_accuracy(data.targets.numpy(), before.numpy()) == 0.5
    offsets = centre(network, data, 3)
    after = network(volumes.float())
    assert balanced_accuracy(data.targets.numpy(), after.numpy()) == 1
    assert_allclose(after - before, np.tile(offsets, (8, 1)), atol=1e-5)
    assert offsets[1] - offsets[0] == pytest.approx(100 - 3.5, abs=0.1)


def test_offsets_are_stored_and_are_constants_in_the_ledger(tmp_path):
    config = load_config(overrides={"registration": {"resolution_mm": 4.0}, "model": SMALL})
    spec, files = configured_input(config), RunLayout(tmp_path).fold(0)
    torch.manual_seed(0)
    network = build_network(config.model, spec.shape, 2).eval()
    x = torch.rand(2, 1, *spec.shape)
    before = network(x).detach()
    offsets = centre(network, LabelledVolumes(x.half(), torch.tensor([0, 1])), 1)
    save_model(files, network, spec, ("CN", "AD"), {})
    found = load_model(files).model
    assert abs(offsets[1]) > 1e-3
    torch.testing.assert_close(found(x).detach() - before, torch.tensor([offsets] * 2), rtol=0, atol=1e-5)
    rest = nn.Sequential(*found.stages[1:])
    ledger = inherent_ledger(rest, lambda given: rest(given)[:, 1], found.stages[0](x))
    (constant,) = ledger.constants.values()
    assert_allclose(constant, offsets[1], rtol=1e-5)
    assert_allclose(ledger.residual, 0, atol=1e-5)


def test_where_there_is_no_constant_for_each_class_it_is_refused():
    data = LabelledVolumes(torch.zeros(2, 1, 1, 1, 1), torch.tensor([0, 1]))
    with pytest.raises(UsageError, match="no constant to its logits"):
        centre(nn.Sequential(nn.Flatten(), nn.Linear(1, 2)), data, 1)
    own = {"training": {"centre_logits": "training"}}
    with pytest.raises(UsageError, match="centre_logits needs classes and a B-cos or CoDA network"):
        load_config(overrides=own)
    with pytest.raises(UsageError, match="centre_logits needs classes"):
        load_config(overrides={**own, "model": SMALL, "cohort": {"target": "age"}})
    assert load_config(overrides={**own, "model": SMALL}).training.centre_logits == "training"
    unlabelled = {"model": SMALL, "objective": {"kind": "distilled", "teacher": "run", "scans": "other"}}
    with pytest.raises(UsageError, match=r'needs labels, which scans of objective.scans do not have: set "validation"'):
        load_config(overrides={**own, **unlabelled})
    load_config(overrides={"training": {"centre_logits": "validation"}, **unlabelled})
