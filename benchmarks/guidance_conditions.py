"""The conditions of `guidance_study.py` (guidance_conditions.toml): how networks are trained, section by section."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from heatlas.pipeline.models.families.founding_family import FoundingConfig
from heatlas.pipeline.run.config.networks import ModelConfig
from heatlas.studies.bcos.records import BcosSimpleConfig

FOUNDING = FoundingConfig(channels=(4, 8, 16), pools=(2, 2, 3), hidden_units=16, dropout=0.0)
FAMILIES: Mapping[str, ModelConfig] = {
    "founding": FOUNDING,
    "founding without biases": replace(FOUNDING, bias=False),
    "bcos": BcosSimpleConfig(channels=(4, 8, 16), strides=(2, 2, 2)),
}
ON = "-on"
"""End of the name of what goes on for as long without guidance."""


@dataclass(frozen=True)
class Condition:
    """One way to train. Shares are from 0 to 1; `mask` is "brain", "sides" or "outside"."""

    name: str
    loss: str = ""  # of guidance; empty for none
    weight: float = 1.0  # of the maps
    mask: str = "brain"
    annotated: float = 1.0  # share of the people to train with; at least one person
    map: str = "input-x-gradient"  # that is guided
    teacher: str = ""  # condition whose network teaches; empty for none
    taught: str = "grad-cam"
    """What students and teachers compare: "grad-cam" after the last stage, or "dynamic-weights" at the input. The table
    has the cosine of their Grad-CAM whatever they compare."""
    people: float = 1.0  # share of each class to train with, at least one of each
    others: bool = False  # learn from people without a label (MCI) instead, none of whom has the marker
    family: ModelConfig = FOUNDING
    reversed: bool = False  # the marker is to be recognised, and the diagnosis goes with it
    unmarked: bool = False  # nobody has the marker in training: what a network can reach that knows nothing of it
    plain: bool = False  # nobody has the marker, in testing neither
    enlarged: float = 0.0  # share of its width that each box of the mask grows on either side, in training alone
    stage: int = 0  # boundary at which the map is guided; -1 the last with voxels
    shown: str = "input-x-gradient"  # map that is measured
    frozen: bool = False  # the teacher is asked once for each scan; its maps are flipped and shifted with the scans
    longer: float = 1  # times as many epochs: of few people, as many steps as of all
    begins: str = ""  # condition whose trained network goes on; empty for a fresh one
    held_out: bool = False  # IoU at the threshold best on the validation part, and on-object EPG of regions in boxes
    against: str = "control"  # condition that it is compared with


@cache
def sections() -> Mapping[str, list[Condition]]:
    """Conditions of each section, in the order in which they are trained."""
    known: dict[str, Condition] = {}
    found: dict[str, list[Condition]] = {}
    for section, records in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items():
        found[section] = []
        for record in records:
            like = record.pop("like", "")
            base = known[like if "/" in like else f"{section}/{like}"] if like else Condition("")
            family = FAMILIES[record.pop("family")] if "family" in record else base.family
            found[section].append(replace(base, **record, family=family))
            known[f"{section}/{record['name']}"] = found[section][-1]
    return found
