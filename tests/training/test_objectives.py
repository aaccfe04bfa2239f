"""Losses against closed forms, a planted number, and training that is shared or cut in pieces."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.dynamic import LogitLayer
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.run.config.settings import AugmentationConfig, CohortConfig, TrainingConfig
from heatlas.pipeline.training.answers import with_corrected_gaps
from heatlas.pipeline.training.objectives.of_task import (
    TargetScale,
    class_weights,
    classification,
    objective_of,
    regression,
)
from heatlas.pipeline.training.objectives.records import Batch, Context
from heatlas.pipeline.training.steps import in_processes, repeatable
from heatlas.pipeline.training.trainer import Resumption, train
from heatlas.pipeline.training.volumes import STORED, FurtherAugmentation, LabelledVolumes
from heatlas.studies.bcos.records import BcosSimpleConfig
from heatlas.studies.inherent import Inherent

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
