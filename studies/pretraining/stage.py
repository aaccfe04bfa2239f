"""The stage of pre-training: one network, from all scans and no label."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.device import chosen_device
from heatlas.pipeline.models.families.monai import ViTConfig
from heatlas.pipeline.models.families.registry import build_network, family_of
from heatlas.pipeline.models.inputs import NetworkInput, configured_input
from heatlas.pipeline.models.storage import save_model
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.run.layout.run_layout import FoldFiles, RunLayout
from heatlas.pipeline.run.work.digests import DigestCache, unit_key
from heatlas.pipeline.run.work.host import on_host
from heatlas.pipeline.run.work.jobs import Job, Outcome, run_jobs
from heatlas.pipeline.run.work.memory import kept_memory
from heatlas.pipeline.run.work.seeds import derived_seed
from heatlas.pipeline.training.objectives.records import Objective
from heatlas.pipeline.training.progress import CurveOnTerminal, TensorBoardEvents, checkpoint_path, remove_checkpoint
from heatlas.pipeline.training.stage import registered_versions
from heatlas.pipeline.training.steps import ALONE, Ranks, device_of_rank, in_processes, repeatable, synchronised
from heatlas.pipeline.training.trainer import Resumption, Trained, train
from heatlas.pipeline.training.volumes import LabelledVolumes, load_volumes
from heatlas.studies.pretraining.methods import MaskedAutoencoder, masked_autoencoding, pretraining
from heatlas.studies.pretraining.networks import Pretraining, temperature_of
from heatlas.studies.pretraining.people import parts_of, tail_people
from heatlas.studies.probes.backbone import kept_stages

STAGE = "pretraining"
FEATURES = ("features",)
"""Name of the output that the stored network has in place of classes; its last stage was not trained."""

COLUMNS = {
    "epoch": "Number of the epoch, from 1",
    "temperature": "Temperature of the epoch; used by simclr and moco; n/a where it depends on the class",
    "train_loss": "Mean loss over the training part during the epoch",
    "train_retrieval": "Share of views whose most similar candidate is the other view of the same scan; of masked, the "
    "share of the variance of hidden patches that is restored",
    "validation_loss": "The same over the validation part after the epoch, without augmentation; the second view is "
    "the mirror image",
    "validation_retrieval": "Share of validation scans found by their mirror image; of masked, as in training",
}
PRETRAINING_TABLE = Table(
    "pretraining_history", COLUMNS, "epoch", "How did pre-training progress?", stage="training",
    file="models/backbone/history.tsv", on_pages=False,
)  # fmt: skip


@dataclass(frozen=True)
class PretrainingTask:
    """Input of the worker; picklable.

    `scans`: registered. `validation`: participants whose scans are not learned from. `tail`: participants with the
    lowest temperature.
    """

    layout: RunLayout
    scans: tuple[Scan, ...]
    validation: tuple[str, ...]
    spec: NetworkInput
    config: Config
    seed: int
    tail: tuple[str, ...] = ()

    @property
    def checkpoint(self) -> Path:
        return checkpoint_path(self.layout.backbone.folder)

    @property
    def queue(self) -> int:
        """Keys that moco keeps."""
        return self.config.pretraining.queue or max(1, len(self.part(False)) // 2)

    def part(self, held_out: bool) -> tuple[Scan, ...]:
        """Scans of the validation part, or of the others."""
        return tuple(scan for scan in self.scans if (scan.participant_id in self.validation) == held_out)


def pretrain(
    layout: RunLayout, scans: Sequence[Scan], config: Config, executor: Executor, digests: DigestCache
) -> list[Outcome]:
    """Train a backbone without labels; its network, description and history are those of ``layout.backbone``.

    `scans`: registered. Raises UsageError, BadInputError as `parts_of`; if the grid is too small for the network.
    """
    spec = configured_input(config)
    family_of(config.model).require_fits(spec.shape, config.model)
    scans, validation = parts_of(config, scans)
    task = PretrainingTask(
        layout, scans, validation, spec, config, derived_seed(config.seed, STAGE), tail_people(config, scans)
    )
    versions = registered_versions(layout, scans, config, digests)
    settings = dataclasses.replace(config.pretraining, without="")
    parameters = [
        config.model,
        config.training,
        settings,
        config.registration.resolution_mm,
        task.validation,
        task.seed,
        task.tail,
    ]
    key = unit_key({scan.name: versions[scan.name] for scan in scans}, parameters, train_backbone)
    outputs = {name: getattr(layout.backbone, name) for name in ("weights", "description", "history")}
    outputs["history_columns"] = outputs["history"].with_suffix(".json")
    job = Job(STAGE, "backbone", key, outputs, train_backbone, (task, key), on_gpu=True)
    try:
        with CurveOnTerminal([(job.unit, task.checkpoint)], config.training.max_epochs):
            outcomes = run_jobs(layout, [job], executor, "Pre-training")
    finally:
        shutil.rmtree(layout.kept_volumes, ignore_errors=True)
    if outcomes[0].ok:
        remove_checkpoint(task.checkpoint)
    return outcomes


def train_backbone(outputs: dict[str, Path], task: PretrainingTask, key: str) -> Mapping[str, Any]:
    """Train the backbone; the function of a `Job`."""
    config = task.config.training
    if config.devices == 1:
        _train_backbone(ALONE, outputs, task, key)
    else:
        in_processes(config.devices, chosen_device(config), _train_backbone, outputs, task, key)
    return {"epochs": config.max_epochs}


def _train_backbone(ranks: Ranks, outputs: dict[str, Path], task: PretrainingTask, key: str) -> None:
    config = task.config.training
    device = device_of_rank(chosen_device(config), ranks)
    with kept_memory(), repeatable(device, task.seed, config.threads):
        people = {name: number for number, name in enumerate(sorted({scan.participant_id for scan in task.scans}))}
        training, validation = (_load(task, held_out, people, device) for held_out in (False, True))
        network, learner = _fresh(task)
        objective = _objective(task)
        # No label says which epoch is best, and a schedule has its own end: the last epoch is kept.
        whole = dataclasses.replace(config, min_epochs=config.max_epochs)
        shared, resumption = synchronised(learner.to(device), ranks, device), Resumption(task.checkpoint, key)
        with TensorBoardEvents(task.layout.backbone.events) as events:
            trained = train(
                shared, training, validation, objective, whole, task.seed, resumption, ranks=ranks, on_epoch=events
            )
        if not ranks.leads:
            return
    network, learner = _fresh(task)  # its first stages are those of the learner
    learner.load_state_dict({name: on_host(value) for name, value in trained.weights.items()})
    description = _description(task, trained, device)
    save_model(FoldFiles(outputs["weights"].parent), network, task.spec, FEATURES, description)
    PRETRAINING_TABLE.write(outputs["history"], _history(task, trained))


def _load(task: PretrainingTask, held_out: bool, people: Mapping[str, int], device: torch.device) -> LabelledVolumes:
    scans = task.part(held_out)
    files = [task.layout.scan(s.participant_id, s.session_id, task.spec.resolution_mm) for s in scans]
    targets = torch.tensor([people[scan.participant_id] for scan in scans])
    return load_volumes(files, targets, task.spec, task.layout.kept_volumes, device, task.config.training.threads)


def _objective(task: PretrainingTask) -> Objective:
    settings = task.config.pretraining
    if settings.method == "masked":
        return masked_autoencoding(settings, task.seed)
    people = sorted({scan.participant_id for scan in task.scans})  # as they are numbered
    tail = [person in task.tail for person in people] if task.tail else []
    return pretraining(settings, task.config.training.max_epochs, task.seed, tail)


def _fresh(task: PretrainingTask) -> tuple[StagedModel, Pretraining | MaskedAutoencoder]:
    """A network with fresh weights, and what learns with its first stages."""
    settings, model = task.config.pretraining, task.config.model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(task.seed, "weights"))
        network = build_network(model, task.spec.shape, len(FEATURES))
        stages, widths = kept_stages(network, task.spec.shape)
        if settings.method == "masked" and isinstance(model, ViTConfig):
            return network, MaskedAutoencoder(stages, task.spec.shape, model, settings.masking_ratio)
        dynamic = family_of(model).encoding == "pair"
        return network, Pretraining(stages, widths[-1], settings, task.queue, dynamic)


def _description(task: PretrainingTask, trained: Trained, device: torch.device) -> dict[str, Any]:
    parts = {"train": task.part(False), "validation": task.part(True)}
    return {
        "participants": {name: sorted({scan.participant_id for scan in part}) for name, part in parts.items()},
        "scans": {name: [scan.name for scan in part] for name, part in parts.items()},
        "pretraining": dataclasses.asdict(dataclasses.replace(task.config.pretraining, without="")),
        "training": dataclasses.asdict(task.config.training),
        "seed": task.config.seed,
        "epochs": trained.selection.epoch,
        "device": device.type,
    }


def _history(task: PretrainingTask, trained: Trained) -> pd.DataFrame:
    settings, epochs = task.config.pretraining, task.config.training.max_epochs
    frame = pd.DataFrame([dataclasses.asdict(record) for record in trained.history])
    frame = frame.rename(columns={f"{part}_score": f"{part}_retrieval" for part in ("train", "validation")})
    warm = [temperature_of(settings, epoch, epochs, task.seed) for epoch in frame["epoch"]]
    return frame.assign(temperature=warm)[list(COLUMNS)]
