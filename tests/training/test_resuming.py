import dataclasses
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

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
