"""``before_after.tsv``: what training with ``[objective]`` changed, on the same people."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from heatlas.pipeline.evaluation.scores.accuracy import DRAWS, participant_interval
from heatlas.pipeline.run.columns import described
from heatlas.pipeline.run.declared import Table

BEFORE, AFTER = "before", "after"
VALIDATION, TEST = "validation", "test"
MEASURES = {
    "correct": "Share of people whose class the network recognises",
    "epg": "Share of the positive attribution inside the mask (energy pointing game)",
    "iou": "Overlap of the mask with the voxels above a share of the largest attribution, the share that is best for "
    "the same network's maps of its validation people (intersection over union)",
    "on_object_epg": "Share inside the mask of the positive attribution in the bounding boxes of its parts",
    "agrees": "Share of people for whom it finds the class that the teacher finds",
    "teacher_cosine": "Cosine between its map and the teacher's, both of the class that the teacher finds",
    "guided_cosine": "Cosine between its input gradient and that of guided backpropagation",
}
"""What is measured of a person's scan; those that the kind of the objective is about."""
MEASURED_TABLE = Table(
    "before_after_measures",
    {
        **described("participant_id"),
        "part": "Part of the fold that the person is in: validation or test",
        "training": "before: trained as long without the maps of [objective] (weight 0); after: the run's network; or "
        "another weight of [evaluation] objective_weights",
        "measure": "What was measured: " + "; ".join(f"{name}: {text}" for name, text in MEASURES.items()),
        "value": "Its value for this person",
    },
    "person, part, training and measure", "What is measured of each person's map?", stage="evaluation",
    file="evaluation/models/objective-control/fold-0/measures.tsv",
)  # fmt: skip
BEFORE_AFTER_TABLE = Table(
    "before_after",
    {
        "objective": "Kind of [objective] of the run",
        "measure": "What was measured, mean over participants: "
        + "; ".join(f"{name}: {text}" for name, text in MEASURES.items()),
        "before": "Networks trained as long without the maps (weight 0), on the same folds with the same seeds",
        "after": "Networks of the run",
        "change": "after minus before",
        "change_low": "Lower bound of its 95 % bootstrap interval over participants, paired",
        "change_high": "Upper bound",
        "n_participants": "Participants that both tested, each by a network that has not seen them, and whose map has "
        "the measure in both: a map without positive values has no epg, iou or on_object_epg, one that is 0 no cosine; "
        "with people's own labels ([objective] region_labels), who has none with all regions is left out of epg, iou "
        "and on_object_epg",
    },
    "measure", "What did training with maps change?", stage="evaluation",
    filled=("objective", "measure", "before", "after", "n_participants"),
)  # fmt: skip


def before_after_table(objective: str, measured: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One row per measure, in the order of `MEASURES`.

    `measured`: `MEASURED_TABLE` of all folds. Who has no value in either training is left out of a measure.
    """
    rows = []
    frame = pd.concat(measured, ignore_index=True)
    for name in MEASURES:
        own = frame[(frame["measure"] == name) & (frame["part"] == TEST)]
        wide = own.pivot_table(index="participant_id", columns="training", values="value", dropna=False).dropna()
        if not len(wide):
            continue
        change = (wide[AFTER] - wide[BEFORE]).to_numpy(float)
        low, high = participant_interval((change,), np.mean, DRAWS, 0)
        means = [float(wide[column].mean()) for column in (BEFORE, AFTER)]
        rows.append([objective, name, *means, float(change.mean()), low, high, len(wide)])
    return BEFORE_AFTER_TABLE.frame(rows)
