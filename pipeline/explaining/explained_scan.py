"""One scan explained: its maps, their sums over regions and compartments, and the ledgers of those that keep one.

The one job of this room. What is asked says which method, which class, from which stage, and how the maps are named: a
run asks what ``[attribution]`` lists, ``heatlas explain`` what is typed (`pipeline.explaining.scan_jobs`). Maps stay on
the device: they are summed over regions there, and files are written only of maps that are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heatlas.atlases.spaces import write_template_image
from heatlas.pipeline.attribution.entry import Entry, RunContext
from heatlas.pipeline.attribution.method_settings import Setting
from heatlas.pipeline.attribution.methods import Method, attribute_all
from heatlas.pipeline.attribution.network_view import StartValue, start_values
from heatlas.pipeline.attribution.records import LEDGER_TABLE, LOSSES, Attribution, RunningMean, sum_per_volume
from heatlas.pipeline.cohort.people.splits import require_unseen
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.explaining.networks import Network
from heatlas.pipeline.models.device import chosen_device
from heatlas.pipeline.models.inputs import from_network, read_channels
from heatlas.pipeline.models.storage import LoadedModel
from heatlas.pipeline.regions.audit import write_audit_table
from heatlas.pipeline.regions.packed_atlas import PackedAtlas, write_channel_table, write_region_table
from heatlas.pipeline.run.config.settings import TrainingConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.scan_files import ScanFiles, map_label, sidecar
from heatlas.pipeline.run.tables import write_json
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.host import kept_memory, on_host
from heatlas.pipeline.run.work.unit import Unit, keyed, unkeyed

PREDICTED = "predicted"
"""Target: the class that the network gives the scan."""


@dataclass(frozen=True)
class Explanation:
    """What is asked.

    `settings`: those that differ from the method's defaults. `target`: a class, or `PREDICTED`. `stage`: boundary at
    which it is asked; None for where the method is usually asked. `start`: value of the target that is explained.
    `label`: names tables and units of work. `names`: of the maps, in the order in which the method makes them.
    """

    entry: Entry
    settings: Mapping[str, Setting]
    target: str
    stage: int | str | None
    start: StartValue
    label: str
    names: tuple[str, ...]

    @property
    def version(self) -> list[Any]:
        """All that the maps depend on beside scan, networks, atlas and code."""
        return [self.entry.name, dict(self.settings), self.target, self.stage, self.start, list(self.names)]

    @property
    def module(self) -> str:
        """Where the method is defined: its code and what that imports make the maps."""
        return str(self.entry.record.__module__)

    def build(self, surroundings: RunContext) -> Method:
        return self.entry.build(self.settings, surroundings)

    def stage_in(self, model: nn.Module) -> int | str:
        return self.entry.stage_of(model) if self.stage is None else self.stage


def asked_for(
    entry: Entry,
    settings: Mapping[str, Setting],
    target: str,
    stage: int | str,
    start: StartValue,
    usual: Mapping[str, int | str],
) -> Explanation:
    """An explanation asked for by hand, named by its method and by all that is not `usual`."""
    asked: dict[str, Setting] = {"target": target, "stage": stage, "start": start}
    unusual = {name: value for name, value in asked.items() if value != usual.get(name)}
    unusual |= {name: settings[name] for name in sorted(settings)}
    label, beta = map_label(entry.name, unusual), settings.get("beta")
    names = [map_label(entry.name, unusual | {"beta": one}) for one in beta] if isinstance(beta, tuple) else [label]
    return Explanation(entry, settings, target, stage, start, label, tuple(names))


ACCOUNT = ("start_value", "map_sum", *LOSSES, "residual")
"""Totals of the ledger of a map, summed over layers."""
EVIDENCE_ACCOUNT = (
    "evidence", "reference_evidence", "map_sum", "completeness_error", "completeness_share", "sampling_error",
    "sampling_share", "n_reference",
)  # fmt: skip
"""What an evidence map must add up to, by how much it does not, and by how much its points alone did not."""


def _versions(networks: Sequence[Network], _: DigestCache) -> dict[str, str]:
    versions = {}
    for network in networks:
        versions[f"network-{network.fold}"] = network.version
        for place, control in enumerate(network.controls):
            versions[f"reference-{network.fold}-{place}"] = control.digest
    return versions


class ScanToExplain(Unit):
    """All that a worker needs to explain one scan.

    `networks`: None has seen the participant. With several, the maps are means; see `pipeline.attribution.records`.
    Each with the controls that it compares the scan with. `atlas`: regions that the maps are summed over.
    """

    scan: Scan = keyed(lambda scan: [scan.participant_id, scan.session_id, scan.scan_id])
    explanations: tuple[Explanation, ...] = keyed(lambda explanations: [asked.version for asked in explanations])
    networks: tuple[Network, ...] = keyed(lambda networks: [network.fold for network in networks], inputs=_versions)
    files: ScanFiles = keyed("resolution_mm", inputs={"seen": "seen"})
    atlas: PackedAtlas = keyed("version")
    training: TrainingConfig = unkeyed("for the device, which the worker chooses: it may be the only one with a GPU")


@dataclass(frozen=True)
class ExplainedScan:
    """Maps of one scan by name, on the device and the box of its networks."""

    attributions: Mapping[str, Attribution]
    loaded: LoadedModel
    volume: Tensor
    """(D, H, W), the first image that the networks saw."""

    @property
    def maps(self) -> dict[str, Tensor]:
        return {name: attribution.values[0, 0] for name, attribution in self.attributions.items()}


def table_outputs(files: ScanFiles, explanations: Sequence[Explanation]) -> dict[str, Path]:
    """Tables that a run keeps of a scan by short name, with their data dictionaries."""
    tables = {"regions": files.region_table, "audit": files.audit_table}
    if any(asked.entry.has_ledger for asked in explanations):
        tables["ledger"] = files.ledger
    if files.further:
        tables["channels"] = files.channel_table
    return tables | {f"{name}_columns": path.with_suffix(".json") for name, path in tables.items()}


def map_outputs(explanations: Sequence[Explanation], place: Callable[[str], Path]) -> dict[str, Path]:
    """Maps and their sidecars by short name; `place` gives the path of a map by its name."""
    maps = {name: place(name) for asked in explanations for name in asked.names}
    return maps | {f"{name}_sidecar": sidecar(path) for name, path in maps.items()}


@kept_memory()
def explain_scan(outputs: Mapping[str, Path], task: ScanToExplain) -> Mapping[str, Any]:
    """Explain one scan; the work of one job.

    `outputs`: ``regions``, and what is wanted of ``audit``, ``ledger``, ``channels``, each map (by its name) and its
    sidecar. Returns ``<map>.target`` and ``<map>.start_value`` of each map; ``<map>.map_sum`` and losses of one with a
    ledger; `EVIDENCE_ACCOUNT` of an evidence map.
    """
    explained = explained_scan(task)
    for explanation in task.explanations:
        for name in explanation.names:
            if name in outputs:
                _write_map(outputs, name, explanation, explained, task)
    return write_scan_tables(outputs, explained, task)


def explained_scan(task: ScanToExplain, seen: NDArray[np.float32] | None = None) -> ExplainedScan:
    """Make the maps of one scan, of several networks their means; `seen` (C, D, H, W) is read if not given."""
    device = chosen_device(task.training)
    first: LoadedModel | None = None
    means: dict[str, RunningMean] = {}
    for network in task.networks:
        loaded, description = network.load(device), network.files.description
        require_unseen(loaded.description, str(description), [task.scan.participant_id])
        if first is None:
            first = loaded
            seen = read_channels(task.files, loaded.input) if seen is None else seen
            volume = torch.from_numpy(seen)[None].to(device)
        elif loaded.input != first.input:
            raise BadInputError(
                f"{description}: sees another part of the template than the other networks. Train all folds with the "
                "same settings."
            )
        for name, answer in answers_of(network, loaded, volume, task.explanations, task.atlas).items():
            means.setdefault(name, RunningMean()).add(answer)
    assert first is not None
    in_order = {name: means[name].result() for asked in task.explanations for name in asked.names}
    return ExplainedScan(in_order, first, volume[0, 0])


def answers_of(
    network: Network, loaded: LoadedModel, volume: Tensor, explanations: Sequence[Explanation], atlas: PackedAtlas
) -> dict[str, Attribution]:
    surroundings = RunContext(atlas, loaded.input.box, network.reference(volume.device))
    found: dict[str, Attribution] = {}
    for asked in explanations:
        target = _target_unit(network, loaded, volume, asked.target)
        method, stage = asked.build(surroundings), asked.stage_in(loaded.model)
        answers = attribute_all(loaded.model, volume, target, method, stage, asked.start)
        found.update(zip(asked.names, answers, strict=True))
    return found


def _target_unit(network: Network, loaded: LoadedModel, volume: Tensor, target: str) -> int:
    if target == PREDICTED:
        with torch.no_grad():
            return int(on_host(loaded.model(volume)[0].argmax()))
    if target not in loaded.classes:
        raise BadInputError(
            f"{network.files.description}: the network tells {' from '.join(loaded.classes)} and knows no {target}; "
            "train it again."
        )
    return loaded.classes.index(target)


def write_scan_tables(outputs: Mapping[str, Path], explained: ExplainedScan, task: ScanToExplain) -> dict[str, Any]:
    """Write the tables that are wanted; return targets, start values and accounts of the maps."""
    spec, maps = explained.loaded.input, explained.maps
    evidence = [name for name, answer in explained.attributions.items() if is_evidence(answer)]
    errors = {name: one.errors[0, 0] for name, one in explained.attributions.items() if one.errors is not None}
    of_ensembles = {name: explained.attributions[name].members for name in evidence}
    members = {name: found[:, 0, 0] for name, found in of_ensembles.items() if found is not None}
    place = task.atlas, spec.template_grid, spec.box
    write_region_table(outputs["regions"], task.scan, maps, *place, evidence, errors, members)
    if "audit" in outputs:
        volume = on_host(explained.volume).numpy()
        write_audit_table(outputs["audit"], task.scan, maps, volume, task.files.brain_mask, *place)
    if "channels" in outputs:
        channels = {name: one.channels[0] for name, one in explained.attributions.items() if one.channels is not None}
        write_channel_table(outputs["channels"], task.scan, channels, spec.images, *place)
    facts: dict[str, Any] = {}
    for name, answer in explained.attributions.items():
        facts[f"{name}.target"] = explained.loaded.classes[answer.target]
        facts[f"{name}.start_value"] = float(on_host(answer.start_value[0]))
        account = _evidence_account(answer, task) if is_evidence(answer) else _account(answer)
        facts |= {f"{name}.{key}": value for key, value in account.items()}
    if "ledger" in outputs:
        ledgers = [one.ledger.frame(name, 0) for name, one in explained.attributions.items() if one.ledger is not None]
        LEDGER_TABLE.write(outputs["ledger"], pd.concat(ledgers, ignore_index=True))
    return facts


def is_evidence(answer: Attribution) -> bool:
    """Whether a map shares out the evidence of a scan, compared with its reference.

    That of a later stage does so on the grid of the stage; brought up to the grid of the input, its sum is another.
    """
    settings = answer.parameters
    return answer.reference_value is not None and settings["start"] == "evidence" and settings["stage"] == 0


def _evidence_account(answer: Attribution, task: ScanToExplain) -> dict[str, float | None]:
    """What the map of the one volume of a job must add up to, and what it does add up to.

    Errors are shares of the mean distance between the evidence of the scan and that of each control: at least the
    difference that the map must add up to, and not near 0 where the scan is like the mean of the controls.
    """
    assert answer.reference_value is not None
    evidence, reference = (float(on_host(one[0])) for one in (answer.start_value, answer.reference_value))
    total = float(on_host(sum_per_volume(answer.values)[0]))
    logits = [network.control_logits(answer.values.device) for network in task.networks]
    of_controls = torch.cat([start_values(one, answer.target, "evidence") for one in logits])
    distance = float((evidence - on_host(of_controls).double()).abs().mean())
    error = total - (evidence - reference)
    drawn = None if answer.sampling_error is None else float(on_host(answer.sampling_error[0]))
    controls = {one.name: one.count for network in task.networks for one in network.controls}
    shares = share(error, distance), None if drawn is None else share(drawn, distance)
    values = evidence, reference, total, error, shares[0], drawn, shares[1], sum(controls.values())
    return dict(zip(EVIDENCE_ACCOUNT, values, strict=True))


def share(error: float, distance: float) -> float | None:
    """Size of an error as a share of a distance; none of a distance of 0.

    Examples
    --------
    >>> share(-0.5, 2.0), share(0.5, 0.0)
    (0.25, None)
    """
    return abs(error) / distance if distance else None


def _account(answer: Attribution) -> dict[str, float]:
    ledger = answer.ledger
    if ledger is None:
        return {}
    values = {"start_value": ledger.start_value, "map_sum": ledger.map_sum, "residual": ledger.residual}
    values.update({loss: ledger.total(loss) for loss in LOSSES})
    return {name: float(on_host(values[name][0])) for name in ACCOUNT}


def _compared(answer: Attribution, task: ScanToExplain) -> dict[str, Any]:
    if answer.reference_value is None:
        return {}
    people = sorted({one.name for network in task.networks for one in network.controls})
    return {"ReferenceValue": float(on_host(answer.reference_value[0])), "ReferenceParticipants": people}


def _write_map(
    outputs: Mapping[str, Path], name: str, asked: Explanation, explained: ExplainedScan, task: ScanToExplain
) -> None:
    answer, spec = explained.attributions[name], explained.loaded.input
    values = from_network(on_host(answer.values[0, 0]).numpy(), spec)
    target, settings = explained.loaded.classes[answer.target], answer.parameters
    title = f"LRP beta={settings['beta']:g}" if settings.get("rules") == "founding" else answer.method.replace("-", " ")
    write_template_image(outputs[name], values, spec.template_grid, f"{title}, target {target}")
    folds = [network.fold for network in task.networks]
    weights = [network.weights_digest for network in task.networks]
    several = len(folds) > 1
    sources = (*task.files.seen, *(network.files.weights for network in task.networks))
    content = {
        "Description": f"{answer.method}: {asked.entry.help}; output {target}, per voxel of the template",
        "Method": answer.method,
        "Settings": {key: value for key, value in settings.items() if key not in ("stage", "start", "reference")},
        "Stage": settings["stage"],
        "Target": target,
        "TargetUnit": answer.target,
        "TargetChosenBy": "prediction of the network" if asked.target == PREDICTED else "name",
        "StartValue": float(on_host(answer.start_value[0])),
        "StartValueKind": asked.start,
        **_compared(answer, task),
        "MapSum": float(values.sum(dtype="float64")),
        "Fold": folds if several else folds[0],
        **({"Networks": "mean over the networks of these folds"} if several else {}),
        "ModelWeightsSHA256": weights if several else weights[0],
        "Sources": [f"bids::{path.relative_to(task.files.root).as_posix()}" for path in sources],
    }
    write_json(outputs[f"{name}_sidecar"], content)
