"""The training stage: one network per fold, and out-of-fold predictions for every labelled scan."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from heatlas.pipeline.cohort.people.persons import name_of_person
from heatlas.pipeline.cohort.people.splits import Fold, require_disjoint, require_labels, training_part
from heatlas.pipeline.cohort.people.tasks import Task, task_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.models.contract import StagedModel, ensemble_of
from heatlas.pipeline.models.device import chosen_device
from heatlas.pipeline.models.families.registry import (
    build_network,
    code_of,
    family_of,
    is_given,
    is_solved,
    on_backbone,
)
from heatlas.pipeline.models.inputs import NetworkInput, configured_input
from heatlas.pipeline.models.storage import SOURCE, load_model, save_model
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.run.documents import read_json
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.bundle_layout import open_bundle
from heatlas.pipeline.run.layout.run_layout import FoldFiles, RunLayout
from heatlas.pipeline.run.tables import REMEDY
from heatlas.pipeline.run.work.digests import DigestCache, file_digest, unit_key
from heatlas.pipeline.run.work.host import kept_memory
from heatlas.pipeline.run.work.jobs import Job, Outcome, run_jobs
from heatlas.pipeline.run.work.seeds import derived_seed
from heatlas.pipeline.training.answers import control_of, with_corrected_gaps
from heatlas.pipeline.training.exact import EXACT, as_trained, centre, require_plain, solved
from heatlas.pipeline.training.given import AS_THEY_WERE, answered, members_to_apply, say_what_changed, source_of
from heatlas.pipeline.training.objectives.known_networks import people_before, start_of, weights_to_start_from
from heatlas.pipeline.training.objectives.of_task import objective_of, targets_of
from heatlas.pipeline.training.objectives.records import Objective, ObjectiveKind, Unlabelled, kind_of
from heatlas.pipeline.training.prediction import PREDICTIONS_TABLE, predict_test_part, predictions_table
from heatlas.pipeline.training.progress import (
    BestEpoch,
    CurveOnTerminal,
    TensorBoardEvents,
    checkpoint_path,
    remove_checkpoint,
)
from heatlas.pipeline.training.steps import ALONE, Ranks, device_of_rank, in_processes, repeatable, synchronised
from heatlas.pipeline.training.tables import declared
from heatlas.pipeline.training.trainer import Resumption, Trained, train
from heatlas.pipeline.training.volumes import LabelledVolumes, answered_by, load_volumes

STAGE = "training"

HISTORIES_TABLE, HISTORIES_NUMBER_TABLE = declared("histories"), declared("histories_number")
REPEAT_COLUMN = {"repeat": "Repeat of the fold's training, from 1; repeat 1 is that of predictions.tsv"}
PREDICTIONS_REPEATS_TABLE = replace(
    PREDICTIONS_TABLE, name="predictions_repeats", meanings={**REPEAT_COLUMN, **PREDICTIONS_TABLE.meanings},
    rows="scan and training of its fold; columns are those of predictions.tsv",
    question="What do networks trained with other seeds predict?", file="group/predictions_repeats.tsv", on_pages=False,
)  # fmt: skip


@dataclass(frozen=True)
class FoldTask:
    """Input of a worker that trains one fold; picklable.

    `scans`: labelled and registered, of the participants of the fold. `seed`: of this fold and repeat. `repeat`: from
    1.
    """

    layout: RunLayout
    fold: Fold
    scans: tuple[Scan, ...]
    spec: NetworkInput
    config: Config
    seed: int
    repeat: int

    @property
    def task(self) -> Task:
        return task_of(self.config.cohort)

    @property
    def checkpoints(self) -> tuple[Path, ...]:
        """One per member of the ensemble. Those of finished members stay until all are: the work resumes from them."""
        folder = self.layout.fold(self.fold.index, self.repeat).folder
        return tuple(checkpoint_path(folder, number) for number in range(1, self.config.training.ensemble + 1))

    def seed_of(self, member: int) -> int:
        """Seed of a member of the ensemble, from 1; the first has that of a network alone."""
        return self.seed if member == 1 else derived_seed(self.seed, "member", member)

    @property
    def besides(self) -> ObjectiveKind:
        return kind_of(self.config)

    @property
    def unlabelled(self) -> Unlabelled:
        return self.besides.unlabelled(self.config, self.spec, self.fold)

    def part(self, participants: Sequence[str]) -> tuple[Scan, ...]:
        return tuple(scan for scan in self.scans if scan.participant_id in participants)


def train_folds(work: Work, scans: Sequence[Scan]) -> list[Outcome]:
    """Train one network per fold and repeat, and predict its test participants; outcomes of further repeats come last.

    `scans`: labelled and registered. Before any training, refuses a grid too small for the network, a label outside the
    contrast, and a participant in two parts of a fold.
    """
    layout, split, config, digests = work.layout, work.split, work.config, work.digests
    spec = configured_input(config)
    family_of(config.model).require_fits(spec.shape, config.model)
    family_of(config.model).require_images(spec.channels)
    for fold in split.folds:
        require_disjoint(fold)
    on_backbone(config.model).keep(layout, config.model, [fold.index for fold in split.folds], digests)
    if is_given(config):
        say_what_changed([layout.fold(fold.index) for fold in split.folds], source_of(config))
    versions = registered_versions(layout, scans, config, digests)
    repeats = range(1, config.training.repeats + 1)
    jobs = [fold_job(layout, fold, scans, spec, config, versions, repeat) for repeat in repeats for fold in split.folds]
    try:
        with CurveOnTerminal(_curves(jobs), config.training.max_epochs):
            outcomes = run_jobs(layout, jobs, work.executor, "Networks" if is_given(config) else "Training")
    finally:
        shutil.rmtree(layout.kept_volumes, ignore_errors=True)
    tables: dict[int, list[Path]] = {repeat: [] for repeat in repeats}
    for result in outcomes:
        if result.ok:
            task = result.job.arguments[0]
            remove_checkpoints(task)
            tables[task.repeat].append(layout.fold(task.fold.index, task.repeat).predictions)
    _collect_predictions(layout, tables, predictions_table(task_of(config.cohort)))
    return outcomes


def _curves(jobs: Sequence[Job]) -> list[tuple[str, Path]]:
    found = []
    for job in jobs:
        paths = job.arguments[0].checkpoints
        names = [f" member {number}" for number in range(1, len(paths) + 1)] if len(paths) > 1 else [""]
        found += [(job.unit + name, path) for name, path in zip(names, paths, strict=True)]
    return found


def remove_checkpoints(task: FoldTask) -> None:
    for path in task.checkpoints:
        remove_checkpoint(path)


def fold_job(
    layout: RunLayout,
    fold: Fold,
    scans: Sequence[Scan],
    spec: NetworkInput,
    config: Config,
    versions: Mapping[str, str],
    repeat: int = 1,
    prefix: str = "",
) -> Job:
    """The training of one fold as a unit of work.

    `layout`: where scans lie, and the network and its predictions. `scans`: those of other participants are ignored.
    `versions`: from `registered_versions`. `prefix`: of the unit's name, for several networks per fold.
    """
    fold = training_part(config, fold, scans)
    members = {*fold.train, *fold.validation, *fold.test}
    of_fold = tuple(scan for scan in scans if scan.participant_id in members)
    names: list[str | int] = [STAGE, fold.index]
    names += ["repeat", repeat] if repeat > 1 else []
    task = FoldTask(layout, fold, of_fold, spec, config, derived_seed(config.seed, *names), repeat)
    kind = task.task
    targets = {scan.name: kind.value(scan.label, scan.name) for scan in of_fold}
    # Their number does not affect a single training, and of a run to start from the weights count, not its place.
    training = dataclasses.replace(config.training, repeats=1, from_run="")
    network = on_backbone(config.model).keyed(config.model)
    parameters = [
        fold,
        targets,
        kind.outputs,
        kind.explained,
        network,
        training,
        config.registration.resolution_mm,
    ]
    parameters.append(control_of(config))
    facts, files_besides = facts_of(config, fold)
    key = unit_key(
        {**{scan.name: versions[scan.name] for scan in of_fold}, **files_besides},
        [*parameters, facts, task.seed],
        train_fold,
        *code_of(network),
        task.besides.objective,  # of a plug-in
    )
    files = layout.fold(fold.index, repeat)
    unit = f"{prefix}fold-{fold.index}" + (f"_repeat-{repeat}" if repeat > 1 else "")
    outputs = {name: getattr(files, name) for name in ("weights", "description", "history", "predictions")}
    outputs |= {f"{name}_columns": outputs[name].with_suffix(".json") for name in ("history", "predictions")}
    return Job(STAGE, unit, key, outputs, train_fold, (task, key), on_gpu=True)


def facts_of(config: Config, fold: Fold) -> tuple[object, Mapping[str, str]]:
    """What a training depends on beyond other settings, for its key: settings, and digests of the files they name."""
    start = config.training.from_run
    begun = {"start": _digest(start_of(start, fold).weights)} if start else {}
    if (backbone := on_backbone(config.model).digest(config.model, fold.index)) is not None:
        begun["backbone"] = backbone
    begun |= source_of(config)
    settings, files = kind_of(config).facts(config, fold)
    return settings, begun | {name: _digest(path) for name, path in files.items()}


def _digest(path: Path) -> str:
    try:
        return file_digest(path)
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read ({error}); finish the run that makes it.") from error


def train_fold(outputs: dict[str, Path], task: FoldTask, key: str) -> Mapping[str, Any]:
    """Train one fold and predict its test part; the function of a `Job`."""
    config = task.config.training
    if config.devices == 1:
        _train_fold(ALONE, outputs, task, key)
    else:
        in_processes(config.devices, chosen_device(config), _train_fold, outputs, task, key)
    description = read_json(outputs["description"], REMEDY)
    best = description[f"validation_{task.task.kind.score}"]
    return {"epochs": description["epochs"], "best_epoch": description["best_epoch"], "best_score": best}


def _train_fold(ranks: Ranks, outputs: dict[str, Path], task: FoldTask, key: str) -> None:
    files = FoldFiles(outputs["weights"].parent)
    config, kind = task.config.training, task.task
    device = device_of_rank(chosen_device(config), ranks)
    with kept_memory(), repeatable(device, task.seed, config.threads):
        validation = load_part(task, "validation", task.fold.validation, device)
        learned, besides = task.part(task.fold.train), task.besides
        context = besides.context(task.config, kind, task.spec, task.fold, learned, device, task.layout)
        if others := [scan for scans in task.unlabelled.values() for scan in scans]:
            unknown = torch.zeros(len(others), dtype=torch.int64)
            training = load_volumes(others, unknown, task.spec, task.layout.kept_volumes, device, config.threads)
            assert context.teacher is not None
            training, balanced = answered_by(context.teacher, training, config.batch_size), validation.targets
        else:
            training = load_part(task, "training", task.fold.train, device)
            balanced = training.targets
        objective = objective_of(kind, config, balanced, family_of(task.config.model).loss)
        if is_given(task.config):
            _write_fold(task, files, *_given(task, objective, device), device)
            return
        objective = besides.objective(objective, task.config, kind)
        context = besides.complete(context, task.config, kind, training)
        start = weights_to_start_from(task.config, kind, task.spec, task.fold)
        members: list[Trained] = []
        for number, checkpoint in enumerate(task.checkpoints, 1):
            seed = task.seed_of(number)
            model = _fresh_network(task, seed)
            if is_solved(task.config.model):
                members.append(_solved(task, model.to(device), [training, validation], objective, seed))
                continue
            if start is not None:
                model.load_state_dict({**model.state_dict(), **start})
            shared = synchronised(model.to(device), ranks, device)
            resumption = Resumption(checkpoint, key)
            with TensorBoardEvents(FoldFiles(checkpoint.parent).events / f"network-{number}") as events:
                members.append(
                    train(shared, training, validation, objective, config, seed, resumption, context, ranks, events)
                )
        if not ranks.leads:
            return
        networks = []
        for number, one in enumerate(members, 1):
            network = _fresh_network(task, task.seed_of(number)).to(device)
            network.load_state_dict(one.weights)
            networks.append(network)
        description = _description(task, members, objective, device)
        if config.centre_logits != "none":
            volumes = training if config.centre_logits == "training" else validation
            offsets = [centre(network.eval(), volumes, config.batch_size) for network in networks]
            description["logit_offsets"] = {"fitted_to": config.centre_logits, "networks": offsets}
        _write_fold(task, files, networks, description, members[0], objective, device)


def _write_fold(
    task: FoldTask, files: FoldFiles, networks: Sequence[StagedModel], description: dict[str, Any], first: Trained,
    objective: Objective, device: torch.device,
) -> None:  # fmt: skip
    kind = task.task
    save_model(files, ensemble_of(networks), task.spec, kind.outputs, description)
    table = HISTORIES_TABLE if kind.classes else HISTORIES_NUMBER_TABLE
    table.write(files.history, _history(first, objective))
    predictions = predict_test_part(task.layout, load_model(files, device), kind, task.fold, task.scans, device)
    predictions_table(kind).write(files.predictions, predictions)


def _given(
    task: FoldTask, objective: Objective, device: torch.device
) -> tuple[list[StagedModel], dict[str, Any], Trained, Objective]:
    """Networks that are used as they are, and what is written of them."""
    if not task.task.classes:  # their answer is the number itself, not in standard deviations of this cohort
        objective = replace(objective, facts={**objective.facts, "target_mean": 0.0, "target_sd": 1.0})
    facts: dict[str, Any] = {SOURCE: source_of(task.config)}
    if task.config.training.networks_of:
        networks, trained_with = members_to_apply(task.config, task.task, task.spec)
        facts |= {"participants": {"train": trained_with, "validation": [], "test": sorted(task.fold.test)}}
        if bundle := open_bundle(Path(task.config.training.networks_of)):
            facts["mean_of_controls"] = bundle.controls
    else:
        networks = [build_network(task.config.model, task.spec.shape, len(task.task.outputs), task.spec.channels)]
    model = ensemble_of([network.to(device).eval() for network in networks])
    outputs, targets = [], []
    for part in (task.fold.train, task.fold.validation):
        scans = task.part(part)
        files = [task.layout.scan(scan.participant_id, scan.session_id, task.spec.resolution_mm) for scan in scans]
        outputs.append(answered(model, files, task.spec, device))
        targets.append(_targets(scans, task.task))
    trained = as_trained(model, (outputs[0], outputs[1]), (targets[0], targets[1]), objective)
    description = {**_description(task, [trained], objective, device), **facts}
    return networks, {**description, "ended_by": AS_THEY_WERE, "converged": True}, trained, objective


def _solved(
    task: FoldTask, model: StagedModel, parts: Sequence[LabelledVolumes], objective: Objective, seed: int
) -> Trained:
    require_plain(task.config)
    scans = [scan for members in (task.fold.train, task.fold.validation) for scan in task.part(members)]
    person = name_of_person(scan.participant_id for scan in scans)
    people = [person[scan.participant_id] for scan in scans]
    return solved(model, parts, people, objective, task.task, task.config, seed, task.layout.kept_volumes)


def load_part(task: FoldTask, name: str, participants: Sequence[str], device: torch.device) -> LabelledVolumes:
    """Volumes and targets of the scans of some participants; `name` says which part they are, for messages."""
    scans, kind = task.part(participants), task.task
    require_labels(task.fold.index, name, [scan.label for scan in scans], kind)
    targets = _targets(scans, kind)
    files = [task.layout.scan(s.participant_id, s.session_id, task.spec.resolution_mm) for s in scans]
    return load_volumes(files, targets, task.spec, task.layout.kept_volumes, device, task.config.training.threads)


def _targets(scans: Sequence[Scan], kind: Task) -> torch.Tensor:
    return targets_of(kind, [kind.value(scan.label, scan.name) for scan in scans])


def _fresh_network(task: FoldTask, seed: int) -> StagedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(seed, "weights"))
        return build_network(task.config.model, task.spec.shape, len(task.task.outputs), task.spec.channels)


def _description(
    task: FoldTask, members: Sequence[Trained], objective: Objective, device: torch.device
) -> dict[str, Any]:
    """Content of the description file besides the network; of an ensemble also what each member was."""
    fold, config = task.fold, task.config
    ends = [_end(one.selection, objective, config) for one in members]
    each = [{"seed": task.seed_of(number), **end} for number, end in enumerate(ends, 1)]
    parts = {"train": tuple(task.unlabelled) or fold.train, "validation": fold.validation, "test": fold.test}
    before = people_before(config, fold)
    return {
        "fold": fold.index,
        "repeat": task.repeat,
        "control": control_of(config),
        "participants": {name: sorted(members) for name, members in parts.items()},
        **({"backbone_participants": before} if before else {}),
        "scans": {name: [scan.name for scan in task.part(members)] for name, members in parts.items()},
        "objective": {"name": objective.name, **objective.facts},
        "training": dataclasses.asdict(config.training),
        "seed": config.seed,
        "fold_seed": task.seed,
        **ends[0],
        "converged": all(end["converged"] for end in ends),
        **({"members": each} if len(each) > 1 else {}),
        "device": device.type,
    }


def _end(selection: BestEpoch, objective: Objective, config: Config) -> dict[str, Any]:
    early, exact = selection.stopped_early(config.training), is_solved(config.model)
    score = None if selection.best_score is None else objective.score_sign * selection.best_score
    return {
        "epochs": selection.epoch,
        "best_epoch": selection.best_epoch,
        f"validation_{objective.score}": score,
        "validation_loss": selection.best_loss,
        "ended_by": EXACT if exact else "early stopping" if early else "max_epochs",
        "converged": exact or early or config.training.learning_rate_schedule == "cosine",
    }


def _history(trained: Trained, objective: Objective) -> pd.DataFrame:
    frame = pd.DataFrame([dataclasses.asdict(record) for record in trained.history])
    names = {f"{part}_score": f"{part}_{objective.score}" for part in ("train", "validation")}
    return frame.rename(columns=names).assign(best=frame["epoch"] == trained.selection.best_epoch)


def _collect_predictions(layout: RunLayout, tables: Mapping[int, Sequence[Path]], table: Table) -> None:
    """Write the predictions of all given folds, and those of all repeats, in the order of the scan table."""
    collected = {}
    for repeat, paths in tables.items():
        filled = [rows for path in paths if len(rows := table.read(path))]
        if filled:
            frame = pd.concat(filled, ignore_index=True)
            frame = frame.sort_values(["participant_id", "session_id", "scan_id"], na_position="first")
            collected[repeat] = with_corrected_gaps(frame) if "gap" in frame else frame
    of_repeats = replace(table, file=PREDICTIONS_REPEATS_TABLE.file, meanings={**REPEAT_COLUMN, **table.meanings})
    every = [frame.assign(repeat=repeat) for repeat, frame in collected.items()] if len(tables) > 1 else []
    for one, frames in ((table, [collected[1]] if 1 in collected else []), (of_repeats, every)):
        if frames:
            one.write(layout, pd.concat(frames, ignore_index=True))
        else:
            one.remove(layout)


def registered_versions(
    layout: RunLayout, scans: Sequence[Scan], config: Config, digests: DigestCache
) -> dict[str, str]:
    """Digest of the files that a training reads of each registered scan, by its name."""
    versions = {}
    for scan in scans:
        files = layout.scan(scan.participant_id, scan.session_id, config.registration.resolution_mm)
        own = [files.own_labels] if config.objective.own_anatomy and files.own_labels.is_file() else []
        versions[scan.name] = digests.joined([*files.seen, *own])
    return versions
