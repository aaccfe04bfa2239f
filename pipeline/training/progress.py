"""How far a training is: the epoch to keep, what a resumed one begins with, and the curves that are shown meanwhile.

Early stopping and selection ignore the first ``min_epochs`` epochs, as in the founding study: batch statistics are
still changing, and a lucky early epoch on a small validation set could never be beaten.

A checkpoint is one safetensors file, replaced atomically: weights, best weights and optimiser moments as tensors, the
rest as JSON in its header, which the curve on the terminal is read from, since workers may be on other machines. Random
states are not stored: every epoch derives its own from the seed.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tqdm import tqdm

from heatlas.pipeline.run.config.settings import TrainingConfig
from heatlas.pipeline.run.documents import json_object
from heatlas.pipeline.run.work.host import on_host


@dataclass(frozen=True)
class BestEpoch:
    """State after `epoch` epochs.

    `lowest_loss`: of validation, over the epochs that count; `stale_epochs`: epochs since then. `best_epoch`: epoch to
    keep: best validation score (higher is better); on ties the lowest validation loss, then the first.
    """

    epoch: int = 0
    lowest_loss: float | None = None
    stale_epochs: int = 0
    best_epoch: int | None = None
    best_score: float | None = None
    best_loss: float | None = None

    def after(self, loss: float, score: float, config: TrainingConfig) -> BestEpoch:
        """The state after one more epoch with this validation loss and score (higher is better).

        An epoch counts if more than ``min_epochs`` are done, or if it is the last one allowed.
        """
        state = dataclasses.replace(self, epoch=self.epoch + 1)
        if state.epoch <= config.min_epochs and state.epoch < config.max_epochs:
            return state
        if self.lowest_loss is None or loss < self.lowest_loss:
            state = dataclasses.replace(state, lowest_loss=loss, stale_epochs=0)
        else:
            state = dataclasses.replace(state, stale_epochs=self.stale_epochs + 1)
        first = self.best_score is None or self.best_loss is None
        if first or (score, -loss) > (self.best_score, -self.best_loss):  # type: ignore[operator]
            state = dataclasses.replace(state, best_epoch=state.epoch, best_score=score, best_loss=loss)
        return state

    @property
    def improved(self) -> bool:
        return self.best_epoch == self.epoch

    def stopped_early(self, config: TrainingConfig) -> bool:
        return self.stale_epochs >= config.patience

    def finished(self, config: TrainingConfig) -> bool:
        return self.stopped_early(config) or self.epoch >= config.max_epochs


Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class EpochRecord:
    """Loss and score of one epoch; those of training include dropout and augmentation.

    The score is that of the objective: balanced accuracy, or the MAE in the unit of the target.
    """

    epoch: int
    train_loss: float
    train_score: float
    validation_loss: float
    validation_score: float


@dataclass(frozen=True)
class Checkpoint:
    """State of a training after some epochs.

    `best_weights`: state of the network at the best epoch; empty if there is none yet. `moments`: state of the
    optimiser per parameter. `average`: state of the moving average of the weights; empty if there is none.
    """

    selection: BestEpoch
    history: tuple[EpochRecord, ...]
    weights: Tensors
    best_weights: Tensors
    moments: Mapping[int, Tensors]
    average: Tensors = field(default_factory=dict)


def checkpoint_path(fold_folder: Path, member: int = 1) -> Path:
    return fold_folder / ("checkpoint.safetensors" if member == 1 else f"checkpoint_member-{member}.safetensors")


def write_checkpoint(path: Path, key: str, checkpoint: Checkpoint) -> None:
    tensors = {f"weights/{name}": value for name, value in checkpoint.weights.items()}
    tensors |= {f"best/{name}": value for name, value in checkpoint.best_weights.items()}
    tensors |= {f"average/{name}": value for name, value in checkpoint.average.items()}
    for index, values in checkpoint.moments.items():
        tensors |= {f"moments/{index}/{name}": value for name, value in values.items()}
    state = {
        "key": key,
        "selection": dataclasses.asdict(checkpoint.selection),
        "history": [dataclasses.asdict(record) for record in checkpoint.history],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    # save_file needs contiguous tensors that do not share memory.
    contiguous = {name: on_host(value).clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
    save_file(contiguous, temporary, metadata={"state": json.dumps(state, allow_nan=False)})
    temporary.replace(path)


def read_checkpoint(path: Path, key: str) -> Checkpoint | None:
    """The checkpoint of the training with this key; None if it is missing, damaged or of another training."""
    try:
        with safe_open(path, framework="pt") as file:
            state = json_object(file.metadata()["state"])
            if state["key"] != key:
                return None
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        history = tuple(EpochRecord(**record) for record in state["history"])
        selection = BestEpoch(**state["selection"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return None
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in _below(tensors, "moments/").items():
        index, _, entry = name.partition("/")
        moments.setdefault(int(index), {})[entry] = value
    weights, best, average = (_below(tensors, part) for part in ("weights/", "best/", "average/"))
    return Checkpoint(selection, history, weights, best, moments, average)


def read_history(path: Path) -> tuple[EpochRecord, ...]:
    """Epochs done so far, from the header of the checkpoint; empty if it cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            history = json_object(file.metadata()["state"])["history"]
        return tuple(EpochRecord(**record) for record in history)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return ()


