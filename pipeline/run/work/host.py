"""The one place where values come back from the device that computes to the processor.

Whoever asks a GPU for a value waits until it has done all that it was told before, and has nothing to do meanwhile. So
nothing asks but `on_host`, and tests on a stand-in for a GPU (`tests/other_device.py`) find whoever asks otherwise.
What is meant, and worth its wait:

- in training, the classes of the part and the constants of a fresh network before the first step; loss and score at the
  end of a pass over a part; the checkpoint; in the first ten steps the counts of batch normalisation; with guidance,
  which scans of a batch have a mask; with SimCLR, whether a batch has a wrong answer;
- in an explanation: whether volumes, masks and maps are finite and in range, whether LRP needs twice the products
  (signed inputs), which boxes and regions change anything, whether expected gradients need more points, and what LIME
  and ViT-CX fit by scikit-image, numpy and scipy;
- results on their way to a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def on_host(values: Tensor) -> Tensor:
    """The values of a tensor on the CPU, without a graph; of one that is there already, itself (detached)."""
    return values.detach().cpu()
