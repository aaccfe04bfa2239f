"""The stage of pre-training: one network, from all scans and no label.

All people take part, or those whom no run is to test, or a cohort with a long tail of classes.
"""

from __future__ import annotations

import dataclasses
import logging
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from heatlas.pipeline.cohort.people.persons import known_among
from heatlas.pipeline.cohort.records import SCANS_TABLE, Scan, ScanTable
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.device import chosen_device
from heatlas.pipeline.models.families.monai import ViTConfig
from heatlas.pipeline.models.families.registry import build_network, code_of, family_of
from heatlas.pipeline.models.inputs import NetworkInput, configured_input
from heatlas.pipeline.models.storage import save_model
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import FoldFiles, RunLayout
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.host import kept_memory, on_host
from heatlas.pipeline.run.work.jobs import Job, Outcome, run_jobs
from heatlas.pipeline.run.work.seeds import derived_seed, generator
from heatlas.pipeline.run.work.unit import Unit, keyed, unkeyed
from heatlas.pipeline.training.objectives.records import Objective
from heatlas.pipeline.training.progress import CurveOnTerminal, TensorBoardEvents, checkpoint_path, remove_checkpoint
from heatlas.pipeline.training.stage import registered_versions
from heatlas.pipeline.training.steps import ALONE, Ranks, device_of_rank, in_processes, repeatable, synchronised
from heatlas.pipeline.training.trainer import Resumption, Trained, train
from heatlas.pipeline.training.volumes import LabelledVolumes, load_volumes
from heatlas.studies.long_tail import draw_long_tail
from heatlas.studies.pretraining.methods import MaskedAutoencoder, masked_autoencoding, pretraining
from heatlas.studies.pretraining.networks import Pretraining, temperature_of
from heatlas.studies.probes.network import kept_stages
from heatlas.studies.probes.records import ProbeConfig
from heatlas.studies.tables import declared

log = logging.getLogger("heatlas")
FEWEST = 8
"""Participants."""


STAGE = "pretraining"
FEATURES = ("features",)
"""Name of the output that the stored network has in place of classes; its last stage was not trained."""

PRETRAINING_TABLE = declared("pretraining_history")


def parts_of(config: Config, scans: Sequence[Scan]) -> tuple[tuple[Scan, ...], tuple[str, ...]]:
    """The scans to learn from, and the participants of the validation part, drawn by the seed."""
    settings, training = config.pretraining, config.training
    if isinstance(config.model, ProbeConfig):
        raise UsageError('heatlas pretrain makes backbones, and model.architecture = "probe" stands on one.')
    if settings.method == "masked" and not isinstance(config.model, ViTConfig):
        raise UsageError(
            f'pretraining.method = "masked" hides patches, and model.architecture = "{config.model.architecture}" has '
            'none. Set it to "vit", or choose simclr, moco, byol or dino.'
        )
    if training.head_learning_rate_factor != 1:
        raise UsageError("training.head_learning_rate_factor must be 1: what heatlas pretrain trains has no classes.")
    if settings.method == "moco" and training.weight_average:
        raise UsageError(
            'training.weight_average must be 0 where pretraining.method = "moco": a mean over steps of its queue holds '
            "no scan's key."
        )
    left = _with_long_tail(config, _without(settings.without, scans))
    tail_people(config, left)
    people = sorted({scan.participant_id for scan in left})
    if len(people) < FEWEST:
        named = f" but those of {settings.without}" if settings.without else ""
        raise BadInputError(f"pretraining: the input has {len(people)} participants{named}, and {FEWEST} are needed.")
    if training.batch_size < 2 and settings.method != "masked":
        raise UsageError("training.batch_size must be 2 or more: a scan is compared with the others of its batch.")
    count = validation_count(len(people), config.cohort.validation_fraction)
    drawn = generator(config.seed, "pretraining", "validation").permutation(len(people))[:count]
    validation = tuple(sorted(people[place] for place in drawn))
    kept = sum(scan.participant_id not in validation for scan in left)
    if settings.method == "moco" and settings.queue >= kept:
        raise UsageError(
            f"pretraining.queue = {settings.queue}: {kept} scans are learned from, and a queue as long would hold "
            f"every one of them. Set at most {kept - 1}, or 0 for half of them."
        )
    return left, validation


