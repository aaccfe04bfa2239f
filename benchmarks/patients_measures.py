"""What `patients_networks.py` asks of single networks: of own maps (`tests`), and of backbones (`pretrained`).

Own maps: whether the voxels that they name matter to the network, whether they follow its weights, what constants add
to its answer, and what is drawn from where no brain is. Shares and probabilities are in per cent. Backbones learned
without labels from the younger people of OUT/younger, a registered run with nobody of the run that is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from inherent_runs import Workplace, layout_of
from torch import Tensor

from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.registry import METHODS
from heatlas.pipeline.cohort.people.splits import Fold
from heatlas.pipeline.cohort.records import ScanTable
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.nulls import layers_with_parameters, randomised
from heatlas.pipeline.evaluation.scores.localisation import rank_correlation
from heatlas.pipeline.evaluation.scores.masking import part_numbers, part_order
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.models.storage import LoadedModel, load_model
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.seeds import derived_seed, generator
from heatlas.studies.grids.studies import fitted
from heatlas.studies.inherent import Inherent, contrast, contributions
from heatlas.studies.pretraining.stage import pretrain
from heatlas.studies.probes.network import kept_stages
from heatlas.studies.probes.records import ProbeConfig, body_of
from heatlas.studies.representations.points import FeatureVectors, points_of
from heatlas.studies.representations.probes import Parts, linear_votes, neighbour_votes
from heatlas.studies.representations.table import features

Measure = Callable[[LoadedModel, Tensor, int], dict[str, float]]
"""Of the network that has not seen a person, his or her scan (1, 1, D, H, W), and the true class."""
RIVALS = ("gradient", "input-x-gradient", "integrated-gradients", "grad-cam")
REMOVED, STEPS = 0.25, 10
"""Share of the brain that is taken away at last, as in the source, and in how many steps."""
SEED = 0
YOUNGER = "younger"
LEARNED: Mapping[str, Mapping[str, object]] = {
    "SimCLR": {"method": "simclr"},
    "SimCLR fixed": {"method": "simclr", "schedule": "fixed"},
}
"""Settings of `heatlas pretrain`, beside those of the preset `patients`; `fixed`: a temperature of .1."""
EPOCHS = 30
"""Half of the preset's."""
FEW, DRAWS = 10, 20
"""Labelled people of a probe, half of each class, and how often they are drawn."""


def own_map(loaded: LoadedModel, volume: Tensor, target: int) -> Tensor:
    """Contributions (D, H, W) to the logit of a class, of the scan alone."""
    return attribute(loaded.model, volume, target, Inherent(compare="nothing")).values[0, 0]


def removal(loaded: LoadedModel, volume: Tensor, target: int) -> dict[str, float]:
    """Mean probability of the class while voxels of the brain go, in the order of several maps."""
    own = own_map(loaded, volume, target)
    orders = {"most first: own": own, "least first: own": -own, "random order": torch.zeros_like(own)}
    for name in RIVALS:
        method = fitted(METHODS[name].record(), volume.shape[-3:])
        stage = METHODS[name].stage_of(loaded.model)
        orders[f"most first: {name}"] = attribute(loaded.model, volume, target, method, stage).speaking_for[0, 0]
    score = lambda volumes: loaded.model(volumes).softmax(1)[:, target]  # noqa: E731
    with torch.no_grad():
        before = 100 * float(score(volume))
    return {"before": before} | {name: while_removed(score, volume, values) for name, values in orders.items()}


def while_removed(score: Callable[[Tensor], Tensor], volume: Tensor, values: Tensor) -> float:
    """Mean score in per cent, from the whole scan until `REMOVED` of its brain is air; the largest values go first."""
    parts = part_numbers(volume[0, 0] != 0)
    place, voxels = part_order(values, parts, SEED)
    when = torch.where(parts >= 0, place[parts.clamp(min=0)], len(voxels))
    limits = torch.linspace(0, REMOVED * len(voxels), STEPS + 1).round()
    with torch.no_grad():
        return 100 * float(torch.stack([score(volume * (when >= limit))[0] for limit in limits]).mean())


