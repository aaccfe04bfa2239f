"""Variation of performance over training seeds: each repeat, and mean and SD over repeats."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from sklearn.metrics import balanced_accuracy_score

from pipeline.cohort.people.tasks import Task, task_of
from pipeline.run.columns import Form
from pipeline.run.declared import Table
from pipeline.run.tables import read_table
from pipeline.statistics.data.inputs import StatisticsInputs

REPEATS_COLUMNS = {
    "repeat": "Repeat of training; maps come from repeat 1; mean and sd: over repeats",
    "metric": "balanced_accuracy (macro) for classes, mae and r for a number; over out-of-fold scans of all folds",
    "estimate": "Value; the standard deviation is that of the sample of repeats",
    "n_participants": "Participants predicted by this repeat; for mean and sd the smallest number",
    "n_scans": "Scans of these participants",
}
"""Columns of ``performance_repeats.tsv``."""
PERFORMANCE_REPEATS_TABLE = Table(
    "performance_repeats", REPEATS_COLUMNS, "training (or mean, or sd) and metric",
    "Does the performance depend on the training seed?", forms={"repeat": Form.TEXT},
)  # fmt: skip


def repeats_tables(inputs: StatisticsInputs) -> Mapping[str, pd.DataFrame]:
    """Table ``performance_repeats``; none if each fold was trained once."""
    path = inputs.layout.predictions_repeats
    if not path.is_file():
        return {}
    table = repeats_table(read_table(path, ["repeat", "target"]), task_of(inputs.config.cohort))
    return {"performance_repeats": table}


def repeats_table(predictions: pd.DataFrame, task: Task) -> pd.DataFrame:
    """One row per repeat and metric, and the mean and standard deviation over repeats."""
    rows = []
    for repeat, frame in predictions.groupby("repeat", sort=True):
        counts = (frame["participant_id"].nunique(), len(frame))
        rows += [(str(repeat), metric, value, *counts) for metric, value in _metrics(frame, task).items()]
    table = pd.DataFrame(rows, columns=list(REPEATS_COLUMNS))
    by_metric = table.groupby("metric", sort=False)
    fewest = by_metric[["n_participants", "n_scans"]].min()
    both = {"mean": by_metric["estimate"].mean(), "sd": by_metric["estimate"].std()}
    summary = [fewest.assign(repeat=name, estimate=values).reset_index() for name, values in both.items()]
    return pd.concat([table, *summary], ignore_index=True)[list(REPEATS_COLUMNS)]


def _metrics(frame: pd.DataFrame, task: Task) -> dict[str, float]:
    if not task.is_number:
        return {"balanced_accuracy": float(balanced_accuracy_score(frame["label"], frame["predicted"]))}
    with np.errstate(invalid="ignore", divide="ignore"):
        r = float(frame["prediction"].corr(frame["target"]))
    return {"mae": float((frame["prediction"] - frame["target"]).abs().mean()), "r": r}
