"""A run folder with registered synthetic scans at 4 mm, and its training; as a program it dies in mid-training."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import Executor, Future
from pathlib import Path

import nibabel as nib
import numpy as np

from heatlas.atlases.spaces import template_grid
from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.models.families.founding_family import FoundingConfig
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.models.storage import save_model
from heatlas.pipeline.run.config.settings import Config, RegistrationConfig, TrainingConfig
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.training import trainer
from heatlas.pipeline.training.stage import train_folds

CONFIG = Config(
    seed=5,
    registration=RegistrationConfig(resolution_mm=4.0),
    model=FoundingConfig(field_of_view="template", channels=(2, 3, 4), pools=(3, 3, 2), hidden_units=8, dropout=0.1),
    training=TrainingConfig(learning_rate=1e-2, max_epochs=3, min_epochs=1, patience=2),
)
SPLIT = Split(
    (
        Fold(0, train=("sub-3", "sub-4", "sub-5", "sub-6"), validation=("sub-7", "sub-8"), test=("sub-1", "sub-2")),
        Fold(1, train=("sub-1", "sub-2", "sub-7", "sub-8"), validation=("sub-5", "sub-6"), test=("sub-3", "sub-4")),
    )
)


class Inline(Executor):
    """Runs each job at once, in this process."""

    def submit(self, function, /, *args, **kwargs):
        future = Future()
        future.set_result(function(*args, **kwargs))
        return future


def labelled_scans():
    """Odd participants CN, even ones AD; participant 2 has two visits, participant 1 no session name."""
    scans = [
        Scan(f"sub-{n}", None if n == 1 else "ses-M00", f"I{n}", None, label="AD" if n % 2 == 0 else "CN")
        for n in range(1, 9)
    ]
    return [*scans, Scan("sub-2", "ses-M12", "I22", None, label="AD")]


def write_registered(layout: RunLayout) -> None:
    grid = template_grid(4.0)
    mask = np.zeros(grid.shape, np.uint8)
    mask[7:42, 9:50, 3:41] = 1
    for number, scan in enumerate(labelled_scans()):
        random = np.random.default_rng(number)
        volume = random.normal(60, 10, grid.shape).astype(np.float32)
        volume[18:28, 25:35, 12:22] += 40 * (scan.label == "AD")
        files = layout.scan(scan.participant_id, scan.session_id, 4.0)
        files.t1w.parent.mkdir(parents=True, exist_ok=True)
        nib.save(nib.Nifti1Image(volume * mask, grid.affine), files.t1w)
        nib.save(nib.Nifti1Image(mask, grid.affine), files.brain_mask)


def train_all(layout: RunLayout, scans=None, split: Split = SPLIT, config: Config = CONFIG):
    scans = labelled_scans() if scans is None else scans
    work = Work(layout, layout.root, config, tuple(scans), split, Inline(), DigestCache(layout.digests))
    return train_folds(work, scans)


def save_untrained(folder: Path, config: Config, fold: Fold) -> Path:
    """A network of a fold with the weights that it begins with, and its people; seed it before."""
    spec = configured_input(config)
    people = {"train": list(fold.train), "validation": list(fold.validation), "test": list(fold.test)}
    network = build_network(config.model, spec.shape, 2)
    save_model(RunLayout(folder).fold(fold.index), network, spec, ("CN", "AD"), {"participants": people})
    return folder


def die_at_batch(number: int) -> None:
    augment, calls = trainer.augment, [0]

    def deadly(*arguments):
        calls[0] += 1
        if calls[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return augment(*arguments)

    trainer.augment = deadly


if __name__ == "__main__":
    die_at_batch(int(sys.argv[2]))
    train_all(RunLayout(Path(sys.argv[1])))
