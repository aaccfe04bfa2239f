"""``marker_groups.tsv``: what networks do that could use a marker, with guidance and without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from heatlas.pipeline.evaluation.scores.accuracy import DRAWS, participant_interval
from heatlas.pipeline.run.columns import described
from heatlas.pipeline.run.declared import Table
from heatlas.studies.marker.marker_groups import GROUPS, REVERSED, GroupAnswers
from heatlas.studies.marker.worst_group import chance_of_worst, mean_of_classes, worst_interval

_MAPS = {
    "epg": "Share of the positive attribution inside the mask (energy pointing game)",
    "iou": "Overlap of the mask with the voxels above a share of the largest attribution, the share that is best for "
    "the same network's maps of its validation people (intersection over union)",
    "on_object_epg": "Share inside the mask of the positive attribution in the bounding boxes of its parts",
    "on_marker": "Share of the positive attribution on the marker",
}
MEASURES_TABLE = Table(
    "marker_measures",
    {
        **described("participant_id"),
        "marked": "Whether this copy of the scan has the marker",
        "correct": "Whether the network recognises its class",
        "agrees": "Whether it finds the class that the teacher finds; empty without a teacher",
        **_MAPS,
    },
    "copy of a scan tested", "What does a network make of each copy?", stage="evaluation",
    file="evaluation/models/marker_diagnosis_control/fold-0/measures.tsv",
)  # fmt: skip
_AGREEMENT = {
    f"agreement_{name}{end}": text
    for name, which in (("as_in_training", "go together"), ("against_training", "do not go together"))
    for end, text in (("", f"Share of copies for which it finds the class that the teacher finds, where marker and "
                           f"diagnosis {which}: mean of the two groups; of a distilled run"),
                      ("_change", "The same minus that of the control"),
                      ("_change_low", "Lower bound of its 95 % interval over participants, paired (Welch's t)"),
                      ("_change_high", "Upper bound"))
}  # fmt: skip
MARKER_TABLE = Table(
    "marker_groups",
    {
        "task": "diagnosis, or marker for the reversed task: networks learn to recognise the marker",
        "training": "guided; distilled: taught by the answers and maps of the teacher of the run; or control: as long, "
        "with weight 0 (of a distilled run, by the answers alone; where its map is attention-transfer, by the labels)",
        "weight": "Weight of the loss of the maps",
        "n_participants": "Participants tested, each with a copy with the marker and one without",
        **{f"accuracy_{name}": f"Accuracy: {name.split('_')[0]} class of the diagnosis, copies "
           f"{'with' if name.endswith('marked') else 'without'} the marker" for name in GROUPS},
        "worst_group": "Lowest of the four accuracies",
        "worst_group_low": "Lower bound of its interval, of at least 95 % (the least bound of the four groups)",
        "worst_group_high": "Upper bound (the least of the four, each at a level divided by four)",
        "chance": "Worst group expected of a coin tossed for each participant, whatever their diagnosis and marker",
        "chance_low": "Lower end of the central 95 % of such coins",
        "chance_high": "Upper end",
        "mean_accuracy": "Mean of the four accuracies; .5 by chance",
        "as_in_training": "Mean accuracy of the two groups in which marker and diagnosis go together, as in training",
        "against_training": "Mean accuracy of the two groups in which they do not go together; a network that follows "
                            "what goes with its class in training is wrong there",
        **{name: f"{text}; input x gradient of the true class, mean over participants" for name, text in _MAPS.items()},
        "n_no_positive": "Copies whose map has no positive value: they have no epg, iou, on_object_epg or on_marker",
        "epg_change": "epg minus that of the control",
        "epg_change_low": "Lower bound of its 95 % bootstrap interval over participants, paired",
        "epg_change_high": "Upper bound",
        "worst_group_change": "worst_group minus that of the control; without an interval, since that of a least value "
        "of few participants does not hold",
        **{f"{name}_change{end}": text.format(name) for name in ("mean_accuracy", "as_in_training", "against_training")
           for end, text in (("", "{} minus that of the control"),
                             ("_low", "Lower bound of its 95 % interval over participants, paired (Welch's t)"),
                             ("_high", "Upper bound"))},
        **_AGREEMENT,
    },
    "task and training",
    "Do networks use a marker that goes with the diagnosis in training " "only, and does guidance keep them from it?",
    stage="evaluation", filled=("task", "training", "n_participants", "worst_group"),
    later=_AGREEMENT,
)  # fmt: skip


def read_answers(paths: Sequence[Path]) -> pd.DataFrame:
    """Measures of all folds that are there."""
    found = [MEASURES_TABLE.read(path) for path in paths]
    return pd.concat(found, ignore_index=True) if found else MEASURES_TABLE.frame()


def answers_of(answers: pd.DataFrame, positive: Mapping[str, bool], measure: str = "correct") -> GroupAnswers:
    """Whether answers are right, or (``agrees``) the teacher's, of each participant in the order of their names."""
    known = answers.sort_values("participant_id")
    plain, marked = (known[known["marked"].astype(bool) == copy] for copy in (False, True))
    of_class = np.array([positive[str(name)] for name in plain["participant_id"]], dtype=bool)
    return GroupAnswers(plain[measure].to_numpy(float), marked[measure].to_numpy(float), of_class)


