"""Checkpoints of a training between epochs, so that an interrupted one can be resumed.

One safetensors file: weights, best weights and optimiser moments as tensors, the rest as JSON in its header. The file
is replaced atomically, so an interruption leaves the old checkpoint or the new one. Random states are not stored: every
epoch derives its own from the seed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from heatlas.pipeline.run.documents import json_object
from heatlas.pipeline.run.work.host import on_host
from heatlas.pipeline.training.selection import BestEpoch

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

    `selection`: includes the number of epochs done. `weights`, `best_weights`: current state of the network, and that
    of the best epoch (empty if there is none yet). `moments`: state of the optimiser per parameter. `average`: state of
    the moving average of the weights; empty if there is none.
    """

    selection: BestEpoch
    history: tuple[EpochRecord, ...]
    weights: Tensors
    best_weights: Tensors
    moments: Mapping[int, Tensors]
    average: Tensors = field(default_factory=dict)


def checkpoint_path(fold_folder: Path, member: int = 1) -> Path:
    """Path of the checkpoint of a fold, or of a further member of its ensemble."""
    return fold_folder / ("checkpoint.safetensors" if member == 1 else f"checkpoint_member-{member}.safetensors")


def write_checkpoint(path: Path, key: str, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint of the training with this key."""
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
