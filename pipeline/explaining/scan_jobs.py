"""Units of work of this room: one scan and what is asked about it, by networks that have not seen its participant.

What is asked for, by the settings of a run or by hand, is checked against the registry before any work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from heatlas.pipeline.attribution.entry import Entry, RunContext
from heatlas.pipeline.attribution.gradient.paths import together
from heatlas.pipeline.attribution.graph.planner import plan_relevance
from heatlas.pipeline.attribution.lrp.relevance import last_layer
from heatlas.pipeline.attribution.method_settings import Setting, build_record, read_settings, settable
from heatlas.pipeline.attribution.methods import attribute_all, require_defined
from heatlas.pipeline.attribution.network_view import StartValue
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.attribution.registry import find_method
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.explaining.controls import ReferencePool
from heatlas.pipeline.explaining.explained_scan import Explanation, ScanToExplain, explain_scan
from heatlas.pipeline.explaining.networks import Control, Network
from heatlas.pipeline.models.families.registry import build_network, code_of, family_of
from heatlas.pipeline.models.inputs import NetworkInput, configured_input
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import HeatlasError, UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import LRP, ScanFiles, names_of, settings_for
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import Job


@dataclass(frozen=True)
class JobMaker:
    """What the jobs of one call have in common."""

    layout: RunLayout
    stage: str
    atlas: PackedAtlas
    config: Config
    digests: DigestCache
    controls: ReferencePool

    def files(self, scan: Scan) -> ScanFiles:
        return self.layout.scan(scan.participant_id, scan.session_id, self.config.registration.resolution_mm)

    def job(
        self,
        unit: str,
        scan: Scan,
        folds: Sequence[int],
        explanations: tuple[Explanation, ...],
        outputs: Mapping[str, Path],
    ) -> Job:
        """A job that explains a scan; its key holds the code of its network and methods, and of no others.

        Refuses what compares with controls, where a network was trained without any.
        """
        networks = []
        for fold in folds:
            model = self.layout.fold(fold)
            controls = self._controls(fold, scan, explanations)
            networks.append(Network.of(fold, model, self.digests, controls))
        task = ScanToExplain(scan, explanations, tuple(networks), self.files(scan), self.atlas, self.config.training)
        code = [*{explanation.module for explanation in explanations}, *code_of(self.config.model)]
        return task.job(self.stage, unit, outputs, self.digests, explain_scan, *code, on_gpu=True)

    def _controls(self, fold: int, scan: Scan, explanations: Sequence[Explanation]) -> tuple[Control, ...]:
        if not any(asked.entry.needs_reference for asked in explanations):
            return ()
        return self.controls.references(fold, scan, self.layout, self.config.registration.resolution_mm, self.digests)


def require_all_defined(
    model: nn.Module, spec: NetworkInput, atlas: PackedAtlas, explanations: Sequence[Explanation]
) -> None:
    """Refuse methods that are not defined for a network, before any scan is read; its weights do not matter."""
    for asked in explanations:
        method, stage = asked.build(RunContext(atlas, spec.box)), asked.stage_in(model)
        require_defined(model, spec.shape, method, stage, asked.start, spec.channels)


def explanations_of_run(config: Config) -> tuple[Explanation, ...]:
    """What ``[attribution]`` asks of every scan."""
    attribution = config.attribution
    require_listed(attribution.methods, attribution.settings, "configuration: attribution.settings:")
    found = []
    for name in attribution.methods:
        entry = find_method(name, "configuration: attribution.methods:")
        texts = settings_for(name, attribution.settings)
        names = names_of(name, texts, attribution.betas)
        family_of(config.model).require_method(name)
        settings = {**_of_the_run(name, texts, config), **_read(entry, texts)}
        _require_values(entry, settings)
        target, start = task_of(config.cohort).explained, usual_start(entry, config)
        if entry.needs_reference and "batch" in dict(settable(entry.record)):
            settings = {"batch": together(configured_input(config).shape), **settings}
        found.append(Explanation(entry, settings, target, None, start, names[0], tuple(names)))
    names = [name for one in found for name in one.names]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"configuration: attribution.settings: two maps would have the name {name}.")
    return tuple(found)


def usual_start(entry: Entry, config: Config) -> StartValue:
    """From which value a method starts unless something else is asked for."""
    return config.attribution.start_value if entry.usual_start == "run" else entry.usual_start


def require_start(config: Config) -> None:
    """Refuse LRP from the evidence of a network that no linear layer ends, before the network is trained."""
    attribution, task = config.attribution, task_of(config.cohort)
    asked = attribution.start_value == "evidence" and LRP in attribution.methods and len(task.outputs) > 1
    if not asked or config.training.networks_of:  # whose run was checked by itself
        return
    family, spec = family_of(config.model), configured_input(config)
    with torch.random.fork_rng(devices=[]):
        network = build_network(config.model, spec.shape, len(task.outputs), spec.channels).eval()
    try:
        last_layer(plan_relevance(network, family.batch_norm(attribution.batch_norm)))
    except UsageError as error:
        raise UsageError(f'configuration: attribution.start_value = "evidence": {error}') from error


def require_explained(config: Config) -> None:
    """Let the methods of ``[attribution]`` explain a made-up volume by the user's own network, which nobody knows.

    Those that only ask for many outputs, of masked volumes or of an atlas' regions, take every network.
    """
    task, spec = task_of(config.cohort), configured_input(config)
    network = build_network(config.model, spec.shape, len(task.outputs), spec.channels)
    volume, control = torch.rand((2, 1, spec.channels, *spec.shape), generator=torch.Generator().manual_seed(0))
    no_atlas: Any = None
    for asked in explanations_of_run(config):
        if asked.entry.needs_atlas or asked.entry.slow:
            continue
        method = asked.build(RunContext(no_atlas, spec.box, Reference(control, ("made up",))))
        try:
            attribute_all(network, volume, len(task.outputs) - 1, method, asked.stage_in(network), asked.start)
        except HeatlasError as error:
            refused = f"attribution.methods: {asked.entry.name} does not explain this network: {error}"
            raise type(error)(refused) from error


def require_listed(methods: Sequence[str], settings: Sequence[str], where: str) -> None:
    for text in settings:
        name, colon, _ = text.partition("=")[0].partition(":")
        if colon and name.strip() not in methods:
            raise UsageError(f"{where} {text}: {name} is not among the methods asked for.")


def _read(entry: Entry, texts: Sequence[str]) -> dict[str, Setting]:
    settings = read_settings(entry.name, entry.record, texts, "configuration: attribution.settings:")
    if isinstance(settings.get("beta"), tuple):
        raise UsageError("configuration: attribution.settings: beta: list several values in attribution.betas.")
    return settings


def _of_the_run(name: str, texts: Sequence[str], config: Config) -> dict[str, Setting]:
    """What the family of the network needs, and what ``[attribution]`` says of LRP by settings of its own."""
    family, attribution = family_of(config.model), config.attribution
    needed = dict(family.needs.get(name, {}))
    if name != LRP:
        return needed
    betas: dict[str, Setting] = {} if texts else {"beta": attribution.betas}
    return needed | betas | {"batch_norm": family.batch_norm(attribution.batch_norm)}


def _require_values(entry: Entry, settings: Mapping[str, Setting]) -> None:
    """Let the record refuse values before any work; one that needs something of the run to be made is made later."""
    given = {field.name for field in fields(entry.record) if field.default is field.default_factory is MISSING}
    if not given - set(settings):
        try:
            build_record(entry.record, settings, {})
        except UsageError as error:
            raise UsageError(f"configuration: attribution.settings: {error}") from error
