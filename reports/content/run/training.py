"""Training curves and what ended each training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from reports.figures.training import draw_training_curves
from reports.page.material import Material
from reports.page.tables import Column, numeric, page_table, text
from reports.words.numbers import count, fixed

_COLUMNS = (
    numeric("fold", "Fold"),
    numeric("train", "Training participants"),
    numeric("validation", "Validation participants"),
    numeric("test", "Test participants"),
    numeric("epochs", "Epochs"),
    numeric("best_epoch", "Epoch kept"),
    numeric("validation_balanced_accuracy", "Validation balanced accuracy of that epoch", lambda x: fixed(x, 3)),
    numeric("validation_loss", "Validation loss of that epoch", lambda x: fixed(x, 3)),
    Column("ended_by", "Ended by", lambda x: text(x).replace("max_epochs", "largest number of epochs")),
)


def build(material: Material) -> Mapping[str, Any]:
    """Curves and one row per fold."""
    run = material.run
    rows = []
    for fold, model in run.models.items():
        people = {part: len(members) for part, members in model.get("participants", {}).items()}
        rows.append({"fold": fold, **people, **{c.key: model.get(c.key) for c in _COLUMNS[4:]}})
    figure = draw_training_curves(run.histories)
    picture = material.gallery.add(
        figure,
        "training_curves",
        f"Loss and balanced accuracy by epoch for {count(len(run.histories), 'fold')}.",
        "Loss (cross-entropy) and balanced accuracy by epoch. The vertical line is the epoch whose weights were kept, "
        "chosen on the validation participants; test participants play no part here.",
    )
    table = page_table(pd.DataFrame(rows), _COLUMNS, "Trained networks, one per fold.")
    return {"figure": picture, "table": table}
