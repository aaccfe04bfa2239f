"""Logits that say which class is more likely, not only who is more likely to be of it.

All logits of a dynamic linear network share an offset that one step of training moves by more than the classes differ:
such a network ranks people well and gives all of them the same class. After training, an offset of each class is fitted
to people whom the network knows, and added to the constant of its last layer (`pipeline.models.dynamic.logits`), which
the ledger of inherent maps lists. Contributions of voxels stay as they are; ranks and areas by the probability of a
class only where there are two: that of one of three depends on the offsets of all.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from torch import nn

from heatlas.pipeline.models.dynamic.logits import LogitLayer
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.work.host import on_host
from heatlas.pipeline.training.baselines.ridge import Floats
from heatlas.pipeline.training.trainer import batches
from heatlas.pipeline.training.volumes import LabelledVolumes

SHRINKAGE = 1e-3
"""Penalty on the squared distance of the offsets from the middle between the classes. Where classes overlap it has no
effect; where they do not, many offsets are equally good, and it chooses the middle."""


def balanced_offsets(logits: Floats, targets: NDArray[np.int64]) -> Floats:
    """Offsets (C,), with a mean of 0, that give the least cross-entropy with each class weighted alike.

    `logits`: (scans, C). `targets`: (scans,), classes, 0 to C - 1.

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

    `model`: in evaluation mode; its last `LogitLayer` is changed. `part`: scans that the network knows, with classes as
    targets. `batch_size`: scans asked at a time. Raises UsageError for a network without such a constant.
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
