"""CA-Stream against global average pooling on finished runs of patients: two heads on each fold's frozen network.

    python benchmarks/patients_stream.py OUT/seed-43 OUT/seed-44 OUT/seed-45 --heads CA-Stream "GAP again" --curves 30

Runs are those of `benchmarks/patients.py`. On the stages of each fold's network two probes are trained with the people
of the fold, head "linear" (average pooling) and head "ca-stream" (or its variants: `--heads projections queries`, and
`--heads "from stage 1"`, 2 and 3, where the stream begins), and judged with the people whom neither saw, as in
`benchmarks/patients_cams.py`, whose table keeps the answers. Likeness: correlation over the brain of the maps of both
heads. The same command continues.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from patients_cams import HEADING, TABLE, across, differences, judged, means_table
from sections import write_section
from torch import Tensor

from heatlas.pipeline.cohort.people.splits import Split
from heatlas.pipeline.cohort.people.tasks import Task, task_of
from heatlas.pipeline.evaluation.scores.intervals import DRAWS, participant_interval
from heatlas.pipeline.models.families.probes.network import build
from heatlas.pipeline.models.families.probes.settings import ProbeConfig
from heatlas.pipeline.models.inputs import NetworkInput, read_channels
from heatlas.pipeline.models.storage import LoadedModel, load_model
from heatlas.pipeline.run.config.settings import TrainingConfig
from heatlas.pipeline.run.layout.folder import read_run_config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.seeds import derived_seed
from heatlas.pipeline.training.numerics import repeatable
from heatlas.pipeline.training.objectives.of_task import objective_of
from heatlas.pipeline.training.trainer import Resumption, train
from heatlas.pipeline.training.volumes import STORED, LabelledVolumes

GAP, AGAIN = "GAP", "GAP again"
"""Average pooling, and the same from another start: how alike the maps of two heads are whatever their pooling."""
STARTS = ("from stage 1", "from stage 2", "from stage 3")
"""Of the four stages of a founding network; the plain stream begins at stage 0."""
HEADS = {
    GAP: ProbeConfig(head="linear"),
    AGAIN: ProbeConfig(head="linear"),
    "CA-Stream": ProbeConfig(head="ca-stream"),
    "projections": ProbeConfig(head="ca-stream", projections=True),
    "queries": ProbeConfig(head="ca-stream", class_queries=True),
    **{name: ProbeConfig(head="ca-stream", first_attended=place + 1) for place, name in enumerate(STARTS)},
}
CAMS = ("grad-cam", "grad-cam++")
CURVES = ("insertion", "deletion")
EVERYBODY = 30
"""People of a fold and more."""
RECIPE = TrainingConfig(
    learning_rate=5e-3, learning_rate_schedule="cosine", weight_decay=0.0, max_epochs=10, min_epochs=10,
    flip_probability=0.0, max_shift_voxels=0, precision="float32",
)  # fmt: skip
TITLE = "CA-Stream"
PREFACE = """\
The networks of the first section, frozen, by `python benchmarks/patients_stream.py`: on each fold's convolutions
heads are trained alike (10 epochs), a linear one after global average pooling (GAP), the same from another start (GAP
again), and one after CA-Stream from the first stage on. As in the source: the true class is explained at the last
features, a map becomes a mask by its range, what is hidden is air, insertion starts from the blurred scan; in per cent.
Unlike it: founding networks of 64 channels, two classes, a classifier of each head (the source keeps one for both
poolings, and trains the stream for 90 epochs), and no attention to the background. Masked recognition is asked of
everybody, and so are curves{curves}. Likeness: correlation over the brain of a person's maps with a head and with GAP.
Chance is an accuracy of 50; ridge regression on regions has an area of .79 ([patients.md](../patients.md)).
All but the curves of 106 people and GAP again had been seen with other trainings. Said before those were seen:

- S4 and S5: insertion and deletion rise (fall) with the stream where the interval over people and every seed do, of
  Grad-CAM and Grad-CAM++. They hold if both rise, and do not if one falls, or one lies within 2 points of 0.
- S7 does not hold if maps of the stream are less like those of GAP than maps of GAP again are, by more than .1, and
  holds if they are less than .1 below them (interval and every seed).