def cascade(loaded: LoadedModel, volume: Tensor, target: int) -> dict[str, float]:
    """Largest rank correlation in the brain, without its sign, with earlier maps as layers are drawn anew."""
    brain = (volume[0, 0] != 0).numpy()
    maps = [own_map(loaded, volume, target).numpy()[brain]]
    for count in range(1, len(layers_with_parameters(loaded.model)) + 1):
        maps.append(own_map(randomised(loaded, count, SEED), volume, target).numpy()[brain])
    like = [abs(rank_correlation(one, maps[0])) for one in maps[1:]]
    step = [abs(rank_correlation(one, before)) for before, one in pairwise(maps)]
    return {
        "like the trained map: most of all steps": float(np.nanmax(like)),
        "like the step before: most of all steps": float(np.nanmax(step)),
    }


def encoded(loaded: LoadedModel, volume: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The pairs of a scan, and the logits as a function of them."""
    encoding, *rest = loaded.model.stages
    with torch.no_grad():
        return encoding(volume), torch.nn.Sequential(*rest)


def owed_and_margin(loaded: LoadedModel, volume: Tensor) -> tuple[float, float]:
    """What constants of the network add to logit AD - logit CN of a scan (Böhle 2024, 6.3.4), and the difference."""
    pairs, logits = encoded(loaded, volume)
    margin = lambda x: contrast(1, 0)(logits(x))  # noqa: E731
    from_voxels = contributions(loaded.model, margin, pairs)
    with torch.no_grad():
        whole = float(margin(pairs))
    return whole - float(from_voxels.sum()), whole


def constants(loaded: LoadedModel, volume: Tensor, _: int) -> dict[str, float]:
    """Whether constants make more than half of the margin between the classes, and whether they lessen it."""
    owed, margin = owed_and_margin(loaded, volume)
    return {
        "constants: more than half": 100.0 * (owed / margin > 0.5),
        "constants: for the second": 100.0 * (owed * margin < 0),
    }


def drawn(loaded: LoadedModel, volume: Tensor, target: int) -> dict[str, float]:
    """Share of positive contributions outside of the brain, to the class and less or as the mean of the classes."""
    outside, (pairs, logits) = volume[0, 0] <= 0, encoded(loaded, volume)
    both = [contributions(loaded.model, lambda x, of=of: logits(x)[:, of], pairs).sum(1)[0] for of in (0, 1)]
    mean = (both[0] + both[1]) / 2
    found = {"even map: outside": 100 * float(outside.double().mean())}
    maps = {"class": both[target], "less the mean": both[target] - mean, "common": mean}
    for name, values in maps.items():
        above = values.clamp(min=0)
        found[f"{name}: positive outside"] = 100 * float(above[outside].sum() / max(float(above.sum()), 1e-30))
    return found


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
    folder = work.out / "backbones" / f"{name.replace(' ', '-')}_seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    layout = layout_of(run, folder)
    scans = ScanTable.read(run / "scans.tsv").kept
    (outcome,) = pretrain(layout, scans, config, work.executor, DigestCache(layout.digests))
    if not outcome.ok:
        raise RuntimeError(outcome.message)
    return folder.resolve()


def known(cohort: JudgedCohort, config: Config) -> Iterator[dict[str, object]]:
    """Whether test people are recognised from the features of a backbone, and of the same network untrained."""
    assert isinstance(config.model, ProbeConfig)
    loaded = load_model(RunLayout(Path(config.model.backbone)).backbone)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(config.seed, "untrained"))
        fresh = build_network(body_of(config.model), loaded.input.shape, 2)
    spec, scans = loaded.input, cohort.labelled  # also those trained on, whom no fold may test
    files = [cohort.layout.scan(scan.participant_id, scan.session_id, spec.resolution_mm) for scan in scans]
    people = [scan.participant_id for scan in scans]
    class_of = {scan.participant_id: str(scan.label) for scan in scans}
    found: dict[str, dict[str, object]] = {}
    for model, where in ((loaded.model, ""), (fresh, " of an untrained network")):
        body = torch.nn.Sequential(*kept_stages(model, spec.shape)[0])
        points = points_of(features(body, files, spec), people)
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
