"""Weights of the backbone of a probe, which a training starts from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from heatlas.pipeline.cohort.people.splits import Fold
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.exchange import from_file
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.models.inputs import NetworkInput
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.training.objectives.known_networks import require_usable
from heatlas.studies.probes.backbone import Backbone, kept_stages
from heatlas.studies.probes.records import ProbeConfig, backbone_files, body_of


def backbone_weights(settings: ProbeConfig, spec: NetworkInput, fold: Fold) -> Mapping[str, Tensor]:
    """Weights of the backbone of a probe, by their names in the probe.

    Raises UsageError for a folder without a backbone, for another grid or family, or if it was trained with test
    participants of the fold. Raises BadInputError if it cannot be read.
    """
    body, path = body_of(settings), Path(settings.backbone)
    if path.is_file():
        network = build_network(body, spec.shape, 1, spec.channels)
        network.load_state_dict({**network.state_dict(), **from_file(path, network)})
        return _of_probe(network, spec, settings)
    files = backbone_files(settings.backbone, fold.index)
    loaded = load_model(files, torch.device("cpu"))
    require_usable("model.backbone", files, loaded, spec, fold)
    if dataclasses.replace(loaded.settings, **body.shared) != body:
        raise UsageError(
            f"model.backbone: {files.weights}: it is a {loaded.settings.architecture} with other settings than the "
            f"{body.architecture} in model.body; leave model.body empty."
        )
    return _of_probe(loaded.model, spec, settings)


def _of_probe(network: StagedModel, spec: NetworkInput, settings: ProbeConfig) -> Mapping[str, Tensor]:
    stages, _ = kept_stages(network, spec.shape, settings.stages)
    place = "_stages.0.body" if settings.head == "ca-stream" else "_stages.0"
    return {f"{place}.{name}": value for name, value in Backbone(stages).state_dict().items()}
