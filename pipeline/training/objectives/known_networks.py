"""Networks that a training builds on: a teacher, the network that a B-cos network starts from, or a probe's backbone.

Always one of the same grid that was trained with none of the fold's test participants. A teacher and a start are
networks of the same fold and task of another run; a backbone may be one that was trained without labels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from heatlas.pipeline.cohort.people.persons import known_among
from heatlas.pipeline.cohort.people.splits import Fold, Split, known_to_network
from heatlas.pipeline.cohort.people.tasks import Task, task_of
from heatlas.pipeline.models.contract import StagedModel, members_of
from heatlas.pipeline.models.dynamic import LogitLayer
from heatlas.pipeline.models.families.registry import build_network, family_of, on_backbone
from heatlas.pipeline.models.inputs import NetworkInput, configured_input
from heatlas.pipeline.models.storage import RETRAIN, LoadedModel, load_model
from heatlas.pipeline.run.config.networks import ObjectiveConfig
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.documents import read_json
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.layout.run_layout import FoldFiles, RunLayout
from heatlas.pipeline.run.plain_text import counted


def fold_of_run(folder: str, fold: Fold) -> FoldFiles:
    """Files of the network of the same fold of another run, or in a folder that has ``fold-0`` and so on itself."""
    of_run = RunLayout(Path(folder)).fold(fold.index)
    folder_of_fold = Path(folder) / of_run.folder.name
    return FoldFiles(folder_of_fold) if folder_of_fold.is_dir() else of_run


def start_of(folder: str, fold: Fold) -> FoldFiles:
    """Files of the network of another run that a fold starts from.

    That of the same fold; where this one is missing, or knows a person whom the fold tests, the first that knows none,
    so that a run may start from one of another cohort, with other folds. If there is none, that of the same fold.
    """
    same = fold_of_run(folder, fold)
    for files in (same, *(FoldFiles(one) for one in sorted(same.folder.parent.glob("fold-*")))):
        if files.description.is_file():
            known = known_to_network(read_json(files.description, RETRAIN), str(files.description))
            if not known_among(fold.test, known):
                return files
    return same


def known_network(
    setting: str, files: FoldFiles, task: Task, spec: NetworkInput, fold: Fold, device: torch.device, code: str = ""
) -> LoadedModel:
    """Read a network of the same task and grid that a fold may build on; `setting` names the run, for messages.

    `code`: as of `load_model`; what a folder of others names is not run.
    """
    loaded = load_model(files, device, code)
    if loaded.classes != task.outputs:
        raise UsageError(
            f"{setting}: {files.weights}: its outputs are {', '.join(loaded.classes)}, those of this run "
            f"{', '.join(task.outputs)}; take a run of the same task."
        )
    _require_usable(setting, files, loaded, spec, fold)
    return loaded


def _require_usable(setting: str, files: FoldFiles, loaded: LoadedModel, spec: NetworkInput, fold: Fold) -> None:
    """Refuse another grid, and a network that was trained with test participants of the fold."""
    if loaded.input != spec:
        raise UsageError(
            f"{setting}: {files.weights}: it sees {_in_words(loaded.input)}, this run {_in_words(spec)}; choose "
            "the same resolution, field of view, network sizes and control."
        )
    seen = known_among(fold.test, known_to_network(loaded.description, str(files.description)))
    if seen:
        remedy = (
            "leave them out (heatlas pretrain --without OUT, with the folder of this run)"
            if files.folder.name == "backbone"
            else "train both runs on the same cohort with the same seed and folds"
        )
        raise UsageError(
            f"{setting}: {files.weights}: it was trained with {counted(len(seen), 'test participant')} of this fold "
            f"({', '.join(seen[:3])}); {remedy}."
        )


def _in_words(spec: NetworkInput) -> str:
    start = f" from {spec.box.start}" if spec.box else ""
    return f"{spec.shape} voxels of {spec.resolution_mm:g} mm{start} ({spec.normalisation})"


def people_before(config: Config, fold: Fold) -> list[str]:
    """Participants that the backbone of a probe, or the network a training starts from, has learned from; sorted.

    Those of a file of weights are not known.
    """
    files = [start_of(config.training.from_run, fold)] if config.training.from_run else []
    if (backbone := on_backbone(config.model).files(config.model, fold.index)) is not None:
        files.append(backbone)
    return sorted(
        {name for one in files for name in known_to_network(read_json(one.description, RETRAIN), str(one.description))}
    )


def weights_to_start_from(config: Config, task: Task, spec: NetworkInput, fold: Fold) -> Mapping[str, Tensor] | None:
    """Weights that a network starts with, by name; None where all are fresh.

    Those of the network in ``training.from_run``, of an ensemble the first member; B-cos networks may also start from a
    conventional one, which is converted (Arya, Rao, Böhle & Schiele 2024). The last stage of a network of another task
    is fresh. Without ``from_run`` those of the backbone of a probe, unless labels are shuffled and it knows the true
    ones.
    """
    folder, settings = config.training.from_run, config.model
    code = getattr(settings, "network", "")  # of others only what this run names itself
    if not folder:

        def load(backbone: FoldFiles) -> LoadedModel:
            loaded = load_model(backbone, code=code)
            _require_usable("model.backbone", backbone, loaded, spec, fold)
            return loaded

        return on_backbone(settings).weights(settings, spec, fold.index, config.cohort.shuffle_labels, load)
    files = start_of(folder, fold)
    loaded = load_model(files, code=code)
    _require_usable("training.from_run", files, loaded, spec, fold)
    theirs, start = loaded.settings.architecture, members_of(loaded.model)[0]
    where = f"training.from_run: {files.weights} ({theirs})"
    with torch.device("meta"):
        network = build_network(settings, spec.shape, len(task.outputs), spec.channels)
    last = f"_stages.{len(network.stages) - 1}." if loaded.classes != task.outputs else None
    wanted = _without_stage(network.state_dict(), last)
    try:
        convert = family_of(settings).convert
        if theirs != settings.architecture and convert is not None and isinstance(start, StagedModel):
            start = convert(start, settings, spec.shape)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    for layer in start.modules():
        if isinstance(layer, LogitLayer):  # offsets of the classes were fitted after training, and have a mean of 0
            layer.bias = layer.bias.mean()
    found = _without_stage(start.state_dict(), last)
    sizes, other = ({name: tuple(value.shape) for name, value in one.items()} for one in (wanted, found))
    if sizes != other:
        name = next(name for name in (*sizes, *other) if sizes.get(name) != other.get(name))
        raise UsageError(
            f"{where} does not become a {settings.architecture} with these settings: {name} is "
            f"{other.get(name, 'missing')} there and {sizes.get(name, 'missing')} here. Take the architecture and the "
            "settings under [model] of that run."
        )
    return found


def _without_stage(weights: Mapping[str, Tensor], prefix: str | None) -> dict[str, Tensor]:
    return {name: value for name, value in weights.items() if prefix is None or not name.startswith(prefix)}


def without_other_runs(config: Config) -> Config:
    """The recipe of a run for networks that must not know what those of another run know: no start, no teacher."""
    training = dataclasses.replace(config.training, from_run="")
    objective = ObjectiveConfig() if config.objective.kind == "distilled" else config.objective
    return dataclasses.replace(config, training=training, objective=objective)


def require_start(config: Config, split: Split) -> None:
    """Refuse before any work starts what no fold can start from."""
    on_backbone(config.model).require(config.model, config.cohort.shuffle_labels)
    if config.training.from_run and config.cohort.shuffle_labels:
        raise UsageError(
            "training.from_run: a run on shuffled labels must not start from networks that know the true ones. Leave "
            "it empty."
        )
    if config.training.from_run and family_of(config.model).fitted_by != "gradients":
        raise UsageError(
            f"training.from_run: a {config.model.architecture} is not trained step by step, so it starts from nothing. "
            "Leave it empty."
        )
    for fold in split.folds:
        weights_to_start_from(config, task_of(config.cohort), configured_input(config), fold)
