"""Binary losses with off-targets, offsets of logits, adaptive clipping, warm-up and calibration."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn
from torch.nn import functional

from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.models.dynamic import LogitLayer, bias_of_chance
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.models.storage import load_model, save_model
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import CohortConfig, TrainingConfig
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.training.answers import balanced_accuracy
from heatlas.pipeline.training.exact import balanced_offsets, centre
from heatlas.pipeline.training.objectives.of_task import binary, binary_cross_entropy, objective_of
from heatlas.pipeline.training.objectives.records import Batch, Context
from heatlas.pipeline.training.steps import clip_units, unit_norms
from heatlas.pipeline.training.trainer import Resumption, learning_rate, train
from heatlas.pipeline.training.volumes import STORED, LabelledVolumes
from heatlas.studies.bcos.records import BcosSimpleConfig
from heatlas.studies.inherent import inherent_ledger


class Answer(nn.Module):
    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, volumes):
        return self.logits


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_no_evidence_is_the_best_answer_for_a_wrong_class(classes):
    evidence = torch.zeros(1, classes, dtype=torch.float64, requires_grad=True)
    logits = LogitLayer(1.0, bias_of_chance(classes)).double()(evidence)
    (slope,) = torch.autograd.grad(binary_cross_entropy(logits, torch.tensor([0]), 1 / classes).sum(), evidence)
    assert float(slope[0, 1:].abs().max()) < 1e-8
    assert float(slope[0, 0]) < -0.01
    best = torch.full((1, classes), -math.log(classes - 1), dtype=torch.float64)
    best[0, 0] = 60
    entropy = -(math.log(1 / classes) / classes + (1 - 1 / classes) * math.log(1 - 1 / classes))
    floor = binary_cross_entropy(best, torch.tensor([0]), 1 / classes)
    torch.testing.assert_close(float(floor), (classes - 1) / classes * entropy, rtol=1e-9, atol=0)


def test_soft_targets_and_the_plain_loss():
    logits = torch.tensor([[1.0, -2.0, 0.5], [0.3, 0.2, -1.0]], dtype=torch.float64)
    soft = torch.tensor([[0.7, 0.3, 0.0], [0.0, 0.5, 0.5]], dtype=torch.float64)
    p = logits.sigmoid()
    plain = -(soft * p.log() + (1 - soft) * (1 - p).log()).mean(1)
    torch.testing.assert_close(binary_cross_entropy(logits, soft), plain, rtol=1e-12, atol=0)
    raised = soft.clamp(min=1 / 3)
    off = -(raised * p.log() + (1 - raised) * (1 - p).log()).mean(1)
    torch.testing.assert_close(binary_cross_entropy(logits, soft, 1 / 3), off, rtol=1e-12, atol=0)


def test_classes_are_weighted_and_tables_hold_the_plain_loss():
    weights, targets = torch.tensor([0.75, 1.5]), torch.tensor([0, 0, 1])
    logits = [[1.0, 0.0], [2.0, 3.0], [-1.0, 0.5]]
    model, batch = Answer(logits), Batch(torch.zeros(3, 1, 2, 2, 2), targets, torch.arange(3))
    each = {
        least: functional.binary_cross_entropy_with_logits(
            model.logits, functional.one_hot(targets, 2).float().clamp(min=least), reduction="none"
        ).mean(1)
        for least in (0.0, 0.5)
    }
    for off in (True, False):
        objective = binary(weights, off)
        loss, logged = objective.loss(model, batch, Context())
        torch.testing.assert_close(loss, (each[0.5 * off] * weights[targets]).mean())
        measures = objective.measures({name: value.detach() for name, value in logged.items()})
        assert measures.loss == pytest.approx(float((each[0.0] * weights[targets]).sum() / weights[targets].sum()))
        assert measures.score == pytest.approx(0.75)


def test_the_architecture_says_which_loss_is_usual():
    task, targets = task_of(CohortConfig()), torch.tensor([0, 1])
    for asked, usual, name in (
        ("usual", "off-target", "off-target"),
        ("usual", "cross-entropy", "cross-entropy"),
        ("cross-entropy", "off-target", "cross-entropy"),
        ("binary-cross-entropy", "cross-entropy", "binary-cross-entropy"),
    ):
        assert objective_of(task, TrainingConfig(loss=asked), targets, usual).name == name


def test_no_unit_changes_by_more_than_its_share():
    torch.manual_seed(2)
    parameters = [nn.Parameter(torch.randn(shape)) for shape in [(3, 2, 3, 3, 3), (4, 5), (6,), (2, 3)]]
    parameters[3].data *= 0
    for weight in parameters:
        weight.grad = 5 * torch.randn_like(weight)
        weight.grad[0] *= 1e-5
    before = [weight.grad.clone() for weight in parameters]
    clip_units(parameters, 0.01)
    for weight, earlier in zip(parameters, before, strict=True):
        vector = weight.dim() == 1
        rows = [slice(None)] if vector else range(len(weight))
        for row in rows:
            limit = 0.01 * max(float(weight[row].norm()), 1e-3)
            size, was = float(weight.grad[row].norm()), float(earlier[row].norm())
            assert size == pytest.approx(min(was, limit), rel=1e-5)
            torch.testing.assert_close(weight.grad[row] / size, earlier[row] / was)
    assert unit_norms(parameters[0]).shape == (3, 1, 1, 1, 1)


def test_the_learning_rate_rises_and_falls():
    config = TrainingConfig(
        learning_rate=1e-3, learning_rate_schedule="cosine", max_epochs=30, min_epochs=1, warmup_epochs=5
    )
    rates = [learning_rate(config, epoch) for epoch in range(1, 31)]
    assert rates[:6] == pytest.approx([1e-3 * step / 6 for step in range(1, 7)])
    assert all(after < before for before, after in pairwise(rates[5:]))
    assert rates[-1] < 1e-5


@pytest.mark.parametrize("b", [1.0, 2.0])
def test_training_begins_with_signals_of_a_useful_size_and_resumes_with_them(tmp_path, b):
    random = torch.Generator().manual_seed(1)
    volumes = torch.rand(8, 6, 7, 5, generator=random)
    targets = torch.arange(8) % 2
    volumes[targets == 1, :3] *= 0.5
    data = LabelledVolumes(volumes[:, None].to(STORED), targets)
    config = TrainingConfig(
        learning_rate=3e-3, max_epochs=3, min_epochs=1, batch_size=4, flip_probability=0.0, max_shift_voxels=0,
        clip_gradients=0.01,
    )  # fmt: skip
    objective = objective_of(task_of(CohortConfig()), config, targets, "off-target")

    def run(name, epochs):
        torch.manual_seed(3)
        model = build_network(BcosSimpleConfig(channels=(4, 4, 4), strides=(1, 1, 1), b=b, norm="none"), (6, 7, 5), 2)
        some = TrainingConfig(**{**vars(config), "max_epochs": epochs})
        return train(model, data, data, objective, some, 5, Resumption(tmp_path / name, "key"))

    straight = run("straight", 3)
    assert straight.history[0].train_loss < 1.5
    gains = [value for name, value in straight.weights.items() if name.endswith("gain")]
    assert len(gains) == 3
    assert all(float(gain) != 1 for gain in gains)
    run("cut", 2)
    resumed = run("cut", 3)
    assert resumed.history == straight.history
    assert all(torch.equal(value, resumed.weights[name]) for name, value in straight.weights.items())


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
