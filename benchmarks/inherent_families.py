"""Every family that explains itself, by `heatlas run` on copies of one registered run whose truth is known.

    python benchmarks/inherent_families.py RUN OUT                     # all families, one after the other
    python benchmarks/inherent_families.py RUN OUT --only bcos-vit-c

RUN is only read. Each family trains, explains every scan, sums its maps over regions, and writes its report, in a
process of its own whose time is measured. Registration is not repeated. The same command continues.
"""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from harness import arguments_of, replaced
from timed import command_cost

from heatlas.pipeline.cohort.people.splits import Split
from heatlas.pipeline.cohort.reading import PLANTED
from heatlas.pipeline.evaluation.bench.judging import class_difference
from heatlas.pipeline.evaluation.planted import read_planted
from heatlas.pipeline.evaluation.scores.localisation import region_scores
from heatlas.pipeline.run.config.files import toml_value
from heatlas.pipeline.run.layout.folder import read_run_input
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table

FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "bcos-simple": {},
    "bcos-vit-c": {"patch": 16},
    "bcos-vit": {},
    "coda-s": {},
    "coda-s-wb": {},
    "bcos-resnet18": {},
    "bcos-resnext50": {},
    "bcos-convnext-tiny": {},
    "bcos-vgg11": {"width": 0.0625},
    "bcos-densenet121": {},
}
"""Settings that differ from the defaults of the family, for a few minutes of one core."""
EPOCHS = {"bcos-densenet121": 3, "bcos-convnext-tiny": 4, "bcos-vgg11": 3}
USUAL_EPOCHS, FOLDS = 10, 2


def settings_of(family: str) -> str:
    epochs = EPOCHS.get(family, USUAL_EPOCHS)
    model = {"architecture": family, **FAMILIES[family]}
    training = {"max_epochs": epochs, "min_epochs": min(15, epochs), "threads": 1}
    lines = []
    for section, values in {"cohort": {"folds": FOLDS}, "model": model, "training": training}.items():
        lines += [f"[{section}]", *(f"{name} = {toml_value(value)}" for name, value in values.items())]
    return "\n".join([*lines, ""])


def copied(run: Path, out: Path) -> None:
    """The registered scans of a run, and nothing that was made of them; a copy that is there stays.

    A run knows its input by a relative path, and so does the copy: a link leads there.
    """
    given = tomllib.loads((run / "config.toml").read_text())["run"]["input"]
    link = Path(os.path.normpath(out / given))
    if not link.exists():
        link.symlink_to((run / given).resolve())
    if not out.is_dir():
        left = shutil.ignore_patterns("models", "relevance", "maps", "statistics", "evaluation", "pages", "*.html")
        unfinished = out.with_name(f".{out.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(run, unfinished, ignore=left)
        unfinished.rename(out)


def found_by(layout: RunLayout, planted: tuple[str, ...]) -> dict[str, float]:
    predictions = read_table(layout.group / "predictions.tsv")
    right = predictions["predicted"] == predictions["label"]
    evidence = read_table(layout.group / "evidence.tsv")
    evidence = evidence[evidence["map"] == "inherent"]
    wanted = evidence["evidence"] - evidence["reference_evidence"]
    error = evidence["completeness_error"].abs().max() / wanted.abs().mean()
    sums = read_table(layout.group / "relevance_bilateral.tsv")
    split = Split.read(layout.root / "splits.tsv")
    sums = sums[sums["map"] == "inherent"].merge(predictions[["scan_id", "label"]], on="scan_id")
    sums["positive"] = sums["label"] == "AD"
    sums["fold"] = [split.fold_of_test(who).index for who in sums["participant_id"]]  # type: ignore[union-attr]
    table = sums.pivot_table("density", ["participant_id", "positive", "fold"], "group", sort=False)
    is_planted = np.isin(table.columns, planted).tolist()
    scores = {
        "difference": region_scores(class_difference(table, False), is_planted),
        "mean": region_scores(table[table.index.get_level_values("positive")].mean(axis=0).to_numpy(float), is_planted),
    }
    return {
        "balanced_accuracy": float(right.groupby(predictions["label"]).mean().mean()),
        "completeness_error": float(error),
        **{f"{name}_{by}": scores[by][name] for by in scores for name in ("auroc", "hits")},
    }


def main() -> None:
    arguments = arguments_of(
        __doc__,
        "run out --only --participant-label --n-procs",
        only={"choices": list(FAMILIES), "default": list(FAMILIES)},
        participant_label={"nargs": "+", "default": []},
        stop_after="report",
    )
    source = read_run_input(RunLayout(arguments.run.resolve())).input
    planted, path = read_planted(source / PLANTED), arguments.out / "families.tsv"
    for family in arguments.only:
        copy, config = arguments.out / family, arguments.out / f"{family}.toml"
        copied(arguments.run, copy)
        config.write_text(settings_of(family))
        command = [sys.executable, "workflows/adni.py", "run", str(source), str(copy), "--preset", "demo"]
        command += ["--config", str(config), "--seed", "43", "--n-procs", str(arguments.n_procs)]
        command += ["--stop-after", arguments.stop_after]
        if arguments.participant_label:
            command += ["--participant-label", *arguments.participant_label]
        try:
            seconds, usage = command_cost(command, arguments.out / f"{family}.log")
            row = {"family": family, **found_by(RunLayout(copy), planted)}
            row |= {"minutes": seconds / 60, "GiB": usage.ru_maxrss / 2**20}  # of the main process alone
        except RuntimeError as error:
            row = {"family": family, "note": str(error)}
        replaced(pd.DataFrame([row]), path, ["family"])
        print(row, flush=True)


if __name__ == "__main__":
    main()
