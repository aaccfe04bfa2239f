"""The one place where values come back from the device that computes to the processor.

Whoever asks a GPU for a value waits until it has done all that it was told before, and has nothing to do meanwhile. So
nothing asks but `on_host`, and tests on a stand-in for a GPU (`tests/other_device.py`) find whoever asks otherwise.
What is meant, and worth its wait:

- in training, one transfer at the end of a pass over a part, for loss and score, and one when a checkpoint is written;
  in the first ten steps the counts of batch normalisation; with guidance, which scans of a batch have a mask; in
  pretraining, whether a batch has a wrong answer;
- in an explanation: whether volumes, masks and maps are finite and in range, which turns are needed by LRP (signed
  inputs take twice as many products), labels of regions and boxes that are hidden, and what LIME and ViT-CX fit by
  scikit-image, numpy and scipy;
- results on their way to a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def on_host(values: Tensor) -> Tensor:
    """The values of a tensor on the CPU, without a graph; of one that is there already, itself (detached)."""
    return values.detach().cpu()
