"""Copies of scans with and without a bright block, and networks that could use it: the units of work.

Each network is trained, its maps of test people are measured, and their mean is kept, so that it can be seen where the
positive attribution of trainings that are compared lies. What decides on units stands apart (`studies.marker.stage`),
so that a change of that trains nothing again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from heatlas.atlases.spaces import write_template_image
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.scores.localisation import best_threshold, energy
from heatlas.pipeline.evaluation.scores.map_scores import marker, with_marker
from heatlas.pipeline.explaining.planted_loss import read_registered
from heatlas.pipeline.models.inputs import NetworkInput, from_network, read_network_volume
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.regions.maps import read_map
from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE
from heatlas.pipeline.run.config.networks import ObjectiveConfig
from heatlas.pipeline.run.layout.run_layout import FoldFiles
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.training.stage import FoldTask, train_fold
from heatlas.studies.marker.marker_groups import MEASURES_TABLE, MarkerMasks, map_measures
from heatlas.studies.objectives.guidance import mask_of, own_mask
from heatlas.studies.objectives.maps_in_training import explained_batch


class MeanEnergyMap:
    """Mean of the `energy` of maps that have positive values: its sum over a mask is the mean EPG."""

    def __init__(self, spec: NetworkInput) -> None:
        self._spec, self._sum, self._count = spec, np.zeros(spec.shape), 0

    def add(self, values: NDArray[np.floating]) -> None:
        share = energy(values)
        self._sum += share
        self._count += bool(share.any())

    def write(self, path: Path, title: str) -> None:
        mean = from_network(self._sum / max(self._count, 1), self._spec)
        write_template_image(path, mean, self._spec.template_grid, title)


def write_pooled(path: Path, folds: Sequence[tuple[Path, int]], spec: NetworkInput, title: str) -> None:
    """Write the mean over people of several folds, each a mean map and its number of people."""
    grid, people = spec.template_grid, max(sum(count for _, count in folds), 1)
    mean = np.zeros(grid.shape)
    for file, count in folds:
        mean += read_map(file, grid).astype(np.float64) * count / people
    path.parent.mkdir(parents=True, exist_ok=True)
    write_template_image(path, mean, grid, title)


STAGE = NAME = "marker"
PLAIN, MARKED = "plain", "marked"
MARKER_MM = 24.0
"""Edge of the block, as a vitamin capsule or a coil artefact; small networks did not use a block of half this edge."""


def block(spec: NetworkInput) -> NDArray[np.bool_]:
    """Where the marker is, on the template grid: near a corner of what networks see."""
    start = (0, 0, 0) if spec.box is None else spec.box.start
    return marker(spec.template_grid.shape, start, max(round(MARKER_MM / spec.resolution_mm), 1))


def mark_scan(outputs: Mapping[str, Path], source: ScanFiles, spec: NetworkInput) -> Mapping[str, Any]:
    """Write both copies of a scan; the function of a `Job`. The brain itself is never covered."""
    grid = spec.template_grid
    volume, brain = read_registered(source, grid)
    for which, copied, mask in ((PLAIN, volume, brain), (MARKED, *with_marker(volume, brain, block(spec) & ~brain))):
        title = f"Heatlas evaluation: {which} copy of a scan"
        write_template_image(outputs[f"{which}_t1w"], copied, grid, title)
        write_template_image(outputs[f"{which}_mask"], mask, grid, title)
    return {"marker_mm": MARKER_MM}


def train_and_measure(
    outputs: dict[str, Path], task: FoldTask, key: str, guidance: ObjectiveConfig
) -> Mapping[str, Any]:
    """Train one fold and measure the maps of the true class of its test people; the function of a `Job`."""
    further = ("measures", "measures_columns", "mean_map")
    facts = train_fold({name: path for name, path in outputs.items() if name not in further}, task, key)
    loaded = load_model(FoldFiles(outputs["weights"].parent))
    settings = task.config
    places, rows = places_of(guidance, settings.regions.atlas, task.spec, settings.registration.template), []
    mean = MeanEnergyMap(task.spec)
    device = torch.device("cpu")
    teacher = task.besides.context(settings, task.task, task.spec, task.fold, (), device, None).teacher

    def explained(scan: Scan) -> tuple[NDArray[np.floating], bool, bool | None]:
        """The map of the true class, whether it is found, and whether the class found is that of the teacher."""
        files = task.layout.scan(scan.participant_id, scan.session_id, task.spec.resolution_mm)
        volume = torch.from_numpy(read_network_volume(files, task.spec))[None, None]
        target = int(task.task.value(scan.label, scan.name))
        found = explained_batch(loaded.model, volume, torch.tensor([target]), "input-x-gradient", 0, learning=False)
        answer = int(found.logits.argmax(1).item())
        agrees = None if teacher is None else answer == int(teacher(volume).argmax(1).item())
        return found.maps[0].detach().numpy(), answer == target, agrees

    held_out = [explained(scan)[0] for scan in task.part(task.fold.validation)]
    threshold = best_threshold(held_out, [places.mask] * len(held_out))
    for scan in task.part(task.fold.test):
        values, correct, agrees = explained(scan)
        marked = scan.session_id == f"ses-{MARKED}"
        if marked:
            mean.add(values)
        rows.append([scan.participant_id, marked, correct, agrees, *map_measures(values, places, threshold).values()])
    mean.write(outputs["mean_map"], "Heatlas evaluation: mean map of copies with the marker")
    MEASURES_TABLE.write(outputs["measures"], rows)
    return facts


def places_of(
    guidance: ObjectiveConfig, atlas: str, spec: NetworkInput, template: str = DEFAULT_TEMPLATE
) -> MarkerMasks:
    """Mask before dilation, its boxes, and the marker, as networks see them."""
    mask = mask_of(dataclasses.replace(guidance, boxes=False), atlas, spec, template)
    boxed = dataclasses.replace(guidance, boxes=True)
    return _masks(mask, None if guidance.outside else mask_of(boxed, atlas, spec, template), spec)


def own_places(guidance: ObjectiveConfig, files: ScanFiles, spec: NetworkInput) -> MarkerMasks | None:
    """The same by the person's own labels; None without them."""
    mask = own_mask(dataclasses.replace(guidance, boxes=False), files, spec)
    boxes = None if guidance.outside else own_mask(dataclasses.replace(guidance, boxes=True), files, spec)
    return None if mask is None else _masks(mask, boxes, spec)


def _masks(mask: NDArray[np.bool_], boxes: NDArray[np.bool_] | None, spec: NetworkInput) -> MarkerMasks:
    """With boxes that cover everything where there are none."""
    of_marker = block(spec) if spec.box is None else np.asarray(spec.box.crop(block(spec)))
    return MarkerMasks(mask, np.ones_like(mask) if boxes is None else boxes, of_marker)
