"""Backbones of `patients_networks.py pretrained`, learned from younger people without labels, and what they know.

OUT/younger is their registered run; nobody of the run that is tested is in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from few_labels import Place, backbone, features_of
from inherent_runs import Workplace

from heatlas.pipeline.cohort.people.splits import Fold
from heatlas.pipeline.cohort.records import ScanTable
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.seeds import derived_seed, generator
from heatlas.studies.probes.records import ProbeConfig, body_of
from heatlas.studies.representations.points import FeatureVectors, points_of
from heatlas.studies.representations.probes import Parts, linear_votes, neighbour_votes

YOUNGER = "younger"
LEARNED: Mapping[str, Mapping[str, object]] = {
    "SimCLR": {"method": "simclr"},
    "SimCLR fixed": {"method": "simclr", "schedule": "fixed"},
}
"""Settings of `heatlas pretrain`, beside those of the preset `patients`; `fixed`: a temperature of .1."""
EPOCHS = 30
"""As with the demo in `few_labels.py`; half of the preset's."""
FEW, DRAWS = 10, 20
"""Labelled people of a probe, half of each class, and how often they are drawn."""


def learned(work: Workplace, name: str, seed: int) -> Path:
    """Folder of a backbone; it learns if it is missing."""
    run = work.out / YOUNGER
    if not (run / "scans.tsv").is_file():
        raise SystemExit(
            f"{run}: no registered run of younger people. First: heatlas run YOUNGER {run} --preset patients "
            "--target age --stop-after registration"
        )
    asked = {"seed": seed, "pretraining": LEARNED[name], "training": {"max_epochs": EPOCHS}}
    config = load_config("patients+pretraining", overrides=asked)
    place = Place(run, work.out / "backbones" / f"{name.replace(' ', '-')}_seed-{seed}")
    place.folder.mkdir(parents=True, exist_ok=True)
    return backbone(place, ScanTable.read(run / "scans.tsv").kept, config, work.executor).folder.resolve()


def known(cohort: JudgedCohort, config: Config) -> Iterator[dict[str, object]]:
    """Whether test people are recognised from the features of a backbone, and of the same network untrained."""
    assert isinstance(config.model, ProbeConfig)
    loaded = load_model(RunLayout(Path(config.model.backbone)).backbone)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(config.seed, "untrained"))
        fresh = build_network(body_of(config.model), loaded.input.shape, 2)
    scans = cohort.labelled  # also those trained on, whom no fold may test
    people = [scan.participant_id for scan in scans]
    class_of = {scan.participant_id: str(scan.label) for scan in scans}
    found: dict[str, dict[str, object]] = {}
    for model, where in ((loaded.model, ""), (fresh, " of an untrained network")):
        points = points_of(features_of(model, loaded.input, cohort.layout, scans), people)
        for fold in cohort.tested_folds:
            for person, row in recognised(points, fold, class_of, config.seed).items():
                row_of = found.setdefault(person, {"person": person})
                row_of |= {f"{measure}{where}": value for measure, value in row.items()}
    yield from found.values()


def recognised(
    points: FeatureVectors, fold: Fold, class_of: Mapping[str, str], seed: int
) -> dict[str, dict[str, float]]:
    """Of each test person of a fold, in per cent: right by neighbours of the training part, and by few of it."""
    test = points.of(fold.test)
    parts = Parts(points.of(fold.train), test, class_of)
    right = {f"nearest {k}": parts.right(neighbour_votes(parts, k)) for k in (1, 10)}
    random = generator(seed, "few", fold.index)
    draws = []
    for _ in range(DRAWS):
        chosen = [
            random.permutation(sorted(one for one in fold.train if class_of[one] == name))[: FEW // 2]
            for name in sorted(set(class_of.values()))
        ]
        few = Parts(points.of({str(one) for own in chosen for one in own}), test, class_of)
        draws.append(few.right(linear_votes(few)))
    right["few-shot probe"] = np.mean(draws, axis=0)
    return {
        person: {name: 100.0 * float(own[place]) for name, own in right.items()}
        for place, person in enumerate(test.people)
    }