def marker_row(
    task: str, training: str, answers: pd.DataFrame, control: pd.DataFrame, weight: float, positive: Mapping[str, bool]
) -> dict[str, object]:
    """One row of the table.

    `answers`, `control`: `MEASURES_TABLE` of this training and of the control; paired by participant. `positive`:
    whether a participant has the positive diagnosis.
    """
    tested = answers_of(answers, positive)
    means = answers.groupby("participant_id")[list(_MAPS)].mean()
    on_marker = answers[answers["marked"].astype(bool)].groupby("participant_id")["on_marker"].mean()
    groups = [copies[tested.of_class == label] for label in (False, True) for copies in (tested.plain, tested.marked)]
    people = [len(own) for own in groups]
    low, high = worst_interval([int(own.sum()) for own in groups], people)
    chance = chance_of_worst(people[::2], opposite=task == REVERSED)
    row: dict[str, object] = {"task": task, "training": training, "weight": weight, "n_participants": len(means)}
    row |= {f"accuracy_{name}": value for name, value in tested.accuracies.items()}
    row |= {"worst_group": tested.worst, "worst_group_low": low, "worst_group_high": high}
    row |= {"chance": chance.expected, "chance_low": chance.low, "chance_high": chance.high}
    row |= {"mean_accuracy": tested.mean_accuracy, "as_in_training": tested.as_in_training}
    row |= {"against_training": tested.against_training}
    agreed = answers_of(answers, positive, "agrees")
    row |= {f"agreement_{name}": getattr(agreed, name) for name in ("as_in_training", "against_training")}
    row |= {name: float(means[name].mean()) for name in _MAPS} | {"on_marker": float(on_marker.mean())}
    row["n_no_positive"] = int(answers["epg"].isna().sum())
    if training == "control" or not len(control):
        return row
    return row | changes(answers, control, positive)


def changes(answers: pd.DataFrame, control: pd.DataFrame, positive: Mapping[str, bool]) -> dict[str, float]:
    """Differences from the control over the participants that both tested."""
    both = set(answers["participant_id"]) & set(control["participant_id"])
    sides = [frame[frame["participant_id"].isin(both)] for frame in (answers, control)]
    epg = [frame.groupby("participant_id")["epg"].mean().to_numpy(float) for frame in sides]
    first, second = (answers_of(frame, positive) for frame in sides)
    risen = epg[0] - epg[1]
    risen = risen[np.isfinite(risen)]
    change = float(np.mean(risen)) if len(risen) else np.nan
    named = {"epg": (change, participant_interval((risen,), np.mean, DRAWS, 0))}
    for name, values in first.per_person.items():
        change, low, high = mean_of_classes(values - second.per_person[name], first.of_class)
        named[name] = change, (low, high)
    agreed = [answers_of(frame, positive, "agrees").per_person for frame in sides]
    for name in ("as_in_training", "against_training"):
        change, low, high = mean_of_classes(agreed[0][name] - agreed[1][name], first.of_class)
        named[f"agreement_{name}"] = change, (low, high)
    return {"worst_group_change": first.worst - second.worst} | {
        f"{name}_change{end}": value
        for name, (change, (low, high)) in named.items()
        for end, value in (("", change), ("_low", low), ("_high", high))
    }
