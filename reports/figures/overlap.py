"""How far the leading regions depend on beta."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from reports.figures.style import INK, new_figure


def draw_overlap(matrices: Mapping[str, pd.DataFrame], top: int, people: Mapping[str, int]) -> Figure:
    """Per metric, the share of the first `top` regions that two values of beta have in common, in per cent.

    `matrices`: metric to a square table, beta by beta, values 0 to 100. `people`: participants that each metric is
    ranked over.
    """
    figure = new_figure(max(2.9 * len(matrices), 3.4), 3.3)
    axes = figure.subplots(1, len(matrices), squeeze=False)[0]
    for ax, (metric, matrix) in zip(axes, matrices.items(), strict=True):
        values = matrix.to_numpy(float)
        image = ax.imshow(values, cmap="cividis", vmin=0, vmax=100)
        for i in range(len(matrix)):
            for j in range(len(matrix)):
                value = float(values[i, j])
                colour = INK if value > 55 else "white"
                ax.text(j, i, "n/a" if value != value else f"{value:.0f}", ha="center", va="center", color=colour)
        names = [f"{beta:g}" for beta in matrix.index]
        ax.set_xticks(range(len(names)), names)
        ax.set_yticks(range(len(names)), names)
        ax.set_title(f"{metric.capitalize()}, n = {people[metric]}")
        ax.set_xlabel("β")
        ax.grid(False)
        ax.spines[:].set_visible(False)
    axes[0].set_ylabel("β")
    figure.colorbar(image, ax=list(axes), label=f"overlap of the top {top}, %", shrink=0.75)
    return figure
