"""The cohort of `guidance_study.py` and `ca_stream.py`: scans of a run at 4 mm, marked and unmarked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.ndimage import find_objects
from scipy.ndimage import label as label_parts
from torch.nn import functional

from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.scores.map_scores import MARKER_OFFSET
from heatlas.pipeline.models.inputs import configured_input, read_network_volume
from heatlas.pipeline.run.config.networks import ObjectiveConfig
from heatlas.pipeline.run.layout.folder import read_run_config
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.pipeline.run.work.seeds import generator
from heatlas.studies.objectives.guidance import mask_of
from heatlas.workflows.evaluate import registered_scans

FOLDS = 3
VOXEL_MM = 4
TEMPORAL = ("Hippocampus", "Amygdala", "Entorhinal area", "Parahippocampal gyrus")
"""Mask `regions`."""
MARKER_VOXELS = 6
"""Edge; with 3 these small networks never used the marker."""


@dataclass(frozen=True, eq=False)
class Cohort:
    """Volumes (people, copies, D, H, W), copies plain and marked; masks by name; who has the disease.

    `others` are scans of people without a label, (M, D, H, W).
    """

    names: Sequence[str]
    volumes: torch.Tensor
    positive: np.ndarray
    masks: Mapping[str, torch.Tensor]
    marker: torch.Tensor
    others: torch.Tensor


def load(run: Path) -> Cohort:
    """One scan of each labelled person of a run with voxels of 2 or 4 mm, at 4 mm, with and without the marker."""
    layout = EvaluationLayout(run.resolve())
    config = read_run_config(layout)
    spec, task = configured_input(config), task_of(config.cohort)
    factor = round(VOXEL_MM / spec.resolution_mm)
    firsts, unlabelled = {}, {}
    for scan in registered_scans(layout, config)[0]:
        (firsts if scan.label in task.outputs else unlabelled).setdefault(scan.participant_id, scan)

    def read(scans: Mapping[str, Scan]) -> torch.Tensor:
        if not scans:
            return torch.zeros(0, *(side // factor for side in spec.shape))
        files = [layout.scan(one.participant_id, one.session_id, spec.resolution_mm) for one in scans.values()]
        volumes = np.stack([read_network_volume(own, spec) for own in files])
        return functional.avg_pool3d(torch.from_numpy(volumes)[:, None], factor)[:, 0]

    plain = read(firsts)
    cube = torch.zeros(plain.shape[1:], dtype=torch.bool)
    cube[(slice(MARKER_OFFSET, MARKER_OFFSET + MARKER_VOXELS),) * 3] = True
    cube &= ~(plain > 0).any(0)
    marked = torch.where(cube, plain.flatten(1).amax(1)[:, None, None, None], plain)
    masks = {"brain": (plain > 0).float().mean(0) > 0.5}
    for name, boxes in (("regions", False), ("boxes", True)):
        own = mask_of(ObjectiveConfig(kind="guided", regions=TEMPORAL, boxes=boxes), config.regions.atlas, spec)
        masks[name] = functional.avg_pool3d(torch.from_numpy(own).float()[None], factor)[0] >= 0.5
    masks["sides"] = enlarged(masks["regions"], 0.0)
    masks["outside"] = ~masks["brain"]
    positive = np.array([scan.label == config.cohort.positive for scan in firsts.values()])
    return Cohort(list(firsts), torch.stack([plain, marked], 1), positive, masks, cube, read(unlabelled))


def enlarged(mask: torch.Tensor, share: float) -> torch.Tensor:
    """Bounding boxes of the connected parts of a mask, each grown on either side by a share of its width there.

    As Rao et al. 2023 make annotations coarse; clipped at the border.

    Examples
    --------
    >>> line = torch.tensor([0, 0, 0, 1, 0, 1, 1, 1, 1, 0, 0, 0]).bool()
    >>> enlarged(line.view(1, 1, -1), 0.5).int().flatten().tolist()
    [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0]
    """
    filled = torch.zeros_like(mask)
    for box in find_objects(label_parts(mask.numpy(), np.ones((3, 3, 3)))[0]):
        grown = [(side, round(share * (side.stop - side.start))) for side in box]
        filled[tuple(slice(max(side.start - more, 0), side.stop + more) for side, more in grown)] = True
    return filled


def parts_of(positive: np.ndarray, fold: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """People to train with, to select with (a fifth of the rest) and to test, by class."""
    train_, validate, test = [], [], []
    for label in (False, True):
        own = np.flatnonzero(positive == label)
        order = own[generator(seed, "folds", int(label)).permutation(len(own))]
        tested = order[fold::FOLDS]
        rest = np.setdiff1d(order, tested)
        rest = rest[generator(seed, "validation", fold, int(label)).permutation(len(rest))]
        count = max(round(len(rest) / 5), 1)
        validate.append(rest[:count])
        train_.append(rest[count:])
        test.append(tested)
    return np.concatenate(train_), np.concatenate(validate), np.concatenate(test)
