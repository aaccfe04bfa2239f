"""Performance of multi-class networks in held-out participants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from heatlas.pipeline.run.columns import Form
from heatlas.pipeline.run.declared import CLASSES, Table
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.performance.intervals import MEASURE_COLUMNS, by_fold, measured_by_fold
from heatlas.pipeline.statistics.resampling.scaled import LOGIT

CLASSES_COLUMNS = MEASURE_COLUMNS | {
    "metric": "Over scans: balanced_accuracy (macro: mean recall over classes), accuracy, or recall of CLASS (share "
    "of its scans that are predicted as CLASS)"
}
PERFORMANCE_CLASSES_TABLE = Table(
    "performance_classes", CLASSES_COLUMNS, "fold (or all) and metric", "How well are the classes distinguished?",
    forms={"fold": Form.TEXT},
)  # fmt: skip
CONFUSION_COLUMNS = {
    "fold": MEASURE_COLUMNS["fold"],
    "label": "True class",
    "predicted": "Class with the largest logit",
    "n_scans": "Scans",
    "n_participants": "Participants with these scans",
    "share": "Share of the scans of the true class",
}
CONFUSION_TABLE = Table(
    "confusion", CONFUSION_COLUMNS, "fold (or all), true and predicted class", "Which classes are confused with which?",
    forms={"fold": Form.TEXT}, values={"label": (CLASSES,), "predicted": (CLASSES,)},
)  # fmt: skip


def class_metrics(
    labels: Sequence[str], predicted: Sequence[str], classes: Sequence[str], weights: Floats
) -> dict[str, Floats]:
    """Macro balanced accuracy, accuracy and recalls (draws,) of scans with weights (draws, scans).

    NaN where a class that the metric needs has no weight.
    """
    true, right = np.asarray(labels), np.asarray(labels) == np.asarray(predicted)
    recalls = {}
    for name in classes:
        members = weights * (true == name)
        total = members.sum(axis=1)
        recalls[f"recall of {name}"] = np.divide(
            members @ right.astype(float), total, out=np.full(len(weights), np.nan), where=total > 0
        )
    return {
        "balanced_accuracy": np.stack(list(recalls.values())).mean(axis=0),
        "accuracy": weights @ right.astype(float) / weights.sum(axis=1),
        **recalls,
    }


def confusion_table(predictions: pd.DataFrame, classes: Sequence[str]) -> pd.DataFrame:
    """One row per fold, true class and predicted class, including pairs without scans."""
    rows = []
    for fold, frame in by_fold(predictions).items():
        for label in classes:
            of_class = frame[frame["label"] == label]
            for predicted in classes:
                cell = of_class[of_class["predicted"] == predicted]
                share = len(cell) / len(of_class) if len(of_class) else float("nan")
                rows.append([fold, label, predicted, len(cell), cell["participant_id"].nunique(), share])
    return pd.DataFrame(rows, columns=list(CONFUSION_COLUMNS))


def classes_tables(inputs: StatisticsInputs) -> Mapping[str, pd.DataFrame]:
    """Tables ``performance_classes`` and ``confusion``."""
    classes = inputs.config.cohort.labels

    def measure(frame: pd.DataFrame, weights: Floats) -> Mapping[str, Floats]:
        return class_metrics(frame["label"].tolist(), frame["predicted"].tolist(), classes, weights)

    rng = generator(inputs.seed, "statistics", "performance_classes")
    table = measured_by_fold(inputs.predictions, measure, "label", lambda _: LOGIT, inputs.config.statistics, rng)
    confusion = confusion_table(inputs.predictions, classes)
    return {"performance_classes": table, "confusion": confusion}
