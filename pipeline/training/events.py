"""Losses and scores of a training for TensorBoard, if it is installed: ``tensorboard --logdir OUT/models``."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from heatlas.pipeline.training.checkpoints import EpochRecord


class TensorBoardEvents:
    """Context that is called with every finished epoch; without TensorBoard it writes nothing.

    What an earlier, interrupted training wrote stays; of epochs that are trained again, the later ones are shown.

    `folder`: made with the first epoch.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def __call__(self, record: EpochRecord) -> None:
        if find_spec("tensorboard") is None:
            return
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder), purge_step=record.epoch)
        values = {
            "loss/training": record.train_loss, "loss/validation": record.validation_loss,
            "score/training": record.train_score, "score/validation": record.validation_score,
        }  # fmt: skip
        for name, value in values.items():
            self._writer.add_scalar(name, value, record.epoch)
        self._writer.flush()  # seen while the training runs

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()
