"""How a step computes: repeatable numbers, settled statistics, clipped gradients, and one device or several.

PyTorch initialises the running variance of batch normalisation with 1 and updates it with momentum 0.1. That of a first
convolution over intensities in [0, 1] is a few thousandths, so the 1 dominates for some 80 steps: more than ten epochs
of a small cohort. Averaging the first batches with equal weight makes statistics usable from the first epoch.

Adaptive clipping lets no unit change by more than a share of its own size in one step: gradients of B-cos networks are
smaller than those of others, by an amount that depends on B (Brock, De, Smith & Simonyan 2021).

On several devices, processes share the scans of each step (torch's DDP) with the same random order and augmentation,
and gradients are averaged so that a step is that of the whole batch: the result is that of one process up to the order
of floating-point sums, except for dropout and, on the CPU, for the statistics of batch normalisation.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.utils import deterministic

from heatlas.pipeline.models.dynamic import DynamicLinear, calibrate, needs_calibration
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.work.host import on_host


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


MOMENTUM = 0.1
"""PyTorch's default."""
SETTLED = "momentum_is_settled"
"""Attribute of a module that has seen so many batches."""


def prepare_step(model: nn.Module) -> None:
    """Set the momentum for the next batch: 1/n for batch n, at least `MOMENTUM`."""
    warming = [module for module in model.modules() if _counts(module) and not getattr(module, SETTLED, False)]
    if not warming:
        return
    counts = on_host(torch.stack([torch.as_tensor(module.num_batches_tracked) for module in warming])).tolist()
    for module, count in zip(warming, counts, strict=True):
        module.momentum = max(MOMENTUM, 1 / (count + 1))
        if count + 1 >= 1 / MOMENTUM:  # a count only grows: no need to wait for a GPU to tell it again
            setattr(module, SETTLED, True)


def _counts(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm | DynamicLinear) and getattr(module, "num_batches_tracked", None) is not None


def take_constants(model: nn.Module, volumes: Tensor) -> None:
    """Let the constants that a network with fresh weights takes from data be those of volumes (B, 1, D, H, W)."""
    if needs_calibration(model):
        prepare_step(model)
        calibrate(model.train(), volumes)


LEAST_NORM = 1e-3
"""Smaller weights count as this large, so that a unit can leave 0."""


def unit_norms(values: Tensor) -> Tensor:
    """Norm of each output unit, (units, 1, ...): over all axes but the first; of a vector (1,), its own.

    Examples
    --------
    >>> unit_norms(torch.tensor([[3.0, 4.0], [0.0, 2.0]])).tolist()
    [[5.0], [2.0]]
    """
    rows = values.flatten(1) if values.dim() > 1 else values[None]
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms.view(-1, *[1] * (values.dim() - 1))


@torch.no_grad()
def clip_units(parameters: Iterable[nn.Parameter], share: float) -> None:
    """Scale gradients down so that of no unit ``|g| > share * max(|w|, 0.001)``."""
    for weight in parameters:
        if weight.grad is not None:
            most = share * unit_norms(weight).clamp(min=LEAST_NORM)
            norms = unit_norms(weight.grad)
            weight.grad.mul_(torch.where(norms > most, most / norms.clamp(min=1e-12), torch.ones_like(norms)))


@dataclass(frozen=True)
class Ranks:
    """Rank of this process, and number of processes."""

    rank: int = 0
    count: int = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def share(self, indices: np.ndarray) -> np.ndarray:
        """Share of some scans that this process works on: every `count`-th one.

        Examples
        --------
        >>> Ranks(1, 2).share(np.arange(5)).tolist()
        [1, 3]
        """
        return indices[self.rank :: self.count]

    def wrapped(self, model: nn.Module) -> nn.Module:
        if self.count == 1:
            return model
        device = next(model.parameters()).device
        return DistributedDataParallel(model, [device] if device.type == "cuda" else None)

    def gathered(self, logged: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The values of all processes, concatenated; on the CPU, as they are given."""
        if self.count == 1:
            return dict(logged)
        parts: list[Any] = [None] * self.count
        distributed.all_gather_object(parts, dict(logged))
        return {name: torch.cat([part[name] for part in parts]) for name in logged}

    def agreed(self, value: Any) -> Any:
        """The value of the first process, so that all take the same decisions."""
        if self.count == 1:
            return value
        said = [value]
        distributed.broadcast_object_list(said, src=0)
        return said[0]


ALONE = Ranks()


def synchronised(model: nn.Module, ranks: Ranks, device: torch.device) -> nn.Module:
    """The network with batch statistics over all processes, where torch has them (on GPUs)."""
    if ranks.count == 1 or device.type != "cuda":
        return model
    return nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-any-return, no-untyped-call]


def device_of_rank(device: torch.device, ranks: Ranks) -> torch.device:
    return torch.device("cuda", ranks.rank) if device.type == "cuda" and ranks.count > 1 else device


def require_devices(count: int, device: torch.device) -> None:
    if device.type == "cuda" and count > torch.cuda.device_count():
        raise UsageError(
            f"training.devices = {count}: this machine has {torch.cuda.device_count()} usable GPUs. Set at most that."
        )


def in_processes(count: int, device: torch.device, function: Callable[..., None], *arguments: Any) -> None:
    """Call ``function(ranks, *arguments)`` in `count` connected processes and wait for all."""
    require_devices(count, device)
    with tempfile.TemporaryDirectory(prefix="heatlas-") as folder:
        meeting = Path(folder) / "meeting"
        spawn(  # type: ignore[no-untyped-call]
            _process, (count, device.type, str(meeting), function, arguments), nprocs=count
        )


def _process(
    rank: int, count: int, kind: str, meeting: str, function: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    with _group(Ranks(rank, count), "nccl" if kind == "cuda" else "gloo", meeting) as ranks:
        function(ranks, *arguments)


@contextmanager
def _group(ranks: Ranks, backend: str, meeting: str) -> Iterator[Ranks]:
    if backend == "nccl":
        torch.cuda.set_device(ranks.rank)
    if sys.platform == "linux":  # all on this machine, whatever its network
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group(backend, init_method=f"file://{meeting}", rank=ranks.rank, world_size=ranks.count)
    try:
        yield ranks
    finally:
        distributed.destroy_process_group()
