"""What ``usual`` stands for in the settings of ``[objective]``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from heatlas.pipeline.models.families.registry import family_of
from heatlas.pipeline.run.config.settings import Config
from heatlas.studies.objectives.maps_in_training import ATTENTION

WEIGHTS: Mapping[str, float] = {"energy": 30.0, "l1": 100.0, "ppce": 1.0, "rrr": 1e4}
"""Weight of guidance by its loss: those of docs/training_with_explanations.md, with the brain as mask."""


@dataclass(frozen=True)
class MapSettings:
    """Weight, map and stage of ``[objective]``, none of them ``usual``."""

    weight: float
    map: str
    stage: int


def map_settings(config: Config) -> MapSettings:
    """The settings of a run that ``usual`` may stand for.

    Distillation compares what Parchami-Araghi et al. 2024 compare: W(x) at the input where a network is one linear map
    from there on, else Grad-CAM after the last stage with voxels.

    Examples
    --------
    >>> from heatlas.studies.bcos.records import BcosSimpleConfig
    >>> from heatlas.pipeline.run.config.networks import ObjectiveConfig
    >>> taught = ObjectiveConfig(kind="distilled", teacher="run")
    >>> for config in (Config(objective=taught), Config(objective=taught, model=BcosSimpleConfig())):
    ...     map_settings(config)
    MapSettings(weight=1.0, map='grad-cam', stage=-1)
    MapSettings(weight=1.0, map='dynamic-weights', stage=0)
    """
    wanted = config.objective
    weight, shown, stage = wanted.weight, str(wanted.map), wanted.stage
    if weight == "usual":
        weight = WEIGHTS[wanted.loss] if wanted.kind == "guided" else 1.0
    if shown == "usual":
        shown = "input-x-gradient"
        if wanted.kind == "distilled":
            shown = "dynamic-weights" if _is_linear_map(config) else "grad-cam"
    if stage == "usual":
        stage = -1 if shown in ("grad-cam", ATTENTION) else 0
    return MapSettings(weight, shown, stage)


def _is_linear_map(config: Config) -> bool:
    """Whether the network is dynamic linear from the input on; probes are where backbone and head are."""
    family = family_of(config.model)
    return family.encoding == "pair" and "inherent" not in family.refused
