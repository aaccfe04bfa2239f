"""What is solved and not learned in steps: the last layer of some networks, and offsets of the classes after training.

A ridge regression takes the place of epochs of gradients. What the layers before give of each scan is written to a file
and read in parts. The ridge is solved on inner products of scans, which changes nothing.

All logits of a dynamic linear network share an offset that one step of training moves by more than the classes differ:
such a network ranks people well and gives all of them the same class. After training, an offset of each class is fitted
to people whom the network knows, and added to the constant of its last layer (`pipeline.models.dynamic`). Contributions
of voxels stay as they are; ranks and areas by the probability of a class only where there are two.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from torch import Tensor, nn

from heatlas.pipeline.cohort.people.tasks import Task
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.dynamic import LogitLayer
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.work.host import on_host
from heatlas.pipeline.training.baselines.ridge import Floats, fit, rotation
from heatlas.pipeline.training.objectives.records import Batch, Context, Measures, Objective
from heatlas.pipeline.training.progress import BestEpoch, EpochRecord
from heatlas.pipeline.training.trainer import Trained, batches
from heatlas.pipeline.training.volumes import LabelledVolumes

PART = 2**15
"""Columns read at a time."""
EXACT = "exact solution"
"""How such a training ended."""


def require_plain(config: Config) -> None:
    """Refuse settings of a training that a ridge regression has no place for."""
    training = config.training
    asked = {
        'objective.kind = "task"': config.objective.kind != "task",
        "training.ensemble = 1": training.ensemble > 1,
        'training.from_run = ""': training.from_run != "",
        'training.loss = "usual"': training.loss not in ("usual", "cross-entropy"),
    }
    refused = [setting for setting, is_asked in asked.items() if is_asked]
    if refused:
        raise UsageError(
            f'model.architecture = "{config.model.architecture}" is solved as a ridge regression, not trained; set '
            f"{', '.join(refused)}."
        )


@dataclass(frozen=True, eq=False)
class Columns:
    """Standardised values of scans (scans, columns), read from a file in parts."""

    values: NDArray[np.float32]

    def parts(self) -> Iterator[tuple[slice, Floats, Floats, Floats]]:
        """Places, standardised values, means and standard deviations (1 where all are the same) of some columns."""
        for start in range(0, self.values.shape[1], PART):
            part = slice(start, start + PART)
            columns = self.values[:, part].astype(np.float64)
            mean, spread = columns.mean(axis=0), columns.std(axis=0)
            spread[np.ptp(columns, axis=0) == 0] = 1.0
            yield part, (columns - mean) / spread, mean, spread

    def inner(self) -> Floats:
        found = np.zeros((len(self.values), len(self.values)))
        for _, columns, _, _ in self.parts():
            found += columns @ columns.T
        return found

    def weights(self, rotated: Floats, intercepts: Floats) -> tuple[Floats, Floats]:
        """Weights (outputs, columns) and intercepts (outputs,) of the values as they are.

        `rotated`: (scans, outputs), weights of the standardised columns are their inner products with it.
        """
        found, moved = np.empty((rotated.shape[1], self.values.shape[1])), intercepts.copy()
        for part, columns, mean, spread in self.parts():
            found[:, part] = (columns.T @ rotated).T / spread
            moved -= found[:, part] @ mean
        return found, moved


def solved(
    model: StagedModel,
    parts: Sequence[LabelledVolumes],
    people: Sequence[str],
    objective: Objective,
    task: Task,
    config: Config,
    seed: int,
    folder: Path,
) -> Trained:
    """Solve the last layer of a network on all parts together.

    `model`: its last layer is linear; changed in place. `parts`: training and validation part. No epoch is chosen, so
    the validation part is learned from as well. `people`: of all scans, in order. `objective`: for the loss and the
    score of the history, and the scale of a number. `seed`: of the inner folds, by which the penalty is chosen, and
    whose loss and score those of validation are. `folder`: for a file of all columns.
    """
    targets = torch.cat([part.targets for part in parts])
    wanted = _in_units(targets, objective)
    last = _layers(model)[-1]
    assert isinstance(last, nn.Linear)
    with tempfile.TemporaryFile(dir=folder) as file:
        for part in parts:
            for row in range(len(part)):
                file.write(_before(model, part.batch(np.array([row]))[0]).tobytes())
        file.flush()
        columns = Columns(np.memmap(file, np.float32, "r", shape=(len(targets), last.in_features)))
        inner = columns.inner()
        turn = rotation(inner, last.in_features)
        try:
            classes = len(task.classes)
            found = fit(inner @ turn, wanted, people, classes, seed, config.training.balance_classes)
        except ValueError as error:  # scikit-learn's, of data that no model can be fitted to
            raise BadInputError(f"{error}. Use fewer folds, or add participants.") from error
        weights, intercepts = columns.weights(turn @ found.weights.T, found.intercepts)
    with torch.no_grad():
        last.weight.copy_(torch.from_numpy(weights))
        last.bias.copy_(torch.from_numpy(intercepts))
    outputs = inner @ turn @ found.weights.T + found.intercepts
    return as_trained(model, (outputs, found.held_out), (targets, targets), objective)


def _in_units(targets: Tensor, objective: Objective) -> Floats:
    """Targets as the network gives them: a number in standard deviations from the mean."""
    scale: Mapping[str, Any] = objective.facts
    values = np.asarray(on_host(targets).double().numpy())
    return np.asarray((values - scale["target_mean"]) / scale["target_sd"]) if "target_sd" in scale else values


@torch.no_grad()
def _before(model: StagedModel, volume: Tensor) -> NDArray[np.float32]:
    return np.asarray(on_host(_layers(model)[:-1](volume.float()).flatten()).numpy())


def _layers(model: StagedModel) -> nn.Sequential:
    (stage,) = model.stages
    return cast(nn.Sequential, stage)


class _Answers(nn.Module):
    """A network whose answers are known."""

    def __init__(self, outputs: Tensor) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, _: Tensor) -> Tensor:
        return self.outputs


def measured(outputs: Floats, targets: Tensor, objective: Objective) -> Measures:
    """Loss and score of answers (scans, outputs) that are known."""
    known = np.isfinite(outputs).all(axis=1)
    labels = targets[torch.from_numpy(known).to(targets.device)]
    batch = Batch(torch.empty(len(labels), 0), labels, torch.arange(len(labels)))
    answers = _Answers(torch.from_numpy(outputs[known]).float().to(targets.device))
    logged = objective.loss(answers, batch, Context())[1]
    return objective.measures({name: on_host(values) for name, values in logged.items()})


def as_trained(
    network: nn.Module, outputs: tuple[Floats, Floats], targets: tuple[Tensor, Tensor], objective: Objective
) -> Trained:
    """A network as the result of a training of one epoch, with its losses on the training and validation part."""
    learned, held_out = (measured(one, wanted, objective) for one, wanted in zip(outputs, targets, strict=True))
    record = EpochRecord(1, learned.loss, learned.score, held_out.loss, held_out.score)
    selection = BestEpoch(1, held_out.loss, 0, 1, objective.score_sign * held_out.score, held_out.loss)
    return Trained(selection, (record,), {name: value.clone() for name, value in network.state_dict().items()})


SHRINKAGE = 1e-3
"""Penalty on the squared distance of the offsets from the middle between the classes. Where classes overlap it has no
effect; where they do not, many offsets are equally good, and it chooses the middle."""


def balanced_offsets(logits: Floats, targets: NDArray[np.int64]) -> Floats:
    """Offsets (C,), with a mean of 0, that give the least cross-entropy with each class weighted alike.

    `logits`: (scans, C). `targets`: (scans,), class numbers.

    Examples
    --------
    >>> logits = np.array([[0.0, 3.0], [0.0, 4.0], [0.0, 5.0], [0.0, 6.0]])  # all say class 1
    >>> balanced_offsets(logits, np.array([0, 0, 1, 1])).round(2).tolist()
    [2.25, -2.25]
    """
    classes, places, counts = np.unique(targets, return_inverse=True, return_counts=True)
    weights = (1 / counts)[places] / len(classes)
    truth = np.eye(logits.shape[1])[targets]
    middle = -(weights @ logits)
    middle -= middle.mean()

    def loss(offsets: Floats) -> tuple[float, Floats]:
        shifted, away = logits + offsets, offsets - middle
        value = SHRINKAGE * away @ away - weights @ (truth * log_softmax(shifted, axis=1)).sum(1)
        return float(value), weights @ (softmax(shifted, axis=1) - truth) + 2 * SHRINKAGE * away

    found = minimize(loss, middle, jac=True, method="BFGS", options={"gtol": 1e-9}).x
    return np.asarray(found - found.mean())


@torch.no_grad()
def centre(model: nn.Module, part: LabelledVolumes, batch_size: int) -> list[float]:
    """Add the offsets of each class, fitted to some scans, to the last constant of a network; they are returned.

    `model`: in evaluation mode; its last `LogitLayer` is changed. `part`: scans that the network knows.
    """
    layers = [module for module in model.modules() if isinstance(module, LogitLayer)]
    if not layers:
        raise UsageError('training.centre_logits: this network adds no constant to its logits. Set "none".')
    asked = batches(np.arange(len(part)), batch_size)
    logits = torch.cat([model(part.batch(indices)[0].float()) for indices in asked])
    offsets = balanced_offsets(on_host(logits).double().numpy(), on_host(part.targets).numpy())
    layer = layers[-1]
    layer.bias = layer.bias + torch.as_tensor(offsets).to(layer.bias)
    return [float(one) for one in offsets]
