"""Whether the loss and the depth of a probe change what its maps show, on a backbone that stays the same.

    python benchmarks/probes.py RUN OUT --seeds 43 44 45

RUN is a registered run whose truth is known (the demo); it is only read. For each seed the founding networks are
trained first; probes then stand on their convolutions, fold by fold. Scores are those of `heatlas evaluate`, in
OUT/search.tsv, and those of four scans side by side, in OUT/grids.tsv. The same command continues.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from inherent_runs import Recipe, Workplace, collected, networks, scored, trained

from pipeline.evaluation.grids.stage import evaluate_grids
from pipeline.run.tables import read_table
from pipeline.run.work.executors import open_executor

FOUNDING = Recipe("founding")
LOSSES = {"CE": "cross-entropy", "BCE": "binary-cross-entropy"}
METHODS = ("deeplift", "input-x-gradient", "lrp", "grad-cam")
HEADS = {"linear": METHODS, "mlp-3": METHODS, "bcos-3": ("input-x-gradient", "grad-cam")}
TRAINING = {"learning_rate": 5e-3, "weight_decay": 0.0}
SHOWN = ["recipe", "seed", "map", "balanced_accuracy", "auroc_difference", "energy", "gini", "entropy", "deletion"]


def probes(backbone: Path) -> list[Recipe]:
    """Probes of all heads and losses."""
    return [
        Recipe(
            f"{head}, {name}",
            {
                "model": {"architecture": "probe", "backbone": str(backbone), "head": head},
                "training": {**TRAINING, "loss": loss},
            },
            methods,
        )
        for head, methods in HEADS.items()
        for name, loss in LOSSES.items()
    ]


def on_grids(work: Workplace, recipe: Recipe, seed: int) -> pd.DataFrame:
    """Shares of positive attribution in the cell of the class, of the trained networks of a recipe."""
    cohort = work.cohort(recipe.config(work.run, seed))
    explaining = networks(recipe, cohort, seed).explaining(cohort)
    evaluate_grids(explaining, recipe.explanations(explaining.config), True, work.executor, work.digests)
    table = read_table(explaining.layout.grids)
    table = table[table["setting"] == "GridPG"]
    named = table["method"] + " at " + table["depth"].astype(str)
    return table.assign(recipe=recipe.name, seed=seed, map=named)


def backbone_of(work: Workplace, seed: int) -> Path:
    """A folder that looks like a run whose networks are the founding ones of a seed."""
    cohort = work.cohort(FOUNDING.config(work.run, seed))
    found = networks(FOUNDING, cohort, seed)
    trained(work, found, cohort)
    folder = work.out / "backbones" / found.name
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "models"
    if not link.is_symlink():
        link.symlink_to(found.layout.fold(0).folder.parent.resolve())
    return folder.resolve()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[43, 44, 45])
    parser.add_argument("--faithful", action="store_true", help="also insertion, deletion, Gini and entropy: slow")
    parser.add_argument("--n-procs", type=int, default=1)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with open_executor(arguments.n_procs) as executor:
        work = Workplace(arguments.run, arguments.out, executor)
        for seed in arguments.seeds:
            backbone = backbone_of(work, seed)
            for recipe in probes(backbone):
                table = scored(work, recipe, work.cohort(recipe.config(work.run, seed)), seed, arguments.faithful)
                collected([table], arguments.out / "search.tsv")
                collected([on_grids(work, recipe, seed)], arguments.out / "grids.tsv")
                with pd.option_context("display.width", 220, "display.max_columns", 30):
                    print(table.reindex(columns=SHOWN).round(3).to_string(index=False), flush=True)


if __name__ == "__main__":
    main()
