"""How good the classifier is on participants it has not seen, and how its networks were trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from heatlas.pipeline.statistics.performance.intervals import ALL_FOLDS
from heatlas.reports.analyses.findings import performance_estimate
from heatlas.reports.content.run.methods import loss_in_words
from heatlas.reports.figures.charts import Curves, draw_confusion, draw_curves, draw_training_curves
from heatlas.reports.figures.gallery import Picture
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.tables import Column, columns_of, numeric, page_table, text
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import count, fixed, is_missing, number, sentence_case
from heatlas.reports.words.wording import worded


def confusion(run: RunRecord) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Scans, and participants behind them, by true (rows) and predicted class (columns)."""
    frame, labels = run.tables["predictions"], list(run.labels)
    scans = pd.crosstab(frame["label"], frame["predicted"])
    people = frame.groupby(["label", "predicted"])["participant_id"].nunique().reset_index()
    people = people.pivot_table(index="label", columns="predicted", values="participant_id")
    return tuple(  # type: ignore[return-value]
        table.reindex(index=labels, columns=labels, fill_value=0).fillna(0).astype(int) for table in (scans, people)
    )


METRICS = ("balanced_accuracy", "sensitivity", "specificity", "accuracy", "auc", "average_precision", "brier")
_COLUMNS = ("metric", "estimate", "ci_low", "ci_high", "n_participants", "n_scans", "interval", "note")
_FOLD_COLUMNS = ("fold", "n_participants", "n_scans", "n_positive", "n_negative")


def by_fold(run: RunRecord) -> pd.DataFrame:
    """One row per test fold: counts, and every measure."""
    table = run.tables["performance"]
    table = table[table["fold"].astype(str) != ALL_FOLDS]
    counts = table.drop_duplicates("fold").set_index("fold")[["n_participants", "n_scans", "n_positive", "n_negative"]]
    return counts.join(table.pivot_table(index="fold", columns="metric", values="estimate")).reset_index()


def build(material: Material) -> Mapping[str, Any]:
    """Measures with intervals, confusion table, curves, folds."""
    run = material.run
    content: dict[str, Any] = {
        "predicted": run.predicted,
        "confusion": _confusion(material),
        "curves": _curves(material),
        "table": None,
        "folds": None,
    }
    if run.has("performance"):
        table = run.tables["performance"]
        together = table[table["fold"].astype(str) == ALL_FOLDS]
        together = together.assign(metric=together["metric"].map(worded).map(sentence_case))
        level = (
            f"{100 * run.config.statistics.confidence:g} % intervals from drawing participants with all their scans."
        )
        content["table"] = page_table(
            together,
            columns_of(run, "performance", _COLUMNS),
            f"Out-of-fold predictions of all folds together; {level}",
        )
        columns = columns_of(run, "performance", _FOLD_COLUMNS)
        columns += [numeric(name, sentence_case(worded(name)), lambda x: fixed(x, 3)) for name in METRICS]
        content["folds"] = page_table(by_fold(run), columns, "Test participants of each fold.")
    return content


def _confusion(material: Material) -> Picture:
    run = material.run
    scans, people = confusion(run)
    n = _n(run.tables["predictions"])
    cells = [
        f"{count(scans.loc[truth, said], 'scan')} of {truth} predicted {said}"
        for truth in scans.index
        for said in scans.columns
    ]
    return material.gallery.add(
        draw_confusion(scans, people),
        "confusion",
        f"Confusion table of {n}: {'; '.join(cells)}.",
        f"Scans by true and predicted class, {n}. A participant with several scans can be in more than one cell.",
    )


def _curves(material: Material) -> Picture | None:
    """ROC, precision-recall and calibration curves; None before the statistics."""
    run = material.run
    if not run.has("roc"):
        return None
    empty = {name: pd.DataFrame(columns=columns) for name, columns in _POINTS.items()}
    tables = {name: run.tables[name] if run.has(name) else empty[name] for name in _POINTS}
    roc = tables["roc"][tables["roc"]["fold"].astype(str) == ALL_FOLDS]
    predictions = run.tables["predictions"]
    n = _n(predictions)
    texts = {name: _area(run, name) for name in ("auc", "average_precision")}
    curves = Curves(
        roc, tables["precision_recall"], tables["calibration"], texts["auc"], texts["average_precision"],
        float(predictions["target"].mean()),
    )  # fmt: skip
    people = predictions["participant_id"].nunique()
    return material.gallery.add(
        draw_curves(curves, run.positive, f"n = {number(len(predictions))} scans\nof {number(people)} people"),
        "performance_curves",
        f"ROC curve, {texts['auc']}; precision-recall curve, {texts['average_precision']}; calibration. {n}.".replace(
            "\n", " "
        ),
        f"Out-of-fold predictions, {n}. Dashed: guessing or, for calibration, perfectly calibrated "
        "probabilities. Calibration counts each participant once per bin; bars are Wilson intervals over participants. "
        "Probabilities of different folds come from different networks.",
    )


_POINTS = {
    "roc": ["fold", "false_positive_rate", "true_positive_rate"],
    "precision_recall": ["recall", "precision"],
    "calibration": ["mean_probability", "share_positive", "ci_low", "ci_high"],
}


def _area(run: RunRecord, metric: str) -> str:
    found = performance_estimate(run, metric)
    if found is None:
        return "area not known"
    known = "" if is_missing(found.low) else f"\n{fixed(found.low)} to {fixed(found.high)}"
    return f"area {fixed(found.value, 3)}{known}"


def _n(predictions: pd.DataFrame) -> str:
    return f"{count(len(predictions), 'scan')} of {count(predictions['participant_id'].nunique(), 'participant')}"


SCORES = {"balanced_accuracy": "balanced accuracy", "mae": "mean absolute error"}
_TRAINING_COLUMNS = (
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


def build_training(material: Material) -> Mapping[str, Any]:
    """Curves and one row per fold."""
    run = material.run
    rows = []
    for fold, model in run.models.items():
        people = {part: len(members) for part, members in model.get("participants", {}).items()}
        score = {"score": model.get(f"validation_{run.task.kind.score}")}
        rows.append({"fold": fold, **people, **{c.key: model.get(c.key) for c in _TRAINING_COLUMNS[4:]}, **score})
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
    columns = [replace(column, title=column.title.format(score=score_name)) for column in _TRAINING_COLUMNS]
    table = page_table(pd.DataFrame(rows), columns, "Trained networks, one per fold.")
    return {"figure": picture, "table": table}
