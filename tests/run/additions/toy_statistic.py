"""A statistic in one file: its table and its function."""

from __future__ import annotations

import pandas as pd

from heatlas.pipeline.run.declared import Inference, Table
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs

TOY_TABLE = Table(
    "toy",
    {"label": "Class", "probability": "Mean probability of the positive class", "p": "A p value, for the toy always 1"},
    "class", "How sure is the network of each class?", filled=("label",),
    inference=Inference("exploratory", "each class alone"),
)  # fmt: skip


def toy_table(inputs: StatisticsInputs) -> pd.DataFrame:
    people = inputs.predictions.groupby(["label", "participant_id"])["probability"].mean()
    return people.groupby("label").mean().reset_index().assign(p=1.0)
