"""Whether a B-cos network finds planted disease as well as the founding network does: a search over its settings.

    python benchmarks/inherent_search.py RUN OUT --only founding "BCE, B 1.5" --seeds 43 44
    python benchmarks/inherent_search.py RUN OUT                     # all settings, one seed: an hour or more
    python benchmarks/inherent_search.py RUN OUT --planted --only founding "B 1"     # copies of any healthy scans

RUN is a registered run whose truth is known (the demo), or, with --planted, any: loss is planted in copies of its
controls, as `heatlas evaluate --plant` does. It is only read. The seed draws folds and weights. Scores are
those of `heatlas evaluate`, in OUT/search.tsv. The same command continues.
"""

from __future__ import annotations

import pandas as pd
from inherent_runs import Recipe, Workplace, collected, scored, scored_on_copies
from sections import arguments_of

from heatlas.pipeline.run.work.executors import open_executor

SHOWN = [
    "recipe", "seed", "map", "balanced_accuracy", "auroc_difference", "hits_difference", "auroc_mean", "hits_mean",
    "train_loss", "train_balanced_accuracy", "validation_loss", "minutes",
]  # fmt: skip


def bcos(name: str, training: dict | None = None, **model: object) -> Recipe:
    """A recipe with B = 2 and off-targets, the defaults before this search, unless told otherwise."""
    settings = {"model": {"architecture": "bcos-simple", "b": 2.0, **model}}
    return Recipe(name, settings | {"training": {"loss": "off-target", **(training or {})}})


def coda(name: str, settings: dict, training: dict | None = None, **model: object) -> Recipe:
    """A CoDA network and its own maps."""
    return Recipe(
        name, {**settings, "model": {"architecture": "coda-s", **model}, "training": training or {}}, ("inherent",)
    )


GOOD = {"head": "places", "stem_kernel": 5, "channels": [16, 16, 32, 32], "strides": [3, 1, 2, 1]}
"""Around which the other settings are varied."""
BCE = {"loss": "binary-cross-entropy"}
LONG = {"max_epochs": 40, "min_epochs": 30}
OLD = {"head": "average", "stem_kernel": 3, "channels": [8, 8, 16, 16, 32, 32], "strides": [3, 1, 2, 1, 2, 1]}
"""Defaults before this search."""
BEST = bcos("BCE, B 1.5", BCE, b=1.5, **GOOD)
"""Now the defaults of bcos-simple."""
FOUNDING = Recipe("founding")
WITHOUT_BIASES = tuple(
    Recipe(f"founding, no biases, lr {rate:g}, 40 epochs", {
        "model": {"bias": False}, "training": {"learning_rate": rate, "max_epochs": 40, "min_epochs": 30},
    })
    for rate in (3e-4, 1e-3, 3e-3)
)  # fmt: skip
"""Without normalisation training needs longer."""
SCREEN = (
    bcos("average, six layers", **OLD),
    bcos("average, six layers, lr 3e-3", {"learning_rate": 3e-3}, **OLD),
    bcos("places, six layers", **OLD | {"head": "places"}),
    bcos("places, six layers, stem 7", **OLD | {"head": "places", "stem_kernel": 7}),
    bcos("average, six layers, first stride 2", **OLD | {"strides": [2, 1, 2, 1, 2, 2]}),
    bcos("places", **GOOD),
    bcos("lr 3e-3", {"learning_rate": 3e-3}, **GOOD),
    bcos("lr 3e-4", {"learning_rate": 3e-4}, **GOOD),
    bcos("B 1", b=1.0, **GOOD),
    bcos("B 1.5", b=1.5, **GOOD),
    bcos("B 2.5", b=2.5, **GOOD),
    bcos("binary cross-entropy", BCE, **GOOD),
    bcos("40 epochs", LONG, **GOOD),
    bcos("logits 2", initial_logits=2.0, **GOOD),
    bcos("logits 0.1", initial_logits=0.1, **GOOD),
    bcos("dark background", background="dark", **GOOD),
    bcos("no norm", norm="none", **GOOD),
    bcos("layer norm", norm="layer", **GOOD),
    bcos("position norm", norm="position", **GOOD),
    bcos("half as wide", **GOOD | {"channels": [8, 8, 16, 16]}),
    bcos("stem 7", **GOOD | {"stem_kernel": 7}),
    bcos("first stride 2", **GOOD | {"strides": [2, 1, 2, 1]}),
    bcos("three layers", **GOOD | {"channels": [16, 16, 32], "strides": [3, 1, 2]}),
    bcos("two layers", **GOOD | {"channels": [16, 32], "strides": [3, 2]}),
    bcos("MaxOut 2", max_out=2, **GOOD),
    BEST,
    bcos("BCE, B 1.25", BCE, b=1.25, **GOOD),
    bcos("BCE, lr 3e-3", BCE | {"learning_rate": 3e-3}, **GOOD),
    bcos("BCE, three layers", BCE, **GOOD | {"channels": [16, 16, 32], "strides": [3, 1, 2]}),
    bcos("BCE, half as wide", BCE, **GOOD | {"channels": [8, 8, 16, 16]}),
    bcos("BCE, B 1.5, lr 3e-3", BCE | {"learning_rate": 3e-3}, b=1.5, **GOOD),
    bcos("BCE, B 1.5, 40 epochs", BCE | LONG, b=1.5, **GOOD),
    bcos("BCE, B 1.25, 40 epochs", BCE | LONG, b=1.25, **GOOD),
    bcos("BCE, B 1.5, 40 epochs, logits 0.1", BCE | LONG, b=1.5, initial_logits=0.1, **GOOD),
    bcos("BCE, B 1.5, 40 epochs, 32 channels", BCE | LONG, b=1.5, **GOOD | {"channels": [16, 32, 32, 64]}),
    bcos("BCE, B 1.5, 40 epochs, dark", BCE | LONG, b=1.5, background="dark", **GOOD),
    bcos("BCE, B 1.5, 40 epochs, no norm", BCE | LONG, b=1.5, norm="none", **GOOD),
    bcos("BCE, B 1.5, 40 epochs, layer norm", BCE | LONG, b=1.5, norm="layer", **GOOD),
)


def run(work: Workplace, recipes: tuple[Recipe, ...], seeds: list[int], planted: bool) -> None:
    for seed in seeds:
        for recipe in recipes:
            if planted:
                table = scored_on_copies(work, recipe, seed)
            else:
                table = scored(work, recipe, work.cohort(recipe.config(work.run, seed)), seed)
            collected([table], work.out / "search.tsv")
            with pd.option_context("display.width", 220, "display.max_columns", 30):
                print(
                    table.reindex(columns=SHOWN).round(3).to_string(index=False, header=recipe is recipes[0]),
                    flush=True,
                )


def main() -> None:
    planted = ("--planted", {"action": "store_true", "help": "plant loss in copies of the controls"})
    arguments = arguments_of(__doc__, "run", "out", "--seeds", "--only", planted, "--n-procs", seeds=[43])
    arguments.out.mkdir(parents=True, exist_ok=True)
    known = {one.name: one for one in (*SCREEN, FOUNDING, *WITHOUT_BIASES)}
    chosen = tuple(known[name] for name in arguments.only or known)
    with open_executor(arguments.n_procs) as executor:
        run(Workplace(arguments.run, arguments.out, executor), chosen, arguments.seeds, arguments.planted)


if __name__ == "__main__":
    main()
