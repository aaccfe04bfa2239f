"""Out-of-fold predictions, and the prediction tables of each task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from heatlas.pipeline.attribution.network_view import start_values
from heatlas.pipeline.cohort.people.splits import Fold, require_disjoint, require_unseen
from heatlas.pipeline.cohort.people.tasks import NUMBER, SEVERAL_CLASSES, TWO_CLASSES, Task
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.models.contract import members_of
from heatlas.pipeline.models.inputs import read_channels
from heatlas.pipeline.models.storage import LoadedModel
from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.host import on_host
from heatlas.pipeline.training.answers import NO_CONTROL, outcome, positive_probability, predicted_class, probabilities
from heatlas.pipeline.training.tables import declared

SPREAD = "spread"
"""Column of ensembles alone."""
PREDICTIONS_TABLE, PREDICTIONS_CLASSES_TABLE = declared("predictions"), declared("predictions_classes")


def prediction_columns(task: Task) -> dict[str, str]:
    """Columns of ``predictions.tsv`` for a task, and their descriptions; only ensembles have the spread."""
    columns = usual = PREDICTIONS_TABLE.meanings
    if task.is_number:
        columns = declared("predictions_number", column=task.column).meanings
    elif task.kind.name != TWO_CLASSES:
        numbered = ", ".join(f"{unit} {name}" for unit, name in enumerate(task.outputs))
        columns = {
            **{name: usual[name] for name in ("participant_id", "session_id", "scan_id", "fold", "label")},
            "target": f"True class as the number of its output unit: {numbered}",
            **{f"logit_{name}": f"Logit (output of unit {unit})" for unit, name in enumerate(task.outputs)},
            **{f"probability_{name}": f"Softmax probability of {name}; uncalibrated" for name in task.outputs},
            "probability": f"Softmax probability of {task.explained}, the class that maps explain",
            "predicted": "Class with the largest logit",
            "outcome": f"TP, FP, TN or FN; positive is {task.explained}, negative any other class",
        }
    last = {name: usual[name] for name in (SPREAD, "control")}
    return {name: text for name, text in columns.items() if name not in last} | last


PREDICTIONS_NUMBER_TABLE = declared("predictions_number", column="age")
_TABLES = {TWO_CLASSES: PREDICTIONS_TABLE, SEVERAL_CLASSES: PREDICTIONS_CLASSES_TABLE, NUMBER: PREDICTIONS_NUMBER_TABLE}


def predictions_table(task: Task) -> Table:
    return replace(_TABLES[task.kind.name], meanings=prediction_columns(task))


def logits_of(loaded: LoadedModel, volumes: torch.Tensor) -> np.ndarray:
    """Outputs (B, outputs) of volumes (B, 1, D, H, W) in full float32; of an ensemble the mean of its members."""
    return np.asarray(logits_of_members(loaded, volumes).mean(0).numpy())


@torch.inference_mode()
def logits_of_members(loaded: LoadedModel, volumes: torch.Tensor) -> torch.Tensor:
    """As `logits_of`, of each member by itself; (members, B, outputs)."""
    with torch.backends.cudnn.flags(benchmark=False, deterministic=True, allow_tf32=False):
        return torch.stack([on_host(member(volumes).float()) for member in members_of(loaded.model)])


def predict_test_part(
    layout: RunLayout, loaded: LoadedModel, task: Task, fold: Fold, scans: Sequence[Scan], device: torch.device
) -> pd.DataFrame:
    """Predict every labelled scan of the test participants of a fold; `scans` of others are ignored.

    Volumes are read one by one in float32, without the rounding of those used in training, exactly as for attribution.
    """
    require_disjoint(fold)
    require_unseen(loaded.description, f"fold {fold.index}", fold.test)
    rows = []
    for scan in scans:
        if scan.participant_id not in fold.test:
            continue
        files = layout.scan(scan.participant_id, scan.session_id, loaded.input.resolution_mm)
        volume = torch.from_numpy(read_channels(files, loaded.input)).to(device)
        control = str(loaded.description.get("control", NO_CONTROL))
        identity = [scan.participant_id, scan.session_id, scan.scan_id, fold.index, scan.label]
        outputs = logits_of_members(loaded, volume[None])
        answer = _answer(scan, task, loaded, outputs.mean(0).numpy())
        rows.append([*identity, *answer, _spread(outputs, task, loaded) if len(outputs) > 1 else None, control])
    frame = pd.DataFrame(rows, columns=list(prediction_columns(task)))
    return frame if len(members_of(loaded.model)) > 1 else frame.drop(columns=SPREAD)


def _spread(outputs: torch.Tensor, task: Task, loaded: LoadedModel) -> float:
    """Standard deviation over members of the evidence for the class explained, or of the number; of (members, 1, K)."""
    values = start_values(outputs[:, 0], task.unit, "evidence").double()
    scale: float = loaded.description["objective"].get("target_sd", 1)
    return float(values.std()) * scale


def number_of(output: np.ndarray, loaded: LoadedModel) -> float:
    """The number that a network answers, in its own unit; `output` (1, 1) is standardised as in training."""
    scale = loaded.description["objective"]
    return float(output[0, 0]) * scale["target_sd"] + scale["target_mean"]  # type: ignore[no-any-return]


def _answer(scan: Scan, task: Task, loaded: LoadedModel, output: np.ndarray) -> list[object]:
    """Cells between the label and the control, in the order of the task's columns."""
    target = task.value(scan.label, scan.name)
    if task.is_number:
        predicted = number_of(output, loaded)
        return [target, predicted, predicted - target, *[np.nan] * 3]
    unit = int(predicted_class(output)[0])
    name, logits = task.outputs[unit], [float(one) for one in output[0]]
    if task.kind.name == TWO_CLASSES:
        return [target, *logits, float(positive_probability(output)[0]), name, outcome(int(target), unit)]
    shares = [float(one) for one in probabilities(output)[0]]
    cell = outcome(int(target == task.unit), int(unit == task.unit))
    return [target, *logits, *shares, shares[task.unit], name, cell]
