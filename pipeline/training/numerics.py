"""Numerical settings of a worker process, as contexts that restore the previous ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch.utils import deterministic


@contextmanager
def repeatable(device: torch.device, seed: int, threads: int) -> Iterator[None]:
    """Deterministic algorithms, threads and random numbers: training twice gives identical results.

    PyTorch has no deterministic backward pass of 3D max-pooling on a GPU and only warns; the windows of this network do
    not overlap, so its result is deterministic nonetheless.
    """
    before = torch.get_num_threads()
    strict, warn = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    devices = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.backends.cudnn.flags(benchmark=False, deterministic=True):
        try:
            torch.manual_seed(seed)
            torch.set_num_threads(threads)
            torch.use_deterministic_algorithms(True, warn_only=device.type == "cuda")
            deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
            yield
        finally:
            torch.set_num_threads(before)
            torch.use_deterministic_algorithms(strict, warn_only=warn)
            deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]


def mixed_precision(device: torch.device, precision: str = "auto") -> AbstractContextManager[None]:
    """Bfloat16 autocast if requested; its range is that of float32, so gradients need no scaling.

    ``auto`` uses it on GPUs that support it.
    """
    native = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    enabled = native if precision == "auto" else precision == "bfloat16-mixed"
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled)
