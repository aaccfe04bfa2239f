"""Trained networks as a worker holds them, each with the controls that it was trained with."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heatlas.pipeline.attribution.network_view import exact_float32
from heatlas.pipeline.attribution.reference.references import Memory, Reference
from heatlas.pipeline.cohort.people.splits import people_of
from heatlas.pipeline.models.contract import members_of
from heatlas.pipeline.models.inputs import NetworkInput, as_channels, read_channels
from heatlas.pipeline.models.storage import LoadedModel, load_model
from heatlas.pipeline.regions.maps import read_map
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import FoldFiles
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.work.digests import DigestCache


@dataclass(frozen=True)
class ReferenceScan:
    """A registered scan that others are compared with; the digest is that of its image and brain mask."""

    files: ScanFiles
    digest: str
    count: ClassVar[int] = 1

    @property
    def name(self) -> str:
        return self.files.participant_id

    def seen(self, spec: NetworkInput) -> NDArray[np.float32]:
        return read_channels(self.files, spec)


@dataclass(frozen=True)
class MeanControls:
    """The mean of controls, where no scan of a single one is at hand; `count`: of them.

    It lies on the grid of the template; by an input contract on that of the network, since what such a network sees
    cannot be brought back.
    """

    path: Path
    digest: str
    count: int

    @property
    def name(self) -> str:
        return f"mean of {self.count} controls"

    def seen(self, spec: NetworkInput) -> NDArray[np.float32]:
        if spec.feeding is not None:
            return as_channels(read_map(self.path, spec.grid), spec)
        values = read_map(self.path, spec.template_grid)
        return (values if spec.box is None else np.ascontiguousarray(spec.box.crop(values)))[None]


Control = ReferenceScan | MeanControls


@dataclass(frozen=True)
class Network:
    """A trained network by its files, and the controls that a scan is compared with; none where nothing compares.

    `version`: digest of weights and description, which says what code makes a network of the user's own.
    """

    fold: int
    files: FoldFiles
    weights_digest: str
    version: str
    controls: tuple[Control, ...] = ()

    def load(self, device: torch.device) -> LoadedModel:
        return _model(self.files, self.version, device)

    @classmethod
    def of(cls, fold: int, files: FoldFiles, digests: DigestCache, controls: tuple[Control, ...]) -> Network:
        version = digests.joined([files.weights, files.description])
        return cls(fold, files, digests.digest(files.weights), version, controls)

    def reference(self, device: torch.device) -> Reference | None:
        """Volumes of the controls, whom the network was trained with, and what it answers to them; None without any."""
        if not self.controls:
            return None
        loaded, people = self.load(device), tuple(one.name for one in self.controls)
        trained = people_of(loaded.description, str(self.files.description), "train")
        single = {one.name for one in self.controls if isinstance(one, ReferenceScan)}
        strangers = sorted(single - set(trained))
        if strangers:
            raise BadInputError(
                f"{self.files.description}: the network was not trained with {strangers[0]}, who must not be a "
                "reference for it. Train the fold again with the present split."
            )
        volumes = torch.cat([_volume(one, loaded.input) for one in self.controls]).to(device)
        count, stands_for = len(members_of(loaded.model)), max(one.count for one in self.controls)
        members = [
            Reference(volumes, people, self._answers(device)[:, number], _memory(self, device, number), (), stands_for)
            for number in range(count if count > 1 else 0)
        ]
        logits = self.control_logits(device)
        return Reference(volumes, people, logits, _memory(self, device), tuple(members), stands_for)

    def control_logits(self, device: torch.device) -> Tensor:
        """What the network answers to its controls, (R, K)."""
        return self._answers(device).mean(1)

    def _answers(self, device: torch.device) -> Tensor:
        """What each member answers to the controls, (R, members, K)."""
        return torch.cat([_logits(self, one, device) for one in self.controls])


@functools.lru_cache(maxsize=8)
def _model(files: FoldFiles, version: str, device: torch.device) -> LoadedModel:
    """A process keeps a few networks, a dozen megabytes each; the version tells those of one file apart."""
    return load_model(files, device)


@functools.lru_cache(maxsize=32)
def _volume(control: Control, spec: NetworkInput) -> Tensor:
    """(1, C, D, H, W); kept by a process, half a gigabyte at most at 1 mm, since folds share most controls."""
    return torch.from_numpy(control.seen(spec))[None]


@functools.lru_cache(maxsize=32)
def _memory(network: Network, device: torch.device, member: int = -1) -> Memory:
    """What methods keep of a network's controls: a map or two; scans of one fold mostly have the same controls."""
    return {}


@functools.lru_cache(maxsize=4096)
def _logits(network: Network, control: Control, device: torch.device) -> Tensor:
    loaded = network.load(device)
    volume = _volume(control, loaded.input).to(device)
    with torch.no_grad(), exact_float32(device):
        return torch.stack([member(volume) for member in members_of(loaded.model)], dim=1)
