"""``before_after.tsv``: what training with ``[objective]`` changed, on the same people; and the unit that measures it.

A fold is trained as long with another weight of ``[objective]``, and its maps and those of the run's network are
measured. Which units are made is decided in `studies.before_after.stage`, so that a change there repeats no
training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.scores.accuracy import DRAWS, participant_interval
from heatlas.pipeline.evaluation.scores.localisation import HALF, best_threshold
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.inputs import read_network_volume
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.run.layout.run_layout import FoldFiles
from heatlas.pipeline.training.stage import FoldTask, load_part, train_fold
from heatlas.studies.marker.marked import MeanEnergyMap, own_places, places_of
from heatlas.studies.marker.marker_groups import IN_MASK, MarkerMasks, map_measures
from heatlas.studies.objectives.guidance import mean_control
from heatlas.studies.objectives.maps_in_training import MapSettings, explained_batch, map_settings
from heatlas.studies.objectives.readable_gradients import GuidedReLUs, both_gradients, negative_cosine
from heatlas.studies.tables import declared

BEFORE, AFTER = "before", "after"
VALIDATION, TEST = "validation", "test"
MEASURES = {
    "correct": "Share of people whose class the network recognises",
    **IN_MASK,
    "agrees": "Share of people for whom it finds the class that the teacher finds",
    "teacher_cosine": "Cosine between its map and the teacher's, both of the class that the teacher finds",
    "guided_cosine": "Cosine between its input gradient and that of guided backpropagation",
}
"""What is measured of a person's scan; those that the kind of the objective is about."""
_WORDS = "; ".join(f"{name}: {text}" for name, text in MEASURES.items())
MEASURED_TABLE = declared("before_after_measures", measures=_WORDS)
BEFORE_AFTER_TABLE = declared("before_after", measures=_WORDS)


