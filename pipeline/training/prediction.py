"""Out-of-fold predictions, and the prediction tables of each task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from heatlas.pipeline.attribution.network_view import start_values
from heatlas.pipeline.cohort.people.splits import Fold, require_disjoint, require_unseen
from heatlas.pipeline.cohort.people.tasks import NUMBER, SEVERAL_CLASSES, TWO_CLASSES, Task, task_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.models.contract import members_of
from heatlas.pipeline.models.inputs import read_channels
from heatlas.pipeline.models.storage import LoadedModel
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.declared import CLASSES, Form, Table, described
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.host import on_host
from heatlas.pipeline.training.answers import (
    GAP_COLUMNS,
    NO_CONTROL,
    outcome,
    positive_probability,
    predicted_class,
    probabilities,
)

PREDICTION_COLUMNS = {
    **described("participant_id", "session_id", "scan_id"),
    "fold": "Fold whose model made the prediction, without the participant in training or validation",
    "label": "True class",
    "target": "True class as the number of its output unit: 0 negative, 1 positive",
    "logit_negative": "Logit of the negative class (unit 0)",
    "logit_positive": "Logit of the positive class (unit 1)",
    "probability": "Softmax probability of the positive class; uncalibrated",
    "predicted": "Class with the larger logit",
    "outcome": "TP, FP, TN or FN; positive is the class of unit 1",
    "control": "Kind of control run, whose results do not concern the disease: binarised (networks saw brain masks), "
    "shuffled labels, or both; none for an ordinary run",
}
"""Columns of ``predictions.tsv`` for two classes, and their descriptions."""
SPREAD = {
    "spread": "Standard deviation over the members of an ensemble of the evidence (the logit of the class explained "
    "less the mean of the other logits), or of the number; only where [training] ensemble is above 1"
}
_KNOWN = ("participant_id", "scan_id", "fold", "target")
_CLASSES = {"label": (CLASSES,), "predicted": (CLASSES,), "outcome": ("TP", "FP", "TN", "FN")}
PREDICTIONS_TABLE = Table(
    "predictions", {**PREDICTION_COLUMNS, **SPREAD}, "scan with a class of the contrast",
    "What do networks predict for scans of held-out participants?", stage="training", file="group/predictions.tsv",
    forms={"target": Form.COUNT}, filled=(*_KNOWN, "label", "predicted", "outcome", "probability"), values=_CLASSES,
    finite=True, later=("spread",),
)  # fmt: skip

_FIRST = {**described("participant_id", "session_id", "scan_id"), "fold": PREDICTION_COLUMNS["fold"]}


def prediction_columns(task: Task) -> dict[str, str]:
    """Columns of ``predictions.tsv`` for a task, and their descriptions; only ensembles have the spread."""
    columns = PREDICTION_COLUMNS
    if task.is_number:
        columns = {
            **_FIRST,
            "label": f"True {task.column}, as text",
            "target": f"True {task.column}",
            "prediction": f"Predicted {task.column}",
            **GAP_COLUMNS,
        }
    elif task.kind.name != TWO_CLASSES:
        numbered = ", ".join(f"{unit} {name}" for unit, name in enumerate(task.outputs))
        columns = {
            **_FIRST,
            "label": "True class",
            "target": f"True class as the number of its output unit: {numbered}",
            **{f"logit_{name}": f"Logit (output of unit {unit})" for unit, name in enumerate(task.outputs)},
            **{f"probability_{name}": f"Softmax probability of {name}; uncalibrated" for name in task.outputs},
            "probability": f"Softmax probability of {task.explained}, the class that maps explain",
            "predicted": "Class with the largest logit",
            "outcome": f"TP, FP, TN or FN; positive is {task.explained}, negative any other class",
        }
    control = {"control": PREDICTION_COLUMNS["control"]}
    return {**{name: text for name, text in columns.items() if name != "control"}, **SPREAD, **control}


PREDICTIONS_CLASSES_TABLE = replace(
    PREDICTIONS_TABLE,
    name="predictions_classes",
    meanings={name: meaning for name, meaning in PREDICTION_COLUMNS.items() if not name.startswith("logit_")}
    | {
        "label": "True class",
        "target": "True class as the number of its output unit",
        "probability": "Softmax probability of the class that maps explain",
        "outcome": "TP, FP, TN or FN; positive is the class that maps explain, negative any other",
        **SPREAD,
    },
    rows="scan with one of several classes",
    question="What do networks predict for scans of held-out participants? Each class also has a logit and a "
    "probability, in columns with its name.",
)
PREDICTIONS_NUMBER_TABLE = Table(
    "predictions_number", prediction_columns(task_of(CohortConfig(target="age"))), "scan whose number is known",
    "What number do networks predict for held-out participants? Here the number is age.", stage="training",
    file="group/predictions.tsv", forms={"target": Form.VALUE, "gap": Form.VALUE}, filled=(*_KNOWN, "prediction"),
    finite=True, later=("spread",),
)  # fmt: skip
_TABLES = {TWO_CLASSES: PREDICTIONS_TABLE, SEVERAL_CLASSES: PREDICTIONS_CLASSES_TABLE, NUMBER: PREDICTIONS_NUMBER_TABLE}


def predictions_table(task: Task) -> Table:
    return replace(_TABLES[task.kind.name], meanings=prediction_columns(task))


def logits_of(loaded: LoadedModel, volumes: torch.Tensor) -> np.ndarray:
    """Outputs (B, outputs) of volumes (B, 1, D, H, W) in full float32; of an ensemble the mean of its members."""
    return np.asarray(_logits_of_members(loaded, volumes).mean(0).numpy())


@torch.inference_mode()
def _logits_of_members(loaded: LoadedModel, volumes: torch.Tensor) -> torch.Tensor:
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
        outputs = _logits_of_members(loaded, volume[None])
        answer = _answer(scan, task, loaded, outputs.mean(0).numpy())
        rows.append([*identity, *answer, _spread(outputs, task, loaded) if len(outputs) > 1 else None, control])
    frame = pd.DataFrame(rows, columns=list(prediction_columns(task)))
    return frame if len(members_of(loaded.model)) > 1 else frame.drop(columns=list(SPREAD))


def _spread(outputs: torch.Tensor, task: Task, loaded: LoadedModel) -> float:
    """Standard deviation over members of the evidence for the class explained, or of the number; of (members, 1, K)."""
    values = start_values(outputs[:, 0], task.unit, "evidence").double()
    scale: float = loaded.description["objective"].get("target_sd", 1)
    return float(values.std()) * scale


def _answer(scan: Scan, task: Task, loaded: LoadedModel, output: np.ndarray) -> list[object]:
    """Cells between the label and the control, in the order of the task's columns."""
    target = task.value(scan.label, scan.name)
    if task.is_number:
        scale = loaded.description["objective"]
        predicted = float(output[0, 0]) * scale["target_sd"] + scale["target_mean"]
        return [target, predicted, predicted - target, *[np.nan] * (len(GAP_COLUMNS) - 1)]
    unit = int(predicted_class(output)[0])
    name, logits = task.outputs[unit], [float(one) for one in output[0]]
    if task.kind.name == TWO_CLASSES:
        return [target, *logits, float(positive_probability(output)[0]), name, outcome(int(target), unit)]
    shares = [float(one) for one in probabilities(output)[0]]
    cell = outcome(int(target == task.unit), int(unit == task.unit))
    return [target, *logits, *shares, shares[task.unit], name, cell]
