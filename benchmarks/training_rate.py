"""Steps of training per second from registered scans, against one batch that stays in memory, beside MONAI's loaders.

``python benchmarks/training_rate.py --output docs/benchmarks/training_rate.md`` writes random scans as registered NIfTI
files, and trains the same network by: one resident batch (no data are read), the trainer of Heatlas with its
augmentation, MONAI's CacheDataset + DataLoader, and its ThreadDataLoader. Arms take turns; CPU seconds of the process,
the best turn of each.

``--bound`` compares a step at 1 mm with what its floating-point operations would take at the rate of a large matrix
product, and with its convolutions alone, in the same run.
"""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
from harness import arguments_of, show_page, table, write_section
from monai.data import CacheDataset, DataLoader, ThreadDataLoader
from timed import best_of, in_turns
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

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
from heatlas.pipeline.training.trainer import TrainingSetup, _train_epoch, channels_last
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
    return network.train(), torch.optim.Adam(network.parameters(), 1e-4)


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


@kept_memory()
def measured(scans: int, size: int, resolution: float, repeats: int) -> list[tuple[str, float, float]]:
    """Name, seconds of the first epoch and of the best of the later ones, for each arm."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        cohort = written(Path(folder), scans, resolution)
        data = load_volumes(cohort.files, cohort.targets, cohort.spec, Path(folder, "kept"), CPU, 1)
        arms = {
            "one resident batch": resident(cohort, data, size),
            "Heatlas, augmentation included": heatlas(cohort, data, size),
            "MONAI CacheDataset + DataLoader": monai(cohort, size, DataLoader),
            "MONAI CacheDataset + ThreadDataLoader": monai(cohort, size, ThreadDataLoader),
        }
        seconds = in_turns(arms, repeats + 1)
    return [(name, spent[0], min(spent[1:])) for name, spent in seconds.items()]


@kept_memory()
def step_against_bounds(batch: int, repeats: int, resolution: float = 1.0) -> str:
    """What a training step of random volumes takes, and what its operations would."""
    torch.set_num_threads(1)
    network = build_network(NETWORK, covering_box(load_template(resolution), NETWORK).shape, 2).train()
    channels_last(network)
    optimiser = torch.optim.Adam(network.parameters(), 1e-4)
    volumes = torch.rand(batch, 1, *network.architecture.input_shape)
    targets = torch.arange(batch) % 2
    with FlopCounterMode(display=False) as counter:
        step(network, optimiser, volumes, targets)
    whole = best_of(lambda: step(network, optimiser, volumes, targets), repeats)
    square = torch.rand(2048, 2048)
    peak = 2 * 2048**3 / best_of(lambda: square @ square, 6)
    convolutions: list[tuple[nn.Module, torch.Tensor]] = []
    hooks = [
        layer.register_forward_hook(lambda layer, given, _: convolutions.append((layer, given[0].detach())))
        for layer in network.modules()
        if isinstance(layer, nn.Conv3d)
    ]
    with torch.no_grad():
        network(volumes)
    for hook in hooks:
        hook.remove()
    alone = sum(best_of(partial(alone_twice, *one), repeats + 1) for one in convolutions)
    flops = counter.get_total_flops()
    return (
        f"A step of {batch} scans of {' × '.join(map(str, volumes.shape[2:]))} voxels: {flops / 1e9:.0f} GFLOP in "
        f"{whole:.2f} s. At the {peak / 1e9:.0f} GFLOP/s of a product of two 2048 × 2048 matrices they would take "
        f"{flops / peak:.2f} s: **{whole * peak / flops:.1f} ×** the bound. The convolutions alone, forward and "
        f"backward, take {alone:.2f} s, {alone * peak / flops:.1f} × the bound; the rest of a step are batch "
        "normalisation, ReLU and pooling, which have few operations and read and write whole volumes."
    )


def alone_twice(layer: nn.Module, given: torch.Tensor) -> None:
    """Forward and backward through a layer; the image itself needs no gradient."""
    answer = layer(given.requires_grad_(given.shape[1] > 1))
    answer.backward(torch.ones_like(answer))


def main() -> None:
    given = arguments_of(
        __doc__,
        "--repeats --output",
        scans=8,
        batch=4,
        resolution=2.0,
        bound=(False, "only the step at 1 mm against its bounds"),
    )
    heading = "Training from registered scans"
    if given.bound:
        said = step_against_bounds(given.batch, given.repeats)
        print(said)
        if given.output:
            body = f"`python benchmarks/training_rate.py --bound --batch {given.batch}`, one thread.\n\n{said}"
            write_section(given.output, "A step at 1 mm against its bounds", body, heading)
        return
    found = measured(given.scans, given.batch, given.resolution, given.repeats)
    steps, bound = given.scans // given.batch, found[0][2]
    columns = [
        "epoch of the founding CNN",
        "first, s per step",
        "best later, s per step",
        "rate, % of a resident batch",
    ]
    rows = [[name, f"{a / steps:.2f}", f"{b / steps:.2f}", f"**{100 * bound / b:.0f}**"] for name, a, b in found]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"Peak memory of the process, with the caches of both peers: {peak:.1f} GiB.")
    show_page("\n".join(table(columns, rows, "---:")), given.output, heading)


if __name__ == "__main__":
    main()
