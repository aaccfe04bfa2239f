"""The studies of `patients_networks.py`: recipes, and what is asked of their networks or of finished runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import patients_cams
import patients_evidence
import patients_guidance
import patients_planted
import patients_runs
import patients_stream
from inherent_runs import Ask, Recipe, Workplace, recipes_of, trained_networks
from patients_measures import LEARNED, Measure, cascade, constants, drawn, known, learned, removal

from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.run.config.settings import Config
from heatlas.studies.probes.records import ProbeConfig, with_body

BACKBONES = {
    "founding": Recipe("founding"),
    "bcos-simple": Recipe("bcos-simple", {"model": {"architecture": "bcos-simple"}}),
}
LOSSES = {"CE": "cross-entropy", "BCE": "binary-cross-entropy"}
MAPS = ("integrated-gradients", "input-x-gradient", "grad-cam")
HEADS = {
    "founding": {"linear": ("lrp", *MAPS), "mlp-3": ("lrp", *MAPS), "bcos-3": MAPS},
    "bcos-simple": {"linear": ("inherent",), "bcos-3": ("inherent",)},
}
"""Of a backbone: its heads, and the methods of Gairola et al. (2025) that each is asked."""
TRAINING = {"learning_rate": 5e-3, "weight_decay": 0.0, "max_epochs": 10, "min_epochs": 10}
"""Of a head; the source has 100 epochs."""

SOME = {"evaluation": {"grids": {"kinds": ["needle"], "per_class": 4}}}
"""Two grids for each class and fold, of maps that cost much."""
MANY = {"evaluation": {"grids": {"kinds": ["needle"], "per_class": 8}}}
"""Grids of own maps alone, which cost little."""
SOURCE_LRP = ["lrp:rules=composite", "lrp:gamma=0.25", "lrp:bias=true"]
"""As in the source; grids ask it beside others."""
FEW_SAMPLES = ["lime:segments=40", "lime:samples=200"]
"""Of a grid of four brains."""
CAMS = ("grad-cam", "score-cam")
NORMS = ("batch", "layer", "position", "instance")


@dataclasses.dataclass(frozen=True)
class Study:
    """Recipes and what is asked of their networks; or units of work, each with its name and what it asks."""

    recipes: Callable[[Workplace, int], Iterable[Recipe]] | None = None
    """Those of a seed."""
    grids: bool = True
    """Whether maps are asked for in grids."""
    whole: int = 0
    """First of each fold, by name, whose maps are judged for sparsity and while places are taken away."""
    cams: tuple[str, ...] = ()
    """Methods of masked recognition, asked of everybody."""
    curves: int = 0
    """First of each fold, with insertion and deletion."""
    losses: bool = False
    """Whether the losses of the trainings are asked for: one that is no longer finite is an answer."""
    measures: Mapping[str, Mapping[Measure, int]] = dataclasses.field(default_factory=dict)
    """By recipe, further measures, and of how many people of each fold, the first by name; 0 for everybody."""
    of_cohort: Callable[[JudgedCohort, Config], Iterator[dict[str, object]]] | None = None
    """Further measures of all people at once, of linear heads by cross-entropy."""
    units: Callable[[Workplace, int], Iterable[tuple[str, Ask]]] | None = None
    """In place of recipes."""
    of_runs: bool = False
    """Whether units ask a finished run, whose predictions have class and fold of each person."""
    table: str = "people.tsv"
    """Name of the file of all rows."""
    about: Callable[[Path], Mapping[str, Any]] = lambda run: {}
    """What numbers hold for everybody."""
    numbers: Callable[[pd.DataFrame], pd.DataFrame] | None = None
    """Of units that are recipes: what is stored for claims, of all rows."""
    summary: Callable[[Path, Path, pd.DataFrame], None] | None = None
    """Writes to the folder what all rows together say; of the run as well."""


def recorded(study: str) -> Callable[[Workplace, int], Iterable[Recipe]]:
    """The recipes of recipes.toml, of any seed."""
    return lambda _, __: recipes_of(study)


def probes(backbone: Path, name: str, kind: str = "") -> list[Recipe]:
    """Probes of all heads and losses that `HEADS` has for a kind of backbone, its name where none is given."""
    body = with_body(ProbeConfig(backbone=str(backbone))).body
    return [
        Recipe(
            f"{name}, {head}, {loss}",
            {
                "model": {"architecture": "probe", "backbone": str(backbone), "body": body, "head": head},
                "training": {**TRAINING, "loss": LOSSES[loss]},
                "attribution": {"settings": ["inherent:compare=nothing"]} if "inherent" in methods else {},
                "evaluation": {"grids": {"kinds": ["needle"]}},
            },
            methods,
        )
        for head, methods in HEADS[kind or name].items()
        for loss in LOSSES
    ]


def backbone_of(work: Workplace, recipe: Recipe, seed: int) -> Path:
    """A folder that looks like a run whose networks are those of a recipe and seed."""
    found = trained_networks(work, recipe, seed)[1]
    folder = work.out / "backbones" / found.name
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "models"
    if not link.is_symlink():
        link.symlink_to(found.layout.fold(0).folder.parent.resolve())
    return folder.resolve()


def probe_recipes(
    work: Workplace, seed: int, bodies: Sequence[str] = tuple(BACKBONES), losses: Sequence[str] = tuple(LOSSES)
) -> Sequence[Recipe]:
    """Heads and losses on the frozen networks of the founding family, then on B-cos networks."""
    found = [one for name in bodies for one in probes(backbone_of(work, BACKBONES[name], seed), name)]
    return [one for one in found if one.name.endswith(tuple(f", {loss}" for loss in losses))]


def loss_recipes(work: Workplace, seed: int) -> Sequence[Recipe]:
    """Linear heads, with which the source varies the loss, and what it asks of them; LIME, which is slow, by itself."""
    found: list[Recipe] = []
    for one in probe_recipes(work, seed):
        body, head, _ = one.name.split(", ")
        if head != "linear":
            continue
        if body != "founding":
            found.append(
                dataclasses.replace(one, settings={**one.settings, **MANY}, methods=(*one.methods, "score-cam"))
            )
            continue
        settings = {**one.settings, **SOME}
        more = (*one.methods, "guided-backpropagation", "score-cam")
        for name, methods, own in ((one.name, more, SOURCE_LRP), (f"LIME of {one.name}", ("lime",), FEW_SAMPLES)):
            found.append(Recipe(name, {**settings, "attribution": {"settings": own}}, methods))
    return found


def depth_recipes(work: Workplace, seed: int) -> Sequence[Recipe]:
    """Heads by binary cross-entropy, with which the source varies depth, on networks of the founding family."""
    found = probe_recipes(work, seed, ("founding",), ("BCE",))
    return [dataclasses.replace(one, settings={**one.settings, **SOME}) for one in found]


def pretrained_recipes(work: Workplace, seed: int) -> Iterator[Recipe]:
    """Linear heads on networks that learned without labels, of both losses on one of them.

    A backbone learns when its first head is asked for.
    """
    for name in LEARNED:
        for one in probes(learned(work, name, seed), name, "founding"):
            _, head, loss = one.name.split(", ")
            if head == "linear" and (name == "SimCLR" or loss == "CE"):
                settings = {**one.settings, "attribution": {"settings": SOURCE_LRP}}
                yield dataclasses.replace(one, settings=settings, methods=one.methods if name == "SimCLR" else ())


TESTS: Mapping[str, Mapping[Measure, int]] = {
    "CoDA-S": {removal: 6, cascade: 4},
    **{f"B-cos, {name} norm with biases": {constants: 0} for name in NORMS},
    **{name: {drawn: 0} for name in ("B-cos, dark", "B-cos, dark, off-targets")},
}
STUDIES = {
    "own": Study(recorded("own")),
    "own-further": Study(recorded("own-further"), table="further.tsv"),
    "tests": Study(recorded("tests"), measures=TESTS, table="tests.tsv"),
    "penalty": Study(recorded("penalty"), table="penalty.tsv"),
    "probes": Study(probe_recipes, whole=4),
    "losses": Study(loss_recipes, whole=6, table="losses.tsv"),
    "depth": Study(depth_recipes, table="depth.tsv"),
    "pretrained": Study(pretrained_recipes, table="pretrained.tsv", of_cohort=known),
    "readable": Study(recorded("readable"), False, cams=CAMS, curves=8),
    "alone": Study(recorded("alone"), False, losses=True),
    "planted": Study(units=patients_planted.units),
    "evidence": Study(units=patients_evidence.units, summary=patients_evidence.write_tables),
    **{
        f"guidance-{section}": Study(
            units=partial(patients_guidance.units, section=section),
            numbers=partial(patients_guidance.numbers_of, section=section),
            table=f"guidance-{section}.tsv",
        )
        for section in patients_guidance.CONDITIONS
    },
    "relevance": Study(units=patients_runs.by_region, of_runs=True, about=patients_runs.voxels_of),
    "grids": Study(units=patients_runs.grids, of_runs=True),
    "grids-nine": Study(units=patients_runs.grids_of_nine, of_runs=True),
    "cams": Study(units=patients_cams.units, of_runs=True),
    **{
        name: Study(units=partial(patients_stream.units, heads=heads, curves=curves), of_runs=True)
        for name, heads, curves in patients_stream.ASKED
    },
}