def before_after_table(objective: str, measured: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One row per measure, in the order of `MEASURES`; `measured`: `MEASURED_TABLE` of all folds."""
    rows = []
    frame = pd.concat(measured, ignore_index=True)
    for name in MEASURES:
        tested = frame[(frame["measure"] == name) & (frame["part"] == TEST)]
        wide = tested.pivot_table(index="participant_id", columns="training", values="value", dropna=False).dropna()
        if not len(wide):
            continue
        change = (wide[AFTER] - wide[BEFORE]).to_numpy(float)
        low, high = participant_interval((change,), np.mean, DRAWS, 0)
        means = [float(wide[column].mean()) for column in (BEFORE, AFTER)]
        rows.append([objective, name, *means, float(change.mean()), low, high, len(wide)])
    return BEFORE_AFTER_TABLE.frame(rows)


Floats = NDArray[np.floating]


def trained_and_measured(
    outputs: dict[str, Path], task: FoldTask, key: str, name: str, of_run: FoldFiles | None
) -> Mapping[str, Any]:
    """Train one fold with another weight and measure its network on validation and test people; a `Job`'s function.

    `outputs`: the mean map over the test people by the name of the training. `own`: the network of the run, to be
    measured as well.
    """
    files = {name: FoldFiles(outputs["weights"].parent)} | ({AFTER: of_run} if of_run else {})
    written = ("measures", "measures_columns", *files)
    facts = train_fold({output: path for output, path in outputs.items() if output not in written}, task, key)
    objective, maps, spec = task.config.objective, map_settings(task.config), task.spec
    of_everybody = None
    if objective.kind == "guided" and not objective.own_anatomy:
        of_everybody = places_of(objective, task.config.regions.atlas, spec, task.config.registration.template)

    def places(scan: Scan) -> MarkerMasks | None:
        """Masks of guidance; of their own anatomy, None for whoever has no labels, whose maps have no such measure."""
        image = task.layout.scan(scan.participant_id, scan.session_id, spec.resolution_mm)
        return own_places(objective, image, spec) if objective.own_anatomy else of_everybody

    device = torch.device("cpu")
    teacher = task.besides.context(task.config, task.task, spec, task.fold, (), device, None).teacher
    reference = None
    if objective.map == "evidence":
        training_part = load_part(task, "training", task.fold.train, torch.device("cpu"))
        reference = mean_control(task.config, task.task, training_part)
    rows = []
    for training, one in files.items():
        model, mean = load_model(one).model, MeanEnergyMap(spec)

        def of(scan: Scan, threshold: float, model: StagedModel = model) -> tuple[Floats, Mapping[str, float]]:
            image = task.layout.scan(scan.participant_id, scan.session_id, spec.resolution_mm)
            volume = torch.from_numpy(read_network_volume(image, spec))[None, None]
            target = int(task.task.value(scan.label, scan.name))
            return measured(model, volume, target, objective.kind, maps, places(scan), teacher, reference, threshold)

        threshold = np.nan
        masked = [(scan, known.mask) for scan in task.part(task.fold.validation) if (known := places(scan)) is not None]
        if masked:
            threshold = best_threshold([of(scan, np.nan)[0] for scan, _ in masked], [mask for _, mask in masked])
        for part, people in ((VALIDATION, task.fold.validation), (TEST, task.fold.test)):
            firsts = {scan.participant_id: scan for scan in reversed(task.part(people))}
            for person, scan in sorted(firsts.items()):
                values, found = of(scan, threshold)
                if part == TEST:
                    mean.add(values)
                rows += [[person, part, training, measure, value] for measure, value in found.items()]
        mean.write(outputs[training], f"Heatlas evaluation: mean map, {training} of training with maps")
    MEASURED_TABLE.write(outputs["measures"], rows)
    return facts


def measured(
    model: StagedModel,
    volume: Tensor,
    target: int,
    kind: str,
    maps: MapSettings,
    places: MarkerMasks | None,
    teacher: nn.Module | None,
    reference: Tensor | None = None,
    threshold: float = HALF,
) -> tuple[Floats, Mapping[str, float]]:
    """The map that an objective is about, (D, H, W), and what is measured of one scan.

    Weights W(x) have two channels; contributions W(x) x are shown in their place.

    Guided: the map of the scan's class, and where it lies. Distilled: the map of the class that the teacher finds, and
    how like the teacher's it is. Readable gradients: the absolute input gradient of the loss of the task, and how like
    that of guided backpropagation the gradient is.

    `model`: in evaluation mode. `volume`: (1, 1, D, H, W). `target`: class of the scan. `reference`: the mean control
    of evidence maps. `threshold`: for the IoU of guided maps, as share of the maximum.
    """
    of_scan = torch.tensor([target])
    if kind == "readable-gradients":
        leaf = volume.detach().requires_grad_()
        with GuidedReLUs():
            logits = model(leaf)
        gradient, guided = both_gradients(functional.cross_entropy(logits, of_scan), leaf)
        logits = logits.detach()
        values = gradient[0, 0].abs().numpy()
        extra = {"guided_cosine": -float(negative_cosine(gradient, guided)) if _both(gradient, guided) else np.nan}
    else:
        asked = of_scan if teacher is None else teacher(volume).argmax(1)
        found = explained_batch(model, volume, asked, maps.map, maps.stage, False, reference)
        shown = explained_batch(model, volume, asked, "inherent", 0, False) if maps.map == "dynamic-weights" else found
        logits, values = found.logits.detach(), shown.maps[0].detach().numpy()
        extra = {} if places is None else dict(map_measures(values, places, threshold))
        extra.pop("on_marker", None)
        if teacher is not None:
            taught = explained_batch(teacher, volume, asked, maps.map, maps.stage, learning=False)
            ours, theirs = (one.maps.detach().flatten(1) for one in (found, taught))
            extra["agrees"] = float(logits.argmax(1).item() == asked.item())
            alike = float(functional.cosine_similarity(ours, theirs))
            extra["teacher_cosine"] = alike if _both(ours, theirs) else np.nan
    return values, {"correct": float(logits.argmax(1).item() == target), **extra}


def _both(first: Tensor, second: Tensor) -> bool:
    """Whether neither is 0 everywhere; else there is no angle between them."""
    return bool(first.any()) and bool(second.any())