def remove_checkpoint(path: Path) -> None:
    """Remove the checkpoint of a finished training, and any half-written one."""
    path.unlink(missing_ok=True)
    _temporary(path).unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def _below(tensors: Tensors, prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


SECONDS_BETWEEN_LINES = 10.0
WIDTH = 24
BARS = "▁▂▃▄▅▆▇█"


class CurveOnTerminal:
    """Context that reports the progress of trainings, by name and checkpoint.

    Every `SECONDS_BETWEEN_LINES`, a line for each training with a new epoch: above the progress bar on a terminal,
    otherwise in the log of the run, or on standard output if no log is open.
    """

    def __init__(self, trainings: Sequence[tuple[str, Path]], max_epochs: int) -> None:
        self._trainings, self._max_epochs = list(trainings), max_epochs
        self._said: dict[str, int] = {}
        self._ended = threading.Event()
        self._writer = threading.Thread(target=self._write_lines, daemon=True)

    def __enter__(self) -> Self:
        self._writer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._ended.set()
        self._writer.join()

    def _write_lines(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_LINES):
            for line in self.news():
                _say(line)

    def news(self) -> list[str]:
        lines = []
        for name, path in self._trainings:
            history = read_history(path)
            if history and self._said.get(name) != len(history):
                self._said[name] = len(history)
                lines.append(curve_line(name, history, self._max_epochs))
        return lines


def _say(line: str) -> None:
    log = logging.getLogger("heatlas")
    if sys.stderr.isatty():
        tqdm.write(line, file=sys.stderr)
    elif log.handlers:
        log.info(line)
    else:
        print(line, flush=True)


def curve_line(name: str, history: Sequence[EpochRecord], max_epochs: int) -> str:
    """Latest numbers of a training, and the curve of its validation loss.

    Examples
    --------
    >>> records = [EpochRecord(1, 0.8, 0.5, 0.9, 0.5), EpochRecord(2, 0.6, 0.7, 0.7, 0.6)]
    >>> curve_line("fold-0", records, 20)
    'fold-0: epoch 2 of at most 20, loss 0.600 training 0.700 validation, score 0.600  █▁'
    """
    last = history[-1]
    curve = sparkline([record.validation_loss for record in history])
    return (
        f"{name}: epoch {last.epoch} of at most {max_epochs}, loss {last.train_loss:.3f} training "
        f"{last.validation_loss:.3f} validation, score {last.validation_score:.3f}  {curve}"
    )


def sparkline(values: Sequence[float]) -> str:
    """A curve of at most `WIDTH` characters; longer series are subsampled.

    Examples
    --------
    >>> sparkline([3.0, 2.0, 1.0, 1.0])
    '█▅▁▁'
    """
    count = min(len(values), WIDTH)
    shown = [values[(place + 1) * len(values) // count - 1] for place in range(count)]
    low, span = min(shown), max(shown) - min(shown)
    return "".join(BARS[round((value - low) / span * (len(BARS) - 1)) if span else 0] for value in shown)


class TensorBoardEvents:
    """Context that is called with every finished epoch; without TensorBoard it writes nothing.

    What an earlier, interrupted training wrote stays; of epochs that are trained again, the later ones are shown.
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
        for measure in ("loss", "score"):
            for part, prefix in (("training", "train"), ("validation", "validation")):
                self._writer.add_scalar(f"{measure}/{part}", getattr(record, f"{prefix}_{measure}"), record.epoch)
        self._writer.flush()  # seen while the training runs

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()
