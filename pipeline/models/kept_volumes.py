"""Scans as a network sees them, kept uncompressed on disk and mapped into memory when a batch is read.

One file per scan, as a chunk of zarr or of MONAI's ``PersistentDataset`` would be. Its name is a digest of all that
decides its content, so that a changed scan gets another file, and processes that write the same file write the same
bytes. Pages that were read stay in the cache of the operating system while there is room, which all folds share, and
are no memory of the process. Float16: for intensities in [0, 1] its rounding error (at most 0.00025) is an eighth of
that of 8 bits. A brain box takes 1.3 MB per scan at 2 mm and 9.4 MB at 1 mm.
"""

from __future__ import annotations

import io
import math
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from heatlas.pipeline.models.inputs import NetworkInput, read_channels
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.work.digests import canonical_json, text_digest
from heatlas.pipeline.run.work.host import on_host

STORED = torch.float16


@dataclass(frozen=True)
class KeptVolumes:
    """Volumes of some scans, one file each, read when asked for, as a float16 tensor (N, C, D, H, W) would be."""

    paths: tuple[Path, ...]
    shape: tuple[int, ...]
    device: torch.device

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, chosen: torch.Tensor | slice) -> torch.Tensor:
        """Volumes (B, C, D, H, W) of a slice, of places, or of a mask of scans, on the device."""
        which = chosen if isinstance(chosen, slice) else on_host(chosen).numpy()
        places = np.arange(len(self))[which]
        volumes = np.empty((len(places), *self.shape[1:]), np.float16)
        for row, place in enumerate(places):
            volumes[row] = np.load(self.paths[place], mmap_mode="r")
        return torch.from_numpy(volumes).to(self.device)

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * STORED.itemsize


def keep_volumes(
    files: Sequence[ScanFiles], spec: NetworkInput, folder: Path, device: torch.device, threads: int
) -> KeptVolumes:
    """Write the volumes of registered scans that are not yet in a folder, which several processes may use at a time.

    `threads`: files read at a time. No partial file is left if the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = tuple(folder / f"{_key(scan, spec)}.npy" for scan in files)

    def keep(index: int) -> None:
        if not paths[index].is_file():
            _write(paths[index], read_channels(files[index], spec).astype(np.float16))

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(keep, range(len(files))))
    return KeptVolumes(paths, (len(files), spec.channels, *spec.shape), device)


def _key(files: ScanFiles, spec: NetworkInput) -> str:
    """Digest of the scan's files (path, size and times; that of the status cannot be reset) and of the input.

    Not of the code: the folder exists only while a command works.
    """
    marks = {}
    for path in (*files.seen, files.tissue):
        if path is not None and path.is_file():
            status = path.stat()
            marks[str(path)] = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
    return text_digest(canonical_json([str(files.image), marks, spec]))


def _write(path: Path, volume: np.ndarray) -> None:
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.{threading.get_ident()}")
    content = io.BytesIO()
    np.save(content, volume, allow_pickle=False)
    try:
        temporary.write_bytes(content.getbuffer())  # `np.save` to a file does not say that the disk is full
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
