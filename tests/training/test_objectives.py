"""Losses: closed forms, off-targets, and what inherent networks learn by them."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise
from statistics import mean
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn
from torch.nn import functional

from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.dynamic import LogitLayer, bias_of_chance, calibrate, dynamic_weights
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.models.storage import load_model, save_model
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import AugmentationConfig, CohortConfig, TrainingConfig
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.training.answers import balanced_accuracy, with_corrected_gaps
from heatlas.pipeline.training.exact import balanced_offsets, centre
from heatlas.pipeline.training.objectives.of_task import (
    TargetScale,
    binary,
    binary_cross_entropy,
    class_weights,
    classification,
    mean_absolute_weights,
    objective_of,
    regression,
)
from heatlas.pipeline.training.objectives.records import Batch, Context
from heatlas.pipeline.training.steps import clip_units, in_processes, repeatable, unit_norms
from heatlas.pipeline.training.trainer import Resumption, learning_rate, train
from heatlas.pipeline.training.volumes import STORED, FurtherAugmentation, LabelledVolumes
from heatlas.studies.bcos.records import BcosSimpleConfig
from heatlas.studies.coda.records import CodaSWbConfig
from heatlas.studies.inherent import Inherent, inherent_ledger
from tests.training.pattern_scenes import CLASSES, SIDE, alignment, scenes, trained_coda

# Losses against closed forms, a planted number, and training that is shared or cut in pieces.

SHAPE = (12, 14, 10)
PLAIN = TrainingConfig(learning_rate=1e-2, max_epochs=2, min_epochs=1, patience=2, batch_size=6)
EVERYTHING = AugmentationConfig(
    affine_probability=1.0, bias_field_probability=1.0, contrast_probability=1.0, noise_probability=1.0,
    cutout_probability=1.0,
)  # fmt: skip


class KnownOutput(nn.Module):
    """A network whose output does not depend on its input."""

    def __init__(self, output):
        super().__init__()
        self.output = torch.tensor(output)

    def forward(self, volumes):
        return self.output


def batch_of(targets):
    return Batch(torch.zeros(len(targets), 1, 2, 2, 2), torch.tensor(targets), torch.arange(len(targets)))


def small_network(outputs: int) -> StagedModel:
    """Without batch normalisation and dropout, so that scans do not depend on each other."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        convolution = nn.Sequential(nn.Conv3d(1, 3, 3), nn.ReLU(), nn.MaxPool3d(3))
        return StagedModel([convolution, nn.Sequential(nn.Flatten(), nn.Linear(3 * 3 * 4 * 2, outputs))])


def numbered(count: int, seed: int) -> LabelledVolumes:
    """Volumes whose brightness in one place is the number, from 60 to 80."""
    random = np.random.default_rng(seed)
    ages = random.uniform(60, 80, count)
    values = random.normal(0.4, 0.05, (count, *SHAPE))
    values[:, 3:9, 4:10, 2:8] += ((ages - 70) / 40)[:, None, None, None]
    return LabelledVolumes(torch.from_numpy(values[:, None]).to(STORED), torch.tensor(ages, dtype=torch.float32))


def trained(folder, config, outputs=1, ranks=None, seed=3):
    training, validation = numbered(17, 1), numbered(8, 2)
    objective = regression("mse", TargetScale.of(training.targets))
    if outputs > 1:
        training, validation = (
            dataclasses.replace(part, targets=torch.bucketize(part.targets, torch.tensor([67.0, 73.0])))
            for part in (training, validation)
        )
        objective = classification(class_weights(training.targets, True, outputs))
    more = {} if ranks is None else {"ranks": ranks}
    with repeatable(torch.device("cpu"), seed, 1):
        resumption = Resumption(folder / "checkpoint.safetensors", "key")
        return train(small_network(outputs), training, validation, objective, config, seed, resumption, **more)


def test_cross_entropy_of_three_classes_is_the_weighted_mean_of_minus_log_softmax():
    logits, targets = [[1.0, 2.0, 0.5], [0.0, 0.0, 0.0], [3.0, -1.0, 1.0]], [2, 0, 0]
    weights = class_weights(torch.tensor(targets), True, 3)[[0, 2]]
    assert weights.tolist() == pytest.approx([3 / (3 * 2), 3 / (3 * 1)])
    objective = classification(torch.tensor([0.5, 1.0, 1.0]))
    loss, logged = objective.loss(KnownOutput(logits), batch_of(targets), Context())
    single = [-math.log(math.exp(row[k]) / sum(map(math.exp, row))) for row, k in zip(logits, targets, strict=True)]
    weighted = [single[0] * 1.0, single[1] * 0.5, single[2] * 0.5]
    assert loss.item() == pytest.approx(sum(weighted) / 3)
    measures = objective.measures(logged)
    assert measures.loss == pytest.approx(sum(weighted) / 2)  # weights of the scans add up to 2
    assert measures.score == pytest.approx((1 + 0) / 2)  # both of class 0 are found, that of class 2 is not


