"""The attribution stage: each scan explained by the network that has not seen its participant.

One unit of work per scan: all its maps, their sidecars and its ledger. The target is the positive class for every
scan, patients and controls alike, so that all maps answer one question: what speaks for the positive class here?
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from atlases.images import write_template_image
from pipeline.attribution.guided_backprop import guided_backprop
from pipeline.attribution.ledger import LEDGER_COLUMNS, LOSSES, Ledger
from pipeline.attribution.lrp import lrp_beta
from pipeline.attribution.records import Attribution
from pipeline.cohort.records import Scan
from pipeline.cohort.splits import Split
from pipeline.models.device import chosen_device
from pipeline.models.inputs import from_network, read_network_volume
from pipeline.models.storage import LoadedModel, load_model
from pipeline.run.config import AttributionConfig, Config, TrainingConfig
from pipeline.run.digests import DigestCache, unit_key
from pipeline.run.errors import BadInputError
from pipeline.run.jobs import Job, Outcome, run_jobs
from pipeline.run.layout import FoldFiles, RunLayout, ScanFiles, lrp_map_name, sidecar
from pipeline.run.tables import write_json, write_table

STAGE = "attribution"
GUIDED = "gb"
PACKAGES = ("pipeline.attribution", "pipeline.models", "atlases.brain_box", "atlases.images", "atlases.spaces")
"""Code whose change makes maps stale; of the atlases what cuts out the network's box and writes the map."""

CONSERVATION_COLUMNS = {
    "participant_id": "BIDS participant, with the prefix sub-",
    "session_id": "BIDS session, with the prefix ses-; n/a where the input has no sessions",
    "scan_id": "Identifier of the image in its source",
    "map": "LRP map, named as in the file names",
    "start_value": "Value of the target that relevance started from (logit or probability)",
    "map_sum": "Sum of the map over all voxels",
    "absorbed_by_bias": "Relevance absorbed by biases, all layers",
    "lost_no_contribution": "Relevance lost in units without a contribution to pass it to, all layers",
    "stabiliser": "Relevance absorbed by stabilisers, all layers",
    "residual": "start_value less map_sum and all losses: rounding",
}
_ACCOUNT = ("start_value", "map_sum", *LOSSES, "residual")


@dataclass(frozen=True)
class ScanToExplain:
    """All that a worker needs to explain one scan.

    Parameters
    ----------
    scan : ScanFiles
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
    """

    scan: ScanFiles
    fold: int
    model: FoldFiles
    weights_digest: str
    positive: str
    settings: AttributionConfig
    training: TrainingConfig


def explain_scans(
    layout: RunLayout,
    scans: Sequence[Scan],
    split: Split,
    config: Config,
    executor: Executor,
    digests: DigestCache,
) -> list[Outcome]:
    """Write relevance maps, ledgers and the conservation table.

    Parameters
    ----------
    layout : RunLayout
    scans : sequence of Scan
        Registered scans. Those outside the contrast, and those in no test set (of a single split), have no network
        that may explain them and are left out.
    split : Split
    config : Config
    executor : concurrent.futures.Executor
    digests : DigestCache

    Returns
    -------
    list of Outcome
        One per scan explained.
    """
    jobs, explained = [], []
    for scan in scans:
        fold = split.fold_of_test(scan.participant_id)
        if scan.label is not None and fold is not None:
            jobs.append(_job(layout, scan, fold.index, config, digests))
            explained.append(scan)
    digests.save()
    outcomes = run_jobs(layout, jobs, executor, "heatmaps")
    write_table(layout.conservation, _conservation(explained, outcomes, config), CONSERVATION_COLUMNS)
    return outcomes


def _job(layout: RunLayout, scan: Scan, fold: int, config: Config, digests: DigestCache) -> Job:
    files = layout.scan(scan.participant_id, scan.session_id, config.registration.resolution_mm)
    model, settings = layout.fold(fold), config.attribution
    inputs = {
        "t1w": digests.digest(files.t1w),
        "brain_mask": digests.digest(files.brain_mask),
        "weights": digests.digest(model.weights),
        "description": digests.digest(model.description),
    }
    outputs = {"ledger": files.ledger, "ledger_columns": files.ledger.with_suffix(".json")}
    for name in _map_names(settings):
        outputs[name] = files.relevance_map(name)
        outputs[f"{name}_sidecar"] = sidecar(files.relevance_map(name))
    task = ScanToExplain(files, fold, model, inputs["weights"], config.cohort.positive, settings, config.training)
    key = unit_key(inputs, [settings, fold, config.cohort.positive, files.resolution_mm], *PACKAGES)
    return Job(STAGE, files.name, key, outputs, explain_scan, (task,))


