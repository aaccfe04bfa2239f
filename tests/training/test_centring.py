"""Offsets of logits that are fitted after training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.linear_model import LogisticRegression
from torch import nn

from heatlas.pipeline.models.dynamic.logits import LogitLayer
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.training.centring import balanced_offsets, centre
from heatlas.pipeline.training.metrics import balanced_accuracy
from heatlas.pipeline.training.volumes import LabelledVolumes


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


def test_three_classes_get_the_offsets_of_a_multinomial_regression_on_the_logits():
    random = np.random.default_rng(1)
    targets = np.repeat([0, 1, 2], 200)
    logits = random.normal(0, 1.5, (600, 3)) + 2 * np.eye(3)[targets]  # the true log odds, up to the constants
    logits = logits * 2 / 1.5**2 + np.array([3.0, 0.0, -1.0])
    fit = LogisticRegression(C=1e9, tol=1e-10, max_iter=5000).fit(logits, targets)
    assert_allclose(fit.coef_ - fit.coef_.mean(0), np.eye(3) - 1 / 3, atol=0.25)  # so its slopes are nearly ours
    wanted = fit.intercept_ - fit.intercept_.mean()
    assert_allclose(balanced_offsets(logits, targets), wanted, atol=0.6)
    assert_allclose(balanced_offsets(logits, targets), [-5 / 3 * 1.4, 2 / 3, 5 / 3], atol=1.0)


class Sums(nn.Module):
    """Gives the sum of a volume as the logit of class 1, less 100, and nothing for class 0."""

    def __init__(self) -> None:
        super().__init__()
        self.last = LogitLayer(outputs=2)

    def forward(self, x):
        total = x.flatten(1).sum(1)
        return self.last(torch.stack([torch.zeros_like(total), total - 100], 1))


def test_a_network_that_ranks_well_answers_well_afterwards():
    volumes = torch.arange(8.0).view(8, 1, 1, 1).to(torch.float16)
    data = LabelledVolumes(volumes, torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]))
    network = Sums().eval()
    before = network(volumes[:, None].float())
    assert balanced_accuracy(data.targets.numpy(), before.numpy()) == 0.5
    centre(network, [data], 3)
    after = network(volumes[:, None].float())
    assert balanced_accuracy(data.targets.numpy(), after.numpy()) == 1
    assert_allclose((after - before).diff(dim=1), 100 - 3.5, atol=0.1)
    assert_allclose((after - before).std(0), 0, atol=1e-5)


def test_what_has_no_constant_for_each_class_is_refused():
    data = LabelledVolumes(torch.zeros(2, 1, 1, 1), torch.tensor([0, 1]))
    with pytest.raises(UsageError, match="no constant for each class"):
        centre(nn.Sequential(nn.Flatten(), nn.Linear(1, 2), LogitLayer()), [data], 1)
    with pytest.raises(UsageError, match="centre_logits needs a B-cos or CoDA network"):
        load_config(overrides={"training": {"centre_logits": True}})
