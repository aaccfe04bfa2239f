"""The training stage: one network per fold, and a prediction for every labelled scan by a network that never saw it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from pipeline.cohort.people.splits import Fold, Split, require_both_classes, require_disjoint
from pipeline.cohort.records import Scan
from pipeline.models.device import chosen_device
from pipeline.models.founding import FoundingCNN
from pipeline.models.inputs import NetworkInput, configured_input
from pipeline.models.storage import load_model, save_model
from pipeline.run.config.settings import Config
from pipeline.run.declared import Table
from pipeline.run.layout.run_layout import FoldFiles, RunLayout
from pipeline.run.tables import read_table, write_table
from pipeline.run.work.digests import DigestCache, unit_key
from pipeline.run.work.jobs import Job, Outcome, run_jobs
from pipeline.run.work.seeds import derived_seed
from pipeline.training.checkpoints import checkpoint_path, remove_checkpoint
from pipeline.training.control import control_of
from pipeline.training.numerics import kept_memory, repeatable
from pipeline.training.prediction import PREDICTION_COLUMNS, predict_test_part, target_of
from pipeline.training.trainer import Resumption, Trained, class_weights, train
from pipeline.training.volumes import LabelledVolumes, load_volumes

STAGE = "training"

HISTORY_COLUMNS = {
    "epoch": "Number of the epoch, from 1",
    "train_loss": "Weighted cross-entropy over the training part during the epoch (with dropout and augmentation)",
    "train_balanced_accuracy": "Balanced accuracy over the training part during the epoch",
    "validation_loss": "Weighted cross-entropy over the validation part after the epoch",
    "validation_balanced_accuracy": "Balanced accuracy over the validation part after the epoch",
    "best": "true for the epoch whose weights are kept",
}
"""Columns of ``history.tsv`` and their descriptions."""
HISTORIES_TABLE = Table(
    "histories", HISTORY_COLUMNS, "epoch, one table per fold", "How did training go?", stage="training",
    place="fold.history",
)  # fmt: skip


@dataclass(frozen=True)
class FoldTask:
    """All that a worker needs to train one fold; picklable.

    Parameters
    ----------
    layout : RunLayout
    fold : Fold
    scans : tuple of Scan
        Labelled and registered scans of the participants of the fold.
    spec : NetworkInput
    config : Config
    seed : int
        Of this fold.
    """

    layout: RunLayout
    fold: Fold
    scans: tuple[Scan, ...]
    spec: NetworkInput
    config: Config
    seed: int

    @property
    def classes(self) -> tuple[str, str]:
        """Labels of output units 0 and 1."""
        return self.config.cohort.negative, self.config.cohort.positive

    def part(self, participants: Sequence[str]) -> tuple[Scan, ...]:
        return tuple(scan for scan in self.scans if scan.participant_id in participants)


def train_folds(
    layout: RunLayout,
    scans: Sequence[Scan],
    split: Split,
    config: Config,
    executor: Executor,
    digests: DigestCache,
) -> list[Outcome]:
    """Train one network per fold and predict its test participants.

    Parameters
    ----------
    layout : RunLayout
    scans : sequence of Scan
        Labelled and registered; a scan whose registration failed is simply not among them.
    split : Split
    config : Config
    executor : concurrent.futures.Executor
    digests : DigestCache

    Returns
    -------
    list of Outcome
        One per fold. Predictions of the folds that succeeded are in ``layout.predictions``.

    Raises
    ------
    BadInputError
        Before any training: if the grid is too small for the network, a label is outside the contrast, or a
        participant is in two parts of a fold.
    """
    spec = configured_input(config)
    _build_network(config, spec, seed=0)  # refuses a grid that is too small before work starts
    for fold in split.folds:
        require_disjoint(fold)
    versions = {scan.name: _registered_version(layout, scan, config, digests) for scan in scans}
    jobs = [_job(layout, fold, scans, spec, config, versions) for fold in split.folds]
    outcomes = run_jobs(layout, jobs, executor, "Training")
    for result, fold in zip(outcomes, split.folds, strict=True):
        if result.ok:
            remove_checkpoint(checkpoint_path(layout.fold(fold.index).folder))
    _collect_predictions(layout, [fold for result, fold in zip(outcomes, split.folds, strict=True) if result.ok])
    return outcomes


def _job(
    layout: RunLayout,
    fold: Fold,
    scans: Sequence[Scan],
    spec: NetworkInput,
    config: Config,
    versions: Mapping[str, str],
) -> Job:
    members = {*fold.train, *fold.validation, *fold.test}
    own = tuple(scan for scan in scans if scan.participant_id in members)
    task = FoldTask(layout, fold, own, spec, config, derived_seed(config.seed, STAGE, fold.index))
    targets = {scan.name: target_of(scan, task.classes) for scan in own}
    parameters = [fold, targets, task.classes, config.model, config.training, config.registration.resolution_mm]
    parameters.append(control_of(config))
    key = unit_key(
        {scan.name: versions[scan.name] for scan in own},
        [*parameters, task.seed],
        "pipeline.models",
        "pipeline.training",
        "pipeline.run.work.seeds",
    )
    files = layout.fold(fold.index)
    outputs = {name: getattr(files, name) for name in ("weights", "description", "history", "predictions")}
    outputs |= {f"{name}_columns": outputs[name].with_suffix(".json") for name in ("history", "predictions")}
    return Job(STAGE, files.folder.name, key, outputs, train_fold, (task, key))


def train_fold(outputs: dict[str, Path], task: FoldTask, key: str) -> Mapping[str, Any]:
    """Train one fold and predict its test part; the function of a `Job`."""
    files = FoldFiles(outputs["weights"].parent)
    config = task.config
    device = chosen_device(config.training)
    with kept_memory(), repeatable(device, task.seed, config.training.threads):
        training = _load(task, "training", task.fold.train, device)
        validation = _load(task, "validation", task.fold.validation, device)
        model = _build_network(config, task.spec, task.seed).to(device)
        path = checkpoint_path(task.layout.fold(task.fold.index).folder)
        trained = train(model, training, validation, config.training, task.seed, Resumption(path, key))
        model.load_state_dict(trained.weights)
        save_model(files, model, task.spec, task.classes, _description(task, trained, training, device))
        write_table(files.history, _history(trained), HISTORY_COLUMNS)
        loaded = load_model(files, device)
        predictions = predict_test_part(task.layout, loaded, task.fold, task.scans, device)
    write_table(files.predictions, predictions, PREDICTION_COLUMNS)
    selection = trained.selection
    return {"epochs": selection.epoch, "best_epoch": selection.best_epoch, "best_accuracy": selection.best_accuracy}


def _load(task: FoldTask, name: str, participants: Sequence[str], device: torch.device) -> LabelledVolumes:
    scans = task.part(participants)
    targets = [target_of(scan, task.classes) for scan in scans]
    require_both_classes(task.fold.index, name, [scan.label for scan in scans], task.classes)
    files = [task.layout.scan(s.participant_id, s.session_id, task.spec.resolution_mm) for s in scans]
    return load_volumes(files, targets, task.spec, device, task.config.training.threads)


def _build_network(config: Config, spec: NetworkInput, seed: int) -> FoundingCNN:
    """A freshly initialised network; the same for the same seed."""
    settings = config.model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(seed, "weights"))
        return FoundingCNN(spec.shape, settings.channels, settings.pools, settings.hidden_units, settings.dropout)


def _description(task: FoldTask, trained: Trained, training: LabelledVolumes, device: torch.device) -> dict[str, Any]:
    """What the description file says beyond the network itself."""
    fold, config, selection = task.fold, task.config, trained.selection
    parts = {"train": fold.train, "validation": fold.validation, "test": fold.test}
    early = selection.stopped_early(config.training)
    return {
        "fold": fold.index,
        "control": control_of(config),
        "participants": {name: sorted(members) for name, members in parts.items()},
        "scans": {name: [scan.name for scan in task.part(members)] for name, members in parts.items()},
        "class_weights": class_weights(training.targets, config.training.balance_classes).tolist(),
        "training": dataclasses.asdict(config.training),
        "seed": config.seed,
        "fold_seed": task.seed,
        "epochs": selection.epoch,
        "best_epoch": selection.best_epoch,
        "validation_balanced_accuracy": selection.best_accuracy,
        "validation_loss": selection.best_loss,
        "ended_by": "early stopping" if early else "max_epochs",
        "converged": early or config.training.learning_rate_schedule == "cosine",
        "device": device.type,
    }


def _history(trained: Trained) -> pd.DataFrame:
    rows = [dataclasses.asdict(record) for record in trained.history]
    frame = pd.DataFrame(rows)
    return frame.assign(best=frame["epoch"] == trained.selection.best_epoch)


def _collect_predictions(layout: RunLayout, folds: Sequence[Fold]) -> None:
    """Write the predictions of all given folds as one table, sorted as the scan table is."""
    tables = [read_table(layout.fold(fold.index).predictions, list(PREDICTION_COLUMNS), ["label"]) for fold in folds]
    filled = [table for table in tables if len(table)]
    if not filled:
        layout.predictions.unlink(missing_ok=True)
        return
    frame = pd.concat(filled, ignore_index=True)
    frame = frame.sort_values(["participant_id", "session_id", "scan_id"], na_position="first")
    write_table(layout.predictions, frame, PREDICTION_COLUMNS)


def _registered_version(layout: RunLayout, scan: Scan, config: Config, digests: DigestCache) -> str:
    """What makes a registered scan the same: the bytes of what the network reads of it."""
    files = layout.scan(scan.participant_id, scan.session_id, config.registration.resolution_mm)
    return digests.digest(files.t1w) + digests.digest(files.brain_mask)
