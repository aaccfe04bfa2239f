"""Binary losses with off-targets, adaptive clipping, warm-up and calibration in the trainer."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional

from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.models.dynamic.logits import LogitLayer, bias_of_chance
from heatlas.pipeline.models.families.bcos.records import BcosSimpleConfig
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.run.config.settings import CohortConfig, TrainingConfig
from heatlas.pipeline.training.clipping import clip_units, unit_norms
from heatlas.pipeline.training.objectives.of_task import objective_of
from heatlas.pipeline.training.objectives.off_target import binary, binary_cross_entropy
from heatlas.pipeline.training.objectives.records import Batch, Context
from heatlas.pipeline.training.trainer import Resumption, learning_rate, train
from heatlas.pipeline.training.volumes import STORED, LabelledVolumes


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
    entropy = -(math.log(1 / classes) + (classes - 1) * math.log(1 - 1 / classes)) / classes
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
        ("usual", "off-target", "off-target"), ("usual", "cross-entropy", "cross-entropy"),
        ("cross-entropy", "off-target", "cross-entropy"),
        ("binary-cross-entropy", "cross-entropy", "binary-cross-entropy"),
    ):  # fmt: skip
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
