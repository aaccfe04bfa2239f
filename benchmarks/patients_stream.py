"""CA-Stream against global average pooling on finished runs of patients: two heads on each fold's frozen network.

    python benchmarks/patients_stream.py OUT/seed-43 OUT/seed-44 OUT/seed-45 --heads CA-Stream "GAP again" --curves 30

Runs are those of `benchmarks/patients.py`. Heads are trained with the people of the fold: average pooling, and the
stream or its variants (`--heads projections queries`; `--heads "from stage 1"`, 2 and 3, where it begins). They are
judged with people whom neither saw, as in `benchmarks/patients_cams.py`, whose table keeps the answers; the same
command continues. With --numbers all answers are stored for claims, as "SCORE: METHOD, HEAD".
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from claim_numbers import NUMBERS, write_of_runs
from harness import added, arguments_of, kept_rows
from patients_cams import TABLE, map_and_scores, scores
from torch import Tensor

from heatlas.pipeline.cohort.people.splits import Split
from heatlas.pipeline.cohort.people.tasks import Task, task_of
from heatlas.pipeline.models.inputs import NetworkInput, read_channels
from heatlas.pipeline.models.storage import LoadedModel, load_model
from heatlas.pipeline.run.config.settings import TrainingConfig
from heatlas.pipeline.run.layout.folder import read_run_config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.seeds import derived_seed
from heatlas.pipeline.training.objectives.of_task import objective_of
from heatlas.pipeline.training.steps import repeatable
from heatlas.pipeline.training.trainer import Resumption, train
from heatlas.pipeline.training.volumes import STORED, LabelledVolumes
from heatlas.studies.probes.network import build
from heatlas.studies.probes.records import ProbeConfig

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
RECIPE = TrainingConfig(
    learning_rate=5e-3, learning_rate_schedule="cosine", weight_decay=0.0, max_epochs=10, min_epochs=10,
    flip_probability=0.0, max_shift_voxels=0, precision="float32",
)  # fmt: skip


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


def ask(run: Path, curves: int, names: Sequence[str], folds: int) -> None:
    """Train and judge what is missing, fold by fold (0: all); rows are added to the run's table as folds come.

    Average pooling is trained again (its seed is the same) where a head is asked later, but not beside `STARTS`.
    """
    layout, kept = RunLayout(run.resolve()), run / TABLE
    config, split = read_run_config(layout), Split.read(layout)
    rows = kept_rows(kept, ["participant_id", "method"])
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
        rows = added(rows, new, kept)
        print(f"{run.name} fold {fold.index}", flush=True)


def person(
    heads: Mapping[str, LoadedModel], volume: Tensor, target: int, name: str, rest: Sequence[str]
) -> list[dict[str, Any]]:
    brain, rows = volume[0, 0] != 0, []
    for cam in CAMS:
        maps = []
        for head, loaded in heads.items():
            values, scores = map_and_scores(loaded.model, volume, target, cam, rest)
            with torch.no_grad():
                logits = loaded.model(volume)[0]
            maps.append(values[brain])
            said = {"accuracy": 100.0 * (int(logits.argmax()) == target), "logit": float(logits[1] - logits[0])}
            rows.append({"participant_id": name, "method": f"{cam}, {head}", **said, **scores})
            if GAP in heads and head != GAP:
                rows[-1]["likeness"] = float(torch.corrcoef(torch.stack([maps[0], maps[-1]]))[0, 1])
    return rows


def of_heads(run: Path) -> pd.DataFrame:
    """As `scores`; what a head answers is stored once, as "HEAD, logit"."""
    rows = scores(run)
    cam, _, head = (rows["method"].str.partition(", ")[place] for place in range(3))
    answers = rows["score"] == "logit"
    return rows.assign(measure=rows["measure"].mask(answers, head + ", logit"))[~answers | (cam == CAMS[0])]


def main() -> None:
    options = arguments_of(
        __doc__,
        "runs --heads --folds",
        numbers=("", NUMBERS),
        heads={"nargs": "+", "choices": list(HEADS)[1:], "default": ["CA-Stream"], "help": "beside GAP"},
        curves=(4, "first of each fold, with insertion and deletion"),
    )
    torch.set_num_threads(1)
    for run in options.runs:
        ask(run, options.curves, options.heads, options.folds)
    if options.numbers:
        print(write_of_runs(options.numbers, options.runs, of_heads))


if __name__ == "__main__":
    main()
