"""The training objective of a run, from its task and settings, and the training targets."""

from __future__ import annotations

import torch

from pipeline.cohort.people.tasks import Task
from pipeline.run.config.settings import TrainingConfig
from pipeline.training.objectives.classification import class_weights, classification
from pipeline.training.objectives.records import Objective
from pipeline.training.objectives.regression import Scale, regression


def objective_of(task: Task, config: TrainingConfig, targets: torch.Tensor) -> Objective:
    """Cross-entropy for classes, squared error or Huber loss for regression."""
    if task.is_number:
        return regression(config.regression_loss, Scale.of(targets))
    return classification(class_weights(targets, config.balance_classes, len(task.outputs)))
