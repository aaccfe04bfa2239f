"""Epochs are handed to TensorBoard where it is installed, and a run without it is the same."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.training import events
from heatlas.pipeline.training.checkpoints import EpochRecord
from heatlas.pipeline.training.events import TensorBoardEvents
from tests.training.run_of_folds import train_all, write_registered


@pytest.fixture
def written(monkeypatch) -> list[tuple]:
    """What a writer of TensorBoard is asked to do."""
    calls: list[tuple] = []

    class Writer:
        def __init__(self, folder: str, purge_step: int) -> None:
            self.folder = Path(folder)
            calls.append(("open", self.folder, purge_step))

        def add_scalar(self, name: str, value: float, epoch: int) -> None:
            calls.append((self.folder, name, value, epoch))

        def flush(self) -> None:
            calls.append(("flush",))

        def close(self) -> None:
            calls.append(("close", self.folder))

    monkeypatch.setattr(events, "find_spec", lambda name: name == "tensorboard")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    return calls


def test_every_epoch_of_every_fold_is_written_as_in_its_history(written, tmp_path):
    layout = RunLayout(tmp_path)
    write_registered(layout)
    train_all(layout)
    for fold in (0, 1):
        folder = layout.fold(fold).folder / "events" / "network-1"
        history = read_table(layout.fold(fold).history)
        for name, column in (
            ("loss/training", "train_loss"), ("loss/validation", "validation_loss"),
            ("score/training", next(one for one in history if one.startswith("train_") and one != "train_loss")),
            ("score/validation", next(one for one in history if one.startswith("validation_") and "loss" not in one)),
        ):  # fmt: skip
            own = {call[3]: call[2] for call in written if call[:2] == (folder, name)}
            assert list(own) == history["epoch"].tolist()
            assert list(own.values()) == pytest.approx(history[column].tolist(), abs=1e-6)
        assert written.count(("open", folder, 1)) == 1
        assert written.count(("close", folder)) == 1
    assert written.count(("flush",)) == sum(len(read_table(layout.fold(fold).history)) for fold in (0, 1))


def test_a_training_that_goes_on_hides_what_was_written_of_later_epochs(written, tmp_path):
    with TensorBoardEvents(tmp_path) as report:
        report(EpochRecord(4, 0.5, 0.6, 0.7, 0.8))
    assert written[0] == ("open", tmp_path, 4)


def test_without_tensorboard_nothing_is_written(monkeypatch, tmp_path):
    monkeypatch.setattr(events, "find_spec", lambda name: None)
    with TensorBoardEvents(tmp_path / "events") as report:
        report(EpochRecord(1, 0.5, 0.6, 0.7, 0.8))
    assert not list(tmp_path.iterdir())