def explain_scan(outputs: Mapping[str, Path], task: ScanToExplain) -> Mapping[str, float]:
    """Explain one scan; the work of one job.

    Parameters
    ----------
    outputs : mapping of str to Path
        Where to write each map (by its name), its sidecar, and the ledger.
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
    device = chosen_device(task.training)
    loaded = _cached_model(task.model, task.weights_digest, device)
    if task.positive not in loaded.classes:
        raise BadInputError(
            f"{task.model.description}: the network tells {' from '.join(loaded.classes)} and knows no "
            f"{task.positive}; train it again."
        )
    volume = torch.from_numpy(read_network_volume(task.scan, loaded.input))[None, None].to(device)
    accounts, ledgers = {}, []
    for name, attribution in _attributions(loaded, volume, task).items():
        _write_attribution(outputs, name, attribution, loaded, task)
        if attribution.ledger is not None:
            ledgers.append(attribution.ledger.frame(name, 0))
            accounts.update({f"{name}.{key}": value for key, value in _account(attribution.ledger).items()})
    write_table(outputs["ledger"], pd.concat(ledgers, ignore_index=True), LEDGER_COLUMNS)
    return accounts


@functools.lru_cache(maxsize=1)
def _cached_model(files: FoldFiles, weights_digest: str, device: torch.device) -> LoadedModel:
    """One network is kept per process, since the scans of a fold follow each other; its digest is part of its name."""
    return load_model(files, device)


def _map_names(settings: AttributionConfig) -> list[str]:
    return [lrp_map_name(beta) for beta in settings.betas] + [GUIDED] * settings.guided_backpropagation


def _attributions(loaded: LoadedModel, volume: Tensor, task: ScanToExplain) -> dict[str, Attribution]:
    """Maps of one volume by name."""
    settings, target = task.settings, loaded.classes.index(task.positive)
    by_beta = lrp_beta(loaded.model, volume, target, settings.betas, settings.start_value, settings.batch_norm)
    maps = {lrp_map_name(beta): attribution for beta, attribution in by_beta.items()}
    if settings.guided_backpropagation:
        maps[GUIDED] = guided_backprop(loaded.model, volume, target, settings.start_value)
    return maps


def _write_attribution(
    outputs: Mapping[str, Path], name: str, attribution: Attribution, loaded: LoadedModel, task: ScanToExplain
) -> None:
    values = from_network(attribution.values[0, 0].cpu().numpy(), loaded.input)
    beta = attribution.parameters.get("beta")
    method = "guided backpropagation" if beta is None else f"LRP beta={beta:g}"
    title = f"{method}, target {task.positive}"
    write_template_image(outputs[name], values, loaded.input.template_grid, title)
    root = task.scan.root
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
        "Fold": task.fold,
        "ModelWeightsSHA256": task.weights_digest,
        "Sources": [
            f"bids::{path.relative_to(root).as_posix()}"
            for path in (task.scan.t1w, task.scan.brain_mask, task.model.weights)
        ],
    }
    write_json(outputs[f"{name}_sidecar"], content)


def _account(ledger: Ledger) -> dict[str, float]:
    """The ledger of the one volume of a job, summed over layers."""
    values = {"start_value": ledger.start_value, "map_sum": ledger.map_sum, "residual": ledger.residual}
    values.update({loss: ledger.total(loss) for loss in LOSSES})
    return {name: float(values[name][0]) for name in _ACCOUNT}


def _conservation(scans: Sequence[Scan], outcomes: Sequence[Outcome], config: Config) -> pd.DataFrame:
    """One row per scan explained and LRP map."""
    rows = []
    for scan, outcome in zip(scans, outcomes, strict=True):
        if outcome.ok:
            for name in map(lrp_map_name, config.attribution.betas):
                account = [outcome.result[f"{name}.{key}"] for key in _ACCOUNT]
                rows.append([scan.participant_id, scan.session_id, scan.scan_id, name, *account])
    return pd.DataFrame(rows, columns=list(CONSERVATION_COLUMNS))
