"""Train one network on several devices: processes that share the scans of each step (torch's DDP).

Each process holds all volumes, draws the same random order and augmentation, and takes its share of a step. Gradients
are averaged so that a step is that of the whole batch: with the same scans per step, several processes give the result
of one, up to the order of floating-point sums, except for dropout (drawn by each process) and batch normalisation. On
GPUs the latter becomes `torch.nn.SyncBatchNorm`, with statistics over the whole step; torch has none for the CPU, where
statistics are those of each share and the running ones those of the first process.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from heatlas.pipeline.run.errors import UsageError


@dataclass(frozen=True)
class Ranks:
    """Rank of this process, and number of processes."""

    rank: int = 0
    count: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes files."""
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
        """The network whose backward pass averages gradients over processes."""
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
    """One GPU per process; the CPU is shared."""
    return torch.device("cuda", ranks.rank) if device.type == "cuda" and ranks.count > 1 else device


def require_devices(count: int, device: torch.device) -> None:
    """Refuse more GPUs than there are."""
    if device.type == "cuda" and count > torch.cuda.device_count():
        raise UsageError(
            f"training.devices = {count}: this machine has {torch.cuda.device_count()} usable GPUs. Set at most that."
        )


def in_processes(count: int, device: torch.device, function: Callable[..., None], *arguments: Any) -> None:
    """Call ``function(ranks, *arguments)`` in `count` connected processes and wait for all.

    Raises torch.multiprocessing.ProcessRaisedException with the traceback of the process that failed.
    """
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
