"""Full float32 precision.

On NVIDIA cards since Ampere, PyTorch uses TF32 (10-bit mantissa) for float32 convolutions by default, which breaks
conservation in the third digit and changes max-pool winners. Autocast lowers precision too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def exact_float32(device: torch.device) -> Iterator[None]:
    """Context with full float32 precision and deterministic convolutions; settings are restored afterwards.

    `device`: device of the computation; autocast is disabled there.
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