@pytest.mark.parametrize(
    ("kind", "expected"), [("mse", [0.25, 4.0, 0.0]), ("huber", [0.5 * 0.25, 2.0 - 0.5, 0.0])]
)  # errors of 0.5, 2 and 0 standard deviations
def test_losses_of_a_number_are_in_standard_deviations(kind, expected):
    objective = regression(kind, TargetScale(70.0, 10.0))
    loss, logged = objective.loss(KnownOutput([[0.5], [3.0], [-1.0]]), batch_of([70.0, 80.0, 60.0]), Context())
    assert logged["loss"].tolist() == pytest.approx(expected)
    assert loss.item() == pytest.approx(sum(expected) / 3)
    assert objective.measures(logged).score == pytest.approx((5 + 20 + 0) / 3)  # MAE in years


def test_a_task_has_its_objective():
    config = TrainingConfig(regression_loss="huber")
    number = objective_of(task_of(CohortConfig(target="age")), config, torch.tensor([60.0, 80.0]))
    assert (number.name, number.facts["target_mean"]) == ("huber", 70.0)
    several = objective_of(task_of(CohortConfig(classes=("CN", "MCI", "AD"))), config, torch.tensor([0, 1, 2, 2]))
    assert several.facts["class_weights"] == pytest.approx([4 / 3, 4 / 3, 2 / 3])


def test_a_planted_number_is_predicted_better_than_by_the_mean(tmp_path):
    config = dataclasses.replace(PLAIN, max_epochs=25, min_epochs=20, patience=25)
    training, test = numbered(17, 1), numbered(30, 9)
    result = trained(tmp_path, config)
    model = small_network(1)
    model.load_state_dict(result.weights)
    scale = TargetScale.of(training.targets)
    with torch.no_grad():
        predicted = model.eval()(test.volumes.float())[:, 0] * scale.sd + scale.mean
    errors = (predicted - test.targets).abs().mean()
    of_mean = (test.targets - test.targets.mean()).abs().mean()
    assert errors < 0.6 * of_mean
    best = result.history[result.selection.best_epoch - 1]
    assert best.validation_score == min(record.validation_score for record in result.history[20:] or result.history)


