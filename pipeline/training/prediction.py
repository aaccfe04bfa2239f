"""Predictions for scans that a network has not seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from pipeline.cohort.people.splits import Fold, require_disjoint
from pipeline.cohort.records import Scan
from pipeline.models.inputs import read_network_volume
from pipeline.models.storage import LoadedModel
from pipeline.run.columns import Form
from pipeline.run.declared import Table
from pipeline.run.errors import BadInputError
from pipeline.run.layout.run_layout import RunLayout
from pipeline.training.control import NO_CONTROL
from pipeline.training.metrics import outcome, positive_probability, predicted_class

PREDICTION_COLUMNS = {
    "participant_id": "BIDS participant, with the prefix sub-",
    "session_id": "BIDS session, with the prefix ses-; n/a where the input has no sessions",
    "scan_id": "Identifier of the image in its source",
    "fold": "Fold whose model made the prediction; the participant took no part in its training or validation",
    "label": "True class",
    "target": "True class as the number of its output unit: 0 negative, 1 positive",
    "logit_negative": "Output of unit 0 before softmax",
    "logit_positive": "Output of unit 1 before softmax",
    "probability": "Softmax probability of the positive class; uncalibrated",
    "predicted": "Class with the larger logit",
    "outcome": "TP, FP, TN or FN; positive is the class of unit 1",
    "control": "none; or what makes this a control run, from which nothing follows about the disease: binarised "
    "(networks saw brain masks), shuffled labels, or both",
}
"""Columns of ``predictions.tsv`` and their descriptions."""
PREDICTIONS_TABLE = Table(
    "predictions", PREDICTION_COLUMNS, "scan with a class of the contrast",
    "What does a network say of a scan it has not seen?", stage="training", place="predictions",
    forms={"target": Form.COUNT},
    filled=("participant_id", "scan_id", "fold", "label", "target", "predicted", "outcome", "probability"),
    values={"label": ("{positive}", "{negative}"), "predicted": ("{positive}", "{negative}"), "outcome": ("TP", "FP",
    "TN", "FN")}, finite=True,
)  # fmt: skip


@torch.inference_mode()
def logits_of(loaded: LoadedModel, volumes: torch.Tensor) -> np.ndarray:
    """Logits (B, 2) of volumes (B, 1, D, H, W) in full float32."""
    with torch.backends.cudnn.flags(benchmark=False, deterministic=True, allow_tf32=False):
        logits: np.ndarray = loaded.model(volumes).float().cpu().numpy()
    return logits


def predict_test_part(
    layout: RunLayout, loaded: LoadedModel, fold: Fold, scans: Sequence[Scan], device: torch.device
) -> pd.DataFrame:
    """Predict every labelled scan of the test participants of a fold.

    Volumes are read one by one in float32, without the rounding of the resident ones, exactly as attribution
    will read them.

    Parameters
    ----------
    layout : RunLayout
    loaded : LoadedModel
    fold : Fold
    scans : sequence of Scan
        Labelled and registered; those of other participants are passed over.
    device : torch.device
        Where the model is.

    Returns
    -------
    pandas.DataFrame
        With the columns of `PREDICTION_COLUMNS`.

    Raises
    ------
    BadInputError
        If a participant is in two parts of the fold, or in the list the model was trained or selected with.
    """
    require_disjoint(fold)
    _require_unseen(loaded, fold)
    rows = []
    for scan in scans:
        if scan.participant_id not in fold.test:
            continue
        files = layout.scan(scan.participant_id, scan.session_id, loaded.input.resolution_mm)
        volume = torch.from_numpy(read_network_volume(files, loaded.input)).to(device)
        control = str(loaded.description.get("control", NO_CONTROL))
        rows.append(_row(scan, fold, loaded.classes, logits_of(loaded, volume[None, None]), control))
    return pd.DataFrame(rows, columns=list(PREDICTION_COLUMNS))


def _row(scan: Scan, fold: Fold, classes: tuple[str, str], logits: np.ndarray, control: str) -> list[object]:
    target, predicted = target_of(scan, classes), int(predicted_class(logits)[0])
    return [
        scan.participant_id,
        scan.session_id,
        scan.scan_id,
        fold.index,
        scan.label,
        target,
        float(logits[0, 0]),
        float(logits[0, 1]),
        float(positive_probability(logits)[0]),
        classes[predicted],
        outcome(target, predicted),
        control,
    ]


def target_of(scan: Scan, classes: tuple[str, str]) -> int:
    """Number of the output unit of a scan's label.

    Raises
    ------
    BadInputError
        If the label is not one of the classes.
    """
    if scan.label not in classes:
        raise BadInputError(f"{scan.name}: label {scan.label!r} is not one of {classes[0]!r}, {classes[1]!r}.")
    return classes.index(scan.label)


def _require_unseen(loaded: LoadedModel, fold: Fold) -> None:
    """The split in memory must not be another one than the model was trained with."""
    trained = loaded.description["participants"]
    known = set(fold.test) & {*trained["train"], *trained["validation"]}
    if known:
        raise BadInputError(
            f"fold {fold.index}: participant {min(known)} would be predicted by a model trained or selected with it. "
            "Train the fold again with the present split."
        )
