"""Training of one network: epochs of Adam on a weighted cross-entropy, resumed from the last finished epoch.

Everything random in an epoch (order, augmentation, dropout) is drawn from the seed and the number of the epoch, so
an epoch is the same whether the training came there in one go or was killed and resumed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from pipeline.models.contract import StagedModel
from pipeline.run.config.settings import TrainingConfig
from pipeline.run.errors import UsageError
from pipeline.run.work.seeds import derived_seed, generator
from pipeline.training.augmentation import augment
from pipeline.training.batch_statistics import prepare_step
from pipeline.training.checkpoints import Checkpoint, EpochRecord, read_checkpoint, write_checkpoint
from pipeline.training.metrics import balanced_accuracy
from pipeline.training.numerics import mixed_precision
from pipeline.training.selection import Selection
from pipeline.training.volumes import LabelledVolumes


@dataclass(frozen=True)
class Resumption:
    """Where a training keeps its checkpoint, and the key that says which training it belongs to."""

    path: Path
    key: str


@dataclass(frozen=True)
class Trained:
    """Result of a training.

    Parameters
    ----------
    selection : Selection
        Final state; holds the epoch that was kept.
    history : tuple of EpochRecord
    weights : mapping of str to Tensor
        Network state at the epoch kept.
    """

    selection: Selection
    history: tuple[EpochRecord, ...]
    weights: Mapping[str, torch.Tensor]


def class_weights(targets: torch.Tensor, balance: bool) -> torch.Tensor:
    """Weight of each class in the loss; with `balance`, each class weighs the same and scans weigh 1 on average.

    Examples
    --------
    >>> class_weights(torch.tensor([0, 0, 0, 1]), balance=True)
    tensor([0.6667, 2.0000])
    """
    if not balance:
        return torch.ones(2, device=targets.device)
    counts = torch.bincount(targets, minlength=2)
    return len(targets) / (2 * counts.to(torch.float32))


def learning_rate(config: TrainingConfig, epoch: int) -> float:
    """Learning rate of an epoch, counted from 1.

    ``cosine`` falls from the configured rate to 0 over ``max_epochs`` (Loshchilov & Hutter 2017, without restarts), so
    that a short training on few scans ends settled.

    Examples
    --------
    >>> settings = TrainingConfig(learning_rate=0.1, learning_rate_schedule="cosine", max_epochs=20)
    >>> [round(learning_rate(settings, epoch), 4) for epoch in (1, 11, 20)]
    [0.1, 0.05, 0.0006]
    """
    if config.learning_rate_schedule == "constant":
        return config.learning_rate
    return config.learning_rate * (1 + math.cos(math.pi * (epoch - 1) / config.max_epochs)) / 2


def train(
    model: StagedModel,
    training: LabelledVolumes,
    validation: LabelledVolumes,
    config: TrainingConfig,
    seed: int,
    resumption: Resumption,
) -> Trained:
    """Train until the validation loss stops falling or the epochs are used up.

    Parameters
    ----------
    model : StagedModel
        Freshly initialised, on the device of the data; changed in place.
    training, validation : LabelledVolumes
        Both classes in each.
    config : TrainingConfig
    seed : int
    resumption : Resumption
        A checkpoint there is continued and replaced after every epoch.

    Raises
    ------
    UsageError
        If the loss is no longer a number.
    """
    model.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
    optimiser = torch.optim.Adam(model.parameters(), config.learning_rate, weight_decay=config.weight_decay)
    weights = class_weights(training.targets, config.balance_classes)
    selection, history, best = Selection(), [], {}
    known = read_checkpoint(resumption.path, resumption.key)
    if known is not None:
        model.load_state_dict(known.weights)
        _restore_moments(optimiser, known.moments)
        selection, history, best = known.selection, list(known.history), dict(known.best_weights)
    while not selection.finished(config):
        record = _epoch(model, optimiser, training, validation, weights, config, seed, selection.epoch + 1)
        history.append(record)
        selection = selection.after(record.validation_loss, record.validation_balanced_accuracy, config)
        if selection.improved:
            best = {name: value.detach().clone() for name, value in model.state_dict().items()}
        moments = optimiser.state_dict()["state"]
        write_checkpoint(
            resumption.path, resumption.key, Checkpoint(selection, tuple(history), model.state_dict(), best, moments)
        )
    return Trained(selection, tuple(history), best)


def _epoch(
    model: StagedModel,
    optimiser: torch.optim.Optimizer,
    training: LabelledVolumes,
    validation: LabelledVolumes,
    weights: torch.Tensor,
    config: TrainingConfig,
    seed: int,
    epoch: int,
) -> EpochRecord:
    """One pass over the training part and one over the validation part."""
    train_loss, train_accuracy = _train_epoch(model, optimiser, training, weights, config, seed, epoch)
    loss, accuracy = _evaluate(model, validation, weights, config)
    if not (math.isfinite(train_loss) and math.isfinite(loss)):
        raise UsageError(
            f"training: the loss is not a finite number in epoch {epoch}. Lower training.learning_rate "
            f"(now {config.learning_rate:g})."
        )
    return EpochRecord(epoch, train_loss, train_accuracy, loss, accuracy)


def _train_epoch(
    model: StagedModel,
    optimiser: torch.optim.Optimizer,
    data: LabelledVolumes,
    weights: torch.Tensor,
    config: TrainingConfig,
    seed: int,
    epoch: int,
) -> tuple[float, float]:
    device = data.volumes.device
    random = generator(seed, "epoch", epoch)
    torch.manual_seed(derived_seed(seed, "dropout", epoch))
    for group in optimiser.param_groups:
        group["lr"] = learning_rate(config, epoch)
    model.train()
    losses, logits, targets = [], [], []
    for indices in batches(random.permutation(len(data)), config.batch_size):
        volumes, classes = data.batch(indices)
        inputs = augment(volumes, config, random).float()
        prepare_step(model)
        with mixed_precision(device):
            output = model(inputs)
        loss = _weighted_losses(output, classes, weights)
        loss.mean().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.detach())
        logits.append(output.detach().float())
        targets.append(classes)
    return _summary(losses, logits, targets, weights)


@torch.inference_mode()
def _evaluate(
    model: StagedModel, data: LabelledVolumes, weights: torch.Tensor, config: TrainingConfig
) -> tuple[float, float]:
    """Weighted loss and balanced accuracy of the network as it would be used."""
    model.eval()
    losses, logits, targets = [], [], []
    for indices in batches(np.arange(len(data)), config.batch_size):
        volumes, classes = data.batch(indices)
        with mixed_precision(data.volumes.device):
            output = model(volumes.float())
        losses.append(_weighted_losses(output, classes, weights))
        logits.append(output.float())
        targets.append(classes)
    return _summary(losses, logits, targets, weights)


def batches(order: np.ndarray, size: int) -> list[np.ndarray]:
    """Cut an order into the fewest batches of at most `size`, as equal as possible.

    A last batch of one scan, as plain cutting leaves it, has no batch statistics worth the name.

    Examples
    --------
    >>> [len(batch) for batch in batches(np.arange(9), 4)]
    [3, 3, 3]
    """
    return np.array_split(order, math.ceil(len(order) / size))


def _weighted_losses(logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of each scan times the weight of its class."""
    return functional.cross_entropy(logits.float(), targets, reduction="none") * weights[targets]


def _summary(
    losses: list[torch.Tensor], logits: list[torch.Tensor], targets: list[torch.Tensor], weights: torch.Tensor
) -> tuple[float, float]:
    """Weighted mean loss and balanced accuracy over all batches."""
    classes = torch.cat(targets)
    loss = torch.cat(losses).sum() / weights[classes].sum()
    return float(loss), balanced_accuracy(classes.cpu().numpy(), torch.cat(logits).cpu().numpy())


def _restore_moments(optimiser: torch.optim.Optimizer, moments: Mapping[int, Mapping[str, torch.Tensor]]) -> None:
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict(
        {"state": {index: dict(values) for index, values in moments.items()}, "param_groups": groups}
    )
