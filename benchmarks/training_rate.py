"""Steps of training per second from registered scans, against one batch that stays in memory, beside MONAI's loaders.

``python benchmarks/training_rate.py --output docs/benchmarks/training_rate.md`` writes random scans as registered NIfTI
files, and trains the same network by: one resident batch (no data are read), the trainer of Heatlas with its
augmentation, MONAI's CacheDataset + DataLoader, and its ThreadDataLoader. Arms take turns; CPU seconds of the process,
the best turn of each.
"""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
from harness import arguments_of, show_page, table
from monai.data import CacheDataset, DataLoader, ThreadDataLoader
from timed import in_turns
from torch import nn

from heatlas.atlases.spaces import template_grid
from heatlas.atlases.templates import load_template
from heatlas.pipeline.models.families.founding_family import FoundingConfig
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.models.inputs import NetworkInput, covering_box, read_network_volume
from heatlas.pipeline.run.config.settings import TrainingConfig
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.work.host import kept_memory
from heatlas.pipeline.training.objectives.of_task import classification
from heatlas.pipeline.training.objectives.records import Context
from heatlas.pipeline.training.steps import ALONE
from heatlas.pipeline.training.trainer import TrainingSetup, _train_epoch, channels_last, parameter_groups
from heatlas.pipeline.training.volumes import LabelledVolumes, load_volumes

NETWORK = FoundingConfig()
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Cohort:
    files: tuple[ScanFiles, ...]
    targets: torch.Tensor
    spec: NetworkInput


def written(folder: Path, scans: int, resolution: float) -> Cohort:
    template = load_template(resolution)
    grid, brain = template_grid(resolution), np.asarray(template.brain_mask)
    files = tuple(ScanFiles(folder, f"sub-{n}", None, resolution) for n in range(scans))
    for number, one in enumerate(files):
        values = np.random.default_rng(number).uniform(1, 100, grid.shape).astype(np.float32) * brain
        one.t1w.parent.mkdir(parents=True)
        nib.Nifti1Image(values, grid.affine).to_filename(one.t1w)
        nib.Nifti1Image(brain.astype(np.uint8), grid.affine).to_filename(one.brain_mask)
    spec = NetworkInput(resolution, covering_box(template, NETWORK))
    return Cohort(files, torch.arange(scans) % 2, spec)


def fresh(cohort: Cohort, device: torch.device = CPU) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    network = build_network(NETWORK, cohort.spec.shape, 2).to(device)
    channels_last(network)
    return network.train(), torch.optim.Adam(parameter_groups(network, 1.0), 1e-4)


def step(network: nn.Module, optimiser: torch.optim.Optimizer, volumes: torch.Tensor, targets: torch.Tensor) -> None:
    nn.functional.cross_entropy(network(volumes), targets).backward()
    optimiser.step()
    optimiser.zero_grad()


def resident(cohort: Cohort, data: LabelledVolumes, size: int) -> Callable[[], None]:
    network, optimiser = fresh(cohort, data.targets.device)
    volumes, targets = data.batch(np.arange(size))
    volumes = volumes.float()

    def epoch() -> None:
        for _ in range(len(data) // size):
            step(network, optimiser, volumes, targets)

    return epoch


def heatlas(cohort: Cohort, data: LabelledVolumes, size: int) -> Callable[[], None]:
    network, optimiser = fresh(cohort, data.targets.device)
    config = TrainingConfig(batch_size=size, precision="float32")  # as a resident batch
    weights = torch.ones(2, device=data.targets.device)
    setup = TrainingSetup(classification(weights), Context(), config, 0, ALONE, None)
    epochs = iter(range(1, 1000))
    return lambda: _train_epoch(network, optimiser, data, setup, next(epochs)) and None


def monai(cohort: Cohort, size: int, loader: type[DataLoader]) -> Callable[[], None]:
    network, optimiser = fresh(cohort)
    scans = [{"number": number} for number in range(len(cohort.files))]

    def read(scan: dict[str, int]) -> dict[str, torch.Tensor]:
        number = scan["number"]
        volume = torch.from_numpy(read_network_volume(cohort.files[number], cohort.spec))
        return {"volume": volume[None], "target": cohort.targets[number]}

    batches = loader(CacheDataset(scans, read, progress=False), batch_size=size, shuffle=True)

    def epoch() -> None:
        for batch in batches:
            step(network, optimiser, batch["volume"], batch["target"])

    return epoch


def main() -> None:
    given = arguments_of(__doc__, "--repeats --output", scans=8, batch=4, resolution=2.0)
    torch.set_num_threads(1)
    with kept_memory(), tempfile.TemporaryDirectory() as folder:
        cohort, size = written(Path(folder), given.scans, given.resolution), given.batch
        data = load_volumes(cohort.files, cohort.targets, cohort.spec, Path(folder, "kept"), CPU, 1)
        arms = {
            "one resident batch": resident(cohort, data, size),
            "Heatlas, augmentation included": heatlas(cohort, data, size),
            "MONAI CacheDataset + DataLoader": monai(cohort, size, DataLoader),
            "MONAI CacheDataset + ThreadDataLoader": monai(cohort, size, ThreadDataLoader),
        }
        seconds = in_turns(arms, given.repeats + 1)
    found = {name: np.array([first, min(later)]) * size / given.scans for name, (first, *later) in seconds.items()}
    bound = found["one resident batch"][1]
    columns = [
        "epoch of the founding CNN",
        "first, s per step",
        "best later, s per step",
        "rate, % of a resident batch",
    ]
    rows = [[name, f"{a:.2f}", f"{b:.2f}", f"**{100 * bound / b:.0f}**"] for name, (a, b) in found.items()]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"Peak memory of the process, with the caches of both peers: {peak:.1f} GiB.")
    show_page("\n".join(table(columns, rows, "---:")), given.output, "Training from registered scans")


if __name__ == "__main__":
    main()