Seconds are of a core that others used too (2 cores, no GPU). All took 20 minutes."""

OF_VARIANTS = """\
As the section "CA-Stream", with networks of an earlier training, by `python benchmarks/patients_stream.py RUN … --heads
CA-Stream projections queries --curves 0`: heads with linear maps of keys and values (projections), and with a query for
each class whose logit reads its own pooled features alone (queries; the source trains the query of the true class for
all logits). About a minute a fold."""
OF_STARTS = """\
As the section "CA-Stream", by `python benchmarks/patients_stream.py RUN … --heads CA-Stream "from stage 1"
"from stage 2" "from stage 3" --curves 0 --folds 2`: the stream begins at stage 0 (CA-Stream) to 3 of four; the last
alone is stage 3. The first two of five folds of each seed. Said before anything was seen, of the average gain (AG) of
Grad-CAM, as in the source: higher and lower where the interval over people and every seed lie on one side of 0; where
a stream begins hardly matters if the interval of each difference lies within 5 points. S8 holds if AG is lower from
stage 3 than from each other stage, and hardly matters among the others. It does not hold if AG is higher from stage 3
than from another, or if two of the others differ by more than 5 points, by the interval and in every seed. Seconds are
of a core that others used too; all took 4.8 minutes."""


def learned(loaded: LoadedModel, name: str, task: Task, parts: Sequence[LabelledVolumes], seed: int) -> LoadedModel:
    """A probe on the convolutions of a network."""
    objective = objective_of(task, RECIPE, parts[0].targets)
    with repeatable(torch.device("cpu"), seed, 1), tempfile.TemporaryDirectory() as scratch:
        torch.manual_seed(seed)
        shape = tuple(parts[0].volumes.shape[2:])
        model = build(loaded.model, shape, HEADS[name], False, 2)
        found = train(model, *parts, objective, RECIPE, seed, Resumption(Path(scratch) / "c.safetensors", name))
    model.load_state_dict(found.weights)
    return dataclasses.replace(loaded, model=model.eval())


def asked(run: Path, curves: int, names: Sequence[str], folds: int) -> None:
    """Train and judge what is missing, fold by fold (0: all); rows are added to the run's table as folds come.

    Average pooling is trained again (its seed is the same) where a head is asked later, but not beside `STARTS`.
    """
    layout, kept = RunLayout(run.resolve()), run / TABLE
    config, split = read_run_config(layout), Split.read(layout)
    rows = pd.read_csv(kept, sep="\t") if kept.is_file() else pd.DataFrame(columns=["participant_id", "method"])
    people = pd.read_csv(run / "group" / "predictions.tsv", sep="\t").set_index("participant_id")["target"]
    for fold in split.folds[: folds or None]:
        there = rows[rows["participant_id"].isin(fold.test)]["method"].str.split(", ").str[-1]
        if not set(names) - set(there):
            continue
        loaded, seed = load_model(layout.fold(fold.index)), derived_seed(config.seed, "stream", fold.index)

        def volumes(names: Sequence[str], spec: NetworkInput = loaded.input) -> Tensor:
            files = [layout.scan(name, None, spec.resolution_mm) for name in names]
            return torch.from_numpy(np.stack([read_channels(own, spec) for own in files]))

        parts = [
            LabelledVolumes(volumes(part).to(STORED), torch.tensor([int(people[name]) for name in part]))
            for part in (fold.train, fold.validation)
        ]
        wanted = [GAP] * (not set(names) & set(STARTS)) + [name for name in names if name not in set(there)]
        heads = {name: learned(loaded, name, task_of(config.cohort), parts, seed + (name == AGAIN)) for name in wanted}
        new = []
        for place, name in enumerate(sorted(fold.test)):
            rest, volume = CURVES if place < curves else (), volumes([name])
            new += person(heads, volume, int(people[name]), name, rest)
        new = [one for one in new if one["method"].split(", ")[-1] not in set(there)]
        rows = pd.concat([rows, pd.DataFrame(new)], ignore_index=True)
        rows.to_csv(kept, sep="\t", index=False)
        print(f"{run.name} fold {fold.index}", flush=True)


def person(
    heads: Mapping[str, LoadedModel], volume: Tensor, target: int, name: str, rest: Sequence[str]
) -> list[dict[str, Any]]:
    """Rows of a person: each method with each head."""
    brain, rows = volume[0, 0] != 0, []
    for cam in CAMS:
        maps = []
        for head, loaded in heads.items():
            scores, values = judged(loaded, volume, brain, target, cam, rest)
            with torch.no_grad():
                right = 100.0 * (int(loaded.model(volume).argmax()) == target)
            maps.append(values[brain])
            rows.append({"participant_id": name, "method": f"{cam}, {head}", "accuracy": right, **scores})
            if GAP in heads and head != GAP:
                rows[-1]["likeness"] = float(torch.corrcoef(torch.stack([maps[0], maps[-1]]))[0, 1])
    return rows


def likeness(runs: Sequence[Path], cam: str, head: str) -> str:
    """A row: correlation of the maps of a head and of average pooling by seed, and over people with an interval."""
    found = [pd.read_csv(run / TABLE, sep="\t").assign(run=run.name) for run in runs]
    own = pd.concat(one[one["method"] == f"{cam}, {head}"] for one in found).dropna(subset="likeness")
    seeds = ", ".join(f"{one:.2f}" for one in own.groupby("run")["likeness"].mean())
    each = own.groupby("participant_id")["likeness"].mean().to_numpy()
    low, high = participant_interval((each,), np.mean, DRAWS, 0)
    said = cam if head == "CA-Stream" else f"{cam}, {head}"
    return f"| likeness: {said} | {len(each)} | {seeds} | {each.mean():.2f} ({low:.2f} to {high:.2f}) |"


def tables(runs: Sequence[Path], curves: int, heads: Sequence[str]) -> str:
    """The section."""
    names = [f"{cam}, {head}" for cam in CAMS for head in (GAP, *heads)]
    who = f", of the first {curves} of each fold by name" if curves < EVERYBODY else ""
    parts = [PREFACE.format(curves=who), "", *means_table(runs, names, partly=True), ""]
    parts += ["| difference | people | seeds | mean (95 %) |", "|---|---|---|---|"]
    for cam in CAMS:
        for head in heads:
            parts += differences(runs, f"{cam}, {head}", f"{cam}, {GAP}", partly=True)
    parts += [likeness(runs, cam, head) for cam in CAMS for head in heads]
    return "\n".join([*parts, *(less_alike(runs, cam) for cam in CAMS if {AGAIN, "CA-Stream"} <= set(heads))])


def less_alike(runs: Sequence[Path], cam: str) -> str:
    """A row: likeness of the maps of the stream less that of average pooling from another start."""
    found = pd.concat(pd.read_csv(run / TABLE, sep="\t").assign(run=run.name) for run in runs)
    wide = found.pivot_table(index=["run", "participant_id"], columns="method", values="likeness")
    change = (wide[f"{cam}, CA-Stream"] - wide[f"{cam}, {AGAIN}"]).dropna()
    return f"| likeness: {cam}, CA-Stream less {cam}, {AGAIN} | {across(change, 2)} |"


def variants(runs: Sequence[Path], preface: str, heads: Sequence[str], pairs: Sequence[tuple[str, str]]) -> str:
    """A section on variants: means beside the plain stream, and one head less another."""
    names = [f"{cam}, {head}" for cam in CAMS for head in ("CA-Stream", *heads)]
    parts = [preface, "", *means_table(runs, names), "", "| difference | people | seeds | mean (95 %) |"]
    parts.append("|---|---|---|---|")
    for cam in CAMS:
        for first, second in pairs:
            parts += differences(runs, f"{cam}, {first}", f"{cam}, {second}")
    return "\n".join(parts)


def starts(runs: Sequence[Path], heads: Sequence[str]) -> str:
    """The section on where a stream begins: each start less all earlier ones."""
    names = ["CA-Stream", *heads]
    pairs = [(later, earlier) for place, later in enumerate(names) for earlier in names[:place]]
    return variants(runs, OF_STARTS, heads, pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--curves", type=int, default=4, help="first of each fold, with insertion and deletion")
    parser.add_argument("--heads", nargs="+", choices=list(HEADS)[1:], default=["CA-Stream"], help="beside GAP")
    parser.add_argument("--folds", type=int, default=0, help="the first ones only; 0 for all")
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for run in options.runs:
        asked(run, options.curves, options.heads, options.folds)
    others = [head for head in options.heads if head not in ("CA-Stream", AGAIN)]
    if set(others) & set(STARTS):
        title, text = f"{TITLE}, where it begins", starts(options.runs, others)
    elif others:
        pairs = [(head, "CA-Stream") for head in others]
        title, text = f"{TITLE}, variants", variants(options.runs, OF_VARIANTS, others, pairs)
    else:
        title, text = TITLE, tables(options.runs, options.curves, options.heads)
    print(text)
    if options.page:
        write_section(options.page, title, text, HEADING)
    return 0


if __name__ == "__main__":
    sys.exit(main())
