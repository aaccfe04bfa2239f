"""Training of one network: epochs of Adam on an objective, resumed from the last finished epoch.

Everything random in an epoch (order, augmentation, dropout) is derived from the seed and the number of the epoch, so
resuming an interrupted training gives the same result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from heatlas.pipeline.run.config.settings import TrainingConfig
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.work.host import on_host
from heatlas.pipeline.run.work.seeds import derived_seed, generator
from heatlas.pipeline.training.objectives.records import Batch, Context, Logged, Measures, Objective
from heatlas.pipeline.training.progress import BestEpoch, Checkpoint, EpochRecord, read_checkpoint, write_checkpoint
from heatlas.pipeline.training.steps import ALONE, Ranks, clip_units, mixed_precision, prepare_step, take_constants
from heatlas.pipeline.training.volumes import FurtherAugmentation, LabelledVolumes, augment

NOTHING = Context()


@dataclass(frozen=True)
class Resumption:
    """Path of the checkpoint, and the key of the training it belongs to."""

    path: Path
    key: str


@dataclass(frozen=True)
class Trained:
    """Result of a training.

    `selection`: final state, including the epoch that was kept. `weights`: network state at the epoch kept.
    """

    selection: BestEpoch
    history: tuple[EpochRecord, ...]
    weights: Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class TrainingSetup:
    """What is constant over the epochs of a training.

    `context`: for the objective. `ranks`: the processes that train together. `average`: moving average of the weights.
    """

    objective: Objective
    context: Context
    config: TrainingConfig
    seed: int
    ranks: Ranks
    average: AveragedModel | None


def learning_rate(config: TrainingConfig, epoch: int) -> float:
    """Learning rate of an epoch, counted from 1.

    ``cosine`` decreases from the configured rate to 0 over ``max_epochs`` (Loshchilov & Hutter 2017, without restarts).
    The epochs of a warm-up come before it, and rise to the configured rate in equal steps.

    Examples
    --------
    >>> settings = TrainingConfig(learning_rate=0.1, learning_rate_schedule="cosine", max_epochs=20)
    >>> [round(learning_rate(settings, epoch), 4) for epoch in (1, 11, 20)]
    [0.1, 0.05, 0.0006]
    >>> warm = TrainingConfig(learning_rate=0.1, learning_rate_schedule="cosine", max_epochs=24, warmup_epochs=4)
    >>> [round(learning_rate(warm, epoch), 4) for epoch in (1, 4, 5, 15, 24)]
    [0.02, 0.08, 0.1, 0.05, 0.0006]
    """
    done = epoch - 1 - config.warmup_epochs
    if done < 0:
        return config.learning_rate * epoch / (config.warmup_epochs + 1)
    if config.learning_rate_schedule == "constant":
        return config.learning_rate
    return config.learning_rate * (1 + math.cos(math.pi * done / (config.max_epochs - config.warmup_epochs))) / 2


def parameter_groups(model: nn.Module, head: float) -> list[dict[str, Any]]:
    """What is learned, by its factor of the learning rate: `head` for the last stage, 1 for the rest.

    Raises UsageError if a factor is asked for and nothing is learned in the last stage.
    """
    learning = [weight for weight in model.parameters() if weight.requires_grad]
    if head == 1:
        return [{"params": learning, "factor": 1.0}]
    stages = getattr(model, "stages", ())
    last = {weight for weight in stages[-1].parameters() if weight.requires_grad} if stages else set()
    if not last:
        raise UsageError(
            "training.head_learning_rate_factor: the last stage of this network has no weights that are learned. Set 1."
        )
    parts = {1.0: [weight for weight in learning if weight not in last], head: [w for w in learning if w in last]}
    return [{"params": weights, "factor": factor} for factor, weights in parts.items() if weights]


def train(
    model: nn.Module,
    training: LabelledVolumes,
    validation: LabelledVolumes,
    objective: Objective,
    config: TrainingConfig,
    seed: int,
    resumption: Resumption,
    context: Context = NOTHING,
    ranks: Ranks = ALONE,
    on_epoch: Callable[[EpochRecord], None] | None = None,
) -> Trained:
    """Train until early stopping or the last epoch.

    `model`: freshly initialised, on the device of the data; changed in place. `training`, `validation`: with all
    classes in each, or more than one value of a number. `resumption`: an existing checkpoint is resumed, and replaced
    after every epoch. `context`: for the objective. `ranks`: the processes that train together, each called with the
    same arguments. `on_epoch`: called by the first process with every finished epoch that is stored. Raises UsageError
    if the loss is no longer finite.
    """
    channels_last(model)
    groups = parameter_groups(model, config.head_learning_rate_factor)
    optimiser = torch.optim.Adam(groups, config.learning_rate, weight_decay=config.weight_decay)
    selection, history, best = BestEpoch(), [], {}
    known = read_checkpoint(resumption.path, resumption.key)
    if known is None:
        _calibrated(model, training, config)
    average = moving_average(model, config.weight_average)
    if known is not None:
        model.load_state_dict(known.weights)
        if average is not None:
            average.load_state_dict(known.average)
        _restore_moments(optimiser, known.moments)
        selection, history, best = known.selection, list(known.history), dict(known.best_weights)
    setup = TrainingSetup(objective, context, config, seed, ranks, average)
    network, kept = ranks.wrapped(model), average.module if average else model
    while not selection.finished(config):
        record = ranks.agreed(_epoch(network, optimiser, training, validation, setup, selection.epoch + 1))
        if not (math.isfinite(record.train_loss) and math.isfinite(record.validation_loss)):
            raise UsageError(
                f"training: the loss is not a finite number in epoch {record.epoch}. Lower training.learning_rate "
                f"(now {config.learning_rate:g})."
            )
        history.append(record)
        selection = selection.after(record.validation_loss, objective.score_sign * record.validation_score, config)
        if selection.improved:
            best = {name: value.detach().clone() for name, value in kept.state_dict().items()}
        if ranks.leads:
            moments = optimiser.state_dict()["state"]
            averaged = average.state_dict() if average else {}
            state = Checkpoint(selection, tuple(history), model.state_dict(), best, moments, averaged)
            write_checkpoint(resumption.path, resumption.key, state)
            if on_epoch is not None:
                on_epoch(record)
    return Trained(selection, tuple(history), best)


def moving_average(model: nn.Module, stays: float) -> AveragedModel | None:
    """Exponential moving average of weights and running statistics, ``a' = stays a + (1 - stays) w``; None for 0."""
    if not stays:
        return None
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(stays), use_buffers=True)  # type: ignore[no-untyped-call]


