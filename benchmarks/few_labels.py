"""What pre-training without labels gives: rare classes, few labels, and a temperature that changes or does not.

    python benchmarks/few_labels.py cohort OUT                      # 140 made-up people, registered: once
    python benchmarks/few_labels.py study OUT --seeds 43 44 45      # a quarter of an hour a seed on a free core

For each seed people are dealt to a long-tailed training part (many CN, fewer AD, few MCI) and a balanced test part.
Backbones learn from the training part without labels, with a fixed temperature and with a schedule; both are judged by
`studies.representations` (OUT/representations.tsv). Then ten people of the training part are labelled,
and networks are trained to tell AD from CN: from scratch, as probes, and starting from the backbone (OUT/few.tsv).
The same command continues.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from harness import arguments_of, kept_rows
from inherent_runs import layout_of
from patients import call

from heatlas.pipeline.cohort.demo.cohort import write_demo_cohort
from heatlas.pipeline.cohort.people.splits import Fold
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.inputs import NetworkInput, configured_input
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout, RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.executors import open_executor
from heatlas.pipeline.run.work.jobs import run_jobs
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.training.stage import fold_job, registered_versions
from heatlas.studies.long_tail import LongTailedParts, long_tailed_parts
from heatlas.studies.pretraining.stage import pretrain
from heatlas.studies.probes.network import kept_stages
from heatlas.studies.representations.table import features, judged
from heatlas.workflows.preflight import with_backbone

COHORT_SEED, PEOPLE = 7, 120
CLASSES, RATIO, TEST_SHARE = ("CN", "AD", "MCI"), 5.0, 0.4
SCHEDULES = ("fixed", "cosine")
LABELLED, DRAWS = 10, 3
MODELS = ("from scratch", "probe", "fine-tuned")


@dataclass(frozen=True)
class Place:
    """A registered run that is read, and a folder of one backbone that is written."""

    run: Path
    folder: Path

    @property
    def layout(self) -> EvaluationLayout:
        return layout_of(self.run, self.folder)


def backbone(place: Place, scans: Sequence[Scan], config: Config, executor: Executor) -> Place:
    """The same place, with a network that has learned from scans without labels."""
    (outcome,) = pretrain(place.layout, scans, config, executor, DigestCache(place.layout.digests))
    if not outcome.ok:
        raise RuntimeError(outcome.message)
    return place


def features_of(model: StagedModel, spec: NetworkInput, layout: RunLayout, scans: Sequence[Scan]) -> np.ndarray:
    """Of every scan, by the stages of a network that a probe keeps, (scans, channels)."""
    body = torch.nn.Sequential(*kept_stages(model, spec.shape)[0])
    files = [layout.scan(scan.participant_id, scan.session_id, spec.resolution_mm) for scan in scans]
    return features(body, files, spec)


def few_labels(
    place: Place, scans: Sequence[Scan], parts: LongTailedParts, seed: int, executor: Executor
) -> pd.DataFrame:
    """Balanced accuracy of networks that saw ten labelled people, half of each class; one scan a person."""
    first: dict[str, Scan] = {}
    for scan in scans:
        if scan.diagnosis in ("AD", "CN"):
            first.setdefault(scan.participant_id, dataclasses.replace(scan, label=scan.diagnosis))
    learnt = {name for people in parts.training.values() for name in people}
    test = tuple(sorted(set(first) - learnt))
    rows = []
    for draw in range(DRAWS):
        random = generator(seed, "labelled", draw)
        chosen = [list(random.permutation(sorted(parts.training[kind]))[: LABELLED // 2]) for kind in ("CN", "AD")]
        train = tuple(str(name) for people in chosen for name in people[1:])
        validation = tuple(str(people[0]) for people in chosen)
        fold = Fold(draw, train, validation, test)
        for model in MODELS:
            config = recipe(model, place, seed)
            layout = dataclasses.replace(place.layout, networks=f"{model.replace(' ', '-')}_draw-{draw}")
            digests = DigestCache(layout.digests)
            versions = registered_versions(layout, list(first.values()), config, digests)
            job = fold_job(layout, fold, list(first.values()), configured_input(config), config, versions)
            (outcome,) = run_jobs(layout, [job], executor, f"{model}, draw {draw}")
            if not outcome.ok:
                raise RuntimeError(outcome.message)
            table = read_table(layout.fold(draw).predictions)
            right = (table["predicted"] == table["label"]).groupby(table["label"]).mean()
            rows.append({"model": model, "draw": draw, "balanced_accuracy": float(right.mean()), "n": len(table)})
    return pd.DataFrame(rows)


def recipe(model: str, place: Place, seed: int) -> Config:
    """The demo's settings, with fewer scans a batch; of a probe with the backbone."""
    training = {"max_epochs": 40, "min_epochs": 20, "patience": 40, "weight_decay": 0.0}
    if model == "from scratch":
        return load_config("demo", overrides={"seed": seed, "training": training})
    tuned = model == "fine-tuned"
    probe = {"architecture": "probe", "backbone": str(place.folder), "train_backbone": tuned}
    own = {**training, "learning_rate": 1e-3 if tuned else 5e-3}
    return with_backbone(load_config("demo", overrides={"seed": seed, "training": own, "model": probe}))


