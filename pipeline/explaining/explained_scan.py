"""One scan explained: its maps, the sums of its maps over regions and compartments, its ledger.

Maps stay on the device: their sums over regions are taken there, and files are written only of maps that are kept.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from atlases.images import write_template_image
from pipeline.attribution.gradient.guided_backprop import guided_backprop
from pipeline.attribution.lrp.ledger import LEDGER_COLUMNS, LOSSES, Ledger
from pipeline.attribution.lrp.relevance import lrp_beta
from pipeline.attribution.records import Attribution
from pipeline.cohort.records import Scan
from pipeline.models.device import chosen_device
from pipeline.models.inputs import from_network, read_network_volume
from pipeline.models.storage import LoadedModel, load_model
from pipeline.regions.audit import write_audit_table
from pipeline.regions.territory import Territory, write_region_table
from pipeline.run.config.settings import AttributionConfig, TrainingConfig
from pipeline.run.errors import BadInputError
from pipeline.run.layout.map_names import GUIDED_MAP, lrp_map_name, map_names
from pipeline.run.layout.run_layout import FoldFiles
from pipeline.run.layout.scan_files import ScanFiles, sidecar
from pipeline.run.tables import write_json, write_table

ACCOUNT = ("start_value", "map_sum", *LOSSES, "residual")
"""What is told of each LRP map: its ledger, summed over layers."""


@dataclass(frozen=True)
class ScanToExplain:
    """All that a worker needs to explain one scan.

    Parameters
    ----------
    scan : Scan
    files : ScanFiles
    fold : int
        Whose network explains it.
    model : FoldFiles
    weights_digest : str
        Of the network's weights file.
    positive : str
        Class that is explained.
    settings : AttributionConfig
    training : TrainingConfig
        For the device, which the worker chooses: it may see a GPU where the process that makes the jobs sees none.
    territory : Territory
        Regions that the maps are summed over.
    """

    scan: Scan
    files: ScanFiles
    fold: int
    model: FoldFiles
    weights_digest: str
    positive: str
    settings: AttributionConfig
    training: TrainingConfig
    territory: Territory


@dataclass(frozen=True)
class ExplainedScan:
    """Maps of one scan by name, on the device and the box of its network."""

    attributions: Mapping[str, Attribution]
    loaded: LoadedModel
    volume: Tensor
    """(D, H, W), what the network saw."""

    @property
    def maps(self) -> dict[str, Tensor]:
        """(D, H, W) by name."""
        return {name: attribution.values[0, 0] for name, attribution in self.attributions.items()}


def table_outputs(files: ScanFiles) -> dict[str, Path]:
    """Tables of a scan by short name, with their data dictionaries."""
    tables = {"ledger": files.ledger, "regions": files.region_table, "audit": files.audit_table}
    return tables | {f"{name}_columns": path.with_suffix(".json") for name, path in tables.items()}


def map_outputs(files: ScanFiles, settings: AttributionConfig) -> dict[str, Path]:
    """Maps of a scan and their sidecars by short name."""
    maps = {name: files.relevance_map(name) for name in map_names(settings)}
    return maps | {f"{name}_sidecar": sidecar(path) for name, path in maps.items()}


def explain_scan(outputs: Mapping[str, Path], task: ScanToExplain) -> Mapping[str, float]:
    """Explain one scan; the work of one job.

    Parameters
    ----------
    outputs : mapping of str to Path
        Where to write ledger, region table, audit and, if they are kept, each map (by its name) and its sidecar.
    task : ScanToExplain

    Returns
    -------
    mapping of str to float
        Account of each LRP map: ``<map>.start_value``, ``<map>.map_sum`` and its losses.

    Raises
    ------
    BadInputError
        If the model or the scan cannot be read or do not fit.
    """
    explained = explained_scan(task)
    for name, attribution in explained.attributions.items():
        if name in outputs:
            write_map(outputs, name, attribution, explained.loaded, (task,))
    return write_scan_tables(outputs, explained, task)


def explained_scan(task: ScanToExplain) -> ExplainedScan:
    """Make the maps of one scan; raises as `explain_scan`."""
    device = chosen_device(task.training)
    loaded = cached_model(task.model, task.weights_digest, device)
    if task.positive not in loaded.classes:
        raise BadInputError(
            f"{task.model.description}: the network tells {' from '.join(loaded.classes)} and knows no "
            f"{task.positive}; train it again."
        )
    volume = torch.from_numpy(read_network_volume(task.files, loaded.input))[None, None].to(device)
    settings, target = task.settings, loaded.classes.index(task.positive)
    norm = loaded.family.batch_norm(settings.batch_norm)
    by_beta = lrp_beta(loaded.model, volume, target, settings.betas, settings.start_value, norm)
    maps = {lrp_map_name(beta): attribution for beta, attribution in by_beta.items()}
    if settings.guided_backpropagation:
        maps[GUIDED_MAP] = guided_backprop(loaded.model, volume, target, settings.start_value)
    return ExplainedScan(maps, loaded, volume[0, 0])


@functools.lru_cache(maxsize=8)
def cached_model(files: FoldFiles, weights_digest: str, device: torch.device) -> LoadedModel:
    """A process keeps a few networks, a dozen megabytes each: scans outside the contrast are explained by all folds'.

    The digest is part of the name.
    """
    return load_model(files, device)


def write_scan_tables(outputs: Mapping[str, Path], explained: ExplainedScan, task: ScanToExplain) -> dict[str, float]:
    """Write region table, audit and ledger; return the accounts of the LRP maps."""
    spec = explained.loaded.input
    write_region_table(outputs["regions"], task.scan, explained.maps, task.territory, spec.template_grid, spec.box)
    write_audit_table(
        outputs["audit"], task.scan, explained.maps, explained.volume.cpu().numpy(), task.files.brain_mask,
        task.territory, spec.template_grid, spec.box,
    )  # fmt: skip
    accounts, ledgers = {}, []
    for name, attribution in explained.attributions.items():
        if attribution.ledger is not None:
            ledgers.append(attribution.ledger.frame(name, 0))
            accounts.update({f"{name}.{key}": value for key, value in _account(attribution.ledger).items()})
    write_table(outputs["ledger"], pd.concat(ledgers, ignore_index=True), LEDGER_COLUMNS)
    return accounts


def write_map(
    outputs: Mapping[str, Path],
    name: str,
    attribution: Attribution,
    loaded: LoadedModel,
    tasks: Sequence[ScanToExplain],
) -> None:
    """Write a map and its sidecar; `tasks` are those of the networks it comes from, of several the mean."""
    task, several = tasks[0], len(tasks) > 1
    values = from_network(attribution.values[0, 0].cpu().numpy(), loaded.input)
    beta = attribution.parameters.get("beta")
    method = "guided backpropagation" if beta is None else f"LRP beta={beta:g}"
    title = f"{method}, target {task.positive}"
    write_template_image(outputs[name], values, loaded.input.template_grid, title)
    content = {
        "Description": f"{method}: evidence for {task.positive}, per voxel of the template"
        if beta is not None
        else f"{method}: susceptibility (absolute guided gradient) of the {task.positive} output, per voxel",
        "Method": attribution.method,
        **({} if beta is None else {"Beta": beta, "BatchNormalisation": attribution.parameters["batch_norm"]}),
        "Target": task.positive,
        "TargetUnit": attribution.target,
        "StartValue": float(attribution.start_value[0]),
        "StartValueKind": attribution.parameters["start"],
        "MapSum": float(values.sum(dtype="float64")),
        "Fold": [one.fold for one in tasks] if several else task.fold,
        **({"Networks": "mean over the networks of these folds"} if several else {}),
        "ModelWeightsSHA256": [one.weights_digest for one in tasks] if several else task.weights_digest,
        "Sources": sources_of(task.files, *(one.model for one in tasks)),
    }
    write_json(outputs[f"{name}_sidecar"], content)


def sources_of(files: ScanFiles, *models: FoldFiles) -> list[str]:
    """What a map is made from, as BIDS URIs."""
    paths = (files.t1w, files.brain_mask, *(model.weights for model in models))
    return [f"bids::{path.relative_to(files.root).as_posix()}" for path in paths]


def _account(ledger: Ledger) -> dict[str, float]:
    """The ledger of the one volume of a job, summed over layers."""
    values = {"start_value": ledger.start_value, "map_sum": ledger.map_sum, "residual": ledger.residual}
    values.update({loss: ledger.total(loss) for loss in LOSSES})
    return {name: float(values[name][0]) for name in ACCOUNT}