def _without(folder: str, scans: Sequence[Scan]) -> tuple[Scan, ...]:
    if not folder:
        return tuple(scans)
    path = SCANS_TABLE.path(RunLayout(Path(folder)))
    if not path.is_file():
        raise BadInputError(f"pretraining.without: {folder}: no run there ({path.name}).")
    theirs = [  # all who are kept: those outside the contrast are predicted, too
        scan.participant_id for scan in ScanTable.read(path).kept
    ]
    known = set(known_among([scan.participant_id for scan in scans], theirs))
    log.info("Pre-training leaves out %s of %s.", counted(len(known), "participant"), folder)
    return tuple(scan for scan in scans if scan.participant_id not in known)


def classes_of(scans: Sequence[Scan]) -> dict[str, str]:
    """Class of each participant who has one: that of the first scan with a label, or else a diagnosis."""
    found: dict[str, str] = {}
    for scan in scans:
        if name := scan.label or scan.diagnosis:
            found.setdefault(scan.participant_id, name)
    return found


def _with_long_tail(config: Config, scans: Sequence[Scan]) -> tuple[Scan, ...]:
    """The scans of the people whom ``pretraining.long_tail`` draws; all where it is empty."""
    settings = config.pretraining
    if not settings.long_tail:
        return tuple(scans)
    try:
        drawn = draw_long_tail(classes_of(scans), settings.long_tail_ratio, settings.long_tail, config.seed)
    except (BadInputError, UsageError) as error:
        raise type(error)(f"pretraining.long_tail: {error}") from error
    counts = [f"{len(people)} {name}" for name, people in drawn.items()]
    log.info("Pre-training learns from people of these classes: %s.", ", ".join(counts))
    people = {person for members in drawn.values() for person in members}
    return tuple(scan for scan in scans if scan.participant_id in people)


def tail_people(config: Config, scans: Sequence[Scan]) -> tuple[str, ...]:
    """Participants with the lowest temperature; none where it does not depend on the class."""
    wanted, class_of = config.pretraining.tail_classes, classes_of(scans)
    if not wanted:
        return ()
    missing = [name for name in wanted if name not in class_of.values()]
    found = tuple(sorted(person for person, name in class_of.items() if name in wanted))
    if missing or len(found) == len({scan.participant_id for scan in scans}):
        named = f"nobody is of {missing[0]}" if missing else "everybody is of these"
        there = ", ".join(sorted(set(class_of.values()))) or "none"
        raise BadInputError(f"pretraining.tail_classes: {named}. Classes of the participants are {there}.")
    return found


def validation_count(people: int, fraction: float) -> int:
    """Participants of the validation part: a share, at least two, so that there is something to compare."""
    return max(2, round(people * fraction))


class PretrainingTask(Unit):
    """Input of the worker; picklable.

    `validation`: participants whose scans are not learned from. `tail`: participants with the lowest temperature.
    `versions`: digests of the files of the scans, by name. `scans`: registered.
    """

    config: Config = keyed(
        "model",
        "training",
        lambda config: dataclasses.replace(config.pretraining, without=""),
        "registration.resolution_mm",
    )
    validation: tuple[str, ...]
    seed: int
    tail: tuple[str, ...]
    versions: Mapping[str, str] = keyed(inputs=lambda versions, _: versions)
    scans: tuple[Scan, ...] = unkeyed("what is read of them are their versions")
    spec: NetworkInput = unkeyed("follows from the settings")
    layout: RunLayout = unkeyed("a run may be moved")

    @property
    def checkpoint(self) -> Path:
        return checkpoint_path(self.layout.backbone.folder)

    @property
    def queue(self) -> int:
        return self.config.pretraining.queue or max(1, len(self.part(False)) // 2)

    def part(self, held_out: bool) -> tuple[Scan, ...]:
        """Scans of the validation part, or of the others."""
        return tuple(scan for scan in self.scans if (scan.participant_id in self.validation) == held_out)


def pretrain(
    layout: RunLayout, scans: Sequence[Scan], config: Config, executor: Executor, digests: DigestCache
) -> list[Outcome]:
    """Train a backbone without labels on registered scans; its files are those of ``layout.backbone``."""
    spec = configured_input(config)
    family_of(config.model).require_fits(spec.shape, config.model)
    scans, validation = parts_of(config, scans)
    seed, versions = derived_seed(config.seed, STAGE), registered_versions(layout, scans, config, digests)
    task = PretrainingTask(config, validation, seed, tail_people(config, scans), versions, scans, spec, layout)
    key = task.key(digests, train_backbone, *code_of(config.model))
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
    return frame.assign(temperature=warm)[list(PRETRAINING_TABLE.meanings)]