def study(out: Path, seed: int, epochs: int, executor: Executor) -> None:
    scans = list(ScanTable.read(out / "run" / "scans.tsv").kept)
    class_of = {scan.participant_id: str(scan.diagnosis) for scan in scans if scan.diagnosis in CLASSES}
    parts = long_tailed_parts(class_of, RATIO, TEST_SHARE, CLASSES, seed)
    named = [{name for people in part.values() for name in people} for part in (parts.training, parts.test)]
    learnt = [scan for scan in scans if scan.participant_id in named[0]]
    known = [scan for scan in scans if scan.participant_id in named[0] | named[1]]
    places = {}
    for schedule in SCHEDULES:
        asked = {"seed": seed, "pretraining": {"schedule": schedule}, "cohort": {"validation_fraction": 0.1}}
        asked["training"] = {"max_epochs": epochs}
        place = Place(out / "run", out / f"{schedule}_seed-{seed}")
        places[schedule] = backbone(place, learnt, load_config("demo+pretraining", overrides=asked), executor)
    people = [scan.participant_id for scan in known]
    loaded = {name: load_model(place.layout.backbone) for name, place in places.items()}
    points = {name: features_of(one.model, one.input, places[name].layout, known) for name, one in loaded.items()}
    sites = [str(scan.site) for scan in known]
    table = judged(points, people, [class_of[name] for name in people], parts, sites=sites, seed=seed)
    added(table.assign(draw_of_people=seed), out / "representations.tsv", "draw_of_people")
    for schedule, place in places.items():
        found = few_labels(place, scans, parts, seed, executor)
        found = found if schedule == SCHEDULES[0] else found[found["model"] != MODELS[0]]
        found = found.assign(backbone=np.where(found["model"] == MODELS[0], "none", schedule), seed=seed)
        added(found.assign(part=f"{seed}-{schedule}"), out / "few.tsv", "part")
        print(found.groupby(["model", "backbone"])["balanced_accuracy"].mean().round(3).to_string(), flush=True)


def added(rows: pd.DataFrame, path: Path, key: str) -> None:
    before = kept_rows(path, rows.columns)
    pd.concat([before[~before[key].isin(rows[key])], rows]).to_csv(path, sep="\t", index=False)


def main() -> None:
    step = {"choices": ["cohort", "study"]}
    arguments = arguments_of(__doc__, "step out --seeds --n-procs", step=step, epochs=30)
    with open_executor(arguments.n_procs) as executor:
        if arguments.step == "cohort":
            cohort, run = arguments.out / "cohort", arguments.out / "run"
            write_demo_cohort(cohort, COHORT_SEED, PEOPLE, executor=executor)
            call("run", cohort, run, "--preset", "demo", "--stop-after", "registration", "--n-procs", arguments.n_procs)
            return
        for seed in arguments.seeds:
            study(arguments.out.resolve(), seed, arguments.epochs, executor)


if __name__ == "__main__":
    main()
