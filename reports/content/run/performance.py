"""How good the classifier is on participants it has not seen, and how its networks were trained: tables and charts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from heatlas.pipeline.statistics.performance.classification import ALL_FOLDS
from heatlas.reports.content.run.methods import loss_in_words
from heatlas.reports.figures.gallery import BLUE, GREY, INK, VERMILION, Picture, new_figure
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.tables import Column, columns_of, numeric, page_table, text, worded_columns
from heatlas.reports.questions.findings import performance_estimate
from heatlas.reports.questions.predictions import answer_on_learning, learning_of
from heatlas.reports.questions.question import ANY_TASK, Answer, Caution, Check, Headline, Question
from heatlas.reports.read.run_record import OUTCOMES, RunRecord
from heatlas.reports.words.numbers import (
    LONGEST_CLASS,
    count,
    fixed,
    is_missing,
    number,
    percent,
    sentence_case,
    shortened,
)
from heatlas.reports.words.sentences import Words
from heatlas.reports.words.wording import worded

WORDS = Words(__file__)


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
    points = {name: run.tables.get(name, pd.DataFrame(columns=columns)) for name, columns in _POINTS.items()}
    points["roc"] = points["roc"][points["roc"]["fold"].astype(str) == ALL_FOLDS]
    predictions = run.tables["predictions"]
    n = _n(predictions)
    texts = {name: _area(run, name) for name in ("auc", "average_precision")}
    people = predictions["participant_id"].nunique()
    texts["n"] = f"n = {number(len(predictions))} scans\nof {number(people)} people"
    areas = f"ROC curve, {texts['auc']}; precision-recall curve, {texts['average_precision']}; calibration. {n}."
    return material.gallery.add(
        draw_curves(points, texts, float(predictions["target"].mean()), run.positive),
        "performance_curves",
        areas.replace("\n", " "),
        WORDS.say("curves_caption", n=n),
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
    *worded_columns(WORDS, "training_columns"),
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
    loss = loss_in_words(run).partition(" with ")[0] if run.task.classes else run.config.training.regression_loss
    picture = material.gallery.add(
        figure,
        "training_curves",
        f"Loss and {score_name} by epoch for {count(len(run.histories), 'fold')}.",
        WORDS.say("training_caption", loss=loss, score_name=score_name),
    )
    columns = [replace(column, title=column.title.format(score=score_name)) for column in _TRAINING_COLUMNS]
    table = page_table(pd.DataFrame(rows), columns, "Trained networks, one per fold.")
    return {"figure": picture, "table": table}


_PER_ROW = 5


def draw_training_curves(
    histories: Mapping[int, pd.DataFrame], score: str = "balanced_accuracy", score_name: str = "balanced accuracy"
) -> Figure:
    """Loss (above) and score (below) by epoch, one column per fold; a line marks the epoch kept."""
    columns = min(len(histories), _PER_ROW)
    blocks = -(-len(histories) // _PER_ROW)
    figure = new_figure(max(2.0 * columns + 0.6, 4.2), 3.5 * blocks + 0.4)
    axes = figure.subplots(2 * blocks, columns, squeeze=False, sharey="row")
    for place, (fold, history) in enumerate(histories.items()):
        block, column = divmod(place, columns)
        pair = axes[2 * block : 2 * block + 2, column]
        for ax, quantity in zip(pair, ("loss", score), strict=True):
            ax.plot(history["epoch"], history[f"train_{quantity}"], color=GREY, lw=1.2, ls="--", label="training")
            ax.plot(history["epoch"], history[f"validation_{quantity}"], color=BLUE, lw=1.5, label="validation")
            for epoch in history.loc[history["best"].astype(bool), "epoch"].tail(1):
                ax.axvline(epoch, color=VERMILION, lw=1, label="epoch kept")
            ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        pair[0].set_title(f"Fold {fold}")
        pair[1].set_xlabel("epoch")
        if score == "balanced_accuracy":
            pair[1].set_ylim(-0.03, 1.03)
        if column == 0:
            pair[0].set_ylabel("loss")
            pair[1].set_ylabel(score_name)
    for place in range(len(histories), blocks * columns):
        for ax in axes[2 * (place // columns) : 2 * (place // columns) + 2, place % columns]:
            ax.set_visible(False)
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3)
    return figure


def draw_confusion(counts: pd.DataFrame, people: pd.DataFrame) -> Figure:
    """Scans by true and predicted class.

    `counts`, `people`: true class by predicted class: scans, and participants behind them.
    """
    figure = new_figure(3.8, 3.2)
    ax = figure.subplots()
    shares = counts.div(counts.sum(axis=1).replace(0, 1), axis=0)
    ax.imshow(shares, cmap="Blues", vmin=0, vmax=1.15)
    for i, truth in enumerate(counts.index):
        for j, said in enumerate(counts.columns):
            share = shares.loc[truth, said]
            ax.text(
                j, i,
                f"{count(counts.loc[truth, said], 'scan')}\n{count(people.loc[truth, said], 'participant')}\n"
                f"{percent(share, 0)} of row",
                ha="center", va="center", color="white" if share > 0.6 else INK, fontsize=8.5,
            )  # fmt: skip
    names = {name: shortened(name, LONGEST_CLASS) for name in (*counts.columns, *counts.index)}
    ax.set_xticks(range(len(counts.columns)), [names[name] for name in counts.columns])
    ax.set_yticks(range(len(counts.index)), [f"{names[name]}\nn = {counts.loc[name].sum()}" for name in counts.index])
    ax.set_xlabel("predicted")
    ax.set_ylabel("true")
    ax.grid(False)
    ax.spines[:].set_visible(False)
    return figure


def draw_curves(
    points: Mapping[str, pd.DataFrame], texts: Mapping[str, str], prevalence: float, positive: str
) -> Figure:
    """ROC and precision-recall curve and calibration of all folds together, side by side.

    `points`: as in the tables of these names, empty where a curve is not known. `texts`: areas with their intervals,
    and ``n``. `prevalence`: share of the positive class, which is the precision by chance.
    """
    figure = new_figure(9.2, 3.3)
    roc, recall, calibration = figure.subplots(1, 3)
    for ax in (roc, recall, calibration):
        ax.set_xlim(-0.03, 1.03)
        ax.set_ylim(-0.03, 1.03)
        ax.set_aspect("equal")
    roc.plot([0, 1], [0, 1], color=GREY, lw=1, ls="--")
    rates = points["roc"]
    roc.step(rates["false_positive_rate"], rates["true_positive_rate"], color=BLUE, lw=2, where="post")
    _label(roc, "ROC", "1 − specificity", "sensitivity", texts["auc"])
    recall.axhline(prevalence, color=GREY, lw=1, ls="--")
    curve = points["precision_recall"]
    recall.step(curve["recall"], curve["precision"], color=BLUE, lw=2, where="post")
    _label(recall, "Precision and recall", "recall (sensitivity)", "precision", texts["average_precision"])
    calibration.plot([0, 1], [0, 1], color=GREY, lw=1, ls="--")
    bins = points["calibration"]
    errors = np.clip([bins["share_positive"] - bins["ci_low"], bins["ci_high"] - bins["share_positive"]], 0, None)
    calibration.errorbar(
        bins["mean_probability"], bins["share_positive"], errors, fmt="o", color=BLUE, ms=5, elinewidth=1.2, capsize=2
    )
    _label(calibration, "Calibration", f"mean probability of {positive}", f"share of {positive}", texts["n"])
    return figure


def _label(ax: Axes, title: str, x: str, y: str, text: str) -> None:
    ax.set_title(title)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.text(0.97, 0.04, text, ha="right", fontsize=8, linespacing=1.25)


def _chance(run: RunRecord) -> Caution | None:
    estimate = performance_estimate(run, "balanced_accuracy")
    if estimate is None or is_missing(estimate.low) or estimate.low > 0.5:
        return None
    return Caution.read(WORDS, "chance", estimate=estimate)


def _empty_outcomes(run: RunRecord) -> Caution | None:
    empty = [name for name in OUTCOMES if run.group_sizes.get(name, (1, 1))[0] == 0]
    if not empty:
        return None
    return Caution.read(WORDS, "empty-outcomes", empty=empty)


def _miscalibrated(run: RunRecord) -> Caution | None:
    """Bins of probability whose interval does not hold the probability."""
    table = run.tables["calibration"]
    off = table[(table["mean_probability"] < table["ci_low"]) | (table["mean_probability"] > table["ci_high"])]
    if off.empty:
        return None
    people = int(off["n_participants"].sum())
    return Caution.read(WORDS, "miscalibrated", off=len(off), bins=len(table), run=run, people=people)


def _not_converged(run: RunRecord) -> Caution | None:
    folds = [fold for fold, model in run.models.items() if model.get("converged") is False]
    if not folds:
        return None
    return Caution.read(
        WORDS,
        "not-converged",
        level="note" if len(folds) < len(run.models) else "serious",
        folds=len(folds),
        networks=len(run.models),
        names=[f"fold {fold}" for fold in folds],
    )


def _not_learned(run: RunRecord) -> Caution | None:
    accuracies = {fold: model.get("validation_balanced_accuracy") for fold, model in run.models.items()}
    folds = [fold for fold, value in accuracies.items() if value is not None and value <= 1 / len(run.task.outputs)]
    if not folds:
        return None
    return Caution(
        "serious",
        "A network does no better than guessing." if run.is_given else "A network did not learn.",
        WORDS.say(
            "not_learned",
            folds=len(folds),
            networks=len(run.models),
            names=[f"fold {fold}" for fold in folds],
            what="it" if run.is_given else "even the best epoch",
        ),
        "training",
    )


def _how_good(run: RunRecord) -> Answer:
    """The answer of the summary."""
    estimate = performance_estimate(run, "balanced_accuracy")
    if estimate is None:
        if run.has("predictions") and not run.has("performance"):
            return Answer("There are predictions; the statistics will add measures and intervals.")
        if run.has("predictions"):
            return Answer("There are predictions, but no balanced accuracy over both classes.")
        return Answer("Not known: no network has been trained and tested yet.")
    found = learning_of(run)
    if found is None:
        return Answer("Not known: there is no balanced accuracy over both classes.")
    within = performance_estimate(run, "auc_within_folds")
    area = "auc" if within is None or is_missing(within.value) else "auc_within_folds"
    estimates = {metric: performance_estimate(run, metric) for metric in ("sensitivity", "specificity", area)}
    others = [f"{worded(metric)} {fixed(one.value)}" for metric, one in estimates.items() if one is not None]
    return replace(answer_on_learning(found), more=WORDS.say("how_good", estimate=estimate, others=others))


PERFORMANCE = Question.read(
    WORDS,
    "performance",
    draw=build,
    cautions=(
        Check("chance", _chance),
        Check("miscalibrated", _miscalibrated, ("calibration",)),
        Check("empty-outcomes", _empty_outcomes),
    ),
    headline=Headline(("predictions", "performance"), _how_good),
)
TRAINING = Question.read(
    WORDS,
    "training",
    draw=build_training,
    tasks=ANY_TASK,
    cautions=(
        Check("not-learned", _not_learned),
        Check("not-converged", _not_converged),
    ),
)
