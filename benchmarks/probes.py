"""Whether the loss and the depth of a probe change what its maps show, on a backbone that stays the same.

    python benchmarks/probes.py RUN OUT --seeds 43 44 45

RUN, the demo or another registered run whose truth is known, is only read. For each seed the networks of the backbone
are trained first; probes then stand on their convolutions, fold by fold. Shares of maps in grids of four scans are in
OUT/grids.tsv; with --regions also scores of `heatlas evaluate` on the planted regions, in OUT/search.tsv. The same
command continues. Methods are those of Gairola et al. (2025), and all start from the logit: maps of the evidence
(DeepLIFT, expected gradients) take the other class away, and with it what cross-entropy leaves open.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd
from harness import arguments_of
from inherent_runs import Recipe, Workplace, collected, scored, trained_networks

from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.run.work.executors import open_executor
from heatlas.pipeline.run.work.jobs import Outcome
from heatlas.studies.consensus.stage import Networks
from heatlas.studies.grids.directions import GRIDS_TABLE
from heatlas.studies.grids.stage import evaluate_grids
from heatlas.studies.probes.records import ProbeConfig, with_body

BACKBONES = {
    "founding": Recipe("founding"),
    "bcos-simple": Recipe("bcos-simple", {"model": {"architecture": "bcos-simple"}}),
}
LOSSES = {"CE": "cross-entropy", "BCE": "binary-cross-entropy"}
CLAIMED = ("lrp", "integrated-gradients")
WITHOUT_EFFECT = ("input-x-gradient", "grad-cam")
HEADS = {
    "founding": {
        "linear": (*CLAIMED, *WITHOUT_EFFECT),
        "mlp-3": (*CLAIMED, *WITHOUT_EFFECT),
        "bcos-3": (*CLAIMED[1:], *WITHOUT_EFFECT),
    },
    "bcos-simple": {"linear": ("inherent",), "bcos-3": ("inherent",)},
}
TRAINING = {"learning_rate": 5e-3, "weight_decay": 0.0}
COLUMNS = ["recipe", "seed", "map", "share", "ci_low", "ci_high", "n_participants", "confidence"]


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


def in_grids(
    work: Workplace, found: Networks, cohort: JudgedCohort, recipe: Recipe
) -> tuple[JudgedCohort, list[Outcome]]:
    """The cohort as trained networks explain it, and its grids; maps start from the logit.

    A recipe that names a slow method wants it, though the rest is quick.
    """
    explaining = found.explaining(cohort)
    asked = tuple(
        dataclasses.replace(one, start="logit", entry=dataclasses.replace(one.entry, slow=""))
        for one in recipe.explanations(explaining.config)
    )
    return explaining, evaluate_grids(explaining, asked, True, work.executor, work.digests)


def on_grids(work: Workplace, recipe: Recipe, seed: int) -> pd.DataFrame:
    cohort, found = trained_networks(work, recipe, seed)
    table = GRIDS_TABLE.read(in_grids(work, found, cohort, recipe)[0].layout)
    table = table[(table["setting"] == "GridPG") & table["share"].notna()]
    return table.assign(recipe=recipe.name, seed=seed, map=table["method"] + " at " + table["depth"].astype(str))


def backbone_of(work: Workplace, recipe: Recipe, seed: int) -> Path:
    """A folder that looks like a run whose networks are those of a recipe and seed."""
    found = trained_networks(work, recipe, seed)[1]
    folder = work.out / "backbones" / found.name
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "models"
    if not link.is_symlink():
        link.symlink_to(found.layout.fold(0).folder.parent.resolve())
    return folder.resolve()


def main() -> None:
    arguments = arguments_of(
        __doc__,
        "run out --seeds --backbones --n-procs",
        backbones={"nargs": "+", "choices": BACKBONES, "default": list(BACKBONES)},
        regions=(False, "also the area of the planted regions"),
    )
    with open_executor(arguments.n_procs) as executor:
        work = Workplace(arguments.run, arguments.out, executor)
        for seed in arguments.seeds:
            for name in arguments.backbones:
                for recipe in probes(backbone_of(work, BACKBONES[name], seed), name):
                    if arguments.regions:
                        cohort = work.cohort(recipe.config(work.run, seed))
                        found = scored(work, recipe, cohort, seed)
                        collected([found], arguments.out / "search.tsv")
                    table = on_grids(work, recipe, seed)
                    collected([table], arguments.out / "grids.tsv")
                    with pd.option_context("display.width", 220, "display.max_columns", 30):
                        print(table[COLUMNS].round(3).to_string(index=False), flush=True)


if __name__ == "__main__":
    main()
