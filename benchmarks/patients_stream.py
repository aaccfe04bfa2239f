"""CA-Stream against global average pooling on finished runs of patients: two heads on each fold's frozen network.

Heads are trained with the people of the fold: average pooling, and the stream or its variants. They are judged with
people whom neither saw, as in `patients_cams.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import cache, partial

import pandas as pd
import torch
from inherent_runs import Ask, Workplace, learn, scan_of
from patients_cams import map_and_scores, mapped

from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.models.storage import LoadedModel, load_model
from heatlas.pipeline.run.config.settings import TrainingConfig
from heatlas.pipeline.run.layout.folder import read_run_config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.seeds import derived_seed
from heatlas.pipeline.training.objectives.of_task import objective_of
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
ASKED = (
    ("stream", (GAP, "CA-Stream", AGAIN), 4),
    ("stream-starts", ("CA-Stream", *STARTS), 0),
    ("stream-variants", (GAP, "CA-Stream", "projections", "queries"), 0),
)
"""Studies: their heads, and of how many people of each fold, the first by name, they have insertion and deletion."""
CAMS = ("grad-cam", "grad-cam++")
CURVES = ("insertion", "deletion")
RECIPE = TrainingConfig(
    learning_rate=5e-3, learning_rate_schedule="cosine", weight_decay=0.0, max_epochs=10, min_epochs=10,
    flip_probability=0.0, max_shift_voxels=0, precision="float32",
)  # fmt: skip


def units(work: Workplace, _: int, heads: Sequence[str], curves: int) -> Iterator[tuple[str, Ask]]:
    for head in heads:
        yield head, partial(judged, work, head, GAP in heads and head != GAP, curves)


def judged(work: Workplace, head: str, beside: bool, curves: int) -> Iterator[dict[str, object]]:
    """Scores of the maps of a head, "SCORE: METHOD, HEAD", and how like they are to those of `GAP` beside it."""
    layout = RunLayout(work.run.resolve())
    classes = classes_of(layout)
    for fold in Split.read(layout).folds[: work.folds or None]:
        loaded = learned(layout, fold, head)
        plain = learned(layout, fold, GAP) if beside else None
        for place, person in enumerate(sorted(fold.test)):
            volume, target = scan_of(layout, loaded.input, person), classes[person]
            with torch.no_grad():
                logits = loaded.model(volume)[0]
            row = {"person": person, f"{head}, logit": float(logits[1] - logits[0])}
            for cam in CAMS:
                values, scores = map_and_scores(loaded.model, volume, target, cam, CURVES if place < curves else ())
                scores["accuracy"] = 100.0 * (int(logits.argmax()) == target)
                if plain:
                    both = torch.stack([mapped(plain.model, volume, target, cam)[0], values])
                    scores["likeness"] = float(torch.corrcoef(both[:, volume[0, 0] != 0])[0, 1])
                row |= {f"{score}: {cam}, {head}": value for score, value in scores.items()}
            yield row


@cache
def classes_of(layout: RunLayout) -> dict[str, int]:
    people = pd.read_csv(layout.group / "predictions.tsv", sep="\t").set_index("participant_id")
    return people["target"].astype(int).to_dict()


@cache
def learned(layout: RunLayout, fold: Fold, head: str) -> LoadedModel:
    """A probe on the convolutions of the network of a fold; those of one start differ in their head alone."""
    config, loaded = read_run_config(layout), load_model(layout.fold(fold.index))
    seed = derived_seed(config.seed, "stream", fold.index) + (head == AGAIN)
    parts = [
        LabelledVolumes(
            torch.cat([scan_of(layout, loaded.input, name) for name in part]).to(STORED),
            torch.tensor([classes_of(layout)[name] for name in part]),
        )
        for part in (fold.train, fold.validation)
    ]
    objective = objective_of(task_of(config.cohort), RECIPE, parts[0].targets)
    torch.manual_seed(seed)
    model = build(loaded.model, tuple(parts[0].volumes.shape[2:]), HEADS[head], False, 2)
    return dataclasses.replace(loaded, model=learn(model, *parts, objective, RECIPE, seed))
