"""CA-Stream against global average pooling on the demo: accuracy, and CAM methods judged by masked recognition.

    python benchmarks/ca_stream.py /tmp/demo/run --seeds 43 44 45 --output docs/benchmarks/ca_stream.md

RUN is only read. Volumes and folds are those of `benchmarks/guidance_study.py`. Networks recognise the marker: the
diagnosis is beyond a network with GAP and 16 people to learn from (--task diagnosis: 50 % with GAP, 47 % with
CA-Stream). A ResNet-10 with GAP is trained, then frozen, and two probes on it are trained with the same recipe. Both
are asked for the logit of the class that they find, by methods at their last features: with CA-Stream those before the
attention, so that gradients pass through it (Torres Figueroa 2024, ch. 3). --marker sets how bright the marker is, as
share of the brightest voxel.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from guidance_conditions import RESNET
from guidance_study import FOLDS, RECIPE, Cohort, load, parts_of
from harness import arguments_of, line, over_people, show_page, table, within
from patients_cams import map_and_scores
from patients_stream import CURVES

from heatlas.pipeline.attribution.cam.channel_maps import by_range
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.work.seeds import derived_seed
from heatlas.pipeline.training.objectives.of_task import objective_of
from heatlas.pipeline.training.progress import remove_checkpoint
from heatlas.pipeline.training.steps import repeatable
from heatlas.pipeline.training.trainer import Resumption, train
from heatlas.pipeline.training.volumes import STORED, LabelledVolumes
from heatlas.studies.probes.network import build
from heatlas.studies.probes.records import ProbeConfig

OF_SCAN = ("accuracy", "probability of the class found")
OF_MAP = ("average drop", "average gain", "average increase", "insertion", "deletion", "extent")
CAMS = ("grad-cam", "grad-cam++", "xgrad-cam", "hires-cam", "score-cam")
NAMES = (*OF_SCAN, *(f"{method}: {name}" for method in CAMS for name in OF_MAP))


def fainter(cohort: Cohort, share: float) -> Cohort:
    """The cohort with a marker of a share of its brightness."""
    plain, marked = cohort.volumes[:, 0], cohort.volumes[:, 1]
    volumes = torch.stack([plain, torch.lerp(plain, marked, share)], 1)
    return dataclasses.replace(cohort, volumes=volumes)


def scans_of(cohort: Cohort, people: np.ndarray, task: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Volumes (N, D, H, W) and classes: scans without the marker and their diagnosis, or both copies and the marker."""
    own = cohort.volumes[torch.from_numpy(people)]
    if task == "diagnosis":
        return own[:, 0], torch.from_numpy(cohort.positive[people].astype(np.int64))
    return own.flatten(0, 1), torch.arange(2 * len(people)) % 2


def learned(model: StagedModel, cohort: Cohort, task: str, fold: int, seed: int, work: Path) -> StagedModel:
    parts = []
    for people in parts_of(cohort.positive, fold, seed)[:2]:
        volumes, targets = scans_of(cohort, people, task)
        parts.append(LabelledVolumes(volumes[:, None].to(STORED), targets))
    with repeatable(torch.device("cpu"), seed, 1):
        objective = objective_of(task_of(CohortConfig()), RECIPE, parts[0].targets)
        found = train(model, *parts, objective, RECIPE, derived_seed(seed, fold), Resumption(work, "ca-stream"))
    remove_checkpoint(work)
    model.load_state_dict(found.weights)
    return model.eval()


def answers(model: StagedModel, volume: torch.Tensor, label: int) -> list[float]:
    """`NAMES` of one scan (1, 1, D, H, W), in per cent."""
    with torch.no_grad():
        before = model(volume).softmax(1)[0]
    found, brain = int(before.argmax()), volume[0, 0] != 0
    values = [100.0 * (found == label), 100 * float(before[found])]
    for name in CAMS:
        own, scores = map_and_scores(model, volume, found, name, CURVES)
        extent = 100 * float(by_range(own[None, None])[0, 0][brain].mean())
        values += [*(scores[score] for score in ("AD", "AG", "AI", *CURVES)), extent]
    return values


def compared(cohort: Cohort, task: str, seeds: Sequence[int]) -> str:
    """Markdown, in per cent: means over people and seeds, paired differences, bootstrap intervals over people."""
    people = len(cohort.names)
    values = np.full((2, len(seeds), people, len(NAMES)), np.nan)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "checkpoint.safetensors"
        for place, seed in enumerate(seeds):
            for fold in range(FOLDS):
                torch.manual_seed(derived_seed(seed, "weights", fold))
                shape = tuple(cohort.volumes.shape[2:])
                backbone = learned(build_network(RESNET, shape, 2), cohort, task, fold, seed, work)
                probes = [
                    learned(build(backbone, shape, ProbeConfig(head=head), False, 2), cohort, task, fold, seed, work)
                    for head in ("linear", "ca-stream")
                ]
                for person in parts_of(cohort.positive, fold, seed)[2]:
                    for number, model in enumerate(probes):
                        found = zip(*scans_of(cohort, np.array([person]), task), strict=True)
                        own = [answers(model, volume[None, None], int(label)) for volume, label in found]
                        values[number, place, person] = np.mean(own, axis=0)
                print(f"seed {seed} fold {fold}: accuracy {np.nanmean(values[:, place, :, 0], axis=1)}", flush=True)
    means = values.mean(axis=1)
    lines = table(["", "GAP", "CA-Stream", "difference [95 %]"])
    for number, name in enumerate(NAMES):
        change = means[1, :, number] - means[0, :, number]
        own = (f"{means[k, :, number].mean():.1f}" for k in (0, 1))
        lines.append(line(name, *own, f"{change.mean():+.1f}{within(*over_people(change), '+.1f', ' [{}, {}]')}"))
    return "\n".join(lines)


def main() -> None:
    task = {"choices": ("marker", "diagnosis"), "default": "marker"}
    arguments = arguments_of(__doc__, "run --seeds --task --output", task=task, marker=1.0)
    torch.set_num_threads(1)
    text = compared(fainter(load(arguments.run), arguments.marker), arguments.task, arguments.seeds)
    show_page(text, arguments.output, "CA-Stream against global average pooling, per cent")


if __name__ == "__main__":
    main()
