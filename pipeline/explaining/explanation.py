"""What is asked of a network about a scan: which method, which class, from which stage; and how the maps are named.

A run asks what ``[attribution]`` lists; ``heatlas explain`` asks what is typed (`pipeline.explaining.requested`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from heatlas.pipeline.attribution.entry import Entry, RunContext
from heatlas.pipeline.attribution.method_settings import Setting
from heatlas.pipeline.attribution.methods import Method
from heatlas.pipeline.attribution.network_view import StartValue
from heatlas.pipeline.run.layout.scan_files import map_label

PREDICTED = "predicted"
"""Target: the class that the network gives the scan."""


@dataclass(frozen=True)
class Explanation:
    """What is asked.

    `entry`: the method. `settings`: those that differ from the method's defaults. `target`: a class, or `PREDICTED`.
    `stage`: boundary at which it is asked; None for where the method is usually asked. `start`: value of the target
    that is explained. `label`: names tables and units of work. `names`: names of the maps, in the order in which the
    method makes them.
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
    """An explanation asked for by hand, named by its method and by all that is not usual.

    `entry`, `settings`, `target`, `stage`, `start`: as of `Explanation`. `usual`: ``target``, ``stage`` and ``start``
    where nothing else is asked for.
    """
    asked: dict[str, Setting] = {"target": target, "stage": stage, "start": start}
    unusual = {name: value for name, value in asked.items() if value != usual.get(name)}
    unusual |= {name: settings[name] for name in sorted(settings)}
    label, beta = map_label(entry.name, unusual), settings.get("beta")
    names = [map_label(entry.name, unusual | {"beta": one}) for one in beta] if isinstance(beta, tuple) else [label]
    return Explanation(entry, settings, target, stage, start, label, tuple(names))