def channels_last(model: nn.Module) -> None:
    """Lay out filters of volumes with channels last, which is faster; `Module.to` refuses weights of four axes."""
    for weight in model.parameters():
        if weight.dim() == 5:
            weight.data = weight.data.to(memory_format=torch.channels_last_3d)


def _calibrated(model: nn.Module, training: LabelledVolumes, config: TrainingConfig) -> None:
    """Let constants that a network takes from data be those of one batch, spread over the training part."""
    places = np.linspace(0, len(training) - 1, min(len(training), config.batch_size)).round().astype(int)
    take_constants(model, training.batch(places)[0].float())


def _epoch(
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    training: LabelledVolumes,
    validation: LabelledVolumes,
    setup: TrainingSetup,
    epoch: int,
) -> EpochRecord:
    """One pass over the training part and one over the validation part."""
    trained = _train_epoch(network, optimiser, training, setup, epoch)
    # Each process evaluates the whole part, so that selection does not depend on the number of processes.
    alone = setup.average or (network if setup.ranks.count == 1 else network.module)
    validated = _evaluate(alone, validation, setup, epoch)  # type: ignore[arg-type]
    return EpochRecord(epoch, trained.loss, trained.score, validated.loss, validated.score)


def _train_epoch(
    network: nn.Module, optimiser: torch.optim.Optimizer, data: LabelledVolumes, setup: TrainingSetup, epoch: int
) -> Measures:
    config, seed, ranks, times = setup.config, setup.seed, setup.ranks, setup.objective.views
    random = generator(seed, "epoch", epoch)
    torch.manual_seed(derived_seed(seed, "dropout", epoch, *([ranks.rank] if ranks.rank else [])))
    further = FurtherAugmentation(config.augmentation, seed, epoch)
    for group in optimiser.param_groups:
        group["lr"] = learning_rate(config, epoch) * group["factor"]
    network.train()
    logged = []
    for step in batches(random.permutation(len(data)), config.batch_size * config.accumulate):
        shown, views = np.tile(step, times), np.repeat(np.arange(times), len(step))
        volumes, _ = data.batch(shown)
        masks = _masks(setup.context, data, step)
        images = volumes.shape[1]
        if masks is not None:  # moved with the volumes, as further channels
            moved = masks if masks.dim() == volumes.dim() else masks[:, None]
            volumes = torch.cat([volumes, moved.to(volumes)], dim=1)
        volumes = augment(volumes, config, random)
        if masks is not None:
            masks = volumes[:, images:].float().reshape(masks.shape)
        volumes = volumes[:, :images]
        places = np.arange(len(step))
        for part in np.array_split(places, math.ceil(len(step) / config.batch_size)):
            share = ranks.share(part)
            mine = share if len(share) else part[:1]  # a process without a scan takes part with weight 0
            both = np.concatenate([mine + len(step) * view for view in range(times)])
            inputs = further(volumes[both].float(), shown[both], views[both])
            own = None if masks is None else masks[mine]
            losses, values = _forward(network, inputs, data, step[mine], setup, epoch, masks=own)
            weight = len(share) * ranks.count / len(step)
            (losses * weight).backward()  # type: ignore[no-untyped-call]
            logged.append({name: value.detach()[: len(share)] for name, value in values.items()})
        if config.clip_gradients:
            clip_units(network.parameters(), config.clip_gradients)
        optimiser.step()
        optimiser.zero_grad()
        if setup.average is not None:
            setup.average.update_parameters(network if ranks.count == 1 else network.module)  # type: ignore[arg-type]
    return setup.objective.measures(ranks.gathered(_on_host(logged)))


