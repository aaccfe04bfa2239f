"""The backbone of a probe: which network it is, and where its weights lie."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from heatlas.pipeline.models.families.monai import ResNetConfig
from heatlas.pipeline.run.config.files import network_settings
from heatlas.pipeline.run.config.networks import ModelConfig
from heatlas.pipeline.run.documents import json_object, read_json
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import FoldFiles, RunLayout
from heatlas.pipeline.run.work.digests import file_digest
from heatlas.studies.probes.settings import ProbeConfig

UNTRAINED = ResNetConfig("resnet10")
"""The backbone of a probe without one, so that its settings can be described."""


def backbone_digest(backbone: str, fold: int) -> str:
    """Digest of the weights of a backbone.

    Raises UsageError, BadInputError as `backbone_files`; if they cannot be read.
    """
    path = Path(backbone) if Path(backbone).is_file() else backbone_files(backbone, fold).weights
    try:
        return file_digest(path)
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read ({error}); finish the run that makes it.") from error


def backbone_files(folder: str, fold: int) -> FoldFiles:
    """Files of a pre-trained backbone, or else those of the network of a fold of a run.

    Raises UsageError if the folder holds neither.
    """
    layout = RunLayout(Path(folder))
    for files in (layout.backbone, layout.fold(fold)):
        if files.description.is_file():
            return files
    if not layout.root.is_dir():
        raise UsageError(
            f"model.backbone: {folder}: no such folder. Put it back there, or give --backbone the copy that a run of "
            "probes keeps in models/kept_backbone (runs of earlier versions hold no copy)."
        )
    raise UsageError(
        f"model.backbone: {folder}: no backbone there ({layout.backbone.description.relative_to(layout.root)}), and no "
        f"network of fold {fold}. Make one with `heatlas pretrain`, or name the folder of a finished run."
    )


def knows_labels(settings: ProbeConfig) -> bool:
    """Whether the backbone learned from labels: the network of a run, or one pre-trained with a schedule by class.

    Raises UsageError as `backbone_files`.
    """
    if not settings.backbone or Path(settings.backbone).is_file():
        return False
    files = backbone_files(settings.backbone, 0)
    if files != RunLayout(Path(settings.backbone)).backbone:
        return True
    schedule = (
        read_json(files.description, "Make the backbone again with heatlas pretrain.")
        .get("pretraining", {})
        .get("schedule")
    )
    return bool(schedule == "by-class")


def require_backbone(settings: ProbeConfig, shuffled: bool) -> None:
    """Refuse settings without a backbone, and for shuffled labels one that knows the true ones; raises UsageError."""
    if not settings.backbone:
        raise UsageError(
            'model.architecture = "probe" needs model.backbone: the folder of `heatlas pretrain` or of a finished run. '
            "`heatlas run --backbone FOLDER` sets both."
        )
    if shuffled and knows_labels(settings):
        raise UsageError(
            f"model.backbone: {settings.backbone}: a run on shuffled labels must not stand on networks that know "
            'the true ones. Name a folder of heatlas pretrain (not with pretraining.schedule = "by-class").'
        )


def on_shuffled_labels(settings: ProbeConfig) -> ProbeConfig:
    """The recipe for shuffled labels: on networks that know the true ones a probe is trained as a whole."""
    return replace(settings, train_backbone=True) if knows_labels(settings) else settings


def files_of(settings: ProbeConfig, fold: int) -> FoldFiles | None:
    """Files of the backbone of a fold, as `backbone_files`; None for a file of weights, which says no people."""
    return None if Path(settings.backbone).is_file() else backbone_files(settings.backbone, fold)


def body_of(settings: ProbeConfig) -> ModelConfig:
    """Architecture and settings of the backbone, with the field of view of the probe; opens no file.

    Raises UsageError if they are not written out (`with_body`), or the backbone is a probe itself.
    """
    if settings.body:
        found = network_settings(json_object(settings.body), "model.body")
    elif settings.backbone:
        raise UsageError(
            f"model.body does not say which network the backbone {settings.backbone} is. Repeat `heatlas run` with "
            "--backbone, which writes it out."
        )
    else:
        found = UNTRAINED
    if isinstance(found, ProbeConfig):
        raise UsageError("model.backbone: a probe cannot be the backbone of another; name the run that it stands on.")
    return replace(found, **settings.shared)


def with_body(settings: ProbeConfig) -> ProbeConfig:
    """The settings with the backbone written out, and without its place.

    Raises UsageError if the folder has no backbone, the backbone is a probe itself, or a file of weights of an unknown
    network. Raises BadInputError if its description cannot be read.
    """
    if not settings.body and Path(settings.backbone).is_file():
        raise UsageError(
            f"model.backbone: {settings.backbone}: a file of weights does not say of which network. Name it in "
            """model.body, such as body = '{"architecture": "resnet18"}'."""
        )
    if not settings.body and settings.backbone:
        found = _described(backbone_files(settings.backbone, 0))
        settings = replace(settings, body=json.dumps({"architecture": found.architecture, **found.own}))
    body = body_of(settings)
    return replace(settings, backbone="", body=json.dumps({"architecture": body.architecture, **body.own}))


def placed(settings: ProbeConfig) -> ProbeConfig:
    """The settings with the backbone written out, and its place from any folder; without a backbone as they are.

    Raises UsageError, BadInputError as `with_body`.
    """
    if not settings.backbone:
        return settings
    return replace(with_body(settings), backbone=str(Path(settings.backbone).resolve()))


def _described(files: FoldFiles) -> ModelConfig:
    remedy = "Train it again."
    try:
        values: dict[str, Any] = dict(read_json(files.description, remedy)["architecture"])
        values.pop("input_shape")
        return network_settings({"architecture": values.pop("name"), **values}, str(files.description))
    except (ValueError, KeyError, TypeError) as error:
        raise BadInputError(f"{files.description}: no readable network ({error}). {remedy}") from error
