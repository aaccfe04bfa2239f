"""Which recipe learns from few hundred people: candidates on the same folds of a registered run, beside its baselines.

    python benchmarks/patients_search.py RUN OUT --seeds 43 44 45
    python benchmarks/patients_search.py RUN OUT --only founding smaller --voxel 4

RUN, of patients (docs/patients.md), is only read. In each of five folds a candidate is trained on four fifths of the
rest and answers for the people of the fold and for the fifth that it did not train with. The last row takes, in each
fold, the candidate with the best area on that fifth, over seeds, so nothing is chosen on people who are reported (Varma
& Simon 2006). `OUT/answers.tsv` keeps every answer; what is done is not repeated.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from guidance_study import run_training
from harness import arguments_of, kept_rows, line
from harness import table as markdown
from patients import area as area_within_folds
from sklearn.metrics import roc_auc_score
from torch.nn import functional

from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.models.families.registry import build_network, family_of
from heatlas.pipeline.models.inputs import configured_input, read_network_volume
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.layout.folder import read_run_config
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout, RunLayout
from heatlas.pipeline.run.work.seeds import derived_seed, generator
from heatlas.pipeline.training.objectives.of_task import objective_of
from heatlas.pipeline.training.objectives.records import Batch, Context, Logged, Objective
from heatlas.pipeline.training.volumes import STORED, LabelledVolumes
from heatlas.workflows.evaluate import registered_scans

FOLDS, SHARE_TO_SELECT = 5, 0.2
KEYS = ["candidate", "seed", "fold"]
FIXED = {"learning_rate_schedule": "cosine", "max_shift_voxels": 1, "balance_classes": True}
AVERAGED = {**FIXED, "learning_rate": 1e-3, "max_epochs": 40, "min_epochs": 40, "weight_average": 0.98}
STRONGER = {"affine_probability": 0.5, "contrast_probability": 0.3, "noise_probability": 0.3}


@dataclass(frozen=True)
class Candidate:
    """A family with its settings, and settings of the training."""

    model: Mapping[str, Any]
    training: Mapping[str, Any] = field(default_factory=lambda: AVERAGED)
    smoothing: float = 0.0  # of labels, in the cross-entropy
    pretrained: bool = False  # starts from a network that predicts the age of other people

    def config(self) -> Config:
        return load_config(overrides={"model": dict(self.model), "training": dict(self.training)})


FOUNDING = {"architecture": "founding", "pools": [2, 2, 2, 1], "dropout": 0.3}
SFCN = {"architecture": "sfcn", "channels": [16, 32, 64, 64], "dropout": 0.3}
CONV5 = {"architecture": "conv5-fc3", "channels": [8, 16, 32, 64], "hidden_units": [100, 50]}
SHORT = {**FIXED, "learning_rate": 1e-3, "max_epochs": 20, "min_epochs": 15}
SMALL = {"architecture": "founding", "channels": [8, 16, 32], "pools": [2, 2, 3], "hidden_units": 16, "dropout": 0.5}
CANDIDATES: Mapping[str, Candidate] = {
    "founding, as the demo": Candidate(FOUNDING, SHORT),
    "founding": Candidate(FOUNDING),
    "founding, augmented": Candidate(FOUNDING, {**AVERAGED, "augmentation": STRONGER}),
    "founding, decay .01": Candidate(FOUNDING, {**AVERAGED, "weight_decay": 1e-2}),
    "smaller": Candidate(SMALL),
    "smaller, augmented": Candidate(SMALL, {**AVERAGED, "augmentation": STRONGER}),
    "sfcn": Candidate(SFCN, SHORT),
    "sfcn, averaged": Candidate(SFCN),
    "conv5-fc3": Candidate(CONV5, {**SHORT, "learning_rate": 3e-4}),
    "conv5-fc3, averaged": Candidate(CONV5, {**AVERAGED, "learning_rate": 3e-4}),
    "resnet10": Candidate({"architecture": "resnet10", "width": 0.25}),
    "rate .0003": Candidate(FOUNDING, {**SHORT, "learning_rate": 3e-4}),
    "rate .003": Candidate(FOUNDING, {**SHORT, "learning_rate": 3e-3}),
    "twice as wide": Candidate({**FOUNDING, "channels": [16, 32, 64, 128]}, SHORT),
    "labels smoothed": Candidate(FOUNDING, SHORT, smoothing=0.1),
    "bfloat16": Candidate(FOUNDING, {**SHORT, "precision": "bfloat16-mixed"}),
    "pre-trained on age": Candidate(FOUNDING, SHORT, pretrained=True),
    "pre-trained on age, rate .0003": Candidate(FOUNDING, {**SHORT, "learning_rate": 3e-4}, pretrained=True),
}


@dataclass(frozen=True, eq=False)
class People:
    """Names, volumes (people, D, H, W) and who has the disease."""

    names: Sequence[str]
    volumes: torch.Tensor
    positive: np.ndarray


def load(run: Path, voxel_mm: float) -> People:
    layout = EvaluationLayout(run.resolve())
    config = read_run_config(layout)
    task, firsts = task_of(config.cohort), {}
    for scan in registered_scans(layout, config)[0]:
        if scan.label in task.outputs:
            firsts.setdefault(scan.participant_id, scan)
    positive = np.array([scan.label == config.cohort.positive for scan in firsts.values()])
    return People(list(firsts), _volumes(layout, config, list(firsts.values()), voxel_mm), positive)


def _volumes(layout: RunLayout, config: Config, scans: Sequence[Scan], voxel_mm: float) -> torch.Tensor:
    spec = configured_input(config)
    files = [layout.scan(one.participant_id, one.session_id, spec.resolution_mm) for one in scans]
    volumes = torch.from_numpy(np.stack([read_network_volume(own, spec) for own in files]))
    if voxel_mm != spec.resolution_mm:
        sides = [round(side * spec.resolution_mm / voxel_mm) for side in volumes.shape[1:]]
        volumes = functional.interpolate(volumes[:, None], sides, mode="area")[:, 0]
    return volumes


def trained_on_age(
    run: Path, without: Collection[str], candidate: Candidate, voxel_mm: float, seed: int, work: Path
) -> Mapping[str, torch.Tensor]:
    """Weights of a network that predicts the age of the people of a run; nobody of `without` is among them."""
    layout = EvaluationLayout(run.resolve())
    config = read_run_config(layout)
    scans = [one for one in registered_scans(layout, config)[0] if one.participant_id not in without]
    volumes = _volumes(layout, config, scans, voxel_mm)
    ages = torch.tensor([one.age for one in scans], dtype=torch.float32)
    order = generator(seed, "age").permutation(len(scans))
    cut = round(len(scans) * SHARE_TO_SELECT)
    parts = [
        LabelledVolumes(volumes[own, None].to(STORED), ages[own])
        for own in map(torch.from_numpy, (order[cut:], order[:cut]))
    ]
    recipe = candidate.config().training
    task = task_of(dataclasses.replace(config.cohort, target="age"))
    objective = objective_of(task, recipe, parts[0].targets)
    torch.manual_seed(derived_seed(seed, "age"))
    model = build_network(candidate.config().model, tuple(volumes.shape[1:]), 1)
    return run_training(model, *parts, objective, recipe, seed, work, Context())


def smoothed(objective: Objective, amount: float) -> Objective:

    def loss(model: torch.nn.Module, batch: Batch, context: Context) -> tuple[torch.Tensor, Logged]:
        _, logged = objective.loss(model, batch, context)
        logits = model(batch.volumes)
        return functional.cross_entropy(logits, batch.targets, label_smoothing=amount), logged

    return dataclasses.replace(objective, loss=loss)


def parts_of(positive: np.ndarray, fold: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """People to train with, to select with and to test, by class; the same for every candidate and seed."""
    train, select, test = [], [], []
    for label in (False, True):
        own = np.flatnonzero(positive == label)
        order = own[generator(43, "patients", int(label)).permutation(len(own))]
        tested = order[fold::FOLDS]
        rest = np.setdiff1d(order, tested)
        rest = rest[generator(43, "patients", "selection", fold, int(label)).permutation(len(rest))]
        count = round(len(rest) * SHARE_TO_SELECT)
        select.append(rest[:count])
        train.append(rest[count:])
        test.append(tested)
    return np.concatenate(train), np.concatenate(select), np.concatenate(test)


def answers(
    people: People, name: str, fold: int, seed: int, work: Path, start: Mapping[str, torch.Tensor] | None = None
) -> pd.DataFrame:
    """Logit of the disease of those who were not trained with; `start`: weights of another task."""
    learning, selecting, testing = parts_of(people.positive, fold)

    def part(own: np.ndarray) -> LabelledVolumes:
        targets = torch.from_numpy(people.positive[own].astype(np.int64))
        return LabelledVolumes(people.volumes[torch.from_numpy(own), None].to(STORED), targets)

    config = CANDIDATES[name].config()
    training, recipe = part(learning), config.training
    task = task_of(dataclasses.replace(config.cohort, negative="CN", positive="AD"))
    objective = objective_of(task, recipe, training.targets, family_of(config.model).loss)
    torch.manual_seed(derived_seed(seed, "weights", fold))
    model = build_network(config.model, tuple(people.volumes.shape[1:]), 2)
    if start is not None:
        own = model.state_dict()
        model.load_state_dict(own | {key: value for key, value in start.items() if value.shape == own[key].shape})
    if CANDIDATES[name].smoothing:
        objective = smoothed(objective, CANDIDATES[name].smoothing)
    weights = run_training(model, training, part(selecting), objective, recipe, seed + fold, work, Context())
    model.load_state_dict(weights)
    model.eval()
    rows = []
    for kind, own in (("selection", selecting), ("test", testing)):
        with torch.inference_mode():
            batches = [part(own[i : i + 8]) for i in range(0, len(own), 8)]
            logits = torch.cat([model(each.batch(np.arange(len(each)))[0].float()) for each in batches])
        for person, logit in zip(own, (logits[:, 1] - logits[:, 0]).tolist(), strict=True):
            rows.append([name, seed, fold, kind, people.names[person], bool(people.positive[person]), logit])
    return pd.DataFrame(rows, columns=["candidate", "seed", "fold", "part", "person", "positive", "logit"])


def area(rows: pd.DataFrame) -> float:
    """Area under the curve within folds, weighted by pairs, of logits averaged over seeds (an ensemble)."""
    people = rows.groupby(["fold", "person"], as_index=False)
    return area_within_folds(people.agg(target=("positive", "first"), probability=("logit", "mean")))


def table(rows: pd.DataFrame) -> str:
    """Area of each candidate by seed and of the mean of its seeds, on both parts; and of the nested choice."""
    columns = ["area, mean of seeds", "by seed", "of the averaged seeds", "where chosen from"]
    lines = markdown(["candidate", *columns])
    best: dict[int, tuple[float, str]] = {}
    for name, own in rows.groupby("candidate", sort=False):
        test, known = own[own["part"] == "test"], own[own["part"] == "selection"]
        seeds = [area(one) for _, one in test.groupby("seed")]
        each = " ".join(f"{one:.2f}" for one in seeds)
        lines.append(line(name, f"{np.mean(seeds):.3f}", each, f"{area(test):.3f}", f"{area(known):.3f}"))
        for fold, part in known.groupby("fold"):
            best[fold] = max(best.get(fold, (-1.0, "")), (area(part), str(name)))
    tested = rows[rows["part"] == "test"]
    picked = pd.concat(tested[(tested[KEYS[::2]] == [name, fold]).all(axis=1)] for fold, (_, name) in best.items())
    names = ", ".join(f"{fold}: {name}" for fold, (_, name) in sorted(best.items()))
    return "\n".join([*lines, f"| **chosen in each fold** | | | {area(picked):.3f} | {names} |"])


def main() -> None:
    options = arguments_of(
        __doc__,
        "run out --seeds --only",
        only={"default": list(CANDIDATES), "choices": CANDIDATES},
        voxel=(4.0, "mm"),
        ages={"type": Path, "help": "run with scans of other people, to pre-train on their age"},
    )
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    people, path = load(options.run, options.voxel), options.out / "answers.tsv"
    for seed in options.seeds:
        work = options.out / f"{seed}.safetensors"
        for name in options.only:
            start = None
            if CANDIDATES[name].pretrained:
                if options.ages is None:
                    continue
                start = trained_on_age(options.ages, people.names, CANDIDATES[name], options.voxel, seed, work)
            for fold in range(FOLDS):
                kept = kept_rows(path, KEYS)
                if (kept[KEYS] == [name, seed, fold]).all(axis=1).any():
                    continue
                begun = time.process_time()
                rows = answers(people, name, fold, seed, work, start)
                rows.to_csv(path, sep="\t", index=False, mode="a", header=kept.empty)
                scores = [roc_auc_score(own["positive"], own["logit"]) for _, own in rows.groupby("part")]
                spent = f"{time.process_time() - begun:.0f} s"
                print(
                    f"{name} seed {seed} fold {fold}: {spent}, selection and test {scores[0]:.2f} {scores[1]:.2f}",
                    flush=True,
                )
    print(table(pd.read_csv(path, sep="\t")))


if __name__ == "__main__":
    main()
