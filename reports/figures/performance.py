"""How well the classifier does: confusion table and receiver operating characteristic."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from reports.figures.style import BLUE, GREY, INK, new_figure
from reports.numbers import count, percent


def draw_confusion(counts: pd.DataFrame, people: pd.DataFrame) -> Figure:
    """Scans by true and predicted class.

    Parameters
    ----------
    counts, people : pandas.DataFrame
        True class by predicted class: scans, and participants behind them.
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


def draw_roc(false_positive_rate: pd.Series, true_positive_rate: pd.Series, text: str) -> Figure:
    """ROC curve of the out-of-fold probabilities; `text` states area and n."""
    figure = new_figure(3.8, 3.2)
    ax = figure.subplots()
    ax.plot([0, 1], [0, 1], color=GREY, lw=1, ls="--", label="chance")
    ax.step(false_positive_rate, true_positive_rate, color=BLUE, lw=2, where="post", label="out-of-fold predictions")
    ax.set_xlabel("1 − specificity")
    ax.set_ylabel("sensitivity")
    ax.set_xlim(-0.02, 1.02)
    ax.set_ylim(-0.02, 1.02)
    ax.set_aspect("equal")
    ax.text(0.97, 0.05, text, ha="right", fontsize=8.5)
    ax.legend(loc=(0.36, 0.2))
    return figure