@torch.inference_mode()
def _evaluate(network: nn.Module, data: LabelledVolumes, setup: TrainingSetup, epoch: int) -> Measures:
    """Loss and score of the network in evaluation mode."""
    network.eval()
    logged = []
    for indices in batches(np.arange(len(data)), setup.config.batch_size):
        inputs = data.batch(indices)[0].float()
        logged.append(_forward(network, inputs, data, indices, setup, epoch, train=False)[1])
    return setup.objective.measures(_on_host(logged))


def _forward(
    network: nn.Module,
    inputs: torch.Tensor,
    data: LabelledVolumes,
    indices: np.ndarray,
    setup: TrainingSetup,
    epoch: int,
    train: bool = True,
    masks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Logged]:
    """The objective of some scans."""
    if train:
        prepare_step(network)
    scans = torch.as_tensor(indices, device=data.targets.device)
    with mixed_precision(data.volumes.device, setup.config.precision):
        return setup.objective.loss(network, Batch(inputs, data.targets[scans], scans, masks, epoch), setup.context)


def _masks(context: Context, data: LabelledVolumes, step: np.ndarray) -> torch.Tensor | None:
    """Masks (B, D, H, W) of some scans; None without masks."""
    if context.masks is None or len(context.masks) == 1:
        return None if context.masks is None else context.masks.expand(len(step), -1, -1, -1)
    return context.masks[torch.as_tensor(step, device=data.targets.device)]


def _on_host(logged: Sequence[Logged]) -> dict[str, torch.Tensor]:
    """The values of all batches of a pass: nothing before its end waits for the device."""
    return {name: on_host(torch.cat([values[name] for values in logged])) for name in logged[0]}


def batches(order: np.ndarray, size: int) -> list[np.ndarray]:
    """Divide an order into the fewest batches of at most `size`, as equal as possible.

    Otherwise a last batch of one scan would have no meaningful batch statistics.

    Examples
    --------
    >>> [len(batch) for batch in batches(np.arange(9), 4)]
    [3, 3, 3]
    """
    return np.array_split(order, math.ceil(len(order) / size))


def _restore_moments(optimiser: torch.optim.Optimizer, moments: Mapping[int, Mapping[str, torch.Tensor]]) -> None:
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict(
        {"state": {index: dict(values) for index, values in moments.items()}, "param_groups": groups}
    )
