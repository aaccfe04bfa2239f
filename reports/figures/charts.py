"""Charts of single sections: volume, overlap between betas, registration, training, performance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from heatlas.reports.figures.gallery import BLUE, GREY, INK, VERMILION, new_figure
from heatlas.reports.words.numbers import count, percent

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
    ax.set_xticks(range(len(counts.columns)), counts.columns)
    ax.set_yticks(range(len(counts.index)), [f"{name}\nn = {counts.loc[name].sum()}" for name in counts.index])
    ax.set_xlabel("predicted")
    ax.set_ylabel("true")
    ax.grid(False)
    ax.spines[:].set_visible(False)
    return figure


@dataclass(frozen=True)
class Curves:
    """What is drawn of the predictions of all folds together; a curve that is not known is an empty table."""

    roc: pd.DataFrame  # points as in the tables of that name
    precision_recall: pd.DataFrame
    calibration: pd.DataFrame
    roc_text: str  # areas with their intervals
    precision_recall_text: str
    prevalence: float  # share of the positive class: what precision is by chance


def draw_curves(curves: Curves, positive: str, n: str) -> Figure:
    """ROC and precision-recall curve and calibration, side by side."""
    figure = new_figure(9.2, 3.3)
    roc, recall, calibration = figure.subplots(1, 3)
    for ax in (roc, recall, calibration):
        ax.set_xlim(-0.03, 1.03)
        ax.set_ylim(-0.03, 1.03)
        ax.set_aspect("equal")
    roc.plot([0, 1], [0, 1], color=GREY, lw=1, ls="--")
    roc.step(curves.roc["false_positive_rate"], curves.roc["true_positive_rate"], color=BLUE, lw=2, where="post")
    _label(roc, "ROC", "1 − specificity", "sensitivity", curves.roc_text, (0.97, 0.04))
    recall.axhline(curves.prevalence, color=GREY, lw=1, ls="--")
    points = curves.precision_recall
    recall.step(points["recall"], points["precision"], color=BLUE, lw=2, where="post")
    _label(
        recall, "Precision and recall", "recall (sensitivity)", "precision", curves.precision_recall_text, (0.97, 0.04)
    )
    calibration.plot([0, 1], [0, 1], color=GREY, lw=1, ls="--")
    bins = curves.calibration
    errors = np.clip([bins["share_positive"] - bins["ci_low"], bins["ci_high"] - bins["share_positive"]], 0, None)
    calibration.errorbar(
        bins["mean_probability"], bins["share_positive"], errors, fmt="o", color=BLUE, ms=5, elinewidth=1.2, capsize=2
    )
    _label(calibration, "Calibration", f"mean probability of {positive}", f"share of {positive}", n, (0.97, 0.04))
    return figure


def _label(ax: Axes, title: str, x: str, y: str, text: str, place: tuple[float, float]) -> None:
    ax.set_title(title)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.text(*place, text, ha="right", fontsize=8, linespacing=1.25)
