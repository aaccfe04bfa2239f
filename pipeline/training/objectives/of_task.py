"""The training objective of a run, from its task and settings, and the training targets."""

from __future__ import annotations

import torch

from heatlas.pipeline.cohort.people.tasks import Task
from heatlas.pipeline.run.config.settings import TrainingConfig
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.training.objectives.classification import class_weights, classification
from heatlas.pipeline.training.objectives.off_target import binary
from heatlas.pipeline.training.objectives.records import Objective
from heatlas.pipeline.training.objectives.regression import Scale, regression
from heatlas.pipeline.training.objectives.weight_penalty import with_weight_penalty


def objective_of(task: Task, config: TrainingConfig, targets: torch.Tensor, usual: str = "cross-entropy") -> Objective:
    """The loss of the settings for classes, squared error or Huber loss for regression.

    Parameters
    ----------
    task : Task
    config : TrainingConfig
    targets : Tensor
        Of the training part.
    usual : str
        Loss for classes where the settings say ``usual``: that of the family of networks.
    """
    if task.is_number:
        if config.weight_penalty:
            raise UsageError(f"training.weight_penalty is for classes, and {task.column} is a number; set it to 0.")
        return regression(config.regression_loss, Scale.of(targets))
    weights = class_weights(targets, config.balance_classes, len(task.outputs))
    name = usual if config.loss == "usual" else config.loss
    found = classification(weights) if name == "cross-entropy" else binary(weights, name == "off-target")
    return with_weight_penalty(found, config.weight_penalty)
