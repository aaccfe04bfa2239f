"""Runs of noise and untrained networks at 4 mm; one has labelled scans and scans outside the contrast."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
import torch
from torch import nn

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import Box, template_grid
from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.explaining.stage import explain_applied, explain_scans
from heatlas.pipeline.models.families.founding import FoundingCNN
from heatlas.pipeline.models.inputs import NetworkInput
from heatlas.pipeline.models.storage import load_model, save_model
from heatlas.pipeline.regions.stage import aggregate_applied, aggregate_relevance
from heatlas.pipeline.run.config.settings import AttributionConfig, Config, RegistrationConfig, TrainingConfig
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import map_names
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import Outcome
from heatlas.pipeline.training.application import apply_networks
from heatlas.pipeline.training.prediction import predict_test_part

BOX = Box((5, 7, 3), (29, 31, 33))
SPEC = NetworkInput(4.0, BOX)
GRID = template_grid(4.0)
ATLAS = load_atlas("neuromorphometrics-cat12", GRID)
CONFIG = Config(
    registration=RegistrationConfig(resolution_mm=4.0),
    attribution=AttributionConfig(
        methods=("lrp", "guided-backpropagation"), betas=(0.0, 0.5), start_value="probability"
    ),
    training=TrainingConfig(device="cpu"),
)
SPLIT = Split(
    (Fold(0, ("sub-2", "sub-4"), (), ("sub-1", "sub-3")), Fold(1, ("sub-1",), ("sub-3",), ("sub-2", "sub-4")))
)
LABELLED = (
    Scan("sub-1", None, "I1", "a.nii", label="AD"),
    Scan("sub-2", "ses-M000", "I2", "b.nii", label="CN"),
    Scan("sub-3", None, "I3", "c.nii", label="CN"),
    Scan("sub-4", None, "I4", "d.nii", label="AD"),
)
CONVERTER = Scan("sub-2", "ses-M024", "I5", "e.nii", diagnosis="MCI")
"""Trains network 0 with the scan of two years before."""
STRANGER = Scan("sub-5", None, "I6", "f.nii", diagnosis="MCI")


@dataclass(frozen=True)
class OutsideRun:
    layout: RunLayout

    def work(self, config: Config, executor: Executor) -> Work:
        return Work(self.layout, self.layout.root, config, LABELLED, SPLIT, executor, DigestCache(self.layout.digests))

    def predict(self, scans: tuple[Scan, ...] = (CONVERTER, STRANGER), config: Config = CONFIG) -> list[Outcome]:
        with ThreadPoolExecutor(1) as executor:
            return apply_networks(self.work(config, executor), scans, (0, 1))

    def explain(self, scans: tuple[Scan, ...] = (CONVERTER, STRANGER), config: Config = CONFIG) -> list[Outcome]:
        with ThreadPoolExecutor(1) as executor:
            return explain_applied(self.work(config, executor), scans, LABELLED, ATLAS)

    def aggregate_labelled(self) -> None:
        """Predictions, maps and tables of the labelled scans."""
        device = torch.device("cpu")
        tables = [
            predict_test_part(
                self.layout,
                load_model(self.layout.fold(fold.index), device),
                task_of(CONFIG.cohort),
                fold,
                LABELLED,
                device,
            )
            for fold in SPLIT.folds
        ]
        frame = pd.concat(tables, ignore_index=True)
        self.layout.group.mkdir(exist_ok=True)
        frame.to_csv(self.layout.group / "predictions.tsv", sep="\t", index=False, na_rep="n/a")
        predictions = read_table(self.layout.group / "predictions.tsv")
        names = map_names(CONFIG.attribution)
        with ThreadPoolExecutor(1) as executor:
            explain_scans(self.work(CONFIG, executor), LABELLED, predictions, ATLAS)
            aggregate_relevance(self.work(CONFIG, executor), LABELLED, predictions, names, GRID)

    def aggregate(self, scans: tuple[Scan, ...] = (CONVERTER, STRANGER)) -> bool:
        names = map_names(CONFIG.attribution)
        tables = (self.layout.group / "predictions.tsv", self.layout.group / "predictions_applied.tsv")
        with ThreadPoolExecutor(1) as executor:
            return aggregate_applied(self.work(CONFIG, executor), scans, tables, names)


def write_scans(layout: RunLayout, scans: Sequence[Scan]) -> None:
    """Registered scans of noise."""
    mask = np.zeros(GRID.shape, np.uint8)
    mask[8:30, 9:36, 6:31] = 1
    for number, scan in enumerate(scans):
        files = layout.scan(scan.participant_id, scan.session_id, 4.0)
        files.t1w.parent.mkdir(parents=True, exist_ok=True)
        t1w = (np.random.default_rng(number).uniform(20, 90, GRID.shape) * mask).astype(np.float32)
        nib.save(nib.Nifti1Image(t1w, GRID.affine), files.t1w)
        nib.save(nib.Nifti1Image(mask, GRID.affine), files.brain_mask)


def untrained(seed: int, offsets: bool = True, positive: bool = False) -> FoundingCNN:
    """A small network; with offsets of its normalisation, and with positive weights every unit has what to pass on."""
    torch.manual_seed(seed)
    network = FoundingCNN(BOX.shape, channels=(3, 4), pools=(2, 3), hidden_units=5)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm3d) and offsets:
            module.bias.data.normal_(0.3, 0.2)
        if isinstance(module, nn.Linear) and positive:
            module.weight.data.abs_()
    return network


def save_network(layout: RunLayout, fold: Fold, network: FoundingCNN, classes: Sequence[str] = ("CN", "AD")) -> None:
    """As the network of a fold, with its people."""
    people = {"train": fold.train, "validation": fold.validation, "test": fold.test}
    save_model(layout.fold(fold.index), network, SPEC, tuple(classes), {"participants": people})


def make_run(folder: Path) -> OutsideRun:
    layout = RunLayout(folder)
    write_scans(layout, (*LABELLED, CONVERTER, STRANGER))
    for fold in SPLIT.folds:
        save_network(layout, fold, untrained(fold.index, positive=True))
    return OutsideRun(layout)
