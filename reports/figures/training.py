"""Training curves."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from reports.figures.style import BLUE, GREY, VERMILION, new_figure

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
