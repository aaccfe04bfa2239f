"""Charts of single sections: volume, overlap between betas, registration, training, performance."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from heatlas.reports.figures.gallery import BLUE, GREY, INK, VERMILION, new_figure
from heatlas.reports.words.numbers import count, percent, shortened

_PER_ROW = 5


def draw_volume_scatter(
    points: Mapping[str, pd.DataFrame],
    texts: Mapping[str, str],
    units: Mapping[str, str],
    volume_title: str,
    centred: Collection[str] = (),
    beside: Mapping[str, pd.DataFrame] = MappingProxyType({}),
) -> Figure:
    """Relevance of the hippocampus against its volume, one panel per map, one point per participant.

    `points`: title of a panel to columns ``volume`` and ``relevance``. `texts`: coefficient, interval, p and n of each
    panel. `units`: of the relevance in each. `volume_title`: with its unit. `centred`: titles of the panels whose
    values are deviations from the means of test folds. `beside`: false positives, which neither r nor the line has.
    """
    figure = new_figure(4.3 * len(points), 3.6)
    axes = figure.subplots(1, len(points), squeeze=False)[0]
    for ax, (title, frame) in zip(axes, points.items(), strict=True):
        ax.scatter(frame["volume"], frame["relevance"], s=26, color=VERMILION, alpha=0.8, linewidths=0)
        others = beside.get(title, pd.DataFrame())
        if len(others):
            ax.scatter(others["volume"], others["relevance"], s=30, marker="D", facecolors="none", edgecolors=BLUE)
        _fit_line(ax, frame["volume"].to_numpy(float), frame["relevance"].to_numpy(float))
        ax.set_title(f"{title}\n{texts[title]}", fontsize=8.5, fontweight="normal")
        ax.xaxis.set_major_locator(MaxNLocator(4))
        less = "\nminus the mean of the test fold" if title in centred else ""
        ax.set_xlabel(volume_title + less)
        ax.set_ylabel(f"{units[title]}, hippocampus" + less)
    return figure


def _fit_line(ax: Axes, x: np.ndarray, y: np.ndarray) -> None:
    """Least-squares line, to guide the eye."""
    if len(x) > 2 and np.ptp(x) > 0:
        slope, offset = np.polyfit(x, y, 1)
        ends = np.array([x.min(), x.max()])
        ax.plot(ends, offset + slope * ends, color=INK, lw=1)


def draw_beta_curve(betas: Sequence[float], curves: Mapping[str, pd.DataFrame]) -> Figure:
    """Correlation with volume by beta.

    `curves`: name of a coefficient to columns ``estimate``, ``low``, ``high``, in the order of `betas`.
    """
    figure = new_figure(5.2, 3.2)
    ax = figure.subplots()
    width = 0.012 * (max(betas) - min(betas) or 1)
    for shift, (name, curve), colour, marker in zip((-1, 1), curves.items(), (VERMILION, BLUE), "os", strict=False):
        x = np.asarray(betas) + shift * width
        errors = np.vstack([curve["estimate"] - curve["low"], curve["high"] - curve["estimate"]]).clip(min=0)
        ax.errorbar(x, curve["estimate"], np.nan_to_num(errors), color=colour, marker=marker, ms=5, lw=1.4,
                    elinewidth=1, capsize=2, label=name)  # fmt: skip
    ax.axhline(0, color=GREY, lw=1)
    ax.set_xticks(list(betas))
    ax.set_xlabel("β")
    ax.set_ylabel("correlation with hippocampal volume")
    figure.legend(loc="outside lower center", ncols=2)  # anywhere inside, intervals cross it
    return figure


def draw_registration(quality: pd.DataFrame, outlying: pd.Series, named: bool = True) -> Figure:
    """Every scan by overlap and correlation with the template brain.

    `quality`: columns ``dice`` and ``correlation``. `outlying`: scans to mark, and to name if `named`.
    """
    figure = new_figure(5.2, 3.2)
    ax = figure.subplots()
    good, bad = quality[~outlying], quality[outlying]
    ax.scatter(good["dice"], good["correlation"], s=22, color=BLUE, alpha=0.8, label=f"as expected, n = {len(good)}")
    if len(bad):
        label = f"to be looked at, n = {len(bad)}"
        ax.scatter(bad["dice"], bad["correlation"], s=46, color=VERMILION, marker="X", label=label)
        for row in bad.head(8 if named else 0).itertuples():
            name, place = shortened(row.participant_id, 30), (row.dice, row.correlation)
            ax.annotate(name, place, xytext=(6, 3), textcoords="offset points", fontsize=7, color=INK)
    ax.set_xlabel("Dice overlap of brain masks (scan and template)")
    ax.set_ylabel("correlation with template")
    ax.legend(loc="best")
    return figure


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
