"""Train until the given batch, then die by SIGKILL; run by test_resuming.py in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from heatlas.pipeline.training import trainer
from heatlas.pipeline.training.objectives.of_task import class_weights, classification
from heatlas.pipeline.training.steps import repeatable
from tests.training.planted import QUICK, planted_volumes, small_network
from tests.training.run_of_folds import die_at_batch

if __name__ == "__main__":
    checkpoint, deadly_batch = Path(sys.argv[1]), int(sys.argv[2])
    die_at_batch(deadly_batch)
    with repeatable(torch.device("cpu"), 1, 1):
        training, validation = planted_volumes(14, 1), planted_volumes(8, 2)
        objective = classification(class_weights(training.targets, balance=True))
        trainer.train(
            small_network(), training, validation, objective, QUICK, 43, trainer.Resumption(checkpoint, "key")
        )
