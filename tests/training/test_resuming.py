"""Training that is augmented, stopped by rule, and resumed."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heatlas.pipeline.run.config.settings import TrainingConfig
from heatlas.pipeline.training.answers import balanced_accuracy, outcome, positive_probability, predicted_class
from heatlas.pipeline.training.objectives.of_task import class_weights, classification
from heatlas.pipeline.training.progress import (
    BestEpoch,
    Checkpoint,
    EpochRecord,
    checkpoint_path,
    read_checkpoint,
    remove_checkpoint,
    write_checkpoint,
)
from heatlas.pipeline.training.steps import repeatable
from heatlas.pipeline.training.trainer import Resumption, train
from heatlas.pipeline.training.volumes import augment, flip_and_shift
from tests.training.planted import QUICK, planted_volumes, small_network

REPOSITORY = Path(__file__).parents[2]


def run(path, key="key", config=QUICK):
    with repeatable(torch.device("cpu"), 1, 1):
        training = planted_volumes(14, 1)
        objective = classification(class_weights(training.targets, balance=True))
        return train(small_network(), training, planted_volumes(8, 2), objective, config, 43, Resumption(path, key))


def assert_same(one, other):
    assert one.selection == other.selection
    assert one.history == other.history
    assert set(one.weights) == set(other.weights)
    assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    path = checkpoint_path(tmp_path_factory.mktemp("unbroken"))
    return run(path), read_checkpoint(path, "key")


@pytest.mark.ci
@pytest.mark.parametrize("deadly_batch", [pytest.param(7, marks=pytest.mark.slow), 19])
def test_killed_training_continues_to_the_same_bits(tmp_path, unbroken, deadly_batch):
    path = checkpoint_path(tmp_path)
    command = [sys.executable, "-m", "tests.training.killed_training", str(path), str(deadly_batch)]
    assert subprocess.run(command, cwd=REPOSITORY, timeout=120).returncode == -signal.SIGKILL
    # 14 scans are 4 batches an epoch: killed in epoch 2 or 5, with the epoch before on disk.
    known = read_checkpoint(path, "key")
    assert known.selection.epoch == (deadly_batch - 1) // 4
    assert known.history == unbroken[0].history[: known.selection.epoch]
    result = run(path)
    assert_same(result, unbroken[0])
    # Not only the weights kept: the last weights and the optimiser, too.
    last, expected = read_checkpoint(path, "key"), unbroken[1]
    for name, value in expected.weights.items():
        assert torch.equal(last.weights[name], value)
    for index, values in expected.moments.items():
        for name, value in values.items():
            assert torch.equal(last.moments[index][name], value)


def test_a_finished_training_is_not_trained_on(tmp_path, unbroken):
    path = checkpoint_path(tmp_path)
    run(path)
    stamp = path.stat().st_mtime_ns
    assert_same(run(path), unbroken[0])
    assert path.stat().st_mtime_ns == stamp


def test_a_checkpoint_of_another_training_is_not_continued(tmp_path, unbroken):
    path = checkpoint_path(tmp_path)
    other = run(path, key="other", config=dataclasses.replace(QUICK, learning_rate=1e-3))
    assert other.history != unbroken[0].history
    assert_same(run(path), unbroken[0])


def example():
    record = EpochRecord(1, 0.7, 0.5, 0.1 + 0.2, 0.625)
    tensors = {"a.weight": torch.rand(3, 2, 2, 2, 2).contiguous(memory_format=torch.channels_last_3d)}
    moments = {0: {"step": torch.tensor(7.0), "exp_avg": torch.rand(3, 2)}, 1: {"step": torch.tensor(7.0)}}
    return Checkpoint(BestEpoch().after(0.3, 0.5, QUICK), (record,), tensors, {}, moments)


def test_checkpoint_round_trip(tmp_path):
    path, saved = tmp_path / "fold-0" / "checkpoint.safetensors", example()
    write_checkpoint(path, "key", saved)
    read = read_checkpoint(path, "key")
    assert (read.selection, read.history, read.best_weights) == (saved.selection, saved.history, {})
    assert torch.equal(read.weights["a.weight"], saved.weights["a.weight"])
    assert {index: set(values) for index, values in read.moments.items()} == {0: {"step", "exp_avg"}, 1: {"step"}}
    assert torch.equal(read.moments[0]["exp_avg"], saved.moments[0]["exp_avg"])
    assert read.moments[0]["step"].shape == ()


def test_a_damaged_or_foreign_checkpoint_is_as_none(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    assert read_checkpoint(path, "key") is None
    write_checkpoint(path, "key", example())
    assert read_checkpoint(path, "other") is None
    path.write_bytes(path.read_bytes()[:-9])
    assert read_checkpoint(path, "key") is None
    path.write_bytes(b"")
    assert read_checkpoint(path, "key") is None


def test_removing_takes_half_written_files_too(tmp_path):
    path = checkpoint_path(tmp_path)
    write_checkpoint(path, "key", example())
    path.with_name(f".{path.name}.tmp").write_bytes(b"half")
    remove_checkpoint(path)
    assert not list(tmp_path.iterdir())
    remove_checkpoint(path)


# Which epoch is kept: metrics of an epoch, the best by rule, and when training stops.


def test_balanced_accuracy_by_hand():
    targets = np.array([0, 0, 0, 0, 1, 1])
    logits = np.array([[1, 0], [1, 0], [1, 0], [0, 1], [0, 1], [1, 0]], float)
    # Specificity 3/4, sensitivity 1/2.
    assert balanced_accuracy(targets, logits) == pytest.approx(0.625)


def test_equal_logits_are_negative():
    np.testing.assert_array_equal(predicted_class(np.array([[2.0, 2.0], [1.0, 1.5]])), [0, 1])


def test_probability_is_softmax_without_overflow():
    logits = np.array([[0.3, -1.2], [0.0, 0.0], [-2000.0, 2000.0], [2000.0, -2000.0]], np.float32)
    probability = positive_probability(logits)
    z = logits[:2].astype(float)
    np.testing.assert_allclose(probability[:2], np.exp(z[:, 1]) / np.exp(z).sum(1), rtol=1e-14)
    assert probability[1] == 0.5
    np.testing.assert_array_equal(probability[2:], [1, 0])
    np.testing.assert_allclose(positive_probability(-logits), 1 - probability, atol=1e-15)


@pytest.mark.parametrize(("target", "predicted", "cell"), [(1, 1, "TP"), (1, 0, "FN"), (0, 1, "FP"), (0, 0, "TN")])
def test_outcome(target, predicted, cell):
    assert outcome(target, predicted) == cell


def selection_run(losses, accuracies, **settings):
    """Feed epochs until the training ends; returns the last state and the epochs used."""
    config = TrainingConfig(**settings)
    state = BestEpoch()
    for loss, accuracy in zip(losses, accuracies, strict=True):
        if state.finished(config):
            break
        state = state.after(loss, accuracy, config)
    return state, config


def test_stops_after_patience_epochs_without_a_lower_loss():
    losses = [5, 4, 3, 2, 2.5, 2.1, 2.0, 1.0]
    state, config = selection_run(losses, [0.5] * 8, min_epochs=2, max_epochs=50, patience=3)
    # Epochs 3 and 4 lower the loss; 5, 6 and 7 (an equal loss) do not.
    assert state.epoch == 7
    assert state.stopped_early(config)
    assert (state.lowest_loss, state.best_epoch) == (2, 4)


def test_early_epochs_do_not_count():
    losses = [0.1, 0.2, 9, 8, 7, 6]
    state, config = selection_run(losses, [1.0, 0.9, 0.5, 0.5, 0.5, 0.5], min_epochs=2, max_epochs=6, patience=2)
    assert state.epoch == 6
    assert not state.stopped_early(config)
    assert state.finished(config)
    assert (state.lowest_loss, state.best_epoch, state.best_score) == (6, 6, 0.5)


def test_best_epoch_by_accuracy_then_loss_then_first():
    losses = [9, 3.0, 2.0, 4.0, 2.0, 1.0]
    accuracies = [1, 0.7, 0.8, 0.8, 0.8, 0.7]
    state, _ = selection_run(losses, accuracies, min_epochs=1, max_epochs=6, patience=10)
    assert (state.best_epoch, state.best_score, state.best_loss) == (3, 0.8, 2.0)


def test_an_accuracy_peak_is_kept_though_the_loss_goes_on_falling():
    state, _ = selection_run([5, 4, 3, 2], [0.5, 0.9, 0.6, 0.6], min_epochs=1, max_epochs=4, patience=2)
    assert state.best_epoch == 2


def test_the_last_epoch_counts_even_if_it_is_an_early_one():
    state, _ = selection_run([3, 2], [0.6, 0.5], min_epochs=2, max_epochs=2, patience=1)
    assert (state.epoch, state.best_epoch) == (2, 2)


def test_earliest_possible_stop_of_the_founding_settings():
    state, config = selection_run([1.0] * 100, [0.5] * 100)
    # The first epoch that counts (16) sets the mark; the 8 after it do not lower it.
    assert (state.epoch, state.stopped_early(config), state.best_epoch) == (24, True, 16)


@given(
    numbers=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=30, max_size=30),
    min_epochs=st.integers(1, 10),
    extra=st.integers(0, 15),
    patience=st.integers(1, 6),
)
def test_against_a_definition_over_the_whole_history(numbers, min_epochs, extra, patience):
    max_epochs = min_epochs + extra
    losses, accuracies = [a / 5 for a, _ in numbers], [b / 5 for _, b in numbers]
    state, _ = selection_run(losses, accuracies, min_epochs=min_epochs, max_epochs=max_epochs, patience=patience)

    counted = [e for e in range(1, max_epochs + 1) if e > min_epochs or e == max_epochs]
    end = max_epochs
    for epoch in counted:
        window = [e for e in counted if e <= epoch]
        lowest = min(losses[e - 1] for e in window)
        first = next(e for e in window if losses[e - 1] == lowest)
        if epoch - first >= patience:
            end = epoch
            break
    used = [e for e in counted if e <= end]
    best = min(used, key=lambda e: (-accuracies[e - 1], losses[e - 1], e))
    assert (state.epoch, state.best_epoch) == (end, best)
    assert (state.best_score, state.best_loss) == (accuracies[best - 1], losses[best - 1])
    assert state.lowest_loss == pytest.approx(min(losses[e - 1] for e in used), abs=0)


SHAPE = (7, 4, 5)


def brute_force(volume, flip, shift):
    """Voxel by voxel; volume (D, H, W)."""
    width = volume.shape[0]
    result = np.zeros_like(volume)
    for i in range(width):
        source = i - shift
        if 0 <= source < width:
            result[i] = volume[width - 1 - source] if flip else volume[source]
    return result


@given(
    flips=st.lists(st.booleans(), min_size=3, max_size=3),
    shifts=st.lists(st.integers(-9, 9), min_size=3, max_size=3),
)
def test_values_against_brute_force(flips, shifts):
    volumes = np.random.default_rng(1).random((3, 1, *SHAPE)).astype(np.float16)
    result = flip_and_shift(torch.from_numpy(volumes.copy()), flips, shifts)
    expected = np.stack([brute_force(v[0], f, s)[None] for v, f, s in zip(volumes, flips, shifts, strict=True)])
    np.testing.assert_array_equal(result.numpy(), expected)


def test_a_marked_voxel_goes_to_the_right_place():
    volume = torch.zeros(1, 1, *SHAPE)
    volume[0, 0, 1, 2, 3] = 1
    assert flip_and_shift(volume, [False], [2])[0, 0, 3, 2, 3] == 1
    assert flip_and_shift(volume, [True], [0])[0, 0, 5, 2, 3] == 1
    assert flip_and_shift(volume, [True], [-1])[0, 0, 4, 2, 3] == 1
    assert flip_and_shift(volume, [False], [-2]).sum() == 0


def test_input_is_left_alone():
    volumes = torch.rand(2, 1, *SHAPE)
    before = volumes.clone()
    augment(volumes, TrainingConfig(), np.random.default_rng(0))
    assert torch.equal(volumes, before)


def test_off_means_identity_and_certain_flip_means_flip():
    volumes = torch.rand(5, 1, *SHAPE)
    off = TrainingConfig(flip_probability=0.0, max_shift_voxels=0)
    assert torch.equal(augment(volumes, off, np.random.default_rng(0)), volumes)
    always = TrainingConfig(flip_probability=1.0, max_shift_voxels=0)
    assert torch.equal(augment(volumes, always, np.random.default_rng(0)), volumes.flip(2))


def test_draws_are_as_configured_and_repeat_with_the_seed():
    # One marked voxel right of the middle tells flip and shift of each volume from its place.
    count, width = 4000, 21
    volumes = torch.zeros(count, 1, width, 1, 1)
    volumes[:, 0, 15] = 1
    result = augment(volumes, TrainingConfig(), np.random.default_rng(7))
    place = result[:, 0, :, 0, 0].argmax(1).numpy()
    flipped = place < 10
    shift = np.where(flipped, place - 5, place - 15)
    assert set(shift) == {-2, -1, 0, 1, 2}
    assert flipped.mean() == pytest.approx(0.5, abs=0.03)
    for value in range(-2, 3):
        assert (shift == value).mean() == pytest.approx(0.2, abs=0.03)
    assert abs(np.corrcoef(flipped, shift)[0, 1]) < 0.06
    assert torch.equal(result, augment(volumes, TrainingConfig(), np.random.default_rng(7)))
    assert not torch.equal(result, augment(volumes, TrainingConfig(), np.random.default_rng(8)))
