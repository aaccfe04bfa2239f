"""Networks that are used as they are: one of the user's own, or those of a finished run on another cohort.

Nothing is trained. Where the cohort has labels, every fold of the run has the same network; folds say only whose scans
are controls for whom, and what baselines learn from. Without labels, the networks of the finished run are its folds.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from heatlas.pipeline.cohort.people.splits import PARTS, Fold, Split, known_to_network, people_of
from heatlas.pipeline.cohort.people.tasks import Task, task_of
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.models.contract import StagedModel, members_of
from heatlas.pipeline.models.families.foreign import ForeignConfig, place_of_code
from heatlas.pipeline.models.families.registry import build_network, is_foreign
from heatlas.pipeline.models.inputs import NetworkInput, configured_input, read_channels
from heatlas.pipeline.models.storage import CODE, RETRAIN, SOURCE, LoadedModel, load_model, with_code
from heatlas.pipeline.run.config.networks import ModelConfig
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.declared import warn_once
from heatlas.pipeline.run.documents import known_json, read_json
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.layout.bundle_layout import Bundle, open_bundle
from heatlas.pipeline.run.layout.run_layout import FoldFiles, RunLayout
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.plain_text import listed
from heatlas.pipeline.run.tables import write_json
from heatlas.pipeline.run.work.digests import file_digest, own_code_digest, text_digest, unit_key
from heatlas.pipeline.run.work.host import on_host
from heatlas.pipeline.run.work.jobs import Job, Outcome, run_jobs
from heatlas.pipeline.training.baselines.ridge import Floats

log = logging.getLogger("heatlas")

AS_THEY_WERE = "not trained here"
"""How such a training ended."""


def require_usable(config: Config) -> None:
    """Refuse networks that cannot be used as they are, before any work."""
    task, spec = task_of(config.cohort), configured_input(config)
    if config.training.networks_of:
        members_to_apply(config, task, spec)
        return
    weights = getattr(config.model, "weights", "")
    if not Path(weights).is_file():
        raise UsageError(f"model.weights = {weights!r}: no such file. Name the file of the trained weights.")
    build_network(config.model, spec.shape, len(task.outputs), spec.channels)


def networks_of_run(
    folder: str, model: ModelConfig | None = None, device: torch.device | str = "cpu"
) -> list[LoadedModel]:
    """The networks of a finished run or export; code of others is run only if the settings `model` name it."""
    return [load_model(one, device, getattr(model, "network", "")) for one in _files_of_networks(folder)]


def _files_of_networks(folder: str) -> list[FoldFiles]:
    layout, bundle = RunLayout(Path(folder)), open_bundle(Path(folder))
    files = bundle.networks if bundle else [layout.fold(fold.index) for fold in Split.read(layout).folds]
    there = [one for one in files if one.description.is_file()]
    if not there:
        raise UsageError(f"{folder}: has no trained networks. Finish the run, or give the folder of one that is.")
    if lacking := [] if bundle else [one.folder.name for one in files if one not in there]:
        verb = "has" if len(lacking) == 1 else "have"
        warn_once(
            f"{folder}: {listed(lacking)} {verb} no network, so only those of the other folds are used. Repeat the "
            "command that made this run to have all of them."
        )
    return list(files if bundle else there)


def split_of_networks(folder: str, model: ModelConfig | None = None) -> Split:
    """The folds of a finished run, or of its export, as its networks state them; nobody is tested.

    One network for all folds is one fold, the first.
    """
    folds = []
    for files in _files_of_networks(folder)[: 1 if model is not None and is_foreign(model) else None]:
        description = read_json(files.description, RETRAIN)
        train, held_out = (tuple(sorted(people_of(description, folder, part))) for part in PARTS[:2])
        folds.append(Fold(int(description["fold"]), train, held_out, ()))
    return Split(tuple(folds))


def source_of(config: Config) -> dict[str, str]:
    """Digests of what networks that are used as they are come from, by the setting that names it.

    Of the user's own also the code: when it changes, the same weights answer otherwise.
    """
    found, folder, model = {}, config.training.networks_of, config.model
    if folder:
        paths = [path for one in _files_of_networks(folder) for path in (one.weights, one.description)]
        found["training.networks_of"] = text_digest(" ".join(map(file_digest, paths)))
    if isinstance(model, ForeignConfig):
        found[CODE] = own_code_digest(place_of_code(model.network))
        found |= {"model.weights": file_digest(Path(model.weights))} if model.weights else {}
    return found


def say_what_changed(files: Sequence[FoldFiles], source: Mapping[str, str]) -> None:
    """Say in the log why a run that has networks from elsewhere predicts and explains again."""
    before = [known_json(one.description).get(SOURCE, {}) for one in files]
    changed = [name for name, digest in source.items() if any(one.get(name, digest) != digest for one in before)]
    if changed:
        log.warning("note: %s has changed, so the run predicts and explains again", listed(changed))


def take_networks(work: Work) -> list[Outcome]:
    """Copy the network of each fold of the run in ``training.networks_of``, as it is; one outcome per fold.

    A run of its own afterwards: what is predicted and explained can be repeated without the other one.
    """
    layout, digests, folder = work.layout, work.digests, Path(work.config.training.networks_of)
    theirs, source, jobs = open_bundle(folder) or RunLayout(folder), source_of(work.config), []
    say_what_changed([layout.fold(fold.index) for fold in work.split.folds], source)
    for fold in work.split.folds:
        files = (theirs.layout if isinstance(theirs, Bundle) else theirs).fold(fold.index)
        ours = layout.fold(fold.index)
        inputs = {"weights": digests.digest(files.weights), "description": digests.digest(files.description)}
        outputs = {"weights": ours.weights, "description": ours.description}
        code = getattr(work.config.model, "network", "")
        key = unit_key(inputs | source, [fold.index, *filter(None, [code])], copy_network)
        jobs.append(Job("training", f"fold-{fold.index}", key, outputs, copy_network, (files, code, source)))
    return run_jobs(layout, jobs, work.executor, "Networks")


def copy_network(outputs: Mapping[str, Path], files: FoldFiles, code: str, source: Mapping[str, str]) -> None:
    shutil.copyfile(files.weights, outputs["weights"])
    description = with_code(read_json(files.description, RETRAIN), code, files)
    write_json(outputs["description"], {**description, SOURCE: source})


def members_to_apply(config: Config, task: Task, spec: NetworkInput) -> tuple[list[StagedModel], list[str]]:
    """The networks of the run in ``training.networks_of``, and whom they were trained with.

    Refuses those that tell other classes or see another grid.
    """
    folder, members, people = config.training.networks_of, list[StagedModel](), set[str]()
    for loaded in networks_of_run(folder, config.model):
        if loaded.classes != task.outputs:
            theirs, ours = ", ".join(loaded.classes), ", ".join(task.outputs)
            raise UsageError(f"{folder}: its networks tell {theirs}, and this cohort has {ours}.")
        if loaded.input != spec:
            raise UsageError(f"{folder}: its networks see another grid or scaling than this run; use heatlas apply.")
        if not (members and is_foreign(config.model)):  # one network for all folds
            members += members_in_unit(loaded)
        people |= set(known_to_network(loaded.description, folder))
    return members, sorted(people)


def members_in_unit(loaded: LoadedModel) -> list[StagedModel]:
    """The members of a network; those of a number answer in its unit, not as they were standardised in training."""
    members = [one for one in members_of(loaded.model) if isinstance(one, StagedModel)]
    scale = loaded.description["objective"]
    for member in members if "target_sd" in scale and not is_foreign(loaded.settings) else ():
        last = [layer for layer in member.modules() if next(layer.parameters(recurse=False), None) is not None][-1]
        if not isinstance(last, nn.Linear) or last.bias is None:
            raise UsageError(
                f"{type(last).__name__}, the last layer of its networks, cannot answer in {', '.join(loaded.classes)}: "
                "networks of a number that are used on other people end in a linear layer with biases."
            )
        with torch.no_grad():
            last.weight *= scale["target_sd"]
            last.bias.copy_(last.bias * scale["target_sd"] + scale["target_mean"])
    return members


def answered(network: nn.Module, files: Sequence[ScanFiles], spec: NetworkInput, device: torch.device) -> Floats:
    rows = []
    with torch.no_grad():
        for one in files:
            volume = torch.from_numpy(read_channels(one, spec)).to(device)
            rows.append(on_host(network(volume[None])[0].double()).numpy())
    return np.array(rows)
