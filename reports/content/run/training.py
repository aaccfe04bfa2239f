"""Training curves, and why each training ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from heatlas.reports.content.run.methods import loss_in_words
from heatlas.reports.figures.charts import draw_training_curves
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.tables import Column, numeric, page_table, text
from heatlas.reports.words.numbers import count, fixed

SCORES = {"balanced_accuracy": "balanced accuracy", "mae": "mean absolute error"}
_COLUMNS = (
    numeric("fold", "Fold"),
    numeric("train", "Training participants"),
    numeric("validation", "Validation participants"),
    numeric("test", "Test participants"),
    numeric("epochs", "Epochs"),
    numeric("best_epoch", "Epoch kept"),
    numeric("score", "Validation {score} of that epoch", lambda x: fixed(x, 3)),
    numeric("validation_loss", "Validation loss of that epoch", lambda x: fixed(x, 3)),
    Column("ended_by", "Ended by", lambda x: text(x).replace("max_epochs", "largest number of epochs")),
)


def build(material: Material) -> Mapping[str, Any]:
    """Curves and one row per fold."""
    run = material.run
    rows = []
    for fold, model in run.models.items():
        people = {part: len(members) for part, members in model.get("participants", {}).items()}
        score = {"score": model.get(f"validation_{run.task.kind.score}")}
        rows.append({"fold": fold, **people, **{c.key: model.get(c.key) for c in _COLUMNS[4:]}, **score})
    score_name = SCORES[run.task.kind.score]
    figure = draw_training_curves(run.histories, run.task.kind.score, score_name)
    loss = run.config.training.regression_loss if run.task.is_number else loss_in_words(run).partition(" with ")[0]
    picture = material.gallery.add(
        figure,
        "training_curves",
        f"Loss and {score_name} by epoch for {count(len(run.histories), 'fold')}.",
        f"Loss ({loss}) and {score_name} by epoch. The vertical line is the epoch whose weights were kept, "
        "chosen on the validation participants; test participants are not used.",
    )
    columns = [replace(column, title=column.title.format(score=score_name)) for column in _COLUMNS]
    table = page_table(pd.DataFrame(rows), columns, "Trained networks, one per fold.")
    return {"figure": picture, "table": table}