def test_a_bcos_network_learns_a_number_and_shares_it_out(tmp_path):
    """The output, in standard deviations, is the sum of the contributions and the constant that starts the logits."""
    config = dataclasses.replace(PLAIN, max_epochs=8, min_epochs=8, patience=8)
    training, test = numbered(17, 1), numbered(30, 9)
    scale = TargetScale.of(training.targets)
    settings = BcosSimpleConfig(channels=(4, 6), strides=(2, 2), norm="none")
    with repeatable(torch.device("cpu"), 1, 1):
        model = build_network(settings, tuple(training.volumes.shape[2:]), 1)
        resumption = Resumption(tmp_path / "checkpoint.safetensors", "key")
        result = train(model, training, numbered(9, 2), regression("mse", scale), config, 1, resumption)
    model.load_state_dict(result.weights)
    volumes = test.volumes.float()
    with torch.no_grad():
        answers = model.eval()(volumes)[:, 0]
    errors = (answers * scale.sd + scale.mean - test.targets).abs().mean()
    assert errors < 0.8 * (test.targets - test.targets.mean()).abs().mean()
    values = attribute(model.double(), volumes[:2].double(), 0, Inherent(compare="nothing")).values
    (logits,) = (module for module in model.modules() if isinstance(module, LogitLayer))
    torch.testing.assert_close(
        values.flatten(1).sum(1), model(volumes[:2].double())[:, 0] - logits.bias, rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize("outputs", [1, 3])
def test_accumulated_gradients_are_those_of_one_large_batch(tmp_path, outputs):
    whole = trained(tmp_path / "a", PLAIN, outputs)
    parts = trained(tmp_path / "b", dataclasses.replace(PLAIN, batch_size=2, accumulate=3), outputs)
    for name, value in whole.weights.items():
        torch.testing.assert_close(parts.weights[name], value, rtol=0, atol=2e-5)


def _as_one_of_two(ranks, folder):
    result = trained(folder, PLAIN, 3, ranks)
    torch.save(dict(result.weights), folder / f"rank-{ranks.rank}.pt")


@pytest.mark.ci
def test_two_processes_train_as_one(tmp_path):
    # Adam divides by the size of a gradient, so that rounding of sums in another order shows up to about 1e-5.
    alone = trained(tmp_path / "alone", PLAIN, 3)
    shared = tmp_path / "shared"
    shared.mkdir()
    in_processes(2, torch.device("cpu"), _as_one_of_two, shared)
    first, second = (torch.load(shared / f"rank-{rank}.pt") for rank in (0, 1))
    for name, value in alone.weights.items():
        torch.testing.assert_close(first[name], value, rtol=0, atol=2e-5)
        assert torch.equal(first[name], second[name])


def test_bfloat16_trains_close_to_float32_and_not_the_same(tmp_path):
    full = trained(tmp_path / "a", PLAIN)
    mixed = trained(tmp_path / "b", dataclasses.replace(PLAIN, precision="bfloat16-mixed"))
    assert mixed.history != full.history
    assert mixed.history[-1].validation_loss == pytest.approx(full.history[-1].validation_loss, rel=0.1)
    assert all(value.dtype == torch.float32 for value in mixed.weights.values())


def test_further_augmentation_depends_on_seed_epoch_and_scan_alone():
    volumes = torch.rand(2, 1, 20, 22, 18)
    volumes[:, :, :4] = 0.0
    once = FurtherAugmentation(EVERYTHING, 3, 1)(volumes, np.array([5, 8]))
    alone = FurtherAugmentation(EVERYTHING, 3, 1)(volumes[1:], np.array([8]))
    assert torch.equal(once[1:], alone)  # whatever the batch
    for seed, epoch, scan in ((4, 1, 8), (3, 2, 8), (3, 1, 9)):
        assert not torch.equal(FurtherAugmentation(EVERYTHING, seed, epoch)(volumes[1:], np.array([scan])), alone)
    assert once.shape == volumes.shape
    assert once.isfinite().all()


@pytest.mark.parametrize("name", ["bias_field", "contrast", "noise", "cutout"])
def test_each_transform_changes_the_brain_and_leaves_the_background(name):
    volumes = torch.rand(1, 1, 20, 22, 18) * 0.9 + 0.1
    volumes[:, :, :4] = 0.0
    changed = FurtherAugmentation(AugmentationConfig(**{f"{name}_probability": 1.0}), 3, 1)(volumes, np.array([0]))
    assert not torch.equal(changed, volumes)
    assert (changed[:, :, :4] == 0).all()


def test_further_augmentation_is_off_by_default():
    volumes = torch.rand(1, 1, 4, 4, 4)
    assert FurtherAugmentation(AugmentationConfig(), 3, 1)(volumes, np.array([0])) is volumes


def gaps(intercepts):
    """Three folds whose predictions lie on a line of slope 1/2, moved up by a number per fold."""
    rows = [
        {"participant_id": f"sub-{fold}{n}", "fold": fold, "target": 50.0 + 10 * n, "prediction": 25 + 5 * n + 35 + up}
        for fold, up in enumerate(intercepts)
        for n in range(4)
    ]
    return with_corrected_gaps(pd.DataFrame(rows).assign(corrected_gap=np.nan))


def test_the_bias_of_a_gap_is_taken_out_by_the_other_folds():
    frame = gaps([0.0, 0.0, 0.0])
    assert frame["corrected_gap"].to_numpy() == pytest.approx(0.0, abs=1e-9)
    assert frame["correction_slope"].to_numpy() == pytest.approx(0.5)
    # A fold that is 6 years off stays so, and moves the lines of the other folds, not its own.
    moved = gaps([6.0, 0.0, 0.0])
    assert moved.loc[moved["fold"] == 0, "corrected_gap"].to_numpy() == pytest.approx(6.0)
    assert moved.loc[moved["fold"] == 0, "correction_intercept"].to_numpy() == pytest.approx(35.0)
    assert moved.loc[moved["fold"] == 1, "corrected_gap"].to_numpy() == pytest.approx(-3.0)


def test_one_fold_has_no_corrected_gap():
    frame = gaps([0.0])
    assert frame["corrected_gap"].isna().all()


# Binary losses with off-targets, offsets of logits, adaptive clipping, warm-up and calibration.


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


# Inherent networks learn patterns in noise: exponents localise B-cos maps, temperatures align CoDA weights.


def learning_trained(b: float, seed: int, steps: int) -> nn.Sequential:
    """A network trained as `trained_coda` trains CoDA networks."""
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(100 + seed)
    layers: dict[str, Any] = {"channels": (16, 16, 16), "strides": (1, 2, 1), "stem_kernel": 3, "head": "average"}
    config = BcosSimpleConfig(**layers, b=b, max_out=2, norm="none")
    model = build_network(config, (SIDE,) * 3, CLASSES)
    calibrate(model, scenes(32, draw)[0])
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(steps):
        volumes, classes, _ = scenes(32, draw)
        optimiser.zero_grad()
        binary_cross_entropy(model(volumes), classes).mean().backward()
        optimiser.step()
    return nn.Sequential(*model.stages).eval()


@pytest.mark.slow
@pytest.mark.parametrize("b", [1.0, 1.5, 2.0, 2.5])
def test_patterns_are_learnt_for_every_exponent_and_maps_add_up(b):
    model = learning_trained(b, 1, 300)
    volumes, classes, _ = scenes(128, torch.Generator().manual_seed(7))
    assert float((model(volumes).argmax(1) == classes).float().mean()) >= 0.95
    pairs, rest = model[0](volumes[:4]), model[1:]
    found = dynamic_weights(rest, lambda x: rest(x)[:, 2], pairs) * pairs
    bias = model[-1][-1].bias
    error = found.double().flatten(1).sum(1) - (rest(pairs)[:, 2] - bias).double().detach()
    assert float((error.abs() / found.double().abs().flatten(1).sum(1)).max()) < 1e-5


@pytest.mark.slow
def test_a_larger_exponent_localises_better():
    linear, aligned = ([alignment(learning_trained(b, seed, 300)) for seed in range(2)] for b in (1.0, 2.5))
    assert min(one[0] for one in (*linear, *aligned)) > 0.9
    assert mean(one[2] for one in aligned) > mean(one[2] for one in linear) + 0.25  # a quarter is chance


@pytest.mark.slow
def test_a_higher_temperature_aligns_weights_and_localises():
    cold, warm = ([alignment(trained_coda(t, seed, 300)) for seed in range(3)] for t in (0.3, 3.0))
    assert min(one[0] for one in warm) > 0.9
    for measure in (1, 2):
        assert sum(one[measure] for one in warm) > sum(one[measure] for one in cold)
    assert min(one[2] for one in warm) > 0.4  # a quarter by chance


@pytest.mark.slow
def test_coda_networks_of_every_bound_and_of_few_ranks():
    """The share in the right scene, a quarter by chance, rises from L2 to SQ to WB; accuracy hardly knows the rank."""
    l2, sq, wb = (alignment(trained_coda(1.0, 0, 300, bound=bound)) for bound in ("l2", "sq", "wb"))
    assert sq[2] > l2[2] + 0.05
    assert wb[2] > sq[2] + 0.1
    assert min(one[0] for one in (l2, sq, wb, alignment(trained_coda(1.0, 0, 300, rank=2)))) >= 0.95


def test_training_with_the_penalty_gives_smaller_weights(tmp_path):
    random = torch.Generator().manual_seed(1)
    volumes, targets = torch.rand(8, 6, 7, 5, generator=random), torch.arange(8) % 2
    volumes[targets == 1, :3] *= 0.5
    data = LabelledVolumes(volumes[:, None].to(STORED), targets)
    sizes = []
    for penalty in (0.0, 30.0):
        config = TrainingConfig(
            learning_rate=1e-2, max_epochs=4, min_epochs=1, batch_size=4, flip_probability=0.0, max_shift_voxels=0,
            weight_penalty=penalty,
        )  # fmt: skip
        torch.manual_seed(3)
        settings = CodaSWbConfig(units=(4,), ranks=(3, 3), kernels=(3, 1), strides=(2, 1))
        model = build_network(settings, (6, 7, 5), 2)
        objective = objective_of(task_of(CohortConfig()), config, targets, "off-target")
        done = train(model, data, data, objective, config, 5, Resumption(tmp_path / f"{penalty}", "key"))
        assert len(done.history) == 4
        assert float(model.stages[-1][-1].temperature) != 1  # set from data before the first step
        sizes.append(float(mean_absolute_weights(model.eval(), volumes[:, None], targets).detach().mean()))
    assert sizes[1] < 0.9 * sizes[0]
