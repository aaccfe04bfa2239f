"""Float32 that is float32.

On NVIDIA cards since Ampere PyTorch convolves float32 in TF32 (10-bit mantissa) unless told otherwise, which breaks
conservation in the third digit and flips max-pool winners. Autocast does the same more openly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def exact_float32(device: torch.device) -> Iterator[None]:
    """Full float32 precision and deterministic convolutions inside, the caller's settings restored after.

    Parameters
    ----------
    device : torch.device
        Where the work happens; autocast is switched off there.
    """
    matmul = torch.backends.cuda.matmul
    allowed = matmul.allow_tf32
    with (
        torch.backends.cudnn.flags(
            enabled=torch.backends.cudnn.enabled, benchmark=False, deterministic=True, allow_tf32=False
        ),
        torch.autocast(device.type, enabled=False),
    ):
        matmul.allow_tf32 = False
        try:
            yield
        finally:
            matmul.allow_tf32 = allowed
