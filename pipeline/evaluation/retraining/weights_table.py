"""``objective_weights.tsv``: accuracy and maps of networks by the weight of ``[objective]``, and the weight chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from heatlas.pipeline.evaluation.retraining.before_after_table import AFTER, TEST, VALIDATION
from heatlas.pipeline.evaluation.scores.pareto import chosen, pareto_front
from heatlas.pipeline.run.columns import Form
from heatlas.pipeline.run.declared import Table

OF_MAPS: Mapping[str, Sequence[str]] = {
    "guided": ("epg", "iou"),
    "distilled": ("teacher_cosine", "agrees"),
    "readable-gradients": ("guided_cosine",),
}
"""Measures that a weight of each kind of objective is chosen by, besides accuracy; the first decides."""
_SAID = {
    "balanced_accuracy": "Mean over the classes of the share of people whose class the network recognises",
    "epg": "Mean share of the positive attribution inside the mask (EPG); of guidance",
    "iou": "Mean overlap of map and mask (IoU); of guidance",
    "teacher_cosine": "Mean cosine with the teacher's map; of distillation",
    "agrees": "Share of people for whom it finds the class that the teacher finds; of distillation",
    "guided_cosine": "Mean cosine with the gradient of guided backpropagation; of readable gradients",
}
OBJECTIVE_WEIGHTS_TABLE = Table(
    "objective_weights",
    {
        "weight": "Weight of the loss of the maps; 0: trained as long without",
        "of_run": "Whether it is that of the run, whose networks were not trained again",
        **{f"validation_{name}": f"{text}, in the validation parts of all folds" for name, text in _SAID.items()},
        "in_pareto_set": "Whether no other weight is at least as good in every measure of the validation parts, and "
        "better in one",
        "chosen": "Whether it is the choice: of those in the Pareto set whose balanced accuracy in the validation "
        "parts is at most .05 below that of weight 0, that with the highest epg (teacher_cosine, guided_cosine)",
        **{
            f"test_{name}": f"{text}, in the test parts; not used for the choice. With several folds it is a little "
            "too good for the weight chosen, since who is tested in one fold is a validation person of another"
            for name, text in _SAID.items()
        },
        "n_validation": "Validation people, each once for every fold",
        "n_participants": "Participants tested, each by a network that has not seen them; a map without positive "
        "values, or that is 0, and that of someone without labels of their own where these guide, is left out of means "
        "of maps",
    },
    "weight", "With which weight should networks be trained with maps?", stage="evaluation",
    filled=("weight", "of_run", "in_pareto_set", "chosen", "n_validation", "n_participants"),
    forms={"of_run": Form.FLAG, "in_pareto_set": Form.FLAG},
)  # fmt: skip


def measures_of_weights(
    measured: Mapping[float, Sequence[pd.DataFrame]], of_run: float
) -> dict[tuple[float, bool], pd.DataFrame]:
    """`MEASURED_TABLE` of all folds by weight, and whether it is that of the run, which the control's tables hold."""
    frames = {weight: pd.concat(own, ignore_index=True) for weight, own in measured.items()}
    own = frames[0.0]["training"] == AFTER
    found = {(weight, False): frame for weight, frame in frames.items()}
    return found | {(0.0, False): frames[0.0][~own], (of_run, True): frames[0.0][own]}


def objective_weights_table(
    objective: str, measured: Mapping[tuple[float, bool], pd.DataFrame], labels: Mapping[str, str]
) -> pd.DataFrame:
    """One row per weight, from 0 up.

    Accuracy is balanced: where classes are unequal, a network that finds one class only would cost little otherwise.

    Parameters
    ----------
    objective : str
        Kind of the objective.
    measured : mapping of (float, bool) to pandas.DataFrame
        From `measures_of_weights`; weight 0 is among them.
    labels : mapping of str to str
        Class of each participant.
    """
    rows = []
    for (weight, of_run), frame in sorted(measured.items(), key=lambda one: one[0]):
        row: dict[str, object] = {"weight": weight, "of_run": of_run}
        for part, count in ((VALIDATION, "n_validation"), (TEST, "n_participants")):
            own = frame[frame["part"] == part]
            right = own[own["measure"] == "correct"]
            row[count] = len(right)
            of_classes = right["value"].astype(float).groupby(right["participant_id"].map(labels)).mean()
            row[f"{part}_balanced_accuracy"] = float(of_classes.mean())
            means = own["value"].astype(float).groupby(own["measure"]).mean()  # without people who have no value
            row |= {f"{part}_{name}": float(means.get(name, np.nan)) for name in OF_MAPS[objective]}
        rows.append(row)
    table = OBJECTIVE_WEIGHTS_TABLE.frame(rows)
    names = [f"validation_{name}" for name in ("balanced_accuracy", *OF_MAPS[objective])]
    values = table[names].to_numpy(float)
    table["in_pareto_set"] = pareto_front(values)
    table["chosen"] = np.arange(len(table)) == chosen(values[:, 0], values[:, 1:], control=0)
    return table
